"""Reads of a table's metadata, such as ``option("metadata", "epochs")``, as a one-task batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_upsert.metadata import VIEWS
from spark_upsert.options.read import Metadata, ReadOptions
from spark_upsert.options.spark import called_by_spark
from spark_upsert.table.table import Table
from spark_upsert_sink.types import arrow_of, spark_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def metadata_schema(metadata: Metadata) -> StructType:
    """Return the columns of such a read."""
    return spark_of(VIEWS[metadata].schema)


@called_by_spark
class MetadataReader(DataSourceReader):
    """Reads what the log and the leases say about a table."""

    def __init__(self, options: ReadOptions, metadata: Metadata, schema: StructType) -> None:
        self._options = options
        self._metadata = metadata
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        # Opened here, too, so that a wrong path fails on the driver.
        self._open()
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        target = arrow_of(self._schema)
        for batch in VIEWS[self._metadata].read(self._open()):
            yield batch.cast(target)

    def _open(self) -> Table:
        return Table.open(self._options.path, storage=self._options.storage)
