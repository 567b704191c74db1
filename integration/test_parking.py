"""One table of a stream is poisoned: it is parked, the others go on, and it is mended meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.queries import Batches, Feed, drain, upserts
from integration.tables import Row, columns
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = columns(topic=pa.string(), id=pa.int64(), v=pa.int64())
OPTIONS = {"keys": "id", "columnList": "id,v", "onTableError": "park"}


def row(topic: str, key: int, value: int) -> Row:
    return {"topic": topic, "id": key, "v": value}


def lake(spark: SparkSession, root: Path, **given: Any) -> DataFrame:
    """Read all tables at one batch."""
    reader = spark.read.format("upsertflow").option("inputsPattern", "*").options(**given)
    return reader.option("mergeColumns", "_input").load(str(root))


def contents(rows: DataFrame) -> set[tuple[str, int, int]]:
    return {(each["_input"], each["id"], each["v"]) for each in rows.collect()}


def test_a_poisoned_table_is_parked_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    root, feed, seen = tmp_path / "lake", Feed(tmp_path / "feed", ROWS), Batches()
    Table.create(f"{root}/bad", pa.schema({"id": pa.int64()}), keys=["id"])
    feed.add([row("good", 1, 1), row("bad", 1, 1)], [row("good", 1, 2), row("bad", 2, 2)])
    rows = feed.stream(spark)
    drain(upserts(rows, f"{root}/{{topic}}", tmp_path / "checkpoint", **OPTIONS))
    assert contents(lake(spark, root, consistent="true")) == {("good", 1, 2)}
    group = spark.read.format("upsertflow").option("metadata", "group").load(str(root))
    assert {(each["folder"], each["batch"], each["parked"]) for each in group.collect()} == {
        ("", 1, 2),
        ("good", 1, 0),
    }
    replay_dead_letters(LocalStore(str(root)), options={"mergeSchema": "true"})
    assert DeadLetterTable(LocalStore(str(root))).counts() == {}
    whole = {("good", 1, 2), ("bad", 1, 1), ("bad", 2, 2)}
    assert contents(lake(spark, root, consistent="true")) == whole
    assert contents(lake(spark, root, asOfBatch="0")) == {("good", 1, 1)}
    stream = (
        spark.readStream.format("upsertflow")
        .options(inputsPattern="*", consistent="true", mergeColumns="_input")
        .load(str(root))
    )
    feed.add([row("good", 2, 3), row("bad", 2, 4)])
    drain(upserts(rows, f"{root}/{{topic}}", tmp_path / "checkpoint", **OPTIONS))
    query = drain(seen.collect(stream, tmp_path / "reader"))
    assert {(each["_input"], each["id"], each["v"]) for each in seen.rows} == {
        ("good", 1, 2),
        ("good", 2, 3),
        ("bad", 1, 1),
        ("bad", 2, 4),
    }
    assert query.lastProgress is not None
    assert '"complete": 2' in str(query.lastProgress["sources"][0]["latestOffset"])
