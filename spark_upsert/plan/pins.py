"""The values that a condition pins a column to: where it can be true, and nowhere else.

    pins_of("id IN (1, 2) AND region = 'eu' AND n > 3", schema)
    # {"id": [1, 2], "region": ["eu"]}

A row that has another value than these cannot be among those for which the condition is true. Rows
that have them may not be either: the condition itself still judges them. So a part that is not
understood pins nothing, and costs time but no answer.

A row that the pins rule out is not looked at: an error that the condition has for it, such as a
division by zero, does not come, as it would not behind an AND that is decided.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions import UnfitError, convert
from spark_upsert.errors import SchemaError
from spark_upsert.model.names import find_in_schema
from spark_upsert.plan.casts import kind_of
from spark_upsert.plan.expressions import constant
from spark_upsert.plan.sql import Call, ColumnName, Tree, parse_sql

Pins = Mapping[str, pa.Array]
"""By column, the values that it may have: each once, of the column's type, none of them null."""

_NUMBERS = frozenset({"whole", "decimal"})
"""Kinds that are compared exactly with each other; a float is compared with the nearest one."""

_OWN = frozenset({"truth", "text", "bytes", "date", "moment", "naive"})
"""Kinds that are compared with their own alone."""


def pins_of(condition: str, schema: pa.Schema) -> Pins:
    """Return the columns that a condition pins, with their values.

    Parameters
    ----------
    condition : str
        SQL that `expressions.bind_condition` takes for the schema.
    schema : pyarrow.Schema
    """
    return _pins(parse_sql(condition), schema)


def values_of(values: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Return the values of a column's type that equal some others; None if that is not known.

    Parameters
    ----------
    values : pyarrow.Array
    type_ : pyarrow.DataType
        Of the column. A value that it does not have is left out: no row equals it.

    Returns
    -------
    pyarrow.Array or None
        Each once, none of them null.
    """
    kinds = {kind_of(values.type), kind_of(type_)}
    if kind_of(values.type) == "nothing":
        return pa.array([], type_)
    if not (kinds <= _NUMBERS or (len(kinds) == 1 and kinds <= _OWN)):
        return None
    found = [_converted(each, type_) for each in values if each.is_valid]
    kept = [each for each in found if each is not None]
    return pc.unique(pa.concat_arrays(kept)) if kept else pa.array([], type_)


def _converted(value: pa.Scalar, type_: pa.DataType) -> pa.Array | None:
    try:
        return convert(pa.repeat(value, 1), type_)
    except UnfitError:
        return None


def _pins(tree: Tree, schema: pa.Schema) -> Pins:
    match tree:
        case Call(name="AND", arguments=(left, right)):
            return both(_pins(left, schema), _pins(right, schema))
        case Call(name="OR", arguments=(left, right)):
            return either(_pins(left, schema), _pins(right, schema))
        case Call(name="=" | "<=>", arguments=(ColumnName() as column, value)):
            return _pinned(column, (value,), schema, is_null_safe=tree.name == "<=>")
        case Call(name="=" | "<=>", arguments=(value, ColumnName() as column)):
            return _pinned(column, (value,), schema, is_null_safe=tree.name == "<=>")
        case Call(name="IN", arguments=(ColumnName() as column, *several)):
            return _pinned(column, tuple(several), schema)
        case _:
            return {}


def both(left: Pins, right: Pins) -> Pins:
    """Return what holds where both do."""
    met = {name: _among(left[name], right[name]) for name in left.keys() & right.keys()}
    return {**left, **right, **met}


def _among(values: pa.Array, others: pa.Array) -> pa.Array:
    return values.filter(pc.is_in(values, value_set=others))


def either(left: Pins, right: Pins) -> Pins:
    """Return what holds where one of two does; a side that is never true adds nothing."""
    for one, other in ((left, right), (right, left)):
        if any(not len(values) for values in one.values()):
            return other
    return {
        name: pc.unique(pa.concat_arrays([left[name], right[name]]))
        for name in left.keys() & right.keys()
    }


def _pinned(
    column: ColumnName, several: tuple[Tree, ...], schema: pa.Schema, *, is_null_safe: bool = False
) -> Pins:
    """Return the values that a column is compared with, where all of them are known."""
    if len(column.path) != 1:
        return {}
    try:
        name = find_in_schema(column.path[0], schema, role="column")
    except SchemaError:
        return {}
    type_ = schema.field(name).type
    found = []
    for each in several:
        value = constant(each)
        if value is None or (is_null_safe and not value.is_valid):
            return {}
        values = values_of(pa.repeat(value, 1), type_)
        if values is None:
            return {}
        found.append(values)
    return {name: pc.unique(pa.concat_arrays(found))}
