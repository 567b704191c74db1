"""Bugs in views: at which position rows are computed, which are looked at, and what joins what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.plan import join_keys
from spark_upsert.plan.nodes import Join, JoinType, Scan
from spark_upsert.streams.inputs import view as view_input
from spark_upsert.views import join, plan_builder, relation, rowwise, view
from spark_upsert.views.intervals import Pairs, Spans, Times
from spark_upsert.views.join import JoinRelation
from spark_upsert.views.relation import Step, concat_pieces
from spark_upsert.views.rowwise import UnnestRelation
from spark_upsert.views.scan import ScanRelation, TableBase
from tests.planted.bug import Patch, bug, together, wrapped
from tests.planted.look_ups import with_what_is_gone
from tests.promises import test_view_promises as promises
from tests.support.view_cases import between
from tests.support.view_plays import P, plan_of
from tests.unit import test_view_bounds as bounds
from tests.unit import test_views as cases

FOLDED = promises.test_p2_folded_changes_of_a_view_are_the_batch_query
REAL = promises.test_p2_folded_changes_of_a_view_of_real_tables_are_the_batch_query


def test_p1_a_view_begins_where_it_is_told() -> None:
    with TemporaryDirectory() as folder:
        table = bounds.table_at(Path(folder) / "table", first_write=True)
        bounds.test_the_changes_of_a_view_of_one_table_are_those_of_the_table(table, 0)


def test_p2_the_cases_of_many_partners() -> None:
    for case in between(25, 26):
        cases.test_a_case_gives_what_it_says(case, "dictionaries")


BOUNDS = test_p1_a_view_begins_where_it_is_told
MANY = test_p2_the_cases_of_many_partners


@bug("rows that stayed are looked up behind a step, and those that moved are not", FOLDED)
def _() -> Patch:
    def unmoved(original: Any, self: Any, left: Any, moved: Spans, step: Step) -> Any:
        for rows in self._unchanged_partners(left, Spans.empty(moved.rows.schema), step):
            yield Spans.always_present(rows, step.last_time)

    return wrapped(JoinRelation, "_partners", unmoved)


@bug("a partner that changed stands beside itself", FOLDED)
def _() -> Patch:
    def beside(original: Any, self: Any, left: Any, moved: Spans, step: Step) -> Any:
        return original(self, left, Spans.empty(moved.rows.schema), step)

    return wrapped(JoinRelation, "_unchanged_partners", beside)


@bug("rows are joined that are never there at one time", FOLDED)
def _() -> Patch:
    def always(original: Any, self: Spans, other: Spans, *at: Any) -> Any:
        return original(
            self, replace(other, lower=0 * other.lower, upper=0 * other.upper + 99), *at
        )

    return wrapped(Spans, "intersect", always)


@bug("a left row is alone only if it never had a partner", FOLDED)
def _() -> Patch:
    nothing = np.empty(0, dtype=np.int64)
    return patch.object(Spans, "_inner_gaps", lambda *_: Times(nothing, nothing, nothing))


@bug("a key that goes and comes back in one step was there throughout", FOLDED)
def _() -> Patch:
    def without_gaps(original: Any, pairs: Pairs, at: Any, *told: Any) -> Any:
        comes_back = pairs.has_new | (at == at.max(initial=0))
        return original(pairs.filter(comes_back), at[comes_back], *told)

    return wrapped(Spans, "from_changes", without_gaps)


@bug("a change is told at the time before it", FOLDED)
def _() -> Patch:
    def early(original: Any, self: Spans, key: Any, times: int) -> Any:
        pairs, at = original(self, key, times)
        return pairs, np.maximum(at - 1, 1)

    return wrapped(Spans, "changes", early)


@bug("of a full join the rows of the right side are there at all times", FOLDED)
def _() -> Patch:
    def throughout(original: Any, spans: Spans, side: Any, keys: Any, step: Step) -> Any:
        found: Spans = original(spans, side, keys, step)
        if side.driving.columns == keys.schema.names:
            return found
        return Spans.always_present(found.rows, step.last_time)

    return wrapped(join, "_add_unchanged", throughout)


@bug("a left join gives no rows without a partner", FOLDED)
def _() -> Patch:
    def inner(original: Any, self: Any, left: Any, right: Any) -> Any:
        how = JoinType.INNER if self.how is JoinType.LEFT else self.how
        with patch.object(self, "how", how):
            yield from original(self, left, right)

    return wrapped(JoinRelation, "_join_spans", inner)


@bug("a row without a partner stays where another partner is left", MANY)
def _() -> Patch:
    def lonely(original: Any, self: Any, touched: Any, right: Spans, step: Step) -> Any:
        with patch.object(self, "_unchanged_partners", lambda *_: iter([])):
            return original(self, touched, right, step)

    return wrapped(JoinRelation, "_join_touched", lonely)


@bug("a change of the right side reaches nobody", FOLDED)
def _() -> Patch:
    return patch.object(JoinRelation, "_touched", lambda self, *given: iter([]))


@bug("only what the right side has now is looked at, and not what it had", FOLDED)
def _() -> Patch:
    def new_only(original: Any, self: Any, left: Any, right: Spans, step: Step) -> Any:
        return original(self, left, right.filter(right.upper > step.last_time), step)

    return wrapped(JoinRelation, "_touched", new_only)


@bug("what the index names is believed, without a bridge", FOLDED)
def _() -> Patch:
    def unbridged(original: Any, self: Any, pieces: Any, shows: Any, *asked: Any) -> Any:
        return original(self, pieces, None, None, asked[-1])

    return wrapped(ScanRelation, "_iter_index_keys", unbridged)


@bug("NULL joins NULL", FOLDED)
def _() -> Patch:
    def everything(columns: Any) -> None:
        return None

    return together(
        patch.object(join_keys, "joinable", everything),
        patch.object(relation, "joinable", everything),
    )


@bug("what is unknown passes a filter", FOLDED)
def _() -> Patch:
    def unknown(original: Any, values: Any) -> Any:
        return original(values.fill_null(True))

    return wrapped(rowwise, "is_true", unknown)


@bug("a step is cut by the hash of a table on which rows depend in two ways", FOLDED)
def _() -> Patch:
    return patch.object(JoinRelation, "depends_on_one_row", lambda self, path: True)


@bug("a cut of a step takes a range of every table", FOLDED)
def _() -> Patch:
    return patch.object(Step, "unrestricted", lambda self: self)


@bug("rows that the other side touches are in each cut of a step", FOLDED)
def _() -> Patch:
    def everywhere(original: Any, self: Any, values: Any, at: Any, hash_range: Any = None) -> Any:
        return original(self, values, at)

    return wrapped(ScanRelation, "find_matching", everywhere)


@bug("rows that are gone are not seen by comparing snapshots", FOLDED)
def _() -> Patch:
    def of_new(original: Any, own: Any, step: Step, hash_range: Any) -> Any:
        for pairs in original(own, step, hash_range):
            yield pairs.filter(pairs.has_new)

    return wrapped(view, "_compare_snapshots", of_new)


@bug("who begins before the first write of a table gets what came behind it", BOUNDS)
def _() -> Patch:
    def without_rows(original: Any, *args: Any) -> Any:
        start = original(*args)
        return start and start._replace(has_rows=False)

    return wrapped(view_input, "starting_position", without_rows)


@bug("a join that finds its partners by an index gives lone rows for those of others", FOLDED)
def _() -> Patch:
    def narrow(original: Any, self: Any, at: Any, hash_range: Any = ALL_HASHES) -> Any:
        if hash_range == ALL_HASHES or self._right_is_whole:
            return original(self, at, hash_range)
        sides = self._left.scan(at, hash_range), [self._right.scan(at, hash_range)]
        return concat_pieces(self._join_rows(*sides), self.schema)

    return wrapped(JoinRelation, "scan", narrow)


@bug("of a list only the first element counts", FOLDED)
def _() -> Patch:
    def first(original: Any, self: Any, rows: Any) -> Any:
        found = original(self, rows)
        return found.filter(pc.equal(found.column("pos"), 0))

    return wrapped(UnnestRelation, "_explode", first)


@bug("changes of several epochs are those of the last one", REAL)
def _() -> Patch:
    def last(original: Any, self: Any, before: Any, after: Any, *how: Any, **kind: Any) -> Any:
        return original(self, after - 1, after, *how, **kind)

    return wrapped(TableBase, "changes", last)


@bug("rows that were deleted are found by their keys", REAL)
def _() -> Patch:
    return with_what_is_gone()


@bug("a column that only a condition reads is left out", REAL)
def _() -> Patch:
    return patch.object(plan_builder, "_used_columns", lambda formulas: frozenset())


def test_p2_a_plan_names_what_a_join_compares() -> None:
    joined = P(plan_of('O.join(C,"c=id","left")')).project("id", "n")
    names = [
        scan.schema.names
        for scan in plan_builder.prune_columns(joined.node).walk()
        if isinstance(scan, Scan)
    ]
    assert names == [["id", "c"], ["id", "n"]]


@bug("the columns that a join compares are left out", test_p2_a_plan_names_what_a_join_compares)
def _() -> Patch:
    def as_wanted(original: Any, node: Any, wanted: Any = None) -> Any:
        if isinstance(node, Join):
            left, right = (plan_builder.prune_columns(side, wanted) for side in node.inputs)
            return replace(node, left=left, right=right)
        return original(node, wanted)

    return wrapped(plan_builder, "prune_columns", as_wanted)
