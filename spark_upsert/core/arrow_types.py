"""Arrow types: those in which a table stores values, and types as text for stored plans.

`storage_type` gives the type in which a table stores a column. `type_text` and `type_of` write and
read types such as ``list<item: decimal128(10, 2)>``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from spark_upsert.errors import PlanError, SchemaError, setting

_TOKEN = re.compile(r"\s*([\w]+|[<>\[\](),:=]|[^\s\w<>\[\](),:=]+)")

_ALIASES = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Type names that Arrow displays, and the names used in stored plans."""

_UNITS = frozenset({"s", "ms", "us", "ns"})


def type_text(type_: pa.DataType) -> str:
    """Format a type as text; equal types have equal texts."""
    return re.sub(r"\b(halffloat|float|double)\b", lambda found: _ALIASES[found[1]], str(type_))


def type_of(text: str) -> pa.DataType:
    """Parse a type from text; raise `PlanError` if it is invalid."""
    tokens = _TOKEN.findall(text)
    try:
        parsed_type = _Parser(tokens).whole()
    except (ValueError, IndexError, KeyError, pa.ArrowInvalid) as error:
        raise PlanError(
            f"'{text}' is no type of a column.",
            hint="write types as Arrow shows them: int64, decimal128(10, 2), list<item: string>.",
        ) from error
    return parsed_type


class _Parser:
    """Recursive-descent parser for a type's tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def whole(self) -> pa.DataType:
        parsed_type = self._type()
        if self._at != len(self._tokens):
            raise ValueError("something is left")
        return parsed_type

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, *tokens: str) -> None:
        for token in tokens:
            if self._next() != token:
                raise ValueError(f"expected {token}")

    def _has(self, token: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _type(self) -> pa.DataType:
        name = self._next()
        compound = _COMPOUND.get(name)
        return compound(self) if compound else pa.type_for_alias(name)

    def _field(self) -> pa.Field:
        name = self._next()
        self._skip(":")
        type_ = self._type()
        nullable = not self._has("not")
        if not nullable:
            self._skip("null")
        return pa.field(name, type_, nullable=nullable)

    def list_(self) -> pa.DataType:
        self._skip("<")
        field = self._field()
        self._skip(">")
        return pa.list_(field)

    def large_list(self) -> pa.DataType:
        self._skip("<")
        field = self._field()
        self._skip(">")
        return pa.large_list(field)

    def struct(self) -> pa.DataType:
        self._skip("<")
        fields = []
        while not self._has(">"):
            fields.append(self._field())
            self._has(",")
        return pa.struct(fields)

    def map_(self) -> pa.DataType:
        self._skip("<")
        key = self._type()
        self._skip(",")
        item = self._type()
        self._skip(">")
        return pa.map_(key, item)

    def decimal(self) -> pa.DataType:
        self._skip("(")
        precision = int(self._next())
        self._skip(",")
        sign = "-" if self._has("-") else ""
        scale = int(sign + self._next())
        self._skip(")")
        return pa.decimal128(precision, scale)

    def timestamp(self) -> pa.DataType:
        self._skip("[")
        unit = self._unit()
        if self._has("]"):
            return pa.timestamp(unit)
        self._skip(",", "tz", "=")
        zone = ""
        while not self._has("]"):
            zone += self._next()
        return pa.timestamp(unit, tz=zone)

    def duration(self) -> pa.DataType:
        return self._of_unit(pa.duration)

    def time32(self) -> pa.DataType:
        return self._of_unit(pa.time32)

    def time64(self) -> pa.DataType:
        return self._of_unit(pa.time64)

    def date32(self) -> pa.DataType:
        return self._day(pa.date32())

    def date64(self) -> pa.DataType:
        return self._day(pa.date64())

    def _day(self, type_: pa.DataType) -> pa.DataType:
        if self._has("["):
            self._next()
            self._skip("]")
        return type_

    def _of_unit(self, make: Callable[[str], pa.DataType]) -> pa.DataType:
        self._skip("[")
        parsed_type = make(self._unit())
        self._skip("]")
        return parsed_type

    def _unit(self) -> str:
        unit = self._next()
        if unit not in _UNITS:
            raise ValueError("no unit")
        return unit


_COMPOUND: dict[str, Callable[[_Parser], pa.DataType]] = {
    "list": _Parser.list_,
    "large_list": _Parser.large_list,
    "struct": _Parser.struct,
    "map": _Parser.map_,
    "decimal128": _Parser.decimal,
    "timestamp": _Parser.timestamp,
    "duration": _Parser.duration,
    "time32": _Parser.time32,
    "time64": _Parser.time64,
    "date32": _Parser.date32,
    "date64": _Parser.date64,
}


def storage_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a table stores values.

    Large, view and fixed-size variants become plain. Timestamps with a zone become UTC
    microseconds, dictionaries become their values, and nested fields get Spark's names. UUIDs and
    JSON documents become texts. An unsupported type is returned unchanged (`require_storable`).
    """
    if isinstance(type_, pa.BaseExtensionType):
        return _OF_EXTENSIONS.get(type_.extension_name, type_)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return storage_type(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if (
        pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    ):
        return pa.binary()
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz=None if type_.tz is None else "UTC")
    if pa.types.is_date64(type_):
        return pa.date32()
    if pa.types.is_decimal(type_) and type_.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _inner_type(f.type)) for f in type_.fields])
    if pa.types.is_map(type_):
        return pa.map_(_inner_type(type_.key_type), _inner_type(type_.item_type))
    if is_any_list(type_):
        return pa.list_(pa.field("element", _inner_type(type_.value_type)))
    return type_


