"""Validity intervals within a step (`Spans`): rows with ``lower <= t < upper``.

Time 0 is the position before the step, each epoch has the next one: all epochs are computed in one
pass (Snodgrass, *Developing Time-Oriented Database Applications in SQL*, chapter 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, Positions, equal_rows, identical_rows
from spark_upsert.plan.join_keys import (
    NOWHERE,
    codes,
    empty_batch,
    first_indices,
    first_occurrences,
    take_or_null,
)

RelationRows: TypeAlias = pa.RecordBatch
"""A relation's rows: at most one per key."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Old and new rows for the same keys, in the same order.

    Attributes
    ----------
    old, new : pyarrow.RecordBatch, shape (n,)
        Rows with one schema. If a row is absent its columns are NULL, and meaningless.
    has_old, has_new : numpy.ndarray of bool, shape (n,)
        Which rows exist. A pair without either carries no change.
    """

    old: RelationRows
    new: RelationRows
    has_old: Mask
    has_new: Mask

    def __len__(self) -> int:
        return int(self.old.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """The row columns."""
        return self.new.schema

    @classmethod
    def empty(cls, schema: pa.Schema) -> Pairs:
        """Return no pairs."""
        return cls.of_inserts(empty_batch(schema))

    @classmethod
    def of_inserts(cls, rows: RelationRows) -> Pairs:
        """Return pairs for rows absent before."""
        every = np.arange(rows.num_rows)
        return cls.from_indices(rows, rows, np.full_like(every, NOWHERE), every)

    @classmethod
    def from_rows(cls, old: RelationRows, new: RelationRows, key: Sequence[str]) -> Pairs:
        """Return the pairs from two row sets, each with at most one row per key."""
        before, after = codes(select_columns(old, key), select_columns(new, key))
        keys = first_occurrences(np.concatenate([before, after]))
        keys = np.concatenate([before, after])[keys]
        return cls.from_indices(old, new, first_indices(keys, before), first_indices(keys, after))

    @classmethod
    def from_indices(
        cls, old: RelationRows, new: RelationRows, old_at: Positions, new_at: Positions
    ) -> Pairs:
        """Return pairs by row positions, `NOWHERE` for an absent row."""
        return cls(
            take_rows(old, old_at), take_rows(new, new_at), old_at != NOWHERE, new_at != NOWHERE
        )

    @classmethod
    def concat(cls, parts: Sequence[Pairs]) -> Pairs:
        """Concatenate pairs with disjoint keys."""
        return cls(
            concat([part.old for part in parts]),
            concat([part.new for part in parts]),
            np.concatenate([part.has_old for part in parts]),
            np.concatenate([part.has_new for part in parts]),
        )

    @classmethod
    def net_changes(cls, steps: Sequence[Pairs], key: Sequence[str]) -> Pairs:
        """Return consecutive steps' net changes: the first old row and the last new one."""
        if len(steps) == 1:
            return steps[0]
        every = cls.concat(steps)
        numbers = codes(every.keys(key).columns)[0]
        first = first_occurrences(numbers)
        last = len(numbers) - 1 - first_indices(numbers[first], numbers[::-1])
        return cls(
            take_rows(every.old, first),
            take_rows(every.new, last),
            every.has_old[first],
            every.has_new[last],
        )

    def keys(self, names: Sequence[str]) -> RelationRows:
        """Return columns from the existing row, the old one if both exist.

        Both rows have equal values in the key columns.
        """
        chosen = pa.array(self.has_old)
        arrays = [
            pc.if_else(chosen, self.old.column(name), self.new.column(name)) for name in names
        ]
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([self.schema.field(name) for name in names])
        )

    def old_rows(self) -> RelationRows:
        """Return the old rows alone, in pair order."""
        return self.old.filter(pa.array(self.has_old))

    def new_rows(self) -> RelationRows:
        """Return the new rows alone, in pair order."""
        return self.new.filter(pa.array(self.has_new))

    def filter(self, mask: Mask) -> Pairs:
        """Return the pairs kept by a mask."""
        chosen = pa.array(mask)
        return Pairs(
            self.old.filter(chosen), self.new.filter(chosen), self.has_old[mask], self.has_new[mask]
        )

    def take(self, at: Positions) -> Pairs:
        """Return the pairs at given positions."""
        chosen = pa.array(at)
        old, new = self.old.take(chosen), self.new.take(chosen)
        return Pairs(old, new, self.has_old[at], self.has_new[at])

    def select(self, names: Sequence[str]) -> Pairs:
        """Return the pairs with selected columns only; some may then have equal rows."""
        chosen = list(names)
        return Pairs(self.old.select(chosen), self.new.select(chosen), self.has_old, self.has_new)

    def drop_absent(self) -> Pairs:
        """Return the pairs with at least one existing row."""
        return self.filter(self.has_old | self.has_new)

    def drop_identical(self) -> Pairs:
        """Drop pairs of identical rows: no expression can distinguish them."""
        return self.filter(self.bitwise_difference_mask())

    def drop_equal(self) -> Pairs:
        """Drop pairs whose rows are equal by the engine's equality, for rows leaving a plan."""
        return self.filter(self.difference_mask())

    def difference_mask(self) -> Mask:
        """Return a mask: the pairs whose rows differ by the engine's equality."""
        return self._difference_mask(equal_rows(self.old.columns, self.new.columns))

    def bitwise_difference_mask(self) -> Mask:
        """Return a mask: the pairs possibly distinguished by an expression."""
        return self._difference_mask(identical_rows(self.old.columns, self.new.columns))

    def _difference_mask(self, same: Mask) -> Mask:
        return (self.has_old != self.has_new) | (self.has_old & ~same)


