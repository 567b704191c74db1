"""Spark's queries and a table that is removed, replaced or not made: an error, never wrong rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from integration.promises import assert_sound, rows_of
from integration.queries import Feed, drain, upserts
from integration.tables import columns
from spark_upsert.errors import TableNotFoundError
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = columns(k=pa.int64(), v=pa.int64())


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    feed = Feed(tmp_path / "feed", COLUMNS)
    feed.add([{"k": 1, "v": 10}], [{"k": 2, "v": 20}])
    return feed


def write(spark: SparkSession, feed: Feed, folder: Path, **options: Any) -> None:
    query = upserts(feed.stream(spark), folder / "table", folder / "checkpoint", **options)
    drain(query)


def copy(spark: SparkSession, folder: Path) -> None:
    """Stream the changes of the table into nothing, from where the checkpoint stands."""
    changes = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    query = changes.load(str(folder / "table")).writeStream.format("noop")
    drain(query.option("checkpointLocation", str(folder / "copy")))


def test_a_first_batch_that_fails_leaves_no_table_and_its_typo_can_be_corrected(
    spark: SparkSession, tmp_path: Path
) -> None:
    twice = spark.createDataFrame([(1, 10), (None, 20)], "k bigint, v bigint")
    writer = twice.write.format("upsertflow").mode("append").option("path", str(tmp_path / "table"))
    with pytest.raises(PySparkException, match="null"):
        writer.option("keys", "k").save()
    with pytest.raises(TableNotFoundError):
        Table.open(str(tmp_path / "table"))
    writer.option("keys", "v").save()
    assert Table.open(str(tmp_path / "table")).log.head().schema.keys == ("v",)
    assert_sound(tmp_path / "table")


def test_a_query_whose_table_was_removed_does_not_bring_it_back(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    write(spark, feed, tmp_path, keys="k")
    feed.add([{"k": 3, "v": 30}])
    shutil.rmtree(tmp_path / "table")
    with pytest.raises(StreamingQueryException, match=r"(?s)OTHER_TABLE.*must hold all batches"):
        write(spark, feed, tmp_path, keys="k")
    with pytest.raises(TableNotFoundError):
        Table.open(str(tmp_path / "table"))

    write(spark, feed, tmp_path, keys="k", allowMissingBatches="true")
    assert rows_of(tmp_path / "table") == {(3,): (30,)}


def test_a_query_whose_table_was_restored_does_not_go_on(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    write(spark, feed, tmp_path, keys="k")
    shutil.copytree(tmp_path / "table", tmp_path / "backup")
    feed.add([{"k": 3, "v": 30}])
    write(spark, feed, tmp_path, keys="k")
    feed.add([{"k": 4, "v": 40}])
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "backup").rename(tmp_path / "table")
    with pytest.raises(StreamingQueryException, match=r"(?s)OTHER_TABLE.*those up to 1"):
        write(spark, feed, tmp_path, keys="k")
    assert rows_of(tmp_path / "table") == {(1,): (10,), (2,): (20,)}


def test_a_reader_s_checkpoint_is_of_one_table(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    write(spark, feed, tmp_path, keys="k")
    copy(spark, tmp_path)
    shutil.rmtree(tmp_path / "table")
    shutil.rmtree(tmp_path / "checkpoint")
    feed.add([{"k": 3, "v": 30}])
    write(spark, feed, tmp_path, keys="k")
    with pytest.raises(StreamingQueryException, match=r"(?s)OTHER_TABLE.*new checkpointLocation"):
        copy(spark, tmp_path)
