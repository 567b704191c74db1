"""The checked options of a growing set of files that is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.options.declared import Only, Option, declared, flag, values
from spark_upsert.options.lives import NEXT, Change, Life
from spark_upsert.options.parse import Options
from spark_upsert.payloads.ddl import parse_schema


class FileFormat(Enum):
    """How files are written."""

    PARQUET = "parquet"
    ARROW = "arrow"
    JSON = "json"
    CSV = "csv"


_TEXTS = Life(Change.NEXT, "of files to come", exact=Change.REFUSED)
"""It decides how many rows a file of text has."""


def _schema(options: Options, name: str) -> pa.Schema | None:
    text = options.text(name)
    return None if text is None else parse_schema(name, text, bare_name="value")[0]


def _glob(options: Options, name: str) -> str | None:
    text = options.text(name)
    if text is not None and set(text) & set("/{}"):
        raise OptionError.invalid(
            name,
            text,
            "a pattern of a file's name with *, ? and [...], without '/' and braces",
            hint="give several inputs, one for each pattern; folders below are read by "
            "recursiveFileLookup=true.",
        )
    return text


def _char(options: Options, name: str) -> str | None:
    value = options.raw(name)
    if value is None:
        return None
    value = {r"\t": "\t"}.get(value, value)
    if len(value) != 1 or not value.isascii() or value in "\r\n":
        raise OptionError.invalid(name, value, "one ASCII character")
    return value


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The checked options of one set of files."""

    format: FileFormat
    storage: Mapping[str, str] = field(repr=False)
    path: str = Option(
        "path",
        Options.path,
        Life(Change.NEXT, "another folder has other files; a copy of this one goes on"),
        required=True,
    ).held("The folder: a local path or an object store's URL. Required.")
    schema: pa.Schema | None = Option("schema", _schema, NEXT).held(
        "The columns, as in `id BIGINT, name STRING`, or the JSON of a `StructType`; others that "
        "files have are passed by. Default: those of the oldest file; all texts for CSV."
    )
    merge_schema: bool = Option("mergeSchema", flag, NEXT, default=False).held(
        "Whether a file may lack columns, which are null then, and have narrower types. Without "
        "`schema`, the newest files are looked at, too. Default `false`."
    )
    glob: str | None = Option(
        "pathGlobFilter",
        _glob,
        Life(
            Change.NEXT,
            "files that match only now are refused if they are older than those delivered",
        ),
    ).held("Only files with a name that matches, as `*.parquet`.")
    is_recursive: bool = Option(
        "recursiveFileLookup", flag, Life(Change.NEXT, "as `pathGlobFilter`"), default=False
    ).held("Whether files of the folders below are read. Default `false`.")
    fail_on_data_loss: bool = Option(
        "failOnDataLoss", flag, Life(Change.FREE, "where nothing is lost"), default=True
    ).held(
        "Whether a file that is gone, replaced or came too late stops the query. `false`: its "
        "rows are left out, with a warning in the log. Default `true`."
    )
    header: bool = Option("header", flag, _TEXTS, default=True, only=Only.CSV).held(
        "CSV: whether the first line holds the names of the columns. Without it columns are those "
        "of `schema`, in order, or `_c0`, `_c1` and so on. Default `true`."
    )
    separator: str = Option("sep", _char, _TEXTS, default=",", only=Only.CSV).held(
        "CSV: what stands between values, one character. Default `,`."
    )
    quote: str = Option("quote", _char, _TEXTS, default='"', only=Only.CSV).held(
        'CSV: what encloses a value. Default `"`.'
    )
    escape: str | None = Option("escape", _char, _TEXTS, only=Only.CSV).held(
        "CSV: what stands before a quote within a value. Default: the quote itself, twice."
    )
    null_value: str = Option("nullValue", Options.text, NEXT, default="", only=Only.CSV).held(
        "CSV: the text, without quotes around it, that is null. Default: nothing."
    )
    is_projected: bool = False
    """Whether the query chooses among the columns, so that files may have others."""
    counts_rows: bool = False
    """Whether a limit of rows needs to know how many a file has."""

    @classmethod
    def parse(
        cls, format_: FileFormat, given: Mapping[str, str], *, counts_rows: bool = False
    ) -> FileOptions:
        """Check the options of a set of files; raises `OptionError`."""
        options = Options(given, FILE_OPTIONS)
        if format_ is not FileFormat.CSV:
            for option in FILE_OPTIONS.values():
                if option.only is Only.CSV:
                    why = f"has no meaning for {format_.value} files"
                    options.refuse(option.name, why, hint="drop it.")
        own = values(cls, options)
        return cls(format=format_, storage=options.storage, counts_rows=counts_rows, **own)


FILE_OPTIONS = declared(FileOptions)
