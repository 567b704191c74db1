"""A streaming query reads the changes of a table: all of them, once, whole epochs at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from integration.promises import assert_sound, contents, fold, rows_of
from integration.queries import (
    Batches,
    Feed,
    drain,
    end,
    forget_last_commit,
    upserts,
    wait_until,
)
from integration.tables import ROWS, Epoch, Row, append, make_table
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

EPOCHS: tuple[Epoch, ...] = (
    {1: "a", 2: "b"},
    {2: "c", 3: "d"},
    {1: None, 3: "d"},
)
LATER: tuple[Epoch, ...] = ({1: "again", 2: None}, {4: "new"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def batches() -> Batches:
    return Batches()


def changes(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Read the changes of a table as a stream."""
    given = {"readChangeFeed": "true", **options}
    return spark.readStream.format("upsertflow").options(**given).load(str(path))


def new_values(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Read the new values of a table as a stream."""
    return spark.readStream.format("upsertflow").options(**options).load(str(path))


def ordered(rows: list[Row]) -> list[Row]:
    """Return changes in an order: by version, then retractions first."""
    return sorted(rows, key=lambda r: (r["_commit_version"], r["_diff"], r["k"]))


def test_the_table_comes_first_as_inserts_and_then_each_epochs_changes(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    drain(batches.collect(changes(spark, path), checkpoint))
    first = ordered(batches.rows)
    assert [(r["k"], r["v"], r["_change_type"]) for r in first] == [
        (2, "c", "insert"),
        (3, "d", "insert"),
    ]
    assert {r["_commit_version"] for r in first} == {3}

    for epoch in LATER:
        append(table, epoch)
    batches.runs.clear()
    drain(batches.collect(changes(spark, path), checkpoint))
    assert [(r["_commit_version"], r["k"], r["v"], r["_diff"]) for r in ordered(batches.rows)] == [
        (4, 2, "c", -1),
        (4, 1, "again", 1),
        (5, 4, "new", 1),
    ]
    assert fold(first + ordered(batches.rows), ["k"]) == rows_of(path)

    batches.runs.clear()
    drain(batches.collect(changes(spark, path), checkpoint))
    assert batches.runs == [], "there was nothing to read"


# Of the other ways to say it, and of all limits: tests/unit/test_source_stream.py.
STARTS: dict[str, tuple[Callable[[Table], dict[str, Any]], list[int], list[int]]] = {
    "latest": (lambda _: {"startingVersion": "Latest"}, [], [4, 5]),
    "a time": (
        lambda table: {"startingTimestamp": table.log.commit(3).timestamp_ms},
        [3],
        [4, 5],
    ),
}


@pytest.mark.parametrize(("start", "first", "later"), STARTS.values(), ids=STARTS)
def test_a_stream_begins_where_it_is_told_and_the_replay_of_its_first_batch_too(
    spark: SparkSession,
    path: Path,
    checkpoint: Path,
    batches: Batches,
    start: Callable[[Table], dict[str, Any]],
    first: list[int],
    later: list[int],
) -> None:
    table = make_table(path, *EPOCHS)
    stream = changes(spark, path, **start(table))
    drain(batches.collect(stream, checkpoint))
    assert sorted({r["_commit_version"] for r in batches.rows}) == first

    # The first batch is in the offset log only, and the table has grown and been compacted.
    assert forget_last_commit(checkpoint) == 0
    for epoch in LATER:
        append(table, epoch)
    table.compact(full=True)
    drain(batches.collect(stream, checkpoint))
    assert batches.numbers == [0, 0, 1]
    (_, once), (_, again), (_, rest) = batches.runs
    assert ordered(again) == ordered(once)
    assert sorted({r["_commit_version"] for r in rest}) == later


def test_a_replayed_batch_has_the_same_rows_whatever_the_table_and_the_options_are_by_then(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, {k: str(k) for k in range(40)})
    drain(batches.collect(changes(spark, path, maxRowsPerTrigger=15), checkpoint))
    assert len(batches.runs) > 2
    in_snapshot = forget_last_commit(checkpoint)
    append(table, {1: "x", 100: "y"})
    table.compact(full=True)
    drain(batches.collect(changes(spark, path, splits=3), checkpoint))
    in_changes = forget_last_commit(checkpoint)
    drain(batches.collect(changes(spark, path, maxEpochsPerTrigger=1), checkpoint))

    assert in_changes == in_snapshot + 1
    by_number: dict[int, list[Row]] = {}
    for number, rows in batches.runs:
        assert ordered(rows) == by_number.setdefault(number, ordered(rows))
    assert batches.numbers.count(in_snapshot) == batches.numbers.count(in_changes) == 2
    every = [row for _, rows in sorted(by_number.items()) for row in rows]
    assert fold(every, ["k"]) == rows_of(path)


def test_a_limit_cuts_the_snapshot_by_hash_into_batches_of_about_its_size(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    make_table(path, {k: str(k) for k in range(200)})
    drain(batches.collect(changes(spark, path, maxRowsPerTrigger=50), checkpoint))
    sizes = [len(rows) for _, rows in batches.runs]
    assert 4 <= len(sizes) <= 5
    # Hashes are uniform, not equal: the bound is soft.
    assert max(sizes) < 100
    assert contents(({"k": r["k"], "v": r["v"]} for r in batches.rows), ["k"]) == rows_of(path)


FIVE: tuple[Epoch, ...] = (
    {1: "a", 2: "a", 3: "a"},
    {1: "b"},
    {4: "a"},
    {},
    dict.fromkeys(range(10), "c"),
)


def test_limits_that_spark_hands_over_never_cut_an_epoch_and_the_least_one_counts(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    make_table(path, *FIVE)
    limits = {"maxRowsPerTrigger": 5, "maxEpochsPerTrigger": 3, "maxBytesPerTrigger": 10**9}
    stream = changes(spark, path, startingVersion="earliest", **limits)
    drain(batches.collect(stream, checkpoint))
    assert [versions for versions in batches.versions if versions] == [[1, 2], [3], [5]]
    assert fold(ordered(batches.rows), ["k"]) == rows_of(path)


def test_available_now_stops_where_the_table_ended_when_it_began(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    collect = batches.collect(changes(spark, path, maxEpochsPerTrigger=1), checkpoint)

    def write_meanwhile(batch: DataFrame, number: int) -> None:
        batches.runs.append((number, batch.toArrow().to_pylist()))
        assert number < 5, "the target moves along with the table"
        append(table, {100 + number: "meanwhile"})

    stream = changes(spark, path, startingVersion=1, maxEpochsPerTrigger=1)
    chasing = stream.writeStream.foreachBatch(write_meanwhile)
    drain(chasing.option("checkpointLocation", str(checkpoint)))
    assert batches.versions == [[1], [2], [3]]

    # The next run takes what came meanwhile.
    batches.runs.clear()
    drain(collect)
    assert batches.versions == [[4], [5], [6]]


def test_trigger_once_reads_all_there_is_in_one_batch_even_from_within_a_snapshot(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, {k: str(k) for k in range(40)})
    stream = changes(spark, path, maxRowsPerTrigger=10)

    def stop_in_the_middle(batch: DataFrame, number: int) -> None:
        batches.runs.append((number, batch.toArrow().to_pylist()))
        if number == 1:
            raise InterruptedError("enough")

    stopping = stream.writeStream.foreachBatch(stop_in_the_middle)
    with pytest.raises(StreamingQueryException, match="enough"):
        drain(stopping.option("checkpointLocation", str(checkpoint)))
    append(table, {1: None, 50: "x"})
    append(table, {50: "y"})

    # The batch that failed is repeated, as it was, and counts as the one.
    for _ in range(2):
        end(batches.collect(stream, checkpoint).trigger(once=True).start())
    assert batches.numbers == [0, 1, 1, 2]
    assert ordered(batches.runs[1][1]) == ordered(batches.runs[2][1])
    del batches.runs[1]
    assert fold(ordered(batches.rows), ["k"]) == rows_of(path)


class Idling(StreamingQueryListener):
    """Counts how often a query found nothing to do."""

    def __init__(self) -> None:
        self.count = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...
    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.count += 1


def test_a_query_that_polls_an_idle_table_runs_no_empty_batches(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    idling = Idling()
    spark.streams.addListener(idling)
    # How long a query must be idle before Spark says so.
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "50ms")
    collect = batches.collect(changes(spark, path), checkpoint)
    query = collect.trigger(processingTime="20 milliseconds").start()
    try:
        for count, epoch in enumerate(LATER, start=1):
            wait_until(lambda n=count: query.exception() or len(batches.runs) >= n, "it has read")
            seen = idling.count
            wait_until(lambda n=seen: query.exception() or idling.count >= n + 3, "it idles")
            append(table, epoch)
        wait_until(lambda: query.exception() or len(batches.runs) > len(LATER), "it has read all")
    finally:
        query.stop()
        spark.streams.removeListener(idling)
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert query.exception() is None
    assert batches.versions == [[3], [4], [5]]


def test_progress_says_how_far_the_table_is(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    make_table(path, *EPOCHS)
    stream = changes(spark, path, startingVersion=1, maxEpochsPerTrigger=1)
    query = drain(batches.collect(stream, checkpoint))
    uppers, left = [], []
    for progress in query.recentProgress:
        source = json.loads(progress.json)["sources"][0]
        offsets = (source["endOffset"], source["latestOffset"])
        uppers.append(tuple(offset["positions"][""]["upper"] for offset in offsets))
        latest = source["latestOffset"]
        left.append((latest["inputs"], latest["dirty"], latest["lag"]["versions"]))
        assert latest["pressure"].keys() == {"latency_ms", "ratio", "rung"}
        assert latest["newest"][""]["version"] == 3
        assert latest["newest"][""]["rows"] == len(EPOCHS[-1])
    assert uppers[:3] == [(2, 4), (3, 4), (4, 4)]
    assert left[:3] == [(1, 1, 2), (1, 1, 1), (1, 0, 0)]


def test_a_query_keeps_to_its_columns_when_the_table_gains_some(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, {1: "a"})
    stream = changes(spark, path)
    drain(batches.collect(stream, checkpoint))
    wider = ROWS.append(pa.field("w", pa.int64()))
    table.alter(table.log.head().schema.accept(wider, merge=True))
    table.upsert(pa.Table.from_pylist([{"k": 1, "v": "b", "w": 3}], schema=wider))
    drain(batches.collect(stream, checkpoint))
    assert [(r["k"], r["v"], r["_diff"]) for r in ordered(batches.rows)] == [
        (1, "a", 1),
        (1, "a", -1),
        (1, "b", 1),
    ]
    assert "w" not in batches.rows[-1]

    # The same checkpoint goes on with the new column once the stream is made again.
    table.upsert(pa.Table.from_pylist([{"k": 2, "v": "c", "w": 4}], schema=wider))
    drain(batches.collect(changes(spark, path), checkpoint))
    assert batches.rows[-1]["w"] == 4


def test_a_type_that_widens_under_a_query_stops_it_and_a_restart_goes_on(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    narrow = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int32())])
    wide = narrow.set(1, pa.field("v", pa.int64()))
    table = Table.create(str(path), narrow, keys=["k"])
    table.upsert(pa.table({"k": [1], "v": [1]}, schema=narrow))
    stream = changes(spark, path)
    drain(batches.collect(stream, checkpoint))
    table.alter(table.log.head().schema.accept(wide, merge=True))
    table.upsert(pa.table({"k": [1], "v": [2**40]}, schema=wide))

    message = r"(?s)column 'v' is int32 in the read, and int64 in the table.*restart the query"
    with pytest.raises(StreamingQueryException, match=message):
        drain(batches.collect(stream, checkpoint))
    drain(batches.collect(changes(spark, path), checkpoint))
    assert fold(ordered(batches.rows), ["k"]) == {(1,): (2**40,)}


def test_a_table_of_nested_rows_streams_like_any_other(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    item = pa.struct([pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("n", pa.int32())])
    schema = pa.schema(
        [
            pa.field("k", pa.int64()),
            pa.field("items", pa.list_(item)),
            pa.field("by_name", pa.map_(pa.string(), item)),
        ]
    )
    table = Table.create(str(path), schema, keys=["k"])
    value = {"at": None, "n": 1}
    rows = [{"k": 1, "items": [value, None], "by_name": [("a", value)]}]
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    drain(batches.collect(changes(spark, path), checkpoint))
    rows[0]["items"] = []
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    drain(batches.collect(changes(spark, path), checkpoint))
    assert [(r["items"], r["by_name"], r["_diff"]) for r in batches.rows] == [
        ([value, None], [("a", value)], 1),
        ([value, None], [("a", value)], -1),
        ([], [("a", value)], 1),
    ]


def test_only_the_columns_of_the_changelog_can_be_read(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    stream = changes(spark, path, columns="_change_type")
    drain(batches.collect(stream, checkpoint))
    append(table, LATER[0])
    drain(batches.collect(stream, checkpoint))
    kinds = [[r["_change_type"] for r in rows] for _, rows in batches.runs]
    assert [sorted(k) for k in kinds] == [["insert", "insert"], ["delete", "insert"]]


def test_tables_can_be_chained_through_their_changes(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    table = make_table(path, *EPOCHS)
    stream = changes(spark, path, maxEpochsPerTrigger=1)
    copied = upserts(
        stream.where("_change_type != 'update_preimage'").withColumn(
            "gone", F.expr("_change_type = 'delete'")
        ),
        tmp_path / "copy",
        tmp_path / "c1",
        keys="k",
        sequenceBy="_commit_version",
        applyAsDeletes="gone",
        columnList="k,v",
    )
    # A sum over diffs is right only if every retraction came exactly once.
    counts = stream.groupBy("v").agg(F.sum("_diff").alias("count")).where("count != 0")
    counted = upserts(counts, tmp_path / "counts", tmp_path / "c2", keys="v")
    for later in ((), LATER):
        for epoch in later:
            append(table, epoch)
        drain(copied)
        drain(counted.outputMode("complete"))
        assert rows_of(tmp_path / "copy") == rows_of(path)
        values = [v for (v,) in rows_of(path).values()]
        assert rows_of(tmp_path / "counts") == {(v,): (values.count(v),) for v in values}
    assert_sound(tmp_path / "copy")
    assert_sound(tmp_path / "counts")


def test_sums_follow_a_restore_and_the_query_that_writes_goes_on_behind_one(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    table = make_table(path, *EPOCHS, *LATER)
    stream = changes(spark, path, startingVersion="earliest", maxEpochsPerTrigger=1)
    copied = upserts(
        stream.where("_change_type != 'update_preimage'").withColumn(
            "gone", F.expr("_change_type = 'delete'")
        ),
        tmp_path / "copy",
        tmp_path / "c1",
        keys="k",
        sequenceBy="_commit_version",
        applyAsDeletes="gone",
        columnList="k,v",
    )
    counts = stream.groupBy("v").agg(F.sum("_diff").alias("count")).where("count != 0")
    counted = upserts(counts, tmp_path / "counts", tmp_path / "c2", keys="v")

    def follow() -> None:
        drain(copied)
        drain(counted.outputMode("complete"))

    follow()
    table.restore(2)
    follow()
    assert rows_of(path) == {(1,): ("a",), (2,): ("c",), (3,): ("d",)}
    assert rows_of(tmp_path / "copy") == rows_of(path)
    assert rows_of(tmp_path / "counts") == {(v,): (1,) for v in "acd"}

    # The copy itself goes back, and takes what comes next: its batches are not repeated.
    copy = Table.open(str(tmp_path / "copy"))
    copy.restore(0)
    before = rows_of(tmp_path / "copy")
    append(table, {2: None, 7: "later"})
    follow()
    assert rows_of(path) == {(1,): ("a",), (3,): ("d",), (7,): ("later",)}
    del before[2,]
    assert rows_of(tmp_path / "copy") == {**before, (7,): ("later",)}
    assert rows_of(tmp_path / "counts") == {("a",): (1,), ("d",): (1,), ("later",): (1,)}
    for name in ("copy", "counts"):
        assert_sound(tmp_path / name)


def test_a_stream_without_an_option_delivers_the_table_and_then_new_values(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    stream = new_values(spark, path, maxEpochsPerTrigger=1)
    assert stream.schema == spark.read.format("upsertflow").load(str(path)).schema
    drain(batches.collect(stream, checkpoint))
    assert sorted((r["k"], r["v"]) for r in batches.rows) == [(2, "c"), (3, "d")]

    append(table, {2: "e", 3: "d", 4: "new"})
    batches.runs.clear()
    drain(batches.collect(stream, checkpoint))
    assert sorted((r["k"], r["v"]) for r in batches.rows) == [(2, "e"), (4, "new")]


def test_a_stream_of_new_values_stops_at_a_delete_before_its_rows_and_can_go_on_without_it(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    table = make_table(path, *EPOCHS)
    stream = new_values(spark, path)
    drain(batches.collect(stream, checkpoint))
    batches.runs.clear()
    append(table, {2: None, 5: "new"})
    append(table, {6: "newer"})
    with pytest.raises(StreamingQueryException) as caught:
        drain(batches.collect(stream, checkpoint))
    text = str(caught.value)
    assert "version 4 deletes a row (k=2)" in text
    assert '"readChangeFeed", "true"' in text
    assert '"ignoreDeletes", "true"' in text
    assert batches.rows == []

    drain(batches.collect(new_values(spark, path, ignoreDeletes="true"), checkpoint))
    assert sorted((r["k"], r["v"]) for r in batches.rows) == [(5, "new"), (6, "newer")]


def test_a_stream_that_cannot_be_meant_is_refused(
    spark: SparkSession, path: Path, checkpoint: Path, batches: Batches
) -> None:
    make_table(path, *EPOCHS)
    for options, message in (
        ({"versionAsOf": 1}, "'versionAsOf' has no meaning in a stream"),
        ({"endingVersion": 1}, "'endingVersion' has no meaning in a stream"),
        ({"startingVersion": 9}, "startingVersion 9 does not exist: the newest version is 3"),
        ({"startingVersion": 1, "startingTimestamp": 1}, "contradict each other"),
        ({"maxEpochsPerTrigger": 0}, "a whole number of at least 1"),
        ({"ignoreDeletes": "true"}, "'readChangeFeed' and 'ignoreDeletes' contradict"),
        ({"readChangeFeed": "false", "computeUpdates": "false"}, "'computeUpdates' has no meaning"),
    ):
        with pytest.raises(PySparkException, match=message) as caught:
            drain(batches.collect(changes(spark, path, **options), checkpoint))
        assert "UnboundLocalError" not in str(caught.value)
    hand_made = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    with pytest.raises(StreamingQueryException, match=r"expected \['_change_type', .*, found \[\]"):
        drain(batches.collect(hand_made.schema("k bigint").load(str(path)), checkpoint))


def test_a_stream_waits_for_a_table_that_a_query_has_yet_to_make(
    spark: SparkSession, path: Path, tmp_path: Path, batches: Batches
) -> None:
    feed = Feed(tmp_path / "feed", ROWS)
    feed.folder.mkdir()
    writing = upserts(feed.stream(spark), path, tmp_path / "writing", keys="k").start()
    try:
        with pytest.raises(PySparkException, match="TABLE_NOT_FOUND") as told:
            new_values(spark, path)
        assert '.option("tableTimeout", "5 minutes")' in str(told.value)
        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(new_values, spark, path, tableTimeout="5 minutes")
            feed.add([{"k": 1, "v": "a"}])
            found = waiting.result()
    finally:
        writing.stop()
    drain(batches.collect(found, tmp_path / "reading"))
    assert [(row["k"], row["v"]) for row in batches.rows] == [(1, "a")]
