"""Extra columns of a command that make `table.state.fold` associative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TOMBSTONE, TableSchema
from spark_upsert.errors import DataError


def contributions(
    schema: TableSchema,
    columns: Mapping[str, pa.Array],
    order: Sequence[pa.Array],
    diffs: npt.NDArray[np.int8],
    own_order: Mapping[str, pa.Array],
) -> list[pa.Array]:
    """Return the additional run columns in a folding table."""
    deletes = diffs == TOMBSTONE
    if not schema.engine.takes_deletes and bool(deletes.any()):
        raise DataError(
            f"{int(deletes.sum())} rows are deletes, which mergeEngine="
            f"{schema.engine.kind.value} cannot apply.",
            hint="filter them out before the write, or use mergeEngine=deduplicate.",
        )
    contributed = []
    for name in schema.last_columns:
        column_order = own_order.get(name)
        keys = list(order) if column_order is None else [column_order]
        no_value = pc.or_(columns[name].is_null(), pa.array(deletes))
        if column_order is not None:
            _require_own_order(name, schema.engine, column_order, no_value)
        contributed.append(_keys(keys, no_value, schema))
    for name in schema.engine.column_order:
        no_value = pc.or_(columns[name].is_null(), pa.array(deletes))
        contributed.append(_keys(order, no_value, schema))
        contributed.append(pa.nulls(len(deletes), schema.older_type(name)))
    if schema.engine.kind is Engine.PARTIAL_UPDATE:
        contributed.append(_keys(order, pa.array(~deletes), schema) if order else pa.array(deletes))
    return contributed


def _keys(order: Sequence[pa.Array], absent: pa.Array, schema: TableSchema) -> pa.Array:
    """Return order keys as one column, null where there is none."""
    return pa.StructArray.from_arrays(list(order), fields=list(schema.order_type), mask=absent)


def _require_own_order(name: str, engine: MergeEngine, own: pa.Array, no_value: pa.Array) -> None:
    unordered = pc.and_not(own.is_null(), no_value)
    count = pc.sum(unordered).as_py() or 0
    if count:
        raise DataError(
            f"{count} values of column '{name}' have no order key: '{engine.column_order[name]}' "
            "is null beside them.",
            hint=f"fill '{engine.column_order[name]}', or set '{name}' to null there.",
            column=name,
        )


def as_collected(columns: pa.Schema, engine: MergeEngine) -> pa.Schema:
    """Return a schema in which collected columns are lists of the rows' types."""
    fields = [
        field.with_type(pa.list_(pa.field("element", field.type)))
        if engine.rule(field.name) is Rule.COLLECT
        else field
        for field in columns
    ]
    return pa.schema(fields)


def collected(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return each value as a one-element list with the field's element type, null as null."""
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=field.type, mask=mask)
