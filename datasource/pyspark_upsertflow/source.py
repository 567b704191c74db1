"""The data source ``upsertflow`` (`DefaultSource`): a reader or writer class per Spark request.

Spark's discovery imports this module, so it imports no engine, pyarrow or numpy itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

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

    def __init__(self, options: MutableMapping[str, str]) -> None:
        from spark_upsert_sink.types import require_spark

        require_spark(pyspark.__version__)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "upsertflow"

    def schema(self) -> StructType:
        from pyspark_upsertflow.readers import read_schema

        return read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_upsertflow.readers import batch_reader
        from spark_upsert_sink.types import columns_of

        return batch_reader(self.options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_upsert_sink.types import HAS_LIMITS

        if not HAS_LIMITS:
            from pyspark_upsertflow.stream_reader import SelfBoundedStreamReader

            return SelfBoundedStreamReader(self.options, schema)
        from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader

        return LimitedStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_upsertflow.writers import batch_writer
        from spark_upsert_sink.types import columns_of

        return batch_writer(self.options, columns_of(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_upsertflow.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)
