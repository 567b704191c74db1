"""The stream reader for PySpark 4.2 and newer, which pass a start and a limit."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_upsertflow.stream_reader import ChangeStreamReader
from spark_upsert.options.spark import called_by_spark

_NO_BOUND = 2**62


@called_by_spark
class LimitedStreamReader(ChangeStreamReader, SupportsTriggerAvailableNow):
    """A reader with a start and limit per batch from Spark, for PySpark 4.2 and newer."""

    def getDefaultReadLimit(self) -> ReadLimit:
        # The real limits are combined in `plan_limited_batch`; Spark can pass only one of its own.
        return ReadMaxRows(self._plan.query.rows_max or _NO_BOUND)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        everything = isinstance(limit, ReadAllAvailable)
        return dict(self._stream.latest(start, everything=everything))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._stream.report()
