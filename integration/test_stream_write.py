"""A streaming query writes a table: what Spark repeats, cuts and shuffles must not show."""

from __future__ import annotations

import math
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from integration.promises import (
    assert_sound,
    contents,
    counters_of,
    epochs_of,
    fold,
    orphans,
    rows_of,
)
from integration.queries import (
    Feed,
    drain,
    end,
    forget_last_commit,
    upserts,
    wait_until,
)
from integration.tables import Row, columns
from pyspark_upsertflow import DefaultSource, by_hash
from spark_upsert.core.schema import Scope
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.table.log.codec import commit_to_json
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.write_set import overlaps
from spark_upsert_sink import UpsertStreamWriter
from tests.support.model import Command, Model
from tests.support.tables import tally_of

pytestmark = pytest.mark.spark

COMMANDS = columns(k=pa.int64(), v=pa.int64(), seq=pa.int64(), gone=pa.bool_())
KEYED = {"keys": "k", "sequenceBy": "seq", "applyAsDeletes": "gone", "columnList": "k,v"}


def row(key: int, value: int | None, seq: int) -> Row:
    """Return an upsert, or without a value a delete."""
    return {"k": key, "v": value, "seq": seq, "gone": value is None}


def random_commands(
    seed: int, *, batches: int, rows: int, orders: list[int]
) -> list[list[Command]]:
    """Return few keys and small numbers, so that rows of a batch meet; no two orders are equal."""
    dice = random.Random(seed)
    return [
        [
            Command(dice.randrange(9), dice.choice([None, 1, 2, 3]), orders.pop())
            for _ in range(dice.randrange(rows))
        ]
        for _ in range(batches)
    ]


def distinct_orders(seed: int) -> list[int]:
    """Return order keys in no order."""
    return random.Random(seed).sample(range(10_000), 1_000)


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", COMMANDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def write(spark: SparkSession, feed: Feed, path: Path, checkpoint: Path, **options: Any) -> None:
    """Run the usual query over what the feed holds."""
    source = options.pop("source", "upsertflow")
    drain(upserts(feed.stream(spark), path, checkpoint, source=source, **(options or KEYED)))


@pytest.fixture
def start_check(spark: SparkSession) -> Iterator[Callable[[bool], None]]:
    """Switch Spark's check of a new checkpoint on or off."""
    name = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
    before = spark.conf.get(name)
    yield lambda is_on: spark.conf.set(name, f"{is_on}".lower())
    assert before is not None
    spark.conf.set(name, before)


def test_a_driver_that_was_killed_at_its_first_offset_starts_again_by_a_setting(
    spark: SparkSession,
    feed: Feed,
    path: Path,
    checkpoint: Path,
    start_check: Callable[[bool], None],
) -> None:
    """The limit of P6 in the README."""
    feed.add([row(1, 10, 1)])
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True)
    (offsets / f".0.{uuid.uuid4()}.tmp").write_text("v1\n{")
    for _ in range(2):
        start_check(True)
        with pytest.raises(
            StreamingQueryException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
        ):
            write(spark, feed, path, checkpoint)
    start_check(False)
    write(spark, feed, path, checkpoint)
    assert rows_of(path) == {(1,): (10,)}
    assert_sound(path)


