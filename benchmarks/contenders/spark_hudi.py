"""Hudi on Spark: its streaming sink with operation ``upsert``, and its CDC query as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contenders.spark import SparkContender


class SparkHudi(SparkContender):
    """A copy-on-write table that logs rows before and after: its CDC is exact there."""

    conf: ClassVar[Mapping[str, str]] = {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }

    @property
    def _options(self) -> dict[str, str]:
        if self.workload.deletes:
            raise NotImplementedError("deletes need a column of Hudi's own in the rows")
        return {
            "hoodie.table.name": "t",
            "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
            "hoodie.datasource.write.recordkey.field": ",".join(self.workload.key_names),
            "hoodie.datasource.write.precombine.field": "seq",
            "hoodie.datasource.write.keygenerator.class": (
                "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
            ),
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": "data_before_after",
            "hoodie.upsert.shuffle.parallelism": "2",
            "hoodie.bulkinsert.shuffle.parallelism": "2",
            # What the change stream has not read must not be cleaned away.
            "hoodie.clean.automatic": "false",
            "hoodie.embed.timeline.server": "false",
        }

    def create(self, rows: DataFrame) -> None:
        writer = rows.write.format("hudi").options(**self._options).mode("overwrite")
        writer.option("hoodie.datasource.write.operation", "bulk_insert").save(self.path)

    def start_upserts(self, rows: DataFrame, checkpoint: str) -> StreamingQuery:
        writer = rows.writeStream.format("hudi").options(**self._options)
        writer = writer.option("hoodie.datasource.write.operation", "upsert")
        writer = writer.option("hoodie.datasource.write.streaming.retry.count", "1")
        return writer.option("checkpointLocation", checkpoint).outputMode("append").start(self.path)

    def note_start(self) -> None:
        rows = self.read_with_times().agg(F.max("_hoodie_commit_time")).collect()
        self._first = rows[0][0]

    def read_with_times(self) -> DataFrame:
        """Return the table with the columns that Hudi adds."""
        return self.spark.read.format("hudi").load(self.path)

    def stream_changes(self) -> DataFrame:
        reader = self.spark.readStream.format("hudi").options(**_CDC)
        return reader.option("hoodie.datasource.streaming.startOffset", self._first).load(self.path)

    def read(self) -> DataFrame:
        return self.read_with_times().select(*self.workload.columns.names)

    def read_changes(self) -> DataFrame:
        reader = self.spark.read.format("hudi").options(**_CDC)
        reader = reader.option("hoodie.datasource.read.begin.instanttime", self._first)
        rows = reader.load(self.path)
        types = from_arrow_schema(self.workload.columns)
        image = [
            F.struct(
                F.lit(kind).alias("_change_type"), F.from_json(F.col(side), types).alias("row")
            )
            for kind, side in (
                ("insert", "after"),
                ("update_preimage", "before"),
                ("update_postimage", "after"),
                ("delete", "before"),
            )
        ]
        images = (
            F.when(rows.op == "i", F.array(image[0]))
            .when(rows.op == "u", F.array(image[1], image[2]))
            .otherwise(F.array(image[3]))
        )
        shown = rows.select(F.col("ts_ms").cast("long").alias("_commit_version"), F.explode(images))
        return shown.select("col.row.*", "col._change_type", "_commit_version")


_CDC = {
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.query.incremental.format": "cdc",
}
