"""Spark schemas as text, parsed without a session: a DDL string or a ``StructType`` as JSON.

A bare type (``BIGINT``) means that each payload is one value. Source: Spark's grammar,
``colTypeList`` and ``dataType``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.errors import OptionError, did_you_mean
from spark_upsert.payloads.decoder import DEPTH_MAX, Unreadable, read_json

_SIMPLE: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_DECIMALS = ("decimal", "dec", "numeric")
_TEXTS = ("varchar", "char", "character")
_NAMES = sorted({*_SIMPLE, *_DECIMALS, *_TEXTS, "array", "map", "struct"})

_TOKEN = re.compile(
    r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))", re.DOTALL
)

_IS_TYPE = re.compile(r"\s*(\w+\s*(\([\d\s,]*\))?\s*$|(array|map|struct)\s*<)", re.IGNORECASE)
"""Matches the beginning of a bare type; any other text is a column list."""


def parse_schema(option: str, text: str, *, bare_name: str) -> tuple[pa.Schema, bool]:
    """Parse an option's schema; also return whether it is a bare type, named ``bare_name``."""
    try:
        fields, is_bare = _read(text, bare_name)
        if len({field.name.lower() for field in fields}) < len(fields):
            raise ValueError("each column may stand once, whatever its case")
    except (ValueError, Unreadable) as error:
        raise OptionError.invalid(
            option,
            text if len(text) <= 100 else f"{text[:100]}...",
            f"columns such as 'id BIGINT, name STRING', or the JSON of a StructType ({error})",
            hint="write the columns as in CREATE TABLE, or take df.schema.json().",
        ) from error
    return pa.schema(fields), is_bare


def _read(text: str, bare_name: str) -> tuple[list[pa.Field], bool]:
    if text.lstrip().startswith("{"):
        type_ = _from_json(read_json(text))
        if not pa.types.is_struct(type_):
            raise ValueError("the JSON is not that of a struct")
        return list(type_), False
    parser = _Parser(text)
    if _IS_TYPE.match(text) is None:
        fields = parser.columns(0)
        parser.expect_end()
        return fields, False
    type_ = parser.type(0)
    parser.expect_end()
    if pa.types.is_struct(type_):
        return list(type_), False
    return [pa.field(bare_name, type_)], True


class _Parser:
    """A recursive-descent parser for DDL strings."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def columns(self, depth: int) -> list[pa.Field]:
        """Parse ``name[:] type [NOT NULL] [COMMENT '...']``, comma separated."""
        fields = [self._column(depth)]
        while self._accept(","):
            fields.append(self._column(depth))
        return fields

    def _column(self, depth: int) -> pa.Field:
        name = self._name()
        self._accept(":")
        type_ = self.type(depth)
        nullable = not self._accept("not")
        if not nullable and not self._accept("null"):
            raise ValueError("NOT must be followed by NULL")
        if self._accept("comment"):
            self._next()
        return pa.field(name, type_, nullable=nullable)

    def type(self, depth: int) -> pa.DataType:
        """Parse one type."""
        if depth > DEPTH_MAX:
            raise ValueError(f"types are nested more than {DEPTH_MAX} deep")
        name = self._next().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in _DECIMALS:
            return _decimal(self._numbers() if self._peek() == "(" else (10,))
        if name in _TEXTS:
            self._numbers()
            return pa.string()
        if name == "array":
            self._expect("<")
            element = self.type(depth + 1)
            self._expect(">")
            return storage_type(pa.list_(element))
        if name == "map":
            self._expect("<")
            key = self.type(depth + 1)
            self._expect(",")
            item = self.type(depth + 1)
            self._expect(">")
            return storage_type(pa.map_(key, item))
        if name == "struct":
            self._expect("<")
            fields = [] if self._peek() == ">" else self.columns(depth + 1)
            self._expect(">")
            return storage_type(pa.struct(fields))
        raise ValueError(f"there is no type '{name}'. {did_you_mean(name, _NAMES)}")

    def expect_end(self) -> None:
        """Raise `ValueError` if text remains."""
        if self._text[self._at :].strip():
            raise ValueError(f"'{self._text[self._at :].strip()[:30]}' was not expected")

    def _numbers(self) -> tuple[int, ...]:
        self._expect("(")
        numbers = [self._number()]
        while self._accept(","):
            numbers.append(self._number())
        self._expect(")")
        return tuple(numbers)

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit():
            raise ValueError(f"'{token}' is not a number")
        return int(token)

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise ValueError(f"'{token}' is not a name; put other names in backquotes")
        return token

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _peek(self) -> str:
        match = self._match()
        return match[match.lastindex or 0] if match else ""

    def _next(self) -> str:
        match = self._match()
        if match is None:
            remaining = self._text[self._at :].strip()[:30]
            raise ValueError(
                f"'{remaining}' was not expected" if remaining else "it ends too early"
            )
        self._at = match.end()
        return str(match[match.lastindex or 0])

    def _accept(self, token: str) -> bool:
        if self._peek().lower() != token:
            return False
        self._next()
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            next_token = self._peek()
            raise ValueError(f"'{token}' was expected, found '{next_token or 'the end'}'")


def _decimal(numbers: tuple[int, ...]) -> pa.DataType:
    if len(numbers) > 2:
        raise ValueError("DECIMAL takes a precision and a scale")
    precision, scale = (*numbers, 0)[:2]
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise ValueError(f"DECIMAL({precision}, {scale}) needs 0 <= scale <= precision <= 38")
    return pa.decimal128(precision, scale)


def _from_json(record: Any, depth: int = 0) -> pa.DataType:
    """Parse Spark's JSON form of a type."""
    if depth > DEPTH_MAX:
        raise ValueError(f"types are nested more than {DEPTH_MAX} deep")
    if isinstance(record, str):
        parser = _Parser(record)
        type_ = parser.type(depth)
        parser.expect_end()
        return type_
    try:
        if record["type"] == "struct":
            fields = [
                pa.field(f["name"], _from_json(f["type"], depth + 1), nullable=f["nullable"])
                for f in record["fields"]
            ]
            # Columns keep what they say of nulls; only nested fields have one form.
            return pa.struct(fields) if depth == 0 else storage_type(pa.struct(fields))
        if record["type"] == "array":
            return storage_type(pa.list_(_from_json(record["elementType"], depth + 1)))
        if record["type"] == "map":
            key = _from_json(record["keyType"], depth + 1)
            return storage_type(pa.map_(key, _from_json(record["valueType"], depth + 1)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks {error}") from error
    raise ValueError(f"there is no type '{record['type']}'")
