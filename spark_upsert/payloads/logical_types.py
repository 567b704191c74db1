"""Logical types in Kafka Connect and Debezium, converted to table types (`wire_of`), and Base64.

A `Wire` is the plain type in the message and the conversion to the declared type. A value that the
declared type cannot represent exactly is bad.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import convert, to_readable, try_convert
from spark_upsert.core.keys import Mask
from spark_upsert.payloads.decoder import Parts, Unreadable

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PADDING = ord("=")
_ZERO = ord("A")

_IS_DIGIT = np.zeros(256, dtype=np.bool_)
_IS_DIGIT[np.frombuffer(_ALPHABET, np.uint8)] = True


def decode_base64(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Decode Base64 texts; the mask marks bad texts.

    Only canonical texts (RFC 4648, sections 3.5 and 4) are accepted, so that no two texts have the
    same bytes.
    """
    is_whole = pc.equal(pc.bit_wise_and(pc.binary_length(texts), 3), 0)
    complete_texts = pc.if_else(is_whole, texts, "").fill_null("").cast(pa.large_binary())
    ends = np.frombuffer(
        complete_texts.buffers()[1], np.int64, len(complete_texts) + 1, complete_texts.offset * 8
    )
    digits = np.frombuffer(complete_texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]].copy()
    ends = ends - ends[0]
    full = np.flatnonzero(np.diff(ends))
    one = full[digits[ends[full + 1] - 1] == _PADDING]
    two = one[digits[ends[one + 1] - 2] == _PADDING]
    pads = np.concatenate([ends[one + 1] - 1, ends[two + 1] - 2])
    digits[pads] = _ZERO
    strays = np.flatnonzero(~_IS_DIGIT[digits])
    digits[strays] = _ZERO
    decoded = np.frombuffer(binascii.a2b_base64(digits.data), np.uint8)
    dropped = pads // 4 * 3 + pads % 4 - 1
    wrong = np.concatenate([strays, pads[decoded[dropped] != 0]])
    is_bad = ~np.asarray(is_whole.fill_null(True).to_numpy(zero_copy_only=False))
    is_bad[np.searchsorted(ends, wrong, side="right") - 1] = True
    offsets = ends // 4 * 3
    offsets[1:] -= np.cumsum(np.bincount(np.concatenate([one, two]), minlength=len(texts)))
    decoded_bytes = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(texts),
        [None, pa.py_buffer(offsets), pa.py_buffer(np.delete(decoded, dropped))],
    ).cast(pa.binary())
    return pc.if_else(pc.and_(texts.is_valid(), pa.array(~is_bad)), decoded_bytes, None), is_bad


Faults = list[tuple[str, Mask]]
"""Reasons for failed conversions, each with a mask of the failed values."""


class TimeUnit(Enum):
    """The unit of a numeric timestamp."""

    MILLIS = "millis"
    MICROS = "micros"
    NANOS = "nanos"


class DecimalForm(Enum):
    """Debezium's ``decimal.handling.mode``."""

    PRECISE = "precise"
    STRING = "string"
    DOUBLE = "double"


@dataclass(frozen=True, kw_only=True)
class SchemalessDefaults:
    """Units and decimal forms for messages without a schema."""

    unit: TimeUnit | None = None
    """The unit for numbers in TIMESTAMP_NTZ columns."""
    units: Mapping[str, TimeUnit] = field(default_factory=dict)
    """Units by lower-case column name, for TIMESTAMP and TIMESTAMP_NTZ columns."""
    decimals: DecimalForm | None = None

    def of(self, column: str, type_: pa.DataType) -> TimeUnit | None:
        """Return the unit for numbers in a column; None if its values are texts."""
        # A zoned timestamp is always a text, as Debezium writes it.
        has_zone = pa.types.is_timestamp(type_) and type_.tz is not None
        return self.units.get(column.lower(), None if has_zone else self.unit)


