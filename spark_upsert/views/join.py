"""Joins: rows of two relations put together, by the changes of both.

At least one side is joined on its whole key, so that a change has few partners to be looked for:

- the right side on its key: each left row has at most one partner, which is looked up;
- the left side on its key, the right one not: a left row has many, which are found by an index.

A row without a partner of a left join is an old or a new row like any other. `_joined` is the join
of some left rows with the right side at one position, and all else is made of it: the rows at a
position, the old rows of a step (with the right side before it) and the new ones (behind it).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import PlanError
from spark_upsert.model.arrays import Mask
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.words import is_hashable
from spark_upsert.views.matching import NOWHERE, codes, joinable, matches
from spark_upsert.views.pairs import Pairs, Rows, columns_of, concat, no_rows, taken
from spark_upsert.views.plan import How, Join, Reverse
from spark_upsert.views.relation import (
    At,
    Driving,
    Looked,
    Relation,
    Step,
    aligned,
    among,
    distinct,
    distinct_values,
    matching,
    renamed,
)

_WORTH_SCANNING = 0.9
"""Where each left row has one partner at most. Measured (ADR 35): look-ups cost as much as two
scans where between 7 and 10 in 10 rows changed."""

_WORTH_SCANNING_MANY = 0.5
"""Where it may have many, which are all read anew: as much where 3 to 7 in 10 rows changed."""


_FEW = 2
"""Of a range narrower than a half, an index finds the many partners for less than it costs to read
the right side whole, again for each range. Of 1 million orders of 100 000 customers, all in 2, 4, 8
and 64 ranges: 0.7, 0.7, 0.7 and 1.0 s by the index; 0.6, 0.9, 1.6 and 13 s by reading."""


class JoinRelation:
    """Left rows beside their partners on the right (`Relation`); all but the full join.

    Parameters
    ----------
    node : Join
        Checked already (`joined`).
    left, right : Relation
    """

    def __init__(self, node: Join, left: Relation, right: Relation) -> None:
        assert left.key is not None
        assert right.key is not None
        self.how = node.how
        self._left = left
        self._right = right
        self._on_left = [on.left for on in node.on]
        self._on_right = [on.right for on in node.on]
        self._left_is_whole = set(left.key) <= set(self._on_left)
        self._right_is_whole = set(right.key) <= set(self._on_right)
        self._shown = [name for name in right.schema.names if name not in self._on_right]
        shown = [right.schema.field(name) for name in self._shown]
        self.schema = pa.schema([*left.schema, *(shown if self.how.shows_right else ())])
        self._rest: tuple[str, ...] = ()
        """What of the right key tells the partners of a left row apart."""
        if self.how.shows_right and not self._right_is_whole:
            self._rest = tuple(name for name in right.key if name not in self._on_right)
        self.key = (*left.key, *self._rest)
        self.may_lack_key = left.may_lack_key
        self.dropped = None
        self.driving: Driving = left.driving
        self.paths = (*left.paths, *right.paths)
        own = _WORTH_SCANNING if self._right_is_whole else _WORTH_SCANNING_MANY
        self.worth_scanning = min(own, left.worth_scanning, right.worth_scanning)
        self._is_indexed = node.reverse is Reverse.INDEX
        if self._is_indexed:
            self._require_indexes(node)

    def _require_indexes(self, node: Join) -> None:
        """Raise unless the rows are found that a change of the other side touches."""
        if not self._left_is_whole and self._right.paths:
            self._left.require_findable(self._on_left, node.right.label)
        if not self._right_is_whole and (self._left.paths or self.how is not How.INNER):
            self._right.require_findable(self._on_right, node.left.label)

    def depends_on_one_row(self, path: str) -> bool:
        """Return whether each output row depends on one row of a table.

        A row without a partner, or one that is there because of any of many, depends on all that
        might be its partner.
        """
        if path in self._left.paths and path in self._right.paths:
            return False
        if path in self._left.paths:
            return self._left.depends_on_one_row(path)
        asks_for_any = not self._right_is_whole and self.how is not How.INNER
        return not asks_for_any and self._right.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the left side finds its own, or the right one and then the left."""
        own = [name for name in columns if name in self._left.schema.names]
        if own:
            self._left.require_findable(own, moving)
            return
        self._right.require_findable(columns, moving)
        if not self._left_is_whole:
            self._left.require_findable(self._on_left, moving)

    # -- at a position ---------------------------------------------------------------

    def look_up(self, keys: Rows, at: At) -> Looked:
        """Return the rows of keys (`Relation.look_up`)."""
        assert self._left.key is not None
        own = distinct(keys.select(list(self._left.key)))
        found = self._left.look_up(own, at)
        left = found.rows.filter(pa.array(found.present))
        return aligned(self._joined(left, at), keys)

    def having(self, values: Rows, at: At, hash_range: HashRange = ALL_HASHES) -> Rows:
        """Return the rows with some values (`Relation.having`)."""
        own = [name for name in values.schema.names if name in self._left.schema.names]
        if own:
            left = self._left.having(distinct(values.select(own)), at, hash_range)
        else:
            right = self._right.having(values, at)
            left = self._left.having(self._as_left(right), at, hash_range)
        return matching(self._joined(left, at), values)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> Rows:
        """Return all rows (`Relation.scan`)."""
        left = self._left.scan(at, hash_range)
        if self._right_is_whole or self._has_few(hash_range):
            return self._joined(left, at)
        # One reading of the right side costs less than to find much of it by an index.
        return self._combined(left, self._right.scan(at))

    def _has_few(self, hash_range: HashRange) -> bool:
        """Return whether the partners of a range are so few that an index finds them for less."""
        return self._is_indexed and hash_range.width * _FEW < ALL_HASHES.width

    def _as_left(self, right: Rows) -> Rows:
        """Return the values that join right rows, under the names of the left side."""
        return renamed(right, self._on_right, self._on_left)

    def _as_right(self, left: Rows) -> Rows:
        """Return the values that join left rows, under the names of the right side."""
        return renamed(left, self._on_left, self._on_right)

    def _joined(self, left: Rows, at: At) -> Rows:
        """Return the rows that come of some left rows, with the right side at a position."""
        if not left.num_rows:
            return no_rows(self.schema)
        return self._combined(left, self._right.having(self._as_right(left), at))

    def _combined(self, left: Rows, right: Rows) -> Rows:
        """Join left rows with all their partners, among others perhaps."""
        own, other = columns_of(left, self._on_left), columns_of(right, self._on_right)
        left_codes, right_codes = codes(own, other)
        # NULL joins nothing: such rows get codes that no row of the other side has.
        left_codes = np.where(joinable(own, left.num_rows), left_codes, -1)
        right_codes = np.where(joinable(other, right.num_rows), right_codes, -2)
        if not self.how.shows_right:
            has_partner = np.isin(left_codes, right_codes)
            return left.filter(pa.array(has_partner == (self.how is How.SEMI)))
        left_at, right_at = matches(left_codes, right_codes)
        if self.how is How.LEFT:
            has_partner = np.zeros(left.num_rows, dtype=np.bool_)
            has_partner[left_at] = True
            alone = np.flatnonzero(~has_partner)
            left_at = np.concatenate([left_at, alone])
            right_at = np.concatenate([right_at, np.full(len(alone), NOWHERE)])
        shown = taken(right.select(self._shown), right_at)
        return pa.RecordBatch.from_arrays(
            [*taken(left, left_at).columns, *shown.columns], schema=self.schema
        )

    # -- between positions -----------------------------------------------------------

    def pairs(self, step: Step) -> Pairs:
        """Return what a step changed (`Relation.pairs`)."""
        left, right = self._left.pairs(step), self._right.pairs(step.whole())
        touched = self._touched(left, right, step)
        if self._rest:
            old, new = self._of_many(left, right, touched, step)
        else:
            every = Pairs.concat([left, _unmoved(touched)])
            old, new = self._both_sides(every, right, step)
        return Pairs.aligned(old, new, self.key).without_same_bits()

    def _both_sides(self, left: Pairs, moved: Pairs, step: Step) -> tuple[Rows, Rows]:
        """Return the rows that come of old and of new left rows, each on its side of a step.

        Most left rows keep their partner, and most partners stay as they are: so they are looked
        up once, before the step, and those behind it follow from what the step changed.
        """
        sides = left.old_rows(), left.new_rows()
        before = self._right.having(concat([*map(self._as_right, sides)]), step.before)
        after = before
        if len(moved):
            assert self._right.key is not None
            stayed = before.filter(pa.array(~_with_key_of(before, moved, self._right.key)))
            after = concat([stayed, moved.new_rows()])
        return self._combined(sides[0], before), self._combined(sides[1], after)

    def _touched(self, left: Pairs, right: Pairs, step: Step) -> Rows:
        """Return the left rows that did not change, but have or had a partner that did."""
        assert self._left.key is not None
        moved = [self._as_left(rows) for rows in (right.old_rows(), right.new_rows())]
        values = concat(moved)
        if not values.num_rows:
            return no_rows(self._left.schema)
        rows = self._left.having(values, step.after, step.within)
        return rows.filter(pa.array(~_with_key_of(rows, left, self._left.key)))

    def _of_many(self, left: Pairs, right: Pairs, touched: Rows, step: Step) -> tuple[Rows, Rows]:
        """Return the old and the new rows where a left row has many partners.

        All partners of left rows that changed; of the others only those that changed, and the row
        without a partner, which comes and goes with the last and the first of them.
        """
        sides = []
        wholes = self._both_sides(left, right, step)
        for whole, moved, at in zip(
            wholes,
            (right.old_rows(), right.new_rows()),
            (step.before, step.after),
            strict=True,
        ):
            partly = self._combined(touched, moved)
            if self.how is How.LEFT:
                partly = self._without_wrong_extensions(partly, touched, moved, at)
            sides.append(concat([whole, partly]))
        return sides[0], sides[1]

    def _without_wrong_extensions(self, rows: Rows, touched: Rows, moved: Rows, at: At) -> Rows:
        """Drop the rows of left rows that have no partner among some, but have another one."""
        alone = ~among(touched, self._as_left(moved))
        lonely = touched.filter(pa.array(alone))
        if not lonely.num_rows:
            return rows
        others = self._as_left(self._right.having(self._as_right(lonely), at))
        seemed = distinct(lonely.select(self._on_left))
        wrong = matching(seemed, others)
        return rows.filter(pa.array(~among(rows, wrong)))


