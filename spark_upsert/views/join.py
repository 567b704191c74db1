"""Joins over two relations (`make_join`), maintained from both sides' changes.

At least one side joins on its complete key: a change has few partners to look up. Both derive from
joining left rows with the right side at one position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Positions, is_hashable
from spark_upsert.core.names import has_column
from spark_upsert.errors import PlanError
from spark_upsert.plan.join_keys import (
    NOWHERE,
    cast_rows,
    common_type,
    empty_batch,
    join_codes,
    matches,
    to_common_types,
)
from spark_upsert.plan.nodes import Join, JoinType, Reverse
from spark_upsert.views.intervals import (
    RelationRows,
    Spans,
    Times,
    concat,
    select_columns,
    take_rows,
)
from spark_upsert.views.relation import (
    At,
    Driving,
    LookedUpRows,
    Relation,
    Source,
    Step,
    align_rows,
    concat_pieces,
    distinct_rows,
    distinct_values,
    filter_matching,
    key_match_mask,
    match_mask,
    rename_columns,
)

_WORTH_SCANNING = 0.9
"""Changed row share above which scans pay, if each left row has at most one partner. Measured
(ADR 35): look-ups cost as much as two scans when between 7 and 10 in 10 rows changed.
"""

_WORTH_SCANNING_MANY = 0.5
"""The same share if a left row may have many partners, which are all read again. Look-ups cost
the same when 3 to 7 in 10 rows changed.
"""


_FEW = 2
"""Divisor for the hash range: below half of all hashes, an index finds the many partners more
cheaply than a full read of the right side per range. Measured with 1 million orders by
100 000 customers, all in 2, 4, 8 and 64 ranges: 0.7, 0.7, 0.7 and 1.0 s by the index; 0.6, 0.9, 1.6
and 13 s by reading.
"""


class JoinRelation:
    """Left rows with their right partners (`Relation`); all joins except the full join.

    Parameters
    ----------
    node : Join
        Already validated (`make_join`).
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
        """Right key columns distinguishing a left row's partners."""
        if self.how.shows_right and not self._right_is_whole:
            self._rest = tuple(name for name in right.key if name not in self._on_right)
        self.key = (*left.key, *self._rest)
        self.may_lack_key = left.may_lack_key
        self.dropped = None
        self.sources = left.sources
        if self.how.shows_right:
            self.sources += _right_sources(right, self._shown, node)
        self.driving: Driving = left.driving
        self.paths = (*left.paths, *right.paths)
        self.formulas = (*left.formulas, *right.formulas)
        worth_scanning = _WORTH_SCANNING if self._right_is_whole else _WORTH_SCANNING_MANY
        self.worth_scanning = min(worth_scanning, left.worth_scanning, right.worth_scanning)
        self._is_indexed = node.reverse is Reverse.INDEX
        if self._is_indexed:
            self._require_indexes(node)

    def _require_indexes(self, node: Join) -> None:
        """Raise unless the rows affected by the other side's changes can be found."""
        if not self._left_is_whole and self._right.paths:
            self._left.require_findable(self._on_left, node.right.label)
        if not self._right_is_whole and (self._left.paths or self.how is not JoinType.INNER):
            self._right.require_findable(self._on_right, node.left.label)

    def depends_on_one_row(self, path: str) -> bool:
        """Return whether each output row depends on a single table row.

        A row without a partner, or one that exists because of any of many, depends on all
        possible partners.
        """
        if path in self._left.paths and path in self._right.paths:
            return False
        if path in self._left.paths:
            return self._left.depends_on_one_row(path)
        asks_for_any = not self._right_is_whole and self.how is not JoinType.INNER
        return not asks_for_any and self._right.depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the left side finds its own rows, or the right side's lead to them."""
        left_names = [name for name in columns if has_column(self._left.schema, name)]
        if left_names:
            self._left.require_findable(left_names, moving)
            return
        self._right.require_findable(columns, moving)
        if not self._left_is_whole:
            self._left.require_findable(self._on_left, moving)

    # -- at a position ---------------------------------------------------------------

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for keys (`Relation.look_up`)."""
        assert self._left.key is not None
        left_keys = distinct_rows(keys.select(list(self._left.key)))
        left_matches = self._left.look_up(left_keys, at)
        left = left_matches.rows.filter(pa.array(left_matches.present))
        return align_rows(concat([empty_batch(self.schema), *self._join_right(left, at)]), keys)

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.find_matching`)."""
        left_names = [name for name in values.schema.names if has_column(self._left.schema, name)]
        if left_names:
            left_values = distinct_rows(values.select(left_names))
        else:
            left_values = self._as_left(
                concat_pieces(self._right.find_matching(values, at), self._right.schema)
            )
        for left in self._left.find_matching(left_values, at, hash_range):
            for rows in self._join_right(left, at):
                yield filter_matching(rows, values)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        left = self._left.scan(at, hash_range)
        if self._right_is_whole or self._has_few_partners(hash_range):
            return concat_pieces(self._join_right(left, at), self.schema)
        # One reading of the right side costs less than to find much of it by an index.
        return concat_pieces(self._join_rows(left, [self._right.scan(at)]), self.schema)

    def _has_few_partners(self, hash_range: HashRange) -> bool:
        """Return whether a range has so few partners that an index look-up is cheaper."""
        return self._is_indexed and hash_range.width * _FEW < ALL_HASHES.width

    def _as_left(self, right: RelationRows) -> RelationRows:
        """Return the right rows' join values, with the left side's names and types."""
        return cast_rows(rename_columns(right, self._on_right, self._on_left), self._left.schema)

    def _as_right(self, left: RelationRows) -> RelationRows:
        """Return the left rows' join values, with the right side's names and types."""
        return cast_rows(rename_columns(left, self._on_left, self._on_right), self._right.schema)

    def _join_right(self, left: RelationRows, at: At) -> Iterator[RelationRows]:
        """Yield the join of left rows with the right side at a position."""
        if left.num_rows:
            yield from self._join_rows(left, self._right.find_matching(self._as_right(left), at))

    def _join_rows(
        self, left: RelationRows, right: Iterable[RelationRows]
    ) -> Iterator[RelationRows]:
        """Join left rows with all their partners, among others perhaps."""
        partners = (Spans.always_present(rows, 0) for rows in right)
        return (spans.rows for spans in self._join_spans(Spans.always_present(left, 0), partners))

    def _join_spans(self, left: Spans, partners: Iterable[Spans]) -> Iterator[Spans]:
        """Join left rows with all their partners, possibly among others, while both exist.

        It holds one partner piece at a time, and earlier ones only while they cover a left
        row. If a left row has one partner at a time, its complete output is in one piece.
        """
        covered, pieces = _NEVER, []
        for right in partners:
            times, right_at = self._overlaps(left, right)
            if self.how is not JoinType.INNER:
                both = Times(*map(np.append, covered, times))
                covered = left.gaps(left.gaps(both))
            if self._rest:
                yield self._combine_columns(left, right, times, right_at)
            elif self.how.shows_right:
                pieces.append(self._combine_columns(left, right, times, right_at))
        if self.how is JoinType.SEMI:
            pieces.append(left.repeat_at(covered))
        elif self.how is JoinType.ANTI:
            pieces.append(left.repeat_at(left.gaps(covered)))
        elif self.how is JoinType.LEFT:
            pieces.append(self._unmatched(left, left.gaps(covered)))
        if pieces:
            yield Spans.concat(pieces)

    def _overlaps(self, left: Spans, right: Spans) -> tuple[Times, Positions]:
        """Return the intervals in which left rows overlap partners, and the partners' positions."""
        left_columns, right_columns = (
            select_columns(left.rows, self._on_left),
            select_columns(right.rows, self._on_right),
        )
        left_codes, right_codes = join_codes(*to_common_types(left_columns, right_columns))
        if not self.how.shows_right:  # Whether there is any: of those alike one is enough.
            right, right_codes = _deduplicate(right, right_codes)
        return left.intersect(right, *matches(left_codes, right_codes))

    def _combine_columns(
        self, left: Spans, right: Spans, times: Times, right_at: Positions
    ) -> Spans:
        """Return left rows joined with right ones."""
        shown = take_rows(right.rows.select(self._shown), right_at)
        rows = pa.RecordBatch.from_arrays(
            [*take_rows(left.rows, times.at).columns, *shown.columns], schema=self.schema
        )
        return Spans(rows, times.lower, times.upper)

    def _unmatched(self, left: Spans, times: Times) -> Spans:
        """Return left rows without a partner at some times."""
        nobody = Spans.empty(self._right.schema)
        return self._combine_columns(left, nobody, times, np.full(len(times.at), NOWHERE))

    # -- between positions -----------------------------------------------------------

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows for keys touched by a step (`Relation.spans`)."""
        right = Spans.concat_pieces(self._right.spans(step.unrestricted()), self._right.schema)
        changed: list[RelationRows] = []
        for left in self._left.spans(step):
            if len(right):
                assert self._left.key is not None
                changed.append(left.rows.select(list(self._left.key)))
            yield from self._join_spans(left, self._partners(left.rows, right, step))
        for rows in self._touched(changed, right, step):
            touched = Spans.always_present(rows, step.last_time)
            if self._rest:
                yield self._join_touched(touched, right, step)
            else:
                yield from self._join_spans(touched, self._partners(rows, right, step))

    def _touched(
        self, changed: Sequence[RelationRows], right: Spans, step: Step
    ) -> Iterator[RelationRows]:
        """Yield unchanged left rows with a changed partner, present or past."""
        if not len(right):
            return
        assert self._left.key is not None
        changed_rows = concat(changed) if changed else None
        for rows in self._left.find_matching(self._as_left(right.rows), step.after, step.within):
            if changed_rows is None:
                yield rows
            else:
                yield rows.filter(pa.array(~key_match_mask(rows, changed_rows, self._left.key)))

    def _partners(self, left: RelationRows, moved: Spans, step: Step) -> Iterator[Spans]:
        """Yield all possible right partners for the left rows at any time in a step.

        Most partners do not change: they are looked up once, before the step, and the others are
        those touched by the step.
        """
        yield moved
        for rows in self._unchanged_partners(left, moved, step):
            yield Spans.always_present(rows, step.last_time)

    def _unchanged_partners(
        self, left: RelationRows, moved: Spans, step: Step
    ) -> Iterator[RelationRows]:
        """Yield the right rows joining some left rows and untouched by a step."""
        assert self._right.key is not None
        for rows in self._right.find_matching(self._as_right(left), step.before):
            yield rows.filter(pa.array(~key_match_mask(rows, moved.rows, self._right.key)))

    def _join_touched(self, touched: Spans, right: Spans, step: Step) -> Spans:
        """Return the output for left rows with many partners, some of which changed.

        It includes only those partners, and the row without a partner, which depends on the last
        and the first of all: if the changed ones leave a gap, another one may exist throughout.
        """
        times, right_at = self._overlaps(touched, right)
        partners = self._combine_columns(touched, right, times, right_at)
        if self.how is not JoinType.LEFT:
            return partners
        alone = touched.gaps(times)
        for others in self._unchanged_partners(
            take_rows(touched.rows, np.unique(alone.at)), right, step
        ):
            has_other = match_mask(touched.rows, distinct_values(self._as_left(others)))[alone.at]
            alone = Times(*(interval_rows[~has_other] for interval_rows in alone))
        return Spans.concat([partners, self._unmatched(touched, alone)])


class FullJoinRelation:
    """Rows from either side, joined on their complete keys (`Relation`)."""

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
        self.sources = (*left.sources, *_right_sources(right, self._shown, node))
        self.driving: Driving = left.driving._replace(columns=self.key)
        self.paths = (*left.paths, *right.paths)
        self.formulas = (*left.formulas, *right.formulas)
        self.worth_scanning = min(_WORTH_SCANNING, left.worth_scanning, right.worth_scanning)

    def depends_on_one_row(self, path: str) -> bool:
        """Return whether a row depends on a single row of a table on one side only."""
        sides = [side for side in (self._left, self._right) if path in side.paths]
        return len(sides) == 1 and sides[0].depends_on_one_row(path)

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the side with a column can find its rows."""
        if self._on.left in columns:
            return
        left_names = [name for name in columns if name in self._own]
        if left_names:
            self._left.require_findable(left_names, moving)
        else:
            self._right.require_findable(columns, moving)

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for keys (`Relation.look_up`)."""
        left = self._left.look_up(keys, at)
        right = self._right.look_up(self._as_right(keys), at)
        return self._merge_sides(left, right)

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.find_matching`)."""
        for keys in self._keys_having(values, at):
            inside = keys.filter(pa.array(self.driving.range_mask(keys, hash_range)))
            looked_up = self.look_up(distinct_rows(inside), at)
            yield filter_matching(looked_up.rows.filter(pa.array(looked_up.present)), values)

    def _keys_having(self, values: RelationRows, at: At) -> Iterator[RelationRows]:
        """Yield distinct keys, including at least those of the rows with given values."""
        names = values.schema.names
        left_names = [name for name in names if name in self._own]
        if self._on.left in names:
            yield distinct_values(values.select(list(self.key)))
        elif left_names:
            for rows in self._left.find_matching(distinct_rows(values.select(left_names)), at):
                yield rows.select(list(self.key))
        else:
            for rows in self._right.find_matching(values, at):
                yield self._as_left(rows)

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        left = self._left.scan(at, hash_range)
        right = self._right.scan(at)
        left_rows = self._as_left(right)
        inside = pa.array(self.driving.range_mask(left_rows, hash_range))
        right, left_rows = right.filter(inside), left_rows.filter(inside)
        keys = distinct_rows(concat([left.select(list(self.key)), left_rows]))
        return self._merge_sides(
            align_rows(left, keys), align_rows(right, self._as_right(keys))
        ).rows

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows for keys touched by a step (`Relation.spans`)."""
        right = Spans.concat_pieces(self._right.spans(step.unrestricted()), self._right.schema)
        right = right.filter(self.driving.range_mask(self._as_left(right.rows), step.within))
        assert self._right.key is not None
        for left in self._left.spans(step):
            keys = distinct_rows(left.rows.select(list(self.key)))
            right_keys = key_match_mask(right.rows, self._as_right(keys), [self._on.right])
            yield self._join_touched(left, right.filter(right_keys), keys, step)
            right = right.filter(~right_keys)
        keys = distinct_rows(self._as_left(right.rows))
        yield self._join_touched(Spans.empty(self._left.schema), right, keys, step)

    def _join_touched(self, left: Spans, right: Spans, keys: RelationRows, step: Step) -> Spans:
        """Return the joined rows for keys, given each side's rows touched by the step."""
        left = _add_unchanged(left, self._left, keys, step)
        right = _add_unchanged(right, self._right, self._as_right(keys), step)
        sides = left.rows.select(list(self.key)), self._as_left(right.rows)
        at, right_at = matches(*join_codes(*(side.columns for side in sides)))
        both, right_at = left.intersect(right, at, right_at)
        times = Times(right_at, both.lower, both.upper)
        alone = left.gaps(both), right.gaps(times)
        nowhere = [np.full(len(unmatched.at), NOWHERE) for unmatched in alone]
        looked = [
            LookedUpRows(take_rows(spans.rows, row_indices), row_indices != NOWHERE)
            for spans, row_indices in (
                (left, np.concatenate([both.at, alone[0].at, nowhere[1]])),
                (right, np.concatenate([right_at, nowhere[0], alone[1].at])),
            )
        ]
        lower, upper = (
            np.concatenate([getattr(matched, name) for matched in (both, *alone)])
            for name in ("lower", "upper")
        )
        return Spans(self._merge_sides(*looked).rows, lower, upper)

    def _as_left(self, right: RelationRows) -> RelationRows:
        """Return the right rows' keys, renamed to the left side's."""
        return rename_columns(right, [self._on.right], self.key)

    def _as_right(self, keys: RelationRows) -> RelationRows:
        """Return keys, renamed to the right side's."""
        return rename_columns(keys, self.key, [self._on.right])

    def _merge_sides(self, left: LookedUpRows, right: LookedUpRows) -> LookedUpRows:
        """Return the joined rows from both sides' rows with the same keys."""
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
        arrays += select_columns(right.rows, self._shown)
        return LookedUpRows(pa.RecordBatch.from_arrays(arrays, schema=self.schema), present)


