"""How much goes where, what it costs, and what automatic fusion makes of it."""

from __future__ import annotations

from dataclasses import asdict

import pyarrow as pa
import pytest

from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    Costs,
    Estimate,
    Flow,
    Given,
    Graph,
    HandOff,
    Legacy,
    Manual,
    Parallel,
    PartitionBy,
    Work,
    expanded,
    fused,
    predicted,
)
from spark_upsert.flow.estimates import SOURCE_ROWS
from spark_upsert.flow.fusion.cost import traffic_of
from tests.support.flows import SAME, SINK, SOURCE, chain

NOTHING = HandOff(batch_s=0, row_s=0, byte_s=0)
THREADS = Costs(
    element_s=1,
    stage_s=0,
    straight=HandOff(batch_s=0, row_s=1, byte_s=0),
    exchange=HandOff(batch_s=0, row_s=2, byte_s=0),
    batch_rows=10,
    is_staged=False,
)
SPARK = Costs(
    element_s=1,
    stage_s=100,
    straight=HandOff(batch_s=0, row_s=1, byte_s=0),
    exchange=HandOff(batch_s=0, row_s=2, byte_s=0),
    batch_rows=10,
    is_staged=True,
)


GIVEN_ROWS = ArrowSource(pa.table({"k": [1, 2, 3]}))


def rows_of(count: float, **more: float) -> Estimate:
    return Estimate(rows=count, row_s=0, **more)


def region(parallel: Parallel, **estimates: Estimate) -> Graph:
    """Return ``Src -> [A]xN -> Snk``."""
    flow = Flow()
    rows = flow.source("Src", SOURCE, estimate=estimates.get("Src", rows_of(100)))
    rows = flow.operator(
        "A", SAME, rows, parallel=parallel, estimate=estimates.get("A", rows_of(0))
    )
    flow.sink("Snk", SINK, rows, estimate=rows_of(0))
    return flow.graph()


def pipeline(*names: str, count: float = 100) -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE, estimate=rows_of(count))
    for name in names:
        rows = flow.operator(name, SAME, rows, estimate=rows_of(0))
    flow.sink("Snk", SINK, rows, estimate=rows_of(0))
    return flow.graph()


@pytest.mark.parametrize(
    ("work", "estimate", "rows"),
    [
        pytest.param(GIVEN_ROWS, Estimate(), 3, id="as many as are given with the graph"),
        pytest.param(GIVEN_ROWS, Estimate(row_s=1), 3, id="whatever else is said"),
        pytest.param(GIVEN_ROWS, Estimate(rows=7), 7, id="or as many as are said"),
        pytest.param(Given(GIVEN_ROWS.schema), Estimate(), SOURCE_ROWS, id="or very many"),
    ],
)
def test_a_source_gives_so_many_rows(work: Work, estimate: Estimate, rows: int) -> None:
    flow = Flow()
    flow.sink("Snk", SINK, flow.source("Src", work, estimate=estimate))
    assert traffic_of(expanded(flow.graph())).given["Src"] == rows


def test_few_rows_that_are_given_are_done_by_one_element() -> None:
    def elements(work: Work) -> int:
        flow = Flow()
        heavy = Estimate(row_s=1e-4)
        with flow.parallel("R", 2):
            rows = flow.operator("A", SAME, flow.source("Src", work), estimate=heavy)
        flow.sink("Snk", SINK, rows)
        return len(fused(expanded(flow.graph()), Automatic(slots=2)).pes)

    assert elements(Given(SOURCE.schema)) > 1
    assert elements(SOURCE) == 1


@pytest.mark.parametrize(
    ("parallel", "estimate", "shares"),
    [
        pytest.param(Parallel(width=4), rows_of(0), [25] * 4, id="in turn"),
        pytest.param(
            Parallel(width=4, broadcast=("input",)), rows_of(0), [100] * 4, id="broadcast"
        ),
        pytest.param(
            Parallel(width=4, partition_by=(PartitionBy("input", ("k",)),)),
            rows_of(0),
            [25] * 4,
            id="by hash",
        ),
        pytest.param(
            Parallel(width=4, partition_by=(PartitionBy("input", ("k",)),)),
            rows_of(0, skew=2),
            [50, 50 / 3, 50 / 3, 50 / 3],
            id="by hash, with twice as many in one channel",
        ),
        pytest.param(
            Parallel(width=2, partition_by=(PartitionBy("input", ("k",)),)),
            rows_of(0, skew=9),
            [100, 0],
            id="by hash, all in one channel",
        ),
    ],
)
def test_splitters_share_rows_out(
    parallel: Parallel, estimate: Estimate, shares: list[float]
) -> None:
    traffic = traffic_of(expanded(region(parallel, A=estimate)))
    into = [rows for each, rows in traffic.rows.items() if each.producer == "Src"]
    assert into == pytest.approx(shares)


