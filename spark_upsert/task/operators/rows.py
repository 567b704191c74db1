"""Operators that hold no rows across a barrier, and not more than one batch within it.

Limits and unique numbers keep a counter over all barriers, which is the meaning of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import DataError, PlanError
from spark_upsert.task.operators.operator import Streaming
from spark_upsert.task.plan import AssignUniqueId, Limit, Unnest

_INT64_END = 1 << 63


def limited(node: Limit, schema: pa.Schema) -> Streaming:
    """Return an operator that gives the rows behind the first few, up to a number of them.

    A barrier changes neither count.
    """
    skip, left = node.offset, node.count

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal skip, left
        part = batch.slice(skip, left)
        skip -= min(skip, batch.num_rows)
        left -= part.num_rows
        return part

    return Streaming(schema, apply, has_enough=lambda: not left)


def unnested(node: Unnest, schema: pa.Schema) -> Streaming:
    """Return an operator that gives a row for each element of a list.

    Raises
    ------
    PlanError
        The column is none of lists, or there is one already of the name of the places.
    """
    if node.column not in schema.names:
        raise PlanError.missing_column(node.column, schema.names)
    place = schema.get_field_index(node.column)
    kind = schema.field(place).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise PlanError(
            f"an unnest takes a column of lists, '{node.column}' is {kind}.",
            hint="name a column of lists.",
            column=node.column,
        )
    given = schema.set(place, pa.field(node.column, kind.value_type))
    if node.position is not None:
        if node.position in schema.names:
            raise PlanError(
                f"there is a column '{node.position}' already.",
                hint="give 'position' another name.",
                column=node.position,
            )
        given = given.append(pa.field(node.position, pa.int64(), nullable=False))

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        lists = batch[node.column]
        rows = pc.list_parent_indices(lists)
        elements = pc.list_flatten(lists)
        columns = [
            elements if name == node.column else batch[name].take(rows) for name in schema.names
        ]
        if node.position is not None:
            columns.append(pa.array(_places(rows.to_numpy())))
        return pa.RecordBatch.from_arrays(columns, schema=given)

    return Streaming(given, apply, batch_rows=node.batch_rows)


def _places(rows: Any) -> Any:
    """Return the place of each element in its own list; elements of a list are neighbours."""
    count = len(rows)
    begins = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]]) if count else np.zeros(0, np.int64)
    lengths = np.diff(np.append(begins, count))
    return np.arange(count) - np.repeat(begins, lengths)


def numbered(node: AssignUniqueId, schema: pa.Schema) -> Streaming:
    """Return an operator that gives each row a number, no two alike over all barriers.

    Raises
    ------
    PlanError
        There is a column of that name.
    """
    if node.column in schema.names:
        raise PlanError(
            f"there is a column '{node.column}' already.",
            hint="give 'column' another name.",
            column=node.column,
        )
    field = pa.field(node.column, pa.int64(), nullable=False)
    counter = node.first

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal counter
        end = counter + batch.num_rows
        if end > _INT64_END:
            raise DataError(
                f"the numbers in '{node.column}' have come to their end, 2**63.",
                hint="begin at a lower 'first'.",
            )
        numbers = pa.array(np.arange(counter, end, dtype=np.int64))
        counter = end
        return batch.append_column(field, numbers)

    return Streaming(schema.append(field), apply)
