"""A stream of a PostgreSQL database for Spark (`SourceStream`): a thread feeds a spool.

Offsets are positions in the spool, and no call but the first asks the server. The slot is confirmed
after `SourceStream.commit`, so a lost spool can be read from it again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

from spark_upsert.core.lsn import format_lsn
from spark_upsert.errors import DataLossError, OtherTableError
from spark_upsert.options.postgres import PostgresOptions
from spark_upsert.postgres.catalog import read_catalog
from spark_upsert.postgres.connection import Address, ReplicationConnection, connect
from spark_upsert.postgres.copies import Visibility
from spark_upsert.replication.follower import FollowedBatch, Replicator
from spark_upsert.replication.source import (
    SourceOptions,
    open_source,
    read_log_end,
    require_slot,
)
from spark_upsert.replication.spooled import Chunk, SourceOffset, SpoolDestination, SpooledBatch
from spark_upsert.replication.state import CopiedTable, FollowerState, read_state
from spark_upsert.routed.group import SourcePosition
from spark_upsert.store.open import open_store

_DELAY_S = 0.2
"""How long changes wait for others before they are spooled together."""

_TASK_BYTES = 256 << 10
"""Spooled bytes that suffice for a task; more tasks would cost more than they save."""

_TABLE_BYTES = 16 << 10
"""Work for a table with few changes, as bytes."""

_STOP_SECONDS = 10


@dataclass(frozen=True, slots=True)
class SourceTask:
    """A task's part of a batch."""

    chunks: tuple[Chunk, ...]
    position: SourcePosition | None
    """The position of the batch, in one of its tasks."""


