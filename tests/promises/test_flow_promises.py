"""P6 for flows: whatever shares an element or a task, the same rows come to the sinks."""

from __future__ import annotations

import random

import pytest

from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    Collected,
    Flow,
    Influence,
    Legacy,
    Manual,
    expanded,
    fused,
)
from spark_upsert.flow.local import collect
from spark_upsert.task import Aggregate, Aggregation, ArrowScan
from tests.support.flow_runs import (
    ROWS,
    Step,
    by_stages,
    graph_of,
    model_of,
    rows_of,
    sorted_rows,
)


def drawn(seed: int) -> tuple[list[Step], random.Random]:
    draw = random.Random(seed)
    steps: list[Step] = []
    for index in range(4):
        feeds = tuple(sorted({draw.randrange(-1, index) for _ in range(2)}))
        work = draw.choice(["plus", "evens", "some", "sums"])
        is_by_key = work == "sums" or draw.random() < 0.5
        steps.append(Step(work, feeds, draw.randint(1, 3), draw.randint(0, 2), is_by_key))
    return steps, draw


@pytest.mark.parametrize("seed", range(3))
def test_p6_every_fusion_gives_the_rows_of_width_one(seed: int) -> None:
    steps, draw = drawn(seed)
    source = ArrowSource(rows_of(17))
    expected = model_of(steps, source.rows)
    physical = expanded(graph_of(steps, source, is_wide=True))
    schemes = (Legacy(), Manual(draw.randint(1, 6)), Automatic(slots=2))
    for scheme in schemes:
        plan = fused(physical, scheme, draw.choice(list(Influence)))
        for found in (collect(plan), by_stages(plan, {"rows": source.rows})):
            assert {sink: sorted_rows(table) for sink, table in found.items()} == expected


def test_p6_a_sum_over_nothing_is_a_row() -> None:
    flow = Flow()
    rows = flow.source("rows", ArrowSource(rows_of(0)))
    total = Aggregation(
        id="total",
        input=ArrowScan(id="input", schema=ROWS),
        aggregates=(Aggregate("n", "count"),),
    )
    with flow.parallel("wide", 3):
        rows = flow.operator("total", total, rows)
    flow.sink("kept", Collected(), rows)
    plan = fused(expanded(flow.graph()), Legacy())
    for found in (collect(plan), by_stages(plan, {"rows": rows_of(0)})):
        assert found["kept"]["n"].to_pylist() == [0, 0, 0]
