"""PostgreSQL types as Arrow types, and PostgreSQL's text form as Arrow values (`ValueType`).

Replication and ``COPY`` in text form use the same output functions, so one conversion serves both.
It assumes the session settings `SETTINGS`. Numbers, times and truth values are checked by
`spark_upsert.core.casts`; everything without an exact Arrow type stays text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import try_convert
from spark_upsert.core.decimals import DIGITS_MAX
from spark_upsert.core.keys import Mask

SETTINGS: Mapping[str, str] = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "timezone": "UTC",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Session settings: without them, settings of the role or the database change the text forms."""

TypeNames: TypeAlias = Mapping[int, tuple[str, str]]
"""Schema and name by OID, for types that are not built in. A domain has its base type's name."""

Bytes: TypeAlias = npt.NDArray[np.uint8]

_TEXT = pa.string()
_BUILT_IN = (
    ("bool", 16, 1000, pa.bool_()),
    ("bytea", 17, 1001, pa.binary()),
    ("int8", 20, 1016, pa.int64()),
    ("int2", 21, 1005, pa.int16()),
    ("int4", 23, 1007, pa.int32()),
    ("oid", 26, 1028, pa.int64()),
    ("float4", 700, 1021, pa.float32()),
    ("float8", 701, 1022, pa.float64()),
    ("date", 1082, 1182, pa.date32()),
    ("timestamp", 1114, 1115, pa.timestamp("us")),
    ("timestamptz", 1184, 1185, pa.timestamp("us", "UTC")),
    ("numeric", 1700, 1231, None),  # By its modifier.
    ("text", 25, 1009, _TEXT),
    ("varchar", 1043, 1015, _TEXT),
    ("bpchar", 1042, 1014, _TEXT),
    ("time", 1083, 1183, _TEXT),
    ("uuid", 2950, 2951, _TEXT),
    ("json", 114, 199, _TEXT),
    ("jsonb", 3802, 3807, _TEXT),
)
"""Built-in types: name, OID, OID of the array, and Arrow type (``pg_type.dat``)."""

_NAMES = {
    **{oid: name for name, oid, _, _ in _BUILT_IN},
    **{oid: f"_{name}" for name, _, oid, _ in _BUILT_IN},
}
_ARROW = {name: arrow for name, _, _, arrow in _BUILT_IN}
_BUILT_IN_SCHEMAS = ("", "pg_catalog")


@dataclass(frozen=True, slots=True)
class ValueType:
    """A column's type."""

    name: str
    """PostgreSQL's name for it, for messages."""
    arrow: pa.DataType

    def read(self, texts: pa.StringArray) -> tuple[pa.Array, Mask]:
        """Convert text forms; also return a mask of values without an Arrow value.

        These are for example ``infinity`` as a date, ``NaN`` as a decimal, years outside 0001 to
        9999 and arrays with more than one dimension. Their result is null.
        """
        return _read(texts, self.arrow)


def value_type(oid: int, modifier: int, names: TypeNames) -> ValueType:
    """Return the type for a column's type OID and modifier (-1 for none).

    Types that are neither built in nor in ``names`` are text.
    """
    schema, name = names.get(oid, ("", _NAMES.get(oid, f"type {oid}")))
    if schema not in _BUILT_IN_SCHEMAS:
        return ValueType(f"{schema}.{name}", pa.string())
    if name.startswith("_") and name[1:] in _ARROW:
        return ValueType(f"{name[1:]}[]", pa.list_(_scalar(name[1:], modifier)))
    return ValueType(name, _scalar(name, modifier))


def _scalar(name: str, modifier: int) -> pa.DataType:
    return _ARROW.get(name, _TEXT) or _decimal(modifier)


def _decimal(modifier: int) -> pa.DataType:
    """Return the decimal type for a modifier, or text where 38 digits do not suffice.

    Source: PostgreSQL, ``numeric_typmod_precision`` and ``numeric_typmod_scale`` (numeric.c): 16
    bits for the precision, 11 signed bits for the scale.
    """
    if modifier < 4:
        return pa.string()
    precision, scale = (modifier - 4) >> 16, ((modifier - 4) & 0x7FF ^ 0x400) - 0x400
    # Above its scale, or with a negative one, the type has digits that a decimal must count.
    digits = max(precision - min(scale, 0), scale)
    return pa.decimal128(digits, max(scale, 0)) if digits <= DIGITS_MAX else pa.string()


def _read(texts: pa.StringArray, type_: pa.DataType) -> tuple[pa.Array, Mask]:
    if pa.types.is_list(type_):
        return _read_arrays(texts, type_)
    if pa.types.is_boolean(type_):
        values = pc.equal(texts, "t")
        return values, ~_mask(pc.or_(values, pc.equal(texts, "f")), at_null=True)
    if pa.types.is_binary(type_):
        return _read_hex(texts)
    return try_convert(texts, type_)


def _mask(values: pa.Array, *, at_null: bool) -> Mask:
    return np.asarray(values.fill_null(at_null).to_numpy(zero_copy_only=False), dtype=np.bool_)


_NO_DIGIT = 16
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


