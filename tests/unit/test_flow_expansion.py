"""Physical graphs: each row of the table of expansions, and what lies around it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_upsert.errors import GraphError
from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Graph,
    Parallel,
    PartitionBy,
    Physical,
    PythonFunction,
    Splitter,
    SplitterKind,
    expanded,
)
from spark_upsert.flow.builder import Output
from spark_upsert.task import ArrowScan, HashJoin, JoinKeys, JoinType

ROWS = pa.table({"k": pa.array([], pa.int64()), "t": pa.array([], pa.string())})
SOURCE = ArrowSource(ROWS)
SINK = CollectSink()
SAME = PythonFunction(iter, ROWS.schema)
JOIN = HashJoin(
    id="join",
    left=ArrowScan(id="left", schema=ROWS.schema),
    right=ArrowScan(id="right", schema=ROWS.schema),
    how=JoinType.SEMI,
    on=JoinKeys.pairs(("k",), ("k",)),
)


def chain(flow: Flow, names: str, *inputs: Output) -> Output:
    """Add operators one behind the other."""
    for name in names.split():
        inputs = (flow.operator(name, SAME, *inputs),)
    [last] = inputs
    return last


def two_in_a_region() -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("R", 2):
        rows = chain(flow, "A B", rows)
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def adjacent() -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    rows = flow.operator("A", SAME, rows, parallel=Parallel(width=3))
    rows = flow.operator("B", SAME, rows, parallel=Parallel(width=2))
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def two_regions_on_one_stream() -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    flow.sink("A", SINK, rows, parallel=Parallel(width=2))
    flow.sink("C", SINK, rows, parallel=Parallel(width=3))
    return flow.graph()


def source_in_a_region() -> Graph:
    flow = Flow()
    with flow.parallel("R", 2):
        rows = chain(flow, "A", flow.source("Src", SOURCE))
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def all_in_a_region() -> Graph:
    flow = Flow()
    with flow.parallel("R", 2):
        flow.sink("Snk", SINK, chain(flow, "A", flow.source("Src", SOURCE)))
    return flow.graph()


def nested() -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("R", 2):
        rows = chain(flow, "A", rows)
        with flow.parallel("S", 2):
            rows = chain(flow, "B C", rows)
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def inside_and_outside() -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    flow.sink("A", SINK, rows, parallel=Parallel(width=2))
    flow.sink("D", SINK, rows)
    return flow.graph()


def names(physical: Physical) -> str:
    return " ".join(each.name for each in physical.replicas)


def lines(physical: Physical) -> list[str]:
    return [f"{each.producer} {each.consumer}" for each in physical.connections]


def owners(physical: Physical) -> str:
    return " ".join(each.owner for each in physical.splitters)


CASES: list[tuple[str, Callable[[], Graph], str, int, str]] = [
    (
        "20 two operators in a region",
        two_in_a_region,
        "Src R.A[0] R.A[1] R.B[0] R.B[1] Snk",
        6,
        "Src",
    ),
    (
        "21 adjacent regions",
        adjacent,
        "Src A[0] A[1] A[2] B[0] B[1] Snk",
        11,
        "Src A[0] A[1] A[2]",
    ),
    (
        "22 two regions on one stream",
        two_regions_on_one_stream,
        "Src A[0] A[1] C[0] C[1] C[2]",
        5,
        "Src Src",
    ),
    (
        "23 a source in a region",
        source_in_a_region,
        "R.Src[0] R.Src[1] R.A[0] R.A[1] Snk",
        4,
        "",
    ),
    (
        "24 all in a region: two chains",
        all_in_a_region,
        "R.Src[0] R.Src[1] R.A[0] R.A[1] R.Snk[0] R.Snk[1]",
        4,
        "",
    ),
    (
        "25 a region in a region",
        nested,
        (
            "Src R.A[0] R.A[1] R.S.B[0] R.S.B[1] R.S.B[2] R.S.B[3] "
            "R.S.C[0] R.S.C[1] R.S.C[2] R.S.C[3] Snk"
        ),
        14,
        "Src R.A[0] R.A[1]",
    ),
    ("26 inside and outside", inside_and_outside, "Src A[0] A[1] D", 3, "Src"),
]


@pytest.mark.parametrize(
    ("graph", "replicas", "connections", "splitters"),
    [pytest.param(*case[1:], id=case[0]) for case in CASES],
)
def test_a_graph_becomes(
    graph: Callable[[], Graph], replicas: str, connections: int, splitters: str
) -> None:
    physical = expanded(graph())
    assert names(physical) == replicas
    assert len(physical.connections) == connections
    assert owners(physical) == splitters


def test_22_each_region_gets_all_rows_by_a_splitter_of_its_own() -> None:
    physical = expanded(two_regions_on_one_stream())
    assert [(each.consumer, each.width) for each in physical.splitters] == [("A", 2), ("C", 3)]


def test_24_the_chains_are_disjoint() -> None:
    assert lines(expanded(all_in_a_region())) == [
        "R.Src[0] R.A[0]",
        "R.Src[1] R.A[1]",
        "R.A[0] R.Snk[0]",
        "R.A[1] R.Snk[1]",
    ]


def test_25_each_channel_has_inner_channels_of_its_own() -> None:
    physical = expanded(nested())
    assert [(each.owner, each.targets) for each in physical.splitters] == [
        ("Src", ("R.A[0]", "R.A[1]")),
        ("R.A[0]", ("R.S.B[0]", "R.S.B[1]")),
        ("R.A[1]", ("R.S.B[2]", "R.S.B[3]")),
    ]
    assert "R.S.B[3] R.S.C[3]" in lines(physical)


def test_26_outside_no_splitter_decides() -> None:
    connections = expanded(inside_and_outside()).connections
    assert [(each.consumer, each.is_split) for each in connections] == [
        ("A[0]", True),
        ("A[1]", True),
        ("D", False),
    ]


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
    splitters = expanded(adjacent()).splitters
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


def test_what_would_be_too_large_is_refused_before_it_is_made() -> None:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    rows = flow.operator("A", SAME, rows, parallel=Parallel(width=2**31 - 1))
    flow.sink("Snk", SINK, rows)
    with pytest.raises(GraphError, match=r"2147483649 replicas.*'A' alone") as error:
        expanded(flow.graph())
    assert "give 'A' a smaller width" in error.value.hint


def test_too_many_connections_are_refused() -> None:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    rows = flow.operator("A", SAME, rows, parallel=Parallel(width=600))
    rows = flow.operator("B", SAME, rows, parallel=Parallel(width=500))
    flow.sink("Snk", SINK, rows)
    with pytest.raises(GraphError, match=r"301100 connections.*from 'A' to 'B' alone"):
        expanded(flow.graph())
