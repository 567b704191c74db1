"""Exact decoder for one JSON payload (`read_exactly`): valid values, and reasons for invalid ones.

It takes about 10 us; `payloads.json` accepts only payloads that this decoder accepts, with the same
values. A decimal must be a multiple of ``10**-s`` and is never rounded.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.threads import Undecodable, shorten
from spark_upsert.core.timestamps import parse_day, parse_time_of_day

_TEXT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")

_EXPONENT_DIGITS = 10
"""Maximum exponent digits; a longer exponent is out of range in any payload that Arrow can hold."""


def decimal_of(text: str, type_: pa.Decimal128Type) -> Decimal:
    """Parse a decimal text exactly, with the type's scale; raises `Undecodable`.

    Notes
    -----
    O(length); a number is converted only if it fits.
    """
    match = _TEXT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise Undecodable(f"'{shorten(text)}' is no decimal number")
    sign, integer_digits, fraction, exponent_sign, exponent = match.groups(default="")
    written = (integer_digits + fraction).lstrip("0")
    digits = written.rstrip("0")
    if not digits:
        return Decimal((0, (0,), -type_.scale))
    exponent = exponent.lstrip("0")[: _EXPONENT_DIGITS + 1] or "0"
    shift = int(exponent_sign + exponent) + type_.scale - len(fraction) + len(written) - len(digits)
    if shift < 0:
        raise Undecodable(f"{shorten(text)} needs a finer scale than {_name(type_)} has")
    if len(digits) + shift > type_.precision:
        raise Undecodable(f"{shorten(text)} needs a greater precision than {_name(type_)} has")
    return decimal_from(int(sign + digits) * 10**shift, type_)


def decimal_from(unscaled: int, type_: pa.Decimal128Type) -> Decimal:
    """Return ``unscaled * 10**-scale``; raises `Undecodable` beyond the type's precision."""
    if abs(unscaled) >= 10**type_.precision:
        raise Undecodable(f"a number needs a greater precision than {_name(type_)} has")
    # Not `scaleb`, which rounds to the precision of the context.
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -type_.scale))


_FLOAT_DIGITS = 15
"""Maximum digits at which every number has a distinct float: 2**53 is more than 10**15."""


def is_short(type_: pa.Decimal128Type) -> bool:
    """Return whether a type's usual numbers have distinct floats."""
    return _short_whole(type_) > 0


def long_number_pattern(type_: pa.Decimal128Type) -> str:
    """Return a pattern for the start of a value that `decimals_of_floats` cannot convert.

    It does not match ``null``, and need not match invalid JSON.
    """
    integer_digits, fraction = _short_whole(type_), type_.scale
    return (
        r"(?:-?[^-0-9n\s]"
        rf"|-?[0-9]{{{integer_digits + 1}}}"
        rf"|-?[0-9]+\.[0-9]{{{fraction + 1 if fraction else 0}}}"
        r"|-?[0-9]+(?:\.[0-9]+)?[eE])"
    )


def decimals_of_floats(numbers: pa.Array, type_: pa.Decimal128Type) -> tuple[pa.Array, np.ndarray]:
    """Convert the nearest floats of short decimal numbers to the exact decimals.

    The mask marks numbers that do not fit.

    Notes
    -----
    The number and its product with a power of ten are each rounded by one part in 2**53. For 15 digits
    that is less than a quarter of the last digit.
    """
    floats = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
    words = np.empty((len(floats), 2), dtype="<i8")
    bad = ~(np.abs(floats) < 10.0 ** _short_whole(type_))
    words[:, 0] = np.rint(np.where(bad, 0.0, floats) * 10.0**type_.scale)
    words[:, 1] = words[:, 0] >> 63
    decimals = pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(words)])
    return pc.if_else(numbers.is_valid(), decimals, None) if numbers.null_count else decimals, bad


