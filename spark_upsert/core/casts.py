"""Checked user data conversion (`convert`, `try_convert`): a valid value or an error.

Nothing else casts user data, because Arrow's casts trust their input (docs/adr/0048).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core import decimals
from spark_upsert.core.arrow_types import BOOL8, UUID, storage_type
from spark_upsert.core.keys import Mask, is_text
from spark_upsert.core.threads import Rounding, is_sound, require_offsets, shorten, unsound_rows
from spark_upsert.core.timestamps import DAYS_MAX, DAYS_MIN, parse_times

_SECONDS = 86_400
_PER_DAY = {
    "s": _SECONDS,
    "ms": _SECONDS * 1_000,
    "us": _SECONDS * 1_000_000,
    "ns": _SECONDS * 1_000_000_000,
}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def cast_temporal(
    values: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    """Convert between date and timestamp types; also return a mask of invalid values.

    Called by `try_convert`. Invalid are years outside 0001 to 9999. With `Rounding.EXACT` so are
    values too fine for the unit: a timestamp becomes a date only at midnight. Any other rounding
    rounds down.
    """
    if pa.types.is_date64(type_) and values.type != type_:
        days, bad = cast_temporal(values, pa.date32(), rounding)
        return pc.cast(days, type_), bad
    if pa.types.is_date(type_) and getattr(values.type, "tz", None) not in (None, "UTC"):
        values = pc.local_timestamp(values)
    source_per_day, target_per_day = _per_day(values.type), _per_day(type_)
    least, most = (
        max(DAYS_MIN * source_per_day, _LEAST),
        min((DAYS_MAX + 1) * source_per_day - 1, _MOST),
    )
    if target_per_day > source_per_day:
        # In nanoseconds there are no other years than 1677 to 2262.
        least, most = (
            max(least, -(_MOST // (target_per_day // source_per_day))),
            min(most, _MOST // (target_per_day // source_per_day)),
        )
    numbers = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    bad = np.zeros(len(values), dtype=np.bool_)
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    is_inside = low is None or least <= low <= high <= most
    if is_inside and values.type == type_:
        return values, bad
    ints = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not is_inside:
        bad = (ints < least) | (ints > most)
        ints = np.where(bad, 0, ints)
    if target_per_day >= source_per_day:
        ints = ints * (target_per_day // source_per_day)
    else:
        rounded_ints = ints // (source_per_day // target_per_day)
        if rounding is Rounding.EXACT:
            bad |= rounded_ints * (source_per_day // target_per_day) != ints
        ints = rounded_ints
    storage = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    mask = ~np.asarray(values.is_valid()) | bad
    return pa.array(ints.astype(storage.to_pandas_dtype()), storage, mask=mask).view(type_), bad


def _per_day(type_: pa.DataType) -> int:
    """Return how many of a date or timestamp type's units are in a day."""
    if pa.types.is_timestamp(type_):
        return _PER_DAY[type_.unit]
    return _PER_DAY["ms"] if pa.types.is_date64(type_) else 1


Datum = Any
"""A `pyarrow.Array`, `ChunkedArray` or `Scalar`; pyarrow has no type hints."""