def test_each_micro_batch_does_to_the_table_what_it_does_to_a_dict(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    batches = random_commands(1, batches=10, rows=40, orders=distinct_orders(1))
    feed.add(*[[row(c.key, c.value, c.order) for c in batch] for batch in batches])
    # No distribution can be relied on: rows of one key go to any task.
    drain(upserts(feed.stream(spark).repartition(3, F.rand()), path, checkpoint, **KEYED))

    model = Model(Scope.TABLE)
    epochs = epochs_of(path)
    assert len(epochs) == len(batches)
    for batch, epoch in zip(batches, epochs, strict=True):
        _, tally = model.append(batch)
        assert tally_of(epoch) == tally
        assert rows_of(path, epoch.version) == {(k,): (v,) for k, v in model.rows().items()}
    assert_sound(path)


KEY_TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "tiny": (pa.int8(), -128, 127),
    "small": (pa.int16(), -1, 0),
    "int": (pa.int32(), 2**31 - 1, -(2**31)),
    "long": (pa.int64(), -(2**63), 2**63 - 1),
    "text": (pa.string(), "", "Zoë \U0001f600 \0"),
    "bytes": (pa.binary(), b"\0", b"\0\0"),
    "flag": (pa.bool_(), False, True),
    "day": (pa.date32(), date(1582, 10, 4), date(9999, 12, 31)),
    "instant": (
        pa.timestamp("us", tz="UTC"),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    ),
    "local": (
        pa.timestamp("us"),
        datetime(2026, 3, 29, 2, 30),
        datetime(2026, 3, 29, 2, 30, 0, 1),
    ),
    "price": (pa.decimal128(9, 2), Decimal("-0.01"), Decimal("0.01")),
    "huge": (pa.decimal128(38, 10), Decimal("-1e27"), Decimal("1e-10")),
    "float": (pa.float32(), 0.5, math.nan),
    "double": (pa.float64(), 0.0, math.nan),
}
"""For each hashable type two values that are different keys."""


def keys_that_differ_in_one_column() -> Iterator[Row]:
    """Yield a key of all types, and its neighbours: another value or a null in one column."""
    first = {name: one for name, (_, one, _) in KEY_TYPES.items()}
    yield first
    for name, (_, _, other) in KEY_TYPES.items():
        yield first | {name: other}
        yield first | {name: None}


def test_a_composite_key_of_every_type_is_the_same_key_in_the_next_batch(
    spark: SparkSession, tmp_path: Path, path: Path, checkpoint: Path
) -> None:
    types = {name: type_ for name, (type_, _, _) in KEY_TYPES.items()}
    feed = Feed(tmp_path / "feed", columns(**types, v=pa.int64()))
    keys = list(keys_that_differ_in_one_column())
    feed.add([{**key, "v": 1} for key in keys])
    # Spark holds -0.0 and 0.0 for one value, and NaN for equal to itself.
    feed.add([{**key, "double": -0.0 if key["double"] == 0 else key["double"]} for key in keys])
    rows = feed.stream(spark).repartition(3, F.rand()).withColumn("v", F.coalesce("v", F.lit(2)))
    drain(upserts(rows, path, checkpoint, keys=",".join(KEY_TYPES)))

    first, second = (Counters.from_json(epoch.counters) for epoch in epochs_of(path))
    assert (first.inserts, first.updates) == (len(keys), 0)
    assert (second.inserts, second.updates) == (0, len(keys))
    assert_sound(path)
    stored = spark.read.format("upsertflow").load(str(path))
    assert [f.dataType for f in stored.schema] == [f.dataType for f in rows.schema]
    back = stored.toArrow().to_pylist()
    assert set(contents(back, list(KEY_TYPES))) == set(contents(keys, list(KEY_TYPES)))


TAG = pa.struct(list(columns(name=pa.string(), of=pa.list_(pa.string()))))
STRUCT = pa.struct(list(columns(at=pa.timestamp("us", tz="UTC"), tags=pa.list_(TAG))))
NESTED = columns(
    k=pa.int64(),
    list=pa.list_(pa.int32()),
    map=pa.map_(pa.string(), pa.float64()),
    struct=STRUCT,
    text=pa.string(),
)
FULL: Row = {
    "list": [1, None, 3],
    "map": [("a", 1.5), ("b", None)],
    "struct": {"at": datetime(2026, 1, 1, tzinfo=UTC), "tags": [{"name": "x", "of": ["y", None]}]},
    "text": "full",
}
EMPTY_ONES: Row = {"list": [], "map": [], "struct": {"at": None, "tags": []}, "text": ""}
NULLS: Row = {"list": None, "map": None, "struct": None, "text": None}