def _short_whole(type_: pa.Decimal128Type) -> int:
    """Return a short number's maximum digits before the decimal point."""
    return min(type_.precision, _FLOAT_DIGITS) - type_.scale


def _name(type_: pa.Decimal128Type) -> str:
    return f"DECIMAL({type_.precision}, {type_.scale})"


DEPTH_MAX = 200
"""Maximum nesting: Python's reader is recursive and shares its caller's stack."""


class TooDeep(Exception):
    """A payload is nested deeper than `DEPTH_MAX`."""

    def __init__(self) -> None:
        super().__init__(f"not as declared, and nested more than {DEPTH_MAX} deep")


class JsonNumber(str):
    """A JSON number as text."""

    __slots__ = ()


class JsonObject(list[tuple[str, Any]]):
    """An object's members in order, including duplicates."""

    __slots__ = ()


_READER = json.JSONDecoder(
    parse_int=JsonNumber,
    parse_float=JsonNumber,
    parse_constant=JsonNumber,
    object_pairs_hook=JsonObject,
)
_LENIENT_READER = json.JSONDecoder(
    parse_int=JsonNumber,
    parse_float=JsonNumber,
    parse_constant=lambda _: JsonNumber("-NaN or Inf"),
    object_pairs_hook=JsonObject,
)

_STRING = r'"(?:[^"\\]|\\.|\\\Z)*(?:"|\Z)'
"""Also matches an unterminated string up to the end, so the cost stays linear in the quotes."""

_STRINGS = re.compile(_STRING, re.DOTALL)
_MISSPELT = re.compile(rf"({_STRING})|-NaN|-?Inf(?!inity)", re.DOTALL)

_KINDS: tuple[tuple[type, str], ...] = (
    (type(None), "null"),
    (bool, "boolean"),
    (JsonNumber, "number"),
    (str, "string"),
    (JsonObject, "object"),
    (list, "array"),
)

_INTEGERS: Mapping[pa.DataType, tuple[str, int]] = {
    pa.int8(): ("TINYINT", 2**7),
    pa.int16(): ("SMALLINT", 2**15),
    pa.int32(): ("INT", 2**31),
    pa.int64(): ("BIGINT", 2**63),
}
_ODD_FLOATS = ("NaN", "Infinity", "-Infinity")
"""Floats without a JSON number; accepted as texts."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def read_exactly(text: str, fields: pa.Schema, *, is_bare: bool) -> dict[str, Any]:
    """Decode one payload to its declared members, as values for `built_type`.

    Raises `Undecodable` for an invalid payload, `TooDeep` for deep nesting.
    """
    parsed = _parse(text)
    if is_bare:
        parsed = JsonObject([(fields[0].name, parsed)])
    elif not isinstance(parsed, JsonObject):
        raise Undecodable(f"expected a JSON object, found {_kind(parsed)}")
    values = _members(parsed, list(fields), "")
    for field in fields:
        if not field.nullable and values[field.name] is None:
            raise Undecodable(f"'{field.name}' is missing or null, and declared NOT NULL")
    return values


def parse_document(text: str) -> Any:
    """Parse a JSON document, with numbers as text; raises `ValueError`."""
    if _depth(text) > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    return _READER.decode(text)


def write_document(document: Any) -> str:
    """Write a parsed document (`parse_document`) as JSON without blanks."""
    if isinstance(document, JsonObject):
        members = (f"{json.dumps(n)}:{write_document(value)}" for n, value in document)
        return f"{{{','.join(members)}}}"
    if isinstance(document, JsonNumber):
        return str(document)
    if isinstance(document, list):
        return f"[{','.join(map(write_document, document))}]"
    return json.dumps(document)


def _parse(text: str) -> Any:
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise TooDeep
    try:
        return _READER.decode(text)
    except json.JSONDecodeError as error:
        if "-NaN" not in text and "Inf" not in text:
            raise Undecodable(f"not JSON: {error}") from error
    # Arrow steps over more spellings than Python. Where they are declared, they are no numbers.
    try:
        return _LENIENT_READER.decode(_MISSPELT.sub(lambda match: match[1] or "NaN", text))
    except json.JSONDecodeError as error:
        raise Undecodable(f"not JSON: {error}") from error


def _depth(text: str) -> int:
    """Return the bracket nesting, ignoring strings."""
    chars = np.frombuffer(_STRINGS.sub("", text).encode(), np.uint8)
    steps = np.isin(chars, (91, 123)).astype(np.int8) - np.isin(chars, (93, 125)).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def _members(found: JsonObject, fields: list[pa.Field], where: str) -> dict[str, Any]:
    """Return an object's declared members; a missing member is None."""
    members: dict[str, Any] = {}
    for name, value in found:
        if name in members and any(field.name == name for field in fields):
            raise Undecodable(f"'{where}{name}' was specified twice")
        members[name] = value
    return {
        field.name: _value(members.get(field.name), field.type, where + field.name)
        for field in fields
    }


