"""The columns about a merge, behind all others: which input a row is from, and its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.errors import SchemaError
from spark_upsert.model.names import has_column
from spark_upsert.options.query import INPUT, MERGE_SEQ

_FIELDS = {
    INPUT: pa.field(INPUT, pa.string(), nullable=False),
    MERGE_SEQ: pa.field(MERGE_SEQ, pa.int64(), nullable=False),
}


def merge_fields(columns: Sequence[str]) -> list[pa.Field]:
    """Return the fields of the columns that are asked for."""
    return [_FIELDS[name] for name in columns]


def without_merge_columns(planned: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return what the inputs have of the columns of a read."""
    return pa.schema([field for field in planned if field.name not in columns])


def require_free(own: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse columns of inputs under a name that the merge is to give.

    Raises
    ------
    SchemaError
        There is one.
    """
    for name in columns:
        if has_column(own, name):
            raise SchemaError(
                f"the inputs have a column '{name}' of their own, and 'mergeColumns' asks for it.",
                hint="drop it from 'mergeColumns', or leave theirs out by 'columns'.",
                column=name,
            )


def with_input(
    batches: Iterator[pa.RecordBatch], name: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an input, with its name if that is asked for."""
    for batch in batches:
        if INPUT in columns:
            batch = batch.append_column(_FIELDS[INPUT], pa.repeat(name, batch.num_rows))
        yield batch


def with_numbers(
    batches: Iterator[pa.RecordBatch], first: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with the numbers of their rows, from the first on, if they are asked for."""
    for batch in batches:
        if MERGE_SEQ in columns:
            numbers = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
            batch = batch.append_column(_FIELDS[MERGE_SEQ], numbers)
        first += batch.num_rows
        yield batch
