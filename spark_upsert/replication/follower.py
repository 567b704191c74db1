"""The follower of a PostgreSQL database (`Follower`): batches of whole transactions below a root.

A batch is planned durably before its first table is written and confirmed to the server after its
last one. So whatever ends the process, the next one repeats the same batch or goes on after it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.envelopes.postgres import rows_of
from spark_upsert.errors import DataLossError, OptionError, OtherTableError, SchemaError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.postgres.catalog import (
    Catalog,
    SourceTable,
    create_publication,
    list_candidates,
    quoted,
    read_catalog,
    require_setup,
)
from spark_upsert.postgres.connection import (
    ReplicationConnection,
    connect,
    driver,
    format_lsn,
    parse_lsn,
    shown,
)
from spark_upsert.postgres.copies import Visibility, copy_rows
from spark_upsert.postgres.feed import BatchEnd, TransactionFeed
from spark_upsert.postgres.messages import EMPTY, OP, XID, LoggedTable, TableChanges
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.postgres.types import value_type
from spark_upsert.replication.rows import BatchRows, Target
from spark_upsert.replication.state import CopiedTable, FollowerState, read_state
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, root_of, table_below
from spark_upsert.routed.router import Route, route_of
from spark_upsert.routed.stage import stage_tables
from spark_upsert.table.log.manifest import Transaction

_LOGGER = logging.getLogger(__name__)

_INCOMING = pa.schema([("_schema", pa.string()), ("_table", pa.string())])
"""The columns that name a table in the path."""

_NO_ROWS = pa.record_batch({XID: pa.array([], pa.int64())})
"""For a table that has the batch already."""

COPY_PAGES = 1 << 15
"""Pages of 8 KiB that one batch copies: 256 MiB, or one larger table."""

_PAUSES_S: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, *(15.0,) * 40)
"""Pauses between attempts to connect again: some ten minutes."""

_PAGE_BYTES = 8192
_PAGE_HEADER_BYTES = 40
"""No record ends within a page's header, so a position there means the page's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Settings of a follower."""

    url: str
    """libpq's address of the database."""
    routed: RoutedOptions
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

    def includes(self, name: str) -> bool:
        """Return whether a table ``schema.table`` is to be followed."""
        if any(re.fullmatch(pattern, name) for pattern in self.exclude):
            return False
        return not self.include or any(re.fullmatch(pattern, name) for pattern in self.include)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedBatch:
    """A complete batch."""

    number: int
    upper: int
    rows: int
    transaction_count: int
    copied: tuple[str, ...]
    """Tables that it copied."""
    is_consistent: bool
    """Whether all tables show the source's state at ``upper``."""