def test_nested_and_null_values_come_back_as_they_went_and_only_changes_show(
    spark: SparkSession, tmp_path: Path, path: Path, checkpoint: Path
) -> None:
    feed = Feed(tmp_path / "feed", NESTED)
    feed.add(
        [{"k": k, **values} for k, values in enumerate([FULL, EMPTY_ONES, NULLS])],
        # The same again, but for one element deep inside and one null that becomes empty.
        [
            {
                "k": 0,
                **FULL,
                "struct": {**FULL["struct"], "tags": [{"name": "x", "of": ["y", ""]}]},
            },
            {"k": 1, **EMPTY_ONES},
            {"k": 2, **NULLS, "list": []},
        ],
    )
    drain(upserts(feed.stream(spark), path, checkpoint, keys="k"))

    table = assert_sound(path)
    first, second = (epoch.version for epoch in epochs_of(path))
    batch = spark.read.format("upsertflow").option("versionAsOf", first).load(str(path))
    back = sorted(batch.toArrow().to_pylist(), key=lambda r: r["k"])
    assert back == [{"k": k, **values} for k, values in enumerate([FULL, EMPTY_ONES, NULLS])]
    changed = table.changes(second, second + 1).to_pylist()
    assert sorted((c["k"], c["_diff"]) for c in changed) == [(0, -1), (0, 1), (2, -1), (2, 1)]


def test_a_row_of_nulls_is_a_row_unless_an_option_makes_it_a_delete(
    spark: SparkSession, feed: Feed, path: Path, tmp_path: Path
) -> None:
    feed.add([row(1, 5, 1), row(2, 6, 2)], [{"k": 1, "v": None, "seq": 3, "gone": False}])
    plain: Row = {"keys": "k", "sequenceBy": "seq", "columnList": "k,v"}
    write(spark, feed, path, tmp_path / "c1", **plain)
    write(spark, feed, tmp_path / "shorter", tmp_path / "c2", **plain, nullsAsDeletes=True)

    assert rows_of(path) == {(1,): (None,), (2,): (6,)}
    assert rows_of(tmp_path / "shorter") == {(2,): (6,)}


def test_complete_mode_replaces_the_table_and_retracts_what_is_gone(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 0), row(2, 20, 0), row(3, 30, 0)], [row(1, 5, 0), row(3, 90, 0)])
    sums = feed.stream(spark).groupBy("k").agg(F.sum("v").alias("total")).where("total < 100")
    drain(upserts(sums, path, checkpoint, keys="k").outputMode("complete"))

    table = assert_sound(path)
    assert rows_of(path) == {(1,): (15,), (2,): (20,)}
    last = epochs_of(path)[-1]
    changes = table.changes(last.version, last.version + 1).to_pylist()
    # The row of key 2 is the same before and after: an overwrite says nothing about it.
    assert sorted((c["k"], c["total"], c["_change_type"]) for c in changes) == [
        (1, 10, "update_preimage"),
        (1, 15, "update_postimage"),
        (3, 30, "delete"),
    ]


def test_a_stream_of_keys_deletes_their_rows_batch_by_batch(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 5), row(2, 20, 5), row(3, 30, 5)])
    write(spark, feed, path, checkpoint)
    gone = Feed(feed.folder.parent / "gone", columns(k=pa.int64()))
    own = checkpoint.with_name("deletes")
    for keys, left in (([1, 9], {(2,): (20,), (3,): (30,)}), ([3], {(2,): (20,)})):
        gone.add([{"k": key} for key in keys])
        drain(upserts(gone.stream(spark), path, own, operation="delete"))
        assert rows_of(path) == left
    deletes = [Counters.from_json(epoch.counters).deletes for epoch in epochs_of(path)]
    assert deletes[-2:] == [1, 1]
    assert_sound(path)


def test_update_mode_is_refused_by_spark_before_we_are_asked(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    # A Python sink cannot declare that it supports it. Use `append` with commands instead.
    feed.add([row(1, 10, 0)])
    sums = feed.stream(spark).groupBy("k").agg(F.sum("v").alias("total"))
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        drain(upserts(sums, path, checkpoint, keys="k").outputMode("update"))
    assert not path.exists()


def test_a_restart_replays_nothing_and_goes_on(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 0)], [row(2, 20, 1)])
    write(spark, feed, path, checkpoint, **KEYED, indexBy="v")
    before = [epoch.version for epoch in epochs_of(path)]
    write(spark, feed, path, checkpoint, **KEYED, indexBy="v")
    assert [epoch.version for epoch in epochs_of(path)] == before

    feed.add([row(1, 30, 2)])
    write(spark, feed, path, checkpoint, **KEYED, indexBy="v")
    assert rows_of(path) == {(1,): (30,), (2,): (20,)}
    assert len(epochs_of(path)) == 3
    table = Table.open(str(path))
    index = table.index_of("v")
    assert index is not None, "the queries kept no index"
    keys, shows = index.keys_having(pa.array([10, 20, 30]))
    assert sorted(keys.column("k").to_pylist()) == [1, 2]
    assert shows == epochs_of(path)[-1].version
    assert table.rows_having("v", [10]).num_rows == 0
    assert_sound(path)


