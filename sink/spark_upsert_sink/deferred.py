"""Deferred reads: a reader returns one row per split, and the writer's task reads its rows.

So the rows of a view do not pass through Java. The writer's options name the view, so that a row
can name no other (docs/adr/0037).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_upsert.errors import DataError, SchemaError
from spark_upsert.options.views import ViewOptions
from spark_upsert.plan.json import plan_from_json
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.reads.columns import conformed
from spark_upsert.streams.reads.views import ViewSplit, split_from_json, split_to_json
from spark_upsert.streams.reads.work import refuse_own_epochs
from spark_upsert.table.run.file import RUNS

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
