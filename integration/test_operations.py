"""A table in operation: looked at, compacted by a job, expired under running queries."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_upsertflow
from integration.promises import assert_sound, contents, fold, rows_of
from integration.queries import Batches, Feed, drain, end, upserts, wait_until
from integration.tables import Epoch, Row, append, make_table
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EPOCHS: tuple[Epoch, ...] = ({1: "a", 2: "b"}, {2: "c", 3: "d"}, {1: None, 3: "e"})
LATER: tuple[Epoch, ...] = ({4: "f"}, {2: "g", 4: None}, {5: "h"}, {5: "i", 1: "j"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def batches() -> Batches:
    return Batches()


def about(spark: SparkSession, path: Path, metadata: str, **options: Any) -> DataFrame:
    reader = spark.read.format("upsertflow").option("metadata", metadata)
    return reader.options(**options).load(str(path))


def changes(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    given = {"readChangeFeed": "true", **options}
    return spark.readStream.format("upsertflow").options(**given).load(str(path))


def change_feed(spark: SparkSession, path: Path, **options: Any) -> list[Row]:
    given = {"readChangeFeed": "true", **options}
    rows = spark.read.format("upsertflow").options(**given).load(str(path))
    return rows.toArrow().to_pylist()


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r["_commit_version"], r["_diff"], r["k"]))


def delivered(batches: Batches) -> list[Row]:
    """Return the changes of all micro-batches; of one that was replayed, its last run."""
    runs = dict(batches.runs)
    return in_order([row for rows in runs.values() for row in rows])


def expire_all(table: Table) -> int:
    """Expire and vacuum what may be, as if the table were older than it is; returns `since`."""
    table.expire(retain_versions=0, safety_ms=0)
    long_ago = time.time() - 30 * 86_400
    for file in Path(table.store.url, "_log").iterdir():
        os.utime(file, (long_ago, long_ago))
    table.vacuum()
    return table.log.head().since


# -- looking -------------------------------------------------------------------------


def test_each_epoch_is_a_row_of_metadata_with_its_counters(spark: SparkSession, path: Path) -> None:
    table = make_table(path, *EPOCHS)
    table.compact(full=True)
    rows = about(spark, path, "epochs").orderBy("version").toArrow().to_pylist()
    assert [row["version"] for row in rows] == [1, 2, 3]
    for row in rows:
        commit = table.log.commit(row["version"])
        counters = Counters.from_json(commit.counters)
        assert {name: row[name] for name in counters.to_json()} == counters.to_json()
        assert row["eligible"] == counters.eligible
        assert row["result_count"] == counters.result_count
        assert row["output_count"] == counters.output_count
        assert row["live_rows"] == commit.live_rows
        assert int(row["timestamp"].timestamp() * 1000) == commit.timestamp_ms
        assert row["bytes"] == sum(file.bytes for file in commit.added)
    total = about(spark, path, "epochs").agg(F.sum("inserts") - F.sum("deletes")).first()
    assert total is not None
    assert total[0] == len(rows_of(path))


def test_the_writer_of_an_epoch_is_named(
    spark: SparkSession, tmp_path: Path, path: Path, checkpoint: Path
) -> None:
    feed = Feed(tmp_path / "feed", pa.schema({"k": pa.int64(), "v": pa.string()}))
    feed.add([{"k": 1, "v": "a"}], [{"k": 2, "v": "b"}])
    query = drain(upserts(feed.stream(spark), path, checkpoint, keys="k"))
    rows = about(spark, path, "epochs").orderBy("version").select("transactions").collect()
    assert [row[0] for row in rows] == [{f"query:{query.id}": 0}, {f"query:{query.id}": 1}]


def test_versions_files_and_consumers_are_metadata_too(spark: SparkSession, path: Path) -> None:
    table = make_table(path, *EPOCHS)
    table.compact(full=True)
    table.hold("reports", 2)
    kinds = about(spark, path, "history").orderBy("version").select("kind", "runs").collect()
    assert [tuple(row) for row in kinds] == [
        ("create", 0),
        ("append", 1),
        ("append", 2),
        ("append", 3),
        ("compact", 1),
    ]
    (file,) = about(spark, path, "files").collect()
    assert Path(path, file.path).stat().st_size == file.bytes
    (consumer,) = about(spark, path, "consumers").collect()
    assert (consumer.consumer, consumer.version, consumer.versions_behind) == ("reports", 2, 2)
    assert consumer.is_live


def test_metadata_of_an_empty_table_has_columns_and_no_rows(
    spark: SparkSession, path: Path
) -> None:
    make_table(path)
    assert about(spark, path, "epochs").count() == 0
    assert "rejected" in about(spark, path, "epochs").columns
    assert about(spark, path, "consumers").collect() == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param({"metadata": "epoch"}, "Did you mean 'epochs'?", id="an unknown one"),
        pytest.param(
            {"metadata": "epochs", "readChangeFeed": "true"}, "contradict", id="changes of it"
        ),
    ],
)
def test_metadata_is_refused(
    spark: SparkSession, path: Path, options: dict[str, str], sentence: str
) -> None:
    make_table(path, *EPOCHS)
    with pytest.raises(PySparkException) as error:
        spark.read.format("upsertflow").options(**options).load(str(path)).collect()
    assert sentence in str(error.value)


# -- compaction ----------------------------------------------------------------------


def test_a_job_compacts_under_a_running_writer_and_reader(
    spark: SparkSession, tmp_path: Path, path: Path, batches: Batches
) -> None:
    make_table(path, {0: "first"})
    feed = Feed(tmp_path / "feed", pa.schema({"k": pa.int64(), "v": pa.string()}))
    feed.add([{"k": 0, "v": "second"}])
    writer = upserts(feed.stream(spark), path, tmp_path / "w", keys="k").start()
    reader = batches.collect(changes(spark, path), tmp_path / "r").start()
    try:
        merges = 0
        for number in range(1, 5):
            feed.add(*([{"k": k, "v": f"{number}.{n}"} for k in range(7)] for n in range(5)))
            wait_until(
                lambda n=number: writer.exception() or _epoch_count(path) >= 2 + 5 * n,
                "all is written",
            )
            merges += pyspark_upsertflow.compact(spark, str(path))
        merges += pyspark_upsertflow.compact(spark, str(path), full=True)
        assert merges > 0
        newest = Table.open(str(path)).log.head().version
        wait_until(
            lambda: reader.exception() or _reached(batches, path, newest), "the reader has all"
        )
    finally:
        writer.stop()
        reader.stop()
    assert writer.exception() is None
    assert reader.exception() is None
    assert_sound(path)
    assert fold(delivered(batches), ["k"]) == rows_of(path)
    assert Table.open(str(path)).check().is_sound


def _epoch_count(path: Path) -> int:
    table = Table.open(str(path))
    return sum(commit.is_epoch for commit in table.log.commits(0, table.log.head().upper))


def _reached(batches: Batches, path: Path, version: int) -> bool:
    """Return whether the reader has the changes of the newest epoch up to a version."""
    log = Table.open(str(path)).log
    last = max(commit.version for commit in log.commits(0, version + 1) if commit.is_epoch)
    return any(row["_commit_version"] >= last for row in batches.rows)


def test_a_full_compaction_leaves_one_run_and_every_version_as_it_was(
    spark: SparkSession, path: Path
) -> None:
    table = make_table(path, *EPOCHS, *LATER)
    before = {version: rows_of(path, version) for version in range(1, 8)}
    assert pyspark_upsertflow.compact(spark, str(path), full=True) == 1
    assert table.log.head().run_count == 1
    assert {version: rows_of(path, version) for version in range(1, 8)} == before
    assert pyspark_upsertflow.compact(spark, str(path), full=True) == 0
    assert pyspark_upsertflow.compact(spark, str(path)) == 0


def test_without_a_table_a_compaction_says_so(spark: SparkSession, path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="TABLE_NOT_FOUND"):
        pyspark_upsertflow.compact(spark, str(path))


# -- expiry --------------------------------------------------------------------------


def test_a_stream_with_a_lease_resumes_where_it_stopped(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    held = changes(spark, path, consumerId="sums")
    drain(batches.collect(held, checkpoint))
    (lease,) = table.consumers()
    assert (lease.consumer, lease.version) == ("sums", 3)
    for epoch in LATER:
        append(table, epoch)
    table.compact(full=True)
    assert expire_all(table) == 3
    drain(batches.collect(held, checkpoint))
    assert fold(delivered(batches), ["k"]) == rows_of(path)
    assert table.check().is_sound


def test_a_lease_advances_as_batches_are_committed_and_never_beyond(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    held = changes(spark, path, consumerId="sums")
    query = batches.collect(held, checkpoint).start()
    try:
        for number, epoch in enumerate(LATER, start=1):
            wait_until(lambda n=number: len(batches.runs) >= n, "the batch before is read")
            append(table, epoch)
        wait_until(lambda: batches.rows[-1]["_commit_version"] == 7, "the last epoch is read")
        # The end of the batch before last: Spark tells of a batch while it plans the next.
        wait_until(lambda: table.consumers()[0].version == 6, "the lease advances")
    finally:
        query.stop()
    assert expire_all(table) == 6
    append(table, {9: "z"})
    drain(batches.collect(held, checkpoint))
    assert fold(delivered(batches), ["k"]) == rows_of(path)


def test_a_lease_holds_the_snapshot_that_is_half_delivered(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, {key: f"{key}" for key in range(200)}, {0: "zero"})
    held = changes(spark, path, consumerId="sums", maxRowsPerTrigger=50)
    query = batches.collect(held, checkpoint).start()
    wait_until(lambda: len(batches.runs) >= 1, "a part is delivered")
    query.stop()
    is_half = sum(len(rows) for _, rows in batches.runs) < 200
    append(table, {1: "one"})
    table.compact(full=True)
    since = expire_all(table)
    if is_half:
        assert since == 2
    drain(batches.collect(held, checkpoint))
    assert fold(delivered(batches), ["k"]) == rows_of(path)


def test_without_a_lease_a_stream_that_is_left_behind_says_what_to_do(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    drain(batches.collect(changes(spark, path), checkpoint))
    for epoch in LATER:
        append(table, epoch)
    assert expire_all(table) == 7
    with pytest.raises(StreamingQueryException) as error:
        drain(batches.collect(changes(spark, path), checkpoint))
    text = str(error.value)
    assert "[DATA_LOSS] the change feed from version 4 on was asked for" in text
    assert "failOnDataLoss" in text
    assert "consumerId" in text


def test_with_fail_on_data_loss_false_a_stream_goes_on_behind_the_gap(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    lenient = changes(spark, path, failOnDataLoss="false", consumerId="sums")
    drain(batches.collect(lenient, checkpoint))
    table.release("sums")
    for epoch in LATER[:2]:
        append(table, epoch)
    assert expire_all(table) == 5
    append(table, LATER[2])
    newest = table.log.head().version
    batches.runs.clear()
    drain(batches.collect(lenient, checkpoint))
    assert [(r["_commit_version"], r["k"], r["v"]) for r in batches.rows] == [(newest, 5, "h")]
    # And from there on as ever.
    batches.runs.clear()
    append(table, LATER[3])
    drain(batches.collect(lenient, checkpoint))
    assert {row["_commit_version"] for row in batches.rows} == {newest + 1}


def test_batch_reads_below_since_are_refused(spark: SparkSession, path: Path) -> None:
    table = make_table(path, *EPOCHS, *LATER)
    then_ms = table.log.commit(2).timestamp_ms
    table.hold("reports", 5)
    assert expire_all(table) == 5
    reads: tuple[tuple[str, dict[str, Any]], ...] = (
        ("VERSION_NOT_FOUND", {"versionAsOf": 4}),
        ("VERSION_NOT_FOUND", {"timestampAsOf": then_ms}),
        ("DATA_LOSS", {"readChangeFeed": "true"}),
        ("DATA_LOSS", {"readChangeFeed": "true", "startingVersion": 5}),
        ("DATA_LOSS", {"readChangeFeed": "true", "startingTimestamp": then_ms}),
    )
    for code, options in reads:
        with pytest.raises(PySparkException, match=code):
            spark.read.format("upsertflow").options(**options).load(str(path)).collect()
    rows = spark.read.format("upsertflow").option("versionAsOf", 5).load(str(path))
    assert contents(rows.toArrow().to_pylist(), ["k"]) == rows_of(path, 5)


def test_earliest_is_the_first_version_whose_changes_can_be_read(
    spark: SparkSession, path: Path
) -> None:
    table = make_table(path, *EPOCHS, *LATER)
    everything = change_feed(spark, path, startingVersion="earliest")
    assert {row["_commit_version"] for row in everything} == {1, 2, 3, 4, 5, 6, 7}
    table.hold("reports", 5)
    assert expire_all(table) == 5
    for options in (
        {"startingVersion": "earliest"},
        {"startingVersion": 6},
        {"startingVersion": 2, "failOnDataLoss": "false"},
        {"failOnDataLoss": "false"},
    ):
        found = change_feed(spark, path, **options)
        assert fold(in_order(found), ["k"], rows_of(path, 5)) == rows_of(path)
        assert {row["_commit_version"] for row in found} == {6, 7}


def test_a_running_stream_reads_on_while_the_past_is_expired(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    query = batches.collect(changes(spark, path, consumerId="sums"), checkpoint).start()
    try:
        for number in range(12):
            append(table, {number % 5: f"{number}", 100 + number: "x"})
            if number % 3 == 2:
                table.compact(full=True)
                expire_all(table)
        newest = table.log.head().version
        wait_until(lambda: _reached_since(batches, table, newest), "the reader has all")
    finally:
        query.stop()
    assert query.exception() is None
    assert fold(delivered(batches), ["k"]) == rows_of(path)
    assert table.check().is_sound


def _reached_since(batches: Batches, table: Table, version: int) -> bool:
    """Return whether the reader has the changes of the newest epoch up to a version."""
    log = table.log
    commits = log.commits(log.head().since, version + 1)
    last = max((commit.version for commit in commits if commit.is_epoch), default=0)
    return any(row["_commit_version"] >= last for row in batches.rows)


def test_a_batch_that_is_replayed_after_an_expiry_is_whole(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    """The lease stands where the batch begins, because Spark has not reported it committed."""
    table = make_table(path, *EPOCHS)
    held = changes(spark, path, consumerId="sums")
    drain(batches.collect(held, checkpoint))
    append(table, LATER[0])

    def fail(batch: DataFrame, number: int) -> None:
        batch.collect()
        raise RuntimeError("struck")

    failing = held.writeStream.foreachBatch(fail).option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException, match="struck"):
        end(failing.trigger(availableNow=True).start())
    for epoch in LATER[1:]:
        append(table, epoch)
    table.compact(full=True)
    assert expire_all(table) == 3
    drain(batches.collect(held, checkpoint))
    assert fold(delivered(batches), ["k"]) == rows_of(path)
