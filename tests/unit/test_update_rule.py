"""Options by which a row sets some columns: ``ignoreNullUpdates*`` and ``columnsToUpdate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from tests.support.debezium import OPTIONS as EVENTS
from tests.support.debezium import bare, event, key
from tests.support.envelopes import KAFKA, plan, records, rows_of, write
from tests.support.unchanged import Decoded, decode, decode_into, decoded_by

ROWS: list[dict[str, Any]] = [
    {"id": 1, "a": 1, "b": "x", "to": None},
    {"id": 2, "a": None, "b": "y", "to": []},
    {"id": 3, "a": 3, "b": None, "to": ["A"]},
    {"id": 4, "a": None, "b": None, "to": ["b", "a", "id"]},
]
TYPE = [("id", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("to", pa.list_(pa.string()))]


def as_upsert(names: str, **options: str) -> Decoded:
    rows = pa.Table.from_pylist(ROWS, pa.schema(TYPE))
    return decode(rows.select(names.split()), keys="id", **options)


def as_changelog(names: str, **options: str) -> Decoded:
    rows = pa.Table.from_pylist(ROWS, pa.schema(TYPE)).select(names.split())
    more = {"_change_type": ["insert"] * 4, "_commit_version": [0, 1, 2, 3]}
    for name, values in more.items():
        rows = rows.append_column(name, pa.array(values))
    return decode(rows, keys="id", envelope="changelog", **options)


DDL = {"id": "id BIGINT", "a": "a BIGINT", "b": "b STRING", "to": "to ARRAY<STRING>"}


def as_kafka(names: str, **options: str) -> Decoded:
    """Lists are in the payload."""
    pairs = [
        (key(row["id"]), bare({n: row[n] for n in names.split() if n != "id"})) for row in ROWS
    ]
    form = {"envelope": "kafka", "keyFormat": "json", "keySchema": "id BIGINT"}
    schema = ", ".join(DDL[name] for name in names.split() if name != "id")
    return decode(records(pairs), valueFormat="json", valueSchema=schema, **form, **options)


def as_debezium(names: str, **options: str) -> Decoded:
    """Lists are in the row image."""
    events = [event("u", None, {n: row[n] for n in names.split()}, row["id"]) for row in ROWS]
    schema = ", ".join(DDL[name] for name in names.split())
    rows = records([(None, bare(each)) for each in events])
    return decode(rows, **{**EVENTS, "valueSchema": schema, **options})


def as_parsed_events(names: str, **options: str) -> Decoded:
    """Lists are in a column of the row."""
    image = pa.struct([field for field in TYPE if field[0] in names.split() and field[0] != "to"])
    images = [{n: row[n] for n in names.split() if n != "to"} for row in ROWS]
    columns = {"after": pa.array(images, image), "op": pa.array(["u"] * 4)}
    if "to" in names.split():
        columns["to"] = pa.array([row["to"] for row in ROWS], dict(TYPE)["to"])
    return decode(pa.table(columns), envelope="debezium", keys="id", **options)


ENVELOPES = {
    "upsert": as_upsert,
    "changelog": as_changelog,
    "kafka": as_kafka,
    "debezium": as_debezium,
    "parsed events": as_parsed_events,
}

NULL_A, NULL_B = [False, True, False, True], [False, False, True, True]
UNSET_A, UNSET_B = [False, True, False, False], [False, True, True, False]

CASES: dict[str, tuple[str, dict[str, str], dict[str, list[bool]]]] = {
    "no option": ("id a b", {}, {}),
    "each null": ("id a b", {"ignoreNullUpdates": "true"}, {"a": NULL_A, "b": NULL_B}),
    "no null": ("id a b", {"ignoreNullUpdates": "false"}, {}),
    "a null of one column": ("id a b", {"ignoreNullUpdatesColumnList": "B"}, {"b": NULL_B}),
    "a null of the others": ("id a b", {"ignoreNullUpdatesExceptColumnList": "b"}, {"a": NULL_A}),
    "what is not listed": (
        "id a b to",
        {"columnsToUpdate": "to"},
        {"a": UNSET_A, "b": UNSET_B},
    ),
    "what is not listed, or null": (
        "id a b to",
        {"columnsToUpdate": "to", "ignoreNullUpdates": "true"},
        {"a": [False, True, False, True], "b": [False, True, True, True]},
    ),
}


@pytest.mark.parametrize(("names", "options", "unchanged"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("write_as", ENVELOPES.values(), ids=ENVELOPES)
def test_a_row_leaves_unchanged(
    write_as: Any, names: str, options: dict[str, str], unchanged: dict[str, list[bool]]
) -> None:
    decoded = write_as(names, **options)
    assert decoded.unchanged == unchanged
    assert "to" not in decoded.columns
    assert decoded.bad_values == [None] * 4
    for name in ("a", "b"):
        left = unchanged.get(name, [False] * 4)
        expected = [None if is_left else row[name] for row, is_left in zip(ROWS, left, strict=True)]
        assert decoded.columns[name] == expected


def test_a_list_is_stored_if_it_is_named(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "a": [1], "to": [["a", "to"]]})
    options = {"columnsToUpdate": "to", "columnList": "id,a,to"}
    write(tmp_path / "t", rows, keys="id", **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "a": 1, "to": ["a", "to"]}]


def test_a_list_that_names_no_column_is_a_bad_row() -> None:
    lists = [["a"], ["a", "c", "d"], None, ["A", None], []]
    rows = pa.table({"id": range(5), "a": range(5), "to": pa.array(lists)})
    why = "the columnsToUpdate column 'to' names '{}', which is no column"
    assert decode(rows, keys="id", columnsToUpdate="to").bad_values == [
        None,
        why.format("c"),
        None,
        why.format("null"),
        None,
    ]


def test_a_column_that_is_not_stored_may_be_listed() -> None:
    rows = pa.table({"id": [1], "a": [1], "n": [1], "to": [["id", "n"]]})
    options = {"keys": "id", "sequenceBy": "n", "exceptColumnList": "n", "columnsToUpdate": "to"}
    decoded = decode(rows, **options)
    assert decoded.bad_values == [None]
    assert decoded.unchanged == {"a": [True]}


def test_lists_in_a_slice_belong_to_their_rows() -> None:
    rows = pa.table({"id": range(4), "a": range(4), "to": [["a"], [], ["a"], []]}).slice(1, 3)
    decoded = decode(rows, keys="id", columnsToUpdate="to")
    assert decoded.unchanged == {"a": [True, False, True]}


def test_a_row_of_nulls_is_a_delete_before_it_is_an_update() -> None:
    rows = pa.table({"id": [1, 2], "a": pa.array([None, None], pa.int64()), "b": [None, "x"]})
    decoded = decode(rows, keys="id", nullsAsDeletes="true", ignoreNullUpdates="true")
    assert decoded.deletes == [True, False]
    assert decoded.unchanged["a"][1]


def test_the_order_and_the_error_column_are_always_set() -> None:
    rows = pa.table({"id": [1], "n": [1], "a": pa.nulls(1, pa.int64()), "to": [[]]})
    rows = rows.set_column(3, "to", pa.array([[]], pa.list_(pa.string())))
    options = {"keys": "id", "sequenceBy": "n", "onError": "inline"}
    assert decode(rows.drop(["to"]), ignoreNullUpdates="true", **options).unchanged == {"a": [True]}
    assert decode(rows, columnsToUpdate="to", **options).unchanged == {"a": [True]}


def test_a_create_with_an_ignored_null_has_no_value_of_an_older_row() -> None:
    pairs = [(key(n), bare(event(op, None, {"id": n, "v": None}, n))) for n, op in enumerate("cru")]
    decoded = decode(records(pairs), **EVENTS, ignoreNullUpdates="true")
    assert decoded.unchanged == {"v": [True, True, True]}
    assert decoded.resets == [True, True, False]


def test_rows_may_lack_columns_where_nulls_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, pa.table({"id": [1], "a": [1], "b": ["x"]}), keys="id")
    rows = pa.table({"id": [1], "b": ["y"]})
    with pytest.raises(SchemaError, match="'a' is not among"):
        write(path, rows)
    assert decode_into(path, rows, ignoreNullUpdates="true").unchanged == {"a": [True]}


STRUCT = pa.struct([("x", pa.int64())])
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "n": pa.int64(),
        "a": pa.string(),
        "s": STRUCT,
        "to": pa.list_(pa.string()),
        "no": pa.list_(pa.int64()),
    }
)
LIST, EXCEPT = "ignoreNullUpdatesColumnList", "ignoreNullUpdatesExceptColumnList"

REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a flag and a list": ({"ignoreNullUpdates": "true", LIST: "a"}, "contradict each other"),
    "a flag and an exception": (
        {"ignoreNullUpdates": "true", EXCEPT: "s"},
        "contradict each other",
    ),
    "a list and an exception": ({LIST: "a", EXCEPT: "s"}, "contradict each other"),
    "a key": ({LIST: "ID"}, f"'{LIST}' names the key column 'id'"),
    "a key as an exception": ({EXCEPT: "id"}, f"'{EXCEPT}' names the key column 'id'"),
    "the order": ({LIST: "n"}, f"'{LIST}' names the order column 'n'"),
    "an unknown column": ({LIST: "c"}, f"column of '{LIST}' 'c' is not among"),
    "an unknown exception": ({EXCEPT: "c"}, f"column of '{EXCEPT}' 'c' is not among"),
    "a struct": ({LIST: "a,s"}, f"'{LIST}' includes the column 's', which is a STRUCT"),
    "a struct among all": ({"ignoreNullUpdates": "true"}, "'ignoreNullUpdates' includes .*'s'"),
    "a struct among others": ({EXCEPT: "a"}, f"'{EXCEPT}' includes the column 's'"),
    "a list that is none": ({"columnsToUpdate": "a"}, "'a' must be ARRAY<STRING>, found string"),
    "a list of numbers": ({"columnsToUpdate": "no"}, "'no' must be ARRAY<STRING>"),
    "an unknown list": ({"columnsToUpdate": "too"}, "columnsToUpdate column 'too' is not among"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_no_table_is_made_with(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises((OptionError, SchemaError), match=message):
        plan(tmp_path / "t", COLUMNS, keys="id", sequenceBy="n", **options)
    assert not (tmp_path / "t").exists()


def test_an_order_in_the_event_cannot_be_unchanged(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"names the order column 'source\.lsn'"):
        plan(tmp_path / "t", KAFKA, **EVENTS, ignoreNullUpdatesColumnList="source.lsn")


def written(path: Path, *batches: pa.Table, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a table after its batches, whether they come as one or one by one."""
    found = []
    for place, epochs in (("one", [pa.concat_tables(batches)]), ("many", list(batches))):
        for rows in epochs:
            write(path / place, rows, keys="id", **options)
        found.append(rows_of(path / place))
    assert found[0] == found[1]
    return found[0]


