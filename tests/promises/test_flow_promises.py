"""P6 for flows: whatever shares an element or a task, the same rows come to the sinks."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Legacy,
    PythonFunction,
    expanded,
    fused,
)
from spark_upsert.flow.local import collect
from spark_upsert.task import Aggregate, ArrowScan, Group
from tests.support.flow_recipes import check_rows_of_fusions, drawn
from tests.support.flow_runs import ROWS, by_stages, rows_of

COUNT = pa.schema({"n": pa.int64()})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sweep(1)
def test_p6_every_fusion_gives_the_rows_of_width_one(seed: int) -> None:
    draw = random.Random(seed)
    check_rows_of_fusions(drawn(draw, steps_max=4), 17, draw)


@pytest.mark.parametrize("other", [False, True])
def test_p6_a_sum_over_nothing_is_a_row(other: bool) -> None:
    flow = Flow()
    rows = flow.source("rows", ArrowSource(rows_of(0)))
    total = Group(
        id="total",
        input=ArrowScan(id="input", schema=ROWS),
        aggregates=(Aggregate.of("n", "count"),),
    )
    if other:
        with flow.parallel("before", 2):
            rows = flow.operator("same", PythonFunction(iter, ROWS), rows)
    with flow.parallel("wide", 3):
        rows = flow.operator("total", total, rows)
        rows = flow.operator("again", PythonFunction(iter, COUNT), rows)
    flow.sink("kept", CollectSink(), rows)
    plan = fused(expanded(flow.graph()), Legacy())
    for found in (
        collect(plan),
        by_stages(plan, {"rows": rows_of(0)}),
        # As in a union of frames, and as where one task has the rows of all.
        by_stages(plan, {"rows": rows_of(0)}, numbered=lambda number: number + 2, is_woken=True),
        by_stages(plan, {"rows": rows_of(0)}, numbered=lambda _: 0, is_woken=True),
    ):
        assert found["kept"]["n"].to_pylist() == [0, 0, 0]