def test_a_batch_that_spark_forgot_to_note_is_applied_once(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    # Without order keys a second application would be visible: as an update, and in the counts.
    feed.add([row(1, 10, 0)], [row(1, 20, 1), row(2, 5, 1)])
    options = {"keys": "k", "columnList": "k,v"}
    write(spark, feed, path, checkpoint, **options)
    once = [commit_to_json(epoch) for epoch in epochs_of(path)]

    assert forget_last_commit(checkpoint) == 1
    write(spark, feed, path, checkpoint, **options)
    assert [commit_to_json(epoch) for epoch in epochs_of(path)] == once
    assert (checkpoint / "commits" / "1").exists(), "Spark did not repeat the batch"
    assert orphans(path) == set(), "the repeated batch left its files behind"
    assert_sound(path)


def test_a_kill_while_the_first_offset_is_noted_asks_for_no_manual_step(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 0)])
    write(spark, feed, path, checkpoint)
    shutil.rmtree(path)
    # What is left: the query has its name, and Spark's file of the first offset no end.
    for folder in ("offsets", "commits"):
        shutil.rmtree(checkpoint / folder)
    half_written = checkpoint / "offsets" / ".0.4f7c0b52.tmp"
    half_written.parent.mkdir()
    half_written.write_text("v1\n{")

    write(spark, feed, path, checkpoint)
    assert rows_of(path) == {(1,): (10,)}
    assert len(epochs_of(path)) == 1


def test_a_commit_that_raises_after_it_took_effect_counts_once(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 0)], [row(1, 20, 1)], [row(2, 30, 2)])
    options = {"keys": "k", "columnList": "k,v"}
    spark.dataSource.register(raising_after_the_commit_of(1))
    with pytest.raises(StreamingQueryException, match="the connection broke"):
        write(spark, feed, path, checkpoint, source="upsertflow_raising", **options)
    # Spark has called abort with the same messages: what is visible must stay readable.
    assert rows_of(path) == {(1,): (20,)}

    write(spark, feed, path, checkpoint, **options)
    assert rows_of(path) == {(1,): (20,), (2,): (30,)}
    assert [Counters.from_json(e.counters).rows for e in epochs_of(path)] == [1, 1, 1]
    assert orphans(path) == set()
    assert_sound(path)


