"""Physical graphs: each row of the table of expansions, and what lies around it."""

from __future__ import annotations

import pytest

from spark_upsert.errors import GraphError
from spark_upsert.flow import (
    Flow,
    Graph,
    Parallel,
    PartitionBy,
    Physical,
    Splitter,
    SplitterKind,
    expanded,
)
from spark_upsert.task import ArrowScan, HashJoin, JoinKeys, JoinType
from tests.support.flows import ROWS, SAME, SINK, SOURCE, chain, nested, one_region

JOIN = HashJoin(
    id="join",
    left=ArrowScan(id="left", schema=ROWS.schema),
    right=ArrowScan(id="right", schema=ROWS.schema),
    how=JoinType.SEMI,
    on=JoinKeys.pairs(("k",), ("k",)),
)


def one_behind_the_other(**widths: int) -> Graph:
    """Return ``Src -> [A]xwidth -> [B]xwidth -> Snk`` of operators and their widths."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    for name, width in widths.items():
        rows = flow.operator(name, SAME, rows, parallel=Parallel(width=width))
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def sinks_of_one_stream(**widths: int | None) -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    for name, width in widths.items():
        flow.sink(name, SINK, rows, parallel=Parallel(width=width) if width else None)
    return flow.graph()


def source_in_a_region(*, has_sink: bool = False) -> Graph:
    flow = Flow()
    with flow.parallel("R", 2):
        rows = chain(flow, "A", flow.source("Src", SOURCE))
        if has_sink:
            flow.sink("Snk", SINK, rows)
    if not has_sink:
        flow.sink("Snk", SINK, rows)
    return flow.graph()


def names(physical: Physical) -> str:
    return " ".join(each.name for each in physical.replicas)


def lines(physical: Physical) -> list[str]:
    return [f"{each.producer} {each.consumer}" for each in physical.connections]


def owners(physical: Physical) -> str:
    return " ".join(each.owner for each in physical.splitters)


ALL_IN_A_REGION = source_in_a_region(has_sink=True)
TWO_REGIONS = sinks_of_one_stream(A=2, C=3)
INSIDE_AND_OUTSIDE = sinks_of_one_stream(A=2, D=None)
NESTED = (
    "Src outer.A[0] outer.A[1] "
    "outer.inner.B[0] outer.inner.B[1] outer.inner.B[2] outer.inner.B[3] "
    "outer.inner.C[0] outer.inner.C[1] outer.inner.C[2] outer.inner.C[3] Snk"
)
SIX = "R.Src[0] R.Src[1] R.A[0] R.A[1] R.Snk[0] R.Snk[1]"

CASES: dict[str, tuple[Graph, str, int, str]] = {
    "20 two in a region": (one_region(), "Src R.A[0] R.A[1] R.B[0] R.B[1] Snk", 6, "Src"),
    "21 adjacent regions": (
        one_behind_the_other(A=3, B=2),
        *("Src A[0] A[1] A[2] B[0] B[1] Snk", 11, "Src A[0] A[1] A[2]"),
    ),
    "22 two regions on one stream": (TWO_REGIONS, "Src A[0] A[1] C[0] C[1] C[2]", 5, "Src Src"),
    "23 a source in a region": (
        source_in_a_region(),
        *("R.Src[0] R.Src[1] R.A[0] R.A[1] Snk", 4, ""),
    ),
    "24 all in a region: two chains": (ALL_IN_A_REGION, SIX, 4, ""),
    "25 a region in a region": (nested(), NESTED, 14, "Src outer.A[0] outer.A[1]"),
    "26 inside and outside": (INSIDE_AND_OUTSIDE, "Src A[0] A[1] D", 3, "Src"),
}


@pytest.mark.parametrize(
    ("graph", "replicas", "connections", "splitters"), CASES.values(), ids=CASES
)
def test_a_graph_becomes(graph: Graph, replicas: str, connections: int, splitters: str) -> None:
    physical = expanded(graph)
    assert names(physical) == replicas
    assert len(physical.connections) == connections
    assert owners(physical) == splitters


def test_22_each_region_gets_all_rows_by_a_splitter_of_its_own() -> None:
    splitters = expanded(TWO_REGIONS).splitters
    assert [(each.consumer, each.width) for each in splitters] == [("A", 2), ("C", 3)]


def test_24_the_chains_are_disjoint() -> None:
    assert lines(expanded(ALL_IN_A_REGION)) == [
        *("R.Src[0] R.A[0]", "R.Src[1] R.A[1]", "R.A[0] R.Snk[0]", "R.A[1] R.Snk[1]")
    ]


def test_25_each_channel_has_inner_channels_of_its_own() -> None:
    physical = expanded(nested())
    assert [(each.owner, each.targets) for each in physical.splitters] == [
        ("Src", ("outer.A[0]", "outer.A[1]")),
        ("outer.A[0]", ("outer.inner.B[0]", "outer.inner.B[1]")),
        ("outer.A[1]", ("outer.inner.B[2]", "outer.inner.B[3]")),
    ]
    assert "outer.inner.B[3] outer.inner.C[3]" in lines(physical)


def test_26_outside_no_splitter_decides() -> None:
    connections = expanded(INSIDE_AND_OUTSIDE).connections
    split = [(each.consumer, each.is_split) for each in connections]
    assert split == [("A[0]", True), ("A[1]", True), ("D", False)]


def test_a_stream_into_two_regions_at_once_passes_two_splitters() -> None:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with (
        flow.parallel("R", 2, partition_by=["t"]),
        flow.parallel("S", 3, partition_by={"B.input": ["k", "t"]}),
    ):
        flow.sink("B", SINK, rows)
    [outer] = expanded(flow.graph()).splitters
    assert (outer.region, outer.kind, outer.attributes) == ("R", SplitterKind.HASH, ("t",))
    inner = [each for each in outer.iter_chain() if each is not outer]
    assert [(each.region, each.attributes, each.targets) for each in inner] == [
        ("R.S", ("k", "t"), ("R.S.B[0]", "R.S.B[1]", "R.S.B[2]")),
        ("R.S", ("k", "t"), ("R.S.B[3]", "R.S.B[4]", "R.S.B[5]")),
    ]


def test_a_round_robin_starts_at_the_owners_channel() -> None:
    splitters = expanded(one_behind_the_other(A=3, B=2)).splitters
    assert [each.start for each in splitters] == [0, 0, 1, 0]
    assert [each.passes_windows for each in splitters] == [True, False, False, False]


def two_ports(**how: object) -> Splitter:
    flow = Flow()
    left, right = flow.source("L", SOURCE), flow.source("R", SOURCE)
    rows = flow.operator(
        "J",
        JOIN,
        ports={"left": left, "right": right},
        parallel=Parallel(width=2, **how),  # type: ignore[arg-type]
    )
    flow.sink("Snk", SINK, rows)
    splitters = expanded(flow.graph()).splitters
    assert [each.port for each in splitters] == ["left", "right"]
    return splitters[1]


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        pytest.param({}, SplitterKind.ROUND_ROBIN, id="in turn"),
        pytest.param({"broadcast": ("right",)}, SplitterKind.BROADCAST, id="broadcast"),
        pytest.param(
            {"partition_by": (PartitionBy("right", ("k",)),)}, SplitterKind.HASH, id="by hash"
        ),
        pytest.param({"broadcast": ("left",)}, SplitterKind.ROUND_ROBIN, id="the other port"),
    ],
)
def test_each_port_is_split_as_its_region_says(how: dict[str, object], kind: SplitterKind) -> None:
    assert two_ports(**how).kind is kind


def test_columns_without_ports_are_those_of_every_port() -> None:
    flow = Flow()
    left, right = flow.source("L", SOURCE), flow.source("R", SOURCE)
    with flow.parallel("P", 2, partition_by=["k"], broadcast=["J.right"]):
        rows = chain(flow, "A", left, right)
        joined = flow.operator("J", JOIN, ports={"left": rows, "right": right})
    flow.sink("Snk", SINK, joined)
    graph = flow.graph()
    assert graph.regions["P"].parallel.partition_by == (PartitionBy("A.input", ("k",)),)


def test_a_composite_that_is_no_region_is_a_name() -> None:
    flow = Flow()
    with flow.composite("read"):
        rows = flow.source("Src", SOURCE)
    flow.sink("Snk", SINK, rows)
    assert lines(expanded(flow.graph())) == ["read.Src Snk"]


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ({"A": 2**31 - 1}, r"2147483649 replicas.*'A' alone"),
        ({"A": 600, "B": 500}, r"301100 connections.*from 'A' to 'B' alone"),
    ],
    ids=["replicas", "connections"],
)
def test_a_graph_that_would_be_too_large_is_refused(widths: dict[str, int], message: str) -> None:
    with pytest.raises(GraphError, match=message) as error:
        expanded(one_behind_the_other(**widths))
    assert "a smaller width" in error.value.hint
