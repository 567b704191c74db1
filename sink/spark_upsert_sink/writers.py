"""Spark's Arrow writers: stage in the tasks, seal on the driver, exactly once.

The driver makes a writer per micro-batch and ships it to the tasks. Each task writes one run
and answers with a message. A *fresh* writer then commits or aborts: nothing but the messages
connects the two. The same batch may be committed again after a failure or a restart, and
``abort`` may follow a commit that succeeded; the log is asked each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from spark_upsert.errors import OptionError
from spark_upsert.options.hints import called_by_spark
from spark_upsert.options.write import WriteOptions
from spark_upsert.state.compaction import Merged, merge
from spark_upsert.state.log.manifest import Manifest, Transaction
from spark_upsert.state.run.frugal import frugal
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.state.tombstones import LateRows
from spark_upsert.store import open_store
from spark_upsert.table import Table
from spark_upsert.upsert.stage import Staged, stage
from spark_upsert.upsert.write_set import WriteSet
from spark_upsert_sink.messages import StagedMessage
from spark_upsert_sink.plan import WritePlan, plan_write
from spark_upsert_sink.types import require_kept

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY_ID = "sql.streaming.queryId"


def _plan(
    options: WriteOptions, schema: StructType, *, overwrite: bool, late_rows: LateRows
) -> WritePlan:
    require_kept(schema)
    incoming = to_arrow_schema(schema, timezone="UTC")
    return plan_write(options, incoming, overwrite=overwrite, late_rows=late_rows)


def _stage(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
    """Stage the rows of this task and do its share of the compaction."""
    context = TaskContext.get()
    task_index = context.partitionId() if context else 0
    store = open_store(plan.path, plan.storage)
    commands = (plan.envelope.commands(batch) for batch in batches)
    staged = stage(
        Snapshot(store, plan.base), commands, overwrite=plan.overwrite, late_rows=plan.late_rows
    )
    jobs = plan.jobs[task_index : task_index + 1]
    return StagedMessage(
        staged=staged,
        unborn=plan.base if plan.base.is_unborn else None,
        merges=tuple(merge(store, plan.base, job) for job in jobs),
        task_index=task_index,
        query_id=context.getLocalProperty(_QUERY_ID) if context else None,
    )


def _staged(messages: list[WriterCommitMessage | None]) -> tuple[Staged, ...]:
    """Return what the tasks staged, in the order of the tasks; failed tasks have no message."""
    found = [message for message in messages if isinstance(message, StagedMessage)]
    return tuple(m.staged for m in sorted(found, key=lambda m: m.task_index))


def _merges(messages: list[WriterCommitMessage | None]) -> list[Merged]:
    """Return what the tasks merged."""
    return [merged for m in messages if isinstance(m, StagedMessage) for merged in m.merges]


def _base(plan: WritePlan, table: Table, messages: list[WriterCommitMessage | None]) -> Manifest:
    """Return the table that the tasks staged upon.

    A stream's commit is planned anew: others may have committed since the tasks counted, or the
    table may be another one.
    """
    for message in messages:
        if isinstance(message, StagedMessage) and message.unborn is not None:
            return message.unborn
    bases = {part.base for part in _staged(messages)}
    for base in bases:
        table.log.require(base, "the batch")
    version = min((base.version for base in bases), default=plan.base.version)
    return plan.base if version == plan.base.version else table.log.at(version)


def _commit(
    plan: WritePlan, messages: list[WriterCommitMessage | None], transaction: Transaction | None
) -> None:
    table = plan.table()
    base = _base(plan, table, messages)
    table.commit(
        WriteSet(
            base=Snapshot(table.store, base),
            staged=_staged(messages),
            transactions=() if transaction is None else (transaction,),
            overwrite=plan.overwrite,
            allow_unordered=plan.allow_unordered,
            late_rows=plan.late_rows,
        )
    )
    table.commit_merges(_merges(messages))


def _abort(plan: WritePlan, messages: list[WriterCommitMessage | None]) -> None:
    plan.table().discard(_staged(messages), _merges(messages))


@called_by_spark
class UpsertBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one epoch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = WriteOptions.parse(options)
        self._plan = _plan(self._options, schema, overwrite=overwrite, late_rows=LateRows.FAIL)

    def _transaction(self) -> Transaction | None:
        app_id, version = self._options.app_id, self._options.app_version
        if app_id is None or version is None:
            return None
        return Transaction(writer=f"app:{app_id}", number=version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with frugal():
            return _stage(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._plan, messages, self._transaction())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._plan, messages)


@called_by_spark
class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch of a query as one epoch, identified by (query id, batch id)."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        parsed = WriteOptions.parse(options)
        if parsed.app_id is not None:
            raise OptionError(
                "options 'txnAppId' and 'txnVersion' are for batch writes.",
                hint="drop them: a stream is idempotent by its query id and batch id.",
            )
        self._checkpoint = parsed.checkpoint
        self._allow_missing = parsed.allow_missing_batches
        self._plan = _plan(parsed, schema, overwrite=overwrite, late_rows=LateRows.REJECT)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with frugal():
            return _stage(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._plan, messages, self._transaction(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._plan, messages)

    def _transaction(
        self, messages: list[WriterCommitMessage | None], batch_id: int
    ) -> Transaction:
        ids = [m.query_id for m in messages if isinstance(m, StagedMessage) and m.query_id]
        if not ids and not self._checkpoint:
            raise OptionError.missing(
                "checkpointLocation", "this session does not tell its tasks the query id"
            )
        # Spark numbers the batches of a query 0, 1, 2, ..., and writes each of them.
        return Transaction(
            writer=f"query:{ids[0]}" if ids else f"checkpoint:{self._checkpoint}",
            number=batch_id,
            is_consecutive=not self._allow_missing,
        )
