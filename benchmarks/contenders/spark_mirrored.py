"""upsertflow on Spark with a mirror, and a Spark that reads mirrors by Delta."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders.spark_delta import SparkDelta
from benchmarks.contenders.spark_ours import SparkUpsertflow
from spark_upsert.table.table import Table

PROPERTIES = {"publish": "delta", "publishChangeFeed": "true"}


class SparkMirrored(SparkUpsertflow):
    """The sink publishes behind each micro-batch, and the changes are those of the table."""

    def open(self) -> None:
        Table.open(self.path).publish(change_feed=True)
        super().open()

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        writer = rows.writeStream.format("upsertflow").option("path", self.path)
        if self.workload.deletes:
            writer = writer.option("applyAsDeletes", "gone")
        writer = writer.options(**PROPERTIES)
        return writer.option("checkpointLocation", checkpoint).start()


class SparkReader(SparkDelta):
    """A session with Delta that reads mirrors of tables that others write."""

    conf: ClassVar[Mapping[str, str]] = {
        **SparkDelta.conf,
        # Else Delta reads the log of a small table in 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
    }

    def seen(self, place: str, id_: int, number: int) -> float:
        """Wait until a row is there; return when, as `time.time`."""
        while True:
            rows = self.spark.read.format("delta").load(place).where(f"n = {number} AND id = {id_}")
            if [row["n"] for row in rows.select("n").collect()] == [number]:
                return time.time()

    def scan(self, place: str, written: Mapping[str, str]) -> dict[str, float]:
        """Read all of a mirror, and the same rows as Spark wrote them (`write_again`)."""
        return {
            "mirror_s": _seconds_to_read(self.spark.read.format("delta").load(place)),
            "delta_s": _seconds_to_read(self.spark.read.format("delta").load(written["delta"])),
            "parquet_s": _seconds_to_read(self.spark.read.parquet(written["parquet"])),
        }

    def write_again(self, place: str, folder: str) -> dict[str, str]:
        """Write the rows of a mirror as Parquet and as a table of Delta, in files as Spark likes.

        Returns
        -------
        dict of str to str
            The place of each, by its format.
        """
        found = {format_: f"{folder}/{format_}" for format_ in ("parquet", "delta")}
        for format_, target in found.items():
            rows = self.spark.read.format("delta").load(place)
            rows.write.mode("overwrite").format(format_).save(target)
        return found


def _seconds_to_read(rows: DataFrame) -> float:
    before = time.perf_counter()
    # All columns of all rows; the sink that drops them is closed to a table of Delta.
    rows.selectExpr("max(xxhash64(*))").collect()
    return time.perf_counter() - before
