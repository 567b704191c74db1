"""Whole numbers of different widths that are equal: an int32 joins an int64 of the same value.

The plan casts neither side, because a cast would hide its index. A look-up brings its values to the
type of the side that it searches, and a value that does not fit there joins nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_upsert.conversions import convert, try_convert


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if they are not compared."""
    if one == other:
        return one
    is_whole = pa.types.is_integer(one) and pa.types.is_integer(other)
    return pa.int64() if is_whole and pa.uint64() not in (one, other) else None


def in_types(columns: Sequence[pa.Array], types: Sequence[pa.DataType | None]) -> list[pa.Array]:
    """Return key columns in the types in which they are compared, which are none narrower."""
    return [
        column if column.type == type_ else convert(column, type_)
        for column, type_ in zip(columns, types, strict=True)
    ]


def alike(one: Sequence[pa.Array], other: Sequence[pa.Array]) -> list[list[pa.Array]]:
    """Return columns of two sides, each two in their common type."""
    types = [common_type(a.type, b.type) for a, b in zip(one, other, strict=True)]
    assert None not in types, "checked when the plan was bound"
    return [in_types(side, types) for side in (one, other)]


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in the types of a schema, NULL where a whole number does not fit."""
    fields = [schema.field(name) for name in rows.schema.names]
    if all(own.type == field.type for own, field in zip(rows.schema, fields, strict=True)):
        return rows
    arrays = [try_convert(rows.column(field.name), field.type)[0] for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
