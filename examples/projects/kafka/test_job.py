"""What the job promises, without a broker: files stand for the topic, record by record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from job import customers, errors, follow, session
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


class Topic:
    """A topic of one partition, as a folder of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._offset = 0

    def send(self, *records: tuple[str, str | None]) -> None:
        """Write keys and values, one behind the other."""
        lines = []
        for key, value in records:
            place = {"topic": "customers", "partition": 0, "offset": self._offset}
            lines.append(json.dumps({"key": key, "value": value, **place}) + "\n")
            self._offset += 1
        (self.folder / f"{self._offset}.json").write_text("".join(lines))

    def records(self, spark: SparkSession) -> DataFrame:
        """Return the records as Spark's connector gives them."""
        read = spark.readStream.schema(RECORD).json(str(self.folder))
        as_bytes = {name: col(name).cast("binary") for name in ("key", "value")}
        return read.withColumns(as_bytes)


def test_a_topic_becomes_a_table(spark: SparkSession, tmp_path: Path) -> None:
    topic, lake = Topic(tmp_path / "topic"), str(tmp_path / "lake")

    def load() -> dict[int, str]:
        follow(topic.records(spark), lake, once=True).awaitTermination()
        return {row.id: row.city for row in customers(spark, lake).collect()}

    topic.send(('{"id": 1}', '{"name": "Ada", "city": "London"}'))
    topic.send(('{"id": 2}', '{"name": "Bob", "city": "Rome"}'))
    assert load() == {1: "London", 2: "Rome"}
    topic.send(('{"id": 1}', '{"name": "Ada", "city": "Paris"}'), ('{"id": 2}', None))
    assert load() == {1: "Paris"}, "the newest value wins, and a record without one deletes"
    topic.send(('{"id": 3}', '{"name": '))
    assert load() == {1: "Paris"}
    assert [row.id for row in errors(spark, lake).collect()] == [3], "it is no row: cut off"
    topic.send(('{"id": 3}', '{"name": "Eve", "city": "Bonn"}'))
    assert load() == {1: "Paris", 3: "Bonn"}
    assert errors(spark, lake).count() == 0, "a good record of the key mends it"
    assert load() == {1: "Paris", 3: "Bonn"}, "no record counts twice"
