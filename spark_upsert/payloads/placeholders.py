"""Debezium's placeholders for values missing in an event (`Placeholder`; docs/adr/0020).

They are recognised in decoded columns of any type. A real value equal to the placeholder cannot be
distinguished.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.casts import to_readable
from spark_upsert.core.keys import Mask, Positions, is_text
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError
from spark_upsert.payloads.decoder import (
    Decoder,
    Payloads,
    Piece,
    combine_pieces,
    decode_safely,
    take_rows,
)
from spark_upsert.payloads.json_exact import JsonNumber, JsonObject, parse_document, write_document

_DEFAULT = "__debezium_unavailable_value"
_HEX = "hex:"

_POSTGIS_POINTS = (
    bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1"),
    bytes.fromhex("0101000020e61000000c21e7fdff7f66401842cefbff7f5640"),
)
"""POINT(-99999999 -99999999) and POINT(179.999999 89.999999), as EWKB."""

_WKB = "wkb"

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
"""Characters that no JSON writer escapes."""

_TIME_FACTORS = (1, 1000)
"""Microseconds per unit in time arrays written as numbers."""

_WRAPPED = ("schema", "payload")

UNSENT_HINT = (
    "PostgreSQL sends the columns of the table's REPLICA IDENTITY with each update, which must "
    "include 'keys', and all with FULL; MySQL sends all with binlog_row_image=FULL; Debezium's "
    "ReselectColumnsPostProcessor reads them from the database"
)
"""Hint for a key or an order that the source did not send."""


@dataclass(frozen=True)
class Placeholder:
    """The value of ``unavailable.value.placeholder``, recognised in each column type.

    docs/envelopes.md lists its form per column type.

    Source: Debezium's value converters for each database, and its pull requests 7815 and 6821.

    Parameters
    ----------
    data : bytes
    """

    data: bytes = _DEFAULT.encode()

    @classmethod
    def parse(cls, text: str) -> Placeholder:
        """Parse the connector's setting: a text, or ``hex:`` and hexadecimal digits."""
        if not text.startswith(_HEX):
            return cls(text.encode())
        digits = text[len(_HEX) :]
        try:
            data = bytes.fromhex(digits)
        except ValueError:
            data = b""
        if not data:
            expected = "the connector's 'unavailable.value.placeholder': a text, or 'hex:' and an "
            raise OptionError.invalid(
                "unavailableValuePlaceholder", text, f"{expected}even number of hexadecimal digits"
            )
        return cls(data)

    # -- columns ---------------------------------------------------------------------------

    def find(self, column: pa.Array) -> Mask:
        """Return a mask for the placeholders in a column with any type."""
        column = as_stored(column)
        type_ = column.type
        if is_text(type_):
            return _equal_any(column, self._texts)
        if pa.types.is_list(type_) or pa.types.is_large_list(type_):
            return self._find_in_lists(column)
        if pa.types.is_map(type_):
            return self._find_in_maps(column)
        if pa.types.is_struct(type_) and _has_wkb(type_):
            points = pc.struct_field(column, [type_.get_field_index(_WKB)])
            return _equal_any(points, _POSTGIS_POINTS)
        return np.zeros(len(column), dtype=np.bool_)

    def _find_in_lists(self, column: pa.Array) -> Mask:
        is_placeholder = np.zeros(len(column), dtype=np.bool_)
        if is_text(column.type.value_type):
            rows, items = _lists_of(column, 1)
            is_placeholder[rows] = _equal_any(items, self._item_texts)
            return is_placeholder
        if not _is_numeric(column.type.value_type):
            return is_placeholder
        pattern = np.frombuffer(self.data, np.int8)
        rows, items = _lists_of(column, len(pattern))
        for numbers in _as_numbers(items):
            is_placeholder[rows] |= (numbers.reshape(-1, len(pattern)) == pattern).all(axis=1)
        return is_placeholder

    def _find_in_maps(self, column: pa.Array) -> Mask:
        is_placeholder = np.zeros(len(column), dtype=np.bool_)
        entry = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        if all(is_text(field.type) for field in entry):
            rows, items = _lists_of(column.cast(pa.list_(entry)), 1)
            sides = [_equal_any(side, (self._text.encode(),)) for side in items.flatten()]
            is_placeholder[rows] = np.logical_and.reduce(sides)
        return is_placeholder

    @cached_property
    def _text(self) -> str:
        return self.data.decode(errors="replace")

    @cached_property
    def _texts(self) -> tuple[bytes, ...]:
        """The placeholder's forms in a text or binary column."""
        entry = json.dumps({self._text: self._text}, separators=(",", ":"), ensure_ascii=False)
        forms = (self._text.encode(), self.data, entry.encode(), self.data.hex().encode())
        coded = (base64.b64encode(self.data), base64.urlsafe_b64encode(self.data))
        return tuple(dict.fromkeys((*forms, *coded)))

    @cached_property
    def _item_texts(self) -> tuple[bytes, ...]:
        """The placeholder's forms as the only item in a text or binary array."""
        digest = hashlib.md5(self.data, usedforsecurity=False).digest()
        return (*self._texts, str(uuid.UUID(bytes=digest, version=3)).encode())

    # -- JSON ------------------------------------------------------------------------------

    def rows_in_doubt(
        self, payloads: pa.Array, reasons: pa.Array | None, types: Iterable[pa.DataType]
    ) -> Positions:
        """Return the JSON payloads that may contain a placeholder not visible in their columns."""
        has_struct = any(map(_has_struct, types))
        if reasons is None and not has_struct:
            return np.zeros(0, dtype=np.int64)
        # JSON may escape any other character, and each in several ways.
        plain = max(_PLAIN.findall(self._text), key=len, default="")
        is_doubtful = pc.match_substring(payloads, plain.encode()).fill_null(False)
        if reasons is not None and not has_struct:
            is_doubtful = pc.and_(is_doubtful, reasons.is_valid())
        return np.flatnonzero(_mask(is_doubtful))

    def remove(self, payload: bytes, path: tuple[str, ...]) -> tuple[bytes, frozenset[str]]:
        """Replace placeholders in a JSON payload by null; also return the names of those members.

        Invalid JSON is returned unchanged.
        """
        parsed = parse_object(payload, path)
        if parsed is None:
            return payload, frozenset()
        row = parsed.row
        names = frozenset(name for name, value in row if self._is_in_json(value))
        row[:] = [(name, None if name in names else value) for name, value in row]
        return parsed.header + write_document(parsed.document).encode(), names

    def _is_in_json(self, value: Any) -> bool:
        if isinstance(value, JsonObject):
            return value == [(self._text, self._text)]
        if isinstance(value, JsonNumber):
            return False
        if isinstance(value, str):
            return value.encode(errors="replace") in self._texts
        if not isinstance(value, list):
            return False
        if len(value) == 1 and isinstance(value[0], str):
            return value[0].encode(errors="replace") in self._item_texts
        return value == [str(number) for number in np.frombuffer(self.data, np.int8)]