@dataclass(frozen=True)
class ConnectSchema:
    """A Connect schema for one value."""

    type: str
    """``int64``, ``bytes``, ``struct``, ..."""
    name: str | None = None
    """The logical type, such as ``io.debezium.time.MicroTimestamp``."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, ConnectSchema] = field(default_factory=dict)
    """A struct's fields."""
    items: ConnectSchema | None = None
    """An array's item schema."""

    @classmethod
    def parse(cls, record: Any) -> ConnectSchema:
        """Parse a schema in Connect's JSON form; raises `Unreadable`."""
        try:
            return cls._of(record, Parts(), 0)
        except UnicodeEncodeError as error:
            raise Unreadable("a name in the message's schema is half a surrogate pair") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise Unreadable("the message's schema is not one of Kafka Connect") from error

    @classmethod
    def _of(cls, record: Any, parts: Parts, depth: int) -> ConnectSchema:
        parts.enter(depth)
        fields = {
            str(part["field"]): cls._of(part, parts, depth + 1)
            for part in record.get("fields") or ()
        }
        "".join(fields).encode()
        items, name = record.get("items"), record.get("name")
        return cls(
            type=str(record["type"]),
            name=None if name is None else str(name),
            parameters={str(k): str(v) for k, v in (record.get("parameters") or {}).items()},
            fields=fields,
            items=None if items is None else cls._of(items, parts, depth + 1),
        )

    def __str__(self) -> str:
        return self.name or self.type


@dataclass(frozen=True)
class Wire:
    """The type in the message, and the conversion to the declared type."""

    type: pa.DataType
    convert: Callable[[pa.Array], tuple[pa.Array, Faults]]
    numbers: tuple[str, ...] = ()
    """Names of the members with a decimal in Base64, or with a number after `NUMBER_MARK`. A name
    appears once per such member; the value itself has an empty name."""


NUMBER_MARK = "#"
"""Prefix for a number converted to text; not a Base64 character."""

_Convert = Callable[[pa.Array], tuple[pa.Array, Mask]]
"""Returns values in the declared type, null if bad, and the mask of bad values."""

_Leaf = tuple[pa.DataType, _Convert | None]
"""A plain value's wire type, and the conversion to the declared type; None for no conversion."""

_WireOf = Callable[[pa.Field, ConnectSchema | None], Wire]

TIME_UNITS = {
    "io.debezium.time.Timestamp": TimeUnit.MILLIS,
    "io.debezium.time.MicroTimestamp": TimeUnit.MICROS,
    "io.debezium.time.NanoTimestamp": TimeUnit.NANOS,
    "org.apache.kafka.connect.data.Timestamp": TimeUnit.MILLIS,
}
ZONED = "io.debezium.time.ZonedTimestamp"
DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_DECIMAL_FORMS = {
    "string": DecimalForm.STRING,
    **dict.fromkeys(("float", "double", "int8", "int16", "int32", "int64"), DecimalForm.DOUBLE),
}
_TEXT, _BYTES = "string", "bytes"


def wire_of(
    column: str,
    declared: pa.DataType,
    connect_schema: ConnectSchema | None,
    schemaless_defaults: SchemalessDefaults,
    *,
    where: str,
) -> Wire:
    """Return a declared type's wire type and conversion; raises `Unreadable`.

    The message's schema decides; without a schema, the declared type, and an option for times and
    decimals. DATE is days since 1970 or ISO 8601 text; a timestamp is a number in a unit or text;
    DECIMAL is Base64, text or a number; BINARY is Base64. Other types are unchanged.

    Source: Kafka Connect's ``JsonConverter``; Debezium's ``time.precision.mode`` and
    ``decimal.handling.mode``.
    """
    if pa.types.is_struct(declared):

        def inside(part: pa.Field, connect_schema: ConnectSchema | None) -> Wire:
            return wire_of(
                column, part.type, connect_schema, schemaless_defaults, where=f"{where}.{part.name}"
            )

        return _struct(declared, connect_schema, inside)
    if pa.types.is_list(declared):
        items = (
            connect_schema.items
            if connect_schema is not None and connect_schema.type == "array"
            else None
        )
        return _list(
            wire_of(column, declared.value_type, items, schemaless_defaults, where=where), declared
        )
    leaf: _Leaf | None
    if pa.types.is_timestamp(declared):
        leaf = _timestamp(declared, connect_schema, schemaless_defaults.of(column, declared))
    elif pa.types.is_date32(declared):
        leaf = _date(connect_schema)
    elif pa.types.is_decimal(declared):
        leaf = _decimal(declared, connect_schema, schemaless_defaults.decimals)
    elif pa.types.is_binary(declared):
        is_bytes = connect_schema is None or (
            connect_schema.type == _BYTES and connect_schema.name != DECIMAL
        )
        leaf = (pa.string(), decode_base64) if is_bytes else None
    else:
        # A text of a decimal in Base64 is of no use to anybody.
        is_other = connect_schema is not None and connect_schema.name in (
            DECIMAL,
            _VARIABLE_DECIMAL,
        )
        leaf = None if is_other else (declared, None)
    if leaf is None and connect_schema is None:
        raise Unreadable(
            f"'{where}' is declared {declared}, and messages without a schema do not say how it is "
            "written; the option 'decimalHandling' does"
        )
    if leaf is None:
        raise Unreadable(
            f"'{where}' is declared {declared}, and the message's schema says {connect_schema}"
        )
    name = None if connect_schema is None else connect_schema.name
    is_base64 = pa.types.is_decimal(declared) and leaf[0] == pa.string() and name in (None, DECIMAL)
    reason = f"'{where}' is declared {declared}, and holds what is not of this type or range"
    is_time = connect_schema is None and pa.types.is_timestamp(declared)
    unit = schemaless_defaults.of(column, declared) if is_time else TIME_UNITS.get(name or "")
    wire = _leaf_wire(*leaf, f"{reason}{_advice(unit)}")
    return replace(wire, numbers=("",)) if is_base64 else wire


