"""Spark's Arrow writers: stage in the tasks, seal on the driver, exactly once.

The driver makes a writer per micro-batch and ships it to the tasks. Each task writes one run
and answers with a message. A *fresh* writer then commits or aborts: nothing but the messages
connects the two. The same batch may be committed again after a failure or a restart: the log is
asked each time. And ``abort`` may follow a commit that succeeded, or that is still under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_upsert.envelopes.write_plan import usual_late_rows
from spark_upsert.errors import BatchTooLargeError, OptionError, TableFullError
from spark_upsert.options.hints import called_by_spark
from spark_upsert.options.write import Operation, WriteOptions
from spark_upsert.store.resolve import open_store
from spark_upsert.table.compaction import Compacted, compact_runs
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.tombstones import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.scratch import remove_runs
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import Staged, WriteSet
from spark_upsert_sink.deferred import rows_behind, without_split
from spark_upsert_sink.messages import StagedMessage
from spark_upsert_sink.passing import passing_pickle
from spark_upsert_sink.plan import SinkPlan, plan_sink
from spark_upsert_sink.releases import arrow_of, sound
from spark_upsert_sink.transactions import (
    of_application,
    of_batch,
    of_task,
    query_of_task,
    refuse_application,
)
from spark_upsert_sink.types import require_kept
from spark_upsert_sink.worker import settle_in, task

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_Messages: TypeAlias = list[WriterCommitMessage | None]


@called_by_spark
class _Write:
    """One write of Spark's, on the driver and in its tasks.

    It is planned when it is about to travel to the tasks, that is, when it is pickled: the writer
    that Spark makes anew for the commit of a micro-batch never is.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        *,
        overwrite: bool,
        late_rows: LateRows,
        transaction: Transaction | None = None,
        is_stream: bool = False,
    ) -> None:
        if options.deferred:
            schema = without_split(schema)
        require_kept(schema)
        if overwrite and options.operation is Operation.DELETE:
            raise OptionError.conflict(
                "operation=delete",
                "mode=overwrite",
                why="the one takes rows away, the other replaces all",
                hint="write the keys with mode 'append'.",
            )
        self._options = options
        self._incoming = arrow_of(schema)
        self._overwrite = overwrite
        self._late_rows = usual_late_rows(options, late_rows)
        self._transaction = transaction
        self._is_stream = is_stream

    @cached_property
    def _plan(self) -> SinkPlan:
        plan = plan_sink(
            self._options,
            self._incoming,
            overwrite=self._overwrite,
            transaction=self._transaction,
        )
        if plan.refusal is not None and not self._is_stream:
            raise plan.refusal
        return plan

    def __getstate__(self) -> dict[str, Any]:
        settle_in()
        with passing_pickle():
            return {**self.__dict__, "_plan": self._plan}

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of this task and do its share of the compaction.

        Raises
        ------
        TableFullError, ThrottledError
            There was no room when the write was planned, or no relief; nothing is staged.
        """
        context = TaskContext.get()
        task_index = context.partitionId() if context else 0
        plan, write = self._plan, self._plan.write
        if plan.refusal is not None and self._is_due():
            raise plan.refusal
        store = open_store(plan.path, plan.storage)
        view, query_id = self._options.deferred, query_of_task()
        if view is not None:
            batches = rows_behind(batches, view, self._incoming, query_id)
        base = Snapshot(store, write.base)
        staged = stage(
            base,
            write.commands(base, sound(batches)),
            overwrite=self._overwrite,
            late_rows=self._late_rows,
        )
        jobs = plan.jobs[task_index : task_index + 1]
        return StagedMessage(
            staged=staged,
            unborn=write.base if write.base.is_unborn else None,
            compacted=tuple(compact_runs(store, write.base, job) for job in jobs),
            task_index=task_index,
            query_id=query_id,
        )

    def _is_due(self) -> bool:
        """Return whether this batch of a stream is certainly not in the table yet.

        Spark's driver does not say which batch it plans, its tasks do. If they do not, the commit
        will judge.
        """
        transaction = of_task()
        head = None if transaction is None else self._plan.table().log.try_head()
        return head is not None and transaction is not None and not head.has(transaction)

    def commit(self, messages: _Messages, transaction: Transaction | None) -> None:
        """Make what the tasks staged one epoch."""
        table = self.table()
        write_set = WriteSet(
            base=Snapshot(table.store, self._base(table, messages)),
            staged=_staged(messages),
            transactions=() if transaction is None else (transaction,),
            overwrite=self._overwrite,
            allow_unordered=self._options.allow_unordered,
            late_rows=self._late_rows,
        )
        try:
            table.commit(write_set, admission=table.admission(self._options.full_wait_ms))
        except (TableFullError, BatchTooLargeError):
            table.discard(write_set.staged, _compacted(messages))  # It was not tried.
            raise
        table.commit_compactions(_compacted(messages))

    def abort(self, messages: _Messages) -> None:
        """Remove what the tasks staged, unless a commit of it was tried.

        Spark commits once every task has answered. A commit that raised may still take effect, as
        long as its put is under way somewhere, so that the log of this moment cannot tell: its
        files are left to a vacuum; no such put comes through behind a vacuum's frontier.
        """
        if any(message is None for message in messages):
            store = self.table().store
            remove_runs(store, (file for each in _staged(messages) for file in each.files))
            added = (slice_ for each in _compacted(messages) for slice_ in each.added)
            remove_runs(store, (slice_.file for slice_ in added))

    def table(self) -> Table:
        """Open the table."""
        return Table(open_store(self._options.path, self._options.storage))

    def _base(self, table: Table, messages: _Messages) -> Manifest:
        """Return the table that the tasks staged upon; a batch without tasks has none of its own."""
        for message in messages:
            if isinstance(message, StagedMessage) and message.unborn is not None:
                return message.unborn
        bases = {each.base for each in _staged(messages)}
        if not bases:
            return self._plan.write.base
        newest = max(bases, key=lambda base: base.version)
        seen = table.log.look_at(newest)
        if seen is None:
            raise table.log.stored.other(newest, "no table", "the batch")
        with seen as look:  # The bases are in it, or the table is another one.
            for base in bases:
                look.require(base, "the batch")
            return look.at(min(base.version for base in bases))


def _staged(messages: _Messages) -> tuple[Staged, ...]:
    """Return what the tasks staged, in the order of the tasks; failed tasks have no message."""
    found = [message for message in messages if isinstance(message, StagedMessage)]
    return tuple(m.staged for m in sorted(found, key=lambda m: m.task_index))


def _compacted(messages: _Messages) -> list[Compacted]:
    """Return what the tasks compacted."""
    return [each for m in messages if isinstance(m, StagedMessage) for each in m.compacted]


@called_by_spark
class UpsertBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one epoch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = WriteOptions.parse(options)
        if self._options.deferred:
            raise OptionError(
                "option 'deferred' is of streams.",
                hint="drop it: a view sets it where it is kept ('keep').",
                option="deferred",
            )
        self._write = _Write(
            self._options,
            schema,
            overwrite=overwrite,
            late_rows=LateRows.FAIL,
            transaction=self._transaction(),
        )

    def _transaction(self) -> Transaction | None:
        return of_application(self._options.app_id, self._options.app_version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with task():
            return self._write.stage(iterator)

    def commit(self, messages: _Messages) -> None:
        with task():
            self._write.commit(messages, self._transaction())

    def abort(self, messages: _Messages) -> None:
        self._write.abort(messages)


@called_by_spark
class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch of a query as one epoch, identified by (query id, batch id)."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        parsed = WriteOptions.parse(options)
        refuse_application(parsed.app_id)
        self._checkpoint = parsed.checkpoint
        self._allow_missing = parsed.allow_missing_batches
        self._write = _Write(
            parsed, schema, overwrite=overwrite, late_rows=LateRows.REJECT, is_stream=True
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with task():
            return self._write.stage(iterator)

    def commit(self, messages: _Messages, batchId: int) -> None:
        # By one process as long as the query runs, which may look into runs, too (`moves`).
        with task():
            self._write.commit(messages, self._transaction(messages, batchId))

    def abort(self, messages: _Messages, batchId: int) -> None:
        self._write.abort(messages)

    def _transaction(self, messages: _Messages, batch_id: int) -> Transaction:
        ids = [m.query_id for m in messages if isinstance(m, StagedMessage) and m.query_id]
        return of_batch(
            ids[0] if ids else None,
            batch_id,
            checkpoint=self._checkpoint,
            allow_missing=self._allow_missing,
        )
