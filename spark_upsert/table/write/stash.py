"""The stash: commands of one epoch, waiting for the seal.

It keeps, per key, the one command that can still win. Batches pile up unsorted; when they
outgrow what is settled, all is resolved again, so that sizes double, each row is moved
O(log n) times and memory is O(keys), not O(rows). What exceeds the memory goes to local
disk as sorted runs, and the seal merges them range by range of the hash.

Source: Materialize, ``upsert_continual_feedback_v2.rs`` (consolidation of ``UpsertDiff``
in a merge batcher). We settle by bytes instead of by chunk count.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.schema import TableSchema
from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import new_token
from spark_upsert.store.spill import SpillFolder
from spark_upsert.table.log.properties import higher_mark
from spark_upsert.table.run.file import Run, Span, write_run
from spark_upsert.table.run.rows import BatchPart, Part, Rows, RunPart
from spark_upsert.table.state.counters import EMPTY, Counters
from spark_upsert.table.state.partition import cut_evenly
from spark_upsert.table.state.reduce import mechanism_of
from spark_upsert.table.write.commands import are_by_keys, logs_of, skipped_in
from spark_upsert.table.write.ties import are_unplaced, count_losers, in_task
from spark_upsert.table.write.truncate import truncated_at

SETTLE_BYTES = 64 << 20
"""Pending batches are resolved when they reach this size, or the settled size if larger."""

SPILL_BYTES = 192 << 20
"""Settled commands beyond this go to disk. A task needs about three times as much."""


class Stash:
    """Commands of one epoch and one task. A context manager: it may own files on disk."""

    def __init__(
        self,
        schema: TableSchema,
        *,
        settle_bytes: int = SETTLE_BYTES,
        spill_bytes: int = SPILL_BYTES,
    ) -> None:
        self._schema = schema
        self._settle_bytes = settle_bytes
        self._spill_bytes = spill_bytes
        self._pending: list[BatchPart] = []
        self._pending_bytes = 0
        self._settled: BatchPart | None = None
        self._spilled: list[Run] = []
        self._folder: SpillFolder | None = None
        self._counted = EMPTY
        self._counted_by_seal = EMPTY
        self.examples: dict[str, str] = {}
        """Keys of rows that a person should know about (`ambiguity`)."""
        self.logs: frozenset[str] = frozenset()
        """The binlogs that order the commands (`core.source_positions`)."""
        self.truncated: str | None = None
        """The mark of the youngest truncate that came among the commands."""
        self.has_arrivals = False
        """Whether commands came that have a key and no order (`arrivals`)."""

        self.is_by_keys = False
        """Whether the commands are deletes by keys alone (`commands.are_by_keys`)."""

    @property
    def schema(self) -> TableSchema:
        """The schema of the commands."""
        return self._schema

    def __repr__(self) -> str:
        return (
            f"Stash(rows={self.counters.rows:_}, superseded={self.counters.superseded:_}, "
            f"spilled={len(self._spilled)})"
        )

    @property
    def counters(self) -> Counters:
        """Rows taken in, and those that are already beaten: all that are, behind a seal."""
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
        """Take commands in; columns as `TableSchema.run`, in any order.

        If an error is raised, for want of disk space perhaps, none of them was taken.
        """
        mark, skipped = truncated_at(commands), skipped_in(commands)
        if commands.num_rows == 0:
            self._counted += Counters(rows=skipped, skipped=skipped)
            self.truncated = higher_mark(self.truncated, mark, self._schema)
            return
        settled = 0 if self._settled is None else self._settled.batch.nbytes
        if self._pending_bytes >= max(self._settle_bytes, settled):
            self._settle()
        by_keys, commands = are_by_keys(commands), self._placed(commands)
        self._counted += Counters(rows=commands.num_rows + skipped, skipped=skipped)
        self.truncated = higher_mark(self.truncated, mark, self._schema)
        self.is_by_keys |= by_keys
        self.logs |= logs_of(commands, self._schema)
        self._pending.append(BatchPart(commands))
        self._pending_bytes += commands.nbytes

    def _placed(self, commands: pa.RecordBatch) -> pa.RecordBatch:
        """Return commands, those of no order where they arrived."""
        if not are_unplaced(commands, self._schema).any():
            return commands
        self.has_arrivals = True
        self._settle()
        parts: list[Part] = [RunPart(Span.within(run)) for run in self._spilled]
        parts += [] if self._settled is None else [self._settled]
        return in_task(commands, self._schema, parts)

    def seal(self) -> Iterator[pa.RecordBatch]:
        """Yield the winning command of each key, sorted by (hash, key), in bounded batches.

        The batches have disjoint, ascending ranges of hashes. Nothing may be added after. A
        seal may be repeated: it yields the same again, and nothing is counted twice.
        """
        self._settle()
        self._counted_by_seal = EMPTY
        if self._settled is None and not self._spilled:
            return
        if not self._spilled:
            assert self._settled is not None
            yield self._settled.batch
            return
        for hash_range in self._pieces():
            parts: list[Part] = [RunPart(Span.within(run, hash_range)) for run in self._spilled]
            if self._settled is not None:
                parts.append(_range_of(self._settled, hash_range))
            batch, lost = self._resolve(Rows(self._schema, parts))
            self._counted_by_seal += lost
            if batch.num_rows:
                yield batch

    def _pieces(self) -> list[HashRange]:
        """Cut the hashes so that what is spilled of each piece fits into memory."""
        count = 1 + 2 * sum(run.file.bytes for run in self._spilled) // self._spill_bytes
        if not self._schema.hash_prefix:
            return ALL_HASHES.cut(count)
        weighed = [(run.hashes, run.file.bytes / run.file.rows) for run in self._spilled]
        return cut_evenly(ALL_HASHES, weighed, count)

    def _settle(self) -> None:
        if not self._pending:
            return
        parts = [*([self._settled] if self._settled else []), *self._pending]
        batch, lost = self._resolve(Rows(self._schema, parts))
        self._counted += lost
        self._pending, self._pending_bytes = [], 0
        self._settled = BatchPart(batch)
        if batch.nbytes > self._spill_bytes:
            self._spill(batch)

    def _resolve(self, rows: Rows) -> tuple[pa.RecordBatch, Counters]:
        """Return what wins, and count what loses."""
        reduced = mechanism_of(self._schema).reduce(rows, is_one_task=True)
        counters, examples = count_losers(rows, reduced)
        self.examples |= examples
        return reduced.batch(), counters

    def _spill(self, batch: pa.RecordBatch) -> None:
        if self._folder is None:
            self._folder = SpillFolder()
        store = LocalStore(str(self._folder.path))
        file = write_run(store, f"{new_token()}.arrow", batch)
        self._spilled.append(Run(file, store.map(file.path)))
        self._settled = None


def _range_of(part: BatchPart, hash_range: HashRange) -> BatchPart:
    start, stop = hash_range.rows_of(part.hashes)
    return BatchPart(part.batch.slice(start, stop - start))
