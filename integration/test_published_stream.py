"""A streaming query publishes: its Delta table is a copy behind each micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration.promises import assert_sound, epochs_of, rows_of
from integration.queries import Feed, drain, forget_last_commit, upserts
from integration.tables import Row, columns
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical

pytestmark = pytest.mark.spark

COMMANDS = columns(k=pa.int64(), v=pa.int64(), seq=pa.int64(), gone=pa.bool_())
KEYED = {
    "keys": "k",
    "sequenceBy": "seq",
    "applyAsDeletes": "gone",
    "columnList": "k,v",
    "publish": "delta",
    "publishChangeFeed": "true",
}


def row(key: int, value: int | None, seq: int) -> Row:
    """Return an upsert, or without a value a delete."""
    return {"k": key, "v": value, "seq": seq, "gone": value is None}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", COMMANDS)


def write(spark: SparkSession, feed: Feed, at: Path, **options: Any) -> None:
    drain(upserts(feed.stream(spark), at / "table", at / "checkpoint", **{**KEYED, **options}))


def require_copy(path: Path) -> DeltaTable:
    table = Table.open(str(path))
    mirror = Mirror(table.log, table.store, open_mirror_store(table.store, None))
    assert mirror.shown() == table.log.head().version
    assert list(check_mirror(mirror)) == []
    found = DeltaTable(LocalStore(path / "_delta"))
    assert canonical(found.rows()) == canonical(table.snapshot())
    return found


def test_each_micro_batch_is_a_commit_of_the_mirror(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.add([row(1, 10, 0), row(2, 20, 1)], [row(2, None, 2), row(3, 30, 3)], [row(1, 11, 4)])
    write(spark, feed, tmp_path)
    assert rows_of(tmp_path / "table") == {(1,): (11,), (3,): (30,)}
    found = require_copy(tmp_path / "table")
    epochs = epochs_of(tmp_path / "table")
    shown = [
        each["txn"]["version"]
        for actions in found.commits
        for each in actions
        if each.get("txn", {}).get("appId", "").startswith("upsertflow:")
    ]
    assert shown == sorted(set(shown))
    assert {epoch.version for epoch in epochs} <= set(shown)
    assert_sound(tmp_path / "table")


def test_a_batch_that_spark_repeats_is_published_once(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.add([row(1, 10, 0)], [row(1, 20, 1), row(2, 5, 1)])
    write(spark, feed, tmp_path)
    version = require_copy(tmp_path / "table").version
    assert forget_last_commit(tmp_path / "checkpoint") == 1
    write(spark, feed, tmp_path)
    assert require_copy(tmp_path / "table").version == version
    feed.add([row(3, 1, 2)])
    write(spark, feed, tmp_path)
    assert require_copy(tmp_path / "table").version == version + 1