def _inner_type(type_: pa.DataType) -> pa.DataType:
    """Return the storage type for a nested type.

    Run-end encoded types stay unchanged: Arrow reads wrong runs in sliced lists.
    """
    return type_ if pa.types.is_run_end_encoded(type_) else storage_type(type_)


UUID = "arrow.uuid"
"""Name of Arrow's UUID extension type."""


BOOL8 = "arrow.bool8"
"""Name of Arrow's extension type for one-byte booleans."""


_OF_EXTENSIONS: Mapping[str, pa.DataType] = {
    UUID: pa.string(),
    "arrow.json": pa.string(),
    BOOL8: pa.bool_(),
}


DECIMAL_DIGITS_MAX = 38


LEVELS_MAX = 64
"""Maximum type nesting in an Arrow file; a map adds two levels, one for its entries."""


def is_any_list(type_: pa.DataType) -> bool:
    """Return whether a type is a list in any layout."""
    types = pa.types
    return bool(
        types.is_list(type_)
        or types.is_large_list(type_)
        or types.is_fixed_size_list(type_)
        or types.is_list_view(type_)
        or types.is_large_list_view(type_)
    )


class UnstorablePart(NamedTuple):
    """A column's type or a type nested in it, such as one that run readers reject."""

    place: str
    """The column's name, with a dotted path to a nested type."""
    type: pa.DataType
    is_too_deep: bool


def find_unstorable_part(place: str, type_: pa.DataType) -> UnstorablePart | None:
    """Return the first part in a column's type that run readers reject, or None.

    The only copy of this rule: writers refuse the part before a commit, file readers the column.
    """
    for part, level in walk_type(place, type_):
        if level > LEVELS_MAX:
            return part._replace(is_too_deep=True)
        if part.type.id in _STORED_IDS:
            continue
        is_nested = pa.types.is_struct(part.type) or pa.types.is_map(part.type)
        if not (is_nested or pa.types.is_list(part.type)):
            return part
    return None


