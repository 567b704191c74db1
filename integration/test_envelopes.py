"""Records of Kafka and change events of Debezium through a real query, and the errors in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.promises import assert_sound, counters_of, epochs_of, orphans, rows_of
from integration.queries import Feed, drain, upserts
from integration.tables import Row
from spark_upsert.table.state.reduce import Counters
from tests.support.envelopes import JSON, KAFKA, key, records, value

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BAD = b'{"v": '


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", KAFKA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def batches(*given: list[tuple[bytes | None, bytes | None]]) -> list[list[Row]]:
    """Return records of a partition, one list per micro-batch; offsets go on."""
    found, offset = [], 0
    for pairs in given:
        offsets = range(offset, offset + len(pairs))
        found.append(records(pairs, offsets=offsets).to_pylist())
        offset += len(pairs)
    return found


def errors(spark: SparkSession, path: Path, **options: Any) -> list[Row]:
    """Return the quarantine as Spark reads it."""
    reader = spark.read.format("upsertflow").option("metadata", "quarantine").options(**options)
    return sorted((row.asDict() for row in reader.load(str(path)).collect()), key=repr)


def test_a_stream_of_records_with_errors_in_them(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add(
        *batches(
            [(key(1), value("a")), (key(2), BAD), (None, value("x")), (b"?", value("y"))],
            [(key(1), BAD), (key(2), value("b")), (key(3), value("Zoë"))],
            [(key(1), value("c")), (None, None), (key(3), None), (key(4), b"")],
        )
    )
    stream = feed.stream(spark).repartition(3, F.rand())
    drain(upserts(stream, path, checkpoint, onError="quarantine", **JSON))

    assert rows_of(path) == {(1,): ("c",), (2,): ("b",)}
    assert_sound(path)
    first, second, third = (Counters.from_json(commit.counters) for commit in epochs_of(path))
    assert (first.quarantined, first.displaced, first.inserts) == (3, 0, 1)
    assert (second.quarantined, second.displaced, second.inserts) == (1, 1, 2)
    assert (third.quarantined, third.deletes, third.absent) == (1, 1, 1)

    empty, bad_key = errors(spark, path)
    versions = [commit.version for commit in epochs_of(path)]
    assert (empty["k"], bytes(empty["_raw_value"]), empty["_epoch"]) == (4, b"", versions[2])
    assert (bad_key["k"], bytes(bad_key["_raw_key"])) == (None, b"?")
    assert (bytes(bad_key["_raw_value"]), bad_key["_epoch"]) == (value("y"), versions[0])
    assert "the key is undecodable" in bad_key["_reason"]
    before = errors(spark, path, versionAsOf=versions[0])
    assert [(row["k"], row["_reason"][:20]) for row in before] == [
        (2, "the value is undecod"),
        (None, "the key 'k' is null"),
        (None, "the key is undecodab"),
    ]
    assert errors(spark, path, splits=7) == errors(spark, path)


def test_a_bad_record_stops_a_query_that_was_not_told_to_go_on(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add(*batches([(key(1), value("a"))], [(key(1), value("b")), (key(2), BAD)]))
    writer = upserts(feed.stream(spark), path, checkpoint, **JSON)
    with pytest.raises(StreamingQueryException) as caught:
        drain(writer)
    text = str(caught.value)
    assert "[DATA] the value is undecodable" in text
    assert "in 1 of 2 rows of a batch (for example k=2, value {" in text
    assert '.option("onError", "quarantine")' in text
    assert rows_of(path) == {(1,): ("a",)}
    assert orphans(path) == set()


def test_the_policy_of_a_table_cannot_change(
    spark: SparkSession, feed: Feed, path: Path, tmp_path: Path
) -> None:
    feed.add(*batches([(key(1), value("a"))]))
    drain(upserts(feed.stream(spark), path, tmp_path / "first", **JSON))
    with pytest.raises(StreamingQueryException, match="but the table has 'fail'"):
        drain(upserts(feed.stream(spark), path, tmp_path / "second", onError="inline", **JSON))


def test_inline_errors_are_a_column_of_the_table_and_of_its_changes(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    feed.add(*batches([(key(1), BAD)], [(key(1), value("a"))]))
    drain(upserts(feed.stream(spark), path, checkpoint, onError="inline", **JSON))
    table = spark.read.format("upsertflow").load(str(path))
    assert table.select("k", "v", "error.description").collect() == [(1, "a", None)]
    changes = spark.read.format("upsertflow").option("readChangeFeed", "true").load(str(path))
    shown = changes.select("_change_type", "v", F.col("error").isNotNull()).collect()
    assert [tuple(row) for row in shown] == [
        ("insert", None, True),
        ("update_preimage", None, True),
        ("update_postimage", "a", False),
    ]
    assert_sound(path)


ROW = "STRUCT<id: BIGINT, name: STRING>"
MESSAGE = (
    f"payload STRUCT<before: {ROW}, after: {ROW}, op: STRING, source: STRUCT<lsn: BIGINT>, "
    "ts_ms: BIGINT>"
)


def change(op: str, before: Row | None, after: Row | None, lsn: int) -> bytes:
    message = {"before": before, "after": after, "op": op, "source": {"lsn": lsn}, "ts_ms": 0}
    return json.dumps({"schema": None, "payload": message}).encode()


def parsed(rows: DataFrame) -> DataFrame:
    """Parse the values of Debezium's messages, and leave those out that have none."""
    message = F.from_json(F.col("value").cast("string"), MESSAGE)
    return rows.where("value IS NOT NULL").select(message.alias("message")).select("message.*")