def test_rows_follow_selectivities_and_merge_behind_a_region() -> None:
    traffic = traffic_of(expanded(region(Parallel(width=2), A=rows_of(0, selectivity=3))))
    assert {str(each.producer): rows for each, rows in traffic.rows.items()} == {
        "Src": 50,
        "A[0]": 150,
        "A[1]": 150,
    }


def test_a_source_in_a_region_is_shared_out_among_its_replicas() -> None:
    flow = Flow()
    with flow.parallel("R", 4):
        rows = chain(flow, "A", flow.source("Src", SOURCE, estimate=rows_of(100)))
    flow.sink("Snk", SINK, rows)
    given = traffic_of(expanded(flow.graph())).given
    assert [given[f"R.Src[{channel}]"] for channel in range(4)] == [25] * 4


def test_estimates_of_a_scheme_go_before_those_of_an_operator() -> None:
    physical = expanded(region(Parallel(width=1)))
    assert traffic_of(physical, {"Src": rows_of(7)}).given["Src"] == 7


def test_the_bytes_of_a_row_are_those_of_its_columns() -> None:
    schema = pa.schema({"k": pa.int64(), "f": pa.float32(), "t": pa.string()})
    assert Estimate().bytes_of(schema) == 8 + 4 + 16
    assert Estimate(row_bytes=5).bytes_of(schema) == 5


# -- what plans cost -------------------------------------------------------------------------


def test_threads_share_hand_offs_and_the_greatest_load_decides() -> None:
    """Loads are 1 + 50, 1 + 50 + 50 and so on, to the sink."""
    plan = fused(expanded(pipeline("A", "B")), Legacy())
    found = predicted(plan, slots=4, costs=THREADS)
    assert (found.elapsed_s, found.processor_s) == (101, 4 + 3 * 100)
    assert predicted(plan, slots=1, costs=THREADS).elapsed_s == 304


def test_between_threads_it_costs_more_to_share_rows_out() -> None:
    plan = fused(expanded(region(Parallel(width=2))), Legacy())
    assert predicted(plan, slots=1, costs=THREADS).elapsed_s == 4 + 2 * 100 + 100


@pytest.mark.parametrize(
    ("count", "elapsed_s"),
    [
        # One pass in one task: an exchange before it, rows in and out.
        pytest.param(1, 100 + 200 + 1 + 100, id="fused"),
        # A second one behind it in the same task: its own worker, at the same time.
        pytest.param(2, 100 + 200 + 1 + 100 + 1 + 100, id="cut in two"),
    ],
)
def test_spark_hands_rows_to_each_pass(count: int, elapsed_s: float) -> None:
    graph = pipeline("A", "B")
    plan = fused(expanded(graph), Manual(count + 2, costs=SPARK))
    running = [pe for pe in plan.pes if pe.names not in (("Src",), ("Snk",))]
    assert len(running) == count
    assert predicted(plan, slots=1, costs=SPARK).elapsed_s == elapsed_s


def test_a_region_behind_another_begins_a_stage() -> None:
    flow = Flow()
    rows = flow.source("Src", SOURCE, estimate=rows_of(100))
    for name, width in (("A", 2), ("B", 3)):
        parallel = Parallel(width=width)
        rows = flow.operator(name, SAME, rows, parallel=parallel, estimate=rows_of(0))
    flow.sink("Snk", SINK, rows)
    # One to read, and one for each region.
    assert predicted(fused(expanded(flow.graph()), Legacy()), slots=1).stage_count == 3


def test_automatic_fusion_fuses_what_costs_little_and_spreads_what_costs_much() -> None:
    graph = region(Parallel(width=4))
    few = fused(expanded(graph), Automatic(4, costs=SPARK, estimates={"Src": rows_of(0.01)}))
    assert len({few.pe_of[f"A[{channel}]"].index for channel in range(4)}) == 1
    dear = {"A": Estimate(row_s=100)}
    plan = fused(expanded(graph), Automatic(4, costs=SPARK, estimates=dear))
    assert len({plan.pe_of[f"A[{channel}]"].index for channel in range(4)}) == 4


@pytest.mark.parametrize("place", ["spark", "local"])
def test_measured_costs_come_with_the_package(place: str) -> None:
    costs = Costs.of(place)
    assert Costs.from_json(asdict(costs)) == costs
    assert costs.element_s > 0
    assert costs.straight.cost(1_000_000, 100, batch_rows=10_000) > 0
    assert costs.is_staged == (place == "spark")
