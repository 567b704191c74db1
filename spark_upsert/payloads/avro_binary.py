"""Avro's binary encoding, with a bound check for every value (specification 1.12).

A reader takes bytes and an offset and returns the value and the next offset. It rejects encodings
that no writer produces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_upsert.core.threads import Undecodable
from spark_upsert.core.timestamps import require_day, require_time
from spark_upsert.payloads.decoder import TOO_SPARSE, VALUES_PER_BYTE, values_max
from spark_upsert.payloads.json_exact import decimal_from

ReadValue = Callable[[bytes, int], tuple[Any, int]]


@dataclass(frozen=True)
class ValueReader:
    """Reads one schema's values."""

    read: ReadValue
    bytes_min: int
    """Size of the shortest value in bytes, which bounds the value count per block."""


def read_whole(reader: ValueReader, payload: bytes) -> Any:
    """Read a payload as exactly one value; missing or extra bytes raise `Undecodable`."""
    try:
        value, end = reader.read(payload, 0)
    except (IndexError, struct.error) as error:
        raise Undecodable("it ends too early") from error
    if end != len(payload):
        raise Undecodable(f"{len(payload) - end} bytes too many")
    return value


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift, start = byte & 0x7F, 7, at
    while byte >= 0x80:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        if at - start == _LONG_BYTES:
            raise Undecodable("a number of more than 64 bits")
    if not byte or number >> 64:
        raise Undecodable("a number of more bytes than it takes")
    return (number >> 1) ^ -(number & 1), at + 1


_LONG_BYTES = 10
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _read_long(data, at)
    if not _INT_MIN <= number <= _INT_MAX:
        raise Undecodable(f"{number} is no int")
    return number, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise Undecodable(f"{data[at]} is no boolean")
    return data[at] == 1, at + 1


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length = data[at]
    if length < 0x80 and not length & 1:
        length, at = length >> 1, at + 1
    else:
        length, at = _read_long(data, at)
    end = at + length
    if length < 0:
        raise Undecodable(f"a length of {length}")
    if end > len(data):
        raise IndexError
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    value, end = _read_bytes(data, at)
    try:
        return str(value, "utf-8"), end
    except UnicodeDecodeError as error:
        raise Undecodable("a string is not UTF-8") from error


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + _FLOAT.size


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + _DOUBLE.size


_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")

PRIMITIVES: Mapping[str, ValueReader] = {
    "null": ValueReader(lambda _, at: (None, at), 0),
    "boolean": ValueReader(_read_boolean, 1),
    "int": ValueReader(_read_int, 1),
    "long": ValueReader(_read_long, 1),
    "float": ValueReader(_read_float, 4),
    "double": ValueReader(_read_double, 8),
    "bytes": ValueReader(_read_bytes, 1),
    "string": ValueReader(_read_string, 1),
}


def fixed(length: int) -> ValueReader:
    """Return a reader for byte strings with a fixed length."""

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if length > len(data) - at:
            raise IndexError
        return data[at : at + length], at + length

    return ValueReader(read, length)


def enum(symbols: Sequence[str]) -> ValueReader:
    """Return a reader for enum symbols."""

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _read_long(data, at)
        if not 0 <= index < len(symbols):
            raise Undecodable(f"there is no symbol {index} of {len(symbols)}")
        return symbols[index], at

    return ValueReader(read, 1)


def union(branches: Sequence[ValueReader]) -> ValueReader:
    """Return a reader for unions."""
    reads = [branch.read for branch in branches]
    count = len(reads)
    # Most indices take a byte, for which a call would take longer than all else.
    short = {2 * index: read for index, read in enumerate(reads[:64])}

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value = short.get(data[at])
        if value is not None:
            return value(data, at + 1)
        index, at = _read_long(data, at)
        if not 0 <= index < count:
            raise Undecodable(f"there is no branch {index} of {count}")
        return reads[index](data, at)

    return ValueReader(read, 1 + min((branch.bytes_min for branch in branches), default=0))


def record(fields: Mapping[str, ValueReader]) -> ValueReader:
    """Return a reader for records, as dicts."""
    reads = [(name, reader.read) for name, reader in fields.items()]

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, read_field in reads:
            values[name], at = read_field(data, at)
        return values, at

    return ValueReader(read, sum(reader.bytes_min for reader in fields.values()))


def array(item: ValueReader, parts: int) -> ValueReader:
    """Return a reader for arrays, as lists; ``parts`` is the part count per item."""
    return _blocks(item, parts)


def mapping(value: ValueReader, parts: int) -> ValueReader:
    """Return a reader for maps, as lists of pairs; a duplicate key raises `Undecodable`."""
    read_value = value.read

    def read_pair(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _read_string(data, at)
        pair_value, at = read_value(data, at)
        return (key, pair_value), at

    pairs = _blocks(ValueReader(read_pair, 1 + value.bytes_min), 1 + parts)

    def read(data: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        entries, at = pairs.read(data, at)
        if len({key for key, _ in entries}) < len(entries):
            raise Undecodable("a map has a key twice")
        return entries, at

    return ValueReader(read, 1)


class _BudgetedPayload(bytes):
    """A payload with the remaining budget for its arrays' values (`left`)."""

    left = 0


def metered(reader: ValueReader) -> ValueReader:
    """Return a reader for complete payloads with a bound on sparse arrays' values (`is_sparse`)."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        payload = _BudgetedPayload(data)
        payload.left = values_max(len(data))
        return reader.read(payload, at)

    return ValueReader(read, reader.bytes_min)


def is_sparse(item: ValueReader, parts: int) -> bool:
    """Return whether items may decode to more values than their bytes allow."""
    return parts > VALUES_PER_BYTE * item.bytes_min


def _blocks(item: ValueReader, parts: int) -> ValueReader:
    """Return a reader for items in blocks; a block has an item count and optionally a byte size."""
    read_item, bytes_min, meters = item.read, item.bytes_min, is_sparse(item, parts)
    if not bytes_min:
        raise ValueError("items that take no bytes are as many as a payload likes to say")

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, at = _read_long(data, at)
            if not count:
                return items, at
            end = None
            if count < 0:
                size, at = _read_long(data, at)
                count, end = -count, at + size
            if count * bytes_min > len(data) - at:
                raise IndexError
            if meters and isinstance(data, _BudgetedPayload):
                data.left -= count * parts
                if data.left < 0:
                    raise Undecodable(TOO_SPARSE)
            for _ in range(count):
                value, at = read_item(data, at)
                items.append(value)
            if end is not None and at != end:
                raise Undecodable("a block is not as long as it says")

    return ValueReader(read, 1)


def converted(reader: ValueReader, convert: Callable[[Any], Any]) -> ValueReader:
    """Return a reader that converts each value."""
    read_plain = reader.read

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read_plain(data, at)
        return convert(value), at

    return ValueReader(read, reader.bytes_min)


def decimal(plain: ValueReader, type_: pa.Decimal128Type) -> ValueReader:
    """Return a reader for decimals in two's complement."""
    return converted(plain, lambda found: decimal_from(int.from_bytes(found, signed=True), type_))


def days(plain: ValueReader) -> ValueReader:
    """Return a reader for dates, as days since 1970."""
    return converted(plain, require_day)


def micros(plain: ValueReader, per_unit: int) -> ValueReader:
    """Return a reader for times, as microseconds since 1970; ``per_unit`` is the factor."""
    return converted(plain, lambda found: require_time(found * per_unit))
