"""Each type that Spark has is kept exactly, or refused by name; nobody can add one undecided."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
)

from pyspark_upsertflow.readers import read_schema
from spark_upsert.core.arrow_types import to_storage_types
from spark_upsert.errors import SchemaError
from spark_upsert.table.table import Table
from spark_upsert_sink.types import require_storable

FAMILIES = {
    "AnsiIntervalType",
    "AnyTimeType",
    "AtomicType",
    "DataType",
    "DatetimeType",
    "FractionalType",
    "IntegralType",
    "NumericType",
    "SpatialType",
    "StructField",
}
"""Classes that are no column's type."""

KEPT: list[DataType] = [
    types.BinaryType(),
    types.BooleanType(),
    types.ByteType(),
    types.DateType(),
    types.DayTimeIntervalType(),
    types.DecimalType(38, 18),
    types.DoubleType(),
    types.FloatType(),
    types.IntegerType(),
    types.LongType(),
    types.ShortType(),
    types.StringType(),
    types.TimeType(),
    types.TimestampNTZType(),
    types.TimestampType(),
    ArrayType(ArrayType(LongType())),
    MapType(StringType(), MapType(LongType(), StringType())),
    StructType([StructField("a", StructType([StructField("b", LongType())]))]),
    StructType([]),
]


class Point(UserDefinedType):
    """A type of a library."""

    @classmethod
    def sqlType(cls) -> DataType:
        return ArrayType(types.DoubleType(), False)


class Unheard(AtomicType):
    """A type that a release of Spark may have one day."""


REFUSED: list[tuple[DataType, str]] = [
    (types.CalendarIntervalType(), "cast"),
    (types.CharType(5), "AS STRING"),
    (types.VarcharType(5), "AS STRING"),
    (types.DayTimeIntervalType(1, 2), "AS INTERVAL DAY TO SECOND"),
    (types.GeographyType(4326), "st_asbinary"),
    (types.GeometryType(0), "st_asbinary"),
    (types.NullType(), "cast"),
    (types.StringType("UTF8_LCASE"), "'UTF8_BINARY'"),
    (types.TimeType(3), r"AS TIME\(6\)"),
    (types.VariantType(), "to_json"),
    (types.YearMonthIntervalType(), "months"),
    (Point(), "its parts as plain columns"),
    (Unheard(), "AS STRING"),
]

Wrap = Callable[[DataType], DataType]

NESTED: dict[str, Wrap] = {
    "array": ArrayType,
    "map key": lambda type_: MapType(type_, LongType()),
    "map value": lambda type_: MapType(LongType(), type_),
    "struct": lambda type_: StructType([StructField("a", type_)]),
}


def column(type_: DataType) -> StructType:
    return StructType([StructField("v", type_)])


def test_every_type_of_spark_is_decided() -> None:
    known = {
        name
        for name, member in inspect.getmembers(types, inspect.isclass)
        if issubclass(member, DataType) and member.__module__ == types.__name__
    }
    decided = [*KEPT, *(type_ for type_, _ in REFUSED)]
    names = {base.__name__ for type_ in decided for base in type(type_).__mro__}
    assert known - FAMILIES - names == set(), "decide, and add it to KEPT or REFUSED"


@pytest.mark.parametrize("type_", KEPT, ids=lambda type_: type_.simpleString())
def test_a_kept_type_comes_back(type_: DataType) -> None:
    for wrapped in (type_, *(wrap(type_) for wrap in NESTED.values())):
        schema = column(wrapped)
        require_storable(schema)
        assert (
            from_arrow_schema(to_storage_types(to_arrow_schema(schema, timezone="UTC"))) == schema
        )


@pytest.mark.parametrize(
    ("type_", "remedy"), REFUSED, ids=[type_.simpleString() for type_, _ in REFUSED]
)
def test_another_type_is_refused_by_name(type_: DataType, remedy: str) -> None:
    wrapped = [type_, *(wrap(type_) for wrap in NESTED.values())]
    if type_ == types.NullType():
        require_storable(column(wrapped.pop(0)))  # It may be left out, which the plan knows.
    for each in wrapped:
        with pytest.raises(SchemaError, match=f"(?s)Hint: write .*{remedy}") as caught:
            require_storable(column(each))
        assert type_.simpleString().upper() in caught.value.message
        assert caught.value.message.startswith("'v")
    inner = StructType([StructField("when", MapType(StringType(), type_))])
    with pytest.raises(SchemaError, match=r"'v\.element\.when\.value' has the type"):
        require_storable(column(ArrayType(inner)))


@pytest.mark.parametrize("type_", [pa.uint32(), pa.time32("ms"), pa.list_(pa.uint64())], ids=str)
def test_a_column_that_spark_cannot_show_is_named(tmp_path: Path, type_: pa.DataType) -> None:
    path = str(tmp_path / "t")
    Table.create(path, pa.schema({"id": pa.int64(), "v": type_}), keys=["id"])
    with pytest.raises(SchemaError, match=r"column 'v' has the type .*, which Spark does not have"):
        read_schema({"path": path})
    assert read_schema({"path": path, "columns": "id"}).names == ["id"]