def _read_hex(texts: pa.StringArray) -> tuple[pa.Array, Mask]:
    r"""Convert ``\x`` and two hexadecimal digits per byte."""
    offsets, chars = _parts(texts)
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(texts)), lengths)
    is_digit = np.arange(len(chars)) - offsets[:-1][rows] >= 2
    digits = _DIGITS[chars]
    bad = _mask(texts.is_valid(), at_null=True) & ((lengths < 2) | (lengths % 2 != 0))
    bad[rows[is_digit & (digits == _NO_DIGIT)]] = True
    count = np.where(bad, 0, np.maximum(lengths - 2, 0) // 2)
    pairs = digits[is_digit & ~bad[rows]].reshape(-1, 2)
    ends = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    values = pa.BinaryArray.from_buffers(
        pa.binary(),
        len(texts),
        [None, pa.py_buffer(ends), pa.py_buffer(pairs[:, 0] << 4 | pairs[:, 1])],
    )
    return _null_where(values, bad | ~_mask(texts.is_valid(), at_null=True)), bad


def _parts(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Return offsets, starting at 0, and bytes."""
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(texts) + 1, texts.offset * 4)
    offsets = offsets.astype(np.int64)
    chars = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], chars


def _null_where(values: pa.Array, where: Mask) -> pa.Array:
    return values.take(pa.array(np.arange(len(values)), mask=where)) if where.any() else values


def is_escaped(is_backslash: Mask) -> Mask:
    """Return which bytes follow an odd number of backslashes."""
    indices = np.arange(len(is_backslash))
    last_other = np.maximum.accumulate(np.where(is_backslash, -1, indices))
    run = np.concatenate([[0], (indices - last_other)[:-1]]) if len(indices) else indices
    return np.asarray(run % 2 == 1)


_OPEN, _CLOSE, _COMMA, _QUOTE, _BACKSLASH = b'{},"\\'


def _read_arrays(texts: pa.StringArray, type_: pa.ListType) -> tuple[pa.Array, Mask]:
    """Convert array literals of one dimension; others are bad.

    Source: PostgreSQL, ``array_out`` (arrayfuncs.c): items with special characters are quoted, and
    quotes and backslashes within them escaped; bounds such as ``[0:1]=`` may precede the brace.
    """
    offsets, chars = _parts(texts)
    count = len(texts)
    rows = np.repeat(np.arange(count), np.diff(offsets))
    is_backslash = chars == _BACKSLASH
    escaped = is_escaped(is_backslash)
    quote = (chars == _QUOTE) & ~escaped
    plain = (np.cumsum(quote) % 2 == 0) & ~quote
    opens = np.flatnonzero(plain & (chars == _OPEN))
    valid = _mask(texts.is_valid(), at_null=True)
    bad = valid & (np.bincount(rows[opens], minlength=count) != 1)
    good = valid & ~bad
    first = np.zeros(count, np.int64)
    first[rows[opens]] = opens + 1
    # Every item ends at a comma or at the closing brace.
    is_end = plain & ((chars == _COMMA) | (chars == _CLOSE)) & good[rows]
    ends = np.flatnonzero(is_end)
    end_rows = rows[ends]
    is_first = np.concatenate([[True], end_rows[1:] != end_rows[:-1]])[: len(ends)]
    starts = np.where(is_first, first[end_rows], np.concatenate([[0], ends[:-1] + 1])[: len(ends)])
    is_item = ~(is_first & (chars[ends] == _CLOSE) & (starts == ends))
    starts, ends, end_rows = starts[is_item], ends[is_item], end_rows[is_item]
    kept = ~quote & ~(is_backslash & ~escaped & ~plain)
    kept_before = np.concatenate([[0], np.cumsum(kept)])
    items = take_slices(
        pa.py_buffer(chars[kept]), kept_before[starts], kept_before[ends] - kept_before[starts]
    )
    is_quoted = quote[starts] if len(starts) else np.zeros(0, np.bool_)
    items = pc.if_else(
        pa.array(~is_quoted & _mask(pc.equal(items, "NULL"), at_null=False)), None, items
    )
    values, bad_items = _read(items, type_.value_type)
    bad[end_rows[bad_items]] = True
    list_offsets = np.concatenate([[0], np.cumsum(np.bincount(end_rows, minlength=count))])
    lists = pa.ListArray.from_arrays(pa.array(list_offsets.astype(np.int32)), values, type=type_)
    return _null_where(lists, bad | ~valid), bad


def take_slices(
    data: pa.Buffer,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    present: Mask | None = None,
) -> pa.StringArray:
    """Copy pieces of a buffer into a text array; null where ``present`` is false.

    The pieces and the gaps between them are the elements of one array over the buffer, of which
    Arrow takes every second one: ten times as fast as an index per byte. The gaps, which may have
    a negative length, are never read. The buffer is limited to 2 GiB. The texts may contain invalid
    UTF-8.
    """
    if not len(starts):
        return pa.array([], pa.string())
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + lengths
    offsets[-1] = data.size
    pieces = pa.StringArray.from_buffers(2 * len(starts), pa.py_buffer(offsets), data)
    mask = None if present is None else ~present
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2), mask=mask))