def make_join(node: Join, left: Relation, right: Relation) -> Relation:
    """Return a join's relation."""
    assert left.key is not None
    assert right.key is not None
    if node.how is JoinType.RIGHT:
        raise PlanError("a view has no right join.", hint="swap the sides.")
    _require_columns(node, left, right)
    left_on, right_on = ({on.left for on in node.on}, {on.right for on in node.on})
    left_is_whole, right_is_whole = set(left.key) <= left_on, set(right.key) <= right_on
    if node.how is JoinType.FULL:
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
        both = next((name for name in shown if has_column(left.schema, name)), None)
        if both is not None:
            raise PlanError(
                f"both sides have '{both}': rename one.",
                hint=f"select it under another name before: select(..., other='{both}').",
                column=both,
            )
    return (FullJoinRelation if node.how is JoinType.FULL else JoinRelation)(node, left, right)


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
            if not has_column(side.schema, name):
                raise PlanError.missing_column(name, side.schema.names)
        one, right_type = left.schema.field(on.left).type, right.schema.field(on.right).type
        may_differ = node.how is not JoinType.FULL and common_type(one, right_type) is not None
        if one != right_type and not may_differ:
            sides = ((right, on.right), (left, on.left))
            free = next((name for side, name in sides if name not in (side.key or ())), None)
            raise PlanError(
                f"'{on.left}' is joined with '{on.right}', {one} against {right_type}: cast one.",
                hint="store it so: keys are not cast."
                if free is None
                else f"select it before as CAST({free} AS ...), and join with reverse='scan'; or "
                "store it so.",
                column=on.left,
            )
        if not is_hashable(one):
            raise PlanError(
                f"'{on.left}' is {one}, by which rows cannot be joined.",
                hint="join on numbers, texts or times.",
                column=on.left,
            )


