"""A materialized view's group rows (`ShownGroups`): the result at a version, and its changes.

A group's entries are in one hash range; read ranges are rounded to complete groups
(`align_to_groups`). An empty group has no row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import try_convert
from spark_upsert.core.durations import Fields
from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Positions, ordered_words
from spark_upsert.core.merge_engines import GROUP_PART, MARKER_PART, PART, value_column
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.join_keys import (
    NOWHERE,
    codes,
    empty_batch,
    first_indices,
    first_occurrences,
)
from spark_upsert.store import Store
from spark_upsert.table.changelog.changes import EpochRange
from spark_upsert.table.log.manifest import VIEW_PROPERTIES, Manifest, Slice
from spark_upsert.table.run.rows import Rows as StoredRows
from spark_upsert.table.state.fold import require_possible
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.state.sums import averages, join_decimals
from spark_upsert.views.grouping import Grouping, SumColumns
from spark_upsert.views.intervals import Pairs, RelationRows, concat

_LOGGER = logging.getLogger(__name__)


def compute_results(grouping: Grouping, entries: pa.RecordBatch, *, url: str) -> pa.RecordBatch:
    """Return the result rows for groups.

    Notes
    -----
    A value overflowing its result type is NULL in its group, with a warning: the sums themselves
    are retained, and it reappears as soon as it fits.
    """
    columns = {name: entries.column(name) for name in entries.schema.names}
    require_possible(grouping.stored_schema, columns, url)
    counts = np.asarray(columns[grouping.multiplicity].fill_null(0))
    parts = np.where(counts > 0, np.asarray(columns[PART]), MARKER_PART)
    groups = entries.take(pa.array(np.flatnonzero(parts == GROUP_PART)))
    ends = {
        column: _ends(grouping, entries, groups, np.flatnonzero(parts == part), part)
        for column, part in grouping.parts.items()
    }
    arrays = [groups.column(key) for key in grouping.keys]
    for aggregate in grouping.aggregates:
        shown = _aggregate_column(grouping, aggregate, groups, ends)
        arrays.append(shown.values)
        if shown.lost:
            fields = Fields(path=url, column=aggregate.name, groups=shown.lost)
            _LOGGER.warning("groups whose values do not fit: %s", fields)
    if not arrays:
        return pa.RecordBatch.from_pylist([{}] * groups.num_rows, schema=grouping.result_schema)
    return pa.RecordBatch.from_arrays(arrays, schema=grouping.result_schema)


class _ResultColumn(NamedTuple):
    """A result column."""

    values: pa.Array
    lost: int = 0
    """Number of groups with an overflowing value."""


_Ends = tuple[pa.Array, pa.Array]
"""Each group's smallest and greatest value, NULL if there is none."""


def _ends(
    grouping: Grouping, entries: pa.RecordBatch, groups: pa.RecordBatch, at: Positions, part: int
) -> _Ends:
    """Return the extremes of a part's values, one for each group."""
    values = entries.take(pa.array(at))
    column = values.column(value_column(part))
    if not len(column):
        nothing = pa.nulls(groups.num_rows, column.type)
        return nothing, nothing
    owner = _owners(grouping, groups, values)
    order = np.lexsort((*reversed(ordered_words(column)), owner))
    owner = owner[order]
    begins = np.flatnonzero(np.diff(owner, prepend=NOWHERE - 1))
    lasts = np.append(begins[1:], len(owner)) - 1
    ends = []
    for chosen in (begins, lasts):
        row_indices = np.full(groups.num_rows, NOWHERE, dtype=np.int64)
        row_indices[owner[chosen]] = order[chosen]
        ends.append(column.take(pa.array(row_indices, mask=row_indices == NOWHERE)))
    return ends[0], ends[1]


def _owners(grouping: Grouping, groups: pa.RecordBatch, values: pa.RecordBatch) -> Positions:
    """Return the group index for each entry."""
    if not grouping.keys:
        return np.zeros(values.num_rows, dtype=np.int64)
    keys = ([side.column(key) for key in grouping.keys] for side in (groups, values))
    ours, theirs = codes(*keys)
    return first_indices(theirs, ours)


