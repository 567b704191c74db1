"""Housekeeping of a reused Spark worker (`task_housekeeping`), and write transactions (idempotence).

Collector and memory settings: docs/adr/0012.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.options.views import ViewOptions
from spark_upsert.plan.json import plan_from_json
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.reads.columns import conform_batches
from spark_upsert.streams.reads.read_split import refuse_own_epochs
from spark_upsert.streams.reads.views import ViewSplit, split_from_json, split_to_json
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.run.file import RUNS, frugal

_IS_USED_AGAIN = "SPARK_REUSE_WORKER"
"""Set by Spark if it reuses worker processes: `pyspark.daemon` reads it."""


@cache
def freeze_loaded_objects() -> None:
    """Exclude all present objects from garbage collection, if Spark reuses this process; once.

    Spark collects after each task, which would visit some 100 000 module objects (30 ms).
    """
    if _is_used_again():
        gc.collect()
        gc.freeze()


def release_memory() -> None:
    """Return freed memory to the system, if Spark reuses this process.

    Takes some 0.05 ms after a task with a few rows, 2 ms after 100 000.
    """
    if not _is_used_again():
        return
    pa.default_memory_pool().release_unused()
    # Only of glibc: its heaps grow with the largest arrays that were ever freed.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


@contextmanager
def task_housekeeping() -> Iterator[None]:
    """Run a Spark step: settled and frugal; afterwards freed memory is returned."""
    freeze_loaded_objects()
    with frugal():
        yield
    # Not after an error: its objects are still in use, and Spark ends the process.
    release_memory()


def _is_used_again() -> bool:
    return bool(os.environ.get(_IS_USED_AGAIN))


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def query_of_task() -> str | None:
    """Return this task's query id; None if Spark does not report it."""
    return _read_local_property(_QUERY_ID)


def transaction_of_task() -> Transaction | None:
    """Return the transaction for this task's batch; None if Spark does not report it."""
    query_id, batch_id = _read_local_property(_QUERY_ID), _read_local_property(_BATCH_ID)
    if not (query_id and batch_id):
        return None
    return Transaction(writer=Transaction.writer_of_query(query_id), number=int(batch_id))


def _read_local_property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def transaction_of_batch(
    query_id: str | None, batch_id: int, *, checkpoint: str | None, allow_missing: bool
) -> Transaction:
    """Return a batch's transaction, by the query id from its tasks, else by its checkpoint."""
    if query_id is None and not checkpoint:
        raise OptionError.missing(
            "checkpointLocation", "this session does not tell its tasks the query id"
        )
    # Spark numbers the batches of a query 0, 1, 2, ..., and writes each of them.
    return Transaction(
        writer=f"checkpoint:{checkpoint}"
        if query_id is None
        else Transaction.writer_of_query(query_id),
        number=batch_id,
        is_consecutive=not allow_missing,
    )


def transaction_of_application(app_id: str | None, version: int | None) -> Transaction | None:
    """Return a batch write's transaction; None if it has none."""
    if app_id is None or version is None:
        return None
    return Transaction(writer=Transaction.writer_of_app(app_id), number=version)


def refuse_application(app_id: str | None) -> None:
    """Raise if a stream has an application id."""
    if app_id is not None:
        raise OptionError(
            "options 'txnAppId' and 'txnVersion' are for batch writes.",
            hint="drop them: a stream is idempotent by its query id and batch id.",
        )


SPLIT = "_deferred_split"


def with_split(columns: StructType) -> StructType:
    """Return the columns for a deferred read: these, all nullable, and the split."""
    fields = [StructField(column.name, column.dataType) for column in columns]
    return StructType([*fields, StructField(SPLIT, BinaryType())])


def without_split(columns: StructType) -> StructType:
    """Return a deferred read's columns without the split."""
    if SPLIT not in columns.names:
        raise SchemaError(
            f"'deferred' is for what a deferred read gives; expected the column '{SPLIT}', found "
            f"{', '.join(columns.names)}.",
            hint="drop the option: a view sets it where it is kept ('keep').",
            column=SPLIT,
        )
    return StructType([column for column in columns if column.name != SPLIT])


def defer_reads(splits: Iterable[ViewSplit], plan: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row per split, with nulls in the other columns."""
    node = plan_from_json(plan)
    records = [split_to_json(split, node) for split in splits]
    extra = {SPLIT: pa.array(records, pa.binary())}
    arrays = [extra.get(field.name, pa.nulls(len(records), field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_deferred_rows(
    batches: Iterator[pa.RecordBatch],
    view: ViewOptions,
    columns: pa.Schema,
    query_id: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read deferred splits, and yield their rows split by split."""
    reader, plan = ViewInput(view), plan_from_json(view.plan)
    for batch in batches:
        _require_nothing_else(batch)
        for cell in batch.column(SPLIT):
            split = split_from_json(cell.as_py(), plan)
            refuse_own_epochs((split,), query_id)
            for rows in conform_batches(reader.read(split), columns):
                yield rows
                RUNS.trim(rows.num_rows)


def _require_nothing_else(batch: pa.RecordBatch) -> None:
    """Raise if a row has values outside the split column: they would not be written."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name != SPLIT and column.null_count < len(column):
            raise DataError(
                f"a row of a deferred read holds values in the column '{name}'; expected NULLs "
                f"beside '{SPLIT}'.",
                hint="drop 'deferred', which only 'keep' sets: then rows are written as they are.",
                column=name,
            )
