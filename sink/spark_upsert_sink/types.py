"""The types of Spark that a table keeps exactly; every other one is refused by name.

Rows come as Arrow, and for some types what comes is not the type: VARIANT and the spatial types are
structs of bytes, a collated string is a plain one, an interval of hours is one of days to seconds. A
table that took them would give other types back, or compare keys in another way. So a type is either
in `_KEPT`, which a test proves by writing and reading it, or it is refused; one that this
release does not know is refused, too.

Kept are type and value. What is not: NOT NULL (every column and nested field may be null in a
table) and the comments and other metadata of columns.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimeType,
    UserDefinedType,
)

from spark_upsert.errors import SchemaError

_KEPT: frozenset[str] = frozenset(
    {
        "BinaryType",
        "BooleanType",
        "ByteType",
        "DateType",
        "DayTimeIntervalType",
        "DecimalType",
        "DoubleType",
        "FloatType",
        "IntegerType",
        "LongType",
        "ShortType",
        "StringType",
        "TimeType",
        "TimestampNTZType",
        "TimestampType",
    }
)
"""By name, because older releases of Spark lack some of the classes."""

_REMEDIES: dict[str, str] = {
    "CalendarIntervalType": "cast({} AS STRING) or an INTERVAL DAY TO SECOND",
    "CharType": "cast({} AS STRING)",
    "GeographyType": "st_asbinary({})",
    "GeometryType": "st_asbinary({})",
    "NullType": "cast({} AS ...) with the type that its values will have",
    "VarcharType": "cast({} AS STRING)",
    "VariantType": "to_json({}) for text, or variant_get({}, '$.field', 'type') for typed columns",
    "YearMonthIntervalType": "cast({} AS STRING) or the number of its months",
}


def require_kept(schema: StructType) -> None:
    """Check that a table keeps the type of every column.

    Raises
    ------
    SchemaError
        A column, or something nested in it, is of a type that would be changed.
    """
    for field in schema.fields:
        # A column of nothing but nulls may be left out of the table: the plan of the write judges it.
        if not isinstance(field.dataType, NullType):
            _require(field.dataType, field.name, field.name)


def _require(type_: DataType, column: str, place: str) -> None:
    if isinstance(type_, StructType):
        for field in type_.fields:
            _require(field.dataType, column, f"{place}.{field.name}")
    elif isinstance(type_, ArrayType):
        _require(type_.elementType, column, f"{place}.element")
    elif isinstance(type_, MapType):
        _require(type_.keyType, column, f"{place}.key")
        _require(type_.valueType, column, f"{place}.value")
    else:
        remedy = _remedy(type_)
        if remedy is not None:
            raise SchemaError(
                f"'{place}' has the type {type_.simpleString().upper()}, which a table cannot "
                "keep as it is.",
                hint=f"write {remedy.replace('{}', place)} instead, or drop '{column}' before the "
                "write.",
                column=column,
            )


def _remedy(type_: DataType) -> str | None:
    """Return what to write instead of a type; None if the type is kept."""
    name = type(type_).__name__
    if isinstance(type_, UserDefinedType):
        return "its parts as plain columns"
    if isinstance(type_, StringType) and not type_.isUTF8BinaryCollation():
        return "collate({}, 'UTF8_BINARY')"
    if isinstance(type_, TimeType) and type_ != TimeType():
        return f"cast({{}} AS {TimeType().simpleString().upper()})"
    if isinstance(type_, DayTimeIntervalType) and type_ != DayTimeIntervalType():
        return "cast({} AS INTERVAL DAY TO SECOND)"
    return None if name in _KEPT else _REMEDIES.get(name, "cast({} AS STRING)")
