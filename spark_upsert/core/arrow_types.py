"""Arrow types as text and back, such as ``list<item: decimal128(10, 2)>``, for stored plans."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from spark_upsert.errors import PlanError

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
