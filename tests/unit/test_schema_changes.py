"""What each change of columns does to a running reader, writer, view and mirror.

As docs/types.md says it.
"""

from __future__ import annotations

import json
import re
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
from spark_upsert.delta.place import place_of
from spark_upsert.errors import DataError, DataLossError, SchemaError, UpsertFlowError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.schema_changes import dropped_names
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from spark_upsert_sink.writers import plan_sink
from tests.support.delta import DeltaTable
from tests.support.view_queries import Query

COLUMNS = pa.schema({"k": pa.int64(), "n": pa.int32(), "s": pa.string()})
PAGE = Path(__file__).parents[2] / "docs" / "types.md"

Change = Callable[[Table], object]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])
    made.upsert(pa.table({"k": [1], "n": [1], "s": ["a"]}, schema=COLUMNS))
    return made


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


@pytest.mark.parametrize("merge", ["false", "true"])
@pytest.mark.parametrize("change", UPSTREAM)
def test_a_writer_plans_its_next_batch(table: Table, change: str, merge: str) -> None:
    types, without, with_merge = UPSTREAM[change]
    expected = with_merge if merge == "true" else without
    options = WriteOptions.parse({"path": table.store.url, "keys": "k", "mergeSchema": merge})
    try:
        plan_sink(options, pa.schema({"k": pa.int64(), **types}), overwrite=False)
        found = ", ".join(table.schema.columns.names)
    except SchemaError as error:
        found = str(error)
        assert table.log.head().version == 1
    assert expected in found


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
    "a reader that starts again": {
        "added": [2, "b", 1.5],
        "widened": [2**40, "b"],
        "dropped": [2],
    },
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
        found: Any = [value for name, value in row.items() if name[0] != "_" and name != "k"]
    except UpsertFlowError as error:
        found = str(error)
    assert found == expected or (isinstance(found, str) and expected in found)


def test_fields_of_structs_and_lists_are_widened(tmp_path: Path) -> None:
    types = {"k": pa.int64(), "l": pa.list_(pa.struct({"x": INT})), "s": pa.struct({"y": INT})}
    narrow = pa.schema(types)
    wide = pa.schema(
        {**types, "l": pa.list_(pa.struct({"x": pa.int64()})), "s": pa.struct({"y": pa.int64()})}
    )
    table = Table.create(str(tmp_path / "nested"), narrow, keys=["k"])
    first, second = (
        {"k": key, "l": [{"x": number}, None], "s": {"y": number}}
        for key, number in ((1, 1), (2, 2**40))
    )
    table.upsert(pa.Table.from_pylist([first], schema=narrow))
    table.publish()
    rows = pa.Table.from_pylist([second], schema=wide)
    with pytest.raises(DataError, match="column 'l' holds what is no list"):
        table.upsert(rows)
    table.upsert(rows, merge_schema=True)
    table.upsert(pa.Table.from_pylist([{**first, "k": 3}], schema=narrow))
    expected = [first, second, {**first, "k": 3}]
    assert table.snapshot().sort_by("k").to_pylist() == expected
    table.publish()
    assert DeltaTable(place_of(table.store, None)).rows().sort_by("k").to_pylist() == expected


@pytest.mark.parametrize("change", CHANGES)
def test_a_mirror_shows_the_change_at_its_next_step(table: Table, change: str) -> None:
    table.publish()
    CHANGES[change](table)
    table.publish()
    shown = DeltaTable(place_of(table.store, None)).rows()
    assert sorted(map(repr, shown.to_pylist())) == sorted(map(repr, table.snapshot().to_pylist()))
    assert shown.column_names == table.schema.columns.names
    table.upsert(
        pa.table({"k": [3], "n": [3]}, schema=pa.schema({"k": pa.int64(), "n": INT})),
        merge_schema=True,
    )
    table.publish()
    assert DeltaTable(place_of(table.store, None)).rows().num_rows == 3