def _aggregate_column(
    grouping: Grouping,
    aggregate: Aggregate,
    groups: pa.RecordBatch,
    ends: Mapping[str, _Ends],
) -> _ResultColumn:
    """Return an aggregate's result column; ``ends`` has the extremes by column name."""
    column, kind = aggregate.column, aggregate.kind
    if column is None:
        return _ResultColumn(groups.column(grouping.multiplicity))
    if kind is AggregateKind.MIN:
        return _ResultColumn(ends[column][0])
    if kind is AggregateKind.MAX:
        return _ResultColumn(ends[column][1])
    summed = grouping.sum_of(aggregate)
    count = groups.column(summed.count)
    if kind is AggregateKind.COUNT:
        return _ResultColumn(count)
    type_ = grouping.result_schema.field(aggregate.name).type
    is_some = pc.greater(count, 0)
    if kind is AggregateKind.SUM:
        shown_column = _total(groups, summed, type_)
    elif pa.types.is_decimal(type_):
        shown_column = _quotient(groups, summed, count, type_)
    else:
        # A group without values is divided by one, and then NULL.
        divisor = pc.if_else(is_some, count, 1).cast(pa.float64())
        shown_column = _ResultColumn(pc.divide(_total(groups, summed, type_).values, divisor))
    return shown_column._replace(
        values=pc.if_else(is_some, shown_column.values, pa.scalar(None, type_))
    )


def _total(groups: pa.RecordBatch, summed: SumColumns, type_: pa.DataType) -> _ResultColumn:
    """Return a column's sums, cast to the result type."""
    total = _whole(groups, summed)
    beyond = pc.and_(pc.is_null(total), pc.greater(groups.column(summed.count), 0))
    shown = _cast_column(total, type_)
    shown = shown._replace(lost=shown.lost + (pc.sum(beyond).as_py() or 0))
    if not summed.apart:
        return shown
    total = shown.values
    nan, above, is_negative = (pc.greater(groups.column(name), 0) for name in summed.apart)
    for where, value in (
        (is_negative, "-inf"),
        (above, "inf"),
        (pc.and_(above, is_negative), "nan"),
    ):
        total = pc.if_else(where, pa.scalar(float(value)), total)
    return shown._replace(values=pc.if_else(nan, pa.scalar(float("nan")), total))


def _quotient(
    groups: pa.RecordBatch, summed: SumColumns, count: pa.Array, type_: pa.DataType
) -> _ResultColumn:
    """Return decimal averages, rounded half up as Spark does."""
    return _cast_column(averages(_whole(groups, summed), count, type_.scale), type_)


def _whole(groups: pa.RecordBatch, summed: SumColumns) -> pa.Array:
    """Return a column's exact sums."""
    assert summed.total is not None
    total = groups.column(summed.total)
    return total if summed.beyond is None else join_decimals(total, groups.column(summed.beyond))


def _cast_column(column: pa.Array, type_: pa.DataType) -> _ResultColumn:
    """Return values in a type, NULL where one does not fit."""
    values, lost = try_convert(column, type_)
    return _ResultColumn(values, int(lost.sum()))


PLAN, RESULT = VIEW_PROPERTIES
"""Properties of a materialized table: its view's plan, and its entries' `Grouping`."""

_RANGE = 1 << 32
"""Number of hashes per group."""


def grouping_of(properties: Mapping[str, str]) -> Grouping | None:
    """Return a table's grouping; None if it does not materialize groups."""
    text = properties.get(RESULT)
    return None if text is None else Grouping.from_json(text)


