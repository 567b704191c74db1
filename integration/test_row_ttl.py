"""An expiry deletes rows between the batches of a query, and a query that follows sees each once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.promises import assert_sound, fold, rows_of
from integration.queries import Batches, Feed, drain, forget_last_commit, upserts
from integration.tables import Row, columns
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = columns(k=pa.int64(), at=pa.timestamp("us", "UTC"), seq=pa.int64())
TTL = {"rowTtl": "10 days", "rowTtlBy": "at"}
KEYED = {"keys": "k", "sequenceBy": "seq", **TTL}
NOW = datetime.now(UTC)


def row(key: int, days: float, seq: int) -> Row:
    return {"k": key, "at": NOW - timedelta(days=days), "seq": seq}


def changes_of(spark: SparkSession, path: Path) -> DataFrame:
    reader = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    return reader.option("startingVersion", "earliest").load(str(path))


def test_a_query_expires_rows_and_its_followers_see_each_go_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, path, checkpoint = Feed(tmp_path / "feed", ROWS), tmp_path / "t", tmp_path / "c"
    feed.add([row(1, 1, 1), row(2, 20, 1), row(3, 2, 1)], [row(3, 30, 2)], [row(4, 0, 1)])
    drain(upserts(feed.stream(spark), path, checkpoint, **KEYED))
    assert Table.open(str(path)).expire(retain_versions=100).rows_deleted == 2
    # Spark repeats its last batch, which the table has already.
    forget_last_commit(checkpoint)
    drain(upserts(feed.stream(spark), path, checkpoint, **KEYED))
    assert {key for (key,) in rows_of(path)} == {1, 4}

    batches = Batches()
    changes = changes_of(spark, path)
    drain(batches.collect(changes, tmp_path / "reader"))
    gone = [each["k"] for each in batches.rows if each["_change_type"] == "delete"]
    assert sorted(gone) == [2, 3]
    assert set(fold(batches.rows, ["k"])) == set(rows_of(path))
    assert_sound(path)


def test_a_copy_by_the_changelog_loses_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), ROWS, keys=["k"], properties=TTL)
    table.upsert(pa.Table.from_pylist([row(1, 1, 1), row(2, 9, 1)], schema=ROWS))
    changes = changes_of(spark, tmp_path / "t")
    copy = upserts(changes, tmp_path / "copy", tmp_path / "c", keys="k", envelope="changelog")
    drain(copy)
    assert len(rows_of(tmp_path / "copy")) == 2
    table.upsert(pa.Table.from_pylist([row(2, 11, 2)], schema=ROWS))
    table.expire_rows()
    drain(copy)
    assert {key for (key,) in rows_of(tmp_path / "copy")} == {1}


def test_by_commit_the_rows_go_that_no_later_batch_wrote(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_commit = KEYED | {"rowTtl": "1 ms", "rowTtlBy": "_commit_timestamp"}
    feed, path, checkpoint = Feed(tmp_path / "feed", ROWS), tmp_path / "t", tmp_path / "c"
    for batch in ([row(1, 0, 1), row(2, 0, 1)], [row(2, 0, 2), row(3, 0, 1)]):
        feed.add(batch)
        drain(upserts(feed.stream(spark), path, checkpoint, **by_commit))
    # By a clock that is late, so that the time of the newest batch counts.
    Table(open_store(str(path)), clock=lambda: 1.0).expire_rows()
    assert {key for (key,) in rows_of(path)} == {2, 3}
    changes = Batches()
    drain(changes.collect(changes_of(spark, path), tmp_path / "reader"))
    assert [each["k"] for each in changes.rows if each["_change_type"] == "delete"] == [1]
    assert_sound(path)