def _advice(unit: TimeUnit | None) -> str:
    """Return the advice for a time unit finer than the column's type; empty for other units."""
    if unit is not TimeUnit.NANOS:
        return ""
    return (
        " (nanoseconds that are no whole microseconds: set the connector's "
        "time.precision.mode=microseconds, or declare BIGINT)"
    )


def _leaf_wire(type_: pa.DataType, convert: _Convert | None, reason: str) -> Wire:
    def with_reason(array: pa.Array) -> tuple[pa.Array, Faults]:
        if convert is None:
            return array, []
        converted, bad = convert(array)
        return converted, [(reason, bad)] if bad.any() else []

    return Wire(type_, with_reason)


def object_wire(
    fields: pa.Schema,
    connect_schema: ConnectSchema | None,
    schemaless_defaults: SchemalessDefaults,
    *,
    images: Collection[str] = (),
) -> Wire:
    """Return the wire for an object; fields named in ``images`` are rows with columns."""

    def member(part: pa.Field, connect_schema: ConnectSchema | None) -> Wire:
        if part.name in images:
            return _struct(
                part.type, connect_schema, lambda own, s: column(own, s, f"{part.name}.")
            )
        return column(part, connect_schema)

    def column(part: pa.Field, connect_schema: ConnectSchema | None, above: str = "") -> Wire:
        return wire_of(
            part.name, part.type, connect_schema, schemaless_defaults, where=f"{above}{part.name}"
        )

    if connect_schema is not None and connect_schema.type != "struct":
        raise Unreadable(f"expected the schema of an object, found that of {connect_schema}")
    return _struct(pa.struct(list(fields)), connect_schema, member)


def natural_wire(
    written: pa.DataType,
    connect_schema: ConnectSchema | None,
    *,
    keep: Collection[str] | None = None,
    where: str = "",
) -> tuple[pa.DataType, Wire]:
    """Return the table type for a written type, and its wire.

    ``keep`` selects fields by dotted name; None keeps all.
    """
    if pa.types.is_struct(written):
        parts: dict[str, tuple[pa.DataType, Wire]] = {}
        leading = None if keep is None else _leading(keep)
        for part in written.fields:
            name = f"{where}.{part.name}" if where else part.name
            if leading is None or name in leading:
                inside = None if keep is None or name in keep else keep
                of_part = None if connect_schema is None else connect_schema.fields.get(part.name)
                parts[part.name] = natural_wire(part.type, of_part, keep=inside, where=name)
        type_ = pa.struct([pa.field(name, type_) for name, (type_, _) in parts.items()])
        return type_, _struct(type_, None, lambda part, _: parts[part.name][1])
    if pa.types.is_list(written):
        of_items = None if connect_schema is None else connect_schema.items
        type_, item = natural_wire(written.value_type, of_items, where=where)
        type_ = pa.list_(pa.field("element", type_))
        return type_, _list(item, type_)
    name = "" if connect_schema is None else connect_schema.name or ""
    leaf: _Leaf = (written, None)
    type_ = written
    if name in TIME_UNITS:
        type_, unit = pa.timestamp("us"), TIME_UNITS[name]
        # Avro has a timestamp of its own for Connect's: in UTC.
        as_number = written if pa.types.is_int64(written) else pa.int64()
        unit = unit if pa.types.is_int64(written) else TimeUnit.MICROS
        leaf = written, lambda array: _times(array.cast(as_number), unit, type_)
    elif name in DATES and pa.types.is_int32(written):
        type_ = pa.date32()
        leaf = written, _days
    elif name == ZONED and pa.types.is_string(written):
        type_ = pa.timestamp("us", tz="UTC")
        leaf = written, _zoned
    reason = f"'{where}' holds what is beyond the range of {type_}{_advice(TIME_UNITS.get(name))}"
    return type_, _leaf_wire(*leaf, reason)


