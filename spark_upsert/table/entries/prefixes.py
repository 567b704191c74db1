"""Values with which keys are to begin: where they may lie in runs, and which rows really have them.

Where the upper half of the hash is made of the first key columns, all keys that begin with some
values have hashes of one range. Other values may share the range, so that what lies there is
compared with the values in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from spark_upsert.conversions import convert
from spark_upsert.errors import CorruptionError, OptionError, SchemaError
from spark_upsert.model.arrays import Positions
from spark_upsert.model.hash_range import HashRange
from spark_upsert.model.hashing import prefix_ends
from spark_upsert.model.schema import HASH, TableSchema
from spark_upsert.model.words import Words
from spark_upsert.plan.kernels.equal_keys import is_among
from spark_upsert.table.run.file import Run

_LOWER = np.uint64((1 << 32) - 1)

_VALUES = 1 << 14
"""Values that are sought at once: their places in a thousand runs are 256 MiB."""


@dataclass(frozen=True)
class RunRanges:
    """The places of some ranges of hashes in a run: ``starts <= i < stops``."""

    starts: Positions
    stops: Positions

    @property
    def counts(self) -> Positions:
        """How many entries are in each range."""
        return self.stops - self.starts

    def positions(self, low: int, high: int) -> Positions:
        """Return the positions of the ranges ``low <= r < high``, ascending."""
        starts, counts = self.starts[low:high], self.counts[low:high]
        before = np.cumsum(counts) - counts
        return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


@dataclass(frozen=True)
class Prefixes:
    """Wanted values of the leading key columns, in the order of the ranges of their hashes."""

    names: tuple[str, ...]
    """The columns."""
    values: tuple[pa.Array, ...]
    ranges: Words
    """For each value, the first hash of the range in which keys lie that begin with it."""

    @classmethod
    def of(cls, schema: TableSchema, values: Sequence[pa.Array]) -> Prefixes:
        """Check wanted values (`Snapshot.having_prefix`)."""
        prefix, names = schema.hash_prefix, schema.keys[: len(values)]
        if not prefix or not prefix <= len(values) <= len(schema.keys):
            own = f"by {', '.join(schema.keys[:prefix])}" if prefix else "of whole keys alone"
            raise OptionError(
                "a read by prefix expects values of the leading key columns by which the table is "
                f"hashed, found {len(values)} columns of values, and a table hashed {own}.",
                hint="make the table with 'hashPrefix', and give values of all those columns.",
                option="hashPrefix",
            )
        stored = [as_stored(v, schema, name) for v, name in zip(values, names, strict=True)]
        ranges, _ = prefix_ends(stored[:prefix], seed=schema.hash_seed)
        order = pa.array(np.argsort(ranges, kind="stable"))
        return cls(
            names=names,
            values=tuple(column.take(order) for column in stored),
            ranges=np.sort(ranges),
        )

    def cut(self) -> Iterator[Prefixes]:
        """Yield the values in pieces, none of which shares a range with another."""
        first = 0
        while first < len(self.ranges):
            last = self.ranges[min(first + _VALUES, len(self.ranges)) - 1]
            end = int(np.searchsorted(self.ranges, last, side="right"))
            yield replace(
                self,
                values=tuple(column.slice(first, end - first) for column in self.values),
                ranges=self.ranges[first:end],
            )
            first = end

    @cached_property
    def firsts(self) -> Words:
        """The first hash of each range, ascending."""
        return np.unique(self.ranges)

    @property
    def lasts(self) -> Words:
        """The last hash of each range."""
        return self.firsts | _LOWER

    @property
    def spanning(self) -> HashRange:
        """The ranges and all between them."""
        return HashRange.spanning(self.firsts[0], self.lasts[-1])

    def places(self, run: Run, live: HashRange) -> RunRanges:
        """Find the ranges in the live part of a run, by entries that prove it.

        Raises
        ------
        CorruptionError
            The hashes do not ascend where they were searched.
        """
        low, high = live.rows_of(run.hashes)
        starts = np.searchsorted(run.hashes, self.firsts, side="left").astype(np.int64)
        stops = np.searchsorted(run.hashes, self.lasts, side="right").astype(np.int64)
        count, ends = len(run.hashes), np.concatenate([starts, stops])
        run.verify_at([HASH], np.unique(np.clip([ends - 1, ends], 0, count - 1)))
        # Each end lies between an entry that is before it and one that is not.
        wanted = np.concatenate([self.firsts, self.lasts])
        is_last = np.arange(len(ends)) >= len(starts)
        before, after = run.hashes[np.maximum(ends - 1, 0)], run.hashes[np.minimum(ends, count - 1)]
        misled = (ends > 0) & np.where(is_last, before > wanted, before >= wanted)
        misled |= (ends < count) & np.where(is_last, after <= wanted, after < wanted)
        if bool(misled.any()):
            raise CorruptionError.in_file(run.file.path, "hashes in ascending order", "others")
        return RunRanges(np.clip(starts, low, high), np.clip(stops, low, high))

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have one of the values."""
        columns = [rows.column(name) for name in self.names]
        chosen = is_among(columns, self.values)
        return rows if bool(chosen.all()) else rows.filter(pa.array(chosen))


def neighbours_within(counts: Positions, most: int) -> Iterator[tuple[int, int]]:
    """Yield neighbours ``[low, high)`` with at most so many together, or single ones."""
    reached = np.cumsum(counts)
    low = 0
    while low < len(counts):
        before = int(reached[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(reached, before + most, side="right")))
        yield low, high
        low = high


def as_stored(values: pa.Array, schema: TableSchema, name: str) -> pa.Array:
    """Return wanted values in the type in which a table has a column.

    Raises
    ------
    SchemaError
        A value does not fit into it.
    """
    type_ = schema.columns.field(name).type
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return convert(values, type_)
    except pa.ArrowException as error:
        raise SchemaError(
            f"the column '{name}' is {type_} in the table, and a wanted value is not: {error}.",
            hint=f"give values of type {type_}.",
            column=name,
        ) from error
