"""Graphs that cannot be run: each is refused by an error that names the operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import GraphError
from spark_upsert.flow import (
    ArrowSource,
    ChannelPath,
    CollectSink,
    Edge,
    Flow,
    Graph,
    LogicalOperator,
    OperatorKind,
    Parallel,
    PartitionBy,
    Placement,
    PythonFunction,
    Replica,
    expanded,
)
from spark_upsert.flow.builder import Output
from spark_upsert.flow.graph import Composite
from spark_upsert.flow.operators import require_declared_columns
from spark_upsert.flow.validate import DEPTH_MAX, MEMBERS_MAX, check
from spark_upsert.task import ArrowScan, AssignUniqueId, Filter, Limit

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("x", pa.list_(pa.int64()))])
SAME = PythonFunction(iter, SCHEMA)
OTHER = PythonFunction(iter, pa.schema([("k", pa.int32())]))


Member = LogicalOperator | Composite


def source(name: str, **how: Any) -> LogicalOperator:
    work = ArrowSource(SCHEMA.empty_table())
    return LogicalOperator(name=name, kind=OperatorKind.SOURCE, work=work, schema=SCHEMA, **how)


def same(name: str, *ports: str, **how: Any) -> LogicalOperator:
    work = ArrowScan(id="input", schema=SCHEMA) if len(ports) > 1 else SAME
    how = {"work": work, "inputs": ports or ("input",), "schema": SCHEMA, **how}
    return LogicalOperator(name=name, kind=OperatorKind.OPERATOR, **how)


def sink(name: str, *ports: str) -> LogicalOperator:
    ports = ports or ("input",)
    return LogicalOperator(name=name, kind=OperatorKind.SINK, work=CollectSink(), inputs=ports)


def graph(*parts: Member | str) -> Graph:
    """Return a graph of members and streams.

    A stream is ``producer > consumer:port``, the port ``input`` if left out. Members that are not
    given but stand in a stream are a source if they are called ``Src``, a sink if ``Snk``, and
    else an operator.
    """
    members = {index: each for index, each in enumerate(parts) if not isinstance(each, str)}
    names = {each.name for each in members.values()}
    edges = []
    for stream in (each for each in parts if isinstance(each, str)):
        producer, _, end = stream.partition(" > ")
        consumer, _, port = end.partition(":")
        edges.append(Edge(producer, consumer, port or "input"))
        for name in (producer, consumer):
            if "." not in name and name not in names:
                names.add(name)
                kind = source if name == "Src" else sink if name == "Snk" else same
                members[len(parts) + len(members)] = kind(name)
    return Graph(tuple(members.values()), tuple(edges))


def one_region(parallel: Any) -> Graph:
    return graph(same("A", parallel=parallel), "Src > A", "A > Snk")


def partitioned(*by: PartitionBy, broadcast: tuple[str, ...] = ()) -> Graph:
    return one_region(Parallel(width=2, partition_by=by, broadcast=broadcast))


def by(port: str, *attributes: str) -> PartitionBy:
    return PartitionBy(port, attributes)


def deep() -> Graph:
    member: Member = sink("Snk")
    for _ in range(DEPTH_MAX):
        member = Composite(name="c", members=(member,))
    return graph(member, f"Src > {'c.' * DEPTH_MAX}Snk")


def wide() -> Graph:
    names = [f"s{n}" for n in range(MEMBERS_MAX)]
    return graph(source("Src"), *map(sink, names), *(f"Src > {name}" for name in names))


TWO_PORTS = Parallel(width=2, partition_by=(by("left", "k"), by("right", "t")))
NO_PORT = Parallel(width=2, partition_by=(by("B.input", "k"),))
OF_NOTHING = Placement(colocate=("",))
OF_TEXT = Placement(exlocate="ab")  # type: ignore[arg-type]

GRAPHS: dict[str, tuple[Graph, str]] = {
    "18 width 0": (one_region(Parallel(width=0)), "region 'A': its width .* found 0"),
    "width 2^31": (one_region(Parallel(width=2**31)), "'A': .* to 2147483647, found 2147483648"),
    "a negative width": (one_region(Parallel(width=-1)), "'A': .* found -1"),
    "a width that is a truth value": (one_region(Parallel(width=True)), "'A': .* found True"),
    "a width that is no whole number": (
        one_region(Parallel(width=2.0)),  # type: ignore[arg-type]
        r"'A': .* found 2\.0",
    ),
    "17 a port in both lists": (
        partitioned(by("input", "k"), broadcast=("input",)),
        "'A': the port 'input' is in partition_by and in broadcast",
    ),
    "a port twice in partition_by": (
        partitioned(by("input", "k"), by("input", "t")),
        "'A': the port 'input' is in partition_by twice",
    ),
    "a port twice in broadcast": (
        partitioned(broadcast=("input", "input")),
        "'A': the port 'input' is in broadcast twice",
    ),
    "a port by nothing": (
        partitioned(by("input")),
        "'A': the port 'input' is partitioned by nothing",
    ),
    "19 an unknown attribute": (
        partitioned(by("input", "kk")),
        r"'A' partitions what 'Src' gives by 'kk', of which there are 0 .*\(k, t, x\)",
    ),
    "an attribute of a type without a hash": (
        partitioned(by("input", "x")),
        "'A' partitions what 'Src' gives by 'x', which is list",
    ),
    "ports of one operator by columns that cannot be equal": (
        graph(
            *(source("Src"), same("A", "left", "right", parallel=TWO_PORTS)),
            *("Src > A:left", "Src > A:right", "A > Snk"),
        ),
        "'A' partitions the port 'left' by a whole number and 'right' by a text.* meet in 'A'",
    ),
    "an unknown port in partition_by": (
        partitioned(by("inptu", "k")),
        "'A': partition_by names the port 'inptu', .* by the port input some does",
    ),
    "an unknown port in broadcast": (
        partitioned(broadcast=("left",)),
        "'A': broadcast names the port 'left'",
    ),
    "a port within a region that nothing enters by": (
        graph(
            Composite(name="R", members=(same("A"), same("B")), parallel=NO_PORT),
            *("Src > R.A", "R.A > R.B", "R.B > Snk"),
        ),
        "'R': partition_by names the port 'B.input', .* by the port A.input some does",
    ),
    "a cycle": (
        graph(same("A", "input", "back"), "Src > A", "A > B", "B > A:back", "B > Snk"),
        "feed each other: A -> B -> A",
    ),
    "an operator that feeds itself": (
        graph("Src > A", "A > A", "A > Snk"),
        "feed each other: A -> A",
    ),
    "a cycle that nothing feeds": (
        graph("A > B", "B > A", "B > Snk"),
        "feed each other: A -> B -> A",
    ),
    "a port that nothing feeds": (
        graph(same("A", "left", "right"), "Src > A:left", "A > Snk"),
        "nothing feeds the port 'right' of 'A'",
    ),
    "rows that nothing takes": (graph("Src > A", "Src > Snk"), "nothing takes the rows of 'A'"),
    "a stream from nowhere": (
        Graph((source("Src"), sink("Snk")), (Edge("Scr", "Snk", "input"),)),
        "the producer 'Scr' of the stream Scr -> Snk.input is no operator",
    ),
    "a stream to nowhere": (
        Graph((source("Src"),), (Edge("Src", "Snx", "input"),)),
        "the consumer 'Snx'",
    ),
    "a stream to a port that is none": (
        graph("Src > Snk:left"),
        "from 'Src' goes to the port 'left' of 'Snk', which has the port input",
    ),
    "a stream into a source": (
        graph(source("Two"), "Src > Two", "Two > Snk"),
        "goes to the port 'input' of 'Two', which has no port",
    ),
    "a stream out of a sink": (
        graph(sink("One"), "Src > One", "One > Snk"),
        "the sink 'One' gives no rows, but 'Snk' takes some",
    ),
    "a stream twice": (
        graph("Src > Snk", "Src > Snk"),
        "the stream Src -> Snk.input is in the graph twice",
    ),
    "two of one name": (
        graph(sink("Snk"), sink("Snk"), "Src > Snk"),
        "two members of the graph are called 'Snk'",
    ),
    "two of one name in a composite": (
        graph(Composite(name="C", members=(sink("S"), sink("S"))), "Src > C.S"),
        "two members of 'C' are called 'S'",
    ),
    "a name with a dot": (graph(source("a.b"), "a.b > Snk"), r"found 'a\.b'"),
    "no name": (graph(source(""), " > Snk"), "name of an operator .* found ''"),
    "a name that is no text": (
        graph(source(3), "Src > Snk"),  # type: ignore[arg-type]
        "name of an operator .* found 3",
    ),
    "a port of no name": (graph(source("Src"), same("A", "")), "name of a port of 'A' .* ''"),
    "two ports of one name": (graph(same("A", "x", "x")), "operator 'A' has two ports 'x'"),
    "a function of two ports": (
        graph(same("A", inputs=("left", "right"))),
        "'A' is a Python function, .* found ports left, right",
    ),
    "a source with a port": (
        graph(source("Src", inputs=("input",))),
        "source 'Src' has no input ports, found 1",
    ),
    "a sink without a port": (
        graph(replace(sink("Snk"), inputs=())),
        "sink 'Snk' has at least one input port, found 0",
    ),
    "no operator": (graph(), "at least one source"),
    "a composite of nothing": (
        graph(Composite(name="C", members=())),
        "composite 'C' has no operator",
    ),
    "other columns at one port": (
        graph(same("A", schema=OTHER.schema), "Src > A", "Src > Snk", "A > Snk"),
        "'Src' and 'A' both feed the port 'input' of 'Snk', .*: k int64, .*; and k int32",
    ),
    "an id that is none": (
        graph(source("Src", placement=OF_NOTHING)),
        "'Src': 'colocate' is a tuple of ids",
    ),
    "a text for ids": (
        graph(source("Src", placement=OF_TEXT)),
        "'Src': 'exlocate' is a tuple of ids, .* found 'ab'",
    ),
    "composites too deep": (deep(), f"at most 1000 members, and {DEPTH_MAX} one within the other"),
    "members too many": (wide(), "at most 1000 members"),
}


@pytest.mark.parametrize(("bad", "says"), GRAPHS.values(), ids=GRAPHS)
def test_a_graph_is_refused_that_has(bad: Graph, says: str) -> None:
    with pytest.raises(GraphError, match=says) as error:
        expanded(bad)
    assert error.value.hint


def test_columns_that_are_not_known_are_not_judged() -> None:
    region = same("A", parallel=Parallel(width=2, partition_by=(by("input", "kk"),)))
    check(graph(replace(source("Src"), schema=None), region, "Src > A", "A > Snk"))


# -- where the mistake is made

ROWS = ArrowSource(SCHEMA.empty_table())


def flow_with_rows() -> tuple[Flow, Output]:
    flow = Flow()
    return flow, flow.source("Src", ROWS)


def a_width(flow: Flow, rows: Output) -> None:
    with flow.parallel("R", 0):
        raise AssertionError("not reached")


def no_columns(flow: Flow, rows: Output) -> None:
    with flow.parallel("R", 2, partition_by=[]):
        raise AssertionError("not reached")


def an_empty_composite(flow: Flow, rows: Output) -> None:
    with flow.composite("C"):
        pass
    flow.graph()


def an_open_composite(flow: Flow, rows: Output) -> None:
    with flow.composite("C"):
        flow.sink("Snk", CollectSink(), rows)
        flow.graph()


def a_region_that_nothing_enters(flow: Flow, rows: Output) -> None:
    with flow.parallel("R", 2, partition_by=["k"]):
        flow.sink("Two", CollectSink(), flow.source("One", ROWS))
    flow.sink("Snk", CollectSink(), rows)
    flow.graph()


CALLS: dict[str, tuple[Callable[[Flow, Any], object], str]] = {
    "a width": (a_width, "region 'R': its width"),
    "the width of one operator": (
        lambda flow, rows: flow.operator("A", SAME, rows, parallel=Parallel(width=0)),
        "region 'A': its width",
    ),
    "no columns": (no_columns, "'R': partition_by names no column"),
    "a name twice": (
        lambda flow, _: flow.source("Src", ROWS),
        "two members of the graph are called 'Src'",
    ),
    "an empty composite": (an_empty_composite, "composite 'C' has no operator"),
    "rows of another flow": (
        lambda flow, _: flow.operator("A", SAME, flow_with_rows()[1]),
        "the port 'input' of 'A' is fed by",
    ),
    "rows that are none": (
        lambda flow, _: flow.operator("A", SAME, "Src"),  # type: ignore[arg-type]
        "the port 'input' of 'A' is fed by .* 'Src'",
    ),
    "both ways to feed": (
        lambda flow, rows: flow.operator("A", SAME, rows, ports={"left": rows}),
        "'A' is fed both by position and by ports",
    ),
    "an open composite": (an_open_composite, "composite 'C' is still open"),
    "a region that nothing enters": (
        a_region_that_nothing_enters,
        "'R' is partitioned by k, but no stream",
    ),
    "no function": (
        lambda flow, rows: flow.operator("A", PythonFunction(5, SCHEMA), rows),  # type: ignore[arg-type]
        "'A' takes a function over batches of Arrow, found 5",
    ),
    "a function of unknown columns": (
        lambda flow, rows: flow.operator("A", PythonFunction(iter, None), rows),
        "'A' takes a pyarrow.Schema of what it gives, found None",
    ),
    "a sink that nothing feeds": (
        lambda flow, _: flow.sink("Snk", CollectSink()),
        "sink 'Snk' has at least one input port",
    ),
}


@pytest.mark.parametrize(("call", "says"), CALLS.values(), ids=CALLS)
def test_a_flow_refuses(call: Callable[[Flow, Output], object], says: str) -> None:
    with pytest.raises(GraphError, match=says) as error:
        call(*flow_with_rows())
    assert error.value.hint


def test_what_fails_within_a_composite_leaves_nothing_of_it() -> None:
    flow, rows = flow_with_rows()
    with pytest.raises(GraphError), flow.parallel("R", 2, partition_by=["k"]):
        flow.operator("A", SAME, flow.operator("A", SAME, rows))
    with flow.parallel("R", 3):
        rows = flow.operator("B", SAME, rows)
    flow.sink("Snk", CollectSink(), rows)
    found = flow.graph()
    assert list(found.places) == ["Src", "R.B", "Snk"]
    assert found.regions["R"].parallel == Parallel(width=3)


def test_what_a_plan_counts_on_is_state() -> None:
    scan = ArrowScan(id="input", schema=SCHEMA)
    plans = [
        Filter(id="f", input=scan, where="k > 1"),
        Limit(id="l", input=scan, count=3),
        Filter(id="f", input=AssignUniqueId(id="u", input=scan, column="n"), where="n > 1"),
    ]
    flow, rows = flow_with_rows()
    outputs = [flow.operator(f"p{index}", plan, rows) for index, plan in enumerate(plans)]
    flow.sink("Snk", CollectSink(), *outputs)
    places = flow.graph().places
    assert [places[f"p{index}"].operator.keeps_state for index in range(3)] == [False, True, True]


# -- functions

GIVEN = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("t", pa.string())])


REPLICA = Replica("clean.A", same("A"), ("clean",), ChannelPath((1,), (2,)))
NULL_ALL_THE_SAME = pa.RecordBatch.from_arrays(
    [pa.array([None], pa.int64()), pa.array(["a"])], schema=GIVEN
)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(None, "NoneType, expected batches", id="nothing"),
        pytest.param(GIVEN.empty_table(), "Table, expected batches", id="a table"),
        pytest.param(batch(k=[1]), "columns k int64, its schema is k int64, t", id="fewer"),
        pytest.param(batch(t=["a"], k=[1]), "columns t string, k int64", id="another order"),
        pytest.param(batch(k=[1.0], t=["a"]), "columns k double, t string", id="another type"),
        pytest.param(batch(k=[1, None], t=["a", "b"]), "NULL in 1 of 2 rows of 'k'", id="a NULL"),
        pytest.param(NULL_ALL_THE_SAME, "NULL in 1 of 1 rows of 'k'", id="a NULL that is denied"),
    ],
)
def test_a_function_that_gives_other_columns_than_it_said_is_refused(
    given: object, says: str
) -> None:
    with pytest.raises(GraphError, match=rf"operator 'clean\.A\[1\]' gave .*{says}") as error:
        require_declared_columns(given, GIVEN, REPLICA)
    assert error.value.hint


def test_columns_that_fit_are_those_that_were_said() -> None:
    given = batch(k=[1], t=pa.array([None], pa.string()))
    assert require_declared_columns(given, GIVEN, REPLICA).schema == GIVEN
