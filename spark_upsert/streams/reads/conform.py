"""Batches of an input in the columns of the read: what they lack is null, narrower types widen."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_upsert.conversions import convert
from spark_upsert.model.names import has_column


def conformed(
    batches: Iterator[pa.RecordBatch], columns: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches with exactly these columns; None: as they are.

    Columns that the read does not have are left out.
    """
    if columns is None:
        yield from batches
        return
    for batch in batches:
        arrays = [_column(batch, field) for field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if not has_column(batch.schema, field.name):
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else convert(column, field.type)
