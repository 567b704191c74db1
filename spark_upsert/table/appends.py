"""Group commit of appends to a table: appends of several threads that meet share a version.

Rows become commands in the thread that brings them, so that a fault in them never reaches the other
threads. An append commits at once if no other is under way; the first append that came meanwhile
then commits all that wait (`shared_calls`, `table.write.together`). An append that replaces what
came before it, such as an overwrite, or that is too large for a small version, commits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from spark_upsert.errors import BatchTooLargeError, TableFullError, UpsertFlowError
from spark_upsert.model.shared_calls import SharedCalls
from spark_upsert.schedule.governor import commit_window_ms
from spark_upsert.store import Store
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.caps import FULL_WAIT_MS
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.log.tombstones import LateRows
from spark_upsert.table.write.admission import Admission
from spark_upsert.table.write.commands import Envelope
from spark_upsert.table.write.own_rows import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.stash import Stash
from spark_upsert.table.write.together import (
    APART,
    BYTES_MAX,
    Append,
    AppendResult,
    append_together,
    joins,
    sealed,
)
from spark_upsert.table.write.write_set import Staged, WriteSet


class Appendable(Protocol):
    """The part of a table that appends need (`Table`)."""

    log: Log
    store: Store
    threads: int

    def admission(
        self, full_wait_ms: int = FULL_WAIT_MS, *, heeds_pressure: bool = True
    ) -> Admission:
        """Return what judges whether there is room."""
        ...

    def commit(self, epoch: WriteSet, *, admission: Admission | None = None) -> Commit | None:
        """Make an epoch visible."""
        ...

    def discard(self, staged: Iterable[Staged]) -> None:
        """Remove what was staged and not tried."""
        ...


class Appends:
    """The appends of the threads that share a table object; parameters of `append` as there.

    Parameters
    ----------
    table : Appendable
    pressure : callable
        Returns from 0 to 1 how much there is to do (`commit_window_ms`).
    """

    def __init__(self, table: Appendable, pressure: Callable[[], float]) -> None:
        self._table = table
        self._pressure = pressure
        self.calls = SharedCalls(self._round, joins=joins, window_s=self.window_s)

    def window_s(self) -> float:
        """Return how long appends that wait for each other wait for more."""
        return commit_window_ms(self._pressure()) / 1000

    def append(
        self,
        rows: pa.Table,
        *,
        deletes: str | None,
        envelope: Envelope | None,
        transaction: Transaction | None,
        overwrite: bool,
        late_rows: LateRows,
        full_wait_ms: int,
        heeds_pressure: bool,
        may_lack: bool,
    ) -> Commit | None:
        """Apply rows as one epoch (`Table.append`)."""
        told: AppendResult = APART
        commands_at = partial(
            commands_of, rows=rows, deletes=deletes, envelope=envelope, may_lack=may_lack
        )
        if not overwrite and late_rows is not LateRows.APPLY and rows.nbytes <= BYTES_MAX:
            told = self._shared(commands_at, transaction, late_rows)
        if isinstance(told, Exception):
            raise told
        if told is not APART:
            return told
        table = self._table
        head = table.log.head()
        admission = table.admission(full_wait_ms, heeds_pressure=heeds_pressure)
        if transaction is None or not head.has(transaction):
            head = admission.require(head)
        snapshot = Snapshot(table.store, head)
        staged = stage(
            snapshot,
            commands_at(head),
            overwrite=overwrite,
            late_rows=late_rows,
            threads=table.threads,
        )
        epoch = WriteSet(
            base=snapshot,
            staged=(staged,),
            transactions=() if transaction is None else (transaction,),
            overwrite=overwrite,
            late_rows=late_rows,
        )
        try:
            return table.commit(epoch, admission=admission)
        except (TableFullError, BatchTooLargeError):
            table.discard(epoch.staged)  # It was not tried.
            raise

    def _shared(
        self,
        commands_at: Callable[[Manifest], Iterator[pa.RecordBatch]],
        transaction: Transaction | None,
        late_rows: LateRows,
    ) -> AppendResult:
        """Append rows together with those of other threads, if there are any."""
        # An older version will do: whether its columns are those of the newest is seen then.
        head = self._table.log.last_look().head()
        with Stash(head.schema) as stash:
            try:
                for batch in commands_at(head):
                    stash.add(batch)
                call = sealed(head.schema, stash, transaction, late_rows)
            except UpsertFlowError:
                return APART  # By the newest version they may be right; else that one says so.
            return APART if call is None else self.calls.call(call)

    def _round(self, calls: Sequence[Append]) -> list[AppendResult]:
        """Commit the appends of some threads as one version."""
        table = self._table
        snapshot = Snapshot(table.store, table.log.head())
        # An append that must wait for room does so by itself.
        admission = table.admission(full_wait_ms=0)
        return append_together(
            table.log, snapshot, calls, table.commit, admission=admission, threads=table.threads
        )


def commands_of(
    head: Manifest,
    rows: pa.Table,
    deletes: str | None = None,
    envelope: Envelope | None = None,
    *,
    may_lack: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the commands of rows, as a version of the table understands them."""
    if envelope is None:
        envelope = envelope_of_rows(head.schema, rows.schema, deletes=deletes, may_lack=may_lack)
    yield from map(envelope.commands, rows.to_batches())