def test_the_page_has_a_row_for_each_change() -> None:
    rows = re.findall(r"^\| ([a-z]+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) >= set(UPSTREAM) | set(CHANGES)


# -- columns that a table gives up -------------------------------------------------------------


def test_a_dropped_column_is_shown_by_older_versions_alone(table: Table) -> None:
    head = table.drop_columns("S")
    assert head.schema.columns.names == ["k", "n"]
    assert table.snapshot().to_pylist() == [{"k": 1, "n": 1}]
    assert table.snapshot(1).to_pylist() == [{"k": 1, "n": 1, "s": "a"}]
    assert [set(row) & {"s"} for row in table.changes().to_pylist()] == [set()]
    table.compact(full=True)
    assert table.get(1).to_pylist() == [{"k": 1, "n": 1}]
    assert table.check().is_sound


def test_nothing_is_rewritten(table: Table) -> None:
    before = [slice_.file.path for slice_ in table.log.head().slices]
    table.drop_columns("s")
    assert [slice_.file.path for slice_ in table.log.head().slices] == before


def test_what_was_dropped_is_merged_away(table: Table) -> None:
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


@pytest.mark.parametrize("type_", [pa.string(), pa.int64()], ids=str)
def test_a_name_that_was_dropped_does_not_come_back(table: Table, type_: pa.DataType) -> None:
    table.drop_columns("s")
    rows = pa.table({"k": [2], "n": pa.array([2], INT), "S": pa.nulls(1, type_)})
    with pytest.raises(SchemaError, match="was dropped"):
        table.upsert(rows, merge_schema=True)
    # A writer that planned before the drop would bring it back with its schema.
    stale = TableSchema.of(COLUMNS, keys=["k"])
    with pytest.raises(SchemaError, match="was dropped"):
        table.alter(stale, {"priority": "5"})
    assert dropped_names(table.log.head().properties) == {"s"}
    table.alter(table.schema, {"priority": "5"})


def test_a_restore_to_a_version_from_before_leaves_the_column_out(table: Table) -> None:
    table.drop_columns("s")
    table.upsert(pa.table({"k": [1], "n": pa.array([7], INT)}))
    table.restore(1)
    assert table.snapshot().to_pylist() == [{"k": 1, "n": 1}]


def test_a_column_that_an_index_is_on_is_not_dropped(table: Table) -> None:
    table.alter(table.schema, {"indexBy": "s"})
    with pytest.raises(SchemaError, match="indexBy"):
        table.drop_columns("s")


@pytest.mark.parametrize(
    ("how", "name", "told"),
    [
        ({}, "k", "a part of the key"),
        ({"sequence_by": ["n"]}, "n", "orders the rows"),
        ({"engine": MergeEngine(Engine.PARTIAL_UPDATE)}, "s", "folded"),
        ({}, "nope", "nope"),
    ],
)
def test_a_column_that_the_table_needs_is_not_dropped(
    tmp_path: Path, how: dict[str, Any], name: str, told: str
) -> None:
    made = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"], **how)
    with pytest.raises(SchemaError, match=told):
        made.drop_columns("s" if name == "nope" else name, *([name] if name == "nope" else []))
    assert made.schema.columns == COLUMNS


def test_changes_across_a_drop_are_those_of_the_columns_that_are_left(table: Table) -> None:
    table.upsert(pa.table({"k": [1], "n": [1], "s": ["other"]}, schema=COLUMNS))
    table.drop_columns("s")
    assert [(row["k"], row["_diff"]) for row in table.changes().to_pylist()] == [(1, 1)]
    with pytest.raises(DataLossError):
        table.snapshot(99)


# -- upsertflow alter ---------------------------------------------------------------------------


def alter(table: Table, *arguments: str) -> Any:
    return CliRunner().invoke(upsertflow, ["alter", table.store.url, *arguments, "--json"])


def test_the_command_adds_widens_drops_and_sets(table: Table) -> None:
    done = alter(table, "--column", "n BIGINT, x DOUBLE", "--drop", "s", "--set", "priority=7")
    facts = json.loads(done.stdout)
    assert facts["columns"] == {"k": "int64", "n": "int64", "x": "double"}
    assert facts["properties"]["priority"] == "7"
    assert table.snapshot().to_pylist() == [{"k": 1, "n": 1, "x": None}]


def test_what_the_command_refuses_is_told_in_words_of_the_command(table: Table) -> None:
    done = CliRunner().invoke(upsertflow, ["alter", table.store.url, "--set", "rowTtl=1 day"])
    assert "--set rowTtlBy=..." in done.output


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "n": pa.int32(), "note": pa.string()})
    made = Table.create(str(tmp_path / "notes"), columns, keys=["id"])
    runner = "tests/unit/test_schema_changes.py"
    [code] = code_of("docs/types.md", "sh", runner=runner)
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
        (("--drop", "k"), "part of the key"),
        (("--set", "retention=7"), "no property"),
        (("--set", "historyOf=x"), "is internal"),
    ],
)
def test_the_command_says_why_it_refuses(
    table: Table, arguments: tuple[str, ...], told: str
) -> None:
    done = alter(table, *arguments)
    assert done.exit_code != 0
    assert told in done.stderr + str(done.exception)
    assert table.log.head().version == 1
