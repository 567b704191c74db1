"""Delta's types for a table's columns; columns missing in Delta are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OtherTableError, SchemaError, UpsertFlowError
from spark_upsert.views.group_rows import grouping_of


class MirroredTypeError(SchemaError):
    """Delta does not support a column's type or name."""

    code = "MIRRORED_TYPE"

    @classmethod
    def of(cls, column: str, found: str, cast: str) -> Self:
        return cls(
            f"the column '{column}' is of type {found}, which Delta has not; nothing was "
            "published.",
            hint=f"write the values as {cast}, in a column of another name or in a new table; or "
            "end the publication with publish=none.",
            column=column,
        )


class MirrorChangedError(UpsertFlowError):
    """Another writer changed the mirror, so it is no longer a copy."""

    code = "MIRROR_CHANGED"

    @classmethod
    def by(cls, place: str, version: int, operation: str) -> Self:
        return cls(
            f"the mirror at '{place}' was changed by others: its version {version} is "
            f"'{operation}'. The mirror stands where it was; the table goes on.",
            hint="rebuild it (publish(rebuild=True), or 'upsertflow publish PATH --rebuild'): "
            "one commit makes it a copy again, and readers keep their place.",
            version=version,
            operation=operation,
        )


class NotMirroredError(UpsertFlowError):
    """A table cannot have a mirror."""

    code = "NOT_MIRRORED"

    @classmethod
    def contributions(cls, keys: Sequence[str]) -> Self:
        groups = ", ".join(f"'{name}'" for name in keys)
        return cls(
            f"the table keeps what the groups of a view (by {groups}) are made of, and not their "
            "rows, so that no file of it can be mirrored; nothing was published.",
            hint="publish a table with rows of its own: write the changes of the view into one.",
        )


def other_table_error(place: str, expected: str, found: str) -> OtherTableError:
    """Return the error for a location with another table or mirror."""
    return OtherTableError(
        f"'{place}' is to hold the mirror of {expected}, but holds {found}. Nothing was written.",
        hint="publish to another place, or, if what is there is to be replaced, rebuild it "
        "(publish(rebuild=True), or 'upsertflow publish PATH --rebuild').",
    )


def occupied_error(place: str, found: str) -> OtherTableError:
    """Return the error for a location with unrelated files."""
    return OtherTableError(
        f"'{place}' is to hold a mirror, but holds '{found}'. Nothing was written.",
        hint="publish to an empty place.",
    )


def within_table_error(place: str, found: str) -> OtherTableError:
    """Return the error for a location within another tool's table, which may clean it."""
    return OtherTableError(
        f"'{place}' is to hold a mirror, but {found}. Nothing was written.",
        hint="publish to a place outside of that folder.",
    )


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
    """Return columns as a Delta schema."""
    return _struct("", columns)


def require_mirrored(schema: TableSchema, properties: Mapping[str, str]) -> None:
    """Raise unless a table, or its settled table (`views.materialized`), can have a mirror."""
    if schema.engine.multiplicity is None:
        delta_schema(schema.columns)
        return
    grouping = grouping_of(properties)
    if grouping is None or not grouping.keys:
        raise NotMirroredError.contributions(schema.keys)
    delta_schema(grouping.result_schema)


def schema_text(columns: pa.Schema) -> str:
    """Return columns as schema text for Delta metadata (`delta_schema`)."""
    return json.dumps(delta_schema(columns), separators=(",", ":"))


def has_plain_times(type_: pa.DataType) -> bool:
    """Return whether a type is or contains a timestamp without zone, a Delta table feature."""
    if pa.types.is_nested(type_):
        return any(has_plain_times(type_.field(i).type) for i in range(type_.num_fields))
    return bool(pa.types.is_timestamp(type_)) and type_.tz is None


def changes_types(before: str, after: str) -> bool:
    """Return whether a column changes its type, or is removed, between two schemas."""
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
    """Return the suggested type for unsupported values."""
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