def _leading(names: Collection[str]) -> frozenset[str]:
    """Return dotted names together with all their parents."""
    return frozenset(name[:end] for name in names for end in (*_dots(name), len(name)))


def _dots(name: str) -> list[int]:
    return [position for position, letter in enumerate(name) if letter == "."]


def _timestamp(
    declared: pa.DataType, connect_schema: ConnectSchema | None, unit: TimeUnit | None
) -> _Leaf | None:
    if connect_schema is not None:
        unit = TIME_UNITS.get(
            connect_schema.name or "", unit if connect_schema.name is None else None
        )
        if connect_schema.type == _TEXT:
            return declared, None
        if unit is None:
            return None
    if unit is None:
        return declared, None
    return pa.int64(), lambda array: _times(array, unit, declared)


def _date(connect_schema: ConnectSchema | None) -> _Leaf | None:
    if connect_schema is not None and connect_schema.type == _TEXT:
        return pa.date32(), None
    if connect_schema is not None and connect_schema.name not in DATES:
        return None
    return pa.int32(), _days


def _decimal(
    declared: pa.DataType, connect_schema: ConnectSchema | None, form: DecimalForm | None
) -> _Leaf | None:
    if connect_schema is not None and connect_schema.name == _VARIABLE_DECIMAL:
        type_ = pa.struct({"scale": pa.int32(), "value": pa.string()})
        return type_, lambda array: _variable_decimals(array, declared)
    scale: int | None = declared.scale
    if (
        connect_schema is not None
        and connect_schema.name == DECIMAL
        and connect_schema.type == _BYTES
    ):
        form, scale = (
            DecimalForm.PRECISE,
            parameter_number(connect_schema.parameters.get("scale", "")),
        )
    elif connect_schema is not None:
        form = _DECIMAL_FORMS.get(connect_schema.type)
    match form:
        case DecimalForm.PRECISE if scale is not None:
            return pa.string(), lambda array: _precise_decimals(array, scale, declared)
        case DecimalForm.STRING:
            return pa.string(), lambda array: try_convert(array, declared)
        case DecimalForm.DOUBLE:
            return declared, None
    return None


_NUMBER = re.compile(r"-?[0-9]{1,8}", re.ASCII)


def parameter_number(text: str) -> int | None:
    """Parse a schema parameter as an integer; None if it is not one."""
    return int(text) if _NUMBER.fullmatch(text) else None


def _struct(declared: pa.DataType, connect_schema: ConnectSchema | None, wire: _WireOf) -> Wire:
    """Return a struct's wire; a field missing in the schema is null."""
    known_fields = (
        connect_schema.fields
        if connect_schema is not None and connect_schema.type == "struct"
        else None
    )
    wires = []
    for part in declared.fields:
        if known_fields is not None and part.name not in known_fields:
            wires.append(_missing(part))
        else:
            wires.append(wire(part, None if known_fields is None else known_fields[part.name]))
    fields = [pa.field(f.name, w.type) for f, w in zip(declared.fields, wires, strict=True)]

    def convert(array: pa.Array) -> tuple[pa.Array, Faults]:
        # Flattened: below a null struct there is nothing to be wrong.
        children = dict(zip((f.name for f in array.type.fields), array.flatten(), strict=True))
        parts = [w.convert(children[f.name]) for w, f in zip(wires, fields, strict=True)]
        mask = array.is_null() if array.null_count else None
        columns = [column for column, _ in parts]
        structs = pa.StructArray.from_arrays(columns, fields=list(declared.fields), mask=mask)
        return structs, [fault for _, faults in parts for fault in faults]

    named = zip(declared.fields, wires, strict=True)
    numbers = tuple(name or part.name for part, w in named for name in w.numbers)
    return Wire(pa.struct(fields), convert, numbers)


