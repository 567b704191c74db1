"""The base class of all stream readers, and the reader for PySpark 4.1.

`spark_upsert.streams.planner.stream` computes the offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_upsertflow.catalog import complete_options
from pyspark_upsertflow.python_source import KINDS
from pyspark_upsertflow.readers import decode_work, to_spark
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.spark import called_by_spark
from spark_upsert.streams.planner.formats import (
    shared_columns,
    stream_heads,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.explain import log_merge
from spark_upsert.streams.reads.read_split import refuse_own_epochs, splits_of
from spark_upsert.streams.reads.splits import RowsSplit
from spark_upsert_sink.types import to_arrow_columns
from spark_upsert_sink.worker import defer_reads, freeze_loaded_objects, without_split

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_QUERY_ID = "sql.streaming.queryId"
"""Local property set by Spark in each streaming query's tasks."""


@called_by_spark
class ChangeStreamReader(DataSourceStreamReader):
    """Reads inputs as a stream: changes or new rows, from one table or several inputs.

    Spark releases differ in how they request a batch's end: `SelfBoundedStreamReader` is for
    PySpark 4.1, `pyspark_upsertflow.limited_stream_reader` for 4.2 and newer.

    The constructor never raises: Spark would then fail to stop the missing reader, and the user
    would see its `UnboundLocalError` first.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = complete_options(options, schema)
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        # A relative path is the driver's: the options are sent as resolved there.
        return {**self.__dict__, "_plan": self._plan, "_stream": self._stream}

    @cached_property
    def _plan(self) -> ReadPlan:
        return ReadPlan.parse(self._options)

    @cached_property
    def _columns(self) -> StructType:
        return without_split(self._schema) if self._plan.query.deferred else self._schema

    @cached_property
    def _stream(self) -> Stream:
        log_merge(self._plan)
        columns = to_arrow_columns(self._columns)
        inputs = stream_inputs(self._plan, columns, KINDS)
        return Stream(
            inputs,
            self._plan.query,
            heads=stream_heads(self._plan, inputs),
            offsets=stream_offsets(self._plan),
            columns=shared_columns(self._plan, columns),
        )

    # -- planning, on the driver --------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(work) for work in self._stream.splits(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(end)

    def stop(self) -> None:
        """Stop polling the inputs; Spark rarely calls it, so threads never keep a process alive."""
        if "_stream" in self.__dict__:
            self._stream.stop()

    # -- reading, in the tasks ----------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        work = decode_work(partition)
        if work is None:
            return
        splits = list(splits_of(work))
        if self._plan.query.deferred:
            schema = to_arrow_columns(self._schema)
            yield defer_reads(splits, self._plan.view.plan, schema)
            return
        context = TaskContext.get()
        refuse_own_epochs(splits, context.getLocalProperty(_QUERY_ID) if context else None)
        is_scan = all(isinstance(split, RowsSplit) for split in splits)
        yield from to_spark(self._stream.read(work), self._columns, is_scan=is_scan)


@called_by_spark
class SelfBoundedStreamReader(ChangeStreamReader):
    """A reader remembering its last batch's end, limited only by its options.

    PySpark 4.1 passes neither start, limit nor trigger: ``availableNow`` and ``once`` run one
    batch. After a restart Spark requests the partitions of the checkpoint's last batch first.
    """

    _last_end: dict[str, Any] | None = None
    """The last planned batch's end; None before the first one."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        start = self.initialOffset() if self._last_end is None else self._last_end
        self._last_end = dict(self._stream.latest(start))
        return self._last_end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._last_end = end
        return super().partitions(start, end)