def raising_after_the_commit_of(number: int) -> type[DefaultSource]:
    """Return the source, but the commit of one batch raises when it is done.

    A class of a function travels to Spark's processes by value, so that they need no tests.
    """

    class Writer(UpsertStreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            super().commit(messages, batchId)
            if batchId == number:
                raise ConnectionError("the connection broke")

    class Raising(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "upsertflow_raising"

        def streamWriter(self, schema: StructType, overwrite: bool) -> UpsertStreamWriter:
            return Writer(self.options, schema, overwrite)

    return Raising


def test_a_failing_task_shows_nothing_and_takes_the_others_files_along(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path, tmp_path: Path
) -> None:
    options = {"keys": "k", "sequenceBy": "seq", "applyAsDeletes": "gone"}
    feed.add([row(k, k, 100) for k in range(8)])
    stored = feed.schema.remove(3)
    table = Table.create(str(path), stored, keys=["k"], sequence_by=["seq"])
    # So many small runs that the tasks have some to merge, too.
    for seq in range(8):
        table.upsert(pa.Table.from_pylist([{"k": 1, "v": 10 + seq, "seq": seq}], schema=stored))
    signal = tmp_path / "fail"

    def fail_when_told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_cursed = 7 in batch.column("k").to_pylist()
            while is_cursed and not signal.exists():
                pass
            if is_cursed:
                raise ArithmeticError("this row is cursed")
            yield batch

    # One row per task, and the cursed one last.
    rows = feed.stream(spark).repartitionById(8, F.col("k").cast("int"))
    cursed = rows.mapInArrow(fail_when_told, rows.schema)
    query = upserts(cursed, path, checkpoint, **options).trigger(availableNow=True).start()
    tracker = spark.sparkContext.statusTracker()
    wait_until(
        lambda: (
            query.exception()
            or any(_finished(tracker, s) == 7 for s in tracker.getActiveStageIds())
        ),
        "the other seven tasks are done",
    )
    signal.touch()
    with pytest.raises(StreamingQueryException, match="cursed"):
        end(query)
    assert rows_of(path) == {(1,): (17, 7)}
    assert orphans(path) == set(), "abort left files of tasks that had succeeded"

    write(spark, feed, path, checkpoint, **options)
    assert rows_of(path) == {(k,): (k, 100) for k in range(8)}
    assert len(epochs_of(path)) == 9
    assert table.log.head().version == 10, "nothing was merged"
    assert_sound(path)


def _finished(tracker: Any, stage: int) -> int:
    info = tracker.getStageInfo(stage)
    return int(info.numCompletedTasks) if info and info.numTasks == 8 else 0


def test_a_new_checkpoint_applies_all_again_and_says_how_little_it_meant(
    spark: SparkSession, feed: Feed, path: Path, tmp_path: Path
) -> None:
    feed.add([row(1, 10, 0), row(2, 20, 1)], [row(1, 11, 2), row(2, None, 3)])
    write(spark, feed, path, tmp_path / "first")
    before, version = rows_of(path), Table.open(str(path)).log.head().version
    write(spark, feed, path, tmp_path / "second")

    again = [Counters.from_json(e.counters) for e in epochs_of(path)[2:]]
    assert [(c.rows, c.stale, c.duplicates) for c in again] == [(2, 2, 0), (2, 0, 2)]
    assert rows_of(path) == before
    table = assert_sound(path)
    assert table.changes(version + 1).num_rows == 0


def test_another_writer_between_the_tasks_and_the_commit_is_taken_into_account(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 0), row(2, 10, 0)], [row(1, 20, 5), row(2, 20, 5), row(3, 20, 5)])
    spark.dataSource.register(overtaken_in_batch(1))
    write(spark, feed, path, checkpoint, source="upsertflow_overtaken")

    # The other writer's row of key 1 is newer, that of key 2 is older, key 3 it has deleted.
    assert rows_of(path) == {(1,): (15,), (2,): (20,), (3,): (20,)}
    ours = Counters.from_json(epochs_of(path)[-1].counters)
    assert (ours.stale, ours.updates, ours.inserts) == (1, 1, 1)
    assert_sound(path)


