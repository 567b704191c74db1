"""Spark's writers of one table: plan on the driver, stage in tasks, commit exactly once.

A writer per micro-batch is pickled to tasks; a *fresh* writer commits or aborts from their messages
alone. A batch may be committed again, and ``abort`` may follow a successful commit.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_upsert.core.lru import LruMap
from spark_upsert.envelopes.write_plan import WritePlan, default_late_rows, plan_table_write
from spark_upsert.errors import (
    BatchTooLargeError,
    OptionError,
    TableFullError,
    ThrottledError,
    UpsertFlowError,
)
from spark_upsert.options.spark import called_by_spark
from spark_upsert.options.write import Operation, WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.table.compaction import SHARE, CompactionResult, Job, compact_runs
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet, overlaps, remove_runs
from spark_upsert_sink.types import require_storable, to_arrow_columns, with_list_offsets
from spark_upsert_sink.worker import (
    freeze_loaded_objects,
    query_of_task,
    read_deferred_rows,
    refuse_application,
    task_housekeeping,
    transaction_of_application,
    transaction_of_batch,
    transaction_of_task,
    without_split,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOGGER = logging.getLogger(__name__)


@dataclass
class StagedMessage(WriterCommitMessage):
    """One task's durable work, not yet visible.

    Spark reports the query id to tasks, but not to a stream's commit. So each message has it.
    """

    staged: StagedRuns
    unborn: Manifest | None
    """The table that this epoch creates, as planned on the driver with its hash seed."""
    compacted: tuple[CompactionResult, ...]
    task_index: int
    query_id: str | None


@contextmanager
def passing_pickle() -> Iterator[None]:
    """Let our errors pass Spark's serializer unchanged.

    Spark wraps all errors except pickling errors, so ours becomes a pickling error, too, with the
    same name and fields.
    """
    try:
        yield
    except UpsertFlowError as error:
        raise _as_pickling_error(error) from None


def _as_pickling_error(error: UpsertFlowError) -> UpsertFlowError:
    """Return a copy of an error that is also a pickling error."""
    rebuild, (cls, *arguments) = error.__reduce__()
    rebuilt = rebuild(_pickling_error_class(cls), *arguments)
    assert isinstance(rebuilt, UpsertFlowError)
    return rebuilt


@cache
def _pickling_error_class(cls: type[UpsertFlowError]) -> type[UpsertFlowError]:
    """Return a subclass that is also a pickling error; instances pickle as the original class."""

    def reduce_as_original(self: UpsertFlowError) -> tuple[Any, ...]:
        rebuild, (_, *arguments) = cls.__reduce__(self)
        return rebuild, (cls, *arguments)

    names = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__reduce__": reduce_as_original,
    }
    return type(cls.__name__, (cls, pickle.PickleError), names)


JOBS_MAX = 1024
"""Maximum compactions planned per epoch: they travel to every task. The others wait."""


@dataclass(frozen=True, kw_only=True)
class SinkPlan:
    """A Spark write's target, plan and additional work for its tasks. Picklable."""

    path: str
    """The path as resolved by the driver: a task may run in another folder."""
    storage: Mapping[str, str] = dataclass_field(repr=False)
    write: WritePlan
    jobs: tuple[Job, ...] = ()
    """Due compactions, divided among the tasks."""
    task_count: int = 1
    """About how many tasks there are: the file count of the newest epoch."""
    refusal: UpsertFlowError | None = None
    """Why the rows are refused, unless the table already contains them."""
    is_reference: bool = False
    """Whether the base's slices are left out; tasks read them from the log."""

    def for_tasks(self) -> SinkPlan:
        """Return the plan to be pickled: without the base's slices if there are many."""
        base = self.write.base
        if not base.slice_list.leaves:
            return self
        write = replace(self.write, base=replace(base, slices=()))
        return replace(self, write=write, is_reference=True)

    def with_slices(self) -> WritePlan:
        """Return the write's plan with the base's slices, in a task."""
        if not self.is_reference:
            return self.write
        base = self.table().log.at_planned(self.write.base.version_ref, "the batch")
        return replace(self.write, base=base)

    def table(self) -> Table:
        """Open the table, on the driver or in a task."""
        return Table(open_store(self.path, self.storage))

    def iter_share(self, task_index: int, staged_bytes: int) -> Iterator[Job]:
        """Yield a task's compactions: bounded by its own bytes, and one in the first task anyway.

        So compactions keep pace with the batch, and a small batch waits for one job at most. Tasks
        beyond the expected count do none: those jobs belong to others.
        """
        if task_index >= self.task_count:
            return
        bytes_left = SHARE * staged_bytes
        for number, job in enumerate(self.jobs[task_index :: self.task_count]):
            if number or task_index:
                bytes_left -= job.bytes
            if bytes_left < 0:
                return
            yield job


