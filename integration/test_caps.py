"""Queries that write where readers are behind: refused, held up, and let in, through real queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.promises import assert_sound, epochs_of, orphans, rows_of
from integration.queries import Feed, drain, forget_last_commit, upserts, wait_until
from integration.tables import columns
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = columns(k=pa.int64(), v=pa.int64())
PATIENT = "30 minutes"
"""Longer than any test may take: a wait in vain is seen by its own bound."""


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    found = Feed(tmp_path / "feed", ROWS)
    found.add(*[[{"k": number, "v": number}] for number in range(4)])
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def made(path: Path, **properties: str) -> Table:
    return Table.create(str(path), ROWS, keys=["k"], properties=properties)


def test_a_query_is_refused_where_a_reader_is_behind_and_goes_on_behind_it(
    spark: SparkSession, feed: Feed, path: Path, tmp_path: Path
) -> None:
    table, checkpoint = made(path, maxBacklogEpochs="2", onFull="reject"), tmp_path / "checkpoint"
    table.hold("reader", 0)
    with pytest.raises(StreamingQueryException, match="TABLE_FULL"):
        drain(upserts(feed.stream(spark), path, checkpoint))
    assert len(epochs_of(path)) == 2
    assert orphans(path) == set()

    table.hold("reader", 2)
    drain(upserts(feed.stream(spark), path, checkpoint))
    assert len(epochs_of(path)) == 4

    # It is full again, and the last batch is there: what is repeated is done.
    forget_last_commit(checkpoint)
    drain(upserts(feed.stream(spark), path, checkpoint))
    assert len(epochs_of(path)) == 4
    assert rows_of(path) == {(number,): (number,) for number in range(4)}
    assert_sound(path)


def test_a_query_that_waits_is_let_in_by_a_query_that_reads(
    spark: SparkSession, feed: Feed, path: Path, tmp_path: Path
) -> None:
    table = made(path, maxBacklogEpochs="1", onFull="wait")
    reader = (
        spark.readStream.format("upsertflow")
        .option("readChangeFeed", "true")
        .option("startingVersion", "0")
        .option("consumerId", "reader")
        .load(str(path))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "read"))
        .start()
    )
    try:
        wait_until(lambda: table.consumers(), "the reader has its lease")
        options = {"onFullTimeout": PATIENT}
        drain(upserts(feed.stream(spark), path, tmp_path / "written", **options))
        # It says that it has read the last one, too, although nothing comes behind that.
        wait_until(lambda: table.consumers()[0].version == 4, "the reader is done")
        assert reader.exception() is None
    finally:
        reader.stop()
    assert len(epochs_of(path)) == 4


@contextmanager
def pressed(table: Table) -> Iterator[None]:
    """Let a consumer say all the time that it cannot keep up."""
    is_over = threading.Event()

    def say() -> None:
        now_ms = int(time.time() * 1000)
        said = PressureReport(
            consumer="reader", rung=4, pressure=1.0, reported_ms=now_ms, ttl_ms=60_000
        )
        report(table.store, said)

    def go_on() -> None:
        while not is_over.wait(1):
            say()

    say()
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_query_is_held_up_by_a_reader_that_cannot_keep_up_unless_it_passes_by(
    spark: SparkSession, feed: Feed, path: Path, tmp_path: Path
) -> None:
    table, checkpoint = made(path, backpressure="true"), tmp_path / "checkpoint"
    with pressed(table):
        with pytest.raises(StreamingQueryException, match="THROTTLED"):
            drain(upserts(feed.stream(spark), path, checkpoint, onFullTimeout="1s"))
        assert table.log.head().version == 0
        assert orphans(path) == set()
        options = {"disableBackpressure": "true"}
        drain(upserts(feed.stream(spark), path, checkpoint, **options))
    assert len(epochs_of(path)) == 4
