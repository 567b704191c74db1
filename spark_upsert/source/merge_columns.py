"""The columns about a merge, which stand behind all others: which input a row is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_upsert.errors import SchemaError

INPUT = "_input"

MERGE_FIELDS = {INPUT: pa.field(INPUT, pa.string(), nullable=False)}


def merge_fields(columns: Sequence[str]) -> list[pa.Field]:
    """Return the fields of the columns that are asked for."""
    return [MERGE_FIELDS[name] for name in columns]


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
        if name in own.names:
            raise SchemaError(
                f"the inputs have a column '{name}' of their own, and 'mergeColumns' asks for it.",
                hint="drop it from 'mergeColumns', or leave theirs out by 'columns'.",
                column=name,
            )


def with_merge_columns(
    batches: Iterator[pa.RecordBatch], name: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an input with the columns that are asked for."""
    for batch in batches:
        if INPUT in columns:
            batch = batch.append_column(MERGE_FIELDS[INPUT], pa.repeat(name, batch.num_rows))
        yield batch
