"""Tables that follow others: the changes of one are written into the next, by Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from integration.promises import assert_sound, epochs_of, rows_of
from integration.queries import drain, forget_last_commit, upserts
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string()})
DELTA = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("_change_type", StringType()),
        StructField("_commit_version", LongType()),
        StructField("_commit_timestamp", TimestampType()),
    ]
)
"""What Delta's change data feed has: columns, order and types."""


@pytest.fixture
def source(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "source"), COLUMNS, keys=["id"])


def append(table: Table, *epochs: Mapping[int, str | None]) -> None:
    """Put names, and delete those that are None, epoch by epoch."""
    for names in epochs:
        gone = [name is None for name in names.values()]
        rows = pa.table({"id": list(names), "name": [*names.values()], "gone": gone})
        table.upsert(rows, deletes="gone")


def changes(spark: SparkSession, table: Table, **options: str) -> DataFrame:
    """Return the stream of a table's changes, whose rows come to tasks as chance will have it."""
    reader = spark.readStream.format("upsertflow").options(readChangeFeed="true", **options)
    return reader.load(table.store.url).repartition(3, F.rand())


def test_a_table_follows_another_through_stops_and_replays(
    spark: SparkSession, source: Table, tmp_path: Path
) -> None:
    copy, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"

    def follow() -> None:
        rows = changes(spark, source, maxEpochsPerTrigger="2", computeUpdates="false")
        drain(upserts(rows, copy, checkpoint, envelope="changelog", keys="id"))
        assert rows_of(copy) == rows_of(source.store.url)

    append(source, {1: "a", 2: "b", 3: "c"})
    follow()
    append(source, {1: "A", 4: "d"}, {2: None}, {2: "new", 3: None}, {1: None, 3: "c"}, {1: "B"})
    follow()
    count = len(epochs_of(copy))
    forget_last_commit(checkpoint)  # Its batch comes again, and is known.
    follow()
    assert len(epochs_of(copy)) == count
    append(source, {4: None})
    follow()
    assert_sound(copy)


def test_a_batch_of_changes_is_the_table_that_they_made(
    spark: SparkSession, source: Table, tmp_path: Path
) -> None:
    append(source, {1: "a", 2: "b"}, {1: "A", 2: None}, {2: "again"}, {1: None, 3: "c"})
    rows = spark.read.format("upsertflow").option("readChangeFeed", "true").load(source.store.url)
    writer = rows.repartition(3, F.rand()).write.format("upsertflow").mode("append")
    writer.options(envelope="changelog", keys="id").save(str(tmp_path / "copy"))
    assert (
        rows_of(tmp_path / "copy") == rows_of(source.store.url) == {(2,): ("again",), (3,): ("c",)}
    )


def test_a_change_feed_of_delta_is_taken_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    noon = dt.datetime(2026, 1, 1, 12)
    feed = [
        (1, "a", "insert", 1, noon),
        (2, "b", "insert", 1, noon),
        (1, "a", "update_preimage", 2, noon),
        (1, "A", "update_postimage", 2, noon),
        (2, "b", "delete", 3, noon),
        (3, "c", "delete", 4, noon),  # An overwrite takes all rows, and puts others.
        (3, "C", "insert", 4, noon),
    ]
    rows = spark.createDataFrame(feed, DELTA).repartition(4, F.rand())
    writer = rows.write.format("upsertflow").mode("append")
    writer.options(envelope="changelog", keys="id").save(str(tmp_path / "copy"))
    assert rows_of(tmp_path / "copy") == {(1,): ("A",), (3,): ("C",)}


def test_rows_that_are_no_changes_stop_the_query(
    spark: SparkSession, source: Table, tmp_path: Path
) -> None:
    append(source, {1: "a"})
    broken = changes(spark, source).withColumn("_change_type", F.lit("upsert"))
    writer = upserts(broken, tmp_path / "copy", tmp_path / "c", envelope="changelog", keys="id")
    with pytest.raises(StreamingQueryException, match="'upsert' is no change in 1 of 1 rows"):
        drain(writer)
