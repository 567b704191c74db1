"""upsertflow on Spark: ``writeStream.format("upsertflow")`` and its change stream."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import transport
from benchmarks.contenders.spark import SparkContender
from spark_upsert.table.table import Table


class SparkUpsertflow(SparkContender):
    """The connector with its defaults."""

    def create(self, rows: DataFrame) -> None:
        keys = ",".join(self.workload.key_names)
        writer = rows.write.format("upsertflow").mode("append")
        writer.options(keys=keys, sequenceBy="seq").save(self.path)
        Table.open(self.path).compact()

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        writer = rows.writeStream.format("upsertflow").option("path", self.path)
        if self.workload.deletes:
            writer = writer.option("applyAsDeletes", "gone")
        return writer.option("checkpointLocation", checkpoint).start()

    def note_start(self) -> None:
        self._first = Table.open(self.path).log.head().upper

    def stream_changes(self) -> DataFrame:
        reader = self.spark.readStream.format("upsertflow").option("readChangeFeed", "true")
        return reader.option("startingVersion", self._first).load(self.path)

    def read(self) -> DataFrame:
        return self.spark.read.format("upsertflow").load(self.path)

    def read_changes(self) -> DataFrame:
        reader = self.spark.read.format("upsertflow").option("readChangeFeed", "true")
        return reader.option("startingVersion", self._first).load(self.path)

    def snapshot(self, files: list[Path]) -> dict[str, float]:
        """Read the whole table, the same rows from Parquet, and as many from a no-op source."""
        self.spark.dataSource.register(transport.Rows)
        rows, splits = self.workload.table_rows, os.cpu_count() or 1
        no_op = self.spark.read.format("bench_rows").options(rows=rows, splits=splits)
        parquet = self.spark.read.parquet(*map(str, files))
        return {
            "snapshot_s": _seconds_to_read(self.read()),
            "parquet_s": _seconds_to_read(parquet),
            "no_op_s": _seconds_to_read(no_op.options(space=rows, shift=0).load()),
        }

    def snapshot_of(self, path: str) -> float:
        """Read a whole table that lies elsewhere."""
        return _seconds_to_read(self.spark.read.format("upsertflow").load(path))

    def consume(self, count: int) -> dict[str, float]:
        """Let so many streams read all changes since `open`, at once."""
        before = time.perf_counter()
        queries = []
        for index in range(count):
            reader = self.spark.readStream.format("upsertflow").option("readChangeFeed", "true")
            changes = reader.option("startingVersion", self._first).load(self.path)
            writer = changes.writeStream.format("noop").trigger(availableNow=True)
            place = f"{self._folder}/checkpoints/consumer-{count}-{index}-{time.time_ns()}"
            queries.append(writer.option("checkpointLocation", place).start())
            # Spark gives a Python process ten seconds to report; sixteen that start at once on
            # two cores may need more.
            while queries[-1].status["message"].startswith("Initializing"):
                time.sleep(0.02)
        for query in queries:
            query.awaitTermination()
        return {"seconds": time.perf_counter() - before}

    def versions(self) -> dict[str, Any]:
        from spark_upsert import __version__

        return {**super().versions(), "upsertflow": __version__}


def _seconds_to_read(rows: DataFrame) -> float:
    before = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - before
