"""Staging (`stage`): a task writes its commands as one durable run and counts their effects.

Nothing is visible until all tasks' files are committed as one `WriteSet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, order_of
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import DIFF, HASH, TableSchema, is_live
from spark_upsert.core.threads import map_in_order, run_in_background, useful_threads
from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import new_token
from spark_upsert.store.spill import SpillFolder
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.properties import LateRows, higher_mark
from spark_upsert.table.run.file import Run, Span, write_run
from spark_upsert.table.run.remote import REMOTE_RUNS, Access
from spark_upsert.table.run.rows import BatchPart, Part, Rows, RunPart
from spark_upsert.table.state.observer import prepare
from spark_upsert.table.state.reduce import EMPTY, Counters, merge_function_for
from spark_upsert.table.state.snapshot import Snapshot, cut_evenly
from spark_upsert.table.write.commands import (
    are_by_keys,
    columns_left_unchanged,
    logs_of,
    skipped_in,
)
from spark_upsert.table.write.moves import (
    Moves,
    entries_that_add,
    for_commit,
    hashes_of_moves,
    in_order_of_hashes,
    joined,
    puts_and_deletes,
    without_moves,
)
from spark_upsert.table.write.outcomes import (
    Move,
    Outcomes,
    accepted,
    count,
    may_reject,
    outcomes_of,
    read_move,
)
from spark_upsert.table.write.ties import (
    adopt_order_from_table,
    adopt_order_within_task,
    are_unplaced,
    count_losers,
    examples_of,
    place_text,
)
from spark_upsert.table.write.write_set import Scratch, StagedRuns, WriteSet, truncated_at

if TYPE_CHECKING:
    from spark_upsert.table.state.prepared import Preparation

_NO_TASK = -1
"""The task of carried values, which no row of their key replaces (`table.write.moves`)."""

COMPACT_BYTES = 64 << 20
"""Pending batches are resolved at this size, or at the resolved part's size if larger."""

SPILL_BYTES = 192 << 20
"""Resolved commands beyond this size go to disk. A task needs about twice as much."""


