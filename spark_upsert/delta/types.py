"""Delta's types for a table's columns; columns that Delta lacks are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.refusals import MirroredTypeError, NotMirroredError
from spark_upsert.views.group_rows import grouping_of

_PRIMITIVE: Mapping[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}

_DECIMAL_DIGITS_MAX = 38


def delta_schema(columns: pa.Schema) -> dict[str, Any]:
    """Return the columns as Delta's schema."""
    return _struct("", columns)


def require_mirrored(schema: TableSchema, properties: Mapping[str, str]) -> None:
    """Raise unless a table can have a mirror, or the table of its groups (`views.settled`)."""
    if schema.engine.multiplicity is None:
        delta_schema(schema.columns)
        return
    grouping = grouping_of(properties)
    if grouping is None or not grouping.keys:
        raise NotMirroredError.contributions(schema.keys)
    delta_schema(grouping.result)


def schema_text(columns: pa.Schema) -> str:
    """Return what stands in the metadata of a Delta table (`delta_schema`)."""
    return json.dumps(delta_schema(columns), separators=(",", ":"))


def has_plain_times(type_: pa.DataType) -> bool:
    """Return whether a type is, or holds, a time without a zone, which Delta has as a feature."""
    if pa.types.is_nested(type_):
        return any(has_plain_times(type_.field(i).type) for i in range(type_.num_fields))
    return bool(pa.types.is_timestamp(type_)) and type_.tz is None


def retyped(before: str, after: str) -> bool:
    """Return whether a column of one schema has another type in the next one."""
    old = {field["name"]: field["type"] for field in json.loads(before)["fields"]}
    new = {field["name"]: field["type"] for field in json.loads(after)["fields"]}
    return any(new.get(name) != type_ for name, type_ in old.items())


def _struct(place: str, fields: Any) -> dict[str, Any]:
    converted_fields, names = [], set()
    for field in fields:
        name = f"{place}{field.name}"
        if field.name.lower() in names:
            raise MirroredTypeError.of(
                name, f"{field.type}, of a name that another has in another case", "such"
            )
        names.add(field.name.lower())
        converted_fields.append(
            {
                "name": field.name,
                "type": _type(name, field.type),
                "nullable": True,
                "metadata": {},
            }
        )
    return {"type": "struct", "fields": converted_fields}


def _type(place: str, type_: pa.DataType) -> Any:
    if type_ in _PRIMITIVE:
        return _PRIMITIVE[type_]
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_struct(type_) and type_.num_fields:
        return _struct(f"{place}.", [type_.field(i) for i in range(type_.num_fields)])
    if pa.types.is_map(type_):
        return {
            "type": "map",
            "keyType": _type(f"{place}.key", type_.key_type),
            "valueType": _type(f"{place}.value", type_.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(type_):
        return {
            "type": "array",
            "elementType": _type(f"{place}.element", type_.value_type),
            "containsNull": True,
        }
    raise MirroredTypeError.of(place, str(type_), _cast(type_))


def _cast(type_: pa.DataType) -> str:
    """Return the type that values are to have instead."""
    if pa.types.is_unsigned_integer(type_):
        return "int64" if type_.bit_width < 64 else "decimal128(20, 0)"
    if pa.types.is_float16(type_):
        return "float32"
    if pa.types.is_time(type_) or pa.types.is_duration(type_):
        return "int64, of microseconds"
    if pa.types.is_date64(type_):
        return "date32"
    if pa.types.is_struct(type_):
        return "a struct with a field"
    if pa.types.is_decimal(type_):
        return f"decimal128 of at most {_DECIMAL_DIGITS_MAX} digits, none of them negative"
    return "string"
