"""Iceberg on Spark: MERGE in ``foreachBatch``; its changes are a view per range of snapshots."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders.spark import SparkContender
from benchmarks.contenders.spark_delta import merge_statement

_KINDS = {
    "INSERT": "insert",
    "UPDATE_BEFORE": "update_preimage",
    "UPDATE_AFTER": "update_postimage",
    "DELETE": "delete",
}


class SparkIceberg(SparkContender):
    """A merge-on-read table of format 2, which makes its MERGE cheaper.

    Its stream reads appends only, and the procedure ``create_changelog_view`` does not take
    merge-on-read tables (delete files), so no changes are read.
    """

    mode = "merge-on-read"
    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": "{folder}/table",
        # Otherwise a session does not see what the query's own session has committed.
        "spark.sql.catalog.ice.cache-enabled": "false",
    }

    def create(self, rows: DataFrame) -> None:
        rows.writeTo("ice.b.t").tableProperty("format-version", "2").tableProperty(
            "write.merge.mode", self.mode
        ).create()

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        statement = merge_statement("ice.b.t", self.workload)

        def merge(batch: DataFrame, number: int) -> None:
            batch.createOrReplaceTempView("updates")
            batch.sparkSession.sql(statement)

        writer = rows.writeStream.foreachBatch(merge)
        return writer.option("checkpointLocation", checkpoint).start()

    def note_start(self) -> None:
        pass

    def stream_changes(self) -> None:
        return None

    def read(self) -> DataFrame:
        return self.spark.table("ice.b.t")

    def read_changes(self) -> DataFrame | None:
        return None


class SparkIcebergChangelog(SparkIceberg):
    """A copy-on-write table, as ``create_changelog_view`` asks for; a view for each batch."""

    mode = "copy-on-write"

    def note_start(self) -> None:
        self._first = self._last = self._snapshot()

    def _snapshot(self) -> int:
        rows = self.spark.sql(
            "SELECT snapshot_id FROM ice.b.t.snapshots ORDER BY committed_at DESC LIMIT 1"
        ).collect()
        return int(rows[0][0])

    def apply(self, batch: Path) -> dict[str, Any]:
        measured: dict[str, Any] = super().apply(batch)
        before = time.perf_counter()
        first, self._last = self._last, self._snapshot()
        self._view(first).write.format("noop").mode("overwrite").save()
        return {**measured, "changes_s": time.perf_counter() - before}

    def _view(self, after: int) -> DataFrame:
        keys = ", ".join(f"'{name}'" for name in self.workload.key_names)
        self.spark.sql(
            "CALL ice.system.create_changelog_view(table => 'b.t', changelog_view => 'changes', "
            f"options => map('start-snapshot-id', '{after}', 'end-snapshot-id', '{self._last}'), "
            f"compute_updates => true, identifier_columns => array({keys}))"
        )
        return self.spark.table("changes")

    def read_changes(self) -> DataFrame:
        kinds = F.create_map([F.lit(text) for pair in _KINDS.items() for text in pair])
        return self._view(self._first).select(
            *self.workload.columns.names,
            kinds[F.col("_change_type")].alias("_change_type"),
            F.col("_change_ordinal").cast("long").alias("_commit_version"),
        )
