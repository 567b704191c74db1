"""Reads that are put off: what a task is to read goes through Spark, and its rows do not.

Where a stream of ours is written into a table of ours as it is, Spark is to say who reads what, and
when: it need not carry the rows from one process of Python through Java to the next. With
``deferred`` the reader gives one row for each split, of nothing but NULLs and, in `SPLIT`, the
pickled read; the writer's task, to which Spark hands that row, reads and stages in one. A split is
what it was, a function of two offsets, so that a task that is run again does the same again.

Only `keep` asks for it. What is unpickled was pickled by a reader of ours in the same job.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_upsert.errors import SchemaError

SPLIT = "_deferred_split"


class Deferrable(Protocol):
    """What reads a split later."""

    def rows(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in the types of `without_split`."""
        ...


def with_split(columns: StructType) -> StructType:
    """Return the columns of a deferred read of some columns."""
    fields = [StructField(each.name, each.dataType) for each in columns]
    return StructType([*fields, StructField(SPLIT, BinaryType())])


def without_split(columns: StructType) -> StructType:
    """Return the columns that a deferred read is of.

    Raises
    ------
    SchemaError
        It is no deferred read.
    """
    if SPLIT not in columns.names:
        raise SchemaError(
            f"'deferred' is for what a deferred read gives; expected the column '{SPLIT}', found "
            f"{', '.join(columns.names)}.",
            hint="drop the option: a view sets it where it is kept ('keep').",
            column=SPLIT,
        )
    return StructType([each for each in columns if each.name != SPLIT])


def put_off(reader: Deferrable, partition: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the row that stands for the rows of a partition.

    Parameters
    ----------
    reader : Deferrable
    partition : object
    schema : pyarrow.Schema
        As Spark expects it, `SPLIT` included.
    """
    own = {SPLIT: pa.array([pickle.dumps((reader, partition))], pa.binary())}
    arrays = [own.get(field.name, pa.nulls(1, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_behind(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that were put off, split by split."""
    for batch in batches:
        for cell in batch.column(SPLIT):
            reader, partition = pickle.loads(cell.as_py())
            yield from reader.rows(partition)