class FullJoinRelation:
    """Rows of either side, put together by their whole keys (`Relation`)."""

    def __init__(self, node: Join, left: Relation, right: Relation) -> None:
        [on] = node.on
        self._left = left
        self._right = right
        self._on = on
        self._own = [name for name in left.schema.names if name != on.left]
        self._shown = [name for name in right.schema.names if name != on.right]
        self.schema = pa.schema([*left.schema, *(right.schema.field(name) for name in self._shown)])
        self.key = (on.left,)
        self.may_lack_key = left.may_lack_key or right.may_lack_key
        self.dropped = None
        self.driving: Driving = left.driving._replace(columns=self.key)
        self.paths = (*left.paths, *right.paths)
        self.worth_scanning = min(_WORTH_SCANNING, left.worth_scanning, right.worth_scanning)

    def depends_on_one_row(self, path: str) -> bool:
        """Return whether a row depends on one row of a table, which stands on one side."""
        sides = [side for side in (self._left, self._right) if path in side.paths]
        return len(sides) == 1 and sides[0].depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the side that a column is of finds it."""
        if self._on.left in columns:
            return
        own = [name for name in columns if name in self._own]
        if own:
            self._left.require_findable(own, moving)
        else:
            self._right.require_findable(columns, moving)

    def look_up(self, keys: Rows, at: At) -> Looked:
        """Return the rows of keys (`Relation.look_up`)."""
        left = self._left.look_up(keys, at)
        right = self._right.look_up(renamed(keys, self.key, [self._on.right]), at)
        return self._beside(keys, left, right)

    def having(self, values: Rows, at: At, hash_range: HashRange = ALL_HASHES) -> Rows:
        """Return the rows with some values (`Relation.having`)."""
        names = values.schema.names
        own = [name for name in names if name in self._own]
        if self._on.left in names:
            keys = distinct_values(values.select(list(self.key)))
        elif own:
            keys = self._left.having(distinct(values.select(own)), at).select(list(self.key))
        else:
            keys = renamed(self._right.having(values, at), [self._on.right], self.key)
        keys = keys.filter(pa.array(self.driving.within(keys, hash_range)))
        found = self.look_up(distinct(keys), at)
        return matching(found.rows.filter(pa.array(found.present)), values)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> Rows:
        """Return all rows (`Relation.scan`)."""
        left = self._left.scan(at, hash_range)
        right = self._right.scan(at)
        own = renamed(right, [self._on.right], self.key)
        inside = pa.array(self.driving.within(own, hash_range))
        right, own = right.filter(inside), own.filter(inside)
        keys = distinct(concat([left.select(list(self.key)), own]))
        theirs = renamed(keys, self.key, [self._on.right])
        return self._beside(keys, aligned(left, keys), aligned(right, theirs)).rows

    def pairs(self, step: Step) -> Pairs:
        """Return what a step changed (`Relation.pairs`)."""
        left = self._left.pairs(step).keys(self.key)
        moved = self._right.pairs(step.whole()).keys([self._on.right])
        right = renamed(moved, [self._on.right], self.key)
        right = right.filter(pa.array(self.driving.within(right, step.within)))
        keys = distinct(concat([left, right]))
        old, new = self.look_up(keys, step.before), self.look_up(keys, step.after)
        return Pairs(old.rows, new.rows, old.present, new.present).without_same_bits()

    def _beside(self, keys: Rows, left: Looked, right: Looked) -> Looked:
        """Return the rows of keys of what both sides have of them."""
        present = left.present | right.present
        key = pc.if_else(
            pa.array(left.present),
            left.rows.column(self._on.left),
            right.rows.column(self._on.right),
        )
        arrays = [
            key if name == self._on.left else left.rows.column(name)
            for name in self._left.schema.names
        ]
        arrays += columns_of(right.rows, self._shown)
        return Looked(pa.RecordBatch.from_arrays(arrays, schema=self.schema), present)


def joined(node: Join, left: Relation, right: Relation) -> Relation:
    """Return the relation of a join.

    Raises
    ------
    PlanError
        The sides cannot be joined in this way.
    """
    assert left.key is not None
    assert right.key is not None
    _require_columns(node, left, right)
    left_on, right_on = ({on.left for on in node.on}, {on.right for on in node.on})
    left_is_whole, right_is_whole = set(left.key) <= left_on, set(right.key) <= right_on
    if node.how is How.FULL:
        if not len(left.key) == len(right.key) == len(node.on) == 1 or not (
            left_is_whole and right_is_whole
        ):
            raise PlanError(
                "a full join needs one key column on both sides, as two rows with a NULL in their "
                "keys would share one.",
                hint="use left.",
            )
        if left.may_lack_key and right.may_lack_key:
            [on] = node.on
            raise PlanError(
                f"a full join needs rows that have a key, and both '{on.left}' and '{on.right}' "
                "may be NULL, of the group NULL: NULL joins nothing, so that two rows would share "
                "the key NULL.",
                hint=f'filter one side before: filter("{on.left} IS NOT NULL"); or use left.',
                column=on.left,
            )
    elif not left_is_whole and not right_is_whole:
        raise PlanError(
            f"neither side is joined on its whole key ({node.left.label}: {', '.join(left.key)}; "
            f"{node.right.label}: {', '.join(right.key)}).",
            hint="group one side first.",
        )
    if node.how.shows_right:
        shown = [name for name in right.schema.names if name not in right_on]
        both = next((name for name in shown if name in left.schema.names), None)
        if both is not None:
            raise PlanError(
                f"both sides have '{both}': rename one.",
                hint=f"select it under another name before: select(..., other='{both}').",
                column=both,
            )
    return (FullJoinRelation if node.how is How.FULL else JoinRelation)(node, left, right)


def _require_columns(node: Join, left: Relation, right: Relation) -> None:
    if not node.on:
        raise PlanError("it has no columns to join on.", hint="give on={left: right}.")
    for names in zip(*node.on, strict=True):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PlanError(
                f"'{twice}' is joined with two columns.",
                hint="join it with one of them, and compare both in a filter below or above.",
                column=twice,
            )
    for on in node.on:
        for side, name in ((left, on.left), (right, on.right)):
            if name not in side.schema.names:
                raise PlanError.missing_column(name, side.schema.names)
        one, other = left.schema.field(on.left).type, right.schema.field(on.right).type
        if one != other:
            raise PlanError(
                f"'{on.left}' is joined with '{on.right}', {one} against {other}: cast one.",
                hint=f"select it before as CAST({on.right} AS ...), or store it so.",
                column=on.left,
            )
        if not is_hashable(one):
            raise PlanError(
                f"'{on.left}' is {one}, by which rows cannot be joined.",
                hint="join on numbers, texts or times.",
                column=on.left,
            )


def _unmoved(rows: Rows) -> Pairs:
    present = np.ones(rows.num_rows, dtype=np.bool_)
    return Pairs(rows, rows, present, present)


def _with_key_of(rows: Rows, pairs: Pairs, key: Sequence[str]) -> Mask:
    """Return which rows have the key of a pair; NULL is NULL, as keys identify rows."""
    own, other = codes(columns_of(rows, key), pairs.keys(key).columns)
    return np.isin(own, other)