def overtaken_in_batch(number: int) -> type[DefaultSource]:
    """Return the source, but another writer commits between the tasks and the commit of a batch."""

    class Writer(UpsertStreamWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            from pyspark import TaskContext

            message = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            batch = context.getLocalProperty("streaming.sql.batchId")
            if batch == str(number) and context.partitionId() == 0:
                self._write.table().upsert(
                    pa.table(
                        {
                            "k": pa.array([1, 2, 3]),
                            "v": pa.array([15, 15, 15]),
                            "seq": pa.array([9, 4, 4]),
                            "gone": pa.array([False, False, True]),
                        }
                    ),
                    deletes="gone",
                )
            return message

    class Overtaken(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "upsertflow_overtaken"

        def streamWriter(self, schema: StructType, overwrite: bool) -> UpsertStreamWriter:
            return Writer(self.options, schema, overwrite)

    return Overtaken


def test_two_queries_write_one_table_at_once(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    first, *feeds = [Feed(tmp_path / name, COMMANDS) for name in ("first", "east", "west")]
    orders = distinct_orders(3)
    commands: list[Command] = []
    for seed, feed in enumerate([first, *feeds]):
        batches = 1 if feed is first else 5
        for batch in random_commands(seed, batches=batches, rows=30, orders=orders):
            feed.add([row(c.key, c.value, c.order) for c in batch])
            commands += batch
    # Of two queries that make the table at once, one fails and has to be started again.
    drain(upserts(first.stream(spark), path, tmp_path / "first.checkpoint", **KEYED))
    queries = [
        upserts(feed.stream(spark), path, feed.folder.with_suffix(".checkpoint"), **KEYED)
        .trigger(availableNow=True)
        .start()
        for feed in feeds
    ]
    for query in queries:
        end(query)

    model = Model(Scope.TABLE)
    model.append(commands)
    assert rows_of(path) == {(k,): (v,) for k, v in model.rows().items()}
    assert len(epochs_of(path)) == 11
    assert counters_of(path).rows == len(commands)
    assert_sound(path)


def test_a_batch_without_rows_is_an_epoch_without_rows(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([], [row(1, 10, 0)], [])
    write(spark, feed, path, checkpoint)
    assert [Counters.from_json(e.counters).rows for e in epochs_of(path)] == [0, 1, 0]
    assert rows_of(path) == {(1,): (10,)}
    assert_sound(path)


def test_rows_of_a_python_source_go_straight_into_a_table(
    spark: SparkSession, path: Path, checkpoint: Path
) -> None:
    # `rate-micro-batch` gives the same rows for the same offsets, and needs no files.
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=1000, numPartitions=3, advanceMillisPerBatch=1000)
        .load()
    )
    commands = numbers.selectExpr("value % 100 AS k", "value AS seq", "value % 7 = 0 AS gone")
    writer = upserts(
        commands,
        path,
        checkpoint,
        keys="k",
        sequenceBy="seq",
        applyAsDeletes="gone",
        columnList="k,seq",
    )
    query = writer.start()
    try:
        wait_until(lambda: query.exception() or _batches(query) >= 3, "three batches are done")
    finally:
        query.stop()

    epochs = len(epochs_of(path))
    newest = {value % 100: value for value in range(1000 * epochs)}
    assert rows_of(path) == {(k,): (v,) for k, v in newest.items() if v % 7}
    table = assert_sound(path)
    changes = table.changes().to_pylist()
    assert fold(changes, ["k"]) == rows_of(path)


def _batches(query: Any) -> int:
    return 0 if query.lastProgress is None else int(query.lastProgress["batchId"]) + 1


def test_an_error_in_the_options_stops_the_query_before_its_first_batch(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add([row(1, 10, 0)])
    for options, message in (
        ({"keys": "k", "sequenceBuy": "seq"}, "Did you mean 'sequenceBy'"),
        ({"keys": "k", "txnAppId": "a", "txnVersion": "1"}, "are for batch writes"),
        ({"keys": "kk"}, "Did you mean 'k'"),
        ({}, "'keys' is required"),
    ):
        with pytest.raises(StreamingQueryException, match=message):
            drain(upserts(feed.stream(spark), path, checkpoint, **options))
    assert not path.exists()


def test_rows_by_hash_are_disjoint_in_batches_and_streams(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, options = str(tmp_path / "t"), {"keys": "k,odd name"}
    rows = spark.range(4000).selectExpr(
        "cast(id % 1000 AS string) AS k",
        "date'2024-01-01' + cast(id AS int) AS `odd name`",
        "id AS v",
    )
    divided = by_hash(rows, path, 4, keys=options["keys"])
    assert (divided.schema, divided.rdd.getNumPartitions()) == (rows.schema, 4)
    divided.write.format("upsertflow").options(**options).mode("append").save(path)
    rows.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    drain(upserts(by_hash(stream, path, 2), path, tmp_path / "c"))
    slices = Table.open(path).log.head().slices
    assert [slice_.epochs.lower for slice_ in slices] == [1] * 4 + [2] * 2
    for epoch in (1, 2):
        ranges = [s.file.hash_range for s in slices if s.epochs.lower == epoch]
        assert not list(overlaps(ranges, ()))
    assert Table.open(path).snapshot().num_rows == 4000
    with pytest.raises(SchemaError, match="key column"):
        by_hash(rows.drop("k"), path)
    with pytest.raises(OptionError, match="one table"):
        by_hash(rows, "/lake/{k}", keys="k")