def _missing(part: pa.Field) -> Wire:
    """Return the wire for a field missing in the schema; a value there is a fault."""
    return _leaf_wire(
        pa.string(),
        lambda array: (pa.nulls(len(array), part.type), _valid(array)),
        f"'{part.name}' is there, and not in the message's schema",
    )


_ITEM = "[]"
"""The name for array items in `Wire.numbers`."""


def _list(item: Wire, declared: pa.DataType) -> Wire:
    def convert(array: pa.Array) -> tuple[pa.Array, Faults]:
        values, faults = item.convert(array.flatten())
        lengths = pc.list_value_length(array).fill_null(0)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        mask = array.is_null() if array.null_count else None
        lists = pa.ListArray.from_arrays(pa.array(offsets), values, type=declared, mask=mask)
        return lists, [(reason, _lists_of(bad, offsets)) for reason, bad in faults]

    type_ = pa.list_(pa.field("element", item.type))
    return Wire(type_, convert, tuple(name or _ITEM for name in item.numbers))


def _lists_of(bad: Mask, offsets: npt.NDArray[np.int32]) -> Mask:
    """Return a mask for lists with a bad element."""
    lists = np.zeros(len(offsets) - 1, dtype=np.bool_)
    lists[np.searchsorted(offsets, np.flatnonzero(bad), side="right") - 1] = True
    return lists


# -- numbers to times --------------------------------------------------------------------

_UNITS = {TimeUnit.MILLIS: "ms", TimeUnit.MICROS: "us", TimeUnit.NANOS: "ns"}


def _days(array: pa.Array) -> tuple[pa.Array, Mask]:
    """Convert days since 1970 to dates; PostgreSQL's `infinity` is bad."""
    return to_readable(array.view(pa.date32()))


def _times(array: pa.Array, unit: TimeUnit, declared: pa.DataType) -> tuple[pa.Array, Mask]:
    return try_convert(array.view(pa.timestamp(_UNITS[unit])), declared)


def _valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


_ISO = (
    "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})$"
)


def _zoned(texts: pa.Array) -> tuple[pa.Array, Mask]:
    """Parse ISO 8601 texts with a zone as timestamps."""
    type_ = pa.timestamp("us", tz="UTC")
    has_form = pc.match_substring_regex(texts, _ISO)
    moments, _ = try_convert(pc.if_else(has_form, texts, None), type_)
    return moments, _valid(texts) & ~_valid(moments)


# -- decimals ----------------------------------------------------------------------------

_WORD_BYTES = 16
_DIGITS_MAX = 38
_LONG_BYTES_MAX = 64
"""Maximum bytes of an unscaled number that may reduce to few digits; more than `_WORD_BYTES`."""

_SCALES = (-_DIGITS_MAX, 2 * _DIGITS_MAX)
"""Beyond these scales, only zero fits into 38 digits with a scale from 0 to 38."""


def _precise_decimals(texts: pa.Array, scale: int, declared: pa.DataType) -> tuple[pa.Array, Mask]:
    """Convert Base64 texts, or numbers after `NUMBER_MARK`, to decimals."""
    is_number = pc.starts_with(texts, NUMBER_MARK).fill_null(False)
    decimals, bad = _base64_decimals(pc.if_else(is_number, None, texts), scale, declared)
    if not pc.any(is_number, min_count=0).as_py():
        return decimals, bad
    digits = pc.utf8_slice_codeunits(pc.if_else(is_number, texts, None), len(NUMBER_MARK))
    numbers, unfit = try_convert(digits, declared)
    return pc.if_else(is_number, numbers, decimals), bad | unfit


def _base64_decimals(texts: pa.Array, scale: int, declared: pa.DataType) -> tuple[pa.Array, Mask]:
    binary, bad = decode_base64(texts)
    decimals, unfit = _unscaled(binary, scale, declared)
    return decimals, bad | unfit