class Follower:
    """Follows a database into the tables below a root. One per slot and root.

    Parameters
    ----------
    options : FollowOptions
    """

    def __init__(self, options: FollowOptions) -> None:
        if options.routed.park:
            raise OptionError.refused(
                "onTableError",
                "cannot be 'park' here: a parked table would not follow the database",
                hint="leave it out.",
            )
        self._options = options
        self._root = root_of(options.routed)
        self._group = GroupTable(self._root)

    def forget_copies(self) -> None:
        """Let the next run make a new slot and copy all tables again; they stay readable."""
        state = read_state(self._root)
        if state is not None:
            replace(state, start=0, tables={}, copying=(), released=0).put(self._root)

    def drop(self) -> None:
        """Drop the slot and the publication, so that the server keeps no log for this follower."""
        with connect(self._options.url) as connection:
            _drop_slot(connection, self._options.slot)
            name = quoted(self._options.publication)
            connection.execute(f"DROP PUBLICATION IF EXISTS {name}")

    def plan(self) -> list[dict[str, Any]]:
        """Return what would be followed, a mapping per table; changes nothing."""
        options = self._options
        with connect(options.url) as connection:
            require_setup(connection, options.publication)
            catalog = read_catalog(connection, options.publication)
            if catalog.tables:
                return [_described(table, catalog) for table in catalog.tables]
            return [
                {
                    "table": str(table),
                    "keys": "",
                    "columns": "",
                    "note": "would be published" if has_key else "left out: it has no key",
                }
                for table, has_key in list_candidates(connection)
                if options.includes(str(table))
            ]

    def run(self, report: Callable[[FollowedBatch], None], *, once: bool = False) -> None:
        """Copy the tables if that was not done, then write batches until interrupted.

        Parameters
        ----------
        report : callable
            Called after each complete batch.
        once : bool
            End at the log position that the server has now.
        """
        until = None
        pauses = _PAUSES_S
        while True:
            try:
                with self._session() as session:
                    until = session.log_end() if once and until is None else until
                    session.resume(report)
                    session.copy_new_tables(report)
                    while until is None or not session.has_reached(until):
                        session.step(report, until)
                        pauses = _PAUSES_S
                    return
            except (ConnectionError, driver().OperationalError) as error:
                if not pauses:
                    raise
                reason = str(error).strip().split("\n")[0]
                _LOGGER.warning("connecting again: %s", Fields(reason=reason, pause_s=pauses[0]))
                time.sleep(pauses[0])
                pauses = pauses[1:]

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        connection = connect(self._options.url)
        try:
            state = self._open(connection)
            session = _Session(self._options, self._root, self._group, connection, state)
            try:
                yield session
            finally:
                session.close()
        finally:
            connection.close()

    def _open(self, connection: Any) -> FollowerState:
        """Return the state; before the first batch create publication and slot."""
        options = self._options
        require_setup(connection, options.publication)
        replication = ReplicationConnection(options.url)
        try:
            system = replication.identify()
            state = read_state(self._root)
            if state is None:
                self._require_no_slot(connection)
                state = FollowerState(
                    system=system.identifier,
                    database=system.database,
                    slot=options.slot,
                    publication=options.publication,
                    start=0,
                )
                plan_routed(options.routed, _INCOMING, root=self._root)
                state.put(self._root)
            _require_same_source(state, system.identifier, system.database, options)
            if not state.start:
                # The publication first: decoding reads the catalog of each change's time.
                self._ensure_publication(connection)
                _drop_slot(connection, options.slot)
                start = replication.create_slot(options.slot)
                state = replace(state, start=start, lower=start, upper=start)
                state.put(self._root)
            return state
        finally:
            replication.close()

    def _require_no_slot(self, connection: Any) -> None:
        slot = self._options.slot
        if _slot_row(connection, slot) is not None:
            raise OptionError(
                f"the server has a replication slot '{slot}', but nothing was ever written below "
                f"'{self._root.url}'.",
                hint="is the path right? If the slot is a leftover, drop it: SELECT "
                f"pg_drop_replication_slot('{slot}'); else choose another --slot.",
                option="slotName",
            )

    def _ensure_publication(self, connection: Any) -> None:
        options = self._options
        row = connection.execute(
            "SELECT FROM pg_publication WHERE pubname = %s", [options.publication]
        ).fetchone()
        if row is not None:
            return
        candidates = [
            (table, has_key)
            for table, has_key in list_candidates(connection)
            if options.includes(str(table))
        ]
        tables = [table for table, has_key in candidates if has_key]
        for table, has_key in candidates:
            if not has_key:
                _LOGGER.warning("a table without a key is left out: %s", Fields(table=str(table)))
        if not tables:
            raise OptionError(
                f"{shown(options.url)} has no table with a primary key that the patterns include.",
                hint="check --include and --exclude, and the database in the URL.",
                option="tableIncludeList",
            )
        create_publication(connection, options.publication, tables)


