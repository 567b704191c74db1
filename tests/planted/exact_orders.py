"""Bugs in a stream that reads its inputs in an exact order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.streams.inputs.inputs import NamedInputs, RemovedInput
from spark_upsert.streams.planner import ordered
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_order_promises as order_promises

ANY_CUT = order_promises.test_p4_a_stream_has_the_order_told_row_by_row_wherever_it_stops


def remembered(change: Callable[[ordered.OrderProgress], dict[str, Any]]) -> Patch:
    """Let what a checkpoint has of an exact order be read with a change."""

    def read_back(original: Any, record: Any) -> ordered.OrderProgress:
        found = original(record)
        return replace(found, **change(found))

    return wrapped(ordered.OrderProgress, "from_json", read_back)


@bug("the state of an order is lost where a batch ends", ANY_CUT)
def _() -> Patch:
    def lose(original: Any, order: Any, *of: Any) -> Any:
        return original(order, *of)[0], order

    return wrapped(ordered, "spend", lose)


@bug("rows of an epoch that are delivered come again", ANY_CUT)
def _() -> Patch:
    return remembered(lambda found: {"skip": {}})


@bug("rows of an epoch that are delivered are counted again", ANY_CUT)
def _() -> Patch:
    def count(original: Any, self: ordered._InputSteps, most: int | None) -> int:
        rows: int = original(self, most)
        return rows + self._skip

    return wrapped(ordered._InputSteps, "count", count)


@bug("an input that has more is taken for dry", ANY_CUT)
def _() -> Patch:
    def cut_within(found: ordered.OrderProgress) -> dict[str, Any]:
        return {"ahead": {name: found.ahead[name] for name in found.skip}}

    return remembered(cut_within)


@bug("where all other inputs are dry no draw is counted", ANY_CUT)
def _() -> Patch:
    def spare(original: Any, order: Any, counts: Sequence[int], limit: Any) -> Any:
        given, behind = original(order, counts, limit)
        return given, order if np.count_nonzero(counts) == 1 else behind

    return wrapped(ordered, "spend", spare)


@bug("the numbers of rows begin anew with each batch", ANY_CUT)
def _() -> Patch:
    return remembered(lambda found: {"rows": 0})


@bug(
    "an input is removed in silence",
    order_promises.test_p5_an_input_that_is_named_no_more_is_no_silent_loss,
)
def _() -> Patch:
    return patch.object(NamedInputs, "_require", lambda self, names: None)


@bug(
    "counted rows of an input that was removed are left out",
    order_promises.test_p5_rows_that_an_exact_order_has_counted_do_not_go_with_their_input,
)
def _() -> Patch:
    return patch.object(RemovedInput, "steps", lambda self, start, end: iter(()))


OTHER_OPTIONS = (
    order_promises.test_p1_other_options_do_not_pass_rows_by_that_an_exact_order_has_counted
)


@bug("rows that were counted by other options are passed by", OTHER_OPTIONS)
def _() -> Patch:
    return patch.object(ordered, "require_same_row_options", lambda before, now: None)


@bug("inputs in another order go on in that", OTHER_OPTIONS)
def _() -> Patch:
    return patch.object(ordered, "_require_order_of", lambda before, after: None)
