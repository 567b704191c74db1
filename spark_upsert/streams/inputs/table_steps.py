"""The steps of a table: the ranges of a snapshot, and its epochs one by one.

The row count of a step is taken from the log's counters where they are exact, and is else found by
reading the step: an update that leaves all values as they were is no change, but counted there.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.model.bounded import LruMap
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.hashing import HASH_END
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.reads.columns import shown_grouping, table_columns
from spark_upsert.streams.reads.serve import serve
from spark_upsert.streams.reads.splits import Split, changes_splits, rows_splits
from spark_upsert.streams.reads.steps import SNAPSHOT_STEPS, CountedStep, refuse_gaps
from spark_upsert.table.changes.modes import Deduplication
from spark_upsert.table.entries.counters import Counters
from spark_upsert.table.log.look import Look
from spark_upsert.table.log.manifest import Commit, Kind, Manifest
from spark_upsert.table.table import Table

STEP_ROWS = 1 << 16
"""Entries of a snapshot's step, about: a batch that goes on within a step reads it again."""

_COUNTS = 10_000
"""Steps with remembered row counts, so that a step that is planned again is not counted again."""


class TableSteps:
    """Steps of one table, and how many rows they have.

    Parameters
    ----------
    table : Table
    options : ReadOptions
        Of a read of all rows and changes, so that each step stands for itself.
    columns : pyarrow.Schema
        The columns that were planned.

    Raises
    ------
    OptionError
        What the options ask for depends on where a batch ends.
    """

    def __init__(self, table: Table, options: ReadOptions, columns: pa.Schema) -> None:
        if options.deduplication is Deduplication.NET_CHANGES:
            raise OptionError(
                "deduplicationMode=netChanges has no meaning in an exact order: which changes are "
                "left out would depend on where a batch ends.",
                hint="use another mode, or leave out 'merge' and 'interleaveSeed'.",
                option="deduplicationMode",
            )
        refuse_gaps(fail_on_data_loss=options.fail_on_data_loss)
        self._table = table
        self._options = replace(options, splits=1)
        self._columns = table_columns(columns, options)
        self._counts: LruMap[tuple[int, HashRange | None], int] = LruMap(_COUNTS)

    def of_snapshot(self, manifest: Manifest, due: HashRange) -> CountedStep:
        """Return the rows of a version with hashes in a range (`snapshot_ranges`)."""

        def split() -> Split:
            return rows_splits(manifest, self._options, due)[0]

        def rows() -> int:
            return self._counts.of((manifest.version, due), lambda: self._read(split(), ()))

        return CountedStep(rows=rows, split=split)

    def of_changes(self, version: int, look: Look) -> CountedStep:
        """Return the changes of a version, in the columns of a look whose version is no older."""

        def split() -> Split | None:
            with look:
                found = changes_splits(look, self._options, version, version + 1)
            return found[0] if found else None

        def count() -> int:
            known = None
            if shown_grouping(look.head(), self._options) is None:
                known = _known_rows(look.commit(version), self._options)
            if known is not None:
                return known
            own = split()
            return 0 if own is None else self._read(own, self._columns)

        return CountedStep(rows=lambda: self._counts.of((version, None), count), split=split)

    def _read(self, split: Split, columns: tuple[str, ...]) -> int:
        """Return how many rows a split yields."""
        batches = serve(self._table.store, split, self._options, columns)
        return sum(batch.num_rows for batch in batches)


def snapshot_ranges(manifest: Manifest, start: int = 0, end: int = HASH_END) -> list[HashRange]:
    """Return the steps of a snapshot between two hashes, which may lie within steps.

    Their bounds follow from the version alone, so that every batch and every replay has the same.
    """
    entries = sum(slice_.rows_within(ALL_HASHES) for slice_ in manifest.slices)
    count = min(SNAPSHOT_STEPS, max(1, entries // STEP_ROWS))
    unit = HASH_END // SNAPSHOT_STEPS
    inner = (unit * (SNAPSHOT_STEPS * index // count) for index in range(1, count))
    bounds = [start, *(bound for bound in inner if start < bound < end), end]
    return [HashRange(first, last) for first, last in pairwise(bounds)]


def _known_rows(commit: Commit, options: ReadOptions) -> int | None:
    """Return how many change rows an epoch has, None if its counters do not tell exactly.

    They count updates that leave all values as they were, too, and of an overwrite each key.
    """
    if not commit.is_epoch:
        return 0
    counters = Counters.from_json(commit.counters)
    is_plain = commit.kind is Kind.APPEND and not (counters.restored or counters.retracted)
    if not (is_plain and options.change_feed):
        return None
    if counters.updates and options.deduplication is not Deduplication.NONE:
        return None
    return counters.output_count
