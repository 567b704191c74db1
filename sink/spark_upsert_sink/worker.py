"""Housekeeping of a reused Spark worker (`task`), and transactions that make writes idempotent.

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
from spark_upsert.streams.reads.columns import conformed
from spark_upsert.streams.reads.read_split import refuse_own_epochs
from spark_upsert.streams.reads.views import ViewSplit, split_from_json, split_to_json
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.run.file import RUNS, frugal

_IS_USED_AGAIN = "SPARK_REUSE_WORKER"
"""Set by Spark where it keeps processes for the next task: what `pyspark.daemon` goes by."""


@cache
def settle_in() -> None:
    """Exclude all present objects from garbage collection, if Spark uses this process again; once.

    Spark collects after each task, which would visit some 100 000 objects of modules (30 ms).
    """
    if _is_used_again():
        gc.collect()
        gc.freeze()


def give_back() -> None:
    """Give back to the system what was allocated and freed, if Spark uses this process again.

    Some 0.05 ms behind a task of a few rows, 2 ms behind one of 100 000.
    """
    if not _is_used_again():
        return
    pa.default_memory_pool().release_unused()
    # Only of glibc: its heaps grow with the largest arrays that were ever freed.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


@contextmanager
def task() -> Iterator[None]:
    """Do a step of Spark's within: settled, frugally, and behind it what was freed is given back."""
    settle_in()
    with frugal():
        yield
    # Not behind an error: what it refers to is not freed yet, and Spark ends the process.
    give_back()


def _is_used_again() -> bool:
    return bool(os.environ.get(_IS_USED_AGAIN))


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def query_of_task() -> str | None:
    """Return the id of this task's query; None if Spark does not say."""
    return _told(_QUERY_ID)


def of_task() -> Transaction | None:
    """Return the batch of this task's query; None if Spark does not say."""
    query_id, batch_id = _told(_QUERY_ID), _told(_BATCH_ID)
    if not (query_id and batch_id):
        return None
    return Transaction(writer=Transaction.writer_of_query(query_id), number=int(batch_id))


def _told(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def of_batch(
    query_id: str | None, batch_id: int, *, checkpoint: str | None, allow_missing: bool
) -> Transaction:
    """Return the transaction of a batch, by what its tasks and the options say of its query."""
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


def of_application(app_id: str | None, version: int | None) -> Transaction | None:
    """Return the transaction of a batch write, None if it has none."""
    if app_id is None or version is None:
        return None
    return Transaction(writer=Transaction.writer_of_app(app_id), number=version)


def refuse_application(app_id: str | None) -> None:
    """Refuse the name of an application for a stream."""
    if app_id is not None:
        raise OptionError(
            "options 'txnAppId' and 'txnVersion' are for batch writes.",
            hint="drop them: a stream is idempotent by its query id and batch id.",
        )


SPLIT = "_deferred_split"


def with_split(columns: StructType) -> StructType:
    """Return the columns of a deferred read of some columns."""
    fields = [StructField(column.name, column.dataType) for column in columns]
    return StructType([*fields, StructField(SPLIT, BinaryType())])


def without_split(columns: StructType) -> StructType:
    """Return the columns that a deferred read is of."""
    if SPLIT not in columns.names:
        raise SchemaError(
            f"'deferred' is for what a deferred read gives; expected the column '{SPLIT}', found "
            f"{', '.join(columns.names)}.",
            hint="drop the option: a view sets it where it is kept ('keep').",
            column=SPLIT,
        )
    return StructType([column for column in columns if column.name != SPLIT])


def put_off(splits: Iterable[ViewSplit], plan: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows that stand for the rows of some splits."""
    node = plan_from_json(plan)
    records = [split_to_json(split, node) for split in splits]
    extra = {SPLIT: pa.array(records, pa.binary())}
    arrays = [extra.get(field.name, pa.nulls(len(records), field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_behind(
    batches: Iterator[pa.RecordBatch],
    view: ViewOptions,
    columns: pa.Schema,
    query_id: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that were put off, split by split."""
    reader, plan = ViewInput(view), plan_from_json(view.plan)
    for batch in batches:
        _require_nothing_else(batch)
        for cell in batch.column(SPLIT):
            split = split_from_json(cell.as_py(), plan)
            refuse_own_epochs((split,), query_id)
            for rows in conformed(reader.read(split), columns):
                yield rows
                RUNS.settle(rows.num_rows)


def _require_nothing_else(batch: pa.RecordBatch) -> None:
    """Refuse rows that are more than a split: they would not be written."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name != SPLIT and column.null_count < len(column):
            raise DataError(
                f"a row of a deferred read holds values in the column '{name}'; expected NULLs "
                f"beside '{SPLIT}'.",
                hint="drop 'deferred', which only 'keep' sets: then rows are written as they are.",
                column=name,
            )