def align_to_groups(grouping: Grouping, hash_range: HashRange) -> HashRange:
    """Return the group-aligned range for a hash range; adjacent ranges share no group.

    A group of all rows has entries anywhere, and belongs to the first hash.
    """
    if not grouping.keys:
        return ALL_HASHES if hash_range.first == 0 else HashRange(0, 0)
    first, end = (-(-bound // _RANGE) * _RANGE for bound in (hash_range.first, hash_range.end))
    return HashRange(first, end)


@dataclass(frozen=True, slots=True)
class ShownGroups:
    """A materialized table's results by version."""

    grouping: Grouping
    store: Store

    def rows(
        self, manifest: Manifest, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows at a version for a range's groups; the range is one of `align_to_groups`."""
        snapshot = self._snapshot(manifest)
        pieces = snapshot.chunks(hash_range) if self.grouping.keys else [hash_range]
        for piece in pieces:
            group_range = align_to_groups(self.grouping, piece)
            if not group_range.is_empty:
                yield self._result(concat([self._no_rows, *snapshot.read(hash_range=group_range)]))

    def look_up(self, groups: RelationRows, manifest: Manifest) -> RelationRows:
        """Return the rows for groups at a version; groups without rows are omitted.

        A group has one entry per value of each column with a minimum or maximum
        (`Grouping.parts`), plus one with its sums. Without such columns its key is complete and
        one look-up finds the entry; otherwise all entries with the group's prefix are read.
        """
        if not groups.num_rows:
            return empty_batch(self.grouping.result_schema)
        snapshot = self._snapshot(manifest)
        columns = [groups.column(key) for key in self.grouping.keys]
        has_value_entries = bool(self.grouping.parts)
        if not has_value_entries:
            entries = [self._single_entry_groups(snapshot, columns, groups.num_rows)]
        elif columns:
            entries = list(snapshot.having_prefix(columns))
        else:
            entries = list(snapshot.read())
        return self._result(concat([self._no_rows, *entries]))

    def changes(
        self, stretch: EpochRange, hash_range: HashRange = ALL_HASHES, *, net: bool = False
    ) -> Iterator[tuple[int, Pairs]]:
        """Yield each epoch's changes in a hash range, which is one of `align_to_groups`.

        Both rows of a changed group are computed from all its entries: a group without its smallest
        value finds the next one.
        """
        before = replace(stretch.before, schema=stretch.schema)
        if stretch.is_comparison or net:
            replaced = before.slices if stretch.is_comparison else ()
            slices = () if stretch.is_comparison else before.slices
            groups = self._touched_groups((*replaced, *stretch.after), before, hash_range)
            after = replace(before, slices=(*slices, *stretch.after))
            yield max(stretch.times_ms), self._pairs(groups, before, after)
            return
        for epoch in stretch.times_ms:
            added = tuple(s for s in stretch.after if s.epochs.lower == epoch)
            after = replace(before, slices=(*before.slices, *added))
            groups = self._touched_groups(added, before, hash_range)
            yield epoch, self._pairs(groups, before, after)
            before = after

    def _pairs(self, groups: RelationRows, before: Manifest, after: Manifest) -> Pairs:
        """Return the groups' old and new rows at two versions, without unchanged rows."""
        old, new = (self.look_up(groups, manifest) for manifest in (before, after))
        return _align_results(self.grouping, old, new).drop_equal()

    def _touched_groups(
        self, slices: tuple[Slice, ...], manifest: Manifest, hash_range: HashRange
    ) -> RelationRows:
        """Return the distinct groups with an entry in the slices."""
        keys = self.grouping.keys
        fields = pa.schema(
            [self.grouping.stored_schema.columns.field(name) for name in (*keys, PART)]
        )
        snapshot = self._snapshot(replace(manifest, slices=slices))
        stored = StoredRows(self.grouping.stored_schema, [p for p, _ in snapshot.parts(hash_range)])
        columns = stored.take(fields.names, np.arange(len(stored)))
        entries = pa.RecordBatch.from_arrays(columns, schema=fields)
        groups = entries.filter(pa.array(np.asarray(entries.column(PART)) != MARKER_PART))
        if not keys:
            return groups.slice(0, min(1, groups.num_rows))
        [numbers] = codes([groups.column(key) for key in keys])
        return groups.take(pa.array(first_occurrences(numbers)))

    def _single_entry_groups(
        self, snapshot: Snapshot, columns: list[pa.Array], count: int
    ) -> RelationRows:
        """Return the groups' sum entries, looked up by complete key; groups have no others."""
        keys = [*columns, pa.repeat(pa.scalar(GROUP_PART, pa.int32()), count)]
        return snapshot.look_up(keys).rows

    def _result(self, entries: RelationRows) -> RelationRows:
        """Return the result rows for stored entries."""
        return compute_results(self.grouping, entries, url=self.store.url)

    def _snapshot(self, manifest: Manifest) -> Snapshot:
        # A group with overflowing sums leaves the others readable (`compute_results`).
        engine = replace(manifest.schema.engine, has_null_for_overflow=True)
        schema = replace(manifest.schema, engine=engine)
        return Snapshot(self.store, replace(manifest, schema=schema))

    @property
    def _no_rows(self) -> RelationRows:
        return empty_batch(self.grouping.stored_schema.columns)


def _align_results(grouping: Grouping, old: RelationRows, new: RelationRows) -> Pairs:
    """Return the pairs from two results; without group columns there is at most one group."""
    if grouping.keys:
        return Pairs.from_rows(old, new, grouping.keys)
    count = max(old.num_rows, new.num_rows)
    at = [np.arange(count) if s.num_rows else np.full(count, NOWHERE) for s in (old, new)]
    return Pairs.from_indices(old, new, at[0], at[1])
