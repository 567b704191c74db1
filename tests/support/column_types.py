"""Types of Arrow with values, their storage types, and nestings of both.

`earlier_release` lets a table store types without a reader, as earlier releases did.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core import arrow_types, schema

ROWS = 4
"""Rows of each column; one is null."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of the rows, and the type and the values that a table has of it."""

    given: pa.Array
    stored: pa.Array | None
    """The same values in the storage type; None for a type that no table stores."""


class Period(pa.ExtensionType):  # type: ignore[misc]  # pyarrow is untyped.
    """An extension type of a program, such as those of pandas."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.period")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Period:
        return cls()


with suppress(pa.ArrowKeyError):  # It is registered already.
    pa.register_extension_type(Period())


def _same(values: Any, type_: pa.DataType) -> ColumnType:
    array = pa.array(values, type_)
    return ColumnType(array, array)


def _as(values: Any, type_: pa.DataType, stored: pa.DataType) -> ColumnType:
    return ColumnType(pa.array(values, type_), pa.array(values, stored))


def _extension(type_: pa.DataType, storage: pa.Array, stored: pa.Array | None) -> ColumnType:
    return ColumnType(pa.ExtensionArray.from_storage(type_, storage), stored)


def _refused(array: pa.Array) -> ColumnType:
    return ColumnType(array, None)


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


INTEGERS = [1, None, 0, 127]
TEXTS = ["a", None, "", "ü" * 9]
BYTES = [b"a", None, b"", b"\xff\x00"]
FLOATS = [1.5, None, -0.25, 4096.0]
DAYS = [dt.date(2024, 2, 29), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]
TIMES = [
    dt.datetime(2024, 2, 29, 1, 2, 3),
    None,
    dt.datetime(1970, 1, 1),
    dt.datetime(1969, 12, 31),
]
DECIMALS = [Decimal("1.25"), None, Decimal("-0.01"), Decimal("9.99")]
VECTORS = [[1.0, 2.0], None, [0.5, None], [-1.0, 4.0]]
LISTS = [[1, 2], None, [], [3]]
UUIDS = [uuid.UUID(int=n) for n in (1, 2**127 + 10, 2**128 - 1)]
JSON = ['{"a": 1}', None, "[]", "null"]


def _deep(levels: int, wrap: Callable[[pa.Array], pa.Array]) -> pa.Array:
    array = pa.array(INTEGERS, pa.int32())
    for _ in range(levels):
        array = wrap(array)
    return array


def in_struct(array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array], ["f"])


def in_list(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array(range(len(array) + 1), pa.int32()), array, type=_list_of(array.type)
    )


def in_map(array: pa.Array) -> pa.Array:
    keys = pa.array([f"k{index}" for index in range(len(array))])
    return pa.MapArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), keys, array)


def _in_large_list(array: pa.Array) -> pa.Array:
    offsets = pa.array(range(len(array) + 1), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, array)


def _in_fixed_list(array: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(array, 1)


TYPES: Mapping[str, ColumnType] = {
    "bool": _same([True, None, False, True], pa.bool_()),
    **{
        str(type_): _same(INTEGERS, type_)
        for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{
        str(type_): _same(INTEGERS, type_)
        for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    "float16": _same(np.array([1.5, np.inf, -0.25, 4096], np.float16), pa.float16()),
    "float32": _same(FLOATS, pa.float32()),
    "float64": _same(FLOATS, pa.float64()),
    "decimal32": _as(DECIMALS, pa.decimal32(3, 2), pa.decimal128(3, 2)),
    "decimal64": _as(DECIMALS, pa.decimal64(12, 2), pa.decimal128(12, 2)),
    "decimal128": _same(DECIMALS, pa.decimal128(38, 2)),
    "decimal256 of 38 digits": _as(DECIMALS, pa.decimal256(38, 2), pa.decimal128(38, 2)),
    "string": _same(TEXTS, pa.string()),
    "large_string": _as(TEXTS, pa.large_string(), pa.string()),
    "string_view": _as(TEXTS, pa.string_view(), pa.string()),
    "binary": _same(BYTES, pa.binary()),
    "large_binary": _as(BYTES, pa.large_binary(), pa.binary()),
    "binary_view": _as(BYTES, pa.binary_view(), pa.binary()),
    "fixed_size_binary": _as([b"ab", None, b"\0\0", b"\xff\xff"], pa.binary(2), pa.binary()),
    "date32": _same(DAYS, pa.date32()),
    "date64": _as(DAYS, pa.date64(), pa.date32()),
    "time32[ms]": _same([dt.time(1, 2, 3), None, dt.time(), dt.time(23, 59, 59)], pa.time32("ms")),
    "time64[us]": _same([dt.time(1, 2, 3, 4), None, dt.time(), dt.time(23)], pa.time64("us")),
    "time64[ns]": _same([1, None, 0, 86_399_999_999_999], pa.time64("ns")),
    **{
        f"timestamp[{unit}{zone and ', '}{zone}]": _as(
            TIMES,
            pa.timestamp(unit, zone or None),
            pa.timestamp("us", "UTC" if zone else None),
        )
        for unit, zone in (("s", ""), ("ms", "Asia/Tokyo"), ("us", "UTC"), ("ns", ""))
    },
    **{
        str(type_): _same([1, None, 0, -5], type_)
        for type_ in (pa.duration("s"), pa.duration("ns"))
    },
    "month_day_nano_interval": _same(
        [(1, 2, 3), None, (0, 0, 0), (-1, 5, 9)], pa.month_day_nano_interval()
    ),
    "list": _as(LISTS, pa.list_(pa.int32()), _list_of(pa.int32())),
    "large_list": _as(LISTS, pa.large_list(pa.int32()), _list_of(pa.int32())),
    "list_view": _as(LISTS, pa.list_view(pa.int32()), _list_of(pa.int32())),
    "large_list_view": _as(LISTS, pa.large_list_view(pa.int32()), _list_of(pa.int32())),
    "list_view out of order": ColumnType(
        pa.ListViewArray.from_arrays([2, 0, 0, 1], [1, 2, 0, 1], pa.array([1, 2, 3], pa.int32())),
        pa.array([[3], [1, 2], [], [2]], _list_of(pa.int32())),
    ),
    "fixed_size_list": _as(VECTORS, pa.list_(pa.float32(), 2), _list_of(pa.float32())),
    "fixed_size_list of none": _as([[], None, [], []], pa.list_(pa.int8(), 0), _list_of(pa.int8())),
    "fixed_size_list of large_string": _as(
        [["a"], None, [None], ["b"]], pa.list_(pa.large_string(), 1), _list_of(pa.string())
    ),
    "map": _same([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32())),
    "struct": _same([{"x": 1}, None, {"x": None}, {"x": 3}], pa.struct({"x": pa.int32()})),
    "struct without fields": _same([{}, None, {}, {}], pa.struct([])),
    "dictionary": ColumnType(pa.array(TEXTS).dictionary_encode(), pa.array(TEXTS)),
    "run_end_encoded": ColumnType(
        pa.RunEndEncodedArray.from_arrays([1, 2, 4], pa.array(["a", None, "b"])),
        pa.array(["a", None, "b", "b"]),
    ),
    "uuid": _extension(
        pa.uuid(),
        pa.array([None, *(each.bytes for each in UUIDS)], pa.binary(16)),
        pa.array([None, *map(str, UUIDS)]),
    ),
    "json": _extension(pa.json_(), pa.array(JSON), pa.array(JSON)),
    "json in large_string": _extension(
        pa.json_(pa.large_string()), pa.array(JSON, pa.large_string()), pa.array(JSON)
    ),
    "bool8": _extension(
        pa.bool8(), pa.array([1, None, 0, 5], pa.int8()), pa.array([True, None, False, True])
    ),
    "struct of 63 levels": ColumnType(_deep(63, in_struct), _deep(63, in_struct)),
    # -- without a storage type ------------------------------------------------------------
    "null": _refused(pa.nulls(ROWS)),
    "list of null": _refused(pa.array([[None], None, [], []], pa.list_(pa.null()))),
    "decimal256 of 39 digits": _refused(pa.array(DECIMALS, pa.decimal256(39, 2))),
    "dense_union": _refused(
        pa.UnionArray.from_dense(
            pa.array([0, 1, 0, 1], pa.int8()),
            pa.array([0, 0, 1, 1], pa.int32()),
            [pa.array([1, 2]), pa.array(["a", "b"])],
        )
    ),
    "sparse_union": _refused(
        pa.UnionArray.from_sparse(
            pa.array([0, 1, 0, 1], pa.int8()), [pa.array(INTEGERS), pa.array(TEXTS)]
        )
    ),
    "opaque": _extension(pa.opaque(pa.binary(), "geometry", "a database"), pa.array(BYTES), None),
    "fixed_shape_tensor": _extension(
        pa.fixed_shape_tensor(pa.float32(), [2]), pa.array(VECTORS, pa.list_(pa.float32(), 2)), None
    ),
    "an extension of a program": _extension(Period(), pa.array(INTEGERS, pa.int64()), None),
    "struct of 64 levels": _refused(_deep(64, in_struct)),
    "struct of 120 levels": _refused(_deep(120, in_struct)),
    "map of 32 levels": _refused(_deep(32, in_map)),
}
"""Arrow's types by a name: `ROWS` values each."""