class UnfitError(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow is untyped.
    """A value is invalid for its target type.

    A subclass of Arrow's error, so that callers handle Arrow's failed casts alike.
    """


def convert(values: Datum, type_: pa.DataType, rounding: Rounding = Rounding.EXACT) -> Datum:
    """Convert an array, chunked array or scalar; raise `UnfitError` for an invalid value."""
    if isinstance(values, pa.Scalar):
        return convert(pa.repeat(values, 1), type_, rounding)[0]
    if isinstance(values, pa.ChunkedArray):
        chunks = [convert(chunk, type_, rounding) for chunk in values.chunks]
        return pa.chunked_array(chunks, type_)
    result, bad = try_convert(values, type_, rounding)
    if bad.any():
        raise UnfitError(_reason(values, type_, int(np.argmax(bad))))
    return result


def round_decimals(values: Datum, places: int, rounding: Rounding = Rounding.HALF_UP) -> Datum:
    """Round decimals to ``places`` fraction digits, in Spark's result type."""
    if isinstance(values, pa.Scalar):
        return round_decimals(pa.repeat(values, 1), places, rounding)[0]
    type_ = decimals.rounding_type(values.type, places)
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array(
            [round_decimals(chunk, places, rounding) for chunk in values.chunks], type_
        )
    result, bad = decimals.round_at(values, places, type_, rounding)
    if bad.any():
        raise UnfitError(_reason(values, type_, int(np.argmax(bad))))
    return result


def try_convert(
    values: pa.Array, type_: pa.DataType, rounding: Rounding = Rounding.EXACT
) -> tuple[pa.Array, Mask]:
    """Convert an array to another type; also return a mask of invalid values.

    Notes
    -----
    An array that already has the type is returned unchanged, except that times are checked and
    every NaN gets the same bits. Invalid are:

    - *decimal*: more digits than `Rounding` or the precision allows (`decimals`); a float is
      converted by its shortest text and rounded half up;
    - *integer*: fractions unless rounded, values out of range, NaN;
    - *float*: texts that are not a number or out of range, integers without an exact float unless
      rounded; a decimal becomes the nearest float;
    - *date, timestamp*: years outside 0001 to 9999 in UTC;
    - *boolean*: numbers other than 0 and 1;
    - *bytes and others*: values that Arrow refuses. Bytes are parsed as text.

    Decimals and UUIDs have one text form each. A number is never converted to a time, nor a
    timestamp to a time of day. A time without a zone is in UTC; a date uses the timestamp's zone.
    """
    if _is_uuid(values.type) and kind_of(type_) == "text":
        values = _texts_of_uuids(values.storage)
    values = _without_extension(values)
    if pa.types.is_dictionary(values.type):
        return _convert_dictionary(values, type_, rounding)
    sound = is_sound(values)
    if sound and values.type == type_ and not _is_examined(type_):
        return values, _zeros(values)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), type_), _zeros(values)
    nested = next((rule for is_kind, rule in _NESTED if is_kind(type_)), None)
    if nested is not None:
        if any(map(pa.types.is_run_end_encoded, _inner_types(values.type))):
            raise pa.ArrowNotImplementedError(f"run-end encoded values in {values.type}")
        require_offsets(values)
        return nested(values, type_, rounding)
    if not sound:
        unsound = unsound_rows(values)
        result, bad = try_convert(_set_null(values, unsound), type_, rounding)
        return result, bad | unsound
    rule = _RULES.get((kind_of(values.type), kind_of(type_)))
    if rule is not None:
        return rule(values, type_, rounding)
    _require_unit(values.type, type_)
    result = pc.cast(values, type_)
    is_examined = kind_of(type_) in _CHECKED_KINDS
    return try_convert(result, type_) if is_examined else (result, _zeros(values))


def _set_null(values: pa.Array, rows: Mask) -> pa.Array:
    """Return values with nulls at masked rows."""
    return values.take(pa.array(np.arange(len(values)), mask=rows))


def to_readable(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Convert values to their storage type; also return a mask of values that Python cannot read.

    The mask contains times outside the years 0001 to 9999 and values invalid for their type.
    """
    return try_convert(values, storage_type(values.type))


def _reason(values: pa.Array, type_: pa.DataType, row: int) -> str:
    """Return why a value is invalid for a type."""
    return f"{_shown(values[row])} is no {type_}{range_of(type_)}"


def _shown(value: pa.Scalar) -> str:
    text = shown_value(value)
    return shorten(repr(text) if is_text(value.type) else text)


def shown_value(value: pa.Scalar) -> str:
    """Return a value's text, even if Python has no such value."""
    if isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar):
        return shown_value(value.value)
    try:
        return str(value.as_py())
    except UnicodeDecodeError:
        return bytes(value.as_buffer()).decode(errors="backslashreplace")
    except (ValueError, OverflowError):
        since = " since 1970" if kind_of(value.type) in ("date", "time") else ""
        return f"{value.value} ({value.type}{since})"


