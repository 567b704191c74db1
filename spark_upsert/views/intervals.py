"""Validity intervals within a step (`Spans`): rows with ``lower <= t < upper``.

Time 0 is the position before the step, each epoch has the next one, so that all epochs are computed
in one pass (Snodgrass, *Developing Time-Oriented Database Applications in SQL*, chapter 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import Mask, Positions
from spark_upsert.plan.join_keys import NOWHERE, codes, no_rows
from spark_upsert.views.pairs import Pairs, RelationRows, columns_of, concat, taken


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
    def none(cls, schema: pa.Schema) -> Spans:
        """Return no rows."""
        return cls.throughout(no_rows(schema), 0)

    @classmethod
    def throughout(cls, rows: RelationRows, times: int) -> Spans:
        """Return rows that are there at all times."""
        lower = np.zeros(rows.num_rows, dtype=np.int64)
        return cls(rows, lower, lower + times + 1)

    @classmethod
    def of_changes(cls, pairs: Pairs, at: Positions, key: Sequence[str], times: int) -> Spans:
        """Return the spans that result from changes."""
        [numbers] = codes(columns_of(pairs.keys(key), key)) if len(pairs) else [at]
        order = np.lexsort((at, numbers))
        numbers, at = numbers[order], at[order]
        is_first = np.diff(numbers, prepend=-1) != 0
        ends = np.where(np.append(is_first[1:], True), times + 1, np.append(at[1:], 0))
        before = is_first & pairs.has_old[order]
        has_later = pairs.has_new[order]
        return cls(
            concat([taken(pairs.old, order[before]), taken(pairs.new, order[has_later])]),
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
    def whole(cls, parts: Iterable[Spans], schema: pa.Schema) -> Spans:
        """Return all pieces' spans."""
        return cls.concat([cls.none(schema), *parts])

    def with_rows(self, rows: RelationRows) -> Spans:
        """Return other rows that are there when these are."""
        return Spans(rows, self.lower, self.upper)

    def where(self, mask: Mask) -> Spans:
        """Return the rows that a mask keeps."""
        return Spans(self.rows.filter(pa.array(mask)), self.lower[mask], self.upper[mask])

    def owning(self, rows: RelationRows, owners: Positions) -> Spans:
        """Return rows that are there when their owners among these are."""
        return Spans(rows, self.lower[owners], self.upper[owners])

    # -- when ------------------------------------------------------------------------

    def met(self, other: Spans, at: Positions, other_at: Positions) -> tuple[Times, Positions]:
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
        partly = self._between(covered, is_partly)
        return Times(
            np.concatenate([never, partly.at]),
            np.concatenate([self.lower[never], partly.lower]),
            np.concatenate([self.upper[never], partly.upper]),
        )

    def _between(self, covered: Times, chosen: Mask) -> Times:
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

    def at_times(self, times: Times) -> Spans:
        """Return the rows repeated for the given intervals."""
        return Spans(taken(self.rows, times.at), times.lower, times.upper)

    # -- what changed ----------------------------------------------------------------

    def changes(self, key: Sequence[str], times: int) -> tuple[Pairs, Positions]:
        """Return the changes and their times; bitwise unchanged rows are omitted."""
        comes, goes = self.lower > 0, self.upper <= times
        order = np.arange(len(self))
        follows = np.zeros(len(self), dtype=np.bool_)
        if len(self):
            [numbers] = codes(columns_of(self.rows, key))
            order = np.lexsort((self.lower, numbers))
            is_same = np.diff(numbers[order], prepend=NOWHERE) == 0
            follows = is_same & (np.append(0, self.upper[order[:-1]]) == self.lower[order])
        is_followed = np.append(follows[1:], False)[: len(self)]
        comes, goes = comes[order], goes[order] & ~is_followed
        new_at, before = np.flatnonzero(comes), np.append(NOWHERE, order[:-1])[: len(self)]
        old_at = np.flatnonzero(goes)
        nothing = np.full(len(old_at), NOWHERE)
        pairs = Pairs.taken_from(
            self.rows,
            self.rows,
            np.concatenate([np.where(follows[new_at], before[new_at], NOWHERE), order[old_at]]),
            np.concatenate([order[new_at], nothing]),
        )
        at = np.concatenate([self.lower[order[new_at]], self.upper[order[old_at]]])
        return pairs, at
