"""The debezium envelope: change events, and which of them cannot be applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, SchemaError
from tests.support.envelopes import assert_sound, counters_of, plan, quarantine_of, rows_of, write
from tests.support.seeds import rest_slow

ROW = pa.struct({"id": pa.int64(), "name": pa.string()})
SOURCE = pa.struct({"lsn": pa.int64(), "txId": pa.int64()})
EVENT = pa.schema(
    {"before": ROW, "after": ROW, "op": pa.string(), "source": SOURCE, "ts_ms": pa.int64()}
)
DEBEZIUM = {"envelope": "debezium", "keys": "id", "sequenceBy": "source.lsn"}

Fields = tuple[int | None, str | None] | None


def event(op: str | None, before: Fields, after: Fields, lsn: int | None) -> dict[str, Any]:
    names = ("id", "name")
    return {
        "before": before and dict(zip(names, before, strict=True)),
        "after": after and dict(zip(names, after, strict=True)),
        "op": op,
        "source": None if lsn is None else {"lsn": lsn, "txId": 0},
        "ts_ms": 0,
    }


def events(*given: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(given), schema=EVENT)


CREATE = event("c", None, (1, "a"), 1)

Case = tuple[list[dict[str, Any]], dict[int, str | None]]
DEBEZIUM_CASES: dict[str, Case] = {
    "a create": ([CREATE], {1: "a"}),
    "a snapshot read": ([event("r", None, (1, "a"), 1)], {1: "a"}),
    "an update": ([CREATE, event("u", (1, "a"), (1, "b"), 2)], {1: "b"}),
    "a delete": ([CREATE, event("d", (1, "a"), None, 2)], {}),
    "a delete whose before is only the key": ([CREATE, event("d", (1, None), None, 2)], {}),
    "an update to another key": ([CREATE, event("u", (1, "a"), (2, "a"), 2)], {2: "a"}),
    "an update there and back": (
        [CREATE, event("u", (1, "a"), (2, "b"), 2), event("u", (2, "b"), (1, "c"), 3)],
        {1: "c"},
    ),
    "a late update": ([event("u", None, (1, "b"), 2), CREATE], {1: "b"}),
    "an update at the position of the snapshot": (
        [event("r", None, (1, "a"), 8), event("u", None, (1, "b"), 8)],
        {1: "b"},
    ),
    "a delete at the position of the snapshot, which is read again": (
        [event("d", (1, "a"), None, 8), event("r", None, (1, "a"), 8)],
        {},
    ),
}


@pytest.mark.parametrize("policy", rest_slow(["fail", "quarantine"]))
@pytest.mark.parametrize("nested", rest_slow([False, True]), ids=["at the top", "below payload"])
@pytest.mark.parametrize("case", DEBEZIUM_CASES.values(), ids=DEBEZIUM_CASES.keys())
def test_change_events(tmp_path: Path, case: Case, nested: bool, policy: str) -> None:
    given, expected = case
    for path, parts in (tmp_path / "once", [given]), (tmp_path / "each", [[row] for row in given]):
        for part in parts:
            rows = events(*part)
            if nested:
                payload = rows.to_struct_array().combine_chunks()
                rows = pa.table({"payload": payload, "schema": ["x"] * len(rows)})
            write(path, rows, onError=policy, **DEBEZIUM)
        assert {row["id"]: row["name"] for row in rows_of(path)} == expected
        assert quarantine_of(path) == []
        assert_sound(path)


@pytest.mark.parametrize("lsn", [8, 1, 0, -(2**63)])
def test_a_row_of_a_snapshot_and_the_first_change_after_it_are_not_tied(
    tmp_path: Path, lsn: int
) -> None:
    write(tmp_path / "t", events(event("r", None, (1, "a"), lsn)), **DEBEZIUM)
    commit = write(tmp_path / "t", events(event("u", None, (1, "b"), lsn)), **DEBEZIUM)
    assert counters_of(commit).tied == (lsn <= 0), "a position is never zero"
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "b"}]


def test_without_an_order_a_row_that_moves_there_and_back_stays_in_the_order_of_arrival(
    tmp_path: Path,
) -> None:
    rows = events(CREATE, event("u", (1, "a"), (2, "b"), 2), event("u", (2, "b"), (1, "c"), 3))
    commit = write(tmp_path / "t", rows, envelope="debezium", keys="id")
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "c"}]
    assert counters_of(commit).rows == 5, "a row that moves is two commands"


BAD_EVENTS = {
    "truncate": (event("t", None, None, 2), "op 't' (truncate) cannot be applied"),
    "message": (event("m", None, None, 2), "op 'm' is a logical decoding message"),
    "unknown": (event("C", None, (1, "b"), 2), "op 'C' is not one of c, r, u, d"),
    "no op": (event(None, None, (1, "b"), 2), "the event has no 'op'"),
    "no op, no after": (event(None, (1, "a"), None, 2), "the event has no 'op'"),
    "nothing, as from_json has it": (event(None, None, None, None), "the event has no 'op'"),
    "an update without after": (event("u", (1, "a"), None, 2), "op 'u' has no 'after'"),
    "a delete with after": (event("d", (1, "a"), (1, "a"), 2), "op 'd' has an 'after'"),
    "a delete without a key": (event("d", None, None, 2), "op 'd' has no key in 'before'"),
    "no key": (event("c", None, (None, "b"), 2), "the key 'id' is null"),
    "no order": (event("u", None, (1, "b"), None), "sequenceBy column 'source.lsn' is null"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_EVENTS.values(), ids=BAD_EVENTS)
@pytest.mark.sweep(5)
def test_events_that_cannot_be_applied(tmp_path: Path, bad: dict[str, Any], reason: str) -> None:
    write(tmp_path / "fail", events(CREATE), **DEBEZIUM)
    with pytest.raises(DataError) as caught:
        write(tmp_path / "fail", events(bad), **DEBEZIUM)
    assert reason in str(caught.value)
    assert rows_of(tmp_path / "fail") == [{"id": 1, "name": "a"}]

    path = tmp_path / "quarantine"
    write(path, events(CREATE), onError="quarantine", **DEBEZIUM)
    commit = write(path, events(bad), **DEBEZIUM)
    own = bad["after"] or bad["before"]
    has_key = bool(own and own["id"])
    assert counters_of(commit).quarantined == 1
    assert counters_of(commit).deletes == 0
    [error] = quarantine_of(path)
    assert reason in error["_reason"]
    assert json.loads(error["_raw_value"]) == bad
    assert rows_of(path) == ([] if has_key else [{"id": 1, "name": "a"}])
    write(path, events(event("u", None, (1, "z"), 9)), **DEBEZIUM)
    assert rows_of(path) == [{"id": 1, "name": "z"}]


def test_an_event_of_an_unknown_op_is_inlined_only_if_it_has_a_key(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, events(event("x", None, (1, "a"), 1)), onError="inline", **DEBEZIUM)
    [row] = rows_of(path)
    assert (row["id"], row["name"]) == (1, None)
    assert row["error"] == {"description": "op 'x' is not one of c, r, u, d"}
    with pytest.raises(DataError, match="truncate"):
        write(path, events(event("t", None, None, 2)), **DEBEZIUM)


def test_a_delete_without_before_finds_its_key_beside_the_event(tmp_path: Path) -> None:
    rows = events(CREATE, event("d", None, None, 2))
    ids = pa.array([1, 1])
    struct = pa.StructArray.from_arrays([ids], names=["id"])
    for name, column in (("id", ids), ("key", struct)):
        write(tmp_path / name, rows.append_column(name, column), **DEBEZIUM)
        assert rows_of(tmp_path / name) == []


def test_events_may_be_ordered_by_what_kafka_says(tmp_path: Path) -> None:
    payload = events(event("c", None, (1, "b"), 1), CREATE).to_struct_array().combine_chunks()
    rows = pa.table({"payload": payload, "offset": [8, 7]})
    write(tmp_path / "t", rows, envelope="debezium", keys="id", sequenceBy="offset")
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "b"}]
    write(tmp_path / "no before", events(CREATE).drop_columns(["before"]), **DEBEZIUM)
    assert rows_of(tmp_path / "no before") == [{"id": 1, "name": "a"}]


def test_a_composite_key_with_a_null_is_whole_from_one_place(tmp_path: Path) -> None:
    row = pa.struct({"x": pa.int64(), "y": pa.int64()})
    schema = pa.schema({"before": row, "after": row, "op": pa.string()})
    change = {"before": {"x": 1, "y": 5}, "after": {"x": 1, "y": None}, "op": "u"}
    rows = pa.Table.from_pylist([change], schema=schema)
    write(tmp_path / "t", rows, envelope="debezium", keys="x,y")
    assert rows_of(tmp_path / "t") == [{"x": 1, "y": None}]


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (pa.schema({"id": pa.int64(), "op": pa.string()}), {}, "'after' is not among"),
        (pa.schema({"after": ROW}), {}, "'op' is not among"),
        (pa.schema({"after": pa.string(), "op": pa.string()}), {}, "must be a struct of the row"),
        (EVENT, {"keys": "ident"}, "Did you mean 'id'?"),
        (EVENT, {"sequenceBy": "source.lns"}, "Did you mean 'source.lsn'?"),
        (EVENT, {"columnList": "id,ts_ns"}, "Did you mean 'ts_ms'?"),
        (EVENT, {"columnList": "id,before.id"}, "'before.id' is not among"),
        (EVENT, {"keys": "id,op", "columnList": "id,op"}, "the key column 'op' is not among"),
    ],
)
def test_rows_that_are_no_change_events_are_refused(
    tmp_path: Path, rows: pa.Schema, options: dict[str, str], text: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        plan(tmp_path / "t", rows, **{**DEBEZIUM, **options})
    assert text in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_columns_of_and_beside_the_row_are_stored_as_they_are_named(tmp_path: Path) -> None:
    rows = events(CREATE).append_column("offset", pa.array([7]))
    write(tmp_path / "part", rows, exceptColumnList="name", **DEBEZIUM)
    assert rows_of(tmp_path / "part") == [{"id": 1}]
    write(tmp_path / "t", rows, columnList="id,op,ts_ms,source.lsn,offset", **DEBEZIUM)
    expected = {"id": 1, "op": "c", "ts_ms": 0, "source.lsn": 1, "offset": 7}
    assert rows_of(tmp_path / "t") == [expected]
    assert counters_of(write(tmp_path / "none", events(), **DEBEZIUM)).rows == 0