def range_of(type_: pa.DataType) -> str:
    """Return a type's value range in brackets; empty if any value fits."""
    if pa.types.is_decimal(type_):
        integer_digits = type_.precision - type_.scale
        return f" ({integer_digits} digits before the point, {type_.scale} behind it)"
    if pa.types.is_integer(type_):
        least, most = decimals.bounds_of(type_)
        return f" (a whole number from {least} to {most})"
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return " (of the years 0001 to 9999)"
    if pa.types.is_time(type_):
        return " (within a day)"
    return " (in UTF-8)" if pa.types.is_string(type_) else ""


def _inner_types(type_: pa.DataType) -> list[pa.DataType]:
    """Return the types directly nested in a type."""
    if pa.types.is_map(type_):
        return [type_.key_type, type_.item_type]
    return [type_.field(index).type for index in range(type_.num_fields)]


# -- nested types ----------------------------------------------------------------------------


def _struct(values: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    if not pa.types.is_struct(values.type):
        raise pa.ArrowTypeError(f"{values.type} is no {type_}")
    names = [field.name for field in values.type]
    index_by_name = {name: index for index, name in enumerate(names)}
    is_same = names == [field.name for field in type_]
    if len(index_by_name) < len(names) and not is_same:
        raise pa.ArrowTypeError(f"{values.type} has two fields of one name")
    extra = index_by_name.keys() - {field.name for field in type_}
    if extra:
        raise pa.ArrowTypeError(f"{type_} has no field '{min(extra)}' of {values.type}")
    # Flattened: without the values under a null struct.
    children = values.flatten()
    parts, bad = [], _zeros(values)
    for index, field in enumerate(type_):
        if field.name in index_by_name:
            position = index if is_same else index_by_name[field.name]  # A name may be there twice.
            part, bad_part = try_convert(children[position], field.type, rounding)
            bad |= bad_part
        else:
            part = pa.nulls(len(values), field.type)
        parts.append(part)
    return _struct_of(parts, values, type_), bad


def _struct_of(parts: list[pa.Array], like: pa.Array, type_: pa.DataType) -> pa.Array:
    mask = like.is_null() if like.null_count else None
    if not parts:
        bits = None if mask is None else pc.invert(mask).buffers()[1]
        return pa.Array.from_buffers(type_, len(like), [bits])
    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=mask)