def _right_sources(right: Relation, shown: Sequence[str], node: Join) -> tuple[Source, ...]:
    """Return the right side's sources, with a join's column names."""
    names = {on.right: on.left for on in node.on} | {name: name for name in shown}
    return tuple(
        renamed_source for source in right.sources for renamed_source in source.rename(names)
    )


def _add_unchanged(spans: Spans, relation: Relation, keys: RelationRows, step: Step) -> Spans:
    """Return spans extended by the rows for further keys, which a step did not touch."""
    stored_rows = relation.look_up(keys, step.before)
    assert relation.key is not None
    stayed = stored_rows.present & ~key_match_mask(keys, spans.rows, keys.schema.names)
    rows = stored_rows.rows.filter(pa.array(stayed))
    return Spans.concat([spans, Spans.always_present(rows, step.last_time)])


def _deduplicate(spans: Spans, numbers: Positions) -> tuple[Spans, Positions]:
    """Deduplicate spans with equal numbers and times; return them and their numbers."""
    width = int(spans.upper.max(initial=0)) + 1
    _, first = np.unique((numbers * width + spans.lower) * width + spans.upper, return_index=True)
    return Spans(take_rows(spans.rows, first), spans.lower[first], spans.upper[first]), numbers[
        first
    ]


_NEVER = Times(*3 * (np.empty(0, dtype=np.int64),))
"""Empty intervals."""
