"""What all contenders on Spark share: a session, a feed, two queries that stay alive.

One query upserts each batch as it appears in the feed, the other delivers the changes to a sink
that drops them. The figures are Spark's own ``triggerExecution`` of the micro-batches that had
rows: planning, the work and both logs, but not the waiting between two micro-batches.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.canonical import digest_of_changes, digest_of_table
from benchmarks.session import session
from benchmarks.workload import Workload

POLLING_MS = 200
"""How often an idle query looks for work: rarely, because its rival is being timed."""


class SparkContender(ABC):
    """A table on Spark. A subclass says how to load, upsert and read it."""

    conf: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path, workload: Workload, *, memory: str = "4g") -> None:
        self.path = str(folder / "table")
        self.workload = workload
        self._folder = folder
        self._feed = folder / "feed"
        self._jars = [Path(jar) for jar in os.environ.get("BENCH_JARS", "").split(",") if jar]
        self.spark = self._session(memory)
        self._queries: list[StreamingQuery] = []
        self._seen: dict[str, int] = {}
        self._followed = False

    def _session(self, memory: str) -> SparkSession:
        settings = {
            "spark.driver.memory": memory,
            "spark.driver.maxResultSize": "0",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.pollingDelay": str(POLLING_MS),
            **{name: value.format(folder=self._folder) for name, value in self.conf.items()},
        }
        if self._jars:
            settings["spark.jars"] = ",".join(map(str, self._jars))
        return session(self._folder, settings)

    # -- what differs --------------------------------------------------------------------

    @abstractmethod
    def create(self, rows: DataFrame) -> None:
        """Make the table of the initial rows."""

    @abstractmethod
    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        """Start the query that applies each micro-batch."""

    @abstractmethod
    def note_start(self) -> None:
        """Note the version of the loaded table."""

    @abstractmethod
    def stream_changes(self) -> DataFrame | None:
        """Return the changes since `note_start` as a stream, None if there is no such thing."""

    @abstractmethod
    def read(self) -> DataFrame:
        """Return the table."""

    @abstractmethod
    def read_changes(self) -> DataFrame | None:
        """Return the changes since `open`, with ``_change_type`` and ``_commit_version``."""

    # -- what does not -------------------------------------------------------------------

    def load(self, files: list[Path]) -> None:
        self.create(self.spark.read.parquet(*map(str, files)))

    def open(self) -> None:
        self._feed.mkdir(parents=True, exist_ok=True)
        rows = (
            self.spark.readStream.schema(from_arrow_schema(self.workload.commands))
            .option("maxFilesPerTrigger", os.cpu_count() or 1)
            .parquet(f"{self._feed}/batch-*")
        )
        self.note_start()
        self._queries = [self.start_upserts(rows, f"{self._folder}/checkpoints/upserts")]

    def _follow(self) -> None:
        """Start the query that reads the changes, once there are some: Delta asks for that."""
        changes = self.stream_changes()
        if changes is not None:
            writer = changes.writeStream.format("noop")
            writer = writer.option("checkpointLocation", f"{self._folder}/checkpoints/changes")
            self._queries.append(writer.start())
        self._followed = True

    def apply(self, batch: Path) -> dict[str, float]:
        # A folder appears at once, with all its files.
        hidden = self._feed / f".{batch.name}"
        hidden.mkdir()
        for file in batch.iterdir():
            shutil.copyfile(file, hidden / file.name)
        hidden.rename(self._feed / batch.name)
        measured: dict[str, float] = {}
        self._queries[0].processAllAvailable()
        measured["upsert_s"] = self._seconds(self._queries[0])
        if not self._followed:
            self._follow()
        for query in self._queries[1:]:
            query.processAllAvailable()
            measured["changes_s"] = self._seconds(query)
        measured["ingested_bytes"] = pq.read_table(batch).nbytes
        return measured

    def _seconds(self, query: StreamingQuery) -> float:
        """Add up the micro-batches with rows since the last call."""
        last = self._seen.get(query.id, -1)
        took = {
            # Spark 3 has no attributes here.
            progress["batchId"]: progress["durationMs"]["triggerExecution"]
            for progress in query.recentProgress
            if progress["batchId"] > last and "addBatch" in progress["durationMs"]
        }
        if not took:
            raise RuntimeError(f"no micro-batch ran: {query.exception() or query.status}")
        self._seen[query.id] = max(took)
        return sum(took.values()) / 1000

    def contents(self) -> dict[str, Any] | None:
        return digest_of_table(self._fetch(self.read(), "contents"), self.workload)

    def changes(self) -> dict[str, Any] | None:
        rows = self.read_changes()
        return (
            None if rows is None else digest_of_changes(self._fetch(rows, "found"), self.workload)
        )

    def _fetch(self, rows: DataFrame, name: str) -> pa.Table:
        target = self._folder / name
        rows.write.mode("overwrite").parquet(str(target))
        return pq.read_table(target)

    def versions(self) -> dict[str, str]:
        return {"spark": self.spark.version, "jars": ", ".join(jar.name for jar in self._jars)}

    def close(self) -> None:
        for query in self._queries:
            query.stop()
        self.spark.stop()


def rows_of_many(spark: SparkSession, tables: int, rows: int) -> DataFrame:
    """Return a batch of random rows of so many tables: ``topic``, ``id`` and ``v``, computed."""
    batch = spark.range(rows).selectExpr(
        f"concat('topic-', cast(rand() * {tables} AS INT)) AS topic",
        "cast(rand() * 1000000 AS BIGINT) AS id",
        "0.5D AS v",
    )
    batch = batch.dropDuplicates(["topic", "id"]).cache()
    batch.count()
    return batch
