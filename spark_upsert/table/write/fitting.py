"""Fitting: columns of rows cast to the types of their table, and the rows with values that do not.

A value that does not fit is treated like one that could not be decoded: the table's error policy
decides. A type without any value that could fit is an error of the write, under every policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions import range_of, try_convert
from spark_upsert.errors import SchemaError
from spark_upsert.model.arrays import Mask
from spark_upsert.model.engines import Rule
from spark_upsert.model.schema import TableSchema
from spark_upsert.table.write.contributions import collected


@dataclass(frozen=True, slots=True)
class Fitted:
    """What fits, null where it does not. Reasons are texts, null where all is well; None: nowhere.

    A reason depends on the column alone, so that a replay gives the same one.
    """

    columns: Mapping[str, pa.Array]
    """The table's columns that the rows have."""
    order: Sequence[pa.Array]
    own_order: Mapping[str, pa.Array]
    bad_keys: pa.Array | None
    bad_values: pa.Array | None
    bad_order: pa.Array | None


def fit(
    schema: TableSchema,
    columns: Mapping[str, pa.Array],
    order: Sequence[pa.Array],
    own_order: Mapping[str, pa.Array],
) -> Fitted:
    """Convert the columns of n rows; parameters as `Decoded` has them.

    Raises
    ------
    SchemaError
        No value of a column's type is one of the table's.
    """
    keys, values, ranks = _Reasons(), _Reasons(), _Reasons()
    found = {}
    for own in schema.columns:
        column = columns.get(own.name)
        if column is not None:
            reasons = keys if own.name in schema.keys else values
            found[own.name] = _fit(column, own, schema, reasons)
    found_order = [
        _converted(column, own, own.type, ranks)
        for column, own in zip(order, schema.order, strict=True)
    ]
    # An order of one column is missed beside that column only: it makes a bad value.
    found_own = {
        name: _converted(column, schema.order[0], schema.order[0].type, values)
        for name, column in own_order.items()
    }
    return Fitted(found, found_order, found_own, keys.texts, values.texts, ranks.texts)


class _Reasons:
    """Why rows do not fit: what is said first stays."""

    def __init__(self) -> None:
        self.texts: pa.Array | None = None

    def note(self, bad: Mask, own: pa.Field, type_: pa.DataType) -> None:
        if not bad.any():
            return
        reason = f"column '{own.name}' holds what is no {type_}{range_of(type_)}"
        found = pc.if_else(pa.array(bad), reason, pa.scalar(None, pa.string()))
        self.texts = found if self.texts is None else pc.coalesce(self.texts, found)


def _fit(column: pa.Array, own: pa.Field, schema: TableSchema, reasons: _Reasons) -> pa.Array:
    """Return a column in the type of the table's."""
    is_collected = schema.engine.rule(own.name) is Rule.COLLECT
    if is_collected and not pa.types.is_list(column.type):
        return collected(_converted(column, own, own.type.value_type, reasons), own)
    return _converted(column, own, own.type, reasons)


def _converted(column: pa.Array, own: pa.Field, type_: pa.DataType, reasons: _Reasons) -> pa.Array:
    try:
        found, bad = try_convert(column, type_)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column '{own.name}' of type {column.type!s:.200} cannot be stored as {type_!s:.200}: "
            f"{error}.",
            hint="cast the column before the write.",
            column=own.name,
        ) from error
    reasons.note(bad, own, type_)
    return found
