"""Bugs in the operators that keep rows until a barrier."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Positions
from spark_upsert.plan import join_keys
from spark_upsert.plan.join_keys import KeyIndex
from spark_upsert.plan.nodes import JoinType
from spark_upsert.task import accumulators, aggregation, hash_join, merge_join
from spark_upsert.task.accumulators import Average, ExactSum, Extreme
from spark_upsert.task.aggregation import HashAggregation, StreamingAggregation
from spark_upsert.task.hash_join import HashJoinRows
from spark_upsert.task.join_output import JoinOutput, Shape, Side
from spark_upsert.task.lookup_join import LookupJoinRows
from spark_upsert.task.merge_join import MergeJoinRows
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_operator_promises as promises
from tests.unit import test_task_aggregation as aggregations
from tests.unit import test_task_joins as joins

JOINS = promises.test_p2_a_join_is_that_of_nested_loops_over_one_set_of_splits
GROUPS = promises.test_p2_groups_are_those_of_a_dictionary_over_one_set_of_splits


class Careless(Side):
    """A side that does not look for nulls in its keys."""

    def has_key(self, rows: pa.RecordBatch) -> None:
        return None


def test_p7_a_batch_of_a_join_is_of_some_bytes() -> None:
    joins.test_wide_rows_come_in_batches_of_some_bytes("hash", "right")
    joins.test_wide_rows_come_in_batches_of_some_bytes("merge", "left")


def test_p2_averages_of_decimals() -> None:
    for answer in aggregations.ANSWERS:
        if answer.words.startswith("an average of decimals"):
            aggregations.test_answers_are_those_of_the_table_of_functions(answer, False)


@bug("wide rows of a join are counted and not weighed", test_p7_a_batch_of_a_join_is_of_some_bytes)
def _() -> Patch:
    return patch.object(JoinOutput, "_count_fitting", lambda self, left, right, room: len(left))


@bug("null joins null", JOINS)
def _() -> Patch:
    def careless(original: Any, *given: Any) -> Shape:
        shape: Shape = original(*given)
        left, right = (Careless(s.schema, s.keys, s.types) for s in (shape.left, shape.right))
        return replace(shape, left=left, right=right)

    return patch.object(hash_join, "Shape", SimpleNamespace(of=partial(careless, Shape.of)))


@bug("what was matched before a barrier is remembered behind it", JOINS)
def _() -> Patch:
    def begin(original: Any, self: MergeJoinRows) -> None:
        matched = getattr(self, "_matched_rows", 0)
        original(self)
        self._matched_rows = matched + 1

    return wrapped(MergeJoinRows, "_reset", begin)


@bug("a merge join takes a key's right rows for whole while more may come", JOINS)
def _() -> Patch:
    def match(original: Any, self: MergeJoinRows) -> Any:
        is_ended, self._right.is_ended = self._right.is_ended, True
        try:
            return original(self)
        finally:
            self._right.is_ended = is_ended

    return wrapped(MergeJoinRows, "_match_both", match)


@bug("right rows that have met their left rows are shown as lone ones, too", JOINS)
def _() -> Patch:
    def forgotten(original: Any, self: MergeJoinRows, *counts: int, matched_rows: int) -> None:
        original(self, *counts, matched_rows=0)

    return wrapped(MergeJoinRows, "_drop_matched", forgotten)


@bug("the last rows of a match are lost where a batch is full", JOINS)
def _() -> Patch:
    def next_(original: Any, self: JoinOutput, rows_max: int, **held: int) -> Any:
        found = original(self, rows_max, **held)
        if found is not None and found.num_rows == rows_max:
            self._given += 1
        return found

    return wrapped(JoinOutput, "next", next_)


@bug("a hash join shows no lone right rows", JOINS)
def _() -> Patch:
    return patch.object(hash_join, "SHOWS_RIGHT_ALONE", frozenset())


@bug("the right side of a hash join outlives its barrier", JOINS)
def _() -> Patch:
    def begin(original: Any, self: HashJoinRows) -> None:
        batches = list(getattr(self, "_seen", []))
        original(self)
        self._batches = batches

    def build(original: Any, self: HashJoinRows) -> Any:
        found = original(self)
        if found is not None:
            self.__dict__["_seen"] = [found.rows] if found.rows.num_rows else []
        return found

    return together(wrapped(HashJoinRows, "_reset", begin), wrapped(HashJoinRows, "_build", build))


@bug("an index looks at one key of a bucket only", JOINS)
def _() -> Patch:
    def find(original: Any, self: KeyIndex, keys: Any) -> Positions:
        buckets = self._buckets
        self._buckets = np.minimum(buckets, np.append(buckets[:1], buckets[:-1] + 1))
        try:
            return np.asarray(original(self, keys))
        finally:
            self._buckets = buckets

    return wrapped(KeyIndex, "find", find)


@bug("keys of one hash are one key", JOINS)
def _() -> Patch:
    def few(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **how) % np.uint64(4) << np.uint64(62)

    return together(
        wrapped(join_keys, "hash_keys", few),
        patch.object(join_keys, "is_injective", lambda types: True),
    )


@bug(
    "what is looked up comes as it is ready",
    promises.test_p2_rows_that_are_looked_up_are_those_of_nested_loops,
)
def _() -> Patch:
    def joined(original: Any, self: LookupJoinRows, batch: Any, looked: Any) -> Any:
        last, self.__dict__["_last"] = self.__dict__.get("_last", looked), looked
        is_alike = (
            looked is not None and last is not None and len(last.starts) == len(looked.starts)
        )
        return original(self, batch, last if is_alike else looked)

    return wrapped(LookupJoinRows, "_join", joined)


@bug(
    "rows without a key have no place in a look-up join",
    promises.test_p2_rows_that_are_looked_up_are_those_of_nested_loops,
)
def _() -> Patch:
    def alone(original: Any, self: Any, batch: pa.RecordBatch) -> Any:
        return original(self, self._side.split(batch)[0])

    return wrapped(LookupJoinRows, "add_input", alone)


@bug("groups go on behind a barrier", GROUPS)
def _() -> Patch:
    def begin(self: HashAggregation) -> None:
        if not self._node.keys and self._groups is None:
            self._groups = self._grouping.empty_state()

    return patch.object(HashAggregation, "_reset", begin)


@bug("the open group is not given at a barrier", GROUPS)
def _() -> Patch:
    return patch.object(StreamingAggregation, "_close_last", lambda self: None)


@bug("a group begins anew with each batch", GROUPS)
def _() -> Patch:
    def add_input(original: Any, self: StreamingAggregation, batch: pa.RecordBatch) -> None:
        self._close_last()
        original(self, batch)

    return wrapped(StreamingAggregation, "add_input", add_input)


@bug("sums are added up in 64 bits", GROUPS)
def _() -> Patch:
    def lowered(original: Any, self: ExactSum, states: list[pa.Array]) -> pa.Array:
        if pa.types.is_decimal(self.of):
            return original(self, states)
        low, high = states
        return pc.add(pc.multiply(high, pa.scalar(1 << 32)), low).cast(self.type)

    return wrapped(ExactSum, "lower", lowered)


@bug("a sum of nulls is zero", GROUPS)
def _() -> Patch:
    return patch.object(
        aggregation, "_OPTIONS", {"sum": pc.ScalarAggregateOptions(skip_nulls=True, min_count=0)}
    )


@bug("an average counts nulls", GROUPS)
def _() -> Patch:
    def lifted(original: Any, self: Average, values: pa.Array) -> list[pa.Array]:
        _, *sums = original(self, values)
        return [pa.array(np.ones(len(values), dtype=np.int64)), *sums]

    return wrapped(Average, "lift", lifted)


@bug("extremes pass over NaN", GROUPS)
def _() -> Patch:
    def lifted(original: Any, self: Extreme, values: pa.Array) -> list[pa.Array]:
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), None, values)
        return original(self, values)

    return wrapped(Extreme, "lift", lifted)


@bug("0.0 and -0.0 are two keys", GROUPS)
def _() -> Patch:
    return patch.object(aggregation, "canonical", lambda column: column)


@bug(
    "groups come in the order in which Arrow has them",
    promises.test_p2_many_groups_keep_their_sums_and_their_order,
)
def _() -> Patch:
    return patch.object(aggregation, "_sort_by_first_row", lambda groups: groups)


@bug("nobody looks whether rows ascend", promises.test_p5_rows_out_of_order_are_refused)
def _() -> Patch:
    return patch.object(merge_join, "first_descent", lambda keys: None)


@bug(
    "no side is ever given up",
    promises.test_p7_a_side_that_is_of_no_use_is_read_no_further,
)
def _() -> Patch:
    return patch.object(merge_join, "side_to_drop", lambda kind, **sides: None)


@bug(
    "a full join gives up its right side",
    promises.test_p7_a_side_that_is_of_no_use_is_read_no_further,
)
def _() -> Patch:
    return patch.object(merge_join, "_DROPS_RIGHT", frozenset(JoinType))


@bug("groups may take all memory", promises.test_p7_what_is_held_has_a_bound)
def _() -> Patch:
    return patch.object(HashAggregation, "_fail_if_over_memory_limit", lambda self: None)


@bug("the right side of a hash join may take all memory", promises.test_p7_what_is_held_has_a_bound)
def _() -> Patch:
    return patch.object(HashJoinRows, "_fail_if_over_memory_limit", lambda self: None)


@bug("the rows of one key may take all memory", promises.test_p7_what_is_held_has_a_bound)
def _() -> Patch:
    return patch.object(MergeJoinRows, "_fail_if_over_memory_limit", lambda self: None)


@bug(
    "states are never folded",
    promises.test_p7_many_rows_of_few_groups_are_few_groups,
)
def _() -> Patch:
    return patch.object(aggregation.GroupComputation, "fold", lambda self, states: states)


@bug("an average of decimals is of a sum of 128 bits", test_p2_averages_of_decimals)
def _() -> Patch:
    def narrow(original: Any, limbs: Any, scale: int, *, mask: Any) -> pa.Array:
        *low, high = limbs
        return original([*low, high.astype(np.int32).astype(np.int64)], scale, mask=mask)

    return wrapped(accumulators, "wide_from_limbs", narrow)


@bug("an average of decimals is cut and not rounded", test_p2_averages_of_decimals)
def _() -> Patch:
    def cut(original: Any, totals: pa.Array, counts: pa.Array, scale: int) -> pa.Array:
        return pc.round(original(totals, counts, scale + 1), scale, "towards_zero")

    return wrapped(accumulators, "averages", cut)
