"""Delta Lake on Spark: ``MERGE`` of the newest command of each key, and the change data feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from changelog_conformance.histories import Row, newest
from changelog_conformance.merging import merge_statement
from changelog_conformance.runners.spark import INSERTED, OnSpark


class DeltaSpark(OnSpark):
    """A table with ``delta.enableChangeDataFeed``."""

    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }

    @property
    def target(self) -> str:
        return f"delta.`{self.path}`"

    def make(self) -> None:
        self.spark.sql(
            f"CREATE TABLE {self.target} ({self.ddl()}) USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )
        self._seen = 0

    def apply(self, rows: Sequence[Row]) -> None:
        self.frame(newest(rows, self.keys, self.order)).createOrReplaceTempView("updates")
        self.spark.sql(
            merge_statement(
                self.target, "updates", columns=self.columns, keys=self.keys, order=self.order
            )
        )

    def changes(self) -> list[tuple[Row, int]]:
        history = self.spark.sql(f"DESCRIBE HISTORY {self.target} LIMIT 1").collect()
        first, self._seen = self._seen + 1, int(history[0]["version"])
        if first > self._seen:
            return []
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        frame = reader.option("startingVersion", first).load(self.path)
        return self.signed(frame, INSERTED, "_change_type")
