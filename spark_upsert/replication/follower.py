"""Replication of a PostgreSQL database in batches of whole transactions (`Replicator`, `Follower`).

A batch is planned durably before any of it is written and confirmed to the server afterwards. So
whatever ends the process, the next one repeats the same batch or goes on after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.lsn import without_page_header
from spark_upsert.core.names import has_column
from spark_upsert.envelopes.postgres import rows_of
from spark_upsert.errors import DataLossError, StorageError
from spark_upsert.postgres.catalog import Catalog, SourceTable, read_catalog
from spark_upsert.postgres.connection import ReplicationConnection, connect, driver
from spark_upsert.postgres.copies import Visibility, copy_rows
from spark_upsert.postgres.feed import BatchEnd, BatchLimits, TransactionFeed
from spark_upsert.postgres.messages import EMPTY, OP, XID, LoggedTable, TableChanges
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.replication.rows import SourcePart, Target
from spark_upsert.replication.source import (
    FollowOptions,
    SourceOptions,
    open_source,
    read_log_end,
    require_slot,
)
from spark_upsert.replication.state import CopiedTable, FollowerState, claim_state, read_state
from spark_upsert.replication.target import Destination, PlannedBatch, RoutedDestination
from spark_upsert.store.protocol import new_token

_LOGGER = logging.getLogger(__name__)

COPY_PAGES = 1 << 15
"""Pages of 8 KiB that one batch copies: 256 MiB, or one larger table."""

_IDLE_S = 1.0
"""An idle follower confirms later log so long after a batch (`wait_for_lsn`), then at each heartbeat."""

_PAUSES_S: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, *(15.0,) * 40)
"""Pauses between attempts to connect again: some ten minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedBatch:
    """A complete batch."""

    number: int
    upper: int
    """The position after it."""
    rows: int
    transaction_count: int
    copied: tuple[str, ...]
    """Tables that it copied."""
    is_consistent: bool
    """Whether all tables together show the source's state at ``upper``."""


ReportBatch = Callable[[FollowedBatch], None]
"""Called after each complete batch."""


class Replicator:
    """Copies a database's tables to a destination, then writes its transactions there in batches.

    Parameters
    ----------
    options : SourceOptions
    destination : Destination
    """

    def __init__(self, options: SourceOptions, destination: Destination) -> None:
        self._options = options
        self._destination = destination
        self._session: _Session | None = None
        self._lock = threading.Lock()
        self._is_stopping = False
        self.until: int | None = None
        """The position at which to end; None: never. May be set during `run`, before `wake`."""

    def run(self, report: ReportBatch, *, once: bool = False) -> None:
        """Copy the tables if that was not done, then write batches until `until` or `stop`.

        Parameters
        ----------
        report : callable
        once : bool
            End at the log position that the server has now.
        """
        self._destination.prepare()
        pauses: tuple[float, ...] = ()
        takes_over, session_id = self._options.take_over, new_token()
        while not self._is_stopping:
            try:
                with closing(connect(self._options.url)) as connection:
                    if once and self.until is None:
                        self.until = read_log_end(connection)
                    if takes_over:
                        claim_state(self._destination.store, session_id)
                    state = open_source(self._options, self._destination.store, connection)
                    state = replace(state, session=session_id)
                    with self._opened(connection, state, takes_over=takes_over) as session:
                        session.begin(report)
                        takes_over = False  # Or two followers would end each other for ever.
                        while not self._is_done(session):
                            session.step(report, self.until)
                            pauses = _PAUSES_S
                        session.release()
                        return
            except (StorageError, driver().OperationalError) as error:
                if not pauses:
                    raise
                reason = str(error).strip().split("\n")[0]
                _LOGGER.warning("connecting again: %s", Fields(reason=reason, pause_s=pauses[0]))
                time.sleep(pauses[0])
                pauses = pauses[1:]

    def _is_done(self, session: _Session) -> bool:
        until = self.until
        return self._is_stopping or (until is not None and session.has_reached(until))

    @contextmanager
    def _opened(
        self, connection: Any, state: FollowerState, *, takes_over: bool
    ) -> Iterator[_Session]:
        """Close a session in the end, while no other thread uses it."""
        session = _Session(
            self._options, self._destination, connection, state, takes_over=takes_over
        )
        self._session = session
        try:
            yield session
        finally:
            with self._lock:
                self._session = None
            session.close()

    def wake(self, confirmed: int = 0) -> None:
        """Let a `run` in another thread notice changed settings; confirm a durable position."""
        with self._lock:
            if self._session is not None:
                self._session.wake(confirmed)

    def stop(self) -> None:
        """End a `run` in another thread after its current batch."""
        self._is_stopping = True
        self.wake()


