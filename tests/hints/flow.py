"""Hints of graphs that cannot be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Edge,
    Flow,
    Graph,
    InputRows,
    LogicalOperator,
    Manual,
    OperatorKind,
    Parallel,
    PartitionBy,
    Placement,
    PythonFunction,
    TableSink,
    TableSource,
    expanded,
    fused,
)
from spark_upsert.flow import operators as running_module
from spark_upsert.flow.fusion import Influence, Legacy
from spark_upsert.flow.graph import Composite
from spark_upsert.flow.local import collect, run
from spark_upsert.flow.rescale import changed_width, remember
from spark_upsert.flow.validate import DEPTH_MAX
from spark_upsert.table.table import Table
from spark_upsert.task import ArrowScan, Filter, HashJoin, JoinKeys, JoinType
from tests.hints.hint import Told, follows
from tests.support import flow_runs

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("x", pa.list_(pa.int64()))])
ROWS = pa.table({"k": [1, 2], "t": ["a", "b"], "x": [[1], []]}, schema=SCHEMA)
NARROW = pa.schema([("k", pa.int32())])
SAME = PythonFunction(iter, SCHEMA)
KEPT = CollectSink()

Member = LogicalOperator | Composite


def source(name: str = "Src", **more: Any) -> LogicalOperator:
    rows = LogicalOperator(
        name=name, kind=OperatorKind.SOURCE, work=ArrowSource(ROWS), schema=SCHEMA
    )
    return replace(rows, **more)


def same(name: str = "A", *ports: str, **more: Any) -> LogicalOperator:
    """Return an operator that hands rows on, a function, or of several ports a plan."""
    plan = HashJoin(
        id="both",
        left=ArrowScan(id="left", schema=SCHEMA),
        right=ArrowScan(id="right", schema=SCHEMA),
        how=JoinType.SEMI,
        on=JoinKeys.pairs(("k",), ("k",)),
    )
    operator = LogicalOperator(
        name=name,
        kind=OperatorKind.OPERATOR,
        work=plan if len(ports) > 1 else SAME,
        inputs=ports or ("input",),
        schema=SCHEMA,
    )
    return replace(operator, **more)


def sink(name: str = "Snk", **more: Any) -> LogicalOperator:
    kept = LogicalOperator(name=name, kind=OperatorKind.SINK, work=KEPT, inputs=("input",))
    return replace(kept, **more)


def graph(members: Sequence[Member], *streams: str) -> Graph:
    """Return a graph; a stream is ``producer > consumer:port``, the port ``input`` if left out."""
    found = []
    for stream in streams:
        producer, _, end = stream.partition(" > ")
        consumer, _, port = end.partition(":")
        found.append(Edge(producer, consumer, port or "input"))
    return Graph(tuple(members), tuple(found))


def chain(**more: Any) -> Graph:
    return graph([source(), same(**more), sink()], "Src > A", "A > Snk")


def by(port: str, *attributes: str) -> PartitionBy:
    return PartitionBy(port, attributes)


def region(*parts: PartitionBy, width: int = 2, broadcast: tuple[str, ...] = ()) -> Graph:
    parallel = Parallel(width=width, partition_by=parts, broadcast=broadcast)
    return chain(parallel=parallel)


def joined(*parts: PartitionBy, broadcast: tuple[str, ...] = (), streams: str = "lr") -> Graph:
    parallel = Parallel(width=2, partition_by=parts, broadcast=broadcast)
    fed = {"l": "Src > A:left", "r": "Src > A:right"}
    members = [source(), same("A", "left", "right", parallel=parallel), sink()]
    return graph(members, *(fed[each] for each in streams), "A > Snk")


def nest(depth: int) -> Graph:
    member: Member = sink()
    for _ in range(depth):
        member = Composite(name="c", members=(member,))
    return graph([source(), member], f"Src > {'c.' * depth}Snk")


def within(*members: Member, parallel: Parallel) -> Graph:
    return graph(
        [source(), Composite(name="R", members=members, parallel=parallel), sink("Two")],
        "Src > Two",
        "R.One > R.Snk",
    )


HERE = Parallel(width=2)

GRAPHS: tuple[tuple[str, Graph, Mapping[str, Graph]], ...] = (
    (
        "flow.validate:check_name",
        graph([source("a.b"), sink()], "a.b > Snk"),
        {"give such a name": graph([source("a_b"), sink()], "a_b > Snk")},
    ),
    (
        "flow.validate:check_parallel",
        region(width=0),
        {"give the number of channels": region(width=3), "without a region": chain()},
    ),
    (
        "flow.validate:check_parallel:2",
        region(by("input", "k"), broadcast=("input",)),
        {"keep it in one of them": region(by("input", "k"))},
    ),
    (
        "flow.validate:check_parallel:2",
        region(by("input", "k"), by("input", "t")),
        {"name it once, with all its attributes": region(by("input", "k", "t"))},
    ),
    (
        "flow.validate:check_parallel:3",
        region(by("input")),
        {"name the columns": region(by("input", "k")), "leave the port out": region()},
    ),
    (
        "flow.validate:check_placement",
        chain(placement=Placement(exlocate="ab")),  # type: ignore[arg-type]
        {"give exlocate=('name',)": chain(placement=Placement(exlocate=("name",)))},
    ),
    (
        "flow.validate:check_kind",
        graph([source(inputs=("input",)), sink()], "Src > Snk"),
        {"a source takes nothing": graph([source(), sink()], "Src > Snk")},
    ),
    (
        "flow.validate:check_kind:2",
        graph([source(), same(inputs=("left", "right")), sink()], "Src > A:left", "A > Snk"),
        {
            "let several streams merge in one port": graph(
                [source(), source("Two"), same(), sink()], "Src > A", "Two > A", "A > Snk"
            ),
            "join them by a plan": joined(),
        },
    ),
    (
        "flow.validate:check_kind:3",
        graph([source(), same("A", "x", "x"), sink()], "Src > A:x", "A > Snk"),
        {"give each port a name of its own": joined()},
    ),
    (
        "flow.validate:_check_function",
        chain(work=PythonFunction(iter, None)),
        {"give PythonFunction(function, schema)": chain(work=PythonFunction(iter, SCHEMA))},
    ),
    (
        "flow.validate:check_siblings",
        graph([source(), sink(), sink()], "Src > Snk"),
        {
            "rename one of them": graph([source(), sink(), sink("S2")], "Src > Snk", "Src > S2"),
            "put it into a composite": graph(
                [source(), sink(), Composite(name="C", members=(sink(),))],
                "Src > Snk",
                "Src > C.Snk",
            ),
        },
    ),
    (
        "flow.validate:_check_members",
        nest(DEPTH_MAX),
        {"make one operator of several": nest(DEPTH_MAX - 1)},
    ),
    (
        "flow.validate:_check_members:2",
        graph([]),
        {"add a source and a sink": graph([source(), sink()], "Src > Snk")},
    ),
    (
        "flow.validate:_check_composite",
        graph([source(), sink(), Composite(name="C", members=())], "Src > Snk"),
        {
            "add its operators within it": graph(
                [source(), Composite(name="C", members=(sink(),))], "Src > C.Snk"
            ),
            "leave it out": graph([source(), sink()], "Src > Snk"),
        },
    ),
    (
        "flow.validate:_check_streams",
        graph([source("rows"), sink()], "rosw > Snk"),
        {"Did you mean 'rows'": graph([source("rows"), sink()], "rows > Snk")},
    ),
    (
        "flow.validate:_check_streams:2",
        graph([source(), sink("A"), sink()], "Src > A", "A > Snk"),
        {
            "make it an operator": chain(),
            "take the rows from before it": graph(
                [source(), sink("A"), sink()], "Src > A", "Src > Snk"
            ),
        },
    ),
    (
        "flow.validate:_check_streams:3",
        graph([source(), sink()], "Src > Snk:inptu"),
        {"Did you mean 'input'": graph([source(), sink()], "Src > Snk")},
    ),
    (
        "flow.validate:_check_streams:3",
        graph([source(), source("Two"), sink()], "Src > Two", "Two > Snk"),
        {"a source takes no rows": graph([source("Two"), sink()], "Two > Snk")},
    ),
    (
        "flow.validate:_check_streams:4",
        graph([source(), sink()], "Src > Snk", "Src > Snk"),
        {"connect them once": graph([source(), sink()], "Src > Snk")},
    ),
    (
        "flow.validate:_check_ends",
        joined(streams="l"),
        {"connect a stream to it": joined(streams="lr"), "take the port away": chain()},
    ),
    (
        "flow.validate:_check_ends:2",
        graph([source(), same(), sink()], "Src > A", "Src > Snk"),
        {
            "connect it to a sink": graph(
                [source(), same(), sink(), sink("S2")], "Src > A", "Src > Snk", "A > S2"
            ),
            "take it away": graph([source(), sink()], "Src > Snk"),
        },
    ),
    (
        "flow.validate:_check_columns",
        graph([source(), source("Two", schema=NARROW), sink()], "Src > Snk", "Two > Snk"),
        {
            "bring them to one form before they meet": graph(
                [source(), source("Two"), sink()], "Src > Snk", "Two > Snk"
            )
        },
    ),
    (
        "flow.validate:_check_region",
        region(by("inptu", "k")),
        {"Did you mean 'input'": region(by("input", "k"))},
    ),
    (
        "flow.validate:_check_region",
        within(source("One"), sink(), parallel=Parallel(width=2, broadcast=("Snk.input",))),
        {"leave it out": within(source("One"), sink(), parallel=HERE)},
    ),
    (
        "flow.validate:_check_attribute",
        region(by("input", "kk")),
        {"Did you mean 'k'": region(by("input", "k"))},
    ),
    (
        "flow.validate:_check_attribute:2",
        region(by("input", "x")),
        {"partition by numbers, texts or moments": region(by("input", "t"))},
    ),
    (
        "flow.validate:_check_matched",
        joined(by("left", "k"), by("right", "t")),
        {
            "bring the columns to one type": joined(by("left", "k"), by("right", "k")),
            "broadcast one port": joined(by("left", "k"), broadcast=("right",)),
        },
    ),
    (
        "flow.validate:_check_no_cycle",
        graph(
            [source(), same("A", "left", "right"), sink()], "Src > A:left", "A > A:right", "A > Snk"
        ),
        {"give what comes back a graph of its own, by way of a table": joined()},
    ),
    (
        "flow.expand:_require_few",
        region(width=1_000_000),
        {"give 'A' a smaller width": region(width=10)},
    ),
)


def of_graph(site: str, wrong: Graph, advice: Mapping[str, Graph]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            expanded(wrong)
        for quoted, right in advice.items():
            told(quoted)
            expanded(right)


for _site, _wrong, _advice in GRAPHS:
    of_graph(_site, _wrong, _advice)


@follows("flow.expand:_require_few:2")
def _(told: Told) -> None:
    def two(first: int, second: int) -> Graph:
        flow = Flow()
        rows = flow.source("Src", ArrowSource(ROWS))
        rows = flow.operator("A", SAME, rows, parallel=Parallel(width=first))
        rows = flow.operator("B", SAME, rows, parallel=Parallel(width=second))
        flow.sink("Snk", KEPT, rows)
        return flow.graph()

    with told:
        expanded(two(3000, 3000))
    told("give 'B' a smaller width")
    expanded(two(3000, 2))
    told("put both operators into one region")
    flow = Flow()
    rows = flow.source("Src", ArrowSource(ROWS))
    with flow.parallel("R", 3000):
        rows = flow.operator("B", SAME, flow.operator("A", SAME, rows))
    flow.sink("Snk", KEPT, rows)
    expanded(flow.graph())


# Where a flow is built ----------------------------------------------------------------------

Build = Callable[[Flow], None]


def built(build: Build) -> None:
    flow = Flow()
    build(flow)
    flow.graph()


def rows_of(flow: Flow):  # type: ignore[no-untyped-def]
    return flow.source("Src", ArrowSource(ROWS))


def asked_within(flow: Flow) -> None:
    with flow.composite("C"):
        flow.sink("Snk", KEPT, rows_of(flow))
        flow.graph()


def asked_behind(flow: Flow) -> None:
    with flow.composite("C"):
        flow.sink("Snk", KEPT, rows_of(flow))
    flow.graph()


def of_another(flow: Flow) -> None:
    rows_of(flow)
    flow.sink("Snk", KEPT, rows_of(Flow()))


def of_its_own(flow: Flow) -> None:
    flow.sink("Snk", KEPT, rows_of(flow))


def in_region(flow: Flow, **more: Any) -> None:
    rows = rows_of(flow)
    with flow.parallel("R", 2, **more):
        flow.sink("Snk", KEPT, rows)


def read_within(flow: Flow, **more: Any) -> None:
    with flow.parallel("R", 2, **more):
        flow.sink("Snk", KEPT, rows_of(flow))


def fed_twice(flow: Flow) -> None:
    rows = rows_of(flow)
    plan = same("A", "left", "right").work
    flow.sink("Snk", KEPT, flow.operator("A", plan, rows, ports={"right": rows}))


def fed_by_ports(flow: Flow) -> None:
    rows = rows_of(flow)
    plan = same("A", "left", "right").work
    ports = {"left": rows, "right": rows}
    flow.sink("Snk", KEPT, flow.operator("A", plan, ports=ports))


BUILDS: tuple[tuple[str, Build, Mapping[str, Build]], ...] = (
    (
        "flow.builder:Flow.graph",
        asked_within,
        {"ask for the graph behind its 'with'": asked_behind},
    ),
    (
        "flow.builder:Flow._require_own",
        of_another,
        {"give it what source() or operator() of the same flow returned": of_its_own},
    ),
    (
        "flow.builder:_at_every_port",
        partial(read_within, partition_by=["k"]),
        {"leave partition_by out": read_within},
    ),
    (
        "flow.builder:_partition",
        partial(in_region, partition_by=[]),
        {"name the columns": partial(in_region, partition_by=["k"]), "leave it out": in_region},
    ),
    (
        "core.names:names_of",
        partial(in_region, partition_by={"k"}),
        {
            "give 'partition_by' as a name": partial(in_region, partition_by="k"),
            "or as a list of names": partial(in_region, partition_by=["k"]),
        },
    ),
    (
        "flow.builder:_fed",
        fed_twice,
        {"name all its ports: ports={'left': ..., 'right': ...}": fed_by_ports},
    ),
)


def of_build(site: str, wrong: Build, advice: Mapping[str, Build]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            built(wrong)
        for quoted, right in advice.items():
            told(quoted)
            built(right)


for _site, _build, _builds in BUILDS:
    of_build(_site, _build, _builds)


# Schemes, widths and checkpoints ------------------------------------------------------------


@follows("flow.fusion:_require_positive")
def _(told: Told) -> None:
    with told:
        Manual(0)
    told("give 'pe_count' as such a number")
    assert len(fused(expanded(chain()), Manual(1)).pes) == 1


def wide(width: int = 2, *, keeps: bool = False) -> Graph:
    flow = Flow()
    rows = rows_of(flow)
    with flow.parallel("R", width, partition_by=["k"]):
        rows = flow.operator("A", SAME, rows, keeps_state=keeps)
    flow.sink("Snk", KEPT, rows)
    return flow.graph()


@follows("flow.rescale:changed_width")
def _(told: Told) -> None:
    with told:
        changed_width(wide(), "R", 3, influence=Influence.CHANNEL_EXLOCATION)
    for influence in (Influence.CHANNEL_ISOLATION, Influence.NONE):
        told(influence.value)
        assert changed_width(wide(), "R", 3, influence=influence) == wide(3)


@follows("flow.rescale:changed_width:2")
def _(told: Told) -> None:
    flow = Flow()
    rows = rows_of(flow)
    with flow.parallel("wide", 2):
        flow.sink("Snk", KEPT, rows)
    named = flow.graph()
    with told:
        changed_width(named, "wied", 3)
    changed_width(named, told.meant, 3)


@follows("flow.rescale:changed_width:2")
def _(told: Told) -> None:
    with told:
        changed_width(chain(), "A", 3)
    told("give an operator or a composite a width")
    changed_width(region(), "A", 3)


@follows("flow.rescale:_require_width")
def _(told: Told) -> None:
    with told:
        changed_width(wide(), "R", 0)
    told("give such a number")
    changed_width(wide(), "R", 1)


@follows("flow.rescale:_require_stateless")
def _(told: Told) -> None:
    with told:
        changed_width(wide(keeps=True), "R", 3)
    told("keep the width")
    expanded(wide(keeps=True))


@follows("flow.rescale:require_widths_kept")
def _(told: Told) -> None:
    remember(wide(keeps=True), str(told.folder / "one"), {})
    with told:
        remember(wide(3, keeps=True), str(told.folder / "one"), {})
    told("give the widths of before")
    remember(wide(keeps=True), str(told.folder / "one"), {})
    told("another checkpoint")
    remember(wide(3, keeps=True), str(told.folder / "two"), {})


@follows("flow.rescale:_require_no_state")
def _(told: Told) -> None:
    with told:
        remember(wide(keeps=True), "hdfs://name/checkpoint", {})
    told("put the checkpoint where tables can lie")
    assert remember(wide(keeps=True), str(told.folder), {})


@follows("flow.rescale:_require_sources")
def _(told: Told) -> None:
    def two(*names: str) -> Graph:
        flow = Flow()
        for name in names:
            flow.sink(f"{name}_kept", KEPT, flow.source(name, ArrowSource(ROWS)))
        return flow.graph()

    remember(two("a", "b"), str(told.folder / "one"), {})
    with told:
        remember(two("b", "a"), str(told.folder / "one"), {})
    told("give them in the order of before")
    remember(two("a", "b"), str(told.folder / "one"), {})
    told("another checkpoint")
    remember(two("b", "a"), str(told.folder / "two"), {})


# Flows that run in one process --------------------------------------------------------------


def ran(members: Sequence[Member], *streams: str, **more: Any) -> dict[str, pa.Table]:
    return collect(graph(members, *streams), **more)


def simple(rows: LogicalOperator, **more: Any) -> dict[str, pa.Table]:
    return ran([rows, sink()], "Src > Snk", **more)


def read_here() -> Iterator[pa.RecordBatch]:
    yield from ROWS.to_batches()


@follows("flow.local:_reads")
def _(told: Told) -> None:
    with told:
        simple(source(work=InputRows(SCHEMA)))
    told("make it Given(schema), and give what reads it: given={'Src': ...}")
    found = simple(source(work=InputRows(SCHEMA)), given={"Src": read_here})
    assert found["Snk"].equals(ROWS)


@follows("flow.validate:require_sources")
def _(told: Told) -> None:
    rows = source("rows", work=InputRows(SCHEMA))
    with told:
        ran([rows, sink()], "rows > Snk", given={"rows": read_here, "rosw": read_here})
    ran([rows, sink()], "rows > Snk", given={told.meant: read_here})


@follows("flow.validate:_of_source")
def _(told: Told) -> None:
    with told:
        simple(source(schema=NARROW))
    told("give it the schema of what it reads")
    simple(source(schema=SCHEMA))
    told("or none")
    simple(source(schema=None))


@follows("flow.validate:_of_operator")
@follows("flow.operators:started")
def _(told: Told) -> None:
    def between(work: object) -> dict[str, pa.Table]:
        return collect(chain(work=work))

    with told:
        between(CollectSink())
    told("a PythonFunction")
    between(SAME)
    told("give it a plan")
    between(Filter(id="f", input=ArrowScan(id="input", schema=SCHEMA), where="k > 1"))


@follows("flow.validate:_require_scans")
def _(told: Told) -> None:
    with told:
        collect(chain(work=ArrowScan(id="rows", schema=SCHEMA)))
    told("name a scan of Arrow as each port")
    collect(chain(work=ArrowScan(id="input", schema=SCHEMA)))


@follows("flow.validate:_require_scans:2")
def _(told: Told) -> None:
    with told:
        collect(chain(work=ArrowScan(id="input", schema=NARROW), schema=None))
    told("give the scan 'input' the schema of 'Src'")
    collect(chain(work=ArrowScan(id="input", schema=SCHEMA), schema=None))


def gives(function: Callable[..., Any], schema: pa.Schema = SCHEMA) -> dict[str, pa.Table]:
    return collect(chain(work=PythonFunction(function, schema), schema=schema))


@follows("flow.operators:_Function._called")
def _(told: Told) -> None:
    with told:
        gives(lambda batches: 5)
    told("let its function yield pyarrow.RecordBatch")
    gives(lambda batches: (batch for batch in batches))


@follows("flow.operators:as_declared")
def _(told: Told) -> None:
    with told:
        gives(lambda batches: (pa.Table.from_batches([batch]) for batch in batches))
    told("let its function yield pyarrow.RecordBatch")
    gives(lambda batches: (batch for batch in batches))


@follows("flow.operators:as_declared:2")
def _(told: Told) -> None:
    def keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (batch.select(["k"]) for batch in batches)

    def cast(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (batch.cast(NARROW) for batch in keys(batches))

    with told:
        gives(keys, NARROW)
    told("give the operator the schema that its function gives")
    gives(keys, pa.schema([("k", pa.int64())]))
    told("cast in the function")
    gives(cast, NARROW)


@follows("flow.operators:as_declared:3")
def _(told: Told) -> None:
    nulls = pa.record_batch({"k": pa.array([1, None])})
    never = pa.schema([pa.field("k", pa.int64(), nullable=False)])

    def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (nulls for _ in batches)

    with told:
        gives(some, never)
    told("drop such rows")
    gives(lambda batches: (batch.drop_null() for batch in some(batches)), never)
    told("say in the schema that the column may be NULL")
    gives(some, pa.schema([("k", pa.int64())]))


@follows("flow.operators:_PlanOfSeveral.feed")
def _(told: Told) -> None:
    many = pa.table({"k": list(range(64))})
    plan = HashJoin(
        id="both",
        left=ArrowScan(id="left", schema=many.schema),
        right=ArrowScan(id="right", schema=many.schema),
        how=JoinType.SEMI,
        on=JoinKeys.pairs(("k",), ("k",)),
    )

    def held(rows: pa.Table, *, width: int) -> None:
        flow = Flow()
        both = flow.source("Src", ArrowSource(rows))
        with flow.parallel("R", width, partition_by=["k"]):
            kept = flow.operator("A", plan, ports={"left": both, "right": both})
        flow.sink("Snk", KEPT, kept)
        with patch.object(running_module, "HELD_BYTES_MAX", many.nbytes + 8):
            assert collect(flow.graph())["Snk"].num_rows == rows.num_rows

    with told:
        held(many, width=1)
    told("make its region wider")
    held(many, width=4)
    told("the batches smaller")
    held(many.slice(0, 16), width=1)


FLAT = pa.table({"k": [1, 2]})


def table_at(folder: Path) -> str:
    path = str(folder / "from")
    Table.create(path, FLAT.schema, keys=["k"]).upsert(FLAT)
    return path


@follows("flow.local:rows_of")
def _(told: Told) -> None:
    path = table_at(told.folder)
    with told:
        simple(source(work=TableSource(path, {"readChangeFeed": "true"}), schema=None))
    told("give the rows: make it Given(schema)")
    rows = source(work=InputRows(FLAT.schema), schema=FLAT.schema)
    found = simple(rows, given={"Src": lambda: iter(FLAT.to_batches())})
    assert found["Snk"].equals(FLAT)


@follows("flow.local:targets_of")
def _(told: Told) -> None:
    rows = source(work=ArrowSource(FLAT), schema=FLAT.schema)
    with told:
        run(graph([rows, sink()], "Src > Snk"))
    told("make it a TableSink")
    to = TableSink(str(told.folder / "to"), {"keys": "k"})
    run(graph([rows, sink(work=to)], "Src > Snk"))
    told("take its rows instead of writing them")
    assert collect(graph([rows, sink()], "Src > Snk"))["Snk"].equals(FLAT)


# Tasks of an engine -------------------------------------------------------------------------

PAIRS = flow_runs.rows_of(6)


def wide_rows() -> Graph:
    flow = Flow()
    rows = flow.source("Src", ArrowSource(PAIRS))
    with flow.parallel("R", 2, partition_by=["k"]):
        rows = flow.operator("A", PythonFunction(iter, PAIRS.schema), rows)
    flow.sink("Snk", KEPT, rows)
    return flow.graph()


@follows("flow.passes:Pass._require_same")
def _(told: Told) -> None:
    plan = fused(expanded(wide_rows()), Legacy())
    with told:
        flow_runs.by_stages(plan, {"Src": PAIRS.slice(0, 1)}, numbered=lambda task: task + 9)
    told("put all into one graph, whose sink takes what would be a union")
    flow = Flow()
    rows = [flow.source(name, ArrowSource(PAIRS)) for name in ("one", "two")]
    flow.sink("Snk", KEPT, *rows)
    assert collect(flow.graph())["Snk"].num_rows == 12
    told("or write the sinks, and read the tables")
    to = TableSink(str(told.folder / "to"), {"keys": "v"})
    flow = Flow()
    flow.sink("Snk", to, flow.source("Src", ArrowSource(PAIRS)))
    run(flow.graph())
    assert Table.open(to.path).snapshot().num_rows == 6


@follows("flow.passes:_Elements.task_of")
def _(told: Told) -> None:
    plan = fused(expanded(wide_rows()), Legacy())

    def mixed(tasks: Iterable[list[pa.RecordBatch]], count: int) -> list[list[pa.RecordBatch]]:
        rows = pa.Table.from_batches([batch for task in tasks for batch in task])
        return [rows.combine_chunks().to_batches(), *([] for _ in range(count - 1))]

    with patch.object(flow_runs, "_exchanged", mixed), told:
        flow_runs.by_stages(plan, {"Src": PAIRS})
    told("leave the exchanges of the flow as they are")
    assert flow_runs.by_stages(plan, {"Src": PAIRS})["Snk"].num_rows == 6