CHANGES = {"envelope": "debezium", "keys": "id", "sequenceBy": "source.lsn"}
RECORDS = {**CHANGES, "valueFormat": "json", "valueSchema": "id BIGINT, name STRING"}


@pytest.mark.parametrize("form", ["records", "parsed by from_json"])
def test_messages_of_debezium(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path, form: str
) -> None:
    one, two = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    renamed, moved = {"id": 1, "name": "c"}, {"id": 5, "name": "b"}
    feed.add(
        *batches(
            [(None, change("r", None, one, 1)), (None, change("c", None, two, 2))],
            [(None, change("u", one, renamed, 3)), (None, change("u", two, moved, 4))],
            # A delete is followed by a message without a value.
            [(None, change("d", renamed, None, 5)), (None, None)],
            [(None, change("c", None, one, 6)), (None, change("u", None, renamed, 2))],
        )
    )
    stream = feed.stream(spark).repartition(3, F.rand())
    if form == "records":
        drain(upserts(stream, path, checkpoint, **RECORDS))
    else:
        drain(upserts(parsed(stream), path, checkpoint, **CHANGES))
    assert rows_of(path) == {(1,): ("a",), (5,): ("b",)}
    assert counters_of(path).rejected == 0
    assert_sound(path)


def test_what_is_no_change_event_is_kept_apart_and_deletes_nothing(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    one = {"id": 1, "name": "a"}
    name = json.dumps({"id": 1}).encode()
    cut = change("u", one, {"id": 1, "name": "b"}, 2)[:-30]
    feed.add(*batches([(name, change("c", None, one, 1))], [(name, cut), (name, b"\xff")]))
    drain(upserts(feed.stream(spark), path, checkpoint, onError="quarantine", **RECORDS))
    # It is the newest word on its key: nothing was deleted, and the row is in doubt.
    assert rows_of(path) == {}
    assert counters_of(path).deletes == 0
    [error] = errors(spark, path)
    assert (error["id"], error["_raw_key"]) == (1, None)
    assert "the value is undecodable" in error["_reason"]


def test_a_batch_of_change_events_with_a_truncate(spark: SparkSession, path: Path) -> None:
    row = pa.struct({"id": pa.int64(), "name": pa.string()})
    events = pa.Table.from_pylist(
        [
            {"after": {"id": 1, "name": "a"}, "op": "c"},
            {"after": None, "op": "t"},
        ],
        schema=pa.schema({"after": row, "op": pa.string()}),
    )
    frame = spark.createDataFrame(events)
    writer = frame.write.format("upsertflow").mode("append")
    writer = writer.options(envelope="debezium", keys="id", onError="quarantine")
    writer.save(str(path))
    assert rows_of(path) == {(1,): ("a",)}
    [error] = errors(spark, path)
    assert error["_reason"] == "op 't' (truncate) cannot be applied (onTruncate)"
    assert json.loads(error["_raw_value"]) == {"after": None, "op": "t"}


def test_a_truncate_in_a_stream_empties_the_table_and_its_changes_say_so(
    spark: SparkSession, feed: Feed, path: Path, checkpoint: Path
) -> None:
    def put(number: int, name: str, lsn: int) -> tuple[bytes, bytes]:
        key = json.dumps({"id": number}).encode()
        return key, change("c", None, {"id": number, "name": name}, lsn)

    feed.add(
        *batches(
            [put(1, "a", 1), put(2, "b", 2)],
            [put(3, "c", 3), (None, change("t", None, None, 4)), put(4, "d", 5)],
            [put(5, "late", 3), put(1, "again", 6)],
        )
    )
    # Rows of one batch go to any task.
    scattered = feed.stream(spark).repartition(3)
    drain(upserts(scattered, path, checkpoint, onTruncate="overwrite", **RECORDS))
    assert rows_of(path) == {(1,): ("again",), (4,): ("d",)}
    assert_sound(path)