class _Session:
    """One connection's work: SQL and the stream."""

    def __init__(
        self,
        options: FollowOptions,
        root: Any,
        group: GroupTable,
        connection: Any,
        state: FollowerState,
    ) -> None:
        self._options = options
        self._root = root
        self._group = group
        self._sql = connection
        self._state = state
        self._catalog = self._read_catalog()
        position = state.upper if self._is_complete() else state.lower
        self._require_slot(position)
        self._feed = TransactionFeed(
            lambda: ReplicationConnection(options.url),
            state.slot,
            state.publication,
            position,
            self._keys_of,
        )

    def close(self) -> None:
        """End the stream."""
        self._feed.close()

    def log_end(self) -> int:
        """Return the end of the server's log, with commits that are not flushed yet."""
        [text] = self._sql.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        return _without_page_header(parse_lsn(text))

    def has_reached(self, until: int) -> bool:
        """Return whether everything up to a position is written, and all copies have joined."""
        state = self._state
        return state.upper >= state.joined and self._feed.idle_position >= until

    def _goal(self, until: int) -> int:
        return max(until, _without_page_header(self._state.joined))

    def resume(self, report: Callable[[FollowedBatch], None]) -> None:
        """Complete the batch that was planned last."""
        state = self._state
        if self._is_complete():
            return
        if state.copying:
            tables = [t for t in self._catalog.tables if t.oid in state.copying]
            self._copy(tables, state.number, report)
            return
        with RowsByTable() as rows:
            end = self._feed.read(self._adding(rows), rows_max=0, delay_s=0.0, exactly=state.upper)
            assert end is not None
            self._write(rows, end, report)

    def copy_new_tables(self, report: Callable[[FollowedBatch], None]) -> None:
        """Copy the published tables that were never copied."""
        tables = [t for t in self._catalog.tables if t.oid not in self._state.tables]
        for part in _portions(tables):
            self._copy(part, self._state.number + 1, report)

    def step(self, report: Callable[[FollowedBatch], None], until: int | None) -> None:
        """Write the next batch, or let the server remove its log if there is none."""
        options = self._options
        with RowsByTable() as rows:
            end = self._feed.read(
                self._adding(rows),
                rows_max=options.rows_max,
                delay_s=options.delay_s,
                until=None if until is None else self._goal(until),
                idle_s=options.heartbeat_s,
            )
            if end is None:
                self._rest(report)
                return
            self._follow_catalog(rows, report)
            self._plan(end)
            self._write(rows, end, report)

    def _plan(self, end: BatchEnd) -> None:
        """Record the next batch before any table has it."""
        number = self._state.number + 1
        self._state = replace(
            self._state, number=number, lower=end.lower, upper=end.upper, copying=()
        )
        self._state.put(self._root)

    def _is_consistent(self) -> bool:
        state = self._state
        return state.upper >= state.joined and self._catalog.by_oid.keys() <= state.tables.keys()

    def _rest(self, report: Callable[[FollowedBatch], None]) -> None:
        """After copies, write an empty batch that ends them; else let the server remove its log."""
        state, position = self._state, self._feed.idle_position
        if state.upper < state.joined <= position:
            self._feed.skip_to_idle()
            end = BatchEnd(lower=position, upper=position, transaction_count=0, committed_us=0)
            self._plan(end)
            with RowsByTable() as rows:
                self._write(rows, end, report)
        elif position > max(state.upper, state.released):
            # Durable first: the slot's position is checked against it at the next start.
            self._state = replace(state, released=position)
            self._state.put(self._root)
            self._feed.confirm(position)

    def _write(
        self, rows: RowsByTable, end: BatchEnd, report: Callable[[FollowedBatch], None]
    ) -> None:
        count = self._commit(rows, overwrite=False)
        self._feed.confirm(end.upper)
        report(
            FollowedBatch(
                number=self._state.number,
                upper=end.upper,
                rows=count,
                transaction_count=end.transaction_count,
                copied=(),
                is_consistent=self._is_consistent(),
            )
        )

    def _adding(self, rows: RowsByTable) -> Callable[[Sequence[TableChanges]], None]:
        def add(tables: Sequence[TableChanges]) -> None:
            for table in tables:
                rows.add(self._key(table.relation.schema, table.relation.name), rows_of(table))

        return add

    @staticmethod
    def _key(schema: str, name: str) -> str:
        return f"{schema}\0{name}"

    def _keys_of(self, relation: LoggedTable) -> tuple[str, ...]:
        if relation.oid not in self._catalog.by_oid:
            self._catalog = self._read_catalog()
        return self._catalog.keys_of(relation)

    def _read_catalog(self) -> Catalog:
        catalog = read_catalog(self._sql, self._state.publication)
        if not catalog.tables:
            raise DataLossError(
                f"publication '{self._state.publication}' is gone, or publishes no table.",
                hint="were changes made without it, they are lost: start again with --resnapshot.",
            )
        for table in catalog.tables:
            if not table.keys:
                raise SchemaError(
                    f"table '{table}' of the source has no primary key.",
                    hint="add a primary key, or remove the table from the publication.",
                    table=str(table),
                )
        return catalog

    def _is_complete(self) -> bool:
        return self._state.number < 0 or self._group.has(self._transaction(self._state.number))

    def _transaction(self, number: int) -> Transaction:
        writer = Transaction.writer_of_query(self._state.writer)
        return Transaction(writer=writer, number=number, is_consecutive=True)

    # -- copies ---------------------------------------------------------------------------

    def _follow_catalog(self, rows: RowsByTable, report: Callable[[FollowedBatch], None]) -> None:
        """Copy the tables of which the log does not show everything; accept other changes."""
        self._catalog = self._read_catalog()
        emptied = {
            part
            for part in rows.counts
            if any(EMPTY in batch.column(OP).unique().to_pylist() for batch in rows.rows(part))
        }
        copied = set()
        accepted = dict(self._state.tables)
        for table in self._catalog.tables:
            before = self._state.tables.get(table.oid)
            key = self._key(table.schema, table.name)
            reason = _reason_to_copy(
                None if before is None else before.source, table, is_emptied=key in emptied
            )
            if reason:
                _LOGGER.warning(
                    "a table is copied again: %s", Fields(table=str(table), reason=reason)
                )
                copied.add(table.target)
            elif before is not None:
                accepted[table.oid] = replace(before, source=table)
        self._state = replace(self._state, tables=accepted)
        # All partitions of a table together.
        tables = [t for t in self._catalog.tables if t.target in copied]
        for part in _portions(tables):
            self._copy(part, self._state.number + 1, report)

    def _copy(
        self,
        tables: Sequence[SourceTable],
        number: int,
        report: Callable[[FollowedBatch], None],
    ) -> None:
        """Copy tables as one batch."""
        is_new = number > self._state.number
        with RowsByTable() as rows, connect(self._options.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [snapshot] = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            [lsn] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            copies = {
                table.oid: CopiedTable(
                    source=table, visibility=Visibility.parse(snapshot), lsn=parse_lsn(lsn)
                )
                for table in tables
                if is_new or not self._has_batch(table, number)
            }
            targets: set[tuple[str, str]] = set()
            for table in tables:
                # A partitioned table is read by its root, once.
                if table.oid in copies and table.target not in targets:
                    targets.add(table.target)
                    key = self._key(table.schema, table.name)
                    for batch in copy_rows(
                        connection, table, self._catalog.type_names, self._state.start
                    ):
                        rows.add(key, batch)
                elif table.oid not in copies:
                    rows.add(self._key(table.schema, table.name), _NO_ROWS)
            connection.execute("COMMIT")
            self._state = replace(
                self._state,
                number=number,
                lower=self._feed.position,
                upper=self._feed.position,
                copying=tuple(table.oid for table in tables),
                tables={**self._state.tables, **copies},
            )
            self._state.put(self._root)
            count = self._commit(rows, overwrite=True)
        report(
            FollowedBatch(
                number=number,
                upper=self._state.upper,
                rows=count,
                transaction_count=0,
                copied=tuple(map(str, tables)),
                is_consistent=self._is_consistent(),
            )
        )

    def _has_batch(self, table: SourceTable, number: int) -> bool:
        """Return whether a table has a batch that is not complete."""
        route = self._route(table.target)
        assert route.folder is not None
        head = table_below(self._root, route.folder).log.try_head()
        return head is not None and head.has(self._transaction(number))

    # -- tables ---------------------------------------------------------------------------

    def _route(self, target: tuple[str, str]) -> Route:
        template = self._options.routed.template
        values = dict(zip(_INCOMING.names, target, strict=True))
        route = route_of(template, [values[column] for column in template.columns])
        if route.problem is not None:
            raise route.problem
        return route

    def _commit(self, rows: RowsByTable, *, overwrite: bool) -> int:
        """Write the planned batch's rows; return how many."""
        options, transaction = self._options.routed, self._transaction(self._state.number)
        sources = {self._key(t.schema, t.name): t for t in self._catalog.tables}
        parts: dict[Route, list[str]] = {}
        targets: dict[Route, Target] = {}
        repeated = {}
        for key in rows.counts:
            source = sources.get(key)
            if source is None:
                continue  # Dropped, or out of the publication.
            route = self._route(source.target)
            parts.setdefault(route, []).append(key)
            targets[route] = Target(route, source.keys)
            copy = self._state.tables.get(source.oid)
            if copy is not None and copy.lsn > self._state.lower and not overwrite:
                repeated[key] = copy.visibility
        partitions = frozenset(key for key, table in sources.items() if table.is_partition)
        batch = BatchRows(self._root, rows, parts, targets, repeated, partitions)
        plan = plan_routed(options, _INCOMING, root=self._root, overwrite=overwrite)
        staged = stage_tables(plan, self._root, batch, batch.counts, transaction, 0)
        commit_routed(self._root, options, [staged], transaction, overwrite=overwrite)
        return sum(batch.counts.values())

    def _require_slot(self, position: int) -> None:
        """Raise unless the slot has everything from a position on."""
        state = self._state
        row = _slot_row(self._sql, state.slot)
        again = "Start again with --resnapshot, which copies all tables."
        if row is None:
            raise DataLossError(
                f"the replication slot '{state.slot}' is gone, and with it the changes after "
                f"{format_lsn(position)}.",
                hint=again,
            )
        confirmed, status = row
        if status == "lost":
            raise DataLossError(
                f"the server has removed log that the replication slot '{state.slot}' needs, after "
                f"{format_lsn(position)} (max_slot_wal_keep_size).",
                hint=again,
            )
        if parse_lsn(confirmed) > max(position, state.released):
            raise DataLossError(
                f"the replication slot '{state.slot}' is at {confirmed}, and was last read up to "
                f"{format_lsn(max(position, state.released))}: it was created again, or read by "
                "another program. The changes between are lost.",
                hint=again,
            )


def _described(table: SourceTable, catalog: Catalog) -> dict[str, Any]:
    types = (value_type(c.type_oid, c.modifier, catalog.type_names) for c in table.columns)
    columns = zip(table.columns, types, strict=True)
    return {
        "table": str(table),
        "keys": ", ".join(table.keys),
        "columns": ", ".join(f"{column.name} {type_.arrow}" for column, type_ in columns),
        "note": "" if table.keys else "cannot be followed: it has no key",
    }


def _drop_slot(connection: Any, slot: str) -> None:
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        [slot],
    )


