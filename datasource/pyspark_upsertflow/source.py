"""The data source ``upsertflow``: which of our classes does what Spark asks for.

Each is imported only when it is asked for: Spark's discovery loads this module and nothing else.
"""

from __future__ import annotations

import sys
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


SPARK_MIN = (4, 2)
"""The first release whose Python sources may limit a micro-batch."""


def require_spark(version: str) -> None:
    """Refuse a release of Spark that lacks what the source is built on.

    Raises
    ------
    ImportError
        It is too old.
    """
    if tuple(map(int, version.split(".")[:2])) < SPARK_MIN:
        raise ImportError(
            f"the format 'upsertflow' needs PySpark {'.'.join(map(str, SPARK_MIN))} or newer, found "
            f"{version} in {sys.executable}.\n\nHint: install a newer PySpark, the same on the "
            "driver and on every executor; plain Python reads and writes the same tables without "
            "Spark (docs/without-spark.md)."
        )


class DefaultSource(DataSource):
    """A keyed table and its changelog, for reading and writing, in batch and as a stream.

    Options: ``docs/options.md``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
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
