"""One write of Spark's goes to many tables, each exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.queries import Feed, drain, forget_last_commit, upserts
from integration.tables import Row, columns
from spark_upsert.routed.group import GroupTable
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

ROWS = columns(db=pa.string(), k=pa.int64(), v=pa.int64())

KEYED = {"keys": "k", "columnList": "k,v", "allowUnordered": "true"}


def row(db: str, key: int, value: int) -> Row:
    """Return a row of the table of a database."""
    return {"db": db, "k": key, "v": value}


def rows_of(root: Path, folder: str) -> dict[int, int]:
    """Return what a table holds."""
    rows = Table.open(str(root / folder)).snapshot().to_pylist()
    return {each["k"]: each["v"] for each in rows}


def group_of(root: Path) -> GroupTable:
    """Return the group table of a root."""
    return GroupTable(open_store(str(root)))


def test_a_stream_goes_to_many_tables_new_ones_among_them_and_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, root, checkpoint = Feed(tmp_path / "feed", ROWS), tmp_path / "lake", tmp_path / "c"

    def run(**more: str) -> None:
        rows = feed.stream(spark).repartition(2)
        drain(upserts(rows, root / "{db}" / "t", checkpoint, **KEYED, **more))

    feed.add([row("a", 1, 10), row("b", 1, 20)], [row("a", 2, 11), row("x/y", 5, 50)])
    run()
    assert rows_of(root, "a/t") == {1: 10, 2: 11}
    assert rows_of(root, "b/t") == {1: 20}
    assert rows_of(root, "x=2Fy/t") == {5: 50}
    found = group_of(root).at()
    assert found.batch is not None
    assert (found.batch.number, found.batch.template) == (1, "{db}/t")
    assert {folder: each.batch for folder, each in found.members.items()} == {
        "a/t": 1,
        "b/t": 0,
        "x=2Fy/t": 1,
    }

    forget_last_commit(checkpoint)  # Spark repeats the batch: nothing comes twice.
    versions = {folder: each.place for folder, each in found.members.items()}
    feed.add([row("c", 7, 70)])
    run()
    found = group_of(root).at()
    assert rows_of(root, "c/t") == {7: 70}
    assert {folder: found.members[folder].place for folder in versions} == versions

    feed.add([row("d", 1, 1)])
    with pytest.raises(StreamingQueryException, match="createTables"):
        run(createTables="false")
    assert not (root / "d").exists()
    run()
    assert rows_of(root, "d/t") == {1: 1}
    other = upserts(feed.stream(spark), root / "{db}" / "t", tmp_path / "other", **KEYED)
    with pytest.raises(StreamingQueryException, match="are written by"):
        drain(other)
    assert rows_of(root, "a/t") == {1: 10, 2: 11}


def test_a_batch_goes_to_many_tables_and_replaces_only_those_that_it_has_rows_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    rows = [row("a", 1, 10), row("b", 1, 20)]

    def write(rows: list[Row], mode: str, version: int) -> None:
        values = [tuple(each.values()) for each in rows]
        frame = spark.createDataFrame(values, "db string, k long, v long")
        writer = frame.write.format("upsertflow").mode(mode).option("path", f"{root}/{{db}}")
        writer.options(**KEYED, txnAppId="load", txnVersion=version).save()

    write(rows, "append", 1)
    write(rows, "append", 1)
    batch = group_of(root).at().batch
    assert batch is not None
    assert (batch.writer, batch.number, batch.rows) == ("app:load", 1, 2)
    write([row("a", 2, 11), row("a", 3, 12)], "overwrite", 2)
    assert rows_of(root, "a") == {2: 11, 3: 12}
    assert rows_of(root, "b") == {1: 20}