_NO_TEXTS = pa.array([b"\xff", None, b"a", b"b\xc3"])
_NO_DECIMALS = np.array([10**9, 0, 0, 0, 1, 0, -(10**9), -1], np.int64)

UNSOUND: Mapping[str, pa.Array] = {
    "string": _NO_TEXTS.view(pa.string()),
    "large_string": _NO_TEXTS.cast(pa.large_binary()).view(pa.large_string()),
    "string_view": pa.array(_NO_TEXTS.to_pylist(), pa.binary_view()).view(pa.string_view()),
    "dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, None, 2, 3], pa.int8()), _NO_TEXTS.view(pa.string())
    ),
    "json": pa.ExtensionArray.from_storage(pa.json_(), _NO_TEXTS.view(pa.string())),
    "decimal128": pa.Array.from_buffers(
        pa.decimal128(3, 2), ROWS, [None, pa.py_buffer(_NO_DECIMALS.tobytes())]
    ),
    "time32": pa.array([10**9, None, 1, -1], pa.int32()).view(pa.time32("ms")),
    "time64": pa.array([10**17, None, 1, -1], pa.int64()).view(pa.time64("us")),
    "date64": pa.array([1, None, 86_400_000, 5], pa.int64()).view(pa.date64()),
}
"""Values of which the first and the last are none of their type, which Arrow does not look at."""

