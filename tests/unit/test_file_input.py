"""A growing set of files as an input: what is read, what is told apart, what is refused."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import obstore
import pyarrow as pa
import pytest

from spark_upsert.errors import (
    DataError,
    DataLossError,
    OptionError,
    SchemaError,
    StorageError,
    UpsertFlowError,
)
from spark_upsert.options.files import FileFormat, FileOptions
from spark_upsert.options.inputs import UNNAMED, ReadPlan
from spark_upsert.options.query import QueryOptions
from spark_upsert.payloads.files import formats as file_formats
from spark_upsert.payloads.files import texts as file_texts
from spark_upsert.store.object_folder import ObjectFolder
from spark_upsert.store.objects import ObjectStore
from spark_upsert.streams.inputs.files import position as file_position
from spark_upsert.streams.inputs.files.input import FileInput, FileSplit, file_columns
from spark_upsert.streams.inputs.files.position import FilePosition
from spark_upsert.streams.offsets.offset import Offset
from spark_upsert.streams.offsets.position import Position
from spark_upsert.streams.planner.kinds import batch_inputs, plan_columns, stream_inputs
from spark_upsert.streams.planner.merged_read import MergedRead
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.folders import (
    DAY_US,
    FaultyFolder,
    MemoryFolder,
    arrow,
    csv,
    file_input,
    file_options,
    file_query,
    parquet,
    values,
)
from tests.support.stores import BrokenError, Fault, Moment, Steps
from tests.support.streams import Query

TWO = pa.table({"id": [1, 2], "name": ["a", None]})
ROWS = TWO.to_pylist()


@pytest.fixture
def folder() -> MemoryFolder:
    return MemoryFolder()


def rows_of(folder: MemoryFolder, format_: str, **given: Any) -> list[dict[str, Any]]:
    query = file_query(folder, format_, **given)
    query.drain()
    return [row for batch in query.batches for row in batch]


# -- formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_", "data"),
    [
        pytest.param("parquet", parquet(TWO), id="parquet"),
        pytest.param("parquet", parquet(TWO, row_group_size=1), id="parquet, row by row"),
        pytest.param("arrow", arrow(TWO), id="an Arrow file"),
        pytest.param("arrow", arrow(TWO, is_stream=True), id="an Arrow stream"),
        pytest.param("json", b'{"id":1,"name":"a"}\n{"id":2}\n', id="JSON lines"),
        pytest.param("json", b'{"id":1,"name":"a"}\r\n \n{"id":2}', id="JSON, no line feed last"),
        pytest.param("json", b'\xef\xbb\xbf{"id":1,"name":"a"}\n{"id":2}', id="JSON, byte order"),
        pytest.param("csv", b"id,name\n1,a\n2,\n", id="CSV"),
        pytest.param("csv", b"name,id\r\na,1\r\n,2\r\n", id="CSV, in another order"),
    ],
)
def test_rows_come_as_they_stand_in_a_file(folder: MemoryFolder, format_: str, data: bytes) -> None:
    folder.put("one", data, 1)
    assert rows_of(folder, format_, schema="id BIGINT, name STRING") == ROWS


@pytest.mark.parametrize(
    ("format_", "data", "expected"),
    [
        pytest.param("parquet", parquet(TWO), "id: int64, name: string", id="parquet"),
        pytest.param("json", b'{"a":{"b":[1.5]},"at":"2024-01-01"}\n{"a":', None, id="json"),
        pytest.param("csv", b"id,name\n1,a\n", "id: string, name: string", id="csv"),
    ],
)
def test_columns_are_those_of_the_oldest_file(
    folder: MemoryFolder, format_: str, data: bytes, expected: str | None
) -> None:
    folder.put("new", b"not looked at", 2)
    folder.put("old", data, 1)
    found = file_columns(file_options(format_), folder)
    shown = ", ".join(f"{field.name}: {field.type}" for field in found)
    assert shown == (expected or "a: struct<b: list<element: double>>, at: string")


def test_csv_without_a_header_has_numbered_columns_or_those_of_the_schema(
    folder: MemoryFolder,
) -> None:
    folder.put("one", b"1,a\n2,b\n", 1)
    assert rows_of(folder, "csv", header="false")[1] == {"_c0": "2", "_c1": "b"}
    declared = rows_of(folder, "csv", header="false", schema="id INT, name STRING")
    assert declared[0] == {"id": 1, "name": "a"}
    with pytest.raises(DataError, match="2 columns, and 'schema'"):
        rows_of(folder, "csv", header="false", schema="id INT")


def test_csv_tells_an_empty_text_from_none(folder: MemoryFolder) -> None:
    folder.put("one", b'a;b\n"";x\n;"y;\n""z"\n', 1)
    assert rows_of(folder, "csv", sep=";") == [
        {"a": "", "b": "x"},
        {"a": None, "b": 'y;\n"z'},
    ]


TYPES = (
    "i TINYINT, l BIGINT, f FLOAT, d DOUBLE, b BOOLEAN, n DECIMAL(5,2), day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY"
)
GOOD = (
    "1,-9223372036854775808,1.5,-Infinity,TRUE,1.50,2024-02-29,2024-01-01T00:00:00Z,"
    "2024-01-01 00:00:00,x"
)


def test_csv_values_are_what_is_declared(folder: MemoryFolder) -> None:
    names = "i,l,f,d,b,n,day,at,local,raw"
    folder.put("one", f"{names}\n{GOOD}\n,,,,,,,,,\n".encode(), 1)
    one, empty = rows_of(folder, "csv", schema=TYPES)
    assert [str(value) for value in one.values()] == [
        "1",
        "-9223372036854775808",
        "1.5",
        "-inf",
        "True",
        "1.50",
        "2024-02-29",
        "2024-01-01 00:00:00+00:00",
        "2024-01-01 00:00:00",
        "b'x'",
    ]
    assert set(empty.values()) == {None}


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("TINYINT", "128"),
        ("BIGINT", "9223372036854775808"),
        ("BIGINT", "0x10"),
        ("BIGINT", "1.0"),
        ("BIGINT", "NULL"),
        ("DOUBLE", "1e999"),
        ("DOUBLE", "0x1p3"),
        ("DOUBLE", "N/A"),
        ("FLOAT", "1e39"),
        ("BOOLEAN", "1"),
        ("DECIMAL(5,2)", "1000"),
        ("DATE", "2023-02-29"),
        ("TIMESTAMP", "yesterday"),
        ("TIMESTAMP_NTZ", "2024-01-01T00:00:00Z"),
    ],
)
def test_a_csv_value_that_is_none_of_its_type_names_file_row_and_column(
    folder: MemoryFolder, type_: str, text: str
) -> None:
    folder.put("day/one.csv", f"id,x\n1,\n2,{text}\n".encode(), 1)
    with pytest.raises(SchemaError) as failed:
        rows_of(folder, "csv", schema=f"x {type_}", recursiveFileLookup="true")
    assert f"'/landing/day/one.csv' does not fit: row 3, column 'x': '{text}'" in str(failed.value)


@pytest.mark.parametrize(
    ("format_", "data", "says"),
    [
        pytest.param("csv", b"id\n1,2\n", "Row #2", id="CSV: too many values"),
        pytest.param("csv", b'id,x\n1,"y\n', "a quote is not closed", id="CSV: an open quote"),
        pytest.param("csv", b"id\n\xff\n", "UTF8", id="CSV: no text"),
        pytest.param("csv", b"id,id\n1,2\n", "'id' twice", id="CSV: a name twice"),
        pytest.param("csv", b"x\n1\n", "no column 'id'", id="CSV: no such column"),
        pytest.param("json", b'{"id":1}\n\n{"id":}\n', "line 3 is not", id="JSON: no value"),
        pytest.param("json", b'{"id":1}\n{"id":"2"}', "line 2 is not", id="JSON: another type"),
        pytest.param("json", b'[{"id":1}]\n', "line 1 is not", id="JSON: a list"),
        pytest.param("json", b'{"id":1}{"id":2}\n', "line 1 is not", id="JSON: two in a line"),
        pytest.param("json", b'{"id":1}\n{"i', "line 2 is not", id="JSON: half-written"),
        pytest.param("parquet", parquet(TWO)[:-9], "no parquet file", id="parquet: half-written"),
        pytest.param("parquet", b"", "no parquet file", id="parquet: empty"),
        pytest.param("arrow", arrow(TWO)[:-9], "no arrow file", id="Arrow: half-written"),
        pytest.param("arrow", b"\xff" * 64, "no arrow file", id="Arrow: no such thing"),
    ],
)
def test_a_bad_file_is_named_and_stays_to_be_read(
    folder: MemoryFolder, format_: str, data: bytes, says: str
) -> None:
    folder.put("bad", data, 1)
    query = file_query(folder, format_, schema="id BIGINT")
    query.plan()
    for _ in range(2):
        with pytest.raises((DataError, SchemaError), match=says) as failed:
            query.deliver()
        assert "'/landing/bad'" in str(failed.value)
        assert pickle.loads(pickle.dumps(failed.value)).args == failed.value.args


def test_a_bad_file_is_mended_as_the_hint_says(folder: MemoryFolder) -> None:
    folder.put("bad", csv("x"), 1)
    query = file_query(folder, schema="v BIGINT")
    query.plan()
    with pytest.raises(SchemaError) as failed:
        query.deliver()
    assert "mended under another name" in failed.value.hint
    folder.remove("bad")
    folder.put("mended", csv("7"), 2)
    lenient = file_query(folder, schema="v BIGINT", failOnDataLoss="false")
    lenient.noted = query.noted
    lenient.drain()
    assert [row for batch in lenient.batches for row in batch] == [{"v": 7}]


@pytest.mark.parametrize("name", ["a.json.gz", "a.json.bz2", "a.json.zst"])
def test_texts_may_be_packed(folder: MemoryFolder, name: str) -> None:
    data = b'{"id":1}\n' * 3
    codec = {"gz": "gzip", "zst": "zstd"}.get(name.rpartition(".")[2], "bz2")
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as packed:
        packed.write(data)
    whole = sink.getvalue().to_pybytes()
    folder.put(name, whole, 1)
    assert len(rows_of(folder, "json", schema="id BIGINT")) == 3


def test_a_packed_file_that_is_cut_short_is_refused(folder: MemoryFolder) -> None:
    folder.put("a.json.gz", gzip.compress(b'{"id":1}\n' * 1000)[:-12], 1)
    with pytest.raises(DataError, match=r"a\.json\.gz"):
        rows_of(folder, "json", schema="id BIGINT")


# -- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "column"),
    [
        pytest.param({"id": pa.array([1], pa.int64())}, "name", id="one less"),
        pytest.param({"id": pa.array(["x"]), "name": pa.array(["y"])}, "id", id="another type"),
        pytest.param(
            {"id": pa.array([1]), "name": pa.array(["y"]), "more": pa.array([1])}, "more", id="more"
        ),
    ],
)
def test_a_file_that_disagrees_names_file_and_column(
    folder: MemoryFolder, second: dict[str, pa.Array], column: str
) -> None:
    folder.put("one", parquet(TWO), 1)
    folder.put("two", parquet(pa.table(second)), 2)
    with pytest.raises(SchemaError, match=rf"'/landing/two' .*'{column}'") as failed:
        rows_of(folder, "parquet")
    assert failed.value.fields == {"column": column}


def test_merged_columns_are_null_or_widened(folder: MemoryFolder) -> None:
    folder.put("one", parquet(pa.table({"id": pa.array([1], pa.int32())})), 1)
    folder.put("two", parquet(pa.table({"id": pa.array([2], pa.int64()), "x": ["y"]})), 2)
    assert rows_of(folder, "parquet", mergeSchema="true") == [
        {"id": 1, "x": None},
        {"id": 2, "x": "y"},
    ]


def test_a_column_that_comes_later_is_not_lost_in_silence(folder: MemoryFolder) -> None:
    folder.put("one", parquet(TWO), 1)
    query = file_query(folder, "parquet", mergeSchema="true")
    query.drain()
    folder.put("two", parquet(pa.table({"id": [3], "name": ["c"], "x": [1]})), 2)
    query.plan()
    with pytest.raises(SchemaError, match="column 'x', which the query was planned without"):
        query.deliver()
    query.restart()
    assert query.deliver() == [{"id": 3, "name": "c", "x": 1}]


def test_columns_that_cannot_be_merged_are_refused(folder: MemoryFolder) -> None:
    folder.put("one", parquet(pa.table({"id": [1]})), 1)
    folder.put("two", parquet(pa.table({"id": ["x"]})), 2)
    with pytest.raises(SchemaError, match="'id' of the file 'two' is string"):
        file_columns(file_options("parquet", mergeSchema="true"), folder)


def test_what_a_schema_declares_not_null_is_not_null(folder: MemoryFolder) -> None:
    folder.put("one", parquet(TWO), 1)
    with pytest.raises(SchemaError, match="'name' has nulls"):
        rows_of(folder, "parquet", schema="name STRING NOT NULL")


def test_an_empty_folder_needs_a_schema(folder: MemoryFolder) -> None:
    with pytest.raises(SchemaError, match="no file in '/landing'"):
        file_columns(file_options("parquet"), folder)
    query = file_query(folder, "csv", schema="v STRING")
    query.drain()
    folder.put("one", csv("a"), 1)
    query.drain()
    assert values(query) == ["a"]


# -- which files, in which order -----------------------------------------------------------------


def test_files_come_by_time_then_by_name(folder: MemoryFolder) -> None:
    for name, at in (("b", 1), ("c", 0), ("a", 1)):
        folder.put(name, csv(name), at)
    query = file_query(folder)
    query.drain()
    assert values(query) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(QueryOptions(epochs_max=2), [["a", "b"], ["c"]], id="files"),
        pytest.param(QueryOptions(bytes_max=5), [["a"], ["b"], ["c"]], id="bytes"),
        pytest.param(QueryOptions(rows_max=2), [["a", "b"], ["c"]], id="rows"),
        pytest.param(QueryOptions(), [["a", "b", "c"]], id="none"),
    ],
)
def test_limits_never_cut_a_file(
    folder: MemoryFolder, limits: QueryOptions, expected: list[list[str]]
) -> None:
    for at, name in enumerate("abc"):
        folder.put(name, csv(name), at)
    query = file_query(folder, limits=limits, maxRowsPerTrigger=2)
    query.drain()
    assert [[row["v"] for row in batch] for batch in query.batches if batch] == expected


@pytest.mark.slow
def test_a_batch_without_limits_has_a_bounded_number_of_files(folder: MemoryFolder) -> None:
    for at in range(1001):
        folder.put(f"{at:04}", csv(at), at)
    query = file_query(folder, schema="v STRING")
    query.drain()
    assert [len(batch) for batch in query.batches] == [1000, 1]
    assert max(map(len, query.noted)) < 60_000


def test_hidden_files_and_others_are_passed_by(folder: MemoryFolder) -> None:
    for name in ("a.csv", "_SUCCESS", ".a.csv.tmp", "a.txt", "x/b.csv", "_tmp/c.csv", "x/.d.csv"):
        folder.put(name, csv(name), 1)
    assert [row["v"] for row in rows_of(folder, "csv", pathGlobFilter="*.csv")] == ["a.csv"]
    below = rows_of(folder, "csv", pathGlobFilter="*.csv", recursiveFileLookup="true")
    assert [row["v"] for row in below] == ["a.csv", "x/b.csv"]


def test_a_stream_that_ends_at_what_is_there_does_not_wait_for_more(folder: MemoryFolder) -> None:
    folder.put("a", csv("a"), 5)
    query = file_query(folder, limits=QueryOptions(epochs_max=1))
    query.stream.freeze()
    folder.put("b", csv("b"), 6)
    query.drain()
    assert values(query) == ["a"]


def test_an_idle_stream_keeps_its_offset_and_lists_once_a_look(folder: MemoryFolder) -> None:
    folder.put("a", csv("a"), 5)
    steps = Steps()
    source = file_input(FaultyFolder(folder, steps), schema="v STRING")
    start = source.backlog(None, source.head()).reach()
    for _ in range(10):
        assert source.backlog(start, source.head()).reach() is start
    assert steps.names.count("list") == 11


@pytest.mark.slow
def test_a_query_that_asks_for_all_gets_all(folder: MemoryFolder) -> None:
    for at in range(1001):
        folder.put(f"{at:04}", csv(at), at)
    query = file_query(folder, schema="v STRING", limits=QueryOptions(epochs_max=1))
    query.plan(everything=True)
    assert len(query.deliver()) == 1001


# -- large files ----------------------------------------------------------------------------------

MANY = pa.table({"id": list(range(40)), "name": [f"x{i}" for i in range(40)]})


@pytest.mark.parametrize(
    ("format_", "data", "count"),
    [
        pytest.param("parquet", parquet(MANY, row_group_size=3), 4, id="parquet"),
        pytest.param("arrow", arrow(MANY, chunk=3), 4, id="Arrow"),
        pytest.param("arrow", arrow(MANY, is_stream=True, chunk=3), 1, id="an Arrow stream"),
        pytest.param(
            "json", b"".join(b'{"id":%d,"name":"x%d"}\n' % (i, i) for i in range(40)), 9, id="JSON"
        ),
        pytest.param(
            "csv", b"id,name\n" + b"".join(b"%d,x%d\n" % (i, i) for i in range(40)), 1, id="CSV"
        ),
    ],
)
def test_a_large_file_is_cut_where_its_format_allows_it(
    folder: MemoryFolder, format_: str, data: bytes, count: int
) -> None:
    folder.put("one", data, 1)
    share = 100 if format_ == "json" else len(data) // 4
    source = file_input(folder, format_, schema="id BIGINT, name STRING")
    with (
        patch.object(file_formats, "PART_BYTES", share),
        patch.object(file_texts, "PART_BYTES", share),
    ):
        splits = source.splits(None, source.backlog(None).reach())
        batches = [batch for split in splits for batch in source.read(split)]
    assert [row for batch in batches for row in batch.to_pylist()] == MANY.to_pylist()
    assert len(splits) >= count
    assert sum(map(source.split_bytes, splits)) == pytest.approx(len(data), abs=20)


@pytest.mark.parametrize("size", range(1, 40))
def test_lines_are_cut_anywhere(folder: MemoryFolder, size: int) -> None:
    data = b'\xef\xbb\xbf{"id":1}\n\n{"id":2}\r\n{"id":3}\n{"id":4}'
    folder.put("one", data, 1)
    with patch.object(file_texts, "PART_BYTES", size), patch.object(file_texts, "_BLOCK_BYTES", 3):
        rows = rows_of(folder, "json", schema="id BIGINT")
    assert [row["id"] for row in rows] == [1, 2, 3, 4]


# -- files that do not behave ---------------------------------------------------------------------


def drained(folder: MemoryFolder, **given: Any) -> Query:
    """Return a query that has delivered all files."""
    query = file_query(folder, schema="v STRING", **given)
    query.drain()
    return query


def test_a_file_that_is_gone_before_its_replay_is_named(folder: MemoryFolder) -> None:
    for at, name in enumerate("ab"):
        folder.put(name, csv(name), at)
    query = file_query(folder, schema="v STRING")
    query.plan()
    folder.remove("a")
    query.restart()
    with pytest.raises(
        DataLossError, match=r"'/landing/a', of 1970-01-01T00:00:00\.000000Z, is gone"
    ):
        query.deliver()


def test_a_file_that_is_gone_is_left_out_if_loss_is_allowed(
    folder: MemoryFolder, caplog: pytest.LogCaptureFixture
) -> None:
    for at, name in enumerate("ab"):
        folder.put(name, csv(name), at)
    query = file_query(folder, schema="v STRING", failOnDataLoss="false")
    query.plan()
    folder.remove("a")
    assert query.deliver() == [{"v": "b"}]
    assert "'/landing/a'" in caplog.text


@pytest.mark.parametrize(
    ("data", "at"),
    [pytest.param(csv("a", "b"), 1, id="in size"), pytest.param(csv("z"), 2, id="in time")],
)
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_a_delivered_file_that_is_replaced_is_named(
    folder: MemoryFolder, data: bytes, at: int, is_restarted: bool
) -> None:
    folder.put("a", csv("a"), 1)
    query = drained(folder)
    folder.put("a", data, at)
    if is_restarted:
        query.restart()
    with pytest.raises(DataLossError, match="'a' was delivered, and has another size or time"):
        query.plan()


def test_a_replaced_file_is_passed_over_and_warned_of_once(
    folder: MemoryFolder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.put("a", csv("a"), 1)
    query = drained(folder, failOnDataLoss="false")
    folder.put("a", csv("z"), 2)
    folder.put("b", csv("b"), 3)
    query.drain()
    assert values(query) == ["a", "b"]
    assert len(caplog.records) == 1


def test_a_file_that_is_written_to_while_it_is_read_is_refused(folder: MemoryFolder) -> None:
    folder.put("a", csv(*range(5000)), 1)
    source = file_input(folder, schema="v STRING")
    (split,) = source.splits(None, source.backlog(None).reach())
    batches = source.read(split)
    next(batches)
    folder.put("a", csv(1), 2)
    with pytest.raises(DataLossError, match="was replaced, or is being written"):
        list(batches)


def test_a_half_written_file_that_grew_is_refused_before_it_is_read(folder: MemoryFolder) -> None:
    folder.put("a", csv(1), 1)
    query = file_query(folder, schema="v STRING")
    query.plan()
    folder.put("a", csv(1, 2), 2)
    with pytest.raises(DataLossError, match="planned with 4 bytes"):
        query.deliver()


# -- behind the window ----------------------------------------------------------------------------


@pytest.fixture
def narrow() -> Any:
    with patch.object(file_position, "WINDOW", 2), patch.object(file_position, "DAYS", 3):
        yield


def five(folder: MemoryFolder) -> None:
    for at, name in enumerate("abcde"):
        folder.put(name, csv(name), (at + 1) * DAY_US)


@pytest.mark.usefixtures("narrow")
def test_a_running_query_reads_late_files_however_late(folder: MemoryFolder) -> None:
    five(folder)
    query = drained(folder)
    folder.put("late", csv("late"), 1)
    query.drain()
    query.restart()
    query.drain()
    assert values(query) == [*"abcde", "late"]


@pytest.mark.usefixtures("narrow")
def test_a_late_file_within_the_window_is_read_after_a_restart(folder: MemoryFolder) -> None:
    five(folder)
    query = drained(folder)
    folder.put("late", csv("late"), 3 * DAY_US + 1)
    query.restart()
    query.drain()
    assert values(query) == [*"abcde", "late"]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("day", [0, 1, 2, 3])
def test_a_late_file_behind_the_window_is_named_after_a_restart(
    folder: MemoryFolder, day: int
) -> None:
    five(folder)
    query = drained(folder)
    folder.put("late", csv("late"), day * DAY_US - 1)
    query.restart()
    with pytest.raises(DataLossError, match=r"came late or was replaced .* It is 'late'"):
        query.plan()
    folder.put("late", csv("late"), 9 * DAY_US)
    query.drain()
    assert values(query) == [*"abcde", "late"], "as the hint says: its time was renewed"


@pytest.mark.usefixtures("narrow")
def test_a_late_file_is_passed_over_for_good_if_loss_is_allowed(
    folder: MemoryFolder, caplog: pytest.LogCaptureFixture
) -> None:
    five(folder)
    query = drained(folder, failOnDataLoss="false")
    folder.put("late", csv("late"), 1)
    query.restart()
    query.drain()
    folder.put("f", csv("f"), 6 * DAY_US)
    query.drain()
    query.restart()
    query.drain()
    assert values(query) == [*"abcdef"]
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("count", range(6))
def test_the_oldest_files_may_be_removed(folder: MemoryFolder, count: int) -> None:
    five(folder)
    query = drained(folder)
    for name in "abcde"[:count]:
        folder.remove(name)
    query.restart()
    folder.put("f", csv("f"), 6 * DAY_US)
    query.drain()
    query.restart()
    query.drain()
    assert values(query) == [*"abcdef"]


@pytest.mark.usefixtures("narrow")
def test_an_old_file_that_took_a_new_time_while_nobody_looked_is_not_read_twice(
    folder: MemoryFolder,
) -> None:
    five(folder)
    query = drained(folder)
    folder.put("c", csv("other"), 9 * DAY_US)
    with pytest.raises(DataLossError, match="'c' was delivered"):
        query.plan()
    query.restart()
    with pytest.raises(DataLossError, match="although older ones are still there"):
        query.plan()


@pytest.mark.usefixtures("narrow")
def test_a_position_stays_small_and_has_one_text(folder: MemoryFolder) -> None:
    for at in range(50):
        folder.put(f"{at:03}", csv(at), at * DAY_US)
    query = drained(folder, limits=QueryOptions(epochs_max=1))
    assert values(query) == [str(at) for at in range(50)]
    assert len(query.noted[-1]) < 400
    position = Offset.from_json(json.loads(query.noted[-1])).positions[UNNAMED]
    assert FilePosition.unpacked(position).packed() == position


def test_a_position_of_another_kind_is_refused(folder: MemoryFolder) -> None:
    with pytest.raises(OptionError, match="no position in a set of files"):
        file_input(folder, schema="v STRING").backlog(Position.of({"upper": 3}))


# -- storage --------------------------------------------------------------------------------------


def test_every_step_may_fail_once(folder: MemoryFolder) -> None:
    big = pa.table({"v": [str(i) for i in range(100)]})
    for at, name in enumerate("ab"):
        folder.put(name, parquet(big, row_group_size=10), at)
    for moment in Moment:
        for step in range(1000):
            steps = Steps(Fault(step=step, moment=moment, kind=BrokenError))
            faulty = FaultyFolder(folder, steps)
            query = file_query(
                faulty, "parquet", maxRowsPerTrigger=1, limits=QueryOptions(rows_max=1)
            )
            failures = 0
            while True:
                try:
                    query.drain()
                    break
                except (StorageError, DataError, BrokenError):
                    failures += 1
                    assert failures == 1
            assert values(query) == [str(i) for i in range(100)] * 2
            if not steps.struck:
                break
        assert step > 15


def test_a_local_folder_is_read_in_tasks(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.csv").write_bytes(csv("a"))
    (tmp_path / "b.csv").write_bytes(csv("b"))
    (tmp_path / ".b.csv.crc").write_bytes(b"")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    os.utime(tmp_path / "b.csv", ns=(0, 1_234_567_891))
    options = FileOptions.parse(
        FileFormat.CSV, {"path": str(tmp_path), "recursiveFileLookup": "true"}
    )
    source = FileInput(options, file_columns(options))
    splits = source.splits(None, source.backlog(None).reach())
    task, sent = pickle.loads(pickle.dumps((source, splits)))
    rows = [row["v"] for split in sent for batch in task.read(split) for row in batch.to_pylist()]
    assert rows == ["b", "a"]
    assert isinstance(sent[0], FileSplit)
    assert sent[0].file.modified_us == 1_234_567


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    options = FileOptions.parse(
        FileFormat.CSV, {"path": str(tmp_path / "nowhere"), "schema": "v STRING"}
    )
    with pytest.raises(OptionError, match="there is no folder"):
        FileInput(options, file_columns(options)).backlog(None)


@pytest.mark.parametrize(
    ("format_", "given", "says"),
    [
        ("parquet", {"sep": ";"}, "no meaning for parquet"),
        ("csv", {"sep": ";;"}, "one ASCII character"),
        ("csv", {"pathGlobFilter": "a/*.csv"}, "without '/'"),
        ("csv", {"schema": "id BIGNIT"}, "no type 'bignit'"),
        ("json", {"patGlobFilter": "x"}, "unknown option"),
    ],
)
def test_options_are_checked(format_: str, given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        file_options(format_, **given)


def test_names_that_are_no_text_are_read_and_shown(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.csv")
    (tmp_path / name).write_bytes(b"v\n1,2\n")
    options = FileOptions.parse(FileFormat.CSV, {"path": str(tmp_path), "schema": "v STRING"})
    source = FileInput(options, file_columns(options))
    end = Position.of(source.backlog(None).reach().record)
    (split,) = source.splits(None, end)
    with pytest.raises(UpsertFlowError, match="Row #2") as failed:
        list(source.read(split))
    str(failed.value).encode()


# -- beside other inputs --------------------------------------------------------------------------


def test_files_are_inputs_of_one_query_beside_a_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), TWO.schema, keys=["id"])
    table.append(TWO)
    for name, data in (("a", parquet(TWO)), ("b", b"name;id\nc;3\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one").write_bytes(data)
    given = {
        "inputs": "table,a,b",
        "columns": "id",
        "mergeColumns": "_input",
        "failOnDataLoss": "false",
        **{f"input.{name}.path": str(tmp_path / name) for name in ("table", "a", "b")},
        "input.a.format": "Parquet",
        "input.b.format": "csv",
        "input.b.sep": ";",
        "input.b.schema": "name STRING, id BIGINT",
    }
    expected = {("table", 1), ("table", 2), ("a", 1), ("a", 2), ("b", 3)}
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    assert columns.names == ["id", "_input"]

    batch = MergedRead(batch_inputs(plan, columns), plan.query)
    rows = [r for work in batch.splits() for b in batch.read(work) for r in b.to_pylist()]
    assert {(row["_input"], row["id"]) for row in rows} == expected

    query = Query(lambda: Stream(stream_inputs(plan, columns), plan.query, clock=Now()))
    query.drain()
    (tmp_path / "b" / "two").write_bytes(b"name;id\nd;4\n")
    query.restart()
    query.drain()
    rows = [row for found in query.batches for row in found]
    assert sorted((row["_input"], row["id"]) for row in rows) == sorted({*expected, ("b", 4)})


def test_what_is_wrong_with_files_names_the_input(tmp_path: Path) -> None:
    given = {"inputs": "a", "input.a.format": "csv", "input.a.path": str(tmp_path / "nowhere")}
    with pytest.raises(OptionError, match="there is no folder") as failed:
        plan_columns(ReadPlan.parse(given))
    assert "'a'" in str(failed.value)
    with pytest.raises(OptionError, match="'sepp'"):
        plan_columns(ReadPlan.parse({**given, "input.a.sepp": ";"}))


def test_one_folder_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_bytes(csv(1))
    given = {"inputs": "a,b"}
    for name, path in (("a", f"{tmp_path}"), ("b", f"file://{tmp_path}")):
        given |= {f"input.{name}.format": "csv", f"input.{name}.path": path}
    with pytest.raises(OptionError, match="are the same"):
        plan_columns(ReadPlan.parse(given))


def test_a_bucket_is_a_folder_too() -> None:
    client = obstore.store.MemoryStore()
    store = ObjectStore("s3://bucket/landing", {}, client=client)
    big = pa.table({"v": [str(i) for i in range(1000)]})
    for name in ("a.parquet", "_b.parquet", "x/c.parquet", ".y/d.parquet"):
        store.put(name, parquet(big, row_group_size=10))
    folder = ObjectFolder(store)
    query = file_query(folder, "parquet", recursiveFileLookup="true")
    query.drain()
    assert sorted(values(query)) == sorted(big["v"].to_pylist() * 2)
    assert [file.name for file in folder.files(is_recursive=False)] == ["a.parquet"]
    with pytest.raises(FileNotFoundError):
        folder.open("gone")
