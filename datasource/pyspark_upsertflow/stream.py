"""The stream reader that Spark calls; what it answers is decided by `spark_upsert.source.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_upsertflow.readers import to_spark
from spark_upsert.options.hints import called_by_spark
from spark_upsert.options.read import ReadOptions
from spark_upsert.source.offset import UNNAMED
from spark_upsert.source.pace import Limits
from spark_upsert.source.splits import RowsSplit
from spark_upsert.source.stream import InputSplit, Stream
from spark_upsert.source.table_input import TableInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NO_BOUND = 2**62


@called_by_spark
class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changelog of one table as a stream, whole or its new values.

    The constructor never raises: Spark would stop the reader that it has not got, and what the user
    sees first would be its `UnboundLocalError`.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        # A relative path is the driver's, so that the options travel as they were understood there.
        return {**self.__dict__, "_options": self._options, "_stream": self._stream}

    @cached_property
    def _options(self) -> ReadOptions:
        options = ReadOptions.parse(self._given)
        options.require_stream()
        return options

    @cached_property
    def _stream(self) -> Stream:
        options = self._options
        columns = to_arrow_schema(self._schema, timezone="UTC")
        return Stream(
            {UNNAMED: TableInput(options, columns)},
            Limits(rows=options.rows_max, bytes=options.bytes_max, epochs=options.epochs_max),
        )

    # -- planning, on the driver --------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        # The real limits are combined in `pace`; Spark can pass only one of its own.
        return ReadMaxRows(self._options.rows_max or _NO_BOUND)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        everything = isinstance(limit, ReadAllAvailable)
        return dict(self._stream.latest(start, everything=everything))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._stream.head()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(split) for split in self._stream.splits(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(end)

    def stop(self) -> None:
        """Do nothing: the reader owns no resource."""

    # -- reading, in the tasks ----------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split = partition.value
        if split is None:
            return  # Spark makes one empty partition out of none.
        assert isinstance(split, InputSplit)
        is_scan = isinstance(split.split, RowsSplit)
        yield from to_spark(self._stream.read(split), self._schema, is_scan=is_scan)