NESTINGS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "a column": lambda array: array,
    "a list": in_list,
    "a struct": in_struct,
    "a map": in_map,
    "a large list": _in_large_list,
    "a list of fixed size": _in_fixed_list,
    "a list of structs": lambda array: in_list(in_struct(array)),
    "a map of lists of fixed size": lambda array: in_map(_in_fixed_list(array)),
}

TOP_LEVEL = frozenset({"struct of 63 levels", "run_end_encoded"})
"""Types that a table stores as columns, and not within other types."""

_STORED: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    **NESTINGS,
    "a large list": in_list,
    "a list of fixed size": in_list,
    "a map of lists of fixed size": lambda array: in_map(in_list(array)),
}
"""The nestings in storage types."""


def column(name: str, nesting: str) -> ColumnType:
    """Return a type of `TYPES` within one of `NESTINGS`."""
    own = TYPES[name]
    is_stored = own.stored is not None and (name not in TOP_LEVEL or nesting == "a column")
    return ColumnType(
        NESTINGS[nesting](own.given), _STORED[nesting](own.stored) if is_stored else None
    )


def _earlier_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which an earlier release stored values."""
    types = pa.types
    if types.is_dictionary(type_):
        return _earlier_type(type_.value_type)
    if types.is_large_string(type_) or types.is_string_view(type_):
        return pa.string()
    if types.is_large_binary(type_) or types.is_binary_view(type_):
        return pa.binary()
    if types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_timestamp(type_):
        return pa.timestamp("us", tz=None if type_.tz is None else "UTC")
    if types.is_decimal32(type_) or types.is_decimal64(type_):
        return pa.decimal128(type_.precision, type_.scale)
    if types.is_struct(type_):
        return pa.struct([pa.field(f.name, _earlier_type(f.type)) for f in type_.fields])
    if types.is_map(type_):
        return pa.map_(_earlier_type(type_.key_type), _earlier_type(type_.item_type))
    if types.is_list(type_) or types.is_large_list(type_):
        return _list_of(_earlier_type(type_.value_type))
    return type_


@contextmanager
def earlier_release() -> Iterator[None]:
    """Let tables store columns without a reader, as an earlier release did."""
    with ExitStack() as patches:
        for module in (arrow_types, schema):
            patches.enter_context(patch.object(module, "storage_type", _earlier_type))
            patches.enter_context(
                patch.object(module, "find_unstorable_part", lambda place, type_: None)
            )
        yield