def _value(found: Any, type_: pa.DataType, where: str) -> Any:
    """Convert one value to its declared type; raises `Undecodable`."""
    if found is None:
        return None
    if pa.types.is_struct(type_):
        _require(found, where, "object")
        return _members(found, list(type_.fields), f"{where}.")
    if pa.types.is_list(type_):
        _require(found, where, "array")
        return [_value(value, type_.value_type, where) for value in found]
    if pa.types.is_boolean(type_):
        _require(found, where, "boolean")
        return found
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        if not (pa.types.is_floating(type_) and found in _ODD_FLOATS):
            _require(found, where, "number")
        convert: Callable[[str, pa.DataType], Any] = (
            _integer if pa.types.is_integer(type_) else _float
        )
    elif pa.types.is_decimal128(type_):
        if not isinstance(found, str):
            _require(found, where, "number")
        convert = decimal_of
    else:
        _require(found, where, "string")
        convert = _text
    try:
        return convert(found, type_)
    except Undecodable as error:
        raise Undecodable(f"'{where}': {error}") from error


def _require(found: Any, where: str, kind: str) -> None:
    """Raise `Undecodable` unless a value has one JSON kind."""
    if _kind(found) != kind:
        raise Undecodable(f"'{where}' is declared {kind}, found {_kind(found)}")


def _kind(found: Any) -> str:
    return next(kind for type_, kind in _KINDS if isinstance(found, type_))


def _integer(text: str, type_: pa.DataType) -> int:
    name, limit = _INTEGERS[type_]
    if _INTEGER.fullmatch(text) is None or not -limit <= int(text) < limit:
        raise Undecodable(f"{shorten(text)} is no {name}")
    return int(text)


def _float(text: str, type_: pa.DataType) -> float:
    """Return the nearest float; raises `Undecodable` on overflow and underflow."""
    name = "FLOAT" if pa.types.is_float32(type_) else "DOUBLE"
    try:
        value = float(text)
        if pa.types.is_float32(type_):
            value = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError as error:
        raise Undecodable(f"{shorten(text)} is too large for {name}") from error
    except ValueError as error:
        raise Undecodable(f"{shorten(text)} is no {name}") from error
    if math.isinf(value) and "Infinity" not in text:
        raise Undecodable(f"{shorten(text)} is too large for {name}")
    if value == 0 and _NOT_ZERO.match(text):
        raise Undecodable(f"{shorten(text)} is too small for {name}, and not zero")
    return value


_NOT_ZERO = re.compile(r"-?[0.]*[1-9]")


def _text(text: str, type_: pa.DataType) -> str | int:
    if pa.types.is_date32(type_):
        return parse_day(text)
    if pa.types.is_timestamp(type_):
        return parse_time_of_day(text, has_zone=type_.tz is not None)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Undecodable("half a surrogate pair is no text") from error
    return text
