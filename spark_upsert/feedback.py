"""The feedback upsert (`FeedbackUpsert`): a loop over frontiers, for sources outside Spark.

*input upper*: the first timestamp that may still get commands; *persist upper*: the first one not
durable, by the table's log. A command is emitted at the persist upper, if that is below the input
upper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import pyarrow as pa

from spark_upsert.core.precedence import Epoch as Timestamp
from spark_upsert.core.precedence import SealDecision, decide_at_seal
from spark_upsert.core.python_values import whole_argument
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import Stash, stage_sealed
from spark_upsert.table.write.write_set import StagedRuns, WriteSet

CLOSED: Final = Timestamp(1 << 62)
"""Input upper for an ended source: above every timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontiers:
    """Frozen snapshot of the loop frontiers."""

    resume_upper: int
    input_upper: int
    persist_upper: int
    buffered: tuple[int, ...]
    """Timestamps in the stash, ascending."""
    dropped_rows: int
    """Commands dropped because they were already durable. All ingested rows are counted here, in
    the stash, or in a commit that `step` returned."""


class FeedbackUpsert:
    """One incarnation of the operator. A context manager: its stashes may own files on disk.

    Emitting a timestamp commits one version with it; if several incarnations emit it, one wins and
    the others drop their rows. A method that raised may be called again: rows stay until the log
    contains their timestamp, because a commit with unknown outcome may still take effect.

    Parameters
    ----------
    table : Table
    writer : str
        Source name, shared by all incarnations for the source, which fences them.
    commands : callable, optional
        Converts a source batch into commands (`Envelope.commands`). By default, rows are plain
        table columns, as for `Table.upsert`.
    deletes : str, optional
        Boolean column that marks deletes; only for plain columns.

    Notes
    -----
    Not thread-safe. Stashed commands are not durable: after a crash, the source must replay
    timestamps at or after `persist_upper`.

    Source: Materialize, ``upsert_continual_feedback_v2.rs``; here the state is the table itself.
    """

    def __init__(
        self,
        table: Table,
        writer: str,
        commands: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
        *,
        deletes: str | None = None,
    ) -> None:
        self._table = table
        self._writer = f"operator:{writer}"
        self._commands = commands
        self._deletes = deletes
        self._stashes: dict[int, Stash] = {}
        self._emitting: WriteSet | None = None
        self._resume_upper = self.persist_upper
        self._input_upper = Timestamp(0)
        self._dropped_rows = 0

    def __enter__(self) -> FeedbackUpsert:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for ts in list(self._stashes):
            self._close_stash(ts)

    def _plain_commands(self, rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
        """Convert plain-column rows into commands."""
        return envelope_of_rows(schema, rows.schema, deletes=self._deletes).commands(rows)

    @property
    def persist_upper(self) -> Timestamp:
        """First timestamp that is not durable, read from the log."""
        return Timestamp(self._table.log.head().transactions.get(self._writer, -1) + 1)

    @property
    def frontiers(self) -> Frontiers:
        """Current loop frontiers."""
        return Frontiers(
            resume_upper=self._resume_upper,
            input_upper=self._input_upper,
            persist_upper=self.persist_upper,
            buffered=tuple(sorted(self._stashes)),
            dropped_rows=self._dropped_rows,
        )

    def ingest(self, rows: pa.RecordBatch, ts: int, *, diff: int = 1) -> None:
        """Stash rows for a timestamp: all rows or, with an error, none.

        Raises
        ------
        ValueError
            ``ts`` is not an integer below `CLOSED`; ``diff`` is not positive (a command is never a
            retraction); or the input upper is already past ``ts``.
        """
        ts = whole_argument("ts", ts, most=CLOSED - 1)
        whole_argument("diff", diff, least=1)
        if ts < self._resume_upper:
            self._dropped_rows += rows.num_rows  # Replayed: durable since before this start.
            return
        if ts < self._input_upper:
            raise ValueError(f"timestamp {ts} is before the input upper {self._input_upper}")
        stash = self._stashes.get(ts)
        # A timestamp's commands keep one schema, even if the table's schema changes.
        schema = self._table.log.head().schema if stash is None else stash.schema
        commands = (
            self._plain_commands(rows, schema) if self._commands is None else self._commands(rows)
        )
        stash = stash or self._stashes.setdefault(ts, Stash(schema))
        stash.add(commands)

    def advance(self, input_upper: int) -> None:
        """Advance the input upper; smaller values are ignored."""
        input_upper = whole_argument("input_upper", input_upper, most=CLOSED)
        self._input_upper = Timestamp(max(self._input_upper, input_upper))

    def close(self) -> None:
        """Advance the input upper to the end; commands not eligible then are abandoned."""
        self._input_upper = CLOSED

    def step(self) -> Commit | None:
        """Seal once: drop durable commands, emit eligible ones, keep the rest.

        Returns
        -------
        Commit or None
            The commit; None if this pass made none.

        Notes
        -----
        One pass emits at most one timestamp, because the next pass depends on its durability. If
        nothing is stashed below the input upper, an empty commit advances the persist upper.
        """
        persist_upper = self.persist_upper
        for ts in sorted(self._stashes):
            # No earlier rows are stashed or can arrive, so its commit covers the gap.
            reached = max(persist_upper, min(Timestamp(ts), self._input_upper))
            decision = decide_at_seal(
                Timestamp(ts), state_upper=reached, input_upper=self._input_upper
            )
            if decision is SealDecision.DROP:
                self._drop(ts)
            elif decision is SealDecision.EMIT:
                return self._emit(ts)
        return self._skip_to_next(persist_upper)

    def run(self) -> list[Commit]:
        """Step until the persist upper stops advancing; after `close`, step once."""
        commits = []
        while True:
            before = self.persist_upper
            commit = self.step()
            if commit is not None:
                commits.append(commit)
            if self._input_upper == CLOSED or self.persist_upper == before:
                return commits

    def _emit(self, ts: int) -> Commit | None:
        if self._emitting is not None and not self._is_accepted(self._emitting):
            self._discard_staged()
        if self._emitting is None:
            snapshot = self._table.at()
            staged = stage_sealed(snapshot, self._stashes[ts])
            self._emitting = self._write_set(snapshot, ts, (staged,))
        commit = self._table.commit(self._emitting)
        self._emitting = None
        if commit is None:  # Another incarnation was faster.
            self._drop(ts)
        else:
            self._close_stash(ts)
        return commit

    def _is_accepted(self, epoch: WriteSet) -> bool:
        """Return whether a write set can still be committed; an expiry or fence may prevent it."""
        return self._table.log.head().accepts(epoch.base.manifest.version)

    def _drop(self, ts: int) -> None:
        """Drop a timestamp that is already durable."""
        self._discard_staged()
        self._dropped_rows += self._stashes[ts].counters.rows
        self._close_stash(ts)

    def _discard_staged(self) -> None:
        """Remove staged files, unless a version references them."""
        if self._emitting is not None:
            self._table.discard(self._emitting.staged)
            self._emitting = None

    def _close_stash(self, ts: int) -> None:
        with self._stashes.pop(ts):
            pass

    def _skip_to_next(self, persist_upper: int) -> Commit | None:
        target = min([*self._stashes, self._input_upper])
        if self._input_upper == CLOSED or target <= persist_upper:
            return None
        return self._table.commit(self._write_set(self._table.at(), target - 1, ()))

    def _write_set(self, snapshot: Snapshot, ts: int, staged: tuple[StagedRuns, ...]) -> WriteSet:
        transaction = Transaction(writer=self._writer, number=ts)
        return WriteSet(base=snapshot, staged=staged, transactions=(transaction,))
