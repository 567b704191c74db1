"""Operators that hold no rows across a barrier, and not more than one batch within it.

Limits and unique numbers keep a counter over all barriers, which is the meaning of both.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_upsert.errors import DataError, PlanError
from spark_upsert.plan.nodes import AssignUniqueId, Limit, Unnest
from spark_upsert.plan.unnest import unnest, unnested_schema
from spark_upsert.task.operators.operator import Streaming

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
    """Return an operator that gives a row for each element of a list."""
    given = unnested_schema(node, schema)

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return unnest(node, batch, given).rows

    return Streaming(given, apply, batch_rows=node.batch_rows)


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