def _list(values: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    item = getattr(values.type, "value_type", None)
    if item is None:
        raise pa.ArrowTypeError(f"{values.type} is no {type_}")
    items, bad_items = try_convert(_items(values), type_.value_type, rounding)
    offsets = _offsets(values)
    mask = values.is_null() if values.null_count else None
    result = pa.ListArray.from_arrays(
        pa.array(offsets), items, type=pa.list_(type_.value_field), mask=mask
    )
    return result if result.type == type_ else pc.cast(result, type_), _holding(bad_items, offsets)


def _map(values: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    if not pa.types.is_map(values.type):
        raise pa.ArrowTypeError(f"{values.type} is no {type_}")
    pairs = _as_pairs(values)
    (keys, bad), (items, bad_items) = (
        try_convert(part, wanted_type, rounding)
        for part, wanted_type in zip(
            _items(pairs).flatten(), (type_.key_type, type_.item_type), strict=True
        )
    )
    offsets = _offsets(pairs)
    mask = values.is_null() if values.null_count else None
    bad = bad | bad_items
    if bad.any():  # A key is never null, so that a bad map has none of its pairs.
        lost = _holding(bad, offsets)
        return _map(_without_maps(values, lost), type_, rounding)[0], lost
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type_, mask=mask), _zeros(values)


def _as_pairs(maps: pa.Array) -> pa.Array:
    """Return maps as lists of structs, without a cast.

    A cast refuses null structs with fields declared not null, as Spark declares them.
    """
    pairs = maps.values
    return pa.Array.from_buffers(
        pa.list_(pairs.type), len(maps), maps.buffers()[:2], offset=maps.offset, children=[pairs]
    )


def _items(lists: pa.Array) -> pa.Array:
    """Return all lists' items. Arrow cannot create an empty array with an extension type."""
    return lists.flatten() if pc.max(pc.list_value_length(lists)).as_py() else lists.values[:0]


def _without_maps(maps: pa.Array, lost: Mask) -> pa.Array:
    """Return maps with nulls at lost rows. Arrow cannot select rows with an extension type."""
    remaining = ~lost & maps.is_valid().to_numpy(zero_copy_only=False)
    bits = pa.array(np.concatenate([np.zeros(maps.offset, np.bool_), remaining])).buffers()[1]
    return pa.Array.from_buffers(
        maps.type, len(maps), [bits, maps.buffers()[1]], offset=maps.offset, children=[maps.values]
    )


def _offsets(values: pa.Array) -> np.ndarray:
    """Return list offsets into the flattened items, starting at 0."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"{offsets[-1]} items of lists are too many for one array")
    return offsets.astype(np.int32)


def _holding(bad: Mask, offsets: np.ndarray) -> Mask:
    """Return a mask of lists that contain a bad item."""
    lists = np.zeros(len(offsets) - 1, dtype=np.bool_)
    lists[np.searchsorted(offsets, np.flatnonzero(bad), side="right") - 1] = True
    return lists


_Rule = Callable[[pa.Array, pa.DataType, Rounding], tuple[pa.Array, Mask]]

_NESTED: tuple[tuple[Callable[[pa.DataType], bool], _Rule], ...] = (
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (lambda type_: pa.types.is_list(type_) or pa.types.is_large_list(type_), _list),
)


# -- texts -----------------------------------------------------------------------------------

_INTEGER = r"\A[+-]?[0-9]+\z"
_SHORT_INTEGER = r"\A-?[0-9]{1,18}\z"
_BOOLEAN = r"\A(?i:true|false|1|0)\z"
_INFINITE = r"\A[+-]?(?i:inf|infinity)\z"
_FLOAT = (
    r"\A(?:[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|"
    r"[+-]?(?i:inf|infinity|nan))\z"
)


def _integers_of_texts(texts: pa.Array, type_: pa.DataType, _: Rounding) -> tuple[pa.Array, Mask]:
    if pc.all(pc.match_substring_regex(texts, _SHORT_INTEGER), min_count=0).as_py():
        return _integers_of_integers(pc.cast(texts, pa.int64()), type_, Rounding.EXACT)
    is_integer = pc.match_substring_regex(texts, _INTEGER)
    wide, bad = decimals.from_texts(
        pc.if_else(is_integer, texts, None), pa.decimal128(20, 0), Rounding.EXACT
    )
    result, bad_range = decimals.to_integers(wide, type_, Rounding.EXACT)
    return result, bad | bad_range | ~_true_or_null(is_integer)


def _floats_of_texts(texts: pa.Array, type_: pa.DataType, _: Rounding) -> tuple[pa.Array, Mask]:
    is_number = pc.match_substring_regex(texts, _FLOAT)
    result = pc.cast(pc.if_else(is_number, texts, None), type_)
    bad = ~_true_or_null(is_number)
    is_large = pc.is_inf(result).fill_null(False)
    if pc.any(is_large, min_count=0).as_py():
        is_large = pc.and_not(is_large, pc.match_substring_regex(texts, _INFINITE))
        bad |= np.asarray(is_large.fill_null(False))
        result = pc.if_else(pa.array(bad), None, result)
    return result, bad


def _booleans_of_texts(texts: pa.Array, type_: pa.DataType, _: Rounding) -> tuple[pa.Array, Mask]:
    is_known = pc.match_substring_regex(texts, _BOOLEAN)
    return pc.cast(pc.if_else(is_known, texts, None), type_), ~_true_or_null(is_known)


def _booleans_of_numbers(
    numbers: pa.Array, type_: pa.DataType, _: Rounding
) -> tuple[pa.Array, Mask]:
    if pa.types.is_float16(numbers.type):
        numbers = pc.cast(numbers, pa.float32())
    is_known = pc.is_in(numbers, pa.array([0, 1], numbers.type))
    is_known = pc.or_(is_known, numbers.is_null())
    return pc.cast(pc.if_else(is_known, numbers, None), type_), ~_true_or_null(is_known)


def _times_of_texts(texts: pa.Array, type_: pa.DataType, _: Rounding) -> tuple[pa.Array, Mask]:
    if pa.types.is_date(type_):
        between = pa.date32()
    else:
        between = pa.timestamp("us", None if type_.tz is None else "UTC")
    result, bad = parse_times(texts, between)
    result, unfit = try_convert(result, type_)
    return result, bad | unfit


def _wrap_text_rule(rule: _Rule) -> _Rule:
    """Wrap a rule for strings so that it accepts every text layout."""
    return lambda texts, type_, rounding: rule(
        texts if pa.types.is_string(texts.type) else pc.cast(texts, pa.string()), type_, rounding
    )


_HYPHENS = (8, 13, 18, 23)
_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_PLACES = np.setdiff1d(np.arange(36), _HYPHENS)
"""Positions of hex digits in a UUID's canonical text (RFC 9562)."""


def _is_uuid(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.BaseExtensionType) and type_.extension_name == UUID


def _texts_of_uuids(values: pa.Array) -> pa.Array:
    """Format 16-byte UUIDs as canonical texts."""
    count, first = len(values), values.offset
    data = np.frombuffer(values.buffers()[1], dtype=np.uint8)[16 * first : 16 * (first + count)]
    digits = np.stack([data >> 4, data & 15], axis=1).reshape(count, 32)
    texts = np.full((count, 36), ord("-"), dtype=np.uint8)
    texts[:, _PLACES] = _DIGITS[digits]
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int64) * 36)
    buffers = [None, offsets, pa.py_buffer(texts)]
    uuid_texts = pc.cast(pa.Array.from_buffers(pa.large_string(), count, buffers), pa.string())
    return pc.if_else(values.is_valid(), uuid_texts, None) if values.null_count else uuid_texts