DEFAULT_PLACEHOLDER = Placeholder()


def decode_again(
    placeholder: Placeholder,
    payloads: pa.Array,
    rows: Positions,
    path: tuple[str, ...],
    decode: Callable[[Positions, pa.Array, frozenset[str]], None],
) -> dict[str, Mask]:
    """Decode the JSON payloads of some rows again, without placeholders; return a mask by column.

    A Python loop over rows with columns that cannot hold the placeholder: some 30 us per kB.
    """
    groups: dict[frozenset[str], tuple[list[int], list[bytes]]] = {}
    for row in rows.tolist():
        payload, names = placeholder.remove(payloads[row].as_py(), path)
        if names:
            chosen, texts = groups.setdefault(names, ([], []))
            chosen.append(row)
            texts.append(payload)
    mask_by_column: dict[str, Mask] = {}
    for names, (chosen, texts) in groups.items():
        decode(np.array(chosen), pa.array(texts, pa.binary()), names)
        for name in names:
            mask_by_column.setdefault(name, np.zeros(len(payloads), dtype=np.bool_))[chosen] = True
    return mask_by_column


def decode_without(
    placeholder: Placeholder,
    decoder: Decoder,
    payloads: pa.Array,
    path: tuple[str, ...],
    types: Iterable[pa.DataType],
) -> tuple[Payloads, dict[str, Mask]]:
    """Decode JSON payloads with null for each placeholder; return a mask by column, too.

    ``types`` are the column types of the object at ``path``. The masks show only placeholders that
    the columns cannot hold.
    """
    decoded = decode_safely(decoder, payloads)
    rows = placeholder.rows_in_doubt(payloads, decoded.reasons, types)
    pieces: list[Piece] = []

    def decode(chosen: Positions, texts: pa.Array, _: frozenset[str]) -> None:
        pieces.append(Piece.of(chosen, decoder.fields, decode_safely(decoder, texts)))

    masks = decode_again(placeholder, payloads, rows, path, decode)
    if pieces:
        again = np.concatenate([piece.rows for piece in pieces])
        others = np.setdiff1d(np.arange(len(payloads)), again)
        pieces.append(Piece.of(others, decoder.fields, take_rows(decoded, others)))
        decoded = combine_pieces(decoder.fields, pieces)
    return decoded, masks


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """Values that the source did not send, in n rows."""

    columns: Mapping[str, pa.Array]
    """All columns, with null for each placeholder."""
    unchanged: Mapping[str, Mask]
    """The placeholders in value columns."""
    bad_keys: pa.Array | None
    """Why rows have no key, as text; None if all have one. All key columns are null there."""
    bad_values: pa.Array | None
    """Why rows have no order, as text; None if all have one."""

    @classmethod
    def of(
        cls, schema: TableSchema, columns: Mapping[str, pa.Array], unsent: Mapping[str, Mask]
    ) -> Unsent:
        """Remove the placeholders from a table's columns, given their rows by column."""
        columns = dict(columns)
        bad_keys = bad_values = None
        unchanged = {}
        order = {field.name for field in schema.order}
        for name, where in unsent.items():
            if not where.any():
                continue
            if name in schema.keys:
                bad_keys = _add_reason(bad_keys, where, f"the source did not send the key '{name}'")
                for key in schema.keys:
                    columns[key] = _without(columns[key], where)
                continue
            columns[name] = _without(as_stored(columns[name]), where)
            if name in order:
                why = f"the source did not send '{name}', which orders the rows"
                bad_values = _add_reason(bad_values, where, why)
            else:
                unchanged[name] = where
        return cls(columns=columns, unchanged=unchanged, bad_keys=bad_keys, bad_values=bad_values)


