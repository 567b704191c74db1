"""A kept table as its readers see it: the rows of groups at a version, and how they change.

All entries of a group have hashes of one range (`TableSchema.hash_prefix`). So a read of a part of
the hashes reads whole groups: its range is rounded to theirs (`whole_groups`), and rounded ranges
are neighbours as before. A reader holds the entries of one chunk at once (`Snapshot.chunks`), or of
one group, if that has more.

The changed groups of an epoch are those of its entries. Both rows of a group, before the epoch and
behind it, are made of all its entries, so that a group that loses its smallest value finds the
next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_upsert.model.engines import GROUP_PART, MARKER_PART, PART
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.plan.kernels.equal_keys import NOWHERE, codes, firsts
from spark_upsert.plan.kernels.taking import no_rows
from spark_upsert.store import Store
from spark_upsert.table.changes.stretches import Stretch
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.kept_position import VIEW_PROPERTIES
from spark_upsert.table.log.manifest import Manifest, Slice
from spark_upsert.table.run.rows import Rows as StoredRows
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.groups.result import result
from spark_upsert.views.pairs import Pairs, RelationRows, concat

PLAN, RESULT = VIEW_PROPERTIES
"""Properties of a kept table: the text of its view, and what its entries mean (`Grouping`)."""

_RANGE = 1 << 32
"""Hashes of one group."""


def grouping_of(properties: Mapping[str, str]) -> Grouping | None:
    """Return what the entries of a table mean; None of a table that keeps no groups."""
    text = properties.get(RESULT)
    return None if text is None else Grouping.from_json(text)


def whole_groups(grouping: Grouping, hash_range: HashRange) -> HashRange:
    """Return the range of the groups that a range is for; of neighbours, each group is in one.

    A group of all rows has entries anywhere, and is that of the first hash.
    """
    if not grouping.keys:
        return ALL_HASHES if hash_range.first == 0 else HashRange(0, 0)
    first, end = (-(-bound // _RANGE) * _RANGE for bound in (hash_range.first, hash_range.end))
    return HashRange(first, end)


@dataclass(frozen=True, slots=True)
class ShownGroups:
    """The result of a kept table, version by version."""

    grouping: Grouping
    store: Store

    def rows(
        self, manifest: Manifest, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows at a version of the groups of a range, which is one of `whole_groups`."""
        snapshot = self._snapshot(manifest)
        pieces = snapshot.chunks(hash_range) if self.grouping.keys else [hash_range]
        for piece in pieces:
            whole = whole_groups(self.grouping, piece)
            if not whole.is_empty:
                yield self._result(concat([self._nothing, *snapshot.read(hash_range=whole)]))

    def look_up(self, groups: RelationRows, manifest: Manifest) -> RelationRows:
        """Return the rows of some groups at a version: of those that have any.

        Parameters
        ----------
        groups : pyarrow.RecordBatch
            The columns of the group, among others perhaps; each group once.
        manifest : Manifest
        """
        if not groups.num_rows:
            return no_rows(self.grouping.result)
        snapshot = self._snapshot(manifest)
        columns = [groups.column(key) for key in self.grouping.keys]
        if not self.grouping.parts:
            found = [self._groups_alone(snapshot, columns, groups.num_rows)]
        elif columns:
            found = list(snapshot.having_prefix(columns))
        else:
            found = list(snapshot.read())
        return self._result(concat([self._nothing, *found]))

    def changes(
        self, stretch: Stretch, hash_range: HashRange = ALL_HASHES, *, net: bool = False
    ) -> Iterator[tuple[int, Pairs]]:
        """Yield what each epoch of a stretch changed in a range, which is one of `whole_groups`.

        Parameters
        ----------
        net : bool
            Whether all epochs together make one step, at the last of them.

        Yields
        ------
        tuple of int and Pairs
            The epoch, ascending, and the old and new rows of its changed groups, none equal.
        """
        before = replace(stretch.before, schema=stretch.schema)
        if stretch.is_comparison or net:
            replaced = before.slices if stretch.is_comparison else ()
            kept = () if stretch.is_comparison else before.slices
            groups = self._touched((*replaced, *stretch.after), before, hash_range)
            after = replace(before, slices=(*kept, *stretch.after))
            yield max(stretch.times_ms), self._pairs(groups, before, after)
            return
        for epoch in stretch.times_ms:
            added = tuple(s for s in stretch.after if s.epochs.lower == epoch)
            after = replace(before, slices=(*before.slices, *added))
            groups = self._touched(added, before, hash_range)
            yield epoch, self._pairs(groups, before, after)
            before = after

    def _pairs(self, groups: RelationRows, before: Manifest, after: Manifest) -> Pairs:
        old, new = (self.look_up(groups, each) for each in (before, after))
        return _aligned(self.grouping, old, new).changed()

    def _touched(
        self, slices: tuple[Slice, ...], manifest: Manifest, hash_range: HashRange
    ) -> RelationRows:
        """Return the groups that have an entry in some slices, each once."""
        keys = self.grouping.keys
        fields = pa.schema([self.grouping.kept.columns.field(name) for name in (*keys, PART)])
        snapshot = self._snapshot(replace(manifest, slices=slices))
        stored = StoredRows(self.grouping.kept, [p for p, _ in snapshot.parts(hash_range)])
        columns = stored.take(fields.names, np.arange(len(stored)))
        entries = pa.RecordBatch.from_arrays(columns, schema=fields)
        groups = entries.filter(pa.array(np.asarray(entries.column(PART)) != MARKER_PART))
        if not keys:
            return groups.slice(0, min(1, groups.num_rows))
        [numbers] = codes([groups.column(key) for key in keys])
        return groups.take(pa.array(firsts(numbers)))

    def _groups_alone(
        self, snapshot: Snapshot, columns: list[pa.Array], count: int
    ) -> RelationRows:
        """Return the entries of groups that have no other: each is one key."""
        keys = [*columns, pa.repeat(pa.scalar(GROUP_PART, pa.int32()), count)]
        return snapshot.look_up(keys).rows

    def _result(self, entries: RelationRows) -> RelationRows:
        return result(self.grouping, entries, url=self.store.url)

    def _snapshot(self, manifest: Manifest) -> Snapshot:
        # A group with sums that do not fit leaves the others readable (`result`).
        engine = replace(manifest.schema.engine, has_null_for_overflow=True)
        schema = replace(manifest.schema, engine=engine)
        return Snapshot(self.store, replace(manifest, schema=schema))

    @property
    def _nothing(self) -> RelationRows:
        return no_rows(self.grouping.kept.columns)


def _aligned(grouping: Grouping, old: RelationRows, new: RelationRows) -> Pairs:
    """Return the pairs of two results; without columns of a group there is one group at most."""
    if grouping.keys:
        return Pairs.aligned(old, new, grouping.keys)
    count = max(old.num_rows, new.num_rows)
    at = [np.arange(count) if s.num_rows else np.full(count, NOWHERE) for s in (old, new)]
    return Pairs.taken_from(old, new, at[0], at[1])
