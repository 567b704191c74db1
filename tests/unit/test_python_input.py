"""Other Python sources as inputs, without Spark: both kinds of readers, restarts, failures."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_upsertflow import python_source
from pyspark_upsertflow.python_source import KINDS, PythonInput, find_decrease, find_source
from spark_upsert.errors import DataLossError, OptionError, SchemaError, UpsertFlowError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    stream_inputs,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table
from tests.support import python_sources
from tests.support.clocked import Now
from tests.support.streams import Query

MODULE = python_sources.__name__


class World:
    """A file that a source reads, and a query over it."""

    def __init__(self, tmp_path: Path, cls: str, **more: str) -> None:
        self.path = tmp_path / "lines"
        self.written: list[str] = []
        self.given = {
            "inputs": "it",
            "input.it.format": f"python:{MODULE}:{cls}",
            "input.it.path": str(self.path),
            **more,
        }
        self.write()
        self.query = Query(self.start)

    def start(self) -> Stream:
        plan = ReadPlan.parse(self.given)
        inputs = stream_inputs(plan, plan_columns(plan, KINDS), KINDS)
        return Stream(inputs, plan.query, clock=Now(), wall=Now())

    def input(self) -> PythonInput:
        plan = ReadPlan.parse(self.given)
        source = stream_inputs(plan, plan_columns(plan, KINDS), KINDS)["it"]
        assert isinstance(source, PythonInput)
        return source

    def write(self, *texts: str) -> None:
        self.written += texts
        lines = (f"{number},{text}\n" for number, text in enumerate(self.written))
        self.path.write_text("".join(lines))

    @property
    def texts(self) -> list[str]:
        return [row["text"] for batch in self.query.batches for row in batch]


@pytest.mark.parametrize("cls", ["Lines", "BoundedLines", "SimpleLines"])
def test_each_row_comes_once_over_restarts(tmp_path: Path, cls: str) -> None:
    world = World(tmp_path, cls)
    world.query.drain()
    for number in range(6):
        world.write(f"a{number}", f"b{number}")
        if number % 2:
            world.query.restart()
        world.query.plan()
        world.write(f"c{number}")
        if number % 3 == 0:
            world.query.restart()
        world.query.drain()
    assert sorted(world.texts) == sorted(world.written)


def test_a_simple_source_is_not_read_again_while_its_answer_stands(tmp_path: Path) -> None:
    world = World(tmp_path, "SimpleLines")
    world.write("a")
    before = python_sources.SimpleReader.reads
    source = world.input()
    for _ in range(5):
        end = source.backlog(None).reach()
    (split,) = source.splits(None, end)
    assert python_sources.SimpleReader.reads == before + 1
    world.path.unlink()
    task = pickle.loads(pickle.dumps(source))
    assert [batch.to_pylist() for batch in task.read(split)] == [[{"n": 0, "text": "a"}]]


@pytest.mark.parametrize("cls", ["BoundedLines", "Lines", "SimpleLines"])
def test_a_source_ends_at_what_there_is(tmp_path: Path, cls: str) -> None:
    world = World(tmp_path, cls)
    world.write("a", "b")
    world.query.stream.freeze()
    world.query.plan()
    world.write("c")
    world.query.drain()
    assert world.texts == ["a", "b"]


def test_a_source_that_forgets_is_refused_after_a_restart_unless_loss_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, "ForgetfulLines")
    world.write("a", "b", "c")
    world.query.drain()
    assert world.texts == ["a", "b", "c"]
    world.query.restart()
    with pytest.raises(DataLossError, match=r"'it': .* goes back \(line: 3 became 1\)"):
        world.query.plan()
    world.given["failOnDataLoss"] = "false"
    world.query.restart()
    assert world.query.plan()
    assert "goes back" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 2}, None),
        ({"a": 2}, {"a": 1.5}, "a: 2 became 1.5"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 1]}}, "a.b[1]: 2 became 1"),
        ({"a": True}, {"a": False}, None),
        ({"a": "2"}, {"a": "1"}, None),
        ({"a": 2}, {"b": 1}, None),
        (3, 2, "it: 3 became 2"),
    ],
)
def test_numbers_that_shrink_are_named(before: Any, after: Any, said: str | None) -> None:
    assert find_decrease(before, after) == said


def test_a_source_is_told_of_what_is_done_when_it_is_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path, "Lines")
    world.write("a")
    source = world.input()
    end = source.backlog(None).reach()
    source.commit(end)
    reader: Any = source._opened()._reader
    assert reader.committed == []
    source.backlog(end).reach()
    source.backlog(end).reach()
    assert reader.committed == [{"line": 1}]


def test_batches_of_other_types_are_refused_wherever_they_come(tmp_path: Path) -> None:
    world = World(tmp_path, "BrokenLines")
    world.write("a")
    world.query.plan()
    with pytest.raises(SchemaError, match="n int64, text string, and says that it has n int32"):
        world.query.deliver()


def test_a_failure_of_a_source_names_it_its_method_and_its_input(tmp_path: Path) -> None:
    world = World(tmp_path, "Lines")
    world.path.unlink()
    with pytest.raises(UpsertFlowError, match=r"'it': .* in latestOffset\(\): FileNotFound"):
        world.query.plan()


@pytest.mark.parametrize(
    ("format_", "says"),
    [
        ("python:", "python:name or python:module:Class"),
        ("python:no_such_module:X", "cannot be imported"),
        (f"python:{MODULE}:Range", "no class of a Python data source"),
        ("python:nonsense", "discovered under the name 'nonsense'"),
    ],
)
def test_a_source_that_is_not_there_is_named(tmp_path: Path, format_: str, says: str) -> None:
    world = World(tmp_path, "Lines")
    with pytest.raises(OptionError, match=says):
        plan_columns(ReadPlan.parse({**world.given, "input.it.format": format_}), KINDS)


def test_a_source_is_found_as_spark_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"from {MODULE} import Lines as DefaultSource\n"
    (tmp_path / "pyspark_lines_of_a_test.py").write_text(module)
    (tmp_path / "pyspark_broken_of_a_test.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_source("Lines") is python_sources.Lines
    assert python_source._imported("pyspark_broken_of_a_test") is None


def pair_of(tmp_path: Path, cls: str, **more: str) -> World:
    """Return a query over a source without lines and, behind it, another one that has two."""
    (tmp_path / "then").write_text("0,x\n1,y\n")
    then = {"input.then.format": f"python:{MODULE}:{cls}", "input.then.path": f"{tmp_path}/then"}
    return World(tmp_path, cls, inputs="it,then", **then, **more)


@pytest.mark.parametrize("cls", ["Lines", "BoundedLines", "SimpleLines"])
def test_concat_takes_another_source_when_one_says_that_it_has_no_more(
    tmp_path: Path, cls: str
) -> None:
    world = pair_of(tmp_path, cls, merge="concat")
    world.write("a", "b", "c")
    while world.query.plan():
        world.query.restart()
        world.query.deliver()
        world.query.restart()
    assert world.texts == ["a", "b", "c", "x", "y"]
    world.write("d")
    world.query.drain()
    assert world.texts[5:] == ["d"]


def make_table(path: Path) -> str:
    """Make a table of three texts."""
    table = Table.create(str(path), pa.schema({"text": pa.string()}), keys=["text"])
    table.upsert(pa.table({"text": ["x", "y", "z"]}))
    return str(path)


def test_a_step_that_was_begun_waits_for_a_source_before_it(tmp_path: Path) -> None:
    order = {"inputs": "it,table", "columns": "text", "merge": "concat"}
    table = {"input.table.path": make_table(tmp_path / "table")}
    world = World(tmp_path, "Lines", **table, **order, maxRowsPerTrigger="2")
    world.query.plan()
    world.query.deliver()
    world.write("a", "b")
    del world.given["maxRowsPerTrigger"]
    world.query.restart()
    world.query.drain()
    begun, source, rest = ([row["text"] for row in batch] for batch in world.query.batches)
    assert source == ["a", "b"]
    assert (len(begun), sorted(begun + rest)) == (2, ["x", "y", "z"])


def test_the_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    table = {"input.it.path": make_table(tmp_path / "table"), "input.it.format": "upsertflow"}
    for of_source in (True, False):
        world = World(tmp_path, "Lines", columns="text")
        world.write("a")
        source = world.given
        world.given, other = (source, source | table) if of_source else (source | table, source)
        world.query.drain()
        world.given = other
        world.query.restart()
        with pytest.raises(UpsertFlowError, match=r"(?s)input 'it'.*new checkpointLocation"):
            world.query.plan()


@pytest.mark.parametrize("is_exact", [False, True], ids=["live", "concat"])
def test_a_batch_reads_sources_and_numbers_the_rows_of_an_exact_order(
    tmp_path: Path, is_exact: bool
) -> None:
    exact = {"merge": "concat", "mergeColumns": "_input,_merge_seq"}
    world = pair_of(tmp_path, "Lines", columns="text", **(exact if is_exact else {}))
    world.write("a", "b", "c")
    plan = ReadPlan.parse(world.given)
    read = MergedRead(batch_inputs(plan, plan_columns(plan, KINDS), KINDS), plan.query)
    task, sent = pickle.loads(pickle.dumps((read, read.splits())))
    rows = [row for work in sent for batch in task.read(work) for row in batch.to_pylist()]
    assert sorted(row["text"] for row in rows) == [*"abcxy"]
    if is_exact:
        assert [(row["_merge_seq"], row["text"]) for row in rows] == [*enumerate("abcxy")]
        assert rows[3] == {"text": "x", "_input": "then", "_merge_seq": 3}


@pytest.mark.parametrize(
    "order",
    [
        {"merge": "roundrobin"},
        {"interleaveSeed": "42"},
        {"merge": "concat", "maxRowsPerTrigger": "9"},
        {"merge": "concat", "mergeColumns": "_merge_seq"},
    ],
    ids=str,
)
def test_an_order_that_counts_is_refused(tmp_path: Path, order: dict[str, str]) -> None:
    world = pair_of(tmp_path, "Lines", **order)
    world.write("a")
    with pytest.raises(OptionError, match=r"input 'it': .* known only once they are") as refused:
        world.query.plan()
    assert "use merge=concat without 'maxRowsPerTrigger'" in refused.value.hint


def test_a_gap_is_not_allowed_in_an_exact_order(tmp_path: Path) -> None:
    world = pair_of(tmp_path, "Lines", merge="concat", failOnDataLoss="false")
    world.write("a")
    with pytest.raises(OptionError, match="failOnDataLoss=false has no meaning"):
        world.query.drain()
