"""Hudi on Spark: operation ``upsert`` with an ordering field, and the incremental query for CDC."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from changelog_conformance.histories import GONE, Row
from changelog_conformance.runners.spark import OnSpark

DELETED = "_hoodie_is_deleted"


class HudiSpark(OnSpark):
    """A copy-on-write table that logs rows before and after."""

    kind = "COPY_ON_WRITE"
    conf: ClassVar[Mapping[str, str]] = {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }

    def make(self) -> None:
        self._seen = "0"

    @property
    def _options(self) -> dict[str, str]:
        return {
            "hoodie.table.name": self.name,
            "hoodie.datasource.write.table.type": self.kind,
            "hoodie.datasource.write.operation": "upsert",
            "hoodie.datasource.write.recordkey.field": ",".join(self.keys),
            "hoodie.datasource.write.precombine.field": self.order,
            "hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING",
            "hoodie.datasource.write.keygenerator.class": (
                "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
            ),
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": "data_before_after",
            "hoodie.datasource.write.reconcile.schema": "true",
            "hoodie.upsert.shuffle.parallelism": "1",
            "hoodie.embed.timeline.server": "false",
        }

    def apply(self, rows: Sequence[Row]) -> None:
        frame = self.frame(rows).withColumnRenamed(GONE, DELETED)
        frame.write.format("hudi").options(**self._options).mode("append").save(self.path)

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self.columns.update(columns)

    def rows(self) -> list[Row]:
        return self.collected(self.spark.read.format("hudi").load(self.path))

    def changes(self) -> list[tuple[Row, int]]:
        # From the first commit each time: a beginning is a time of completion, which a row lacks.
        reader = self.spark.read.format("hudi").options(
            **{
                "hoodie.datasource.query.type": "incremental",
                "hoodie.datasource.query.incremental.format": "cdc",
                "hoodie.datasource.read.begin.instanttime": "0",
            }
        )
        rows = [row for row in reader.load(self.path).collect() if row["ts_ms"] > self._seen]
        found: list[tuple[Row, int]] = []
        for row in rows:
            for side, diff in (("before", -1), ("after", 1)):
                image = json.loads(row[side] or "null")
                if image is not None:
                    found.append((self._row(image), diff))
        self._seen = max([self._seen, *(row["ts_ms"] for row in rows)])
        return found

    def _row(self, image: Row) -> Row:
        """Return a row of its image, which is JSON and has no number for NaN."""
        return {
            name: float(image[name]) if kind == "float64" else image[name]
            for name, kind in self.columns.items()
            if image.get(name) is not None
        }


class HudiSparkMergeOnRead(HudiSpark):
    """The other kind of table: deletes stay in its log files until they are compacted."""

    kind = "MERGE_ON_READ"
