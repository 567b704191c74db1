"""Flattened change events: deletes that a field marks, and hints that name the option.

Events as in Debezium's documentation, pages "New Record State Extraction" and "MongoDB New Document
State Extraction" (``delete.tombstone.handling.mode``, ``add.fields``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, SchemaError
from spark_upsert.table.table import Table
from tests.support import own_schemas
from tests.support.debezium import bare, key, member
from tests.support.envelopes import (
    KAFKA,
    plan,
    quarantine_of,
    records,
    rows_of,
    write,
    write_found,
)
from tests.support.unchanged import decoded_by

DECLARED = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, v STRING, __deleted STRING, __op STRING, __lsn BIGINT",
    "exceptColumnList": "__op,__lsn",
}
INLINE = {**own_schemas.INLINE, "exceptColumnList": "__op,__lsn"}
MEMBERS = (
    member("id", "int64"),
    *(member(name, "string") for name in ("v", "__deleted", "__op")),
    member("__lsn", "int64"),
)


def row(number: int, v: str | None, op: str | None, lsn: int, **more: Any) -> dict[str, Any]:
    """Return a flattened event (``delete.tombstone.handling.mode=rewrite``, ``add.fields``)."""
    deleted = "true" if op == "d" else "false"
    return {"id": number, "v": v, "__deleted": deleted, "__op": op, "__lsn": lsn, **more}


def put_declared(path: Path, *rows: dict[str, Any] | None, **options: str) -> None:
    pairs = [(key(1), None if each is None else bare(each)) for each in rows]
    write(path, records(pairs), **{**DECLARED, **options})


def put_inline(path: Path, *rows: dict[str, Any] | None, **options: str) -> None:
    schema, of_key = own_schemas.struct(*MEMBERS), own_schemas.struct(member("id", "int64"))
    key_ = own_schemas.inline(of_key, {"id": 1})
    pairs = [(key_, None if each is None else own_schemas.inline(schema, each)) for each in rows]
    write_found(path, records(pairs), **{**INLINE, **options})


def put_rows(path: Path, *rows: dict[str, Any] | None, **options: str) -> None:
    strings = dict.fromkeys(("v", "__deleted", "__op"), pa.string())
    schema = pa.schema({"id": pa.int64(), **strings, "__lsn": pa.int64()})
    data = pa.Table.from_pylist([each for each in rows if each is not None], schema=schema)
    usual = {"keys": "id", "exceptColumnList": "__op,__lsn", "sequenceBy": "__lsn"}
    write(path, data, **{**usual, **options})


ENTRIES = {"declared": put_declared, "inline": put_inline, "rows": put_rows}
SET = row(1, "a", "c", 1)
DELETE = row(1, None, "d", 2)

Events = tuple[dict[str, Any] | None, ...]
HISTORIES: dict[str, tuple[Events, str | None]] = {
    "a create": ((SET,), "a"),
    "an update": ((SET, row(1, "b", "u", 2)), "b"),
    "a delete": ((SET, DELETE), None),
    "a delete of the old row": ((SET, row(1, "a", "d", 2)), None),
    "a delete with a placeholder": ((SET, row(1, "__debezium_unavailable_value", "d", 2)), None),
    "a delete and its tombstone": ((SET, DELETE, None), None),
    "a row that comes back": ((SET, DELETE, row(1, "c", "c", 3)), "c"),
    "a field that older events lack": ((row(1, "a", "r", 1, __deleted=None),), "a"),
}


@pytest.mark.parametrize("one_by_one", [False, True], ids=["one batch", "one by one"])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(("rows", "expected"), HISTORIES.values(), ids=HISTORIES)
@pytest.mark.sweep(8)
def test_a_field_marks_deletes(
    tmp_path: Path, rows: Events, expected: str | None, entry: str, one_by_one: bool
) -> None:
    for batch in [(event,) for event in rows] if one_by_one else [rows]:
        ENTRIES[entry](tmp_path / "t", *batch, applyAsDeletes="__deleted")
    assert rows_of(tmp_path / "t") == ([] if expected is None else [{"id": 1, "v": expected}])


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_operation_marks_deletes(tmp_path: Path, entry: str) -> None:
    options = {"applyAsDeletes": "__op", "exceptColumnList": "__deleted,__lsn"}
    put = ENTRIES[entry]
    put(tmp_path / "t", SET, row(1, "b", "r", 2), **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "b"}]
    put(tmp_path / "t", row(1, None, "d", 3), **options)
    assert rows_of(tmp_path / "t") == []


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("mark", ["TRUE", "t", "", "1"])
def test_another_mark_is_neither_a_delete_nor_a_row(tmp_path: Path, entry: str, mark: str) -> None:
    put, path = ENTRIES[entry], tmp_path / "t"
    bad = row(1, "b", "u", 2, __deleted=mark)
    put(path, SET, applyAsDeletes="__deleted", onError="quarantine")
    put(path, bad, applyAsDeletes="__deleted")
    assert rows_of(path) == []
    expected = "expected one of true, d, false, c, r, u"
    reason = f"the applyAsDeletes column '__deleted' is '{mark}', {expected}"
    assert [each["_reason"] for each in quarantine_of(path)] == [reason]
    with pytest.raises(DataError, match=r"applyAsDeletes column '__deleted' is"):
        put(tmp_path / "other", bad, applyAsDeletes="__deleted")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exceptColumnList": "__deleted,__op,__lsn"},
        {"exceptColumnList": "", "columnList": "id,v"},
    ],
    ids=["no option", "left out", "not among those to store"],
)
def test_deletes_that_no_option_reads_are_refused(
    tmp_path: Path, entry: str, options: dict[str, str]
) -> None:
    """Left out, the field would turn each delete into a row."""
    with pytest.raises(SchemaError, match=r"give (\.option\()?.*[aA]ppl.*[dD]eletes.*__deleted"):
        ENTRIES[entry](tmp_path / "t", SET, DELETE, **options)
    assert not (tmp_path / "t" / "_log").exists()


def test_a_field_of_the_value_orders_events_and_is_not_stored(tmp_path: Path) -> None:
    options = {"applyAsDeletes": "__deleted", "sequenceBy": "value.__lsn"}
    for entry in ("declared", "inline"):
        path = tmp_path / entry
        ENTRIES[entry](path, row(1, "b", "u", 5), **options)
        ENTRIES[entry](path, row(1, "a", "u", 3), DELETE, **options)
        assert rows_of(path) == [{"id": 1, "v": "b"}]


def test_a_mark_of_deletes_is_a_truth_value_or_a_text_and_stored_if_it_is_named(
    tmp_path: Path,
) -> None:
    options = {**DECLARED, "valueSchema": "v STRING, gone BIGINT", "applyAsDeletes": "gone"}
    options = {**options, "exceptColumnList": "", "columnList": "id,v,gone"}
    with pytest.raises(SchemaError, match="must be boolean"):
        plan(tmp_path / "t", KAFKA, **options)
    pairs = [(key(1), bare({"v": "a", "gone": False})), (key(2), bare({"v": "b", "gone": True}))]
    options["valueSchema"] = "v STRING, gone BOOLEAN"
    write(tmp_path / "t", records(pairs), **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a", "gone": False}]


@pytest.mark.parametrize(
    "marks",
    [
        pa.array(["false", "true", None], pa.string_view()),
        pa.array(["false", "true", None], pa.large_string()),
        pa.array(["false", "true", None]).dictionary_encode(),
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 2, None], pa.int8())),
    ],
    ids=lambda marks: str(marks.type),
)
def test_a_mark_of_deletes_has_any_layout(tmp_path: Path, marks: pa.Array) -> None:
    rows = pa.table({"id": [1, 2, 3], "__deleted": marks})
    write(tmp_path / "t", rows, keys="id", applyAsDeletes="__deleted")
    assert [row["id"] for row in rows_of(tmp_path / "t")] == [1, 3]


@pytest.mark.parametrize("merge_schema", [False, True])
def test_rows_of_plain_python_with_deletes_that_nothing_reads_are_refused(
    tmp_path: Path, *, merge_schema: bool
) -> None:
    """The usual hint about a new column, to leave it out, would turn each delete into a row."""
    rows = pa.table({"id": [1], "__deleted": ["true"]})
    table = Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    with pytest.raises(SchemaError, match="marks the deletes"):
        table.upsert(rows, merge_schema=merge_schema)


PARTIAL = {"mergeEngine": "partial-update", "sequenceScope": "table"}


@pytest.mark.parametrize("put", ENTRIES.values(), ids=ENTRIES)
def test_a_create_has_no_value_of_an_older_row(tmp_path: Path, put: Any) -> None:
    """Its operation is read, though it is not stored."""
    marks = {"applyAsDeletes": "__deleted", **PARTIAL}
    put(tmp_path / "t", SET, **marks)
    for op, resets in (("c", [True]), ("u", None)):
        with decoded_by() as batches:
            put(tmp_path / "t", row(1, "__debezium_unavailable_value", op, 2), **marks)
        assert [(batch.unchanged, batch.resets) for batch in batches] == [({"v": [True]}, resets)]


def test_the_columns_to_update_are_read_from_a_schema_in_the_payload(tmp_path: Path) -> None:
    names = {"type": "array", "items": {"type": "string"}, "field": "to"}
    schema = own_schemas.struct(*(member(n, "string") for n in "vw"), names)
    of_key = own_schemas.struct(member("id", "int64"))
    key_ = own_schemas.inline(of_key, {"id": 1})
    options = {**own_schemas.INLINE, **PARTIAL, "columnsToUpdate": "to"}
    pairs = [(key_, own_schemas.inline(schema, {"v": "a", "w": "b", "to": ["v"]}))]
    for more in ({}, {"exceptColumnList": "to"}):
        with decoded_by() as batches:
            write_found(tmp_path / "t", records(pairs), **options, **more)
        assert [batch.unchanged for batch in batches] == [{"w": [True]}]
        assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a", "w": None}]