def _add_reason(reasons: pa.Array | None, where: Mask, why: str) -> pa.Array:
    because = pc.if_else(pa.array(where), why, pa.scalar(None, pa.string()))
    return because if reasons is None else pc.coalesce(reasons, because)


# -- arrays --------------------------------------------------------------------------------


def as_stored(column: pa.Array) -> pa.Array:
    """Convert a column that may hold a placeholder to its storage type.

    Polars has string views, pandas dictionaries, and Arrow other list layouts.
    """
    type_ = storage_type(column.type)
    may_hold = is_text(type_) or pa.types.is_list(type_) or pa.types.is_map(type_)
    if type_ == column.type or not (may_hold or (pa.types.is_struct(type_) and _has_wkb(type_))):
        return column
    try:
        return to_readable(column)[0]
    except pa.ArrowException:
        return column  # A type that no table stores, which the write refuses by its name.


def _equal_any(column: pa.Array, texts: tuple[bytes, ...]) -> Mask:
    """Return which texts equal one of a few texts; lengths are compared first."""
    if not len(column):
        return np.zeros(0, dtype=np.bool_)
    lengths = pc.binary_length(column)
    sizes = pa.array({len(text) for text in texts}, lengths.type)
    rows = np.flatnonzero(_mask(pc.is_in(lengths, sizes)))
    is_equal = np.zeros(len(column), dtype=np.bool_)
    if len(rows):
        taken = column.take(pa.array(rows)).cast(pa.binary())
        is_equal[rows] = _mask(pc.is_in(taken, pa.array(texts, pa.binary())))
    return is_equal


def _lists_of(column: pa.Array, length: int) -> tuple[Positions, pa.Array]:
    """Return the rows with lists of one length, and all their items in order."""
    lengths = pc.list_value_length(column).fill_null(-1)
    rows = np.flatnonzero(_mask(pc.equal(lengths, length)))
    return rows, column.take(pa.array(rows)).flatten()


def _is_numeric(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_date32(type_)
        or pa.types.is_timestamp(type_)
    )


def _as_numbers(items: pa.Array) -> Iterator[npt.NDArray[np.float64]]:
    """Yield numbers, dates and times as floats, times once per unit; null is NaN."""
    factors: tuple[int, ...] = (1,)
    if pa.types.is_date32(items.type):
        items = items.view(pa.int32())
    elif pa.types.is_timestamp(items.type):
        items, factors = items.view(pa.int64()), _TIME_FACTORS
    numbers = items.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    yield from (numbers / factor for factor in factors)


def _has_struct(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_struct(type_) or (pa.types.is_list(type_) and _has_struct(type_.value_type))
    )


def _has_wkb(type_: pa.StructType) -> bool:
    field_index = type_.get_field_index(_WKB)
    return field_index >= 0 and is_text(type_.field(field_index).type)


def _without(column: pa.Array, where: Mask) -> pa.Array:
    return column.take(pa.array(np.arange(len(column)), mask=where))


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)


class ParsedObject(NamedTuple):
    """An object in a JSON payload."""

    header: bytes
    """Confluent's header, or nothing."""
    document: Any
    row: JsonObject
    """The object; part of the document."""


def parse_object(payload: bytes, path: tuple[str, ...]) -> ParsedObject | None:
    """Parse a payload and find the object at a path, after unwrapping a Connect message.

    None for invalid JSON, or if there is no such object.
    """
    header = payload[:5] if payload[:1] == b"\0" else b""
    try:
        document = parse_document(payload[len(header) :].decode())
    except ValueError:
        return None
    row = document
    members = dict(row) if isinstance(row, JsonObject) else {}
    if tuple(members) == _WRAPPED:
        row = members[_WRAPPED[1]]
    for name in path:
        row = dict(row).get(name) if isinstance(row, JsonObject) else None
    return ParsedObject(header, document, row) if isinstance(row, JsonObject) else None