def test_a_null_that_is_ignored_keeps_the_value(tmp_path: Path) -> None:
    """A new row has null there, which is no fault."""
    columns = pa.schema({"id": pa.int64(), "n": pa.int64(), "x": pa.string()})
    rows = [(1, 0, "a"), (1, None, "b"), (2, None, "c")]
    batches = [pa.table([[value] for value in row], schema=columns) for row in rows]
    expected = [{"id": 1, "n": 0, "x": "b"}, {"id": 2, "n": None, "x": "c"}]
    assert written(tmp_path, *batches, ignoreNullUpdates="true") == expected


def test_a_null_that_is_listed_is_set(tmp_path: Path) -> None:
    columns = {"id": pa.int64(), "n": pa.int64(), "x": pa.string(), "at": pa.int64()}
    schema = pa.schema({**columns, "to": pa.list_(pa.string())})
    rows = [
        (1, 0, "a", 1, None),
        (1, 1, None, 2, ["n"]),
        (2, 0, "b", 1, None),
        (2, 5, None, 2, ["x"]),
        (3, 0, "c", 1, None),
        (3, 5, None, 2, []),
    ]
    batches = [pa.table([[value] for value in row], schema=schema) for row in rows]
    options = {"columnsToUpdate": "to", "sequenceBy": "at", "exceptColumnList": "at"}
    assert written(tmp_path, *batches, **options) == [
        {"id": 1, "n": 1, "x": "a"},
        {"id": 2, "n": 0, "x": None},
        {"id": 3, "n": 0, "x": "c"},
    ]