def walk_type(place: str, type_: pa.DataType) -> Iterator[tuple[UnstorablePart, int]]:
    """Yield a type and its nested types from the outside in, each with its level from 1."""
    waiting = [(place, type_, 1)]
    while waiting:
        place, type_, level = waiting.pop()
        yield UnstorablePart(place, type_, is_too_deep=False), level
        if pa.types.is_struct(type_):
            fields = [(f"{place}.{field.name}", field.type, level + 1) for field in type_]
            waiting += reversed(fields)
        elif pa.types.is_map(type_):
            waiting.append((f"{place}.value", type_.item_type, level + 2))
            waiting.append((f"{place}.key", type_.key_type, level + 2))
        elif is_any_list(type_):
            waiting.append((f"{place}.element", type_.value_type, level + 1))


_STORED_IDS = frozenset(
    type_.id
    for type_ in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(1)),
        *(pa.string(), pa.binary(), pa.date32(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us"), pa.month_day_nano_interval()),
        pa.date64(),  # Only in tables of an earlier release (`TableSchema.from_json`).
    )
)
"""Type identifiers in runs, except nested types."""


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value in ``source`` is also a value in ``target``."""
    if source == target:
        return True
    if source in _INTEGERS and target in _INTEGERS:
        return bool(source.bit_width <= target.bit_width)
    if pa.types.is_float32(source) and pa.types.is_float64(target):
        return True
    if pa.types.is_decimal128(source) and pa.types.is_decimal128(target):
        return bool(source.scale == target.scale and source.precision <= target.precision)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        pairs = zip(source.fields, target.fields, strict=False)
        is_alike = [f.name for f in source.fields] == [f.name for f in target.fields]
        return is_alike and all(widens(one.type, other_field.type) for one, other_field in pairs)
    if pa.types.is_list(source) and pa.types.is_list(target):
        return widens(source.value_type, target.value_type)
    return False


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds both types' values; the first if neither does."""
    return other if widens(one, other) else one


def to_storage_types(columns: pa.Schema) -> pa.Schema:
    """Return a schema in storage types, every column nullable, without metadata."""
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in columns])


def require_storable(fields: Iterable[pa.Field]) -> None:
    """Raise `SchemaError` for a column type that no table can store."""
    for field in fields:
        part = find_unstorable_part(field.name, field.type)
        if part is None:
            continue
        where = "" if part.place == field.name else f" at '{part.place:.80}'"
        if part.is_too_deep:
            raise SchemaError(
                f"the column '{field.name}' has more than {LEVELS_MAX} levels of nested types.",
                hint="write the inner values into columns of their own, or all of it as JSON text.",
                column=field.name,
            )
        if pa.types.is_null(part.type):
            raise SchemaError(
                f"the column '{field.name}' has no type{where}: all that it can hold is null.",
                hint="cast it to the type that its values will have, or drop it.",
                column=field.name,
            )
        raise SchemaError(
            f"the column '{field.name}' has the type {part.type}{where}, which no table stores.",
            hint=f"{_remedy(part.type)}, or drop it.",
            column=field.name,
        )


def unreadable_column_error(name: str, type_: object, where: str = "") -> SchemaError:
    """Return the error for a column that an earlier release stored in an unreadable type."""
    return SchemaError(
        f"the column '{name}' has the type {type_}{where and ' in '}{where}, which an earlier "
        "release stored and no release can read.",
        hint="run 'upsertflow repair' with the path of the table: it gives up this column and "
        f"keeps all others. To read versions from before the repair, name the other columns "
        f"({setting('columns')}).",
        column=name,
    )


def _remedy(type_: pa.DataType) -> str:
    """Return a hint how to store values with an unsupported type."""
    if isinstance(type_, pa.BaseExtensionType):
        return f"cast it to {type_.storage_type}, in which its values are"
    if pa.types.is_decimal(type_):
        return f"cast it to a decimal of at most {DECIMAL_DIGITS_MAX} digits, or to string"
    if pa.types.is_run_end_encoded(type_):
        return "decode it (pyarrow.compute.run_end_decode)"
    if pa.types.is_union(type_):
        return "write the values of each of its types into a column of that type"
    return "cast it to string or binary"
