"""Bugs in tasks: barriers, drops, recovery, and the logic of expressions."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.plan import expressions, functions, nodes
from spark_upsert.plan.expressions import BoundExpression
from spark_upsert.plan.nodes import Limit
from spark_upsert.task import lifecycle, merge_join, pipelines
from spark_upsert.task import pipelines as choice
from spark_upsert.task import task as tasks
from spark_upsert.task.driver import Driver, Exchange, Union
from spark_upsert.task.join_output import BatchCoalescer
from spark_upsert.task.operator import Signal, Streaming
from spark_upsert.task.sources import ScanFeed
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_task_promises as promises

SETS = promises.test_p2_what_comes_before_a_barrier_is_made_of_the_splits_before_it
LOGIC = promises.test_p2_logic_has_three_values
NAN = promises.test_p2_a_number_that_is_none_equals_itself_and_is_above_all
WRITTEN = promises.test_p2_a_decimal_is_equal_to_the_double_that_is_written_alike
LOOKED_AT = promises.test_p2_what_has_no_value_counts_only_where_it_is_looked_at


ANY_PLAN = promises.test_p2_any_plan_gives_what_plain_python_gives


@bug("a task is at its barrier when one of two producers has drained", ANY_PLAN)
def _() -> Patch:
    def poll(original: Any, self: Exchange, index: int) -> Any:
        found = original(self, index)
        if found is Signal.WAIT and self._drained and index not in self._told:
            self._told.add(index)
            return Signal.DRAINED
        return found

    return wrapped(Exchange, "poll", poll)


@bug("a filter lets pass what is unknown", SETS)
def _() -> Patch:
    def true_rows(self: BoundExpression, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.fill_null(self(batch), True))

    return patch.object(BoundExpression, "true_rows", true_rows)


@bug("a union takes what comes first", promises.test_p2_a_union_goes_in_turn_and_its_numbers_go_on)
def _() -> Patch:
    def poll(self: Union) -> Any:
        for index, feed in enumerate(self._feeds):
            if self._held[index] is Signal.WAIT:
                found = feed.poll()
                if not isinstance(found, Signal):
                    return found
                self._held[index] = found
        if any(each is Signal.WAIT for each in self._held):
            return Signal.WAIT
        return Signal.DRAINED

    return patch.object(Union, "poll", poll)


@bug(
    "an offset counts anew at each barrier", promises.test_p2_a_limit_goes_on_counting_over_barriers
)
def _() -> Patch:
    def anew(original: Any, node: Limit, schema: pa.Schema) -> Streaming:
        made: Streaming = original(node, schema)
        drain = made.start_drain

        def start_drain() -> bool:
            made._function = original(node, schema)._function
            return drain()

        made.start_drain = start_drain  # type: ignore[method-assign]
        return made

    return wrapped(choice, "limit_rows", anew)


@bug("places go on from list to list", promises.test_p2_places_in_lists_begin_anew_in_each)
def _() -> Patch:
    return patch.object(nodes, "_places", lambda lengths: np.arange(lengths.sum()))


DROPPED = promises.test_p2_a_side_that_was_given_up_is_read_again_behind_the_barrier


@bug("a side stays given up behind the barrier", DROPPED)
def _() -> Patch:
    return patch.object(ScanFeed, "pass_barrier", lambda self: None)


@bug("the output before a join is thrown away behind the barrier, too", DROPPED)
def _() -> Patch:
    def pass_barrier(original: Any, self: Driver) -> None:
        kept = self._dropped
        original(self)
        self._dropped = kept

    return wrapped(Driver, "pass_barrier", pass_barrier)


@bug("nobody is told that a side is given up", DROPPED)
def _() -> Patch:
    return patch.object(Driver, "drop_before", lambda self, place: None)


@bug("a limit that was reached ends the rows of all above it", ANY_PLAN)
def _() -> Patch:
    def anew(original: Any, self: Driver, *given: Any, is_top: bool = False) -> None:
        original(self, *given, is_top=True)
        self._stages = [each._replace(is_silent=True) for each in self._stages]

    return wrapped(Driver, "__init__", anew)


@bug("a side that is dropped counts no rows", ANY_PLAN)
def _() -> Patch:
    def stage(original: Any, *given: Any) -> Any:
        return original(*given)._replace(is_counting=False)

    return wrapped(pipelines, "_stage", stage)


@bug("rows without a key come first of their batch", ANY_PLAN)
def _() -> Patch:
    def add(original: Any, self: Any, batch: pa.RecordBatch) -> None:
        original(self, pa.concat_batches(reversed(self.side.split(batch))))

    return wrapped(merge_join._SideBuffer, "add", add)


@bug("a merge join gives batches as its sides come", ANY_PLAN)
def _() -> Patch:
    def take(original: Any, self: BatchCoalescer, joined: Any) -> Any:
        found = original(self, joined)
        return self.flush() if found is None else found

    return wrapped(BatchCoalescer, "add", take)


@bug("what is asked first for look-ups comes first", ANY_PLAN)
def _() -> Patch:
    def run(original: Any, self: Any, tops: Any, **given: Any) -> Any:
        return original(self, tops, **{**given, "is_ordered": False})

    return wrapped(pipelines._Builder, "run", run)


@bug(
    "the split at the mark is read again", promises.test_p4_splits_that_are_done_are_not_read_again
)
def _() -> Patch:
    def step(original: Any, state: Any, event: Any) -> Any:
        if isinstance(event, lifecycle.SetMark):
            event = lifecycle.SetMark(event.leaf, event.sequence - 1)
        return original(state, event)

    return wrapped(tasks, "step", step)


@bug("AND takes the unknown for false", LOGIC)
def _() -> Patch:
    def boolean(original: Any, name: str, value: Any) -> Any:
        return (
            pc.fill_null(original(name, value), False) if name == "AND" else original(name, value)
        )

    return wrapped(expressions, "boolean", boolean)


@bug("what is not in a list with a NULL is false", LOGIC)
def _() -> Patch:
    def is_in(original: Any, self: Any, value: Any, several: Any, batch: pa.RecordBatch) -> Any:
        return pc.fill_null(original(self, value, several, batch), False)

    return wrapped(expressions._Evaluation, "_in", is_in)


@bug("NaN equals nothing", NAN)
def _() -> Patch:
    return patch.dict(functions.FUNCTIONS, {"=": pc.equal})


@bug("NaN is below nothing and above nothing", NAN)
def _() -> Patch:
    return patch.dict(functions.FUNCTIONS, {">": pc.greater})


@bug("a decimal becomes a double by two roundings", WRITTEN)
def _() -> Patch:
    def nearest(original: Any, value: Any, type_: pa.DataType) -> Any:
        is_rounded = pa.types.is_decimal(value.type) and pa.types.is_floating(type_)
        return pc.cast(value, type_, safe=False) if is_rounded else original(value, type_)

    return wrapped(functions, "nearest", nearest)


@bug("all branches are looked at", LOOKED_AT)
def _() -> Patch:
    def where(self: Any, is_open: Any, tree: Any, batch: pa.RecordBatch) -> Any:
        return self._of(tree, batch)

    return patch.object(expressions._Evaluation, "_where", where)