def _convert_bytes(
    values: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    return try_convert(pc.cast(values, pa.string()), type_, rounding)


# -- numbers ---------------------------------------------------------------------------------


def _integers_of_integers(
    numbers: pa.Array, type_: pa.DataType, _: Rounding
) -> tuple[pa.Array, Mask]:
    (least, most), (low, high) = decimals.bounds_of(type_), decimals.bounds_of(numbers.type)
    fits = [pc.less_equal(numbers, pa.scalar(most, numbers.type))] if high > most else []
    fits += [pc.greater_equal(numbers, pa.scalar(least, numbers.type))] if low < least else []
    bad = _zeros(numbers)
    for fit in fits:
        bad |= ~_true_or_null(fit)
    if bad.any():
        numbers = pc.if_else(pa.array(bad), None, numbers)
    return pc.cast(numbers, type_), bad


def _floats_of_integers(
    numbers: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    if rounding is not Rounding.EXACT:
        return pc.cast(numbers, type_, safe=False), _zeros(numbers)
    digits = np.finfo(type_.to_pandas_dtype()).nmant + 1
    least, most = decimals.bounds_of(numbers.type)
    bad = _zeros(numbers)
    if most > 1 << digits:
        bad |= ~_true_or_null(pc.less_equal(numbers, 1 << digits))
        bad |= ~_true_or_null(pc.greater_equal(numbers, -1 << digits)) if least < 0 else False
        numbers = pc.if_else(pa.array(bad), None, numbers) if bad.any() else numbers
    return pc.cast(numbers, type_, safe=False), bad


def _floats_of_decimals(
    numbers: pa.Array, type_: pa.DataType, _: Rounding
) -> tuple[pa.Array, Mask]:
    """Return the nearest floats; parsing the decimals' texts rounds to the nearest."""
    return pc.cast(pc.cast(numbers, pa.string()), type_), _zeros(numbers)


def _texts_of_decimals(numbers: pa.Array, type_: pa.DataType, _: Rounding) -> tuple[pa.Array, Mask]:
    return pc.cast(decimals.to_texts(numbers), type_), _zeros(numbers)


def _decimals_of_floats(
    numbers: pa.Array, type_: pa.DataType, _: Rounding
) -> tuple[pa.Array, Mask]:
    return decimals.from_texts(pc.cast(numbers, pa.string()), type_, Rounding.HALF_UP)


def _integers_of_floats(
    numbers: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    valid = np.asarray(numbers.is_valid())
    floats = np.where(valid, numbers.to_numpy(zero_copy_only=False), 0).astype(np.float64)
    integers = _WHOLE[rounding](floats)
    least, most = decimals.bounds_of(type_)
    # Floats that are powers of two, which the greatest integer need not be.
    bad = ~((integers >= float(least)) & (integers < float(most + 1)))
    if rounding is Rounding.EXACT:
        bad |= integers != floats
    result = np.where(bad, 0, integers).astype(type_.to_pandas_dtype())
    return pa.array(result, type_, mask=~valid | bad), bad


def _half_up(numbers: np.ndarray) -> np.ndarray:
    integers = np.trunc(numbers)
    return integers + np.copysign(np.abs(numbers - integers) >= 0.5, numbers)


_WHOLE: dict[Rounding, Callable[[np.ndarray], np.ndarray]] = {
    Rounding.EXACT: np.trunc,
    Rounding.DOWN: np.trunc,
    Rounding.CEILING: np.ceil,
    Rounding.FLOOR: np.floor,
    Rounding.HALF_UP: _half_up,
}


def _floats_of_floats(
    numbers: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    result = _with_one_nan(pc.cast(numbers, type_, safe=False))
    if type_.bit_width >= numbers.type.bit_width or rounding is not Rounding.EXACT:
        return result, _zeros(numbers)
    is_lost = pc.and_not(pc.is_inf(result), pc.is_inf(numbers))
    bad = np.array(is_lost.fill_null(False))
    return pc.if_else(pa.array(bad), None, result) if bad.any() else result, bad


def _with_one_nan(numbers: pa.Array) -> pa.Array:
    """Give every NaN the same bits, because SQL readers see one NaN."""
    is_nan = pc.is_nan(numbers)
    if not pc.any(is_nan, min_count=0).as_py():
        return numbers
    return pc.if_else(is_nan, pa.scalar(float("nan"), numbers.type), numbers)


def _decimals_of_integers(
    numbers: pa.Array, type_: pa.DataType, _: Rounding
) -> tuple[pa.Array, Mask]:
    return decimals.from_integers(numbers, type_)


# -- which rule ------------------------------------------------------------------------------

_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("text", pa.types.is_string),
    ("text", pa.types.is_large_string),
    ("text", pa.types.is_string_view),
    ("decimal", pa.types.is_decimal),
    ("integer", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("boolean", pa.types.is_boolean),
    ("date", pa.types.is_date),
    ("time", pa.types.is_timestamp),
    ("time of day", pa.types.is_time),
    ("duration", pa.types.is_duration),
    ("bytes", pa.types.is_binary),
    ("bytes", pa.types.is_large_binary),
    ("bytes", pa.types.is_binary_view),
    ("bytes", pa.types.is_fixed_size_binary),
)

_RULES: dict[tuple[str, str], _Rule] = {
    ("text", "decimal"): _wrap_text_rule(decimals.from_texts),
    ("text", "integer"): _wrap_text_rule(_integers_of_texts),
    ("text", "float"): _wrap_text_rule(_floats_of_texts),
    ("text", "boolean"): _wrap_text_rule(_booleans_of_texts),
    ("text", "date"): _wrap_text_rule(_times_of_texts),
    ("text", "time"): _wrap_text_rule(_times_of_texts),
    ("bytes", "decimal"): _convert_bytes,
    ("bytes", "integer"): _convert_bytes,
    ("bytes", "float"): _convert_bytes,
    ("bytes", "boolean"): _convert_bytes,
    ("integer", "boolean"): _booleans_of_numbers,
    ("float", "boolean"): _booleans_of_numbers,
    ("decimal", "decimal"): decimals.from_decimals,
    ("decimal", "integer"): decimals.to_integers,
    ("decimal", "float"): _floats_of_decimals,
    ("decimal", "text"): _texts_of_decimals,
    ("integer", "integer"): _integers_of_integers,
    ("integer", "decimal"): _decimals_of_integers,
    ("integer", "float"): _floats_of_integers,
    ("float", "decimal"): _decimals_of_floats,
    ("float", "integer"): _integers_of_floats,
    ("float", "float"): _floats_of_floats,
    ("date", "date"): cast_temporal,
    ("date", "time"): cast_temporal,
    ("time", "date"): cast_temporal,
    ("time", "time"): cast_temporal,
}


_NUMBERS = frozenset({"integer", "float", "decimal"})
_TIMES = frozenset({"date", "time", "time of day", "duration"})


def _require_unit(source_type: pa.DataType, type_: pa.DataType) -> None:
    """Raise `ArrowTypeError` for casts in which Arrow would assume a unit or drop the date."""
    one, other_kind = kind_of(source_type), kind_of(type_)
    if one != other_kind and {one, other_kind} <= _NUMBERS | _TIMES:
        raise pa.ArrowTypeError(f"{source_type} is no {type_}")


@cache
def kind_of(type_: pa.DataType) -> str:
    """Return the kind of a non-nested type, as in `_RULES`; "other" if it is not listed."""
    return next((name for name, is_kind in _KINDS if is_kind(type_)), "other")


@cache
def _is_examined(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_is_examined(field.type) for field in type_)
    if pa.types.is_map(type_):
        return _is_examined(type_.key_type) or _is_examined(type_.item_type)
    if hasattr(type_, "value_type"):
        return _is_examined(type_.value_type)
    return kind_of(type_) in _CHECKED_KINDS


_CHECKED_KINDS = ("date", "time", "float")
"""Kinds whose values are checked even if they already have the target type."""


def _without_extension(values: pa.Array) -> pa.Array:
    """Unwrap extension types, views and run-end encoding to plain values."""
    if isinstance(values, pa.ExtensionArray):
        if values.type.extension_name == BOOL8:  # Arrow takes all integers but 0 for true.
            return pc.not_equal(values.storage, 0)
        return _without_extension(values.storage)
    if pa.types.is_string_view(values.type):  # Arrow takes no rows of views.
        return pc.cast(values, pa.string())
    if pa.types.is_binary_view(values.type):
        return pc.cast(values, pa.binary())
    return pc.run_end_decode(values) if pa.types.is_run_end_encoded(values.type) else values


def _convert_dictionary(
    values: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    """Convert a dictionary array; each entry is converted once.

    Arrow cannot take rows from views, which Polars uses in its dictionaries.
    """
    entries, bad_entries = try_convert(values.dictionary, type_, rounding)
    bad = _zeros(values)
    if bad_entries.any():
        bad = np.asarray(pa.array(bad_entries).take(values.indices).fill_null(False))
    return entries.take(values.indices), bad


def _zeros(values: pa.Array) -> Mask:
    return np.zeros(len(values), dtype=np.bool_)


def _true_or_null(found: pa.Array) -> Mask:
    """Return a mask in which null counts as true."""
    return np.asarray(found.fill_null(True).to_numpy(zero_copy_only=False), dtype=np.bool_)