def concat(parts: Sequence[RelationRows]) -> RelationRows:
    """Return rows with one schema as one batch."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(list(parts))


def take_rows(rows: RelationRows, at: Positions) -> RelationRows:
    """Return the rows at given positions; a row of NULLs for `NOWHERE`."""
    fields = [field.with_nullable(True) for field in rows.schema]
    return pa.RecordBatch.from_arrays(take_or_null(rows.columns, at), schema=pa.schema(fields))


def select_columns(rows: RelationRows, names: Sequence[str]) -> list[pa.Array]:
    """Return columns by their names."""
    return [rows.column(name) for name in names]


class Times(NamedTuple):
    """Time intervals for span rows: a row may occur repeatedly, each time with an interval."""

    at: Positions
    """The row positions."""
    lower: Positions
    upper: Positions


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows with time intervals.

    Attributes
    ----------
    rows : pyarrow.RecordBatch, shape (n,)
    lower, upper : numpy.ndarray of int64, shape (n,)
        The row exists at the times ``lower <= t < upper``. No two rows with one key exist at
        the same time.
    """

    rows: RelationRows
    lower: Positions
    upper: Positions

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @classmethod
    def empty(cls, schema: pa.Schema) -> Spans:
        """Return no rows."""
        return cls.always_present(empty_batch(schema), 0)

    @classmethod
    def always_present(cls, rows: RelationRows, times: int) -> Spans:
        """Return rows present at all times."""
        lower = np.zeros(rows.num_rows, dtype=np.int64)
        return cls(rows, lower, lower + times + 1)

    @classmethod
    def from_changes(cls, pairs: Pairs, at: Positions, key: Sequence[str], times: int) -> Spans:
        """Return the spans resulting from changes."""
        [numbers] = codes(select_columns(pairs.keys(key), key)) if len(pairs) else [at]
        order = np.lexsort((at, numbers))
        numbers, at = numbers[order], at[order]
        is_first = np.diff(numbers, prepend=-1) != 0
        ends = np.where(np.append(is_first[1:], True), times + 1, np.append(at[1:], 0))
        before = is_first & pairs.has_old[order]
        has_later = pairs.has_new[order]
        return cls(
            concat([take_rows(pairs.old, order[before]), take_rows(pairs.new, order[has_later])]),
            np.concatenate([np.zeros(int(before.sum()), dtype=np.int64), at[has_later]]),
            np.concatenate([at[before], ends[has_later]]),
        )

    @classmethod
    def concat(cls, parts: Sequence[Spans]) -> Spans:
        """Concatenate spans with disjoint keys."""
        return cls(
            concat([part.rows for part in parts]),
            np.concatenate([part.lower for part in parts]),
            np.concatenate([part.upper for part in parts]),
        )

    @classmethod
    def concat_pieces(cls, parts: Iterable[Spans], schema: pa.Schema) -> Spans:
        """Return all pieces' spans."""
        return cls.concat([cls.empty(schema), *parts])

    def with_rows(self, rows: RelationRows) -> Spans:
        """Return other rows, present when these are."""
        return Spans(rows, self.lower, self.upper)

    def filter(self, mask: Mask) -> Spans:
        """Return the rows kept by a mask."""
        return Spans(self.rows.filter(pa.array(mask)), self.lower[mask], self.upper[mask])

    def with_owned_rows(self, rows: RelationRows, owners: Positions) -> Spans:
        """Return rows present when their owners among these are."""
        return Spans(rows, self.lower[owners], self.upper[owners])

    # -- when ------------------------------------------------------------------------

    def intersect(
        self, other: Spans, at: Positions, other_at: Positions
    ) -> tuple[Times, Positions]:
        """Return the intersections of matched intervals, and the row indices of the other side."""
        lower = np.maximum(self.lower[at], other.lower[other_at])
        upper = np.minimum(self.upper[at], other.upper[other_at])
        do_meet = lower < upper
        times = Times(at[do_meet], lower[do_meet], upper[do_meet])
        return times, other_at[do_meet]

    def gaps(self, covered: Times) -> Times:
        """Return the intervals in which rows exist but are not covered; covers are within rows."""
        at = covered.at
        is_whole = (covered.lower == self.lower[at]) & (covered.upper == self.upper[at])
        is_never, is_partly = (np.full(len(self), value) for value in (True, False))
        is_never[at] = False
        is_partly[at] = True
        is_partly[at[is_whole]] = False
        never = np.flatnonzero(is_never)
        partly = self._inner_gaps(covered, is_partly)
        return Times(
            np.concatenate([never, partly.at]),
            np.concatenate([self.lower[never], partly.lower]),
            np.concatenate([self.upper[never], partly.upper]),
        )

    def _inner_gaps(self, covered: Times, chosen: Mask) -> Times:
        """Return the chosen rows' gaps; each row is covered at some time."""
        rows, sources = np.flatnonzero(chosen), chosen[covered.at]
        # The end of a row stands behind what covers it: what is between them is a gap.
        at = np.concatenate([covered.at[sources], rows])
        lower = np.concatenate([covered.lower[sources], self.upper[rows]])
        upper = np.concatenate([covered.upper[sources], self.upper[rows]])
        order = np.lexsort((lower, at))
        at, lower, upper = at[order], lower[order], upper[order]
        width = int(upper.max(initial=0)) + 1
        reached = np.maximum.accumulate(at * width + upper) - at * width
        is_first = np.diff(at, prepend=NOWHERE) != 0
        before = np.where(is_first, self.lower[at], np.append(0, reached[:-1])[: len(at)])
        is_gap = lower > before
        return Times(at[is_gap], before[is_gap], lower[is_gap])

    def repeat_at(self, times: Times) -> Spans:
        """Return the rows repeated for the given intervals."""
        return Spans(take_rows(self.rows, times.at), times.lower, times.upper)

    # -- what changed ----------------------------------------------------------------

    def changes(self, key: Sequence[str], times: int) -> tuple[Pairs, Positions]:
        """Return the changes and their times; bitwise unchanged rows are omitted."""
        comes, goes = self.lower > 0, self.upper <= times
        order = np.arange(len(self))
        follows = np.zeros(len(self), dtype=np.bool_)
        if len(self):
            [numbers] = codes(select_columns(self.rows, key))
            order = np.lexsort((self.lower, numbers))
            is_same = np.diff(numbers[order], prepend=NOWHERE) == 0
            follows = is_same & (np.append(0, self.upper[order[:-1]]) == self.lower[order])
        is_followed = np.append(follows[1:], False)[: len(self)]
        comes, goes = comes[order], goes[order] & ~is_followed
        new_at, before = np.flatnonzero(comes), np.append(NOWHERE, order[:-1])[: len(self)]
        old_at = np.flatnonzero(goes)
        nothing = np.full(len(old_at), NOWHERE)
        pairs = Pairs.from_indices(
            self.rows,
            self.rows,
            np.concatenate([np.where(follows[new_at], before[new_at], NOWHERE), order[old_at]]),
            np.concatenate([order[new_at], nothing]),
        )
        at = np.concatenate([self.lower[order[new_at]], self.upper[order[old_at]]])
        return pairs, at
