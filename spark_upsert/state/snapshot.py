"""The table at one version: its entries by hash range, its rows, its answers.

A snapshot is a manifest with a store to read from. Reads go range by range of the hash, so
that memory is bounded by `CHUNK_ROWS` whatever the size of the table, and never merge what
one run alone holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.schema import DIFF, is_live
from spark_upsert.state.found import Found
from spark_upsert.state.log.manifest import Manifest
from spark_upsert.state.lookup import find
from spark_upsert.state.mechanism import mechanism_of
from spark_upsert.state.run.file import RUNS, Span
from spark_upsert.state.run.rows import Part, Rows, RunPart
from spark_upsert.store import Store

CHUNK_ROWS = 1 << 17
"""Entries that a read holds at once; large enough that the cost per chunk is noise."""

CHUNK_BYTES = 64 << 20
"""Bytes that a read holds at once, by the average row of the runs."""


_SMALL_BYTES = 1 << 20
"""Batches below this are combined."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version."""

    store: Store
    manifest: Manifest

    def parts(self, hash_range: HashRange = ALL_HASHES) -> list[tuple[Part, int]]:
        """Return the entries with hashes in a range: parts with their epochs."""
        found: list[tuple[Part, int]] = []
        for slice_ in self.manifest.slices:
            if slice_.overlaps(hash_range):
                run = RUNS.open(self.store, slice_.file)
                span = Span.within(run, slice_.live.intersect(hash_range))
                if len(span):
                    found.append((RunPart(span), slice_.epochs.lower))
        return found

    def find(self, hashes: npt.NDArray[np.uint64], keys: Sequence[pa.Array]) -> Found:
        """Look keys up; ``hashes`` ascending, ``keys`` beside them (`lookup.find`)."""
        if not len(hashes):
            return Found(Rows(self.manifest.schema, []), np.empty(0, dtype=np.int64))
        parts = self.parts(HashRange.spanning(hashes[0], hashes[-1]))
        return find(self.manifest.schema, parts, hashes, keys)

    def read(
        self, columns: Sequence[str] | None = None, *, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with hashes in a range, each key once, in any order.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns of the table; all by default.
        hash_range : HashRange
        """
        schema = self.manifest.schema
        names = list(schema.columns.names) if columns is None else list(columns)
        fields = pa.schema([schema.columns.field(name) for name in names])
        mechanism = mechanism_of(schema)
        for chunk in self.chunks(hash_range):
            parts = self.parts(chunk)
            rows = Rows(schema, [part for part, _ in parts])
            rows, losers = mechanism.settle(rows, [epoch for _, epoch in parts])
            found = (_live_rows(rows, i, names, fields, losers) for i in range(len(rows.parts)))
            yield from _combined([batch for batch in found if batch.num_rows])

    def chunks(self, hash_range: HashRange = ALL_HASHES) -> list[HashRange]:
        """Cut a range of hashes so that each piece holds about `CHUNK_ROWS` entries."""
        rows = size = 0.0
        for slice_ in self.manifest.slices:
            if slice_.overlaps(hash_range):
                stored = slice_.file.hash_range
                share = stored.intersect(hash_range).width / stored.width
                rows += slice_.file.rows * share
                size += slice_.file.bytes * share
        count = max(1, int(rows // CHUNK_ROWS), int(size // CHUNK_BYTES))
        return hash_range.cut(count)


def _combined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, the small ones copied into one: each costs whoever takes it about the same."""
    small = [batch for batch in batches if batch.nbytes < _SMALL_BYTES and batch.num_columns]
    if len(small) > 1:
        yield from pa.Table.from_batches(small).combine_chunks().to_batches()
        batches = [batch for batch in batches if batch.nbytes >= _SMALL_BYTES]
    yield from batches


def _live_rows(
    rows: Rows, index: int, names: list[str], fields: pa.Schema, losers: Positions
) -> pa.RecordBatch:
    """Return the entries of one part that win and are rows of the table."""
    start, stop = int(rows.starts[index]), int(rows.starts[index + 1])
    *columns, diffs = rows.slice(index, [*names, DIFF], 0, stop - start)
    live = is_live(diffs)
    low, high = np.searchsorted(losers, [start, stop])
    live[losers[low:high] - start] = False
    # Without columns there is still a number of rows.
    batch = pa.RecordBatch.from_arrays([*columns, diffs], schema=fields.append(_DIFF_FIELD))
    if not bool(live.all()):
        batch = batch.filter(pa.array(live))
    return batch.select(names) if names else batch


_DIFF_FIELD = pa.field(DIFF, pa.int8(), nullable=False)
