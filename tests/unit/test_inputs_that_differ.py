"""Inputs whose columns differ, and inputs that come and go under a checkpoint."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataLossError, OptionError, OtherTableError, SchemaError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.inputs import Described, NamedInputs, union_schema
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    shared_columns,
    stream_inputs,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.inputs import Told, told
from tests.support.streams import Query

K = pa.field("k", pa.int64())


def table(folder: Path, **columns: pa.DataType) -> Table:
    """Make a table with one row, whose values are 1 or ``"1"``."""
    made = Table.create(str(folder), pa.schema(columns), keys=["k"])
    row = {name: "1" if type_ == pa.string() else 1 for name, type_ in columns.items()}
    made.upsert(pa.Table.from_pylist([row], schema=pa.schema(columns)))
    return made


def plan_of(folder: Path, names: str, **more: str) -> ReadPlan:
    paths = {f"input.{name}.path": str(folder / name) for name in names.split(",")}
    return ReadPlan.parse({"inputs": names, "mergeColumns": "_input", **paths, **more})


def rows_of_batch(plan: ReadPlan) -> list[dict[str, Any]]:
    columns = plan_columns(plan)
    merged = MergedRead(
        batch_inputs(plan, columns), plan.query, columns=shared_columns(plan, columns)
    )
    return [row for work in merged.splits() for b in merged.read(work) for row in b.to_pylist()]


def rows_of_stream(plan: ReadPlan) -> list[dict[str, Any]]:
    query = Query(lambda: stream_of(plan))
    query.drain()
    return [row for batch in query.batches for row in batch]


def stream_of(plan: ReadPlan) -> Stream:
    columns = plan_columns(plan)
    return Stream(
        stream_inputs(plan, columns), plan.query, columns=shared_columns(plan, columns), clock=Now()
    )


ORDERS = [
    pytest.param({}, id="live"),
    pytest.param({"merge": "concat"}, id="concat"),
    pytest.param({"merge": "roundrobin"}, id="roundrobin"),
    pytest.param({"interleaveSeed": "1"}, id="seeded"),
]


@pytest.mark.parametrize("order", ORDERS)
def test_what_an_input_lacks_is_null_and_types_widen(tmp_path: Path, order: dict[str, str]) -> None:
    table(tmp_path / "east", k=pa.int64(), v=pa.int32(), e=pa.string())
    table(tmp_path / "west", k=pa.int64(), w=pa.float32(), v=pa.int64())
    plan = plan_of(tmp_path, "east,west", mergeSchema="true", **order)
    assert plan_columns(plan).names == ["k", "v", "e", "w", "_input"]
    assert plan_columns(plan).field("v").type == pa.int64()
    east = {"k": 1, "v": 1, "e": "1", "w": None, "_input": "east"}
    west = {"k": 1, "v": 1, "e": None, "w": 1.0, "_input": "west"}
    assert sorted(rows_of_batch(plan), key=lambda row: row["_input"]) == [east, west]
    changes = plan_of(tmp_path, "east,west", mergeSchema="true", readChangeFeed="true", **order)
    assert plan_columns(changes).names[:5] == ["k", "v", "e", "w", "_change_type"]
    rows = sorted(rows_of_stream(changes), key=lambda row: row["_input"])
    assert [{name: row[name] for name in east} for row in rows] == [east, west]
    assert [row["_change_type"] for row in rows] == ["insert", "insert"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_column_that_is_chosen_is_null_where_an_input_lacks_it(
    tmp_path: Path, order: dict[str, str]
) -> None:
    table(tmp_path / "east", k=pa.int64(), v=pa.int32(), other=pa.string())
    table(tmp_path / "west", k=pa.int64(), w=pa.float32(), other=pa.int64())
    chosen = {"mergeSchema": "true", "columns": "W,v", **order}
    plan = plan_of(tmp_path, "east,west", **chosen)
    assert plan_columns(plan).names == ["w", "v", "_input"]
    changes = plan_of(tmp_path, "east,west", readChangeFeed="true", **chosen)
    for rows in (rows_of_batch(plan), rows_of_stream(changes)):
        assert list(rows[0])[:2] == ["w", "v"]
        by_input = {row["_input"]: (row["w"], row["v"]) for row in rows}
        assert by_input == {"east": (None, 1), "west": (1.0, None)}
    unknown = plan_of(tmp_path, "east,west", mergeSchema="true", columns="k,x")
    with pytest.raises(
        SchemaError, match=r"column 'x' is not among the columns \(k, v, other, w\)"
    ):
        plan_columns(unknown)


def test_types_that_differ_need_mergeschema_and_a_wider_one(tmp_path: Path) -> None:
    for name, type_ in (("east", pa.int32()), ("west", pa.int64()), ("north", pa.string())):
        table(tmp_path / name, k=pa.int64(), v=type_)
    with pytest.raises(SchemaError, match="int64 in the input 'west', and int32") as caught:
        plan_columns(plan_of(tmp_path, "east,west"))
    assert "merge_schema=true" in caught.value.hint
    with pytest.raises(SchemaError, match="string in the input 'north', and int32 in 'east'"):
        plan_columns(plan_of(tmp_path, "east,north", mergeSchema="true"))


def test_columns_that_differ_in_case_alone_are_refused() -> None:
    inputs = {
        "east": Described(pa.schema([K, pa.field("amount", pa.int64())]), "1"),
        "west": Described(pa.schema([K, pa.field("Amount", pa.int64())]), "2"),
    }
    with pytest.raises(SchemaError, match="'amount' of the input 'east' and 'Amount' of 'west'"):
        union_schema(inputs)
    assert union_schema(inputs, ["k", "amount"]).names == ["k", "amount"]


@pytest.mark.parametrize("order", ORDERS)
def test_an_input_that_is_added_begins_with_all_it_has(order: dict[str, str]) -> None:
    inputs = told({"a": [1], "b": [1]})
    query = Query(lambda: over("a", inputs, may_lack=False, **order))
    query.drain()
    inputs["a"].epochs += [1]
    more = Query(lambda: over("ab", inputs, may_lack=False, **order))
    more.noted, more.batches = query.noted, query.batches
    more.drain()
    assert sorted(row["row"] for batch in more.batches for row in batch) == ["a1", "a2", "b1"]


def over(names: str, inputs: dict[str, Told], *, may_lack: bool, **given: str) -> Stream:
    named = NamedInputs({name: inputs[name] for name in names}, may_lack=may_lack)
    return Stream(named, ReadPlan.parse({"inputs": "a", **given}).query, clock=Now())


@pytest.mark.parametrize("order", ORDERS)
def test_an_input_that_is_left_out_needs_leave(order: dict[str, str]) -> None:
    inputs = told({"a": [2], "b": [2]})
    query = Query(lambda: over("ab", inputs, may_lack=False, **order))
    query.drain()
    start = json.loads(query.noted[-1])
    with pytest.raises(OptionError, match=r"inputs \['b'\]") as caught:
        over("a", inputs, may_lack=False, **order).latest(start)
    assert "allow_input_removal=true" in caught.value.hint
    inputs["a"].epochs += [1]
    less = Query(lambda: over("a", inputs, may_lack=True, **order))
    less.noted, less.batches = query.noted, query.batches
    less.drain()
    assert [row["row"] for row in less.batches[-1]] == ["a3"]
    assert set(json.loads(less.noted[-1])["positions"]) == {"a"}


def test_leave_is_given_by_an_option(tmp_path: Path) -> None:
    for name in ("east", "west"):
        table(tmp_path / name, k=pa.int64())
    query = Query(lambda: stream_of(plan_of(tmp_path, "east,west")))
    query.drain()
    start = json.loads(query.noted[-1])
    given = plan_of(tmp_path, "east", allowInputRemoval="true")
    assert set(stream_of(given).latest(start)["positions"]) == {"east"}
    with pytest.raises(OptionError, match="no meaning in a batch read"):
        rows_of_batch(given)


def test_a_batch_under_way_goes_without_what_is_left_out_unless_its_order_counts_it() -> None:
    inputs = told({"a": [2], "b": [2]})
    orders: list[dict[str, str]] = [{}, {"merge": "roundrobin"}]
    for order in orders:
        query = Query(partial(over, "ab", inputs, may_lack=True, **order))
        query.plan()
        less = Query(partial(over, "a", inputs, may_lack=True, **order))
        less.noted = query.noted
        if order:
            with pytest.raises(DataLossError, match="input 'b': it was removed") as caught:
                less.deliver()
            assert "name it again" in caught.value.hint
        else:
            assert [row["row"] for row in less.deliver()] == ["a1", "a2"]
            less.plan()


@pytest.mark.parametrize("order", ORDERS)
def test_a_table_that_was_made_anew_is_named(tmp_path: Path, order: dict[str, str]) -> None:
    for name in ("east", "west"):
        table(tmp_path / name, k=pa.int64())
    query = Query(lambda: stream_of(plan_of(tmp_path, "east,west", **order)))
    query.drain()
    (tmp_path / "west").rename(tmp_path / "away")
    table(tmp_path / "west", k=pa.int64())
    query.restart()
    with pytest.raises(OtherTableError, match="input 'west': the checkpoint of this query"):
        query.plan()