class Stash:
    """One task's write buffer: its commands in one epoch. A context manager: may own files on disk.

    Pending batches are resolved when they outgrow the resolved part, so that memory is O(keys).
    Beyond `SPILL_BYTES`, sorted runs go to local disk; the seal merges them by hash range.

    Source: Materialize, ``upsert_continual_feedback_v2.rs``, with a trigger by bytes.
    """

    def __init__(
        self,
        schema: TableSchema,
        *,
        compact_bytes: int = COMPACT_BYTES,
        spill_bytes: int = SPILL_BYTES,
    ) -> None:
        self._schema = schema
        self._compact_bytes = compact_bytes
        self._spill_bytes = spill_bytes
        self._pending: list[BatchPart] = []
        self._pending_bytes = 0
        self._compacted: BatchPart | None = None
        self._spilled: list[Run] = []
        self._folder: SpillFolder | None = None
        self._counted = EMPTY
        self._counted_by_seal = EMPTY
        self._moves: list[Moves] = []
        self.examples: dict[str, str] = {}
        """Example keys for user-facing warnings (`write.ties`)."""
        self.logs: frozenset[str] = frozenset()
        """The binlogs ordering the commands (`core.source_positions`)."""
        self.truncated: str | None = None
        """The mark of the youngest truncate among the commands."""
        self.has_arrivals = False
        """Whether commands came with a key and no order (`write.ties`)."""

        self.is_by_keys = False
        """Whether the commands are deletes by keys alone (`commands.are_by_keys`)."""

    @property
    def schema(self) -> TableSchema:
        """The commands' schema, with the columns that some command left unchanged."""
        return self._schema

    def __repr__(self) -> str:
        return (
            f"Stash(rows={self.counters.rows:_}, superseded={self.counters.superseded:_}, "
            f"spilled={len(self._spilled)})"
        )

    @property
    def counters(self) -> Counters:
        """Row count, and losing rows so far; after a seal, all losing rows are included."""
        return self._counted + self._counted_by_seal

    def __enter__(self) -> Stash:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spilled.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def add(self, commands: pa.RecordBatch) -> None:
        """Add commands; columns as in `TableSchema.run`, in any order.

        If an error is raised, for example for lack of disk space, none of them was added.
        """
        mark, skipped = truncated_at(commands), skipped_in(commands)
        self._schema = self._schema.with_unchanged(columns_left_unchanged(commands))
        if commands.num_rows == 0:
            self._counted += Counters(rows=skipped, skipped=skipped)
            self.truncated = higher_mark(self.truncated, mark, self._schema)
            return
        compacted = 0 if self._compacted is None else self._compacted.batch.nbytes
        if self._pending_bytes >= max(self._compact_bytes, compacted):
            self._compact_buffer()
        by_keys, commands = are_by_keys(commands), self._adopt_arrival_order(commands)
        commands = self._noting_moves(commands)
        self._counted += Counters(rows=commands.num_rows + skipped, skipped=skipped)
        self.truncated = higher_mark(self.truncated, mark, self._schema)
        self.is_by_keys |= by_keys
        self.logs |= logs_of(commands, self._schema)
        self._pending.append(BatchPart(commands))
        self._pending_bytes += commands.nbytes

    def _adopt_arrival_order(self, commands: pa.RecordBatch) -> pa.RecordBatch:
        """Return the commands; those without an order adopt one by arrival."""
        if not are_unplaced(commands, self._schema).any():
            return commands
        self.has_arrivals = True
        self._compact_buffer()
        return adopt_order_within_task(commands, self._schema, self._sorted_parts())

    def _noting_moves(self, commands: pa.RecordBatch) -> pa.RecordBatch:
        """Return the commands without their moves, which are noted."""
        commands, deletes = without_moves(commands, self._schema)
        if deletes is None:
            return commands
        # Any column of the row may be what the create at the new key leaves unchanged.
        self._schema = self._schema.with_unchanged(self._schema.values, has_moves=True)
        self._compact_buffer()
        by_hash = commands.take(pa.array(order_of(commands.column(HASH).to_numpy())))
        parts = [*self._sorted_parts(), BatchPart(by_hash)]
        # What the task has replaced before is not among these rows.
        tasks = [0] * (len(parts) - 1) + [1], np.ones(deletes.num_rows, dtype=np.int64)
        self._moves.append(Moves.of(deletes, parts, self._schema, tasks=tasks))
        return commands

    def _sorted_parts(self) -> list[Part]:
        parts: list[Part] = [RunPart(Span.within(run)) for run in self._spilled]
        return [*parts, *([] if self._compacted is None else [self._compacted])]

    @property
    def moved(self) -> pa.RecordBatch | None:
        """The deletes of the moved rows' old keys, with the new keys."""
        return joined(self._moves, self._schema).deletes if self._moves else None

    def carried(self, snapshot: Snapshot) -> pa.RecordBatch | None:
        """Return the entries by which moved rows take their values to their new keys, by hash."""
        if not self._moves:
            return None
        return joined(self._moves, self._schema).carried(snapshot, self._schema)

    def seal(self, carried: pa.RecordBatch | None = None) -> Iterator[pa.RecordBatch]:
        """Yield each key's winning command, sorted by (hash, key), in bounded batches.

        The batches have disjoint, ascending hash ranges. Nothing may be added after. A
        seal may be repeated: it yields the same again, and nothing is counted twice.

        Parameters
        ----------
        carried : pyarrow.RecordBatch, optional
            Entries in addition to the commands (`carried`).
        """
        self._compact_buffer()
        self._counted_by_seal = EMPTY
        if self._compacted is None and not self._spilled:
            return
        if not self._spilled and carried is None:
            assert self._compacted is not None
            yield self._compacted.batch
            return
        for hash_range in self._pieces() if self._spilled else [ALL_HASHES]:
            parts: list[Part] = [RunPart(Span.within(run, hash_range)) for run in self._spilled]
            if self._compacted is not None:
                parts.append(_slice_by_hash(self._compacted, hash_range))
            batch, lost = self._resolve(Rows(self._schema, parts))
            for run in self._spilled:
                run.release()
            self._counted_by_seal += lost
            if carried is not None:
                more, keys = _slice_by_hash(BatchPart(carried), hash_range), batch.num_rows
                batch, _ = self._resolve(Rows(self._schema, [BatchPart(batch), more]))
                puts = int(is_live(more.batch.column(DIFF)).sum())
                superseded = puts - (batch.num_rows - keys)
                self._counted_by_seal += Counters(rows=puts, superseded=superseded)
            if batch.num_rows:
                yield batch

    def _pieces(self) -> list[HashRange]:
        """Cut the task's hash range so each piece's spilled commands fit into memory."""
        count = 1 + 2 * sum(run.file.bytes for run in self._spilled) // self._spill_bytes
        ends = [end for run in self._spilled for end in (run.hashes[0], run.hashes[-1])]
        if self._compacted is not None:
            ends += [self._compacted.hashes[0], self._compacted.hashes[-1]]
        hash_range = HashRange.spanning(min(ends), max(ends))
        if not self._schema.hash_prefix:
            return hash_range.cut(min(count, hash_range.width))
        weighed = [(run.hashes, run.file.bytes / run.file.rows) for run in self._spilled]
        return cut_evenly(hash_range, weighed, count)

    def _compact_buffer(self) -> None:
        """Resolve the pending batches with the resolved part; spill the result if it is large."""
        if not self._pending:
            return
        parts = [*([self._compacted] if self._compacted else []), *self._pending]
        rows = Rows(self._schema, parts)
        if len(parts) > 1:
            rows = rows.gathered(self._schema.run.names)
            # The parts are freed before the winners are copied.
            parts = [part for part in rows.parts if isinstance(part, BatchPart)]
            self._compacted, self._pending = None, parts
        batch, lost = self._resolve(rows)
        self._counted += lost
        self._pending, self._pending_bytes = [], 0
        del rows, parts
        self._compacted = BatchPart(batch)
        if batch.nbytes > self._spill_bytes:
            self._spill(batch)

    def _resolve(self, rows: Rows) -> tuple[pa.RecordBatch, Counters]:
        """Return the winners, and count the losers."""
        if len(rows.parts) > 1:
            rows = rows.gathered(self._schema.run.names)
        reduced = merge_function_for(self._schema).reduce(rows, is_one_task=True)
        counters, examples = count_losers(rows, reduced)
        self.examples |= examples
        return reduced.batch(), counters

    def _spill(self, batch: pa.RecordBatch) -> None:
        """Write the resolved part to a run on local disk."""
        if self._folder is None:
            self._folder = SpillFolder()
        store = LocalStore(str(self._folder.path))
        file = write_run(store, f"{new_token()}.arrow", batch)
        self._spilled.append(Run(file, store.map(file.path), release=store.release))
        self._compacted = None


