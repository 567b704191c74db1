"""Options of a stream from a PostgreSQL database (`PostgresOptions`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_upsert.errors import OptionError
from spark_upsert.options.declare import (
    FREE,
    NO_NAMES,
    REFUSED,
    Change,
    Life,
    Option,
    Options,
    absolute_path,
    at_least,
    declared,
    read_values,
)

ROWS_MAX = 100_000


def _url(options: Options, name: str) -> str:
    text = options.text(name)
    if text is None:
        raise OptionError.missing(name, "libpq's address of the database")
    return text


def _spool(options: Options, name: str) -> str:
    text = options.text(name)
    if text is None:
        raise OptionError.missing(
            name, "a folder or bucket for the changes, which the driver and all executors reach"
        )
    return absolute_path(text, option=name)


def _patterns(options: Options, name: str) -> tuple[str, ...] | None:
    text = options.text(name)
    if text is None:
        return None
    patterns = tuple(pattern.strip() for pattern in text.split(","))
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            expected = f"regular expressions for schema.table, separated by commas ({error})"
            raise OptionError.invalid(name, pattern, expected) from None
    return patterns


_NEW_ONLY = Life(Change.FREE, "used when the publication is made")


@dataclass(frozen=True, kw_only=True, repr=False)
class PostgresOptions:
    """Parsed options of a stream from a database."""

    url: str = Option(
        "url", _url, Life(Change.FREE, "of the same database"), required=True
    ).as_field(
        "libpq's address of the database: a URL or `key=value` pairs. Give the password on the "
        "driver by `PGPASSWORD`, libpq's password file, or `passfile` in the address. Required."
    )
    password_command: str | None = Option("passwordCommand", Options.text, FREE).as_field(
        "Command that prints the password, run on the driver for each connection, without a shell."
    )
    spool: str = Option("spool", _spool, REFUSED, required=True).as_field(
        "Folder or bucket that the driver and all executors reach: changes wait here until a batch "
        "has them. One per query. Required."
    )
    slot: str = Option("slotName", Options.text, REFUSED, default="upsertflow").as_field(
        "Replication slot; made by the first run. Default `upsertflow`."
    )
    publication: str = Option(
        "publicationName", Options.text, REFUSED, default="upsertflow"
    ).as_field("Publication; made by the first run if it does not exist. Default `upsertflow`.")
    include: tuple[str, ...] = Option(
        "tableIncludeList",
        _patterns,
        _NEW_ONLY,
        default=NO_NAMES,
        excludes=("tableExcludeList",),
    ).as_field(
        "Regular expressions for `schema.table`, separated by commas: the tables of a new "
        "publication. Default: all tables with a key."
    )
    exclude: tuple[str, ...] = Option(
        "tableExcludeList", _patterns, _NEW_ONLY, default=NO_NAMES
    ).as_field("The tables to leave out of a new publication; not with `tableIncludeList`.")
    rows_max: int = Option("maxRowsPerTrigger", at_least(1), FREE, default=ROWS_MAX).as_field(
        "A batch ends with the first transaction at or after so many changes; a copy of tables is "
        "a batch of its own. Default `100000`."
    )
    parallelism: int | None = Option("parallelism", at_least(1), FREE).as_field(
        "Maximum number of tasks per batch. Default: as for other reads."
    )
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, texts_by_name: Mapping[str, str]) -> PostgresOptions:
        """Parse the options; raises `OptionError` if one is unknown, missing or malformed."""
        options = Options(texts_by_name, POSTGRES_OPTIONS)
        return cls(storage=options.storage, **read_values(cls, options))

    def __repr__(self) -> str:
        return f"PostgresOptions(slot={self.slot!r}, spool={self.spool!r})"

    @property
    def tasks_max(self) -> int:
        """Maximum number of tasks: the option, or the CPU count here."""
        return self.parallelism or os.cpu_count() or 1


POSTGRES_OPTIONS = declared(PostgresOptions)
