"""Spark's writers of many tables, by `spark_upsert.routed`; see also `writers`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.spark import called_by_spark
from spark_upsert.replication.stage import stage_changes
from spark_upsert.routed.commit import commit_routed, discard_routed
from spark_upsert.routed.plan import RoutedPlan, plan_routed, root_of
from spark_upsert.routed.stage import RoutedStaged, stage_routed
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert_sink.types import require_storable, to_arrow_columns, with_list_offsets
from spark_upsert_sink.worker import (
    freeze_loaded_objects,
    query_of_task,
    refuse_application,
    task_housekeeping,
    transaction_of_application,
    transaction_of_batch,
    transaction_of_task,
)
from spark_upsert_sink.writers import passing_pickle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOGGER = logging.getLogger(__name__)

_Messages: TypeAlias = Sequence[WriterCommitMessage | None]


@dataclass
class RoutedMessage(WriterCommitMessage):
    """One task's durable work, not yet visible, with its query's id."""

    staged: RoutedStaged
    query_id: str | None


@called_by_spark
class _RoutedWrite:
    """A Spark write into many tables, on the driver and in its tasks.

    It is planned when it is pickled for the tasks.
    """

    def __init__(
        self, options: RoutedOptions, schema: StructType, *, overwrite: bool, late_rows: LateRows
    ) -> None:
        require_storable(schema)
        self._options = options
        self._incoming = to_arrow_columns(schema)
        self._overwrite = overwrite
        self._late_rows = late_rows

    @cached_property
    def _plan(self) -> RoutedPlan:
        return plan_routed(
            self._options, self._incoming, overwrite=self._overwrite, late_rows=self._late_rows
        )

    def __getstate__(self) -> dict[str, Any]:
        freeze_loaded_objects()
        with passing_pickle():
            return {**self.__dict__, "_plan": self._plan}

    def stage(
        self, batches: Iterator[pa.RecordBatch], transaction: Transaction | None
    ) -> RoutedMessage:
        """Stage this task's rows, and do its share of the compaction."""
        context = TaskContext.get()
        stage = stage_changes if self._options.has_source_changes else stage_routed
        staged = stage(
            self._plan,
            root_of(self._options),
            with_list_offsets(batches),
            transaction,
            context.partitionId() if context else 0,
        )
        return RoutedMessage(staged=staged, query_id=query_of_task())

    def commit(self, messages: _Messages, transaction: Transaction | None) -> None:
        """Commit the tasks' staged rows as one epoch per table, and one epoch for the group."""
        freeze_loaded_objects()
        staged = _staged(messages)
        source = next((task.source for task in staged if task.source is not None), None)
        committed = commit_routed(
            root_of(self._options),
            self._options,
            staged,
            transaction,
            overwrite=self._overwrite,
            late_rows=self._late_rows,
            source=source,
        )
        if committed is not None and source is None and self._options.has_source_changes:
            _LOGGER.warning(
                "a batch has no position in the log of the database: write all rows of "
                "'upsertflow.postgres' as they are, without a filter"
            )

    def abort(self, messages: _Messages) -> None:
        """Remove the tasks' staged files, unless a commit was attempted."""
        if any(message is None for message in messages):
            discard_routed(root_of(self._options), _staged(messages))


def _staged(messages: _Messages) -> list[RoutedStaged]:
    return [message.staged for message in messages if isinstance(message, RoutedMessage)]


@called_by_spark
class RoutedBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one epoch for each table with rows in it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        parsed = RoutedOptions.parse(options)
        self._transaction = transaction_of_application(parsed.app_id, parsed.app_version)
        self._write = _RoutedWrite(parsed, schema, overwrite=overwrite, late_rows=LateRows.FAIL)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with task_housekeeping():
            return self._write.stage(iterator, self._transaction)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._write.commit(messages, self._transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._write.abort(messages)


@called_by_spark
class RoutedStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as one epoch for each table with rows in it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        parsed = RoutedOptions.parse(options)
        refuse_application(parsed.app_id)
        self._checkpoint = parsed.checkpoint
        self._allow_missing = parsed.allow_missing_batches
        self._write = _RoutedWrite(parsed, schema, overwrite=overwrite, late_rows=LateRows.REJECT)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with task_housekeeping():
            return self._write.stage(iterator, transaction_of_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        ids = [m.query_id for m in messages if isinstance(m, RoutedMessage) and m.query_id]
        transaction = transaction_of_batch(
            ids[0] if ids else None,
            batchId,
            checkpoint=self._checkpoint,
            allow_missing=self._allow_missing,
        )
        self._write.commit(messages, transaction)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._write.abort(messages)
