"""The data source ``upsertflow``: which of our classes does what Spark asks for.

Each is imported only when it is asked for: Spark's discovery loads this module and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """A keyed table and its changelog, for reading and writing, in batch and as a stream.

    Options: ``docs/options.md``.
    """

    @classmethod
    def name(cls) -> str:
        return "upsertflow"

    def schema(self) -> StructType:
        from pyspark_upsertflow.readers import read_schema

        return read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_upsertflow.readers import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_upsertflow.stream import ChangeStreamReader

        return ChangeStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_upsertflow.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_upsertflow.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)
