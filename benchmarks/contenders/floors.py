"""The floors on Spark, and our source and sink held against them in the same session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import transport
from benchmarks.contenders.spark_ours import SparkUpsertflow
from spark_upsert.table.table import Table

SHIFT = 50_000_000
"""More rows than a chain moves, and so few that keys do not overflow in hundreds of chains."""


class SparkFloors(SparkUpsertflow):
    """Four chains: {no-op, upsertflow} source -> {no-op, upsertflow} sink."""

    runs = 0

    def open(self) -> None:
        self.spark.dataSource.register(transport.Rows)
        self.spark.dataSource.register(transport.Nowhere)

    def chain(self, source: str, sink: str, rows: int, batches: int) -> dict[str, Any]:
        """Run micro-batches through a chain; returns the seconds of each but the first.

        The changes that our source delivers are those that the last chain with our sink made.
        """
        self.runs += 1
        query = self._sink(sink, self._source(source, rows, batches)).start()
        try:
            query.processAllAvailable()
            took = [
                (progress.numInputRows, progress.durationMs["triggerExecution"] / 1000)
                for progress in query.recentProgress
                if "addBatch" in progress.durationMs
            ]
        finally:
            query.stop()
        return {"seconds": [seconds for _, seconds in took[1:]], "rows": rows}

    def _source(self, source: str, rows: int, batches: int) -> DataFrame:
        reader = self.spark.readStream
        if source == "no-op":
            return (
                reader.format("bench_rows")
                .options(rows=rows, batches=batches, splits=os.cpu_count() or 1)
                # No row of an earlier chain may be newer: a stale row would be cheaper.
                .options(space=self.workload.table_rows * 11 // 10, shift=self.runs * SHIFT)
                .load()
            )
        reader = reader.format("upsertflow").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", self._chained)
        return reader.option("maxEpochsPerTrigger", 1).load(self.path)

    def _sink(self, sink: str, rows: DataFrame) -> DataStreamWriter:
        place = f"{self._folder}/checkpoints/{self.runs}"
        writer = rows.writeStream.option("checkpointLocation", place)
        if sink == "no-op":
            return writer.format("bench_nowhere")
        self._chained = Table.open(self.path).log.head().upper
        return writer.format("upsertflow").option("path", self.path)


class SparkNothing(SparkUpsertflow):
    """Two queries as ours, which do nothing: one drops a batch, one hands out twice as many rows."""

    def load(self, files: list[Path]) -> None:
        """Make no table."""

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        self.spark.dataSource.register(transport.Fed)
        self.spark.dataSource.register(transport.Nowhere)
        writer = rows.writeStream.format("bench_nowhere")
        return writer.option("checkpointLocation", checkpoint).start()

    def note_start(self) -> None:
        """Note nothing."""

    def stream_changes(self) -> DataFrame:
        reader = self.spark.readStream.format("bench_fed").option("feed", str(self._feed))
        reader = reader.options(rows=2 * self.workload.batch_rows, splits=os.cpu_count() or 1)
        return reader.options(space=self.workload.table_rows, shift=0).load()

    def contents(self) -> None:
        """Return nothing: there is no table."""

    def changes(self) -> None:
        """Return nothing."""
