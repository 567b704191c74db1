"""Plans: values with a text, and errors that name the node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_upsert.errors import PlanError
from spark_upsert.task.plan import (
    NODES,
    Aggregate,
    Aggregation,
    ArrowScan,
    AssignUniqueId,
    ChangeScan,
    FileScan,
    Filter,
    HashJoin,
    IndexLookupJoin,
    JoinKind,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    TableScan,
    Unnest,
    Values,
    scans_of,
)
from spark_upsert.task.plan_json import plan_from_json, plan_to_json

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.list_(pa.decimal128(38, 3)))])
SCAN = ArrowScan(id="rows", schema=SCHEMA)

PLANS: tuple[Node, ...] = (
    SCAN,
    FileScan(id="files", schema=SCHEMA),
    TableScan(id="table", schema=SCHEMA),
    ChangeScan(id="changes", schema=SCHEMA),
    Values(id="given", rows=pa.table({"id": [1, None], "t": ["ä", ""]})),
    Filter(id="big", input=SCAN, where="id > 5"),
    Project(id="named", input=SCAN, columns=(("y", "id * 2"), ("id", "id"))),
    Unnest(id="each", input=SCAN, column="x", position="pos", batch_rows=23),
    Limit(id="few", input=SCAN, count=10, offset=2),
    AssignUniqueId(id="numbered", input=SCAN, column="n", first=7),
    LocalPartition(id="parted", parts=(SCAN, FileScan(id="f", schema=SCHEMA)), keys=("id",)),
    MixedUnion(id="mixed", parts=(SCAN, FileScan(id="f", schema=SCHEMA))),
    Aggregation(
        id="sums",
        input=SCAN,
        keys=("id",),
        aggregates=(Aggregate("n", "count"), Aggregate("s", "sum", "id")),
        is_clustered=True,
        memory_bytes_max=1 << 20,
    ),
    MergeJoin(
        id="merged",
        left=SCAN,
        right=FileScan(id="f", schema=SCHEMA),
        join=JoinKind.FULL,
        left_keys=("id",),
        right_keys=("id",),
    ),
    HashJoin(
        id="hashed",
        left=SCAN,
        right=FileScan(id="f", schema=SCHEMA),
        join=JoinKind.ANTI,
        left_keys=("id",),
        right_keys=("id",),
    ),
    IndexLookupJoin(id="found", input=SCAN, join=JoinKind.LEFT, keys=("id",)),
)


def test_every_node_is_in_the_cases() -> None:
    assert {type(plan) for plan in PLANS} == set(NODES.values())


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_a_plan_comes_back_from_its_text(plan: Node) -> None:
    text = plan_to_json(plan)
    assert plan_from_json(text) == plan
    assert plan_to_json(plan_from_json(text)) == text


def test_what_a_text_leaves_out_is_the_default() -> None:
    text = plan_to_json(Limit(id="few", input=SCAN, count=3))
    record = json.loads(text)
    del record["plan"]["offset"]
    assert plan_to_json(plan_from_json(json.dumps(record))) == text


def test_the_scans_of_a_plan_are_in_its_order() -> None:
    assert [scan.id for scan in scans_of(PLANS[13])] == ["rows", "f"]
    assert scans_of(PLANS[4]) == ()


def edited(**changes: Any) -> str:
    """Return the text of a limit, altered; ``None`` takes a field away."""
    record = json.loads(plan_to_json(Limit(id="few", input=SCAN, count=3)))
    record["plan"] |= changes
    record["plan"] = {key: value for key, value in record["plan"].items() if value is not None}
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", "its text cannot be read", id="no JSON"),
        pytest.param("[" * 100_000, "its text cannot be read", id="endless brackets"),
        pytest.param("[]", "an object with 'version' and 'plan'", id="a list"),
        pytest.param('{"version": 2, "plan": {}}', "has version 2, known is 1", id="newer"),
        pytest.param('{"version": 1, "plan": 3}', "a node is an object, found 3", id="a number"),
        pytest.param(edited(id=None), "a node has an 'id', a text, found None", id="no name"),
        pytest.param(edited(id=""), "a limit has no name", id="an empty name"),
        pytest.param(
            edited(node="limmit"), "node 'few': .*Did you mean 'limit'", id="unknown kind"
        ),
        pytest.param(edited(cout=3), "node 'few': .*Did you mean 'count'", id="unknown field"),
        pytest.param(edited(count=None), "node 'few': a limit has 'count'", id="missing field"),
        pytest.param(edited(count="3"), "node 'few': 'count' of a limit is a whole", id="a text"),
        pytest.param(edited(count=True), "node 'few': 'count' of a limit is a whole", id="a truth"),
        pytest.param(
            edited(count=-1), "node 'few': 'count' of a limit is at least 0", id="below 0"
        ),
        pytest.param(edited(input=[]), "node 'few': a node is an object", id="no input"),
        pytest.param(
            edited(input={"id": "rows", "node": "arrow_scan", "schema": "????"}),
            "node 'rows': 'schema' of a arrow_scan is a schema",
            id="a broken schema",
        ),
        pytest.param(
            edited(input={"id": "few", "node": "values", "rows": ""}),
            "node 'few': 'rows' of a values is rows",
            id="broken rows",
        ),
    ],
)
def test_a_text_that_is_no_plan_is_refused_where_it_is_wrong(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"(?s){message}"):
        plan_from_json(text)


def of_two(keys: tuple[str, ...]) -> Node:
    other = FileScan(id="f", schema=SCHEMA)
    kind = JoinKind.INNER
    return HashJoin(id="h", left=SCAN, right=other, join=kind, left_keys=("id",), right_keys=keys)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        pytest.param(
            lambda: Unnest(id="u", input=SCAN, column="x", batch_rows=0),
            "node 'u': 'batch_rows' of a unnest is at least 1, found 0",
            id="batches of no rows",
        ),
        pytest.param(lambda: of_two(()), "node 'h': .*found 1 and 0", id="a key on one side"),
        pytest.param(
            lambda: plan_to_json(MixedUnion(id="m", parts=(SCAN, SCAN))),
            "node 'rows': a arrow_scan and a arrow_scan have this name",
            id="a name twice",
        ),
        pytest.param(
            lambda: plan_to_json(Filter(id="f", input=SCAN, where=pc.field("id") > 1)),
            "node 'f': an expression of Arrow has no text",
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


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(deep(100), id="101 one below the other"),
        pytest.param(deep(10_000), id="10001 one below the other"),
        pytest.param(wide(1000), id="1001 side by side"),
    ],
)
def test_a_plan_that_is_too_large_is_refused(plan: Node) -> None:
    with pytest.raises(PlanError, match="at most 1000 nodes, and 100 one below"):
        plan_to_json(plan)


@pytest.mark.parametrize("plan", [deep(99), wide(999)], ids=["as deep", "as many"])
def test_a_plan_may_be_as_large_as_is_said(plan: Node) -> None:
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_text_that_is_too_deep_is_refused() -> None:
    head = '{"node":"limit","id":"a","count":1,"input":'
    text = f'{{"version":1,"plan":{head * 900}{{}}{"}" * 900}}}'
    with pytest.raises(PlanError):
        plan_from_json(text)