def _slot_row(connection: Any, slot: str) -> tuple[str, str] | None:
    row: tuple[str, str] | None = connection.execute(
        "SELECT confirmed_flush_lsn, wal_status FROM pg_replication_slots WHERE slot_name = %s",
        [slot],
    ).fetchone()
    return row


def _require_same_source(
    state: FollowerState, system: str, database: str, options: FollowOptions
) -> None:
    given = (system, database, options.slot, options.publication)
    expected = (state.system, state.database, state.slot, state.publication)
    if given != expected:
        raise OtherTableError(
            "the tables below the root follow system {}, database '{}', slot '{}', publication "
            "'{}'".format(*expected)
            + ", and now are to follow system {}, database '{}', slot '{}', publication '{}'.".format(
                *given
            ),
            hint="use the same database and names, or another root.",
            path=shown(options.url),
        )


def _without_page_header(lsn: int) -> int:
    """Return where the record before a position ends: the server may name the next page's data."""
    in_page = lsn % _PAGE_BYTES
    return lsn - in_page if in_page <= _PAGE_HEADER_BYTES else lsn


def _portions(tables: Sequence[SourceTable]) -> Iterator[list[SourceTable]]:
    """Yield tables for one batch of copies each: small ones together, partitions always."""
    portion: list[SourceTable] = []
    pages = 0
    by_target: dict[tuple[str, str], list[SourceTable]] = {}
    for table in tables:
        by_target.setdefault(table.target, []).append(table)
    for parts in by_target.values():
        size = sum(part.page_count for part in parts)
        if portion and pages + size > COPY_PAGES:
            yield portion
            portion, pages = [], 0
        portion += parts
        pages += size
    if portion:
        yield portion


def _reason_to_copy(
    before: SourceTable | None, now: SourceTable, *, is_emptied: bool
) -> str | None:
    """Return why a table must be copied again; None if its changes in the log are sufficient."""
    if before is None:
        return "new in the publication"
    if before.keys != now.keys:
        return "other key columns"
    if before.row_filter != now.row_filter:
        return "another row filter"
    types = {column.name: (column.type_oid, column.modifier) for column in before.columns}
    for column in now.columns:
        if column.name not in types and column.name in now.filled:
            return f"column '{column.name}' was added with values"
        if types.get(column.name, (column.type_oid, column.modifier)) != (
            column.type_oid,
            column.modifier,
        ):
            return f"column '{column.name}' has another type"
    if before.file != now.file and (now.is_partition or not is_emptied):
        return "its file was rewritten"
    return None
