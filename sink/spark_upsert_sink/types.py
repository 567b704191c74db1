"""Spark types that a table stores exactly (all others are refused), and differences of releases.

Heavy PySpark modules are imported within functions, because Spark's discovery loads this module.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pyspark
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper


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
"""By name, because older Spark releases lack some classes."""

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


def require_storable(schema: StructType) -> None:
    """Raise unless a table can store every column's type.

    Types outside `_KEPT` are refused: in Arrow some are structs or plain strings, so a table would
    return another type. NOT NULL and column metadata are not stored.
    """
    for field in schema.fields:
        # A column with only nulls may be left out of the table: the write plan decides.
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
    """Return the suggested expression for an unsupported type; None if the type is supported."""
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


SPARK_MIN = (4, 1)
"""First release with all Python reader and writer types that the source needs."""

_LIMITS_SINCE = (4, 2)


def minor_version(version: str) -> tuple[int, ...]:
    """Return a PySpark version's major and minor number."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


HAS_LIMITS = minor_version(pyspark.__version__) >= _LIMITS_SINCE
"""Whether Spark gives a stream reader the start and the limit for the next micro-batch."""


def require_spark(version: str) -> None:
    """Raise if a Spark release lacks features that the source needs."""
    if minor_version(version) < SPARK_MIN:
        raise ImportError(
            f"the format 'upsertflow' needs PySpark {'.'.join(map(str, SPARK_MIN))} or newer, "
            f"found {version} in {sys.executable}.\n\nHint: install a newer PySpark, the same on "
            "the driver and on every executor; plain Python reads and writes the same tables "
            "without Spark (docs/without-spark.md)."
        )


def to_arrow_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow columns that Spark uses for rows, in both directions."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before there was a time zone to choose it was UTC.
    in_utc: dict[str, Any] = {"timezone": "UTC"} if HAS_LIMITS else {}
    return to_arrow_schema(schema, **in_utc)


def columns_of(schema: StructType | pa.Schema) -> StructType:
    """Return columns in Spark types; Sail, a Spark Connect server, passes Arrow's."""
    from pyspark.sql.types import StructType

    return schema if isinstance(schema, StructType) else to_spark_columns(schema)


def to_spark_columns(schema: pa.Schema) -> StructType:
    """Return Spark columns for Arrow columns; timestamps without zone keep having none."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_spark_type(type_: pa.DataType) -> DataType:
    """Return the Spark type for an Arrow type."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(type_, prefer_timestamp_ntz=True)


def with_list_offsets(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield Spark's batches for a writer, with offsets for empty lists.

    Before 4.2, Java writes an empty list without offsets. Arrow allows that, but if the list is
    nested in another one, `pyarrow.Array.nbytes` crashes with a segmentation fault.
    """
    return batches if HAS_LIMITS else map(_with_offsets, batches)


def _with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    if not any(pa.types.is_nested(field.type) for field in batch.schema):
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))


def simple_latest_offset(reader: _SimpleStreamReaderWrapper, start: Any) -> Any:
    """Return the end offset for a batch that a simple reader read from an offset."""
    if HAS_LIMITS:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return reader.latestOffset(start, ReadAllAvailable())
    # It stores its own offset, and caches an entry for each poll without rows.
    before: Any = reader
    before.current_offset = start
    end = before.latestOffset()
    if end == start:
        before.cache.pop()
    return end


def supports_available_now(reader: object) -> bool:
    """Return whether a stream reader supports Spark's AvailableNow trigger."""
    if not HAS_LIMITS:
        return False
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    return isinstance(reader, SupportsTriggerAvailableNow)