def plan_sink(
    options: WriteOptions,
    incoming: pa.Schema,
    *,
    overwrite: bool,
    transaction: Transaction | None = None,
) -> SinkPlan:
    """Plan a write on its table, and alter the table if allowed; the commit creates a new table.

    Parameters and errors are those of `spark_upsert.envelopes.write_plan.plan_table_write`; after an error
    the table is unchanged. If the table is full, the plan waits: it occupies no slot that a
    consumer may need.
    """
    table = Table(open_store(options.path, options.storage))
    write = plan_table_write(table, options, incoming)
    refusal = None
    if not (transaction is not None and write.base.has(transaction)):
        try:
            admission = table.admission(
                options.full_wait_ms,
                heeds_pressure=not options.disable_backpressure,
                waits_for_relief=True,
            )
            head = admission.require(write.base)
        except (TableFullError, BatchTooLargeError, ThrottledError) as error:
            refusal = error
        else:
            write = write if head is write.base else plan_table_write(table, options, incoming)
    jobs: list[Job] = []
    task_count = 0
    if not (overwrite or write.base.is_unborn):
        # The version used for the plan is new enough.
        jobs = table.compaction_jobs(look=table.log.cached_snapshot(), is_share=True)[:JOBS_MAX]
        base = write.base
        task_count = int(np.count_nonzero(base.columns.lower == base.changed)) if jobs else 0
    return SinkPlan(
        path=table.store.url,
        storage=options.storage,
        write=write,
        jobs=tuple(jobs),
        task_count=max(1, task_count),
        refusal=refusal,
    )


_Messages: TypeAlias = list[WriterCommitMessage | None]


@called_by_spark
class _Write:
    """A Spark write into one table, on the driver and in its tasks.

    It is planned when it is pickled for the tasks. The writer that Spark creates for a
    micro-batch's commit is never pickled.
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
        require_storable(schema)
        if overwrite and options.operation is Operation.DELETE:
            raise OptionError.conflict(
                "operation=delete",
                "mode=overwrite",
                why="the one takes rows away, the other replaces all",
                hint="write the keys with mode 'append'.",
            )
        self._options = options
        self._incoming = to_arrow_columns(schema)
        self._overwrite = overwrite
        self._late_rows = default_late_rows(options, late_rows)
        self._transaction = transaction
        self._is_stream = is_stream

    @cached_property
    def _plan(self) -> SinkPlan:
        """The write's plan, made once; for a batch write, raises the plan's refusal."""
        plan = plan_sink(
            self._options,
            self._incoming,
            overwrite=self._overwrite,
            transaction=self._transaction,
        )
        # A stream's driver does not know the batch id. Spark may repeat a batch that the table
        # already contains, which must succeed, so the tasks decide (`_is_uncommitted`).
        if plan.refusal is not None and not self._is_stream:
            raise plan.refusal
        return plan

    def __getstate__(self) -> dict[str, Any]:
        freeze_loaded_objects()
        with passing_pickle():
            return {**self.__dict__, "_plan": self._plan.for_tasks()}

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage this task's rows, and do its share of the compaction."""
        context = TaskContext.get()
        task_index = context.partitionId() if context else 0
        plan = self._plan
        if plan.refusal is not None and self._is_uncommitted():
            raise plan.refusal
        store, write = open_store(plan.path, plan.storage), plan.with_slices()
        view, query_id = self._options.deferred, query_of_task()
        if view is not None:
            batches = read_deferred_rows(batches, view, self._incoming, query_id)
        base = Snapshot(store, write.base)
        staged = stage(
            base,
            write.commands(base, with_list_offsets(batches)),
            overwrite=self._overwrite,
            late_rows=self._late_rows,
        )
        jobs = plan.iter_share(task_index, sum(file.bytes for file in staged.files))
        return StagedMessage(
            staged=staged,
            unborn=write.base if write.base.is_unborn else None,
            compacted=tuple(compact_runs(store, write.base, job) for job in jobs),
            task_index=task_index,
            query_id=query_id,
        )

    def _is_uncommitted(self) -> bool:
        """Return whether this stream batch is certainly not in the table yet.

        Spark reports the batch to its tasks, not to the driver. If a task has no batch id, the
        commit decides.
        """
        transaction = transaction_of_task()
        head = None if transaction is None else self._plan.table().log.try_head()
        return head is not None and transaction is not None and not head.has(transaction)

    def commit(self, messages: _Messages, transaction: Transaction | None) -> None:
        """Commit the tasks' staged rows as one epoch."""
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
            commit = table.commit(write_set, admission=table.admission(self._options.full_wait_ms))
        except (TableFullError, BatchTooLargeError):
            table.discard(write_set.staged, _compacted(messages))  # It was not tried.
            raise
        if commit is not None and not self._options.deferred:
            _warn_of_overlap(write_set.staged, table.store.url, transaction)
        table.commit_compactions(_compacted(messages))

    def abort(self, messages: _Messages) -> None:
        """Remove the tasks' staged files, unless a commit was attempted.

        Spark commits once every task has sent its message. A commit that raised an error may still
        take effect: its put may be in progress, and the log does not show it yet. If it has no
        effect, a vacuum removes its files. The vacuum first commits a *fence*, a version number:
        a write staged on an older version cannot commit afterwards (`Manifest.fence`).
        """
        has_failed_task = any(message is None for message in messages)
        if has_failed_task:
            store = self.table().store
            remove_runs(store, (file for staged in _staged(messages) for file in staged.files))
            added = (slice_ for compaction in _compacted(messages) for slice_ in compaction.added)
            remove_runs(store, (slice_.file for slice_ in added))

    def table(self) -> Table:
        """Open the table."""
        return Table(open_store(self._options.path, self._options.storage))

    def _base(self, table: Table, messages: _Messages) -> Manifest:
        """Return the tasks' base version; without tasks it is planned here."""
        for message in messages:
            if isinstance(message, StagedMessage) and message.unborn is not None:
                return message.unborn
        bases = {staged.base for staged in _staged(messages)}
        if not bases:
            return self._plan.write.base
        newest = max(bases, key=lambda base: base.version)
        snapshot = table.log.snapshot_at(newest)
        if snapshot is None:
            raise table.log.stored.other_table_error(newest, "no table", "the batch")
        with snapshot as look:  # The bases are in it, or the table is another one.
            for base in bases:
                look.require(base, "the batch")
            return look.at(min(base.version for base in bases))


