"""What each change of columns does to a running reader, writer, view and mirror (docs/types.md)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from integration.pages import code_of
from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.errors import DataError, DataLossError, SchemaError, UpsertFlowError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.schema_changes import dropped_names
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from spark_upsert_sink.writers import plan_sink
from tests.support.delta import DeltaTable
from tests.support.view_queries import Query

COLUMNS = pa.schema({"k": pa.int64(), "n": pa.int32(), "s": pa.string()})

Change = Callable[[Table], object]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])
    table.upsert(pa.table({"k": [1], "n": [1], "s": ["a"]}, schema=COLUMNS))
    return table


# -- rows from upstream --------------------------------------------------------------------

INT = pa.int32()

UPSTREAM: dict[str, tuple[dict[str, pa.DataType], str, str]] = {
    # What the rows have then; and what becomes of them without and with mergeSchema.
    "added": ({"n": INT, "s": pa.string(), "x": pa.float64()}, "have a column 'x'", "k, n, s, x"),
    "widened": ({"n": pa.int64(), "s": pa.string()}, "give merge_schema=true", "k, n, s"),
    "narrowed": ({"n": pa.int16(), "s": pa.string()}, "k, n, s", "k, n, s"),
    "dropped": ({"n": INT}, "'s' is not among the columns", "k, n, s"),
    "renamed": ({"n": INT, "t": pa.string()}, "have a column 't'", "k, n, s, t"),
    "retyped": ({"n": INT, "s": pa.float64()}, "cast the column", "cast the column"),
}


@pytest.mark.parametrize("change", UPSTREAM)
def test_a_writer_plans_its_next_batch(table: Table, change: str) -> None:
    types, *expected = UPSTREAM[change]
    for merge, words in zip(("false", "true"), expected, strict=True):
        options = WriteOptions.parse({"path": table.store.url, "keys": "k", "mergeSchema": merge})
        try:
            plan_sink(options, pa.schema({"k": pa.int64(), **types}), overwrite=False)
            outcome = ", ".join(table.schema.columns.names)
        except SchemaError as error:
            outcome = str(error)
            assert table.log.head().version == 1
        assert words in outcome


# -- once the table has changed --------------------------------------------------------------


def added(table: Table) -> None:
    rows = pa.table({"k": [2], "n": pa.array([2], INT), "s": ["b"], "x": [1.5]})
    table.upsert(rows, merge_schema=True)


def widened(table: Table) -> None:
    rows = pa.table({"k": [2], "n": pa.array([2**40], pa.int64()), "s": ["b"]})
    table.upsert(rows, merge_schema=True)


def dropped(table: Table) -> None:
    table.drop_columns("s")
    table.upsert(pa.table({"k": [2], "n": pa.array([2], INT)}))


CHANGES: dict[str, Change] = {"added": added, "widened": widened, "dropped": dropped}

BEHIND: dict[str, dict[str, Any]] = {
    # The values behind the key that come of the new row, or a part of the error.
    "a reader": {"added": [2, "b"], "widened": "restart the query", "dropped": "'s' is not among"},
    "a reader again": {"added": [2, "b", 1.5], "widened": [2**40, "b"], "dropped": [2]},
    "a view of the column": {
        "added": [2, "b"],
        "widened": "make the plan anew",
        "dropped": "make the plan anew",
    },
    "a view of other columns": {"added": [], "widened": [], "dropped": []},
}


def query_of(table: Table, who: str) -> Query:
    if "reader" in who:
        return Query({"path": table.store.url, "startingVersion": "earliest"})
    plan = Plan.of_table(table.store.url)
    return Query((plan.select("k") if "other" in who else plan.select(*COLUMNS.names)).node)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("who", BEHIND)
def test_a_running_query_meets_the_change(table: Table, who: str, change: str) -> None:
    query, expected = query_of(table, who), BEHIND[who][change]
    assert query.batch()
    CHANGES[change](table)
    if "again" in who:
        query.start()
    try:
        [row] = query.batch() or []
        outcome: Any = [value for name, value in row.items() if name[0] != "_" and name != "k"]
    except UpsertFlowError as error:
        outcome = str(error)
    assert outcome == expected or (isinstance(outcome, str) and expected in outcome)


def nested(number: pa.DataType) -> pa.Schema:
    column = pa.struct({"x": number})
    return pa.schema({"k": pa.int64(), "l": pa.list_(column), "s": column})


def test_fields_of_structs_and_lists_are_widened(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "nested"), nested(INT), keys=["k"])
    first, second, third = (
        {"k": key, "l": [{"x": number}, None], "s": {"x": number}}
        for key, number in ((1, 1), (2, 2**40), (3, 1))
    )
    table.upsert(pa.Table.from_pylist([first], schema=nested(INT)))
    table.publish()
    rows = pa.Table.from_pylist([second], schema=nested(pa.int64()))
    with pytest.raises(DataError, match="column 'l' holds what is no list"):
        table.upsert(rows)
    table.upsert(rows, merge_schema=True)
    table.upsert(pa.Table.from_pylist([third], schema=nested(INT)))
    table.publish()
    mirror = DeltaTable(open_mirror_store(table.store, None)).rows()
    for shown in (table.snapshot(), mirror):
        assert shown.sort_by("k").to_pylist() == [first, second, third]


# -- columns that a table gives up -------------------------------------------------------------


def test_a_dropped_column_is_shown_by_older_versions_alone(table: Table) -> None:
    table.upsert(pa.table({"k": [1], "n": [1], "s": ["other"]}, schema=COLUMNS))
    files = [slice_.file.path for slice_ in table.log.head().slices]
    head = table.drop_columns("S")
    assert head.schema.columns.names == ["k", "n"]
    assert [slice_.file.path for slice_ in head.slices] == files  # Nothing is rewritten.
    assert table.snapshot().to_pylist() == [{"k": 1, "n": 1}]
    assert table.snapshot(1).to_pylist() == [{"k": 1, "n": 1, "s": "a"}]
    [change] = table.changes().to_pylist()
    assert (change["k"], change["_diff"], "s" in change) == (1, 1, False)
    table.compact(full=True)
    assert table.get(1).to_pylist() == [{"k": 1, "n": 1}]
    assert table.check().is_sound
    with pytest.raises(DataLossError):
        table.snapshot(99)
    table.restore(1)
    assert table.snapshot().to_pylist() == [{"k": 1, "n": 1}]


def test_values_of_a_dropped_column_are_merged_away(table: Table) -> None:
    for key in range(2, 6):
        table.upsert(pa.table({"k": [key], "n": [1], "s": ["secret"]}, schema=COLUMNS))
    table.drop_columns("s")
    table.compact(full=True)
    table.expire(retain_versions=0, safety_ms=0)
    table.upsert(pa.table({"k": [9], "n": pa.array([9], INT)}))
    table.vacuum(grace_ms=0)
    data = [p.read_bytes() for p in Path(table.store.url).rglob("*.arrow")]
    assert data
    assert not any(b"secret" in each for each in data)


def test_a_name_that_was_dropped_does_not_come_back(table: Table) -> None:
    table.drop_columns("s")
    rows = pa.table({"k": [2], "n": pa.array([2], INT), "S": [3]})
    with pytest.raises(SchemaError, match="was dropped"):
        table.upsert(rows, merge_schema=True)
    # A writer that planned before the drop would bring it back with its schema.
    stale = TableSchema.of(COLUMNS, keys=["k"])
    with pytest.raises(SchemaError, match="was dropped"):
        table.alter(stale, {"priority": "5"})
    assert dropped_names(table.log.head().properties) == {"s"}
    table.alter(table.schema, {"priority": "5"})


@pytest.mark.parametrize(
    ("how", "names", "words"),
    [
        ({}, ["k"], "a part of the key"),
        ({"sequence_by": ["n"]}, ["n"], "orders the rows"),
        ({"engine": MergeEngine(Engine.PARTIAL_UPDATE)}, ["s"], "folded"),
        ({"properties": {"indexBy": "s"}}, ["s"], "indexBy"),
        ({}, ["s", "nope"], "nope"),
    ],
)
def test_a_column_that_the_table_needs_is_not_dropped(
    tmp_path: Path, how: dict[str, Any], names: list[str], words: str
) -> None:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"], **how)
    with pytest.raises(SchemaError, match=words):
        table.drop_columns(*names)
    assert table.schema.columns == COLUMNS


# -- upsertflow alter ---------------------------------------------------------------------------


def alter(table: Table, *arguments: str) -> Any:
    return CliRunner().invoke(upsertflow, ["alter", table.store.url, *arguments, "--json"])


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "n": pa.int32(), "note": pa.string()})
    made = Table.create(str(tmp_path / "notes"), columns, keys=["id"])
    [code] = code_of("docs/types.md", "sh", runner="tests/unit/test_schema_changes.py")
    lines = code.splitlines()
    assert len(lines) == 3
    for line in lines:
        command, path, *arguments = shlex.split(line, comments=True)[1:]
        assert path == "/lake/notes"
        done = CliRunner().invoke(upsertflow, [command, made.store.url, *arguments])
        assert done.exit_code == 0, done.output
    assert made.schema.columns.names == ["id", "n", "since"]
    assert made.log.head().properties["tombstoneRetention"] == "14 days"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rename", "s=t"), "not renamed"),
        (("--column", "s BIGINT"), "cast"),
        (("--column", "s LONGER"), "CREATE TABLE"),
        (("--set", "retention=7"), "no property"),
        (("--set", "historyOf=x"), "is internal"),
        (("--set", "rowTtl=1 day"), "--set rowTtlBy=..."),
    ],
)
def test_the_command_says_why_it_refuses(
    table: Table, arguments: tuple[str, ...], told: str
) -> None:
    done = alter(table, *arguments)
    assert done.exit_code != 0
    assert told in done.stderr + str(done.exception)
    assert table.log.head().version == 1
