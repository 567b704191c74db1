"""Version scans by a row filter (`RowFilter`), in pieces for other processes (`ScanPiece`).

A *pin* is a column's list of possible values. Pins on the key, the hash prefix or an indexed column
decide which blocks are read; the condition decides each row (docs/adr/0013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from math import prod

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_keys
from spark_upsert.core.keys import Words
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, DataLossError
from spark_upsert.plan.expressions import (
    BoundExpression,
    Pins,
    bind_condition,
    pins_for_and,
    pins_of,
    values_of,
)
from spark_upsert.table.index.index import Index, rows_at
from spark_upsert.table.state.snapshot import CHUNK_ROWS, Snapshot

_LOOK_UP_COST = 8
"""Rows scanned in the time for one look-up by a proposed key."""

KEYS_MAX = 1 << 17
"""Maximum key count from combined pinned columns; beyond it the table is scanned once."""

IndexOf = Callable[[str], Index | None]
"""Returns the index on a column, if any."""


@dataclass(frozen=True)
class RowFilter:
    """Row filter; pickled to the tasks.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns available to the condition.
    condition : str, optional
        SQL; without one, the caller filters the rows left by the pins.
    pins : mapping of str to pyarrow.Array
        Column values required in every matching row.
    indexed : str, optional
        The pinned column with an index to use, if neither the key nor its prefix is pinned.
    """

    schema: pa.Schema
    condition: str | None = None
    pins: Pins = field(default_factory=dict)
    indexed: str | None = None

    @classmethod
    def of(cls, condition: str, schema: pa.Schema) -> RowFilter:
        """Check a condition."""
        bind_condition(condition, schema)
        return cls(schema, condition, pins_of(condition, schema))

    def pinned(self, pins: Pins) -> RowFilter:
        """Return the filter with additional pins, cast where needed; unconvertible pins are
        dropped.
        """
        values_by_name = {
            name: values_of(values, self.schema.field(name).type)
            for name, values in pins.items()
            if has_column(self.schema, name)
        }
        pinned_values = {
            name: values for name, values in values_by_name.items() if values is not None
        }
        return replace(self, pins=pins_for_and(self.pins, pinned_values))

    def by_index(self, snapshot: Snapshot, index_of: IndexOf) -> RowFilter:
        """Return the filter with the index saving most at a version, if any does."""
        return replace(self, indexed=_choose_index(snapshot, self, index_of))

    def __getstate__(self) -> dict[str, object]:
        # Cached properties are not pickled.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def _bound(self) -> BoundExpression | None:
        """The condition, bound to its columns."""
        if self.condition is None:
            return None
        read = bind_condition(self.condition, self.schema).columns
        fields = pa.schema([self.schema.field(name) for name in read])
        return bind_condition(self.condition, fields)

    def _columns_to_read(self, names: Sequence[str]) -> list[str]:
        """Return the columns, followed by the condition's other columns."""
        filter_columns = () if self._bound is None else self._bound.columns
        read = set(names)
        return [*names, *(name for name in filter_columns if name not in read)]

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the condition is true."""
        if self._bound is None or not rows.num_rows:
            return rows
        is_wanted = self._bound(rows.select(list(self._bound.columns)))
        return rows.filter(is_wanted, null_selection_behavior="drop")

    def read(
        self,
        snapshot: Snapshot,
        names: Sequence[str],
        *,
        hash_range: HashRange = ALL_HASHES,
        index_of: IndexOf | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield a version's matching rows, each once, in any order."""
        index = None
        if self.indexed is not None:
            index = (index_of or partial(Index.of, snapshot.store))(self.indexed)
        for batch in self._candidates(snapshot, self._columns_to_read(names), hash_range, index):
            filtered = self.filter(batch)
            if filtered.num_rows:
                yield filtered.select(list(names)) if names else filtered

    def _candidates(
        self, snapshot: Snapshot, names: list[str], hash_range: HashRange, index: Index | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield a superset of the matching rows."""
        if self.is_never:
            return
        schema = snapshot.manifest.schema
        keys = self.keys(schema)
        prefixes = self.prefixes(schema) if hash_range == ALL_HASHES else None
        if keys is not None:
            inside = _keys_within(schema, keys, hash_range)
            yield snapshot.look_up(inside.columns, names or list(schema.keys)).rows
        elif prefixes is not None:
            yield from snapshot.having_prefix(prefixes.columns, names)
        elif index is not None:
            yield from _by_index(index, snapshot, self.pins[index.column], names)
        else:
            yield from snapshot.read(names, hash_range=hash_range)

    @property
    def is_never(self) -> bool:
        """Whether no row can match: a column is pinned to no values."""
        return any(not len(values) for values in self.pins.values())

    def keys(self, schema: TableSchema) -> pa.RecordBatch | None:
        """Return the possible keys for matching rows; None unless all key columns are pinned."""
        return self._combined(schema, schema.keys)

    def prefixes(self, schema: TableSchema) -> pa.RecordBatch | None:
        """Return possible key prefixes, or None if the hash prefix columns are not all pinned."""
        if not schema.hash_prefix:
            return None
        count = next((i for i, name in enumerate(schema.keys) if name not in self.pins), 0)
        leading = schema.keys[: max(count, schema.hash_prefix)]
        return self._combined(schema, leading)

    def _combined(self, schema: TableSchema, names: Sequence[str]) -> pa.RecordBatch | None:
        """Return the distinct combinations of pinned values; None if a column is unpinned."""
        if any(name not in self.pins for name in names):
            return None
        sizes = [len(self.pins[name]) for name in names]
        if prod(sizes) > KEYS_MAX:
            return None
        indices = np.indices(sizes).reshape(len(sizes), -1)
        arrays = [self.pins[n].take(pa.array(at)) for n, at in zip(names, indices, strict=True)]
        fields = pa.schema([schema.columns.field(name) for name in names])
        return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _choose_index(snapshot: Snapshot, where: RowFilter, index_of: IndexOf) -> str | None:
    """Return the column whose index proposes the fewest keys, or None if these are too many."""
    schema = snapshot.manifest.schema
    if where.keys(schema) is not None or where.prefixes(schema) is not None:
        return None
    candidates = []
    for column, values in where.pins.items():
        index = index_of(column)
        count = None if index is None else _count_proposed(index, values)
        if count is not None:
            candidates.append((count, column))
    few = max(snapshot.manifest.live_rows, CHUNK_ROWS) // _LOOK_UP_COST
    return next((column for count, column in sorted(candidates) if count <= few), None)


def _count_proposed(index: Index, values: pa.Array) -> int | None:
    try:
        return index.count(values)
    except (DataLossError, CorruptionError):
        return None  # As without an index; the index commands report that it must be rebuilt.


def _by_index(
    index: Index, snapshot: Snapshot, values: pa.Array, names: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose indexed column has one of the given values."""
    batches = rows_at(index, snapshot, snapshot.manifest.schema, index.column, values, names)
    try:
        first = next(batches, None)
    except CorruptionError:  # If the table is damaged, this read raises, too.
        yield from snapshot.read(names)
        return
    yield from () if first is None else chain([first], batches)


def _keys_within(
    schema: TableSchema, keys: pa.RecordBatch, hash_range: HashRange
) -> pa.RecordBatch:
    """Return the keys with hashes in a range."""
    if hash_range == ALL_HASHES or not keys.num_rows:
        return keys
    hashes = hashes_of(schema, keys)
    inside = (hashes >= np.uint64(hash_range.first)) & (hashes <= np.uint64(hash_range.last))
    return keys.filter(pa.array(inside))


def hashes_of(schema: TableSchema, keys: pa.RecordBatch) -> Words:
    """Return the keys' hashes, in key order."""
    return hash_keys(keys.columns, seed=schema.hash_seed, prefix=schema.hash_prefix)


@dataclass(frozen=True)
class ScanPiece:
    """One piece of a version scan; the pieces partition the rows. Picklable.

    It exports Arrow (``__arrow_c_stream__``), so data frames and engines can consume it.

    Parameters
    ----------
    snapshot : Snapshot
    names : tuple of str
        The columns, in order.
    hash_range : HashRange
        Key hash range covered by the piece.
    where : RowFilter, optional
        By default all rows.
    """

    snapshot: Snapshot
    names: tuple[str, ...]
    hash_range: HashRange
    where: RowFilter | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns, in output order."""
        columns = self.snapshot.manifest.schema.columns
        return pa.schema([columns.field(name) for name in self.names])

    def scan(self) -> pa.RecordBatchReader:
        """Return a reader for its rows, in no particular order, with bounded memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return its rows as an Arrow stream."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self.where is None:
            return self.snapshot.read(self.names, hash_range=self.hash_range)
        return self.where.read(self.snapshot, self.names, hash_range=self.hash_range)