def _slice_by_hash(part: BatchPart, hash_range: HashRange) -> BatchPart:
    """Return a sorted part's rows in a hash range."""
    start, stop = hash_range.rows_of(part.hashes)
    return BatchPart(part.batch.slice(start, stop - start))


def stage(
    snapshot: Snapshot,
    commands: Iterable[pa.RecordBatch],
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    threads: int = 1,
    spill_bytes: int | None = None,
) -> StagedRuns:
    """Write one task's commands durably and count their effects."""
    sizes = {"compact_bytes": spill_bytes // 3, "spill_bytes": spill_bytes} if spill_bytes else {}
    with Stash(snapshot.manifest.schema, **sizes) as stash:
        for batch in commands:
            stash.add(batch)
        return stage_sealed(
            snapshot, stash, overwrite=overwrite, late_rows=late_rows, threads=threads
        )


def stage_sealed(
    snapshot: Snapshot,
    stash: Stash,
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    threads: int = 1,
) -> StagedRuns:
    """Write a sealed buffer's winning commands durably and count their effects (`stage`).

    The *stash* is the task's write buffer. *Sealing* reduces it to one winning command per key, in
    sorted batches; each batch becomes a run. The effects hold for this snapshot: the commit decides
    again if another writer was faster. For a published table the task also prepares *mirror files*
    (`StagedRuns.ahead`). A *move* is a view's step, read from its marker entry.

    After an error you may call it again, on any snapshot.
    """
    files = []
    counters = EMPTY
    examples: dict[str, str] = {}
    moves: list[Move] = []
    own, schema = stash.schema, snapshot.manifest.schema
    schema = schema.with_unchanged(own.unchanged, has_moves=own.has_moves)
    snapshot = replace(snapshot, manifest=replace(snapshot.manifest, schema=schema))
    can_reject = may_reject(
        schema,
        low_water=snapshot.manifest.low_water,
        late_rows=late_rows,
        is_overwrite=overwrite,
    )
    # Whether a stored entry's order can make a command lose.
    compares_with_stored = Precedence.of(schema).compares_order_across_epochs and not overwrite
    mirror = prepare(snapshot.store, snapshot.manifest)
    with Scratch(snapshot.store, mirror) as scratch:
        # The rows of an overwrite do not take values of those that it replaces.
        below = _empty(snapshot) if overwrite else snapshot
        carried = stash.carried(below)
        for sealed in stash.seal(carried):
            batch = (
                adopt_order_from_table(sealed, snapshot, schema) if compares_with_stored else sealed
            )
            if schema.engine.multiplicity is not None:
                moves += read_move(batch)
            rows = Rows(schema, [BatchPart(batch)])
            # Written in the background while the effects are computed, unless rows may be rejected.
            background_rows = 0 if can_reject else len(rows)
            with run_in_background(partial(scratch.write, batch), rows=background_rows) as written:
                outcomes = _compute_outcomes(
                    snapshot,
                    rows,
                    overwrite=overwrite,
                    late_rows=late_rows,
                    is_by_keys=stash.is_by_keys,
                    threads=threads,
                    mirror=None if overwrite else mirror,
                )
                counters += count(outcomes)
                examples |= examples_of(rows, np.arange(len(rows)), outcomes, late_rows)
                stored = accepted(batch, outcomes, schema)
                if stored is batch:
                    files.append(written())
                elif stored.num_rows:
                    files.append(scratch.write(stored))
                if mirror is not None:
                    mirror.record_run(files[-1] if stored is batch and not overwrite else None)
    return StagedRuns(
        base=snapshot.manifest.version_ref,
        files=tuple(files),
        counters=counters + stash.counters,
        examples={**examples, **stash.examples},
        truncated=stash.truncated,
        is_by_keys=stash.is_by_keys,
        logs=stash.logs,
        move=moves[0] if moves else None,
        ahead=None if mirror is None else mirror.result(),
        unchanged=own.unchanged,
        has_moves=own.has_moves,
        moved=stash.moved,
        carried=None if carried is None else for_commit(carried),
    )


def stage_moves_across_tasks(write_set: WriteSet, head: Manifest) -> StagedRuns | None:
    """Write what moved rows take along from the rows of other tasks and other writers.

    Each task has carried the values in the table and in its own rows. Returns what adds to these, as
    staged by one more task; None for nothing. Where another task has replaced the value that a row
    had when it moved, the row that came to the old key since is counted as strayed.
    """
    store, staged, files = write_set.base.store, write_set.staged, write_set.files
    moved = {task: each.moved for task, each in enumerate(staged) if each.moved is not None}
    if not moved or (len(files) < 2 and write_set.base.manifest.version == head.version):
        return None
    schema = write_set.marked(head.schema)
    snapshot = Snapshot(store, replace(head, schema=schema))
    deletes = pa.concat_batches(moved.values())
    of_parts = [task for task, each in enumerate(staged) for _ in each.files]
    of_deletes = np.repeat([*moved], [each.num_rows for each in moved.values()])
    access = Access(probes=hashes_of_moves(deletes, schema))
    parts = [RunPart(Span.within(run)) for run in REMOTE_RUNS.open_all(store, files, access)]
    carried = [each.carried for each in staged if each.carried is not None]
    puts, notes = puts_and_deletes(in_order_of_hashes(carried, schema))
    tasks = [*of_parts, _NO_TASK], of_deletes
    moves = Moves.of(deletes, [*parts, BatchPart(puts)], schema, tasks=tasks)
    entries = moves.carried(_empty(snapshot) if write_set.overwrite else snapshot, schema, notes)
    entries = entries_that_add(entries, parts, schema)
    lost = np.flatnonzero(moves.are_lost)
    if not entries.num_rows and not len(lost):
        return None
    base = replace(write_set.base.manifest, schema=schema)
    with Stash(schema) as stash:
        stash.add(entries)
        staged_entries = stage_sealed(
            Snapshot(store, base),
            stash,
            overwrite=write_set.overwrite,
            late_rows=write_set.late_rows,
        )
    if not len(lost):
        return staged_entries
    example = place_text(Rows(schema, [BatchPart(moves.states)]), int(lost[0]))
    return replace(
        staged_entries,
        counters=staged_entries.counters + Counters(strayed=len(lost)),
        examples={**staged_entries.examples, "strayed": example},
    )


def _empty(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, manifest=replace(snapshot.manifest, slices=()))


def _compute_outcomes(
    snapshot: Snapshot,
    rows: Rows,
    *,
    overwrite: bool,
    late_rows: LateRows,
    is_by_keys: bool,
    threads: int,
    mirror: Preparation | None,
) -> Outcomes:
    """Return all commands' effects on a snapshot, computed by key range in parallel."""
    outcomes_in = partial(
        outcomes_of,
        snapshot,
        rows,
        overwrite=overwrite,
        late_rows=late_rows,
        is_by_keys=is_by_keys,
        ahead=mirror,
    )
    useful = useful_threads(len(rows), threads)
    pieces = np.array_split(np.arange(len(rows)), useful)
    return Outcomes.joined(map_in_order(outcomes_in, pieces, useful))
