"""Spark's writes into a table: what the driver plans, what tasks stage, what is committed."""

from spark_upsert_sink.routed import RoutedBatchWriter, RoutedStreamWriter
from spark_upsert_sink.writers import UpsertBatchWriter, UpsertStreamWriter

__all__ = ["RoutedBatchWriter", "RoutedStreamWriter", "UpsertBatchWriter", "UpsertStreamWriter"]