MASK = [True, False, None]
MASKS: dict[str, Any] = {
    "a list": MASK,
    "an array": pa.array(MASK),
    "chunks": pa.chunked_array([[True], [False, None]]),
    "an array of numpy": np.array([True, False, False]),
    "a column": "is_kept",
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("merge", [False, True])
def test_a_program_marks_unchanged_values(tmp_path: Path, mask: Any, merge: bool) -> None:
    columns = pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.string()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    table.upsert(pa.table({"id": [1, 2, 3], "a": [1, 2, 3], "b": ["x", "y", "z"]}))
    rows = pa.table({"id": [1, 2, 3], "a": [7, 8, 9], "b": ["u", "v", "w"]})
    if isinstance(mask, str):
        rows = rows.append_column("is_kept", pa.array(MASK))
    with decoded_by() as batches:
        table.upsert(rows, unchanged={"A": mask}, merge_schema=merge)
    assert batches[-1].unchanged == {"a": [True, False, False]}
    assert table.schema.columns == columns
    assert sorted(table.snapshot().to_pylist(), key=repr) == [
        {"id": 1, "a": 1, "b": "u"},
        {"id": 2, "a": 8, "b": "v"},
        {"id": 3, "a": 9, "b": "w"},
    ]


@pytest.mark.parametrize("merge", [False, True])
def test_a_program_names_the_columns_that_its_rows_set(tmp_path: Path, merge: bool) -> None:
    """The rows may have the others, which are ignored, or lack them."""
    columns = pa.schema({"id": pa.int64(), "n": pa.int64(), "a": pa.int64(), "b": pa.string()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"], sequence_by=["n"])
    table.upsert(pa.table({"id": [1, 2], "n": [1, 1], "a": [1, 2], "b": ["x", "y"]}))
    rows = pa.table({"id": [1], "n": [2], "A": [7], "b": ["never"]})
    table.upsert(rows, columns="A", merge_schema=merge)
    table.upsert(pa.table({"id": [2], "n": [2], "b": ["z"]}), columns=["b"], merge_schema=merge)
    table.upsert(pa.table({"id": [2], "n": [3], "b": [None]}), columns=[], merge_schema=merge)
    assert sorted(table.snapshot().to_pylist(), key=repr) == [
        {"id": 1, "n": 2, "a": 7, "b": "x"},
        {"id": 2, "n": 3, "a": 2, "b": "z"},
    ]
    with pytest.raises(SchemaError, match="'c' is not among"):
        table.upsert(rows, columns=["c"])
    with pytest.raises(OptionError, match="'columns' and 'unchanged' contradict"):
        table.upsert(rows, columns=["A"], unchanged={"A": [True]})


def test_a_delete_has_no_unchanged_value(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "a": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    table.upsert(pa.table({"id": [1], "a": [1]}))
    rows = pa.table({"id": [1], "a": [1], "gone": [True]})
    table.upsert(rows, deletes="gone", unchanged={"a": [True]})
    assert table.snapshot().num_rows == 0


NO_MASKS: dict[str, tuple[dict[str, Any], str]] = {
    "a key": ({"id": [True]}, "'unchanged' names the key column 'id'"),
    "the order": ({"n": [True]}, "'unchanged' names the order column 'n'"),
    "an unknown column": ({"c": [True]}, "column of 'unchanged' 'c' is not among"),
    "an unknown mask": ({"a": "kept"}, "column of 'unchanged' 'kept' is not among"),
    "a column of numbers": ({"a": "n"}, "'n' of 'unchanged' must be boolean"),
    "a mask of texts": ({"a": ["yes"]}, "the mask of column 'a' has no such value"),
    "a short mask": ({"a": []}, "has 0 values, for 1 rows"),
}


@pytest.mark.parametrize(("unchanged", "message"), NO_MASKS.values(), ids=NO_MASKS)
def test_no_mask_is(tmp_path: Path, unchanged: dict[str, Any], message: str) -> None:
    columns = pa.schema({"id": pa.int64(), "n": pa.int64(), "a": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"], sequence_by=["n"])
    with pytest.raises((OptionError, SchemaError), match=message):
        table.upsert(pa.table({"id": [1], "n": [1], "a": [1]}), unchanged=unchanged)
    assert table.snapshot().num_rows == 0


def test_an_envelope_decides_by_itself(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "a": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    envelope = envelope_of_rows(table.schema, columns)
    with pytest.raises(OptionError, match="'unchanged' and 'envelope' contradict"):
        table.upsert(pa.table({"id": [1], "a": [1]}), envelope=envelope, unchanged={"a": [True]})
