"""Exact orders over sets of files: the spec's cases with JSON, all formats, and what may happen."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.payloads.files.formats import FileRange, OpenFile, ParquetReader, WantedColumns
from spark_upsert.streams.inputs.files import position as file_position
from spark_upsert.streams.planner.kinds import (
    batch_inputs,
    plan_columns,
    shared_columns,
    stream_inputs,
)
from spark_upsert.streams.planner.merged_read import MergedRead
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.folders import arrow, parquet
from tests.support.seeds import rest_slow
from tests.support.streams import Query, Row

DAY_S = 86_400


def json_lines(rows: Sequence[str]) -> bytes:
    return "".join(f'{{"row": "{row}"}}\n' for row in rows).encode()


def csv_lines(rows: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("row", *rows)).encode()


def table_of(rows: Sequence[str]) -> pa.Table:
    return pa.table({"row": pa.array(rows, pa.string())})


FORMATS: dict[str, Callable[[Sequence[str]], bytes]] = {
    "json": json_lines,
    "csv": csv_lines,
    "parquet": lambda rows: parquet(table_of(rows), row_group_size=2),
    "arrow": lambda rows: arrow(table_of(rows), chunk=2),
}


class Folders:
    """A folder of files for each input, each file a day younger than the one before it."""

    def __init__(self, root: Path, names: Sequence[str], format_: str = "json") -> None:
        self.root = root
        self.names = names
        self.format = format_
        self.days = 0
        for name in names:
            (root / name).mkdir()

    def path(self, name: str, file: str) -> Path:
        return self.root / name / file

    def put(self, name: str, file: str, *rows: str, day: float | None = None) -> None:
        path = self.path(name, file)
        path.write_bytes(FORMATS[self.format](rows))
        self.days += 1
        seconds = DAY_S * (self.days if day is None else day)
        os.utime(path, (seconds, seconds))

    def plan(self, **more: Any) -> ReadPlan:
        given = {"inputs": ",".join(self.names), **{n: str(each) for n, each in more.items()}}
        for name in self.names:
            given[f"input.{name}.path"] = str(self.root / name)
            given[f"input.{name}.format"] = self.format
            given[f"input.{name}.schema"] = "row STRING"
        return ReadPlan.parse(given)

    def stream(self, **more: Any) -> Stream:
        plan = self.plan(**more)
        own = plan_columns(plan)
        columns = shared_columns(plan, own)
        return Stream(stream_inputs(plan, own), plan.query, columns=columns, clock=Now())

    def query(self, **more: Any) -> Query:
        return Query(lambda: self.stream(**more))

    def batch(self, **more: Any) -> list[Row]:
        plan = self.plan(**more)
        own = plan_columns(plan)
        columns = shared_columns(plan, own)
        merged = MergedRead(batch_inputs(plan, own), plan.query, columns=columns)
        return [row for work in merged.splits() for b in merged.read(work) for row in b.to_pylist()]


def rows_of(query: Query) -> str:
    return " ".join(row["row"] for batch in query.batches for row in batch)


def drained_with_restarts(query: Query) -> Query:
    """Read all, each step of it in a process that has seen nothing."""
    while query.plan():
        query.restart()
        query.deliver()
        query.restart()
    return query


CONCAT = {"merge": "concat"}
ROUND_ROBIN = {"merge": "roundrobin"}

CASES = [
    pytest.param(CONCAT, {"a": 3, "b": 3}, "a1 a2 a3 b1 b2 b3", id="1 concat"),
    pytest.param(ROUND_ROBIN, {"a": 2, "b": 2}, "a1 b1 a2 b2", id="5 round robin"),
    pytest.param(ROUND_ROBIN, {"a": 3, "b": 1}, "a1 b1 a2 a3", id="6 round robin, b is short"),
    pytest.param({"interleaveSeed": 42}, {"a": 3, "b": 3}, "b1 a1 b2 a2 b3 a3", id="9 seed 42"),
    pytest.param({"interleaveSeed": 7}, {"a": 3, "b": 3}, "b1 a1 b2 a2 a3 b3", id="12 seed 7"),
    pytest.param(
        {"interleaveSeed": 123},
        {"a": 5, "b": 1, "c": 3},
        "c1 b1 c2 c3 a1 a2 a3 a4 a5",
        id="14 seed 123, three inputs",
    ),
]

CUTS: dict[str, Callable[[list[str]], list[list[str]]]] = {
    "one file": lambda rows: [rows],
    "a file for each row": lambda rows: [[row] for row in rows],
    "with empty files": lambda rows: [[], rows[:2], [], rows[2:]],
}


def filled(root: Path, counts: dict[str, int], cut: str) -> Folders:
    folders = Folders(root, list(counts))
    for name, count in counts.items():
        rows = [f"{name}{number + 1}" for number in range(count)]
        for number, part in enumerate(CUTS[cut](rows)):
            folders.put(name, f"{9 - number}.json", *part)
    return folders


@pytest.mark.parametrize("limit", rest_slow([1, None, 2, 3]), ids=lambda limit: f"limit {limit}")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("given", "counts", "expected"), CASES)
@pytest.mark.sweep(5)
def test_the_spec_with_files_of_json(
    tmp_path: Path,
    given: dict[str, Any],
    counts: dict[str, int],
    expected: str,
    cut: str,
    limit: int | None,
) -> None:
    folders = filled(tmp_path, counts, cut)
    limits = {} if limit is None else {"maxRowsPerTrigger": limit}
    query = drained_with_restarts(folders.query(**given, **limits))
    assert rows_of(query) == expected
    assert all(len(batch) <= (limit or 99) for batch in query.batches)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("given", "counts", "expected"), CASES)
@pytest.mark.sweep(5)
def test_a_batch_read_has_the_same_order(
    tmp_path: Path, given: dict[str, Any], counts: dict[str, int], expected: str, cut: str
) -> None:
    folders = filled(tmp_path, counts, cut)
    rows = folders.batch(**given, mergeColumns="_input,_merge_seq")
    assert " ".join(row["row"] for row in rows) == expected
    assert [row["_merge_seq"] for row in rows] == list(range(len(rows)))
    assert all(row["row"].startswith(row["_input"]) for row in rows)


def test_row_groups_that_are_delivered_are_not_read_again(tmp_path: Path) -> None:
    folders = Folders(tmp_path, "a", "parquet")
    folders.put("a", "1", *(f"a{number}" for number in range(6)))  # Groups of two rows.
    begun: list[int] = []
    read = ParquetReader.read

    def told(self: ParquetReader, open_: OpenFile, part: FileRange, columns: WantedColumns) -> Any:
        begun.append(part.first)
        return read(self, open_, part, columns)

    query = folders.query(**ROUND_ROBIN, maxRowsPerTrigger=1)
    with patch.object(ParquetReader, "read", told):
        drained_with_restarts(query)
    assert rows_of(query) == "a0 a1 a2 a3 a4 a5"
    assert begun == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("format_", FORMATS)
def test_all_formats_are_counted_and_cut_within_a_file(tmp_path: Path, format_: str) -> None:
    folders = Folders(tmp_path, "ab", format_)
    folders.put("a", "1", "a1", "a2", "a3")
    folders.put("b", "1", "b1")
    folders.put("b", "2")
    folders.put("b", "3", "b2", "b3")
    query = drained_with_restarts(folders.query(interleaveSeed=42, maxRowsPerTrigger=2))
    assert rows_of(query) == "b1 a1 b2 a2 b3 a3"


def test_files_take_turns_with_a_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema({"row": pa.string()}), keys=["row"])
    for row in ("t1", "t2", "t3"):
        table.append(table_of([row]))
    folders = Folders(tmp_path, "f")
    folders.put("f", "1", "f1", "f2")
    folders.put("f", "2", "f3", "f4")
    of_table = {"input.t.path": str(tmp_path / "t"), "input.t.startingVersion": "1"}
    query = folders.query(
        inputs="t,f", columns="row", merge="roundrobin", maxRowsPerTrigger=3, **of_table
    )
    assert rows_of(drained_with_restarts(query)) == "t1 f1 t2 f2 t3 f3 f4"


@pytest.mark.parametrize("trigger", ["no limit", "limit 2"])
def test_a_stream_that_is_to_take_what_there_is_takes_no_younger_file(
    tmp_path: Path, trigger: str
) -> None:
    folders = Folders(tmp_path, "ab")
    folders.put("a", "1", "a1", "a2", "a3")
    folders.put("b", "1", "b1")
    limit = {"maxRowsPerTrigger": 2} if trigger == "limit 2" else {}
    query = folders.query(merge="roundrobin", **limit)
    query.stream.freeze()
    while query.plan():
        folders.put("b", f"{folders.days}", "more")
        query.deliver()
    assert rows_of(query) == "a1 b1 a2 a3"


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "restarts"])
def test_a_late_file_waits_for_the_one_that_is_begun_and_for_no_other(
    tmp_path: Path, *, restarts: bool
) -> None:
    folders = Folders(tmp_path, "a")
    folders.put("a", "begun", "a1", "a2", "a3", day=5)
    folders.put("a", "next", "c1", day=6)
    query = folders.query(merge="concat", maxRowsPerTrigger=2)
    query.plan()
    query.deliver()
    folders.put("a", "late", "b1", "b2", day=1)
    if restarts:
        query.restart()
    query.drain()
    assert rows_of(query) == "a1 a2 a3 b1 b2 c1"
    query.restart()
    assert [query.replayed(number) for number in range(len(query.batches))] == query.batches


def test_a_late_file_that_is_begun_itself_is_gone_on_with_in_a_new_process(tmp_path: Path) -> None:
    """The file lies behind the window at once; only the position behind it proves it."""
    folders = Folders(tmp_path, "a")
    for day in range(1, 5):
        folders.put("a", f"{day}", f"a{day}", day=day)
    query = folders.query(merge="concat", maxRowsPerTrigger=2)
    with patch.object(file_position, "WINDOW", 2):
        query.drain()
        folders.put("a", "late", "b1", "b2", "b3", "b4", "b5", day=1.5)
        query.plan()
        query.deliver()
        drained_with_restarts(query)
    assert rows_of(query) == "a1 a2 a3 a4 b1 b2 b3 b4 b5"


def test_without_a_limit_concat_finishes_what_was_begun_under_one(tmp_path: Path) -> None:
    folders = Folders(tmp_path, "ab")
    folders.put("b", "1", "b1", "b2", "b3")
    limited = folders.query(merge="concat", maxRowsPerTrigger=2)
    limited.plan()
    limited.deliver()
    folders.put("a", "1", "a1", "a2")
    folders.put("b", "0", "b0", day=0)
    query = folders.query(merge="concat")
    query.noted, query.batches = limited.noted, limited.batches
    query.drain()
    assert rows_of(query) == "b1 b2 a1 a2 b3 b0"


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        pytest.param(lambda path: path.unlink(), r"'.*/a/1', of .* is gone before", id="removed"),
        pytest.param(
            lambda path: path.write_bytes(json_lines(["x1", "x2", "x3"])),
            r"input 'a': .*('1' was delivered, and has another|'.*/a/1' was planned with)",
            id="replaced",
        ),
    ],
)
@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "restarts"])
def test_a_file_that_is_begun_and_goes_is_an_error_that_names_it(
    tmp_path: Path, happens: Callable[[Path], None], message: str, *, restarts: bool
) -> None:
    folders = Folders(tmp_path, "a")
    folders.put("a", "1", "a1", "a2", "a3")
    query = folders.query(merge="roundrobin", maxRowsPerTrigger=2)
    query.plan()
    query.deliver()
    happens(folders.path("a", "1"))
    if restarts:
        query.restart()
    with pytest.raises(DataLossError, match=message):
        query.drain()
    assert rows_of(query) == "a1 a2"


def test_a_count_is_that_of_the_file_that_was_planned(tmp_path: Path) -> None:
    """Else a batch could end behind a file of which rows are left."""
    folders = Folders(tmp_path, "a", "parquet")
    folders.put("a", "1", "a1", "a2", "a3")
    stream = folders.stream(merge="roundrobin")
    stream.freeze()
    folders.put("a", "1", "a1")
    with pytest.raises(DataLossError, match=r"/a/1' was planned with"):
        stream.latest(stream.initial())


@pytest.mark.parametrize("is_stream", [False, True], ids=["a batch", "a stream"])
def test_a_gap_is_not_allowed_in_an_exact_order(tmp_path: Path, *, is_stream: bool) -> None:
    folders = Folders(tmp_path, "a")
    folders.put("a", "1", "a1")
    read: Any = folders.query if is_stream else folders.batch
    with pytest.raises(OptionError, match="failOnDataLoss=false has no meaning in an exact order"):
        read(merge="concat", failOnDataLoss="false").drain()


def test_a_running_query_knows_its_files_by_name_though_their_input_waits_long(
    tmp_path: Path,
) -> None:
    """Files keep coming for an input that has no turn; what it has delivered is not forgotten."""
    folders = Folders(tmp_path, "abcdefghijkl")
    for day in range(1, 5):
        folders.put("a", f"{day}", f"a{day}", day=day)
    query = folders.query(merge="roundrobin", maxRowsPerTrigger=1)
    with patch.object(file_position, "WINDOW", 2):
        query.drain()
        folders.put("a", "late", "late", day=1)
        for name in folders.names[1:]:
            folders.put(name, "1", f"{name}1")
        for number in range(1, len(folders.names)):
            folders.put("a", f"{10 + number}", f"more{number}", day=10 + number)
            query.plan()
            query.deliver()
        query.drain()
    assert rows_of(query).split()[:16] == [
        *("a1", "a2", "a3", "a4"),
        *(f"{name}1" for name in folders.names[1:]),
        "late",
    ]
