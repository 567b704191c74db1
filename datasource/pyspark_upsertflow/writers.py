"""The writer for one table, or for many tables whose path template names columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_upsert.options.routed import is_routed_write
from spark_upsert_sink import (
    RoutedBatchWriter,
    RoutedStreamWriter,
    UpsertBatchWriter,
    UpsertStreamWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer for a batch."""
    if is_routed_write(options):
        return RoutedBatchWriter(options, schema, overwrite)
    return UpsertBatchWriter(options, schema, overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer for a stream."""
    if is_routed_write(options):
        return RoutedStreamWriter(options, schema, overwrite)
    return UpsertStreamWriter(options, schema, overwrite)
