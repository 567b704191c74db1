"""Hints of plans that cannot be run, and of tasks that are called out of their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.plan.aggregates import AggregateKind
from spark_upsert.plan.nodes import NODES_MAX, JoinKeys, ProjectedColumn
from spark_upsert.task import (
    Aggregate,
    ArrowLookup,
    ArrowScan,
    AssignUniqueId,
    FileScan,
    Filter,
    Group,
    HashJoin,
    IndexLookupJoin,
    JoinType,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    TableScan,
    Task,
    Unnest,
    Values,
)
from spark_upsert.task.sources import read_arrow
from tests.hints.hint import Told, follows

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("x", pa.list_(pa.int64()))])
ROWS = pa.table({"k": [1, 2, 2], "t": ["a", "b", "b"], "x": [[1], [2, 3], []]}, schema=SCHEMA)
SCAN = ArrowScan(id="rows", schema=SCHEMA)
FLAT = pa.schema([("k", pa.int64()), ("t", pa.string())])


def rows_of(
    plan: Node,
    splits: Mapping[str, Sequence[Any]] | None = None,
    *,
    drivers: int = 1,
    **given: Any,
) -> list[dict[str, Any]]:
    """Return what a plan gives of the splits of its scans, `ROWS` if none are named."""
    if splits is None:
        splits = {each.id: [ROWS] for each in plan.walk() if isinstance(each, ArrowScan)}
    with Task(plan, drivers=drivers, **given) as task:
        for name, own in splits.items():
            for split in own:
                task.add_split(name, split)
            task.no_more_splits(name)
        return [row for batch in task.iter_batches() for row in batch.to_pylist()]


def project(input: Node, *names: str, **columns: Any) -> Project:
    named = {**dict(zip(names, names, strict=True)), **columns}
    return Project(
        id=f"p{len(input.id)}",
        input=input,
        columns=tuple(map(ProjectedColumn, *zip(*named.items(), strict=True))),
    )


def grouped(*aggregates: Aggregate, input: Node = SCAN, **more: Any) -> Group:
    keys = more.pop("keys", ("t",))
    return Group(id="groups", input=input, keys=keys, aggregates=aggregates, **more)


def flat(name: str, **renamed: str) -> Project:
    scan = ArrowScan(id=name, schema=SCHEMA)
    columns = tuple(
        ProjectedColumn(new, old) for old, new in {"k": "k", "t": "t", **renamed}.items()
    )
    return Project(id=f"of_{name}", input=scan, columns=columns)


def joined(kind: type[HashJoin | MergeJoin], left: Node, right: Node, **more: Any) -> Node:
    how, on = more.pop("how", JoinType.INNER), more.pop("on", JoinKeys.pairs(("k",), ("k2",)))
    return kind(id="both", left=left, right=right, how=how, on=on, **more)


LEFT, RIGHT = flat("left"), flat("right", k="k2", t="t2")

Plans = Mapping[str, Node]

PLANS: tuple[tuple[str, Node | Callable[[], Node], Mapping[str, Node]], ...] = (
    (
        "plan.nodes:Node._require_at_least",
        lambda: grouped(Aggregate.of("n", "count"), batch_rows=0),
        {"give 'batch_rows' as such a number": grouped(Aggregate.of("n", "count"), batch_rows=1)},
    ),
    (
        "plan.nodes:JoinKeys.pairs",
        lambda: joined(HashJoin, LEFT, RIGHT, on=JoinKeys.pairs(("k", "t"), ("k2",))),
        {
            "give the columns of both sides in the same order": joined(
                HashJoin, LEFT, RIGHT, on=JoinKeys.pairs(("k", "t"), ("k2", "t2"))
            )
        },
    ),
    (
        "plan.nodes:require_names:2",
        Filter(id="", input=SCAN, where="k > 1"),
        {"give each node an 'id'": Filter(id="f", input=SCAN, where="k > 1")},
    ),
    (
        "plan.nodes:require_names:3",
        Filter(id="rows", input=SCAN, where="k > 1"),
        {"give each node an 'id' of its own": Filter(id="f", input=SCAN, where="k > 1")},
    ),
    (
        "errors:PlanError.missing_column",
        Unnest(id="u", input=SCAN, column="y"),
        {"name one of them": Unnest(id="u", input=SCAN, column="x")},
    ),
    (
        "task.aggregation:GroupComputation.__init__",
        grouped(keys=()),
        {"give it one or the other": grouped()},
    ),
    (
        "task.aggregation:GroupComputation._key_field",
        grouped(keys=("x",)),
        {"cast it in a projection below": grouped(input=project(SCAN, t="CAST(k AS STRING)"))},
    ),
    (
        "plan.aggregates:Aggregate.of",
        lambda: grouped(Aggregate.of("n", "summ", "k")),
        {"Did you mean 'sum'": grouped(Aggregate.of("n", "sum", "k"))},
    ),
    (
        "task.aggregation:GroupComputation._accumulator",
        grouped(Aggregate("n", AggregateKind.SUM, "k", scale=2)),
        {
            "leave it out": grouped(Aggregate("n", AggregateKind.SUM, "k")),
            "cast the column to a decimal": grouped(
                Aggregate("n", AggregateKind.SUM, "k"),
                input=project(SCAN, "t", k="CAST(k AS DECIMAL(10, 2))"),
            ),
        },
    ),
    (
        "task.join_output:Shape.of",
        joined(HashJoin, LEFT, RIGHT, on=()),
        {"say in 'on' which are equal": joined(HashJoin, LEFT, RIGHT)},
    ),
    (
        "task.aggregation:GroupComputation._accumulator:2",
        grouped(Aggregate.of("n", "sum")),
        {"name a column": grouped(Aggregate.of("n", "sum", "k"))},
    ),
    (
        "task.aggregation:GroupComputation._accumulator:2",
        grouped(Aggregate.of("n", "sum", "t"), keys=("k",)),
        {
            "cast it in a projection below": grouped(
                Aggregate.of("n", "sum", "t"),
                keys=("k",),
                input=project(SCAN, "k", t="CAST(CASE WHEN t = 'a' THEN '1' END AS INT)"),
            )
        },
    ),
    (
        "task.aggregation:GroupComputation._require_names",
        grouped(Aggregate.of("t", "count")),
        {"give the aggregate another name": grouped(Aggregate.of("n", "count"))},
    ),
    (
        "task.join_output:require_types",
        joined(HashJoin, LEFT, RIGHT, on=JoinKeys.pairs(("k",), ("t2",))),
        {
            "cast one of them in a projection below the join": joined(
                HashJoin,
                project(LEFT, k="CAST(k AS STRING)", t="t"),
                RIGHT,
                on=JoinKeys.pairs(("k",), ("t2",)),
            )
        },
    ),
    (
        "task.join_output:require_types:2",
        joined(
            HashJoin,
            SCAN,
            project(ArrowScan(id="other", schema=SCHEMA), x2="x"),
            on=JoinKeys.pairs(("x",), ("x2",)),
        ),
        {
            "cast both sides in a projection below the join": joined(
                HashJoin,
                project(SCAN, x="CAST(k AS STRING)"),
                Project(
                    id="other_texts",
                    input=ArrowScan(id="other", schema=SCHEMA),
                    columns=(ProjectedColumn("x2", "CAST(k AS STRING)"),),
                ),
                on=JoinKeys.pairs(("x",), ("x2",)),
            )
        },
    ),
    (
        "task.join_output:require_names",
        joined(HashJoin, LEFT, flat("right", k="k2"), on=JoinKeys.pairs(("k",), ("k2",))),
        {
            "rename it": joined(HashJoin, LEFT, RIGHT),
            "leave it out": joined(
                HashJoin,
                LEFT,
                Project(id="less", input=flat("right"), columns=(ProjectedColumn("k2", "k"),)),
            ),
        },
    ),
    (
        "task.operator:numbered",
        AssignUniqueId(id="ids", input=SCAN, column="k"),
        {"give 'column' another name": AssignUniqueId(id="ids", input=SCAN, column="n")},
    ),
    (
        "task.operator:numbered.apply",
        AssignUniqueId(id="ids", input=SCAN, column="n", first=(1 << 63) - 1),
        {"begin at a lower 'first'": AssignUniqueId(id="ids", input=SCAN, column="n", first=7)},
    ),
    (
        "task.aggregation:GroupComputation.answers",
        grouped(
            Aggregate.of("n", "sum", "n"), keys=(), input=project(SCAN, n="9223372036854775807")
        ),
        {
            "cast 'n' to a wider type in a projection below it": grouped(
                Aggregate.of("n", "sum", "n"),
                keys=(),
                input=project(SCAN, n="CAST(9223372036854775807 AS DECIMAL(38, 0))"),
            )
        },
    ),
    (
        "task.aggregation:HashAggregation._require_memory",
        grouped(Aggregate.of("n", "count"), memory_bytes_max=1),
        {
            "raise the node's 'memory_bytes_max'": grouped(
                Aggregate.of("n", "count"), memory_bytes_max=1 << 20
            )
        },
    ),
    (
        "task.hash_join:HashJoinRows._require_memory",
        joined(HashJoin, LEFT, RIGHT, memory_bytes_max=1),
        {
            "raise the node's 'memory_bytes_max'": joined(
                HashJoin, LEFT, RIGHT, memory_bytes_max=1 << 20
            ),
            "use a merge join": joined(MergeJoin, LEFT, RIGHT),
        },
    ),
    (
        "task.merge_join:MergeJoinRows._require_memory",
        joined(MergeJoin, LEFT, RIGHT, memory_bytes_max=1),
        {
            "raise the node's 'memory_bytes_max'": joined(
                MergeJoin, LEFT, RIGHT, memory_bytes_max=1 << 20
            )
        },
    ),
    (
        "task.pipelines:_project",
        Project(id="p", input=SCAN, columns=(ProjectedColumn("k", "k"), ProjectedColumn("k", "t"))),
        {
            "rename one of them": Project(
                id="p", input=SCAN, columns=(ProjectedColumn("k", "k"), ProjectedColumn("l", "t"))
            )
        },
    ),
    (
        "task.pipelines:_require_parts",
        MixedUnion(id="m", parts=()),
        {"give it at least one": MixedUnion(id="m", parts=(SCAN,))},
    ),
    (
        "task.pipelines:_require_keys",
        LocalPartition(id="m", parts=(SCAN,), keys=("x",)),
        {
            "name columns of numbers, texts or moments": LocalPartition(
                id="m", parts=(SCAN,), keys=("t",)
            )
        },
    ),
    (
        "task.pipelines:_other_columns",
        MixedUnion(id="m", parts=(SCAN, LEFT)),
        {"bring them to one form by a project": MixedUnion(id="m", parts=(flat("rows"), LEFT))},
    ),
    (
        "task.pipelines:_Builder._scans:2",
        Filter(id="f", input=TableScan(id="rows"), where="k > 1"),
        {
            "give it the schema of its rows": Filter(
                id="f", input=TableScan(id="rows", schema=SCHEMA), where="k > 1"
            )
        },
    ),
)

SPLITS = {"rows": [ROWS], "left": [ROWS], "right": [ROWS], "other": [ROWS]}


def of_plan(site: str, wrong: Node | Callable[[], Node], advice: Mapping[str, Node]) -> None:
    def ran(plan: Node) -> list[dict[str, Any]]:
        scans = [each.id for each in plan.walk() if not each.inputs]
        tables = [each.id for each in plan.walk() if isinstance(each, TableScan)]
        own = {name: SPLITS[name] for name in scans if name in SPLITS}
        return rows_of(plan, own, readers=dict.fromkeys(tables, read_arrow))

    @follows(site)
    def _(told: Told) -> None:
        with told:
            ran(wrong if isinstance(wrong, Node) else wrong())
        for quoted, plan in advice.items():
            told(quoted)
            ran(plan)


for _site, _wrong, _advice in PLANS:
    of_plan(_site, _wrong, _advice)


def union(count: int) -> Node:
    parts = (ArrowScan(id=f"s{number}", schema=SCHEMA) for number in range(count))
    return MixedUnion(id="all", parts=tuple(parts))


@follows("plan.nodes:require_names")
def _(told: Told) -> None:
    with told:
        rows_of(union(NODES_MAX))
    told("cut it into several")
    half = NODES_MAX // 2
    assert len(rows_of(union(half))) == len(ROWS) * half


@follows("task.merge_join:_Arriving._require_order")
def _(told: Told) -> None:
    falling = {"left": [ROWS.slice(1), ROWS.slice(0, 1)], "right": [ROWS]}
    plan = joined(MergeJoin, LEFT, RIGHT)
    with told:
        rows_of(plan, falling)
    told("sort its splits by the keys")
    found = rows_of(plan, {"left": falling["left"][::-1], "right": [ROWS]})
    told("use a hash join")
    assert len(rows_of(joined(HashJoin, LEFT, RIGHT), falling)) == len(found)
    told("give it one split for each barrier")
    with Task(plan) as task:
        count = 0
        for split in falling["left"]:
            task.add_split("left", split)
            task.add_split("right", ROWS)
            task.request_barrier()
            count += sum(batch.num_rows for batch in task.iter_batches())
    assert count == len(found)


LOOKUP = ArrowLookup(pa.table({"id": [1], "name": ["one"]}), ["id"])


def looked_up(**more: Any) -> IndexLookupJoin:
    given = {"how": JoinType.LEFT, "keys": ("k",), **more}
    return IndexLookupJoin(id="names", input=flat("rows"), **given)


@follows("task.lookup_join:LookupJoinRows._check")
def _(told: Told) -> None:
    with told:
        rows_of(looked_up(how=JoinType.FULL), lookups={"names": LOOKUP})
    for kind, how in ((MergeJoin, "use a merge join"), (HashJoin, "or a hash join")):
        told(how)
        assert rows_of(joined(kind, LEFT, RIGHT, how=JoinType.FULL))


@follows("task.lookup_join:LookupJoinRows._check:2")
def _(told: Told) -> None:
    with told:
        rows_of(looked_up(keys=("k", "t")), lookups={"names": LOOKUP})
    told("give a key for each of them, in their order")
    assert rows_of(looked_up(), lookups={"names": LOOKUP})[0]["name"] == "one"


@follows("task.pipelines:operator_of")
def _(told: Told) -> None:
    with told:
        rows_of(looked_up())
    told("give the task a lookup: lookups={'names': ...}")
    rows_of(looked_up(), lookups={"names": LOOKUP})


@follows("task.pipelines:_require_nodes")
def _(told: Told) -> None:
    with told:
        rows_of(looked_up(), lookups={"nmaes": LOOKUP})
    rows_of(looked_up(), lookups={told.meant: LOOKUP})


@follows("task.pipelines:_require_nodes")
def _(told: Told) -> None:
    with told:
        rows_of(SCAN, lookups={"names": LOOKUP})
    told("leave it out")
    rows_of(SCAN)


@follows("task.pipelines:_Builder._scans")
def _(told: Told) -> None:
    plan = TableScan(id="orders", schema=SCHEMA)
    with told:
        rows_of(plan, {"orders": [ROWS]})
    told("give the task one: readers={'orders': ...}")
    assert rows_of(plan, {"orders": [ROWS]}, readers={"orders": read_arrow})


@follows("task.sources:ScanFeed._checked")
def _(told: Told) -> None:
    with told:
        rows_of(SCAN, {"rows": [ROWS.select(["k"])]})
    told("give the scan the schema that its splits have")
    rows_of(ArrowScan(id="rows", schema=SCHEMA.remove(2).remove(1)), {"rows": [ROWS.select(["k"])]})


@follows("task.sources:_file")
def _(told: Told) -> None:
    plan = FileScan(id="files", schema=SCHEMA)
    path = str(told.folder / "rows.pq")
    pq.write_table(ROWS, path)
    with told:
        rows_of(plan, {"files": [path]})
    told("give the task a reader for this scan")

    def read(split: str) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = pq.read_table(split).to_batches()
        return batches

    assert rows_of(plan, {"files": [path]}, readers={"files": read})


@follows("task.sources:_damaged")
def _(told: Told) -> None:
    plan = FileScan(id="files", schema=SCHEMA)
    path = told.folder / "rows.parquet"
    path.write_bytes(b"half of a file")
    with told:
        rows_of(plan, {"files": [str(path)]})
    told("write it again")
    pq.write_table(ROWS, path)
    assert rows_of(plan, {"files": [str(path)]})
    path.write_bytes(b"half of a file")
    told("leave it out of the task's splits")
    rows_of(plan, {"files": []})


@follows("task.task:Task.__init__")
def _(told: Told) -> None:
    with told:
        rows_of(SCAN, drivers=0)
    told("give 1")
    rows_of(SCAN, drivers=1)


@follows("task.task:Task.__init__:2")
def _(told: Told) -> None:
    with told:
        rows_of(SCAN, drivers=65)
    told("give fewer drivers")
    rows_of(SCAN, drivers=2)


@follows("task.task:Task._require_leaf")
def _(told: Told) -> None:
    with told:
        rows_of(SCAN, {"rosw": [ROWS]})
    rows_of(SCAN, {told.meant: [ROWS]})


@follows("task.task:Task._require_leaf")
def _(told: Told) -> None:
    plan = Values(id="given", rows=ROWS)
    with told:
        rows_of(plan, {"given": [ROWS]})
    told("the plan has no leaf that takes splits")
    assert rows_of(plan, {})


# The order of calls -------------------------------------------------------------------------


@follows("task.lifecycle:_split_under_barrier")
def _(told: Told) -> None:
    with Task(SCAN) as task:
        task.add_split("rows", ROWS)
        task.request_barrier()
        with told:
            task.add_split("rows", ROWS)
        told("pull until the barrier is reached, then add it")
        assert len(list(task.iter_batches())) == 1
        task.add_split("rows", ROWS)
        task.request_barrier()
        assert len(list(task.iter_batches())) == 1


@follows("task.lifecycle:_leaf_has_ended")
def _(told: Told) -> None:
    with Task(SCAN) as task:
        task.no_more_splits("rows")
        with told:
            task.add_split("rows", ROWS)
    told("call `no_more_splits` behind the last barrier")
    with Task(SCAN) as task:
        task.add_split("rows", ROWS)
        task.request_barrier()
        list(task.iter_batches())
        task.no_more_splits("rows")
    told("a new task takes more")
    assert rows_of(SCAN)


@follows("task.lifecycle:_nothing_to_pull")
def _(told: Told) -> None:
    for advice in ("call `request_barrier`", "`no_more_splits` for each leaf"):
        with Task(SCAN) as task:
            task.add_split("rows", ROWS)
            if not told.followed:
                with told:
                    task.next()
            told(advice)
            task.request_barrier() if "barrier" in advice else task.no_more_splits("rows")
            assert len(list(task.iter_batches())) == 1


@follows("task.lifecycle:_is_over")
def _(told: Told) -> None:
    task = Task(SCAN)
    task.close()
    with told:
        task.next()
    told("make a new task")
    assert rows_of(SCAN)


@follows("task.pipelines:operator_of:2")
def _(told: Told) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Other(Node):
        kind: ClassVar[str] = "other"
        input: Node

    with told:
        rows_of(Other(id="other", input=SCAN))
    told("use another node")
    assert len(rows_of(Filter(id="other", input=SCAN, where="k > 1"))) == 2
