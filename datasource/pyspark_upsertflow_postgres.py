"""The data source ``upsertflow.postgres``, as Spark discovers it: one source per module."""

from pyspark_upsertflow.postgres import PostgresSource as DefaultSource

__all__ = ["DefaultSource"]