def _unscaled(binary: pa.Array, scale: int, declared: pa.DataType) -> tuple[pa.Array, Mask]:
    """Convert big-endian two's complement numbers to decimals; the mask marks inexact values."""
    if not len(binary):
        return pa.nulls(0, declared), np.zeros(0, dtype=np.bool_)
    present = _valid(binary)
    filled = binary.fill_null(b"\0")
    lengths = np.asarray(pc.binary_length(filled))
    bad = (lengths < 1) | (lengths > _WORD_BYTES)
    filled = pc.if_else(pa.array(bad), b"\0", filled)
    ends = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4)
    data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
    byte_indices = ends[1:, None] - 1 - np.arange(_WORD_BYTES)
    is_inside = byte_indices >= ends[:-1, None]
    signs = np.where(data[ends[:-1]] & 0x80, 0xFF, 0).astype(np.uint8)
    words = np.where(is_inside, data[np.maximum(byte_indices, 0)], signs[:, None]).astype(np.uint8)
    low, high = np.ascontiguousarray(words).view("<u8").reshape(-1, 2).T
    least, most = _SCALES
    # A number fits if its digits do, once the declared scale has added its zeros.
    is_coarse = 0 <= scale <= declared.scale
    spare = declared.precision - declared.scale + scale if is_coarse else _DIGITS_MAX
    bad |= _exceeds(high.view("<i8"), low, 10**spare - 1 if least <= scale <= most else 0)
    # Not `if_else`, which refuses decimals of more digits behind the point than in all.
    validity = pa.array(present & ~bad).buffers()[1]
    unscaled = pa.Array.from_buffers(
        pa.decimal128(_DIGITS_MAX, min(max(scale, least), most)),
        len(filled),
        [validity, pa.py_buffer(words.tobytes())],
    )
    if is_coarse:
        decimals = convert(unscaled, declared)
    else:
        decimals, unfit = try_convert(unscaled, declared)
        bad |= unfit
    return _with_long_numbers(decimals, bad, binary, scale)


def _with_long_numbers(
    found: pa.Array, bad: Mask, binary: pa.Array, scale: int
) -> tuple[pa.Array, Mask]:
    """Convert unscaled numbers over 38 digits that fit without their zeros, in a Python loop."""
    lengths = np.asarray(pc.binary_length(binary).fill_null(0))
    rows = np.flatnonzero(bad & (lengths >= _WORD_BYTES) & (lengths <= _LONG_BYTES_MAX))
    zeros = scale - found.type.scale
    if not len(rows) or not 0 < zeros <= 8 * _LONG_BYTES_MAX:
        return found, bad
    fits: dict[int, bytes] = {}
    for row in rows.tolist():
        quotient, remainder = divmod(int.from_bytes(binary[row].as_py(), signed=True), 10**zeros)
        if not remainder and abs(quotient) < 10**found.type.precision:
            fits[row] = quotient.to_bytes(_WORD_BYTES, "little", signed=True)
    chosen = list(fits)
    row_indices, bad = np.arange(len(found)), bad.copy()
    row_indices[chosen], bad[chosen] = len(found) + np.arange(len(chosen)), False
    words = pa.py_buffer(b"".join(fits.values()))
    added = pa.Array.from_buffers(found.type, len(chosen), [None, words])
    return pa.concat_arrays([found, added]).take(pa.array(row_indices)), bad


def _exceeds(high: npt.NDArray[np.int64], low: npt.NDArray[np.uint64], bound: int) -> Mask:
    """Return a mask for 128-bit numbers outside plus or minus a bound."""

    def less(number: int) -> Mask:
        top, low_word = number >> 64, np.uint64(number & (2**64 - 1))
        return (high < top) | ((high == top) & (low < low_word))

    return less(-bound) | ~less(bound + 1)


def _variable_decimals(array: pa.Array, declared: pa.DataType) -> tuple[pa.Array, Mask]:
    """Convert decimals with a scale per value, in one step per distinct scale."""
    present = _valid(array)
    has_scale = _valid(array.field("scale"))
    scales = array.field("scale").fill_null(0).to_numpy(zero_copy_only=False)
    binary, bad = decode_base64(array.field("value"))
    bad = bad | ~_valid(binary) | ~has_scale
    decimals = pa.nulls(len(array), declared)
    for scale in np.unique(scales[present & ~bad]):
        has_declared_scale = pa.array(present & ~bad & (scales == scale))
        numbers, unfit = _unscaled(
            pc.if_else(has_declared_scale, binary, None), int(scale), declared
        )
        decimals = pc.if_else(has_declared_scale, numbers, decimals)
        bad = bad | unfit
    return decimals, bad & present
