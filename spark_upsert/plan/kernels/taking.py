"""Rows by their places, some of which may be nowhere: what joins and pairs are put together of."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_upsert.model.arrays import Positions
from spark_upsert.plan.kernels.equal_keys import NOWHERE


def values_at(columns: Sequence[pa.Array], places: Positions) -> list[pa.Array]:
    """Return the values at some places; NULL for `NOWHERE`."""
    absent = places == NOWHERE
    indices = pa.array(places, mask=absent if bool(absent.any()) else None)
    return [column.take(indices) for column in columns]


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return no rows with some columns."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
