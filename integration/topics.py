"""Many topics in one query, a table each: what is sent to them, the query, and what must come of it.

Each topic has one partition, its own columns, and keys that are written and deleted again and
again; a message is of Kafka Connect, with its schema in front. Some topics gain a column on the
way, some begin late, and one is *poisoned*: from some message on, its schema contradicts its table.

    python -m integration.topics FOLDER BROKER

is the query alone, until it is killed; it may be started again and again on the same folder:

    <folder>/lake               a table for each topic, the group and what is parked
    <folder>/checkpoint
    <folder>/started            appears when the query starts
    <folder>/progress.jsonl     a line for each micro-batch
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.servers.kafka import spark_jars

PATTERN = r"shop\..*"
KEYS = 40
"""Of a topic: few, so that they meet in most batches, and are deleted and made again."""

DELETES = 0.1
OFFSETS_MAX = 120_000
"""Of one micro-batch."""

SLOTS = 2

KEY_SCHEMA = {"type": "struct", "fields": [{"field": "id", "type": "int64"}], "optional": False}

Row = dict[str, Any]


def topic_of(number: int) -> str:
    """Return the name of a topic."""
    return f"shop.t{number:05d}"


def _schema(number: int, *, is_later: bool, is_poisoned: bool) -> dict[str, Any]:
    """Return the schema of a topic's values; every fifth topic gains a column later."""
    columns = {
        "id": "int64",
        "n": "string" if is_poisoned else "int64",
        "text": "string",
        **({"flag": "boolean"} if number % 3 == 1 else {}),
        **({"amount": "double", "small": "int16"} if number % 3 == 2 else {}),
        **({"extra": "string"} if is_later and number % 5 == 0 else {}),
    }
    fields = [{"field": n, "type": t, "optional": n != "id"} for n, t in columns.items()]
    return {"type": "struct", "fields": fields, "optional": False}


@dataclass
class Topic:
    """A topic, and what each of its messages says."""

    number: int
    sent: list[tuple[int, Row | None]] = field(default_factory=list)
    """The key and the row of each message, in the order of their offsets; None deletes."""
    is_later: bool = False
    is_poisoned: bool = False
    _heads: dict[tuple[bool, bool], bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What Kafka calls it."""
        return topic_of(self.number)

    def message(self, dice: random.Random, number: int) -> tuple[bytes, bytes | None]:
        """Add a message; returns its key and its value."""
        key = dice.randrange(KEYS)
        row = None if dice.random() < DELETES else self._row(key, number)
        self.sent.append((key, row))
        value = None if row is None else self._head() + json.dumps(row).encode() + b"}"
        return b'%s{"id": %d}}' % (_head(KEY_SCHEMA), key), value

    def _row(self, key: int, number: int) -> Row:
        names = [each["field"] for each in self._schema()["fields"]]
        values = {
            "id": key,
            "n": str(number) if self.is_poisoned else number,
            "text": f"{self.name}/{number}",
            "flag": number % 2 == 0,
            "amount": number / 4,
            "small": number % 1000,
            "extra": f"+{number}",
        }
        return {name: values[name] for name in names}

    def _schema(self) -> dict[str, Any]:
        return _schema(self.number, is_later=self.is_later, is_poisoned=self.is_poisoned)

    def _head(self) -> bytes:
        state = self.is_later, self.is_poisoned
        if state not in self._heads:
            self._heads[state] = _head(self._schema())
        return self._heads[state]

    def table_after(self, count: int) -> dict[int, Row]:
        """Return the rows of the table once it has the first messages, by key, without nulls."""
        rows: dict[int, Row] = {}
        for key, row in self.sent[:count]:
            rows.pop(key, None)
            if row is not None:
                rows[key] = row
        return rows


def _head(schema: dict[str, Any]) -> bytes:
    """Return what stands before a payload."""
    return b'{"schema": %s, "payload": ' % json.dumps(schema).encode()


def session() -> SparkSession:
    """Return a session for a thousand partitions on one machine."""
    return (
        SparkSession.builder.master(f"local[{SLOTS}]")
        .appName("upsertflow topics")
        .config("spark.jars", ",".join(map(str, spark_jars())))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        # A consumer is kept for each partition: made anew, it would connect for each batch.
        .config("spark.kafka.consumer.cache.capacity", "4096")
        .config("spark.sql.streaming.minBatchesToRetain", "10")
        .getOrCreate()
    )


def routed(spark: SparkSession, servers: str, pattern: str, folder: Path) -> DataStreamWriter:
    """Return a query that writes each topic of a pattern into a table below ``lake``.

    Keys and values are JSON with their schemas in front, from which the columns come.
    """
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribePattern", pattern)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_MAX)
        # Of each partition a task gets what is new, which is little: small answers, at once.
        .option("kafka.fetch.max.wait.ms", "20")
        .option("kafka.max.partition.fetch.bytes", str(1 << 20))
        .load()
        # A task for each partition would start a thousand; whose rows are few go together.
        .coalesce(SLOTS)
    )
    return (
        rows.writeStream.format("upsertflow")
        .option("path", str(folder / "lake" / "{topic}"))
        .option("keyFormat", "json")
        .option("keySchema", "inline")
        .option("valueFormat", "json")
        .option("valueSchema", "inline")
        .option("mergeSchema", "true")
    )


def main(folder: Path, servers: str) -> None:
    """Run the query; raises what it fails with."""
    query = (
        routed(session(), servers, PATTERN, folder)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("envelope", "kafka")
        .option("onTableError", "park")
        .start()
    )
    (folder / "started").touch()
    reported = -1
    with (folder / "progress.jsonl").open("a") as file:
        while not query.awaitTermination(1):
            for progress in query.recentProgress:
                if progress.batchId > reported and progress.numInputRows:
                    reported = progress.batchId
                    file.write(json.dumps(_told(progress)) + "\n")
            file.flush()


def _told(progress: Any) -> dict[str, Any]:
    return {
        "batch": progress.batchId,
        "rows": progress.numInputRows,
        "ms": dict(progress.durationMs),
    }


def told(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written of each micro-batch; a line that a kill has cut is left out."""
    file = folder / "progress.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("broker")
    given = parser.parse_args()
    main(given.folder.resolve(), given.broker)
