"""Mistakes with one stream into many tables: what Spark shows says what to do, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.promises import assert_sound
from integration.queries import Feed, drain, upserts
from integration.tables import Row, columns
from spark_upsert.cli.routed import list_tables
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

SOURCE = pa.struct({"db": pa.string(), "table": pa.string()})
ROWS = columns(id=pa.int64(), v=pa.int64(), source=SOURCE)

Tables = dict[str, dict[int, int]]
"""By the name of the table: the value of each key."""


def row(name: str | None, key: int, value: int) -> Row:
    """Return a row of ``db.table``; one without a point has no table."""
    db, _, table = (name or "").partition(".")
    return {"id": key, "v": value, "source": {"db": db or None, "table": table or None}}


def frame(spark: SparkSession, *rows: Row, schema: pa.Schema = ROWS) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema)).coalesce(1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def template(root: Path) -> str:
    return f"{root}/{{source.db}}.{{source.table}}"


def save(rows: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
    given = {"keys": "id", "exceptColumnList": "source", **options}
    rows.write.format("upsertflow").mode(mode).options(**given).save(path)


def contents(root: Path) -> Tables:
    """Return what the tables of the group hold, each of them checked."""
    found: Tables = {}
    for line in list_tables(str(root), {}).lines:
        table = Table.open(f"{root}/{line.folder}")
        assert_sound(Path(table.store.url))
        rows = table.snapshot().to_pylist()
        found[line.name or line.folder] = {each["id"]: each["v"] for each in rows}
    return found


# -- mistakes: nothing is stored, and the error says what to do ------------------------

MISTAKES: dict[str, tuple[str, dict[str, str], list[Row], str]] = {
    "no column in the path": ("{{x}}", {}, [], "names no column"),
    "columns that touch": ("{id}{v}", {}, [], "nothing between {id} and {v}"),
    "a column that is not there": (
        "{source.schema}",
        {},
        [],
        "'schema' is not among the columns (db, table)",
    ),
    "a column that names nothing": ("{source}", {}, [], "a table is named by a text"),
    "a null": ("{source.db}.{source.table}", {}, [row("a", 1, 1)], "source.table is null"),
    "an empty value": ("{source.db}", {}, [row(None, 1, 1)], "source.db is null"),
    "300 bytes": ("{source.db}", {}, [row("x" * 300 + ".t", 1, 1)], "a folder name of 300 bytes"),
    "an option of another write": ("{id}", {"tablesMaximum": "1"}, [], "'tablesMax'"),
    "an option of no table": ("{id}", {"table.a.kyes": "id"}, [], "'table.a.keys'"),
    "options that disagree": (
        "{source.db}",
        {"table.a*.mergeSchema": "true", "table.*b.mergeSchema": "false"},
        [row("ab.t", 1, 1)],
        "say different things about the table 'ab'",
    ),
    "no table may be made": (
        "{source.db}",
        {"createTables": "false"},
        [row("a.t", 1, 1)],
        "rows for the table 'a'",
    ),
    "too many tables": (
        "{source.db}",
        {"tablesMax": "1"},
        [row("a.t", 1, 1), row("b.t", 1, 1)],
        "no more than 1 may be",
    ),
}


@pytest.mark.parametrize(("path", "options", "rows", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_before_anything_is_stored(
    spark: SparkSession,
    root: Path,
    path: str,
    options: dict[str, str],
    rows: list[Row],
    message: str,
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(frame(spark, *rows, row("good.t", 1, 1)), f"{root}/{path}", **options)
    assert message in str(caught.value)
    assert "Hint:" in str(caught.value)
    assert [each for each in root.rglob("*") if each.is_file()] == []


def test_values_that_lead_elsewhere_stay_below_the_root(spark: SparkSession, root: Path) -> None:
    names = ["..", ".", "../..", "_group", "_log", "/etc", "a/b", "%2e%2e", "a b"]
    rows = [{**row("x.y", 1, at), "source": {"db": n, "table": "t"}} for at, n in enumerate(names)]
    save(frame(spark, *rows), f"{root}/{{source.db}}")
    assert contents(root) == {name: {1: at} for at, name in enumerate(names)}
    assert os.listdir(root.parent) == ["lake"]
    assert len(os.listdir(root)) == len(names) + 1


def test_a_table_that_was_made_by_hand_with_other_keys_is_named(
    spark: SparkSession, root: Path
) -> None:
    made = Table.create(
        f"{root}/shop.orders", pa.schema({"id": pa.int64(), "v": pa.int64()}), keys=["id", "v"]
    )
    made.upsert(pa.table({"id": [9], "v": [9]}))
    rows = [row("shop.orders", 1, 1), row("shop.users", 1, 2)]
    with pytest.raises(PySparkException) as caught:
        save(frame(spark, *rows), template(root))
    assert "table 'shop.orders': option 'keys' is 'id', but the table has 'id,v'" in str(
        caught.value
    )
    assert made.log.head().version == 1
    save(frame(spark, *rows), template(root), **{"table.shop.orders.keys": "id,v"})
    assert contents(root) == {"shop.orders": {1: 1, 9: 9}, "shop.users": {1: 2}}


def test_names_that_are_one_to_the_storage_are_told_apart(spark: SparkSession, root: Path) -> None:
    save(frame(spark, row("shop.orders", 1, 1)), template(root))
    # As a file system that folds case has it.
    (root / "shop.ORDERS").symlink_to(root / "shop.orders")
    with pytest.raises(PySparkException) as caught:
        save(frame(spark, row("shop.ORDERS", 1, 2)), template(root))
    assert "'shop.ORDERS'" in str(caught.value)
    assert "'shop.orders'" in str(caught.value)
    (root / "shop.ORDERS").unlink()
    assert contents(root) == {"shop.orders": {1: 1}}


def test_a_root_has_one_query_and_one_template(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", ROWS)
    options = {"keys": "id", "exceptColumnList": "source"}

    def run(checkpoint: str, path: str = "{source.db}.{source.table}", **more: str) -> None:
        at = f"{root}/{path}"
        drain(upserts(feed.stream(spark), at, tmp_path / checkpoint, **options, **more))

    feed.add([row("shop.orders", 1, 1)])
    run("one")
    with pytest.raises(PySparkException, match="are written by 'query:"):
        save(frame(spark, row("shop.orders", 5, 5)), template(root))
    feed.add([row("shop.orders", 2, 2)])
    with pytest.raises(PySparkException, match="they have their names by"):
        run("one", "{source.table}.{source.db}")
    run("one")
    assert contents(root) == {"shop.orders": {1: 1, 2: 2}}
    run("two", takeOver="true")
    feed.add([row("shop.orders", 3, 3)])
    with pytest.raises(PySparkException, match="from which they were taken over"):
        run("one", takeOver="true")
    assert contents(root) == {"shop.orders": {1: 1, 2: 2}}
