"""The stream reader for a PostgreSQL database (`spark_upsert.replication.stream`)."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_upsert.options.postgres import PostgresOptions
from spark_upsert.options.spark import called_by_spark
from spark_upsert.replication.spooled import SourceOffset
from spark_upsert.replication.stage import COLUMNS, changes_row, position_row
from spark_upsert.replication.stream import SourceStream, SourceTask
from spark_upsert.store.open import open_store
from spark_upsert_sink.types import to_spark_columns
from spark_upsert_sink.worker import freeze_loaded_objects

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def change_columns() -> StructType:
    """Return the columns of the stream."""
    return to_spark_columns(COLUMNS)


@called_by_spark
class PostgresStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a database's changes by a spool. The first call opens the connections.

    Tasks receive the spool's address only, and never connect to the database.
    """

    def __init__(self, texts_by_name: Mapping[str, str]) -> None:
        self._texts = dict(texts_by_name)

    def __getstate__(self) -> dict[str, Any]:
        return {"_spool": self._spool}  # Without the address of the database.

    @cached_property
    def _options(self) -> PostgresOptions:
        return PostgresOptions.parse(self._texts)

    @cached_property
    def _spool(self) -> tuple[str, Mapping[str, str]]:
        return self._options.spool, self._options.storage

    @cached_property
    def _stream(self) -> SourceStream:
        if threading.current_thread() is threading.main_thread():
            # The default would not close the connections, and the server would log an error.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        return SourceStream(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.freeze()

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        everything = isinstance(limit, ReadAllAvailable)
        offset = SourceOffset.from_json(start)
        return self._stream.latest(offset, everything=everything).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._stream.newest()
        return None if newest is None else newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        offsets = SourceOffset.from_json(start), SourceOffset.from_json(end)
        return [InputPartition(task) for task in self._stream.tasks(*offsets)]

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(SourceOffset.from_json(end))

    def stop(self) -> None:
        """Close the connections."""
        if "_stream" in self.__dict__:
            self._stream.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        task: SourceTask = partition.value
        store = open_store(*self._spool)
        if task.position is not None:
            yield position_row(task.position)
        for chunk in task.chunks:
            yield changes_row(chunk.schema, chunk.table, chunk.rows, chunk.read(store))
