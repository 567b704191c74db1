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
)

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.list_(pa.decimal128(38, 3)))])
SCAN = ArrowScan(id="rows", schema=SCHEMA)
FILES = FileScan(id="files", schema=SCHEMA)
ON = JoinKeys.pairs(("id",), ("id",))

TABLE = Scan(id="orders", path="a/b", columns=(Column("id", "int64"),), key=("id",), version=3)

PLANS: tuple[Node, ...] = (
    SCAN,
    TABLE,
    FILES,
    TableScan(id="table", schema=SCHEMA),
    ChangeScan(id="changes", schema=SCHEMA),
    Values(id="given", rows=pa.table({"id": [1, None], "t": ["ä", ""]})),
    Filter(id="big", input=SCAN, where="id > 5"),
    Project(id="named", input=SCAN, columns=(ProjectedColumn("y", "id * 2"),)),
    Unnest(id="each", input=SCAN, column="x", position="pos", batch_rows=23),
    Limit(id="few", input=SCAN, count=10, offset=2),
    AssignUniqueId(id="numbered", input=SCAN, column="n", first=7),
    LocalPartition(id="parted", parts=(SCAN, FILES), keys=("id",)),
    MixedUnion(id="mixed", parts=(SCAN, FILES)),
    Group(
        id="sums",
        input=SCAN,
        keys=("id",),
        aggregates=(Aggregate.of("n", "count"), Aggregate.of("s", "sum", "id")),
        is_clustered=True,
        memory_bytes_max=1 << 20,
    ),
    MergeJoin(id="merged", left=SCAN, right=FILES, how=JoinType.FULL, on=ON),
    HashJoin(id="hashed", left=SCAN, right=FILES, how=JoinType.ANTI, on=ON),
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


def test_a_text_leaves_out_what_is_the_default() -> None:
    text = Limit(id="few", input=SCAN, count=3).to_json()
    assert list(json.loads(text)) == ["v", "node", "id", "input", "count"]
    assert plan_from_json(json.dumps(json.loads(text) | {"offset": 0})).to_json() == text
    large = Unnest(input=SCAN, column="x", batch_rows=int("16384"))
    assert list(json.loads(large.to_json())) == ["v", "node", "input", "column"]


def edited(**changes: Any) -> str:
    """Return the text of a limit, altered; ``None`` takes a field away."""
    record = json.loads(Limit(id="few", input=SCAN, count=3).to_json())
    record |= changes
    return json.dumps({key: value for key, value in record.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"v": 1, "plan": 3}', "expected a node of a plan", id="no node"),
        pytest.param(edited(cout=3), "node 'few': .*Did you mean 'count'", id="unknown field"),
        pytest.param(edited(count=None), "node 'few': .*'count' is missing", id="missing field"),
        pytest.param(edited(count="3"), "node 'few': .*\"3\", expected a whole", id="a text"),
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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Unnest(id="u", input=SCAN, column="x", batch_rows=0),
            "node 'u': 'batch_rows' of a unnest is at least 1, found 0",
        ),
        (lambda: JoinKeys.pairs(("id",), ()), "as many columns .* found 1 and 0"),
        (
            lambda: require_names(MixedUnion(id="m", parts=(SCAN, SCAN))),
            "node 'rows': a arrow_scan and a arrow_scan have this name",
        ),
        (lambda: require_names(Limit(input=SCAN, count=1)), "a limit has no name"),
        (
            lambda: Filter(id="f", input=SCAN, where=pc.field("id") > 1).to_json(),
            "node 'f' holds an expression of Arrow, which has no text",
        ),
        (lambda: require_names(deep(101)), "deeper than 100 nodes"),
        (lambda: require_names(deep(10_000)), "deeper than 100 nodes"),
        (lambda: require_names(wide(1000)), "at most 1000 nodes"),
        (lambda: require_names(twice(60)), "have this name"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
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
