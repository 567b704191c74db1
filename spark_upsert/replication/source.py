"""The source of a follower: its options, its publication and its slot."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from spark_upsert.core.durations import Fields
from spark_upsert.core.lsn import format_lsn, parse_lsn, without_page_header
from spark_upsert.errors import DataLossError, OptionError, OtherTableError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.postgres.catalog import (
    create_publication,
    list_candidates,
    quoted,
    read_catalog,
    require_setup,
)
from spark_upsert.postgres.connection import (
    Address,
    ReplicationConnection,
    connect,
    shown,
)
from spark_upsert.postgres.types import value_type
from spark_upsert.replication.state import FollowerState, read_state
from spark_upsert.store import Store

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Settings of a source."""

    url: str | Address = field(repr=False)
    """libpq's address of the database."""
    slot: str = "upsertflow"
    publication: str = "upsertflow"
    include: tuple[str, ...] = ()
    """Regular expressions for ``schema.table``; none: all tables."""
    exclude: tuple[str, ...] = ()
    rows_max: int = 100_000
    """A batch ends at the first commit at or after so many changes."""
    delay_s: float = 0.5
    """How long changes wait for others."""
    heartbeat_s: float = 10.0
    """How often an idle follower lets the server remove its log."""
    take_over: bool = False
    """Whether `Follower.run` ends the session that holds the slot when it begins."""

    def includes(self, name: str) -> bool:
        """Return whether a table ``schema.table`` is to be followed."""
        if any(re.fullmatch(pattern, name) for pattern in self.exclude):
            return False
        return not self.include or any(re.fullmatch(pattern, name) for pattern in self.include)


@dataclass(frozen=True, kw_only=True)
class FollowOptions(SourceOptions):
    """Settings of a follower."""

    routed: RoutedOptions


def open_source(options: SourceOptions, root: Store, connection: Any) -> FollowerState:
    """Return the follower's state; before the first batch, make the publication and the slot.

    Raises `OtherTableError` for another source than the one followed so far.
    """
    require_setup(connection, options.publication)
    with closing(ReplicationConnection(options.url)) as replication:
        system = replication.identify()
        state = read_state(root)
        if state is None:
            if read_slot(connection, options.slot) is not None:
                raise OptionError(
                    f"the server has a replication slot '{options.slot}', but nothing was ever "
                    f"written below '{root.url}'.",
                    hint="is the path right? If the slot is a leftover, drop it: SELECT "
                    f"pg_drop_replication_slot('{options.slot}'); else choose another slot name.",
                    option="slotName",
                )
            state = FollowerState(
                system=system.identifier,
                database=system.database,
                slot=options.slot,
                publication=options.publication,
                start=0,
            ).put(root)
        given = (system.identifier, system.database, options.slot, options.publication)
        followed = (state.system, state.database, state.slot, state.publication)
        if given != followed:
            names = "system {}, database '{}', slot '{}', publication '{}'"
            raise OtherTableError(
                f"the tables below '{root.url}' follow {names.format(*followed)}, and now are to "
                f"follow {names.format(*given)}.",
                hint="use the same database and names, or another root.",
                path=root.url,
            )
        if not state.start:
            # The publication first: decoding reads the catalog of each change's time.
            _ensure_publication(options, connection)
            drop_slot(connection, options.slot)
            start = replication.create_slot(options.slot)
            state = replace(state, start=start, lower=start, upper=start).put(root)
    return state


def _ensure_publication(options: SourceOptions, connection: Any) -> None:
    query = "SELECT FROM pg_publication WHERE pubname = %s"
    if connection.execute(query, [options.publication]).fetchone() is not None:
        return
    tables = []
    for table, has_key in list_candidates(connection):
        if options.includes(str(table)):
            if has_key:
                tables.append(table)
            else:
                _LOGGER.warning("a table without a key is left out: %s", Fields(table=str(table)))
    if not tables:
        raise OptionError(
            f"{shown(options.url)} has no table with a primary key that the patterns include.",
            hint="check the patterns and the database in the URL.",
            option="tableIncludeList",
        )
    create_publication(connection, options.publication, tables)


def require_slot(connection: Any, state: FollowerState, position: int, why: str = "") -> None:
    """Raise `DataLossError` unless the slot has every transaction after a position."""
    slot, read_up_to = state.slot, max(position, state.released)
    row = read_slot(connection, slot)
    if row is None:
        problem = "is gone"
    elif row[1] == "lost":
        problem = "needs log that the server has removed (max_slot_wal_keep_size)"
    elif parse_lsn(row[0]) > read_up_to:
        problem = f"is at {row[0]}: it was created again, or read by another program"
    else:
        return
    raise DataLossError(
        f"{why}the replication slot '{slot}' {problem}. The tables have everything up to "
        f"{format_lsn(read_up_to)}; later changes are lost.",
        hint="start again with a new slot and new copies of all tables: in Spark, by another spool, "
        "slotName and checkpointLocation; with the command 'follow', by --resnapshot.",
    )


def read_log_end(connection: Any, *, is_exact: bool = True) -> int:
    """Return the end of the server's log, with commits that are not flushed yet.

    ``is_exact``: the end of the last record.
    """
    [text] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    return without_page_header(parse_lsn(text)) if is_exact else parse_lsn(text)


def read_slot(connection: Any, slot: str) -> tuple[str, str] | None:
    """Return a slot's confirmed position and status; None if there is none."""
    row: tuple[str, str] | None = connection.execute(
        "SELECT confirmed_flush_lsn, wal_status FROM pg_replication_slots WHERE slot_name = %s",
        [slot],
    ).fetchone()
    return row


def drop_slot(connection: Any, slot: str) -> None:
    """Drop a slot if there is one."""
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        [slot],
    )


def drop_source(options: FollowOptions) -> None:
    """Drop the slot and the publication, so that the server keeps no log for the follower."""
    with connect(options.url) as connection:
        drop_slot(connection, options.slot)
        connection.execute(f"DROP PUBLICATION IF EXISTS {quoted(options.publication)}")


def describe_source(options: FollowOptions) -> list[dict[str, str]]:
    """Return the tables that a follower would follow, a mapping per table; changes nothing."""
    with connect(options.url) as connection:
        require_setup(connection, options.publication)
        catalog = read_catalog(connection, options.publication)
        described = []
        for table in catalog.tables:
            columns = (
                f"{c.name} {value_type(c.type_oid, c.modifier, catalog.type_names).arrow}"
                for c in table.columns
            )
            note = "" if table.problem is None else f"cannot be followed: {table.problem}"
            described.append((str(table), ", ".join(table.keys), ", ".join(columns), note))
        if not described:
            described = [
                (str(table), "", "", "would be published" if has_key else "left out: no key")
                for table, has_key in list_candidates(connection)
                if options.includes(str(table))
            ]
    names = ("table", "keys", "columns", "note")
    return [dict(zip(names, values, strict=True)) for values in described]
