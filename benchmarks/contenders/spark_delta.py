"""Delta Lake on Spark: MERGE in ``foreachBatch``, and the change data feed as a stream."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders.spark import SparkContender, rows_of_many
from benchmarks.workload import Workload

AT_ONCE = 4
"""MERGEs that run side by side, so that no core waits while Spark plans another."""


def merge_statement(target: str, workload: Workload) -> str:
    """Return the MERGE that upserts the view ``updates``, the newest command of each key."""
    keys = ", ".join(workload.key_names)
    same = " AND ".join(f"t.{name} = s.{name}" for name in workload.key_names)
    names = workload.columns.names
    values = ", ".join(f"t.{name} = s.{name}" for name in names)
    deletes = "WHEN MATCHED AND s.seq > t.seq AND s.gone THEN DELETE" if workload.deletes else ""
    alive = "AND NOT s.gone" if workload.deletes else ""
    return f"""
        MERGE INTO {target} t
        USING (SELECT newest.* FROM
                 (SELECT max_by(struct(*), seq) AS newest FROM updates GROUP BY {keys})) s
        ON {same}
        {deletes}
        WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET {values}
        WHEN NOT MATCHED {alive} THEN INSERT ({", ".join(names)})
          VALUES ({", ".join(f"s.{name}" for name in names)})
    """


class SparkDelta(SparkContender):
    """With deletion vectors, which make its MERGE cheaper."""

    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    }

    def create(self, rows: DataFrame) -> None:
        rows.write.format("delta").save(self.path)

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        statement = merge_statement(f"delta.`{self.path}`", self.workload)

        def merge(batch: DataFrame, number: int) -> None:
            batch.createOrReplaceTempView("updates")
            batch.sparkSession.sql(statement)

        writer = rows.writeStream.foreachBatch(merge)
        return writer.option("checkpointLocation", checkpoint).start()

    def _version(self) -> int:
        rows = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path}` LIMIT 1").collect()
        return int(rows[0]["version"])

    def note_start(self) -> None:
        self._first = self._version() + 1

    def stream_changes(self) -> DataFrame:
        reader = self.spark.readStream.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", self._first).load(self.path)

    def read(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.path)

    def read_changes(self) -> DataFrame:
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", self._first).load(self.path)

    def make_many(self, tables: int, rows: int, merged: int) -> None:
        """Make the first of so many tables: one of a batch of all, and copies of it."""
        # Delta reads a log in 50 tasks, as a large table needs it. This halves a MERGE of these.
        self.spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
        batch = rows_of_many(self.spark, tables, rows)
        first = batch.where("topic = 'topic-0'")
        first.write.format("delta").mode("append").save(self._one_of(tables, 0))
        batch.unpersist()
        for table in range(1, merged):
            shutil.copytree(self._one_of(tables, 0), self._one_of(tables, table))

    def write_many(self, tables: int, rows: int, merged: int) -> dict[str, float]:
        """Merge a batch of so many tables into the first ones, some at once.

        Returns the seconds.
        """
        batch = rows_of_many(self.spark, tables, rows)
        batch.createOrReplaceTempView("updates")

        def merge(table: int) -> None:
            self.spark.sql(
                f"MERGE INTO delta.`{self._one_of(tables, table)}` t "
                f"USING (SELECT * FROM updates WHERE topic = 'topic-{table}') s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

        before = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(merge, range(merged)))
        seconds = time.perf_counter() - before
        batch.unpersist()
        return {"seconds": seconds}

    def _one_of(self, tables: int, table: int) -> str:
        return f"{self._folder}/routed-{tables}/topic-{table}"
