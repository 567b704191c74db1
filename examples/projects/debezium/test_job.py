"""What the job promises, without servers: files stand for the topic, event by event."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from job import TOPIC, follow, orders, session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

RECORD = (
    "key STRING, value STRING, topic STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, timestampType INT"
)
"""The columns of a record of Kafka, with texts in place of bytes."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = session()
    yield spark
    spark.stop()


def order(id_: int, cents: int) -> dict[str, Any]:
    """Return a row as Debezium writes it: decimals as bytes, dates as days since 1970."""
    amount = base64.b64encode(cents.to_bytes(4, "big", signed=True)).decode()
    changed = "2026-02-28T12:30:00Z"
    return {"id": id_, "customer": "Ada", "amount": amount, "due": 20_000, "changed": changed}


def event(lsn: int, *, before: Any = None, after: Any = None) -> dict[str, Any]:
    """Return the record of a change."""
    op = "d" if after is None else "c" if before is None else "u"
    value = {"before": before, "after": after, "source": {"lsn": lsn}, "op": op, "ts_ms": 1}
    key = {"id": (after or before)["id"]}
    place = {"topic": TOPIC, "partition": 0, "offset": lsn}
    return {"key": json.dumps(key), "value": json.dumps(value), **place}


def events(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the events of a folder as Spark's connector gives them."""
    read = spark.readStream.schema(RECORD).json(str(folder))
    return read.withColumns({name: col(name).cast("binary") for name in ("key", "value")})


def test_events_become_the_rows_of_the_database(spark: SparkSession, tmp_path: Path) -> None:
    folder, lake = tmp_path / "topic", str(tmp_path / "lake")
    folder.mkdir()

    def load(*records: dict[str, Any]) -> dict[int, Decimal]:
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{len(list(folder.iterdir()))}.json").write_text(text)
        follow(events(spark, folder), lake, once=True).awaitTermination()
        return {row.id: row.amount for row in orders(spark, lake).collect()}

    one, two = order(1, 10_50), order(2, -20_00)
    assert load(event(1, after=one), event(2, after=two)) == {1: Decimal("10.5"), 2: Decimal(-20)}
    assert orders(spark, lake).where("id = 1").collect()[0].due == date(2024, 10, 4)
    newer, newest = order(1, 11_00), order(1, 12_00)
    late = [event(4, before=newer, after=newest), event(3, before=one, after=newer)]
    assert load(*late) == {1: Decimal(12), 2: Decimal(-20)}, "the order of the database's log"
    assert load(event(5, before=two)) == {1: Decimal(12)}
    assert load(event(5, before=two)) == {1: Decimal(12)}, "Debezium may repeat what it has said"
