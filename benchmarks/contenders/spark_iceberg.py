"""Iceberg on Spark: MERGE in ``foreachBatch``; its changes are a view per range of snapshots."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders.spark import SparkContender
from benchmarks.contenders.spark_delta import merge_statement


class SparkIceberg(SparkContender):
    """A merge-on-read table of format 2, which makes its MERGE cheaper.

    Its stream reads appends only, so the changes of a batch come from ``create_changelog_view``.
    That procedure does not take merge-on-read tables (delete files), so no changes are read.
    """

    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": "{folder}/table",
    }

    def create(self, rows: DataFrame) -> None:
        rows.writeTo("ice.b.t").tableProperty("format-version", "2").tableProperty(
            "write.merge.mode", "merge-on-read"
        ).create()

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        statement = merge_statement("ice.b.t", self.workload)

        def merge(batch: DataFrame, number: int) -> None:
            batch.createOrReplaceTempView("updates")
            batch.sparkSession.sql(statement)

        writer = rows.writeStream.foreachBatch(merge)
        return writer.option("checkpointLocation", checkpoint).start()

    def stream_changes(self) -> None:
        return None

    def read(self) -> DataFrame:
        return self.spark.table("ice.b.t")

    def read_changes(self) -> None:
        return None

    def snapshot(self, files: list[Path]) -> dict[str, float]:
        """Read the whole table."""
        before = time.perf_counter()
        self.read().write.format("noop").mode("overwrite").save()
        return {"snapshot_s": time.perf_counter() - before}
