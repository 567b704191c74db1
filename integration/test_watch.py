"""Queries are watched: each batch is told in numbers, and no query feels that it is watched."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_upsertflow
from integration.environ import from_checkout
from integration.queries import Feed, drain, upserts
from integration.tables import Row, columns
from pyspark_upsertflow.metrics import Watch
from spark_upsert.metrics import SinkTarget
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = columns(db=pa.string(), k=pa.int64(), v=pa.int64(), seq=pa.int64())
KEYED = {"keys": "k", "sequenceBy": "seq", "columnList": "k,v"}


def row(k: int, v: int, seq: int, db: str = "a") -> Row:
    return {"db": db, "k": k, "v": v, "seq": seq}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    feed = Feed(tmp_path / "feed", ROWS)
    feed.add([row(1, 1, 1), row(2, 1, 1)], [row(1, 2, 2), row(2, 9, 0), row(3, 1, 1)])
    return feed


def writes(spark: SparkSession, feed: Feed, folder: Path, name: str = "writes") -> DataStreamWriter:
    rows = upserts(feed.stream(spark), folder / "t", folder / "checkpoint", **KEYED)
    return rows.queryName(name)


def told(watching: Watch, query: str) -> list[dict[str, Any]]:
    """Return what was told of a query, once Spark has delivered all reports of queries so far."""
    bus = watching._spark.sparkContext._jsc.sc().listenerBus()
    bus.waitUntilEmpty()
    watching.flush()
    return [batch for batch in watching.batches if batch["query"] == query]


def test_each_batch_is_told_with_what_became_of_its_rows(
    spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_upsert.metrics")
    with pyspark_upsertflow.watch(spark) as watching:
        drain(writes(spark, feed, tmp_path))
        first, second = told(watching, "writes")
        text = watching.prometheus()
    assert (first["batch"], first["inserts"], first["updates"]) == (0, 2, 0)
    assert (second["batch"], second["inserts"], second["updates"], second["stale"]) == (1, 1, 1, 1)
    assert second["table"] == str(tmp_path / "t")
    assert second["live_rows"] == 3
    assert 'upsertflow_rows_total{outcome="inserts",query="writes"' in text
    lines = [each for each in caplog.messages if "query=writes " in each]
    assert len(lines) == 2
    assert "batch=1" in lines[1]
    assert "stale=1" in lines[1]


def test_a_query_says_how_far_it_is_behind_and_several_are_told_apart(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    drain(writes(spark, feed, tmp_path))
    changes = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    changes = changes.option("startingVersion", "earliest").option("maxEpochsPerTrigger", 1)
    copy = upserts(
        changes.load(str(tmp_path / "t")),
        tmp_path / "copy",
        tmp_path / "copying",
        keys="k",
        envelope="changelog",
    ).queryName("copies")
    with pyspark_upsertflow.watch(spark) as watching:
        drain(copy)
        feed.add([row(7, 7, 7)])
        drain(writes(spark, feed, tmp_path))
        first, last = told(watching, "copies")
        [written] = told(watching, "writes")
    assert first["lag_versions"] >= 1
    assert first["lag_seconds"] > 0
    assert (last["lag_versions"], last["lag_seconds"]) == (0, 0.0)
    assert last["live_rows"] == 3
    assert (written["inserts"], written["live_rows"]) == (1, 4)
    assert "lag_versions" not in written


def test_what_means_trouble_is_a_warning(
    spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed.add([row(1, 5, 2)])  # The order of the row before it, and another value.
    with pyspark_upsertflow.watch(spark) as watching:
        drain(writes(spark, feed, tmp_path))
        assert told(watching, "writes")[-1]["troubles"] == ["tied"]
    own = [each for each in caplog.records if each.name == "spark_upsert.metrics"]
    [warned] = [each for each in own if each.levelno == logging.WARNING]
    assert "query=writes batch=2 tied: sequenceBy" in warned.message


def test_a_batch_into_many_tables_is_told_as_one(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.add([row(9, 9, 9, db="a"), row(9, 9, 9, db="b")])
    query = upserts(
        feed.stream(spark), tmp_path / "lake" / "{db}" / "t", tmp_path / "checkpoint", **KEYED
    ).queryName("routes")
    with pyspark_upsertflow.watch(spark) as watching:
        drain(query)
        *_, last = told(watching, "routes")
    assert (last["inserts"], last["tables"], last["parked"], last["uncounted"]) == (2, 2, 0, 0)


def test_queries_without_a_table_of_ours_are_not_told(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    other = feed.stream(spark).writeStream.format("noop").queryName("others")
    with pyspark_upsertflow.watch(spark) as watching:
        drain(other.option("checkpointLocation", str(tmp_path / "checkpoint")))
        assert told(watching, "others") == []
        assert watching.failures == 0


def test_a_table_that_is_given_is_found_without_the_plan_of_the_query(
    spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a session of Connect is like: no plan can be asked.
    monkeypatch.setattr(Watch, "_sink_in_plan", lambda *_: None)
    path = str(tmp_path / "t")
    with pyspark_upsertflow.watch(spark, str(tmp_path / "absent"), path) as watching:
        Table.create(str(tmp_path / "absent"), pa.schema({"k": pa.int64()}), keys=["k"])
        drain(writes(spark, feed, tmp_path))
        assert [each["inserts"] for each in told(watching, "writes")] == [2, 1]


def test_a_watch_that_fails_at_each_batch_disturbs_no_query(
    spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Mapping[str, Any]) -> None:
        raise RuntimeError("told too much")

    with pyspark_upsertflow.watch(spark, tell=fail) as watching:
        drain(writes(spark, feed, tmp_path))
        assert len(told(watching, "writes")) == 2
        assert watching.failures == 2
    assert sum("told too much" in each for each in caplog.messages) == 2
    assert Table.open(str(tmp_path / "t")).log.head().live_rows == 3


def test_a_watch_that_hangs_holds_up_no_query_and_drops_what_it_cannot_hold(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    from threading import Event

    goes_on = Event()

    def hang(_: Mapping[str, Any]) -> None:
        goes_on.wait()

    watching = Watch(spark, [SinkTarget.of(str(tmp_path / "t"), {})], tell=hang, reports_max=2)
    try:
        feed.add(*[[row(1, n, 10 + n)] for n in range(6)])
        drain(writes(spark, feed, tmp_path))
        watching._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        assert watching.dropped > 0
    finally:
        goes_on.set()
        watching.stop()
    assert Table.open(str(tmp_path / "t")).snapshot(filter="k = 1").to_pylist() == [
        {"k": 1, "v": 5}
    ]


def test_a_watch_that_stopped_is_told_nothing(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    watching = pyspark_upsertflow.watch(spark)
    watching.stop()
    watching.stop()
    drain(writes(spark, feed, tmp_path))
    assert watching.batches == []


WATCHED = """
import sys
from threading import Event
from pyspark.sql import SparkSession
import pyspark_upsertflow

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
folder, told, came = sys.argv[1], [], Event()

def tell(batch):
    told.append(batch)
    if batch["batch"] == 1:
        came.set()

watching = pyspark_upsertflow.watch(spark, f"{folder}/t", tell=tell)
rows = spark.readStream.schema("db string, k long, v long, seq long")
rows = rows.option("maxFilesPerTrigger", 1).parquet(f"{folder}/feed")
query = rows.writeStream.format("upsertflow").options(keys="k", sequenceBy="seq", columnList="k,v")
query = query.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True)
query = query.start(f"{folder}/t")
assert query.awaitTermination(240)
assert came.wait(60), "the batches were not told"
watching.stop()
print([(batch["inserts"], batch["updates"], batch["stale"]) for batch in told])
spark.stop()
"""


def test_a_session_of_connect_tells_of_the_tables_that_are_given(
    plain_environ: dict[str, str], feed: Feed, tmp_path: Path
) -> None:
    # Behind a batch that ends at once, as forks let it, Spark's client waits for ever now and then
    # (docs/operations.md).
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)],
        env=from_checkout(plain_environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["[(2, 0, 0), (1, 1, 1)]"], done.stderr[-3000:]