class SourceStream:
    """A stream of a database's changes. Nothing is opened before the first call.

    Parameters
    ----------
    options : PostgresOptions
    """

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._has_ended = False
        """Whether the thread writes no more batches."""

    @cached_property
    def _spool(self) -> SpoolDestination:
        store = open_store(self._options.spool, self._options.storage)
        return SpoolDestination(store, self._options.rows_max)

    @cached_property
    def _source(self) -> SourceOptions:
        options = self._options
        return SourceOptions(
            url=Address(options.url, options.password_command),
            slot=options.slot,
            publication=options.publication,
            include=options.include,
            exclude=options.exclude,
            rows_max=options.rows_max,
            delay_s=_DELAY_S,
        )

    @cached_property
    def _replicator(self) -> Replicator:
        return Replicator(self._source, self._spool)

    # -- offsets ------------------------------------------------------------------------

    def initial(self) -> SourceOffset:
        """Make publication, slot and state if they are missing; return the first offset."""
        store = self._spool.store
        if self._thread is not None and (known := read_state(store)) is not None:
            return SourceOffset.initial(known)
        with closing(connect(self._source.url)) as connection:
            state = open_source(self._source, store, connection)
        initial = SourceOffset.initial(state)
        self._spool.load()
        if state.number > 0 and not any(self._spool.after(initial.number)):
            raise OtherTableError(
                f"the spool '{store.url}' belongs to another checkpoint, which has read up to batch "
                f"{state.number}; the query begins without an offset.",
                hint="use the checkpoint of that query. To begin again, stop it and give another "
                "spool and slotName; then drop the old slot.",
                path=store.url,
            )
        self._start(initial)
        return initial

    def latest(self, start: SourceOffset, *, everything: bool = False) -> SourceOffset:
        """Return the end of the next batch; ``start`` if nothing is new.

        Waits only for a stream that ends (`freeze`) or must return everything.
        """
        self._open(start, None)
        self._spool.take(start)
        if everything:
            self._spool.is_unlimited = True
            self.freeze()
        with self._spool.changed:
            self._spool.changed.wait_for(lambda: self._is_decided(start, everything=everything))
            self._raise_error()
            return self._end_after(start, everything=everything)

    def _is_decided(self, start: SourceOffset, *, everything: bool) -> bool:
        if self._replicator.until is None or self._has_ended:
            return True
        return not everything and any(self._spool.after(start.number))

    def _end_after(self, start: SourceOffset, *, everything: bool) -> SourceOffset:
        """Return the end of the batches after an offset that one batch of Spark takes.

        Copies of tables are alone: their columns may have other types than rows before.
        """
        end, rows = start, 0
        for batch in self._spool.after(start.number):
            rows += batch.rows
            is_full = rows > self._options.rows_max and not everything
            if end is not start and (is_full or batch.is_copy):
                break
            end = batch.end
            if batch.is_copy or (batch.is_cut and not everything):
                break
        return end

    def freeze(self) -> None:
        """Let the stream end at the log position that the server has now."""
        if self._replicator.until is None:
            with closing(connect(self._source.url)) as connection:
                self._replicator.until = read_log_end(connection)
            self._replicator.wake()

    def newest(self) -> SourceOffset | None:
        """Return the end of the newest batch in the spool; None before the first call."""
        return self._spool.newest if self._thread is not None else None

    # -- batches ------------------------------------------------------------------------

    def tasks(self, start: SourceOffset, end: SourceOffset) -> list[SourceTask]:
        """Divide a batch into tasks: by table, and copied tables by their chunks."""
        if start == end:  # Spark's first batch, if nothing was there yet.
            position = SourcePosition(lsn=format_lsn(end.lsn), is_whole=bool(end.tables))
            return [SourceTask((), position)]
        self._open(start, end)
        with self._spool.changed:
            self._spool.changed.wait_for(lambda: self._is_over(end))  # After a lost spool.
        self._raise_error()
        batches = self._between(start, end)
        if batches is None:
            raise DataLossError(
                f"the batch from {format_lsn(start.lsn)} to {format_lsn(end.lsn)} is not in the "
                f"spool '{self._spool.store.url}'.",
                hint="was the spool changed while the query ran? Restart the query: it reads the "
                "batch from the slot again.",
            )
        return _divide(batches, self._options.tasks_max)

    def _is_over(self, end: SourceOffset) -> bool:
        """Return whether the thread has spooled everything up to an offset, or has ended."""
        newest = self._spool.newest
        return self._has_ended or (newest is not None and newest.number >= end.number)

    def _between(self, start: SourceOffset, end: SourceOffset) -> list[SpooledBatch] | None:
        batches = []
        for batch in self._spool.after(start.number):
            batches.append(batch)
            if batch.end.number >= end.number:
                return batches if batch.end.number == end.number else None
        return None

    def commit(self, end: SourceOffset) -> None:
        """Remove the batches up to an offset from the spool, and confirm it to the server."""
        if self._thread is not None:
            self._spool.remove(end)
            self._replicator.wake(end.lsn)

    def stop(self) -> None:
        """End the thread and close its connections."""
        if self._thread is not None:
            self._replicator.stop()
            with self._spool.changed:
                self._spool.is_unlimited = True
                self._spool.changed.notify_all()
            self._thread.join(_STOP_SECONDS)

    # -- the thread ---------------------------------------------------------------------

    def _open(self, start: SourceOffset, end: SourceOffset | None) -> None:
        """Start the thread after an offset; read from the slot again what the spool has lost."""
        self._raise_error()
        if self._thread is not None:
            return
        if start.slot != self._source.slot:
            raise OtherTableError(
                f"the checkpoint belongs to the slot '{start.slot}', and the option 'slotName' is "
                f"'{self._source.slot}'.",
                hint="give the slot of the checkpoint, or start with a new checkpointLocation.",
            )
        self._spool.load()
        state = read_state(self._spool.store)
        if state is not None and not start.is_of(state):
            raise OtherTableError(
                f"the checkpoint is of database '{start.database}' in system {start.system}, and "
                f"the spool '{self._spool.store.url}' of '{state.database}' in {state.system}.",
                hint="give the spool of the checkpoint, or start with a new checkpointLocation.",
                path=self._spool.store.url,
            )
        if state is None or not self._is_intact(state, start, end):
            self._recover(start, end)
        self._start(start)

    def _start(self, taken: SourceOffset) -> None:
        if self._thread is None:
            self._spool.begin(taken)
            self._thread = threading.Thread(target=self._run, name="upsertflow-source", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._replicator.run(_ignore)
        except Exception as error:  # noqa: BLE001 - raised by the next call
            self._error = error
        finally:
            with self._spool.changed:
                self._has_ended = True
                self._spool.changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- a lost spool -------------------------------------------------------------------

    def _is_intact(
        self, state: FollowerState, start: SourceOffset, end: SourceOffset | None
    ) -> bool:
        """Return whether the spool has all batches after an offset, up to the one planned last."""
        if end is not None and self._between(start, end) is None:
            return False
        newest = max((batch.end.number for batch in self._spool.after(start.number)), default=-1)
        return state.number - max(newest, start.number) in (0, 1)

    def _recover(self, start: SourceOffset, end: SourceOffset | None) -> None:
        """Plan to read a batch, and all later changes, from the slot again."""
        positions = f"{format_lsn(start.lsn)} to {format_lsn(end.lsn) if end else 'the newest'}"
        if not start.tables or (end is not None and end.copy != start.copy):
            raise DataLossError(
                f"the spool '{self._spool.store.url}' has lost the changes from {positions}, with "
                "copies of tables, which the slot does not have.",
                hint="restore the spool, or start again with another spool, slotName and "
                "checkpointLocation.",
            )
        source, before = self._source, read_state(self._spool.store)
        state = FollowerState(
            system=start.system,
            database=start.database,
            slot=start.slot,
            publication=source.publication,
            start=start.lsn,
            number=start.number,
            lower=start.lsn,
            upper=start.lsn,
            record=-1 if before is None else before.record,
        )
        with closing(connect(source.url)) as connection:
            with closing(ReplicationConnection(source.url)) as replication:
                system = replication.identify()
            if (system.identifier, system.database) != (start.system, start.database):
                raise OtherTableError(
                    f"the checkpoint is of database '{start.database}' in system {start.system}, "
                    f"and the option 'url' leads to '{system.database}' in {system.identifier}.",
                    hint="give the address of the same database.",
                )
            require_slot(connection, state, start.lsn, f"the spool has lost {positions}, and ")
            catalog = read_catalog(connection, source.publication)
        known = {
            table.oid: CopiedTable(source=table, visibility=Visibility(0, 0, ()), lsn=start.lsn)
            for table in catalog.tables
        }
        if replace(state, tables=known).digest == (end or start).tables:
            state = replace(state, tables=known)  # Others are copied again.
        if end is not None:
            state = replace(state, number=end.number, upper=end.lsn)
        self._spool.clear()
        state.put(self._spool.store)


def _ignore(batch: FollowedBatch) -> None:
    """Take a report."""


def _divide(batches: Sequence[SpooledBatch], tasks_max: int) -> list[SourceTask]:
    """Return the tasks for batches, filled with the largest pieces first."""
    tables: dict[tuple[str, str], list[Chunk]] = {}
    for batch in batches:
        for chunk in batch.chunks:
            tables.setdefault((chunk.schema, chunk.table), []).append(chunk)
    pieces = list(tables.values())
    if all(batch.is_copy for batch in batches):
        pieces = [[chunk] for piece in pieces for chunk in piece]
    pieces.sort(key=_weight, reverse=True)
    count = min(tasks_max, len(pieces), -(-sum(map(_weight, pieces)) // _TASK_BYTES))
    shares: list[list[Chunk]] = [[] for _ in range(max(1, count))]
    for piece in pieces:
        min(shares, key=_weight).extend(piece)
    newest = batches[-1]
    position = SourcePosition(
        lsn=format_lsn(newest.end.lsn),
        committed_us=max(batch.committed_us for batch in batches) or None,
        is_whole=newest.is_consistent,
    )
    return [
        SourceTask(tuple(chunks), None if index else position)
        for index, chunks in enumerate(shares)
    ]


def _weight(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.length + _TABLE_BYTES for chunk in chunks)
