"""Paimon on Spark: its streaming sink, and the lookup changelog as a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders.spark import SparkContender

BUCKETS = 2
"""A fixed number; one for each core of a small machine."""


class SparkPaimon(SparkContender):
    """A primary-key table that keeps the row with the greatest ``seq``."""

    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.paimon.warehouse": "{folder}/table",
        "spark.sql.extensions": ("org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions"),
    }

    @property
    def _place(self) -> str:
        return f"{self.path}/b.db/t"

    def create(self, rows: DataFrame) -> None:
        if self.workload.deletes:
            raise NotImplementedError("its sink on Spark takes no deletes")
        keys = self.workload.key_names
        columns = ", ".join(
            f"{field.name} {field.dataType.simpleString()}"
            + (" NOT NULL" if field.name in keys else "")
            for field in rows.schema.fields
        )
        self.spark.sql("CREATE DATABASE IF NOT EXISTS paimon.b")
        self.spark.sql(
            f"CREATE TABLE paimon.b.t ({columns}) TBLPROPERTIES ('primary-key'='{','.join(keys)}', "
            f"'bucket'='{BUCKETS}', 'sequence.field'='seq', 'changelog-producer'='lookup', "
            "'snapshot.num-retained.min'='1000', 'snapshot.time-retained'='1 d')"
        )
        rows.write.format("paimon").mode("append").save(self._place)

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        writer = rows.writeStream.format("paimon").outputMode("append")
        return writer.option("checkpointLocation", checkpoint).start(self._place)

    def note_start(self) -> None:
        self._first = self._snapshots()[-1]

    def _snapshots(self) -> list[int]:
        """Return the numbers of the snapshots, ascending."""
        files = Path(self._place, "snapshot").glob("snapshot-*")
        return sorted(json.loads(file.read_text())["id"] for file in files)

    def stream_changes(self) -> DataFrame:
        reader = self.spark.readStream.format("paimon").option("read.changelog", "true")
        reader = reader.option("scan.mode", "from-snapshot")
        return reader.option("scan.snapshot-id", str(self._first + 1)).load(self._place)

    def read(self) -> DataFrame:
        return self.spark.table("paimon.b.t")

    def read_changes(self) -> DataFrame:
        """Read the audit log of each snapshot: together they do not tell which one it was."""
        kinds = {"+I": "insert", "-U": "update_preimage", "+U": "update_postimage", "-D": "delete"}
        names = F.create_map([F.lit(x) for pair in kinds.items() for x in pair])
        shown = []
        for number in self._snapshots():
            if number > self._first:
                reader = self.spark.read.format("paimon")
                reader = reader.option("incremental-between", f"{number - 1},{number}")
                reader = reader.option("incremental-between-scan-mode", "changelog")
                rows = reader.table("paimon.b.`t$audit_log`")
                shown.append(
                    rows.select(
                        *self.workload.columns.names,
                        names[F.col("rowkind")].alias("_change_type"),
                        F.lit(number).cast("long").alias("_commit_version"),
                    )
                )
        return reduce(DataFrame.unionAll, shown)