class Follower(Replicator):
    """Follows a database into the tables below a root. One per slot and root.

    Parameters
    ----------
    options : FollowOptions
    """

    def __init__(self, options: FollowOptions) -> None:
        super().__init__(options, RoutedDestination(options.routed))

    def forget_copies(self) -> None:
        """Let the next run make a new slot and copy all tables again; they stay readable."""
        root = self._destination.store
        state = read_state(root)
        if state is not None:
            replace(state, start=0, tables={}, copying=(), released=0).put(root)


class _Session:
    """A follower's work with one connection for SQL and one for the stream."""

    def __init__(
        self,
        options: SourceOptions,
        destination: Destination,
        connection: Any,
        state: FollowerState,
        *,
        takes_over: bool,
    ) -> None:
        self._options = options
        self._destination = destination
        self._sql = connection
        self._state = state
        self._catalog = self._read_catalog()
        self._wrote = True
        self._takes_over = takes_over
        self._is_complete = state.number < 0 or destination.has(state)
        position = state.upper if self._is_complete else state.lower
        confirmed = destination.confirmable(state, position)
        require_slot(connection, state, position)
        self._feed = TransactionFeed(
            ReplicationConnection(options.url, takes_over=takes_over),
            state.slot,
            state.publication,
            position,
            self._keys_of,
            confirmed=max(confirmed, state.released),
        )

    def close(self) -> None:
        """End the stream."""
        self._feed.close()

    def wake(self, confirmed: int) -> None:
        """Confirm a durable position, and end the wait for transactions."""
        self._feed.confirm(confirmed)
        self._feed.wake()

    def has_reached(self, until: int) -> bool:
        """Return whether everything up to a position is written, and all copies have joined."""
        state = self._state
        return state.upper >= state.joined and self._feed.idle_position >= until

    def begin(self, report: ReportBatch) -> None:
        """Complete the batch planned last, then copy the tables that need it."""
        state = self._state
        if self._takes_over and not self._is_complete:
            # The follower before may still commit copies, from another snapshot: copy them again.
            tables = {o: table for o, table in state.tables.items() if o not in state.copying}
            state = replace(state, tables=tables)
        self._put(state)
        if not self._is_complete:
            if state.copying:
                self._copy(
                    [t for t in self._catalog.tables if t.oid in state.copying],
                    report,
                    is_new=False,
                )
            else:
                with RowsByTable() as rows:
                    self._write(rows, self._read_again(rows), report)
        with RowsByTable() as rows:
            self._follow_catalog(rows, report)

    def step(self, report: ReportBatch, until: int | None) -> None:
        """Write the next batch, or let the server remove its log if there is none."""
        options = self._options
        self._destination.wait_for_room()
        if until is not None:
            until = max(until, without_page_header(self._state.joined))
        with RowsByTable() as rows:
            limits = BatchLimits(
                rows_max=options.rows_max,
                delay_s=options.delay_s,
                idle_s=_IDLE_S if self._wrote else options.heartbeat_s,
                until=until,
            )
            end = self._feed.read(_adder(rows), limits)
            self._wrote = end is not None
            self._follow_catalog(rows, report)
            if end is None and self._state.upper < self._state.joined <= self._feed.idle_position:
                self._feed.skip_to_idle()
                end = _empty(self._feed.position)  # It lets the copies join.
            if end is None:
                self.release()
            else:
                self._plan(lower=end.lower, upper=end.upper, copying=())
                self._write(rows, end, report)

    def _read_again(self, rows: RowsByTable) -> BatchEnd:
        """Read the batch planned last once more."""
        state = self._state
        if state.lower == state.upper:
            return _empty(state.upper)
        end = self._feed.read(_adder(rows), BatchLimits(exactly=state.upper))
        assert end is not None
        return end

    def release(self) -> None:
        """Let the server remove its log while there is nothing to read in it."""
        position = self._feed.idle_position
        released = max(self._state.upper, self._state.released)
        if position > released and self._destination.releases(self._state, position - released):
            # Durable first: the slot's position is checked against it at the next start.
            self._put(replace(self._state, released=position))
            self._feed.confirm(position)

    def _confirm(self) -> None:
        self._feed.confirm(self._destination.confirmable(self._state, self._state.upper))

    def _put(self, state: FollowerState) -> None:
        self._state = state.put(self._destination.store)

    def _plan(self, **changes: Any) -> None:
        """Record the next batch before any table has it."""
        self._put(replace(self._state, number=self._state.number + 1, **changes))

    def _write(self, rows: RowsByTable, end: BatchEnd, report: ReportBatch) -> None:
        self._commit(rows, end, (), report)
        self._confirm()

    def _read_catalog(self) -> Catalog:
        catalog = read_catalog(self._sql, self._state.publication)
        if not catalog.tables:
            raise DataLossError(
                f"publication '{self._state.publication}' is gone, or publishes no table.",
                hint="changes made without it are lost: start again with --resnapshot.",
            )
        catalog.require_usable()
        return catalog

    def _keys_of(self, relation: LoggedTable) -> tuple[str, ...]:
        if relation.oid not in self._catalog.by_oid:
            self._catalog = self._read_catalog()
        return self._catalog.keys_of(relation)

    # -- copies ---------------------------------------------------------------------------

    def _follow_catalog(self, rows: RowsByTable, report: ReportBatch) -> None:
        """Copy the tables of which the log does not show everything; accept other changes."""
        self._catalog = self._read_catalog()
        copied = set()
        accepted = dict(self._state.tables)
        for table in self._catalog.tables:
            before = self._state.tables.get(table.oid)
            reason = (
                "new in the publication"
                if before is None
                else _reason_to_copy(before.source, table, is_emptied=_is_emptied(rows, table))
            )
            if reason is not None:
                fields = Fields(table=str(table), reason=reason)
                _LOGGER.log(
                    logging.INFO if before is None else logging.WARNING,
                    "a table is copied: %s",
                    fields,
                )
                copied.add(table.target)
            elif before is not None:
                accepted[table.oid] = replace(before, source=table)
        self._state = replace(self._state, tables=accepted)
        # All partitions of a table together.
        self._copy_new([t for t in self._catalog.tables if t.target in copied], report)

    def _copy_new(self, tables: Sequence[SourceTable], report: ReportBatch) -> None:
        # Before the batch just read: a restart in between reads it again.
        position = self._state.upper
        for portion in _portions(tables):
            self._state = replace(
                self._state,
                number=self._state.number + 1,
                lower=position,
                upper=position,
                copying=tuple(table.oid for table in portion),
            )
            self._copy(portion, report, is_new=True)

    def _copy(self, tables: Sequence[SourceTable], report: ReportBatch, *, is_new: bool) -> None:
        """Copy tables as one batch; of a batch that is not new, those that do not have it."""
        copying = {table.oid for table in tables if is_new or not self._has_batch(table)}
        with RowsByTable() as rows, connect(self._options.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [snapshot] = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            visibility, lsn = Visibility.parse(snapshot), read_log_end(connection, is_exact=False)
            targets: set[tuple[str, str]] = set()
            for table in tables:
                if table.oid not in copying:
                    rows.add(_key(table), pa.record_batch({XID: pa.array([], pa.int64())}))
                elif table.target not in targets:  # A partitioned table by its root, once.
                    targets.add(table.target)
                    names = self._catalog.type_names
                    for batch in copy_rows(connection, table, names, self._state.copy_place):
                        rows.add(_key(table), batch)
            connection.execute("COMMIT")
            copies = {
                table.oid: CopiedTable(source=table, visibility=visibility, lsn=lsn)
                for table in tables
                if table.oid in copying and (is_new or not self._takes_over)
            }
            self._put(replace(self._state, tables={**self._state.tables, **copies}))
            self._commit(rows, _empty(self._state.upper), tuple(map(str, tables)), report)

    def _has_batch(self, table: SourceTable) -> bool:
        """Return whether a table has the batch planned last."""
        return self._destination.has_table(self._state, table.target)

    # -- tables ---------------------------------------------------------------------------

    def _commit(
        self, rows: RowsByTable, end: BatchEnd, copied: tuple[str, ...], report: ReportBatch
    ) -> None:
        """Write the batch planned last."""
        state = self._state
        targets: dict[tuple[str, str], Target] = {}
        for table in self._catalog.tables:
            if _key(table) in rows.counts:  # Others were dropped, or are out of the publication.
                copy = state.tables.get(table.oid)
                is_repeating = copy is not None and copy.lsn > state.lower and not copied
                visibility = copy.visibility if copy is not None and is_repeating else None
                target = targets.setdefault(table.target, Target(table.keys))
                target.parts.append(SourcePart(_key(table), visibility, table.is_partition))
        is_known = self._catalog.by_oid.keys() <= state.tables.keys()
        batch = PlannedBatch(
            rows=rows,
            targets=targets,
            end=end,
            is_copy=bool(copied),
            is_consistent=is_known and state.upper >= state.joined,
        )
        self._destination.write(state, batch)
        report(
            FollowedBatch(
                number=state.number,
                upper=state.upper,
                rows=batch.row_count,
                transaction_count=end.transaction_count,
                copied=copied,
                is_consistent=batch.is_consistent,
            )
        )


def _empty(position: int) -> BatchEnd:
    """Return a batch without a transaction."""
    return BatchEnd(lower=position, upper=position, transaction_count=0, committed_us=0)


def _key(table: SourceTable | LoggedTable) -> str:
    """Return a source table's name in `RowsByTable`, which a table keeps when it is renamed."""
    return str(table.oid)


def _adder(rows: RowsByTable) -> Callable[[Sequence[TableChanges]], None]:
    def add(tables: Sequence[TableChanges]) -> None:
        for table in tables:
            key, batch = _key(table.relation), rows_of(table)
            if key in rows.counts and not _has_same_types(rows.schema(key), batch.schema):
                rows.remove(key)  # The table is copied next; the copy has these changes.
            rows.add(key, batch)

    return add


def _has_same_types(one: pa.Schema, other: pa.Schema) -> bool:
    return all(f.type == other.field(f.name).type for f in one if has_column(other, f.name))


def _portions(tables: Sequence[SourceTable]) -> Iterator[list[SourceTable]]:
    """Yield tables for one batch of copies each: small ones together, partitions always."""
    by_target: dict[tuple[str, str], list[SourceTable]] = {}
    for table in tables:
        by_target.setdefault(table.target, []).append(table)
    portion: list[SourceTable] = []
    for parts in by_target.values():
        if portion and sum(t.page_count for t in (*portion, *parts)) > COPY_PAGES:
            yield portion
            portion = []
        portion = [*portion, *parts]
    if portion:
        yield portion


def _is_emptied(rows: RowsByTable, table: SourceTable) -> bool:
    """Return whether a batch has a truncate of a table."""
    key = _key(table)
    batches = rows.rows(key) if key in rows.counts else ()
    return any(EMPTY in batch.column(OP).unique().to_pylist() for batch in batches)


def _reason_to_copy(before: SourceTable, now: SourceTable, *, is_emptied: bool) -> str | None:
    """Return why a table must be copied again; None if its changes in the log are sufficient."""
    if before.keys != now.keys:
        return "other key columns"
    if before.row_filter != now.row_filter:
        return "another row filter"
    types = {column.name: (column.type_oid, column.modifier) for column in before.columns}
    for number, column in zip(now.numbers, now.columns, strict=True):
        if column.name not in types:
            if number in before.numbers:
                return f"a column was renamed to '{column.name}'"
            if column.name in now.filled:
                return f"column '{column.name}' was added with values"
        elif types[column.name] != (column.type_oid, column.modifier):
            return f"column '{column.name}' has another type"
    if before.file != now.file and (now.is_partition or not is_emptied):
        return "its file was rewritten"
    if before.target != now.target:
        return "another name, or another partitioned table"
    return None
