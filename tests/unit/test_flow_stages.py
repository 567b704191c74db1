"""How a fused graph is cut into stages."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_upsert.errors import GraphError
from spark_upsert.flow import (
    ArrowSource,
    ChannelPath,
    CollectSink,
    Flow,
    FusedGraph,
    Graph,
    Influence,
    Legacy,
    Manual,
    PythonFunction,
    expanded,
    fused,
)
from spark_upsert.flow.stages import LOGGED_REPLICAS_MAX, Stages, cut_into_stages, log_plan
from spark_upsert.flow.validate import schemas_of
from spark_upsert.task import ArrowScan, Filter
from tests.support.flow_runs import ROWS, by_stages, evens, rows_of, sorted_rows


def with_channel(
    batches: Iterator[pa.RecordBatch], channel: ChannelPath
) -> Iterator[pa.RecordBatch]:
    """Put the channel into ``v``."""
    for batch in batches:
        yield pa.record_batch([batch["k"], pa.array([channel.index] * len(batch))], schema=ROWS)


SOURCE = ArrowSource(rows_of(6))
HOLDS = PythonFunction(evens, ROWS)
LOOKS = Filter(id="some", input=ArrowScan(id="input", schema=ROWS), where="v > 1")


def chain(*works: PythonFunction | Filter) -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    for name, work in zip("ABCD", works, strict=False):
        rows = flow.operator(name, work, rows, schema=ROWS)
    flow.sink("Snk", CollectSink(), rows)
    return flow.graph()


def region(width: int, *names: str) -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("R", width):
        for name in names:
            rows = flow.operator(name, LOOKS, rows, schema=ROWS)
    rows = flow.operator("Z", HOLDS, rows)
    flow.sink("Snk", CollectSink(), rows)
    return flow.graph()


def tapped() -> Graph:
    """Return a graph whose source feeds a region, a sink, and what stands behind the region."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("R", 2):
        inside = flow.operator("A", HOLDS, rows)
    both = flow.operator("Z", HOLDS, inside, rows)
    flow.sink("Snk", CollectSink(), both)
    flow.sink("Raw", CollectSink(), rows)
    return flow.graph()


def apart(graph: Graph) -> FusedGraph:
    return fused(expanded(graph), Legacy())


def channels(graph: Graph) -> FusedGraph:
    return fused(expanded(graph), Manual(4), Influence.CHANNEL_ISOLATION)


def said(stages: Stages) -> list[str]:
    return [
        f"{stage.transfer.value}: {' | '.join(','.join(each) for each in stage.elements)}"
        for stage in stages.stages
    ]


CUTS: dict[str, tuple[FusedGraph, list[str]]] = {
    "what looks at rows runs where they are": (
        apart(chain(LOOKS, LOOKS)),
        ["in place: A", "in place: B"],
    ),
    "what holds rows has a task of its own": (
        apart(chain(LOOKS, HOLDS, LOOKS)),
        ["in place: A", "exchanged: B", "aligned: C"],
    ),
    "a source alone needs no stage": (apart(chain(HOLDS)), ["exchanged: A"]),
    "a source with what holds rows has their task": (
        fused(expanded(chain(HOLDS)), Manual(1)),
        ["exchanged: Src,A"],
    ),
    "a splitter runs where rows are read": (
        apart(region(2, "A", "B")),
        [
            "in place: Src",
            "exchanged: R.A[0] | R.A[1]",
            "aligned: R.B[0] | R.B[1]",
            "exchanged: Z",
        ],
    ),
    "channels in one element each": (
        channels(region(2, "A", "B")),
        ["in place: Src", "exchanged: R.A[0],R.B[0] | R.A[1],R.B[1]", "exchanged: Z"],
    ),
    "rows for later pass by": (
        apart(tapped()),
        ["in place: Src", "exchanged: R.A[0] | R.A[1]", "exchanged: Z"],
    ),
    "nothing runs": (apart(chain()), []),
}


@pytest.mark.parametrize(("plan", "stages"), CUTS.values(), ids=CUTS)
def test_a_plan_is_cut_into_stages(plan: FusedGraph, stages: list[str]) -> None:
    graph = plan.physical.graph
    assert said(cut_into_stages(plan, schemas_of(graph, {"Src": ROWS}))) == stages


def test_rows_that_pass_by_come_once() -> None:
    found = by_stages(apart(tapped()), {"Src": rows_of(6)}, parts=3)
    assert sorted_rows(found["Raw"]) == sorted_rows(rows_of(6))
    assert sorted(found["Snk"]["v"].to_pylist()) == [0, 0, 2, 2, 4, 4]


@pytest.mark.parametrize("count", [6, 0], ids=["with rows", "without rows"])
def test_tasks_that_are_numbered_anew_without_being_told_who_they_are_are_refused(
    count: int,
) -> None:
    plan = fused(expanded(region(2, "A")), Legacy())
    with pytest.raises(GraphError, match="its frame is a part of another one"):
        by_stages(plan, {"Src": rows_of(count)}, numbered=lambda number: number + 1)


def test_small_batches_do_not_all_begin_with_the_first_channel() -> None:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("R", 3):
        noted = PythonFunction(with_channel, ROWS, takes_channel=True)
        rows = flow.operator("A", noted, rows)
    flow.sink("Snk", CollectSink(), rows)
    plan = apart(flow.graph())
    turns = [by_stages(plan, {"Src": rows_of(1)}, parts=1, turn=turn)["Snk"] for turn in range(4)]
    assert [table["v"].to_pylist() for table in turns] == [[0], [1], [2], [0]]


MANY = LOGGED_REPLICAS_MAX + 1


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (
            2,
            'replicas=5 elements=5 passes=3 exchanges=2 plan="{Src} {R.A[0]} {R.A[1]} {Z} {Snk}"',
        ),
        (
            MANY - 3,
            f"replicas={MANY} elements={MANY} passes=3 exchanges=2",
        ),
    ],
    ids=["by its elements", "of many the numbers"],
)
def test_the_log_tells_what_runs(width: int, told: str, caplog: pytest.LogCaptureFixture) -> None:
    plan = apart(region(width, "A"))
    with caplog.at_level(logging.INFO, "spark_upsert"):
        log_plan(plan, cut_into_stages(plan, schemas_of(plan.physical.graph, {"Src": ROWS})))
    assert caplog.messages == [f"flow planned: {told}"]
