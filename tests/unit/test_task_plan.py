"""Plans: values with a text, and errors that name the node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_upsert.errors import PlanError
from spark_upsert.plan.aggregates import Aggregate
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import (
    KINDS,
    ArrowScan,
    AssignUniqueId,
    ChangeScan,
    Column,
    FileScan,
    Filter,
    Group,
    HashJoin,
    IndexLookupJoin,
    Join,
    JoinKeys,
    JoinType,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    ProjectedColumn,
    Reverse,
    Scan,
    TableScan,
    Unnest,
    Values,
    require_names,
    scans_of,
)

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.list_(pa.decimal128(38, 3)))])
SCAN = ArrowScan(id="rows", schema=SCHEMA)

TABLE = Scan(id="orders", path="a/b", columns=(Column("id", "int64"),), key=("id",), version=3)

PLANS: tuple[Node, ...] = (
    SCAN,
    TABLE,
    FileScan(id="files", schema=SCHEMA),
    TableScan(id="table", schema=SCHEMA),
    ChangeScan(id="changes", schema=SCHEMA),
    Values(id="given", rows=pa.table({"id": [1, None], "t": ["ä", ""]})),
    Filter(id="big", input=SCAN, where="id > 5"),
    Project(
        id="named",
        input=SCAN,
        columns=(ProjectedColumn("y", "id * 2"), ProjectedColumn("id", "id")),
    ),
    Unnest(id="each", input=SCAN, column="x", position="pos", batch_rows=23),
    Limit(id="few", input=SCAN, count=10, offset=2),
    AssignUniqueId(id="numbered", input=SCAN, column="n", first=7),
    LocalPartition(id="parted", parts=(SCAN, FileScan(id="f", schema=SCHEMA)), keys=("id",)),
    MixedUnion(id="mixed", parts=(SCAN, FileScan(id="f", schema=SCHEMA))),
    Group(
        id="sums",
        input=SCAN,
        keys=("id",),
        aggregates=(Aggregate.of("n", "count"), Aggregate.of("s", "sum", "id")),
        is_clustered=True,
        memory_bytes_max=1 << 20,
    ),
    MergeJoin(
        id="merged",
        left=SCAN,
        right=FileScan(id="f", schema=SCHEMA),
        how=JoinType.FULL,
        on=JoinKeys.pairs(("id",), ("id",)),
    ),
    HashJoin(
        id="hashed",
        left=SCAN,
        right=FileScan(id="f", schema=SCHEMA),
        how=JoinType.ANTI,
        on=JoinKeys.pairs(("id",), ("id",)),
    ),
    Join(id="joined", left=SCAN, right=TABLE, on=(JoinKeys("id", "id"),), reverse=Reverse.SCAN),
    IndexLookupJoin(id="found", input=SCAN, how=JoinType.LEFT, keys=("id",)),
)


def test_every_node_is_in_the_cases() -> None:
    assert {type(plan) for plan in PLANS} == set(KINDS.values())


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_a_plan_comes_back_from_its_text(plan: Node) -> None:
    text = plan.to_json()
    assert plan_from_json(text) == plan
    assert plan_from_json(text).to_json() == text


def test_what_a_text_leaves_out_is_the_default() -> None:
    text = Limit(id="few", input=SCAN, count=3).to_json()
    record = json.loads(text)
    assert "offset" not in record
    record["offset"] = 0
    assert plan_from_json(json.dumps(record)).to_json() == text


def test_the_scans_of_a_plan_are_in_its_order() -> None:
    assert [scan.id for scan in scans_of(PLANS[14])] == ["rows", "f"]
    assert scans_of(PLANS[5]) == ()


def edited(**changes: Any) -> str:
    """Return the text of a limit, altered; ``None`` takes a field away."""
    record = json.loads(Limit(id="few", input=SCAN, count=3).to_json())
    record |= changes
    return json.dumps({key: value for key, value in record.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "no JSON, or longer or deeper", id="endless brackets"),
        pytest.param('{"v": 1, "plan": 3}', "expected a node of a plan", id="no node"),
        pytest.param(
            edited(node="limmit"), "no node 'limmit'.*Did you mean 'limit'", id="unknown kind"
        ),
        pytest.param(edited(cout=3), "node 'few': .*Did you mean 'count'", id="unknown field"),
        pytest.param(edited(count=None), "node 'few': .*'count' is missing", id="missing field"),
        pytest.param(edited(count="3"), "node 'few': .*\"3\", expected a whole", id="a text"),
        pytest.param(edited(count=True), "node 'few': .*true, expected a whole", id="a truth"),
        pytest.param(edited(count=-1), "node 'few': .*-1, expected a whole number", id="below 0"),
        pytest.param(edited(id=7), "its field 'id' is 7, expected a text", id="no text"),
        pytest.param(edited(input=[]), "node 'few': expected a node of a plan", id="no input"),
        pytest.param(
            edited(input={"id": "rows", "node": "arrow_scan", "schema": "????"}),
            "node 'rows': its field 'schema' .* a schema as Arrow's bytes",
            id="a broken schema",
        ),
        pytest.param(
            edited(input={"id": "few", "node": "values", "rows": ""}),
            "node 'few': its field 'rows' .* rows as a stream of Arrow's",
            id="broken rows",
        ),
    ],
)
def test_a_text_that_is_no_plan_is_refused_where_it_is_wrong(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"(?s){message}"):
        plan_from_json(text)


def of_two(keys: tuple[str, ...]) -> Node:
    other = FileScan(id="f", schema=SCHEMA)
    kind = JoinType.INNER
    return HashJoin(id="h", left=SCAN, right=other, how=kind, on=JoinKeys.pairs(("id",), keys))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        pytest.param(
            lambda: Unnest(id="u", input=SCAN, column="x", batch_rows=0),
            "node 'u': 'batch_rows' of a unnest is at least 1, found 0",
            id="batches of no rows",
        ),
        pytest.param(
            lambda: of_two(()), "as many columns .* found 1 and 0", id="a column on one side"
        ),
        pytest.param(
            lambda: require_names(MixedUnion(id="m", parts=(SCAN, SCAN))),
            "node 'rows': a arrow_scan and a arrow_scan have this name",
            id="a name twice",
        ),
        pytest.param(
            lambda: require_names(Limit(input=SCAN, count=1)), "a limit has no name", id="no name"
        ),
        pytest.param(
            lambda: Filter(id="f", input=SCAN, where=pc.field("id") > 1).to_json(),
            "node 'f' holds an expression of Arrow, which has no text",
            id="an expression of Arrow in JSON",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build()


def deep(count: int) -> Node:
    plan: Node = SCAN
    for index in range(count):
        plan = Limit(id=f"l{index}", input=plan, count=1)
    return plan


def wide(count: int) -> Node:
    parts = tuple(ArrowScan(id=f"s{index}", schema=SCHEMA) for index in range(count))
    return MixedUnion(id="m", parts=parts)


def twice(count: int) -> Node:
    plan: Node = SCAN
    for index in range(count):
        plan = MixedUnion(id=f"m{index}", parts=(plan, plan))
    return plan


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        pytest.param(deep(101), "deeper than 100 nodes", id="102 one below the other"),
        pytest.param(deep(10_000), "deeper than 100 nodes", id="10001 one below the other"),
        pytest.param(wide(1000), "at most 1000 nodes", id="1001 side by side"),
        pytest.param(twice(60), "have this name", id="one below two, 60 times"),
    ],
)
def test_a_plan_of_a_task_that_is_too_large_is_refused(plan: Node, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        require_names(plan)


@pytest.mark.parametrize("plan", [deep(100), wide(999)], ids=["as deep", "as many"])
def test_a_plan_may_be_as_large_as_is_said(plan: Node) -> None:
    require_names(plan)
    assert plan_from_json(plan.to_json()) == plan


def test_a_text_that_is_too_deep_is_refused() -> None:
    head = '{"node":"limit","count":1,"input":'
    scan = SCAN.to_json().replace('"v":1,', "")
    plan_from_json('{"v":1,' + f"{head * 100}{scan}{'}' * 100}"[1:])
    with pytest.raises(PlanError, match="deeper than 100 nodes"):
        plan_from_json('{"v":1,' + f"{head * 101}{scan}{'}' * 101}"[1:])


def test_a_text_holds_what_is_not_the_default_and_nothing_else() -> None:
    plan = Limit(id="few", input=SCAN, count=3)
    assert list(json.loads(plan.to_json())) == ["v", "node", "id", "input", "count"]
    large = Unnest(input=SCAN, column="x", batch_rows=int("16384"))
    assert list(json.loads(large.to_json())) == ["v", "node", "input", "column"]