def _staged(messages: _Messages) -> tuple[StagedRuns, ...]:
    """Return the tasks' staged runs, in task order; failed tasks have no message."""
    staged = [message for message in messages if isinstance(message, StagedMessage)]
    return tuple(m.staged for m in sorted(staged, key=lambda m: m.task_index))


def _compacted(messages: _Messages) -> list[CompactionResult]:
    """Return the tasks' compactions."""
    return [
        compaction for m in messages if isinstance(m, StagedMessage) for compaction in m.compacted
    ]


_OVERLAP_BYTES_MIN = 64 << 20
"""Overlapping bytes from which on a warning is useful: a shuffle costs less than it saves."""

_WARNED: LruMap[tuple[str, str], bool] = LruMap(1024)
"""Queries, by table, for which this process has warned about overlaps."""


def _warn_of_overlap(
    staged: Sequence[StagedRuns], url: str, transaction: Transaction | None
) -> None:
    """Log once per query that tasks wrote overlapping hash ranges, and the cost."""
    files = [file for staged_task in staged for file in staged_task.files]
    if sum(file.bytes for file in files) < _OVERLAP_BYTES_MIN:
        return
    groups = list(overlaps([file.hash_range for file in files], ()))
    overlapping = [files[index] for index in {index for _, group in groups for index in group}]
    written = sum(file.bytes for file in overlapping)
    query = None if transaction is None else (url, transaction.writer)
    if written < _OVERLAP_BYTES_MIN or (query is not None and _WARNED.get(query)):
        return
    if query is not None:
        _WARNED.put(query, True)
    _LOGGER.warning(
        "%s: the tasks of a batch wrote overlapping hash ranges (%d files, %d MB). So each task "
        "looked for its keys in the complete table, the commit compared the hashes of %d rows on "
        "the driver, and the files must be compacted. To avoid it, write "
        "upsertflow.by_hash(df, path) instead of df: one shuffle gives each task a hash range.",
        url,
        len(overlapping),
        written // 1_000_000,
        sum(file.rows for file in overlapping),
    )


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
        return transaction_of_application(self._options.app_id, self._options.app_version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with task_housekeeping():
            return self._write.stage(iterator)

    def commit(self, messages: _Messages) -> None:
        with task_housekeeping():
            self._write.commit(messages, self._transaction())

    def abort(self, messages: _Messages) -> None:
        self._write.abort(messages)


@called_by_spark
class UpsertStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as one epoch, identified by (query id, batch id)."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        parsed = WriteOptions.parse(options)
        refuse_application(parsed.app_id)
        self._checkpoint = parsed.checkpoint
        self._allow_missing = parsed.allow_missing_batches
        self._write = _Write(
            parsed, schema, overwrite=overwrite, late_rows=LateRows.REJECT, is_stream=True
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with task_housekeeping():
            return self._write.stage(iterator)

    def commit(self, messages: _Messages, batchId: int) -> None:
        # By one process as long as the query runs, which may look into runs, too (`moves`).
        with task_housekeeping():
            self._write.commit(messages, self._transaction(messages, batchId))

    def abort(self, messages: _Messages, batchId: int) -> None:
        self._write.abort(messages)

    def _transaction(self, messages: _Messages, batch_id: int) -> Transaction:
        ids = [m.query_id for m in messages if isinstance(m, StagedMessage) and m.query_id]
        return transaction_of_batch(
            ids[0] if ids else None,
            batch_id,
            checkpoint=self._checkpoint,
            allow_missing=self._allow_missing,
        )
