"""Key columns as ``uint64`` words (`ordered_words`), for hashes and comparisons in numpy.

Non-null values are equal exactly if their words and lengths are, and words order as values do.
Floats order as in Spark: ``-0.0 == 0.0``, NaN last. The caller keeps the validity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]
"""Row numbers or positions in another array, from 0."""

Mask = npt.NDArray[np.bool_]
"""A boolean per row."""

Signs = npt.NDArray[np.int8]
"""Comparison results: -1 where the first is smaller, 0 where equal, +1 otherwise."""


Words = npt.NDArray[np.uint64]

_SIGN = np.uint64(1 << 63)
_WORD_BYTES = 8


class Text(NamedTuple):
    """A text column's bytes, readable eight at a time from any position."""

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    loads: Words  # loads[i] is the little-endian word at byte i


def is_text(type_: pa.DataType) -> bool:
    """Return whether the type's values are byte sequences."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def is_hashable(type_: pa.DataType) -> bool:
    """Return whether a column with the type can be a key or an order key."""
    return is_text(type_) or bool(
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_float32(type_)
        or pa.types.is_float64(type_)
        or pa.types.is_date(type_)
        or pa.types.is_time(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_duration(type_)
        or pa.types.is_decimal128(type_)
    )


def validity(array: pa.Array) -> Mask | None:
    """Return a mask of non-null values, or None if there are no nulls."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def fixed_words(array: pa.Array) -> list[Words]:
    """Return a fixed-width column's words in two's complement, low word last.

    Nulls have arbitrary words. Floats are canonical: one NaN, one zero.
    """
    type_ = array.type
    if pa.types.is_decimal128(type_):
        halves = _elements(array.buffers()[1], np.uint64)
        halves = halves[2 * array.offset : 2 * (array.offset + len(array))]
        return [halves[1::2], halves[0::2]]
    if pa.types.is_floating(type_):
        values = _primitive(array, np.float32 if pa.types.is_float32(type_) else np.float64)
        with np.errstate(invalid="ignore"):  # A signalling NaN is a NaN like any other.
            doubles = values.astype(np.float64) + 0.0  # adding zero turns -0.0 into 0.0
        doubles[np.isnan(doubles)] = np.nan
        return [doubles.view(np.uint64)]
    if pa.types.is_boolean(type_):
        return [np.asarray(array.cast(pa.uint8()).fill_null(0)).astype(np.uint64)]
    dtype: np.dtype[Any] = np.dtype(f"{'u' if _is_unsigned(type_) else 'i'}{type_.bit_width // 8}")
    integers = _primitive(array, dtype)
    return [integers.astype(np.int64 if dtype.kind == "i" else np.uint64).view(np.uint64)]


def _is_unsigned(type_: pa.DataType) -> bool:
    return bool(pa.types.is_unsigned_integer(type_))


def _elements(buffer: pa.Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View a buffer as numbers; an incomplete number at its end is ignored."""
    return np.frombuffer(buffer, dtype=dtype, count=buffer.size // np.dtype(dtype).itemsize)


def _primitive(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View a primitive array's values without a copy."""
    values = _elements(array.buffers()[1], dtype)
    return values[array.offset : array.offset + len(array)]


def text_of(array: pa.Array) -> Text:
    """Return starts, lengths and an eight-byte load for each byte in a text column."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    stored = _elements(array.buffers()[1], np.int64 if wide else np.int32)
    offsets: npt.NDArray[np.int64] = stored[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    # Copied with a margin: a load at the last byte reads up to seven bytes beyond it.
    margin = np.zeros(last - first + _WORD_BYTES, dtype=np.uint8)
    data = array.buffers()[2]
    if data is not None and last > first:
        margin[: last - first] = np.frombuffer(data, dtype=np.uint8)[first:last]
    count = last - first + 1
    loads: Words = np.ndarray(shape=(count,), dtype="<u8", buffer=margin.data, strides=(1,))
    return Text(offsets[:-1] - first, np.diff(offsets), loads)


def keep_low_bytes(words: Words, counts: npt.NDArray[np.int64]) -> Words:
    """Zero all but the first ``counts`` (0 to 8) bytes in little-endian words."""
    byte_counts = np.clip(counts, 0, _WORD_BYTES).astype(np.uint64)
    shift = (np.uint64(_WORD_BYTES) - byte_counts) * np.uint64(8)
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    # A shift by 64 is undefined; a count of zero is masked apart.
    mask = np.where(byte_counts == 0, np.uint64(0), ones >> np.minimum(shift, np.uint64(63)))
    return words & mask


def ordered_words(array: pa.Array) -> list[Words]:
    """Return words that sort lexicographically like the values (nulls apart).

    Text becomes UTF-8 bytes, eight to a word, big-endian and padded with zeros; its length is the
    last word.
    """
    if is_text(array.type):
        return _ordered_text(array)
    words = fixed_words(array)
    if pa.types.is_floating(array.type):
        bits = words[0]
        negative = (bits & _SIGN) != 0
        return [np.where(negative, ~bits, bits | _SIGN)]
    if not (_is_unsigned(array.type) or pa.types.is_boolean(array.type)):
        words = [words[0] ^ _SIGN, *words[1:]]
    return words


def _ordered_text(array: pa.Array) -> list[Words]:
    text = text_of(array)
    longest = int(text.lengths.max(initial=0))
    words = []
    for begin in range(0, longest, _WORD_BYTES):
        at = np.minimum(text.starts + begin, len(text.loads) - 1)
        words.append(keep_low_bytes(text.loads[at], text.lengths - begin).byteswap())
    return [*words, text.lengths.astype(np.uint64)]


def compare(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Signs:
    """Compare two tables row by row, column by column; types must be equal, without nulls."""
    pairs = chain.from_iterable(
        _paired(one, other_word) for one, other_word in zip(left, right, strict=True)
    )
    return compare_words(pairs, len(left[0]) if left else 0)


def compare_words(pairs: Iterable[tuple[Words, Words]], count: int) -> Signs:
    """Compare ``count`` word sequences; the first differing word decides."""
    result: Signs | None = None
    for a, b in pairs:
        step = (a > b).view(np.int8) - (a < b).view(np.int8)
        result = step if result is None else np.where(result == 0, step, result)
        if np.count_nonzero(result) == count:
            break
    return np.zeros(count, dtype=np.int8) if result is None else result


def keep_greatest(words: Iterable[Words], firsts: Positions, candidate: Mask | None = None) -> Mask:
    """Return a mask of members with the greatest word sequence in their group.

    Only members in ``candidate`` take part; a group without candidates has none in the result.
    """
    best = candidate
    for word in words:
        masked = word if best is None else np.where(best, word, np.uint64(0))
        counts = np.diff(firsts, append=len(word))
        greatest = word == np.repeat(np.maximum.reduceat(masked, firsts), counts)
        best = greatest if best is None else best & greatest
        # With candidates a group may have none, so the count proves nothing.
        if candidate is None and np.count_nonzero(best) == len(firsts):
            break
    assert best is not None, "there is a word, or candidates are given"
    return best


def _paired(one: pa.Array, other: pa.Array) -> list[tuple[Words, Words]]:
    """Pair two columns' words; the shorter text is padded with zero words."""
    a, b = ordered_words(one), ordered_words(other)
    if is_text(one.type) and len(a) != len(b):
        width = max(len(a), len(b)) - 1
        zeros = np.zeros(len(one), dtype=np.uint64)
        a = [*a[:-1], *[zeros] * (width - len(a) + 1), a[-1]]
        b = [*b[:-1], *[zeros] * (width - len(b) + 1), b[-1]]
    return list(zip(a, b, strict=True))


def sort_words(columns: Sequence[pa.Array]) -> list[Words]:
    """Return words that sort complete rows, nulls first."""
    words: list[Words] = []
    for column in columns:
        valid = validity(column)
        if valid is None:
            words += ordered_words(column)
        else:
            words.append(valid.astype(np.uint64))
            words += [np.where(valid, word, np.uint64(0)) for word in ordered_words(column)]
    return words


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Return a mask of equal rows; null equals null, NaN equals NaN, -0.0 equals 0.0.

    Works for every Arrow type that Spark can send, including nested types.
    """
    return _equal_rows(left, right, by_sign=False)


def identical_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Return a mask of rows that no expression can distinguish: equal, with the same zero signs.

    This rule decides whether a row is unchanged or a duplicate. Keys use `equal_rows`.
    """
    return _equal_rows(left, right, by_sign=True)


def _equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array], *, by_sign: bool) -> Mask:
    result = np.ones(len(left[0]) if left else 0, dtype=np.bool_)
    for one, other_word in zip(left, right, strict=True):
        result &= _equal(one, other_word, by_sign)
    return result


def _equal(one: pa.Array, other: pa.Array, by_sign: bool) -> Mask:
    if pa.types.is_float16(one.type):  # Which Arrow does not compare.
        one, other = one.cast(pa.float32()), other.cast(pa.float32())
    type_ = one.type
    if pa.types.is_struct(type_):
        sides = zip(one.flatten(), other.flatten(), strict=True)
        parts = [_equal(a, b, by_sign) for a, b in sides]
        same = np.logical_and.reduce(parts) if parts else np.ones(len(one), dtype=np.bool_)
    elif pa.types.is_nested(type_):
        same = _equal_lists(one, other, by_sign)
    elif pa.types.is_interval(type_):
        same = _equal_intervals(one, other)
    else:
        filled = pc.equal(one, other).fill_null(False)
        same = np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.bool_)
        if pa.types.is_floating(type_):
            if by_sign:
                same &= signs(one) == signs(other)
            nan = pc.and_(pc.is_nan(one), pc.is_nan(other)).fill_null(False)
            same |= np.asarray(nan.to_numpy(zero_copy_only=False), dtype=np.bool_)
    a, b = validity(one), validity(other)
    if a is None and b is None:
        return same
    everywhere = np.ones(len(one), dtype=np.bool_)
    a = everywhere if a is None else a
    b = everywhere if b is None else b
    result: Mask = np.where(a & b, same, a == b)
    return result


def signs(array: pa.Array) -> Mask:
    """Return a mask of floats with a negative sign, including -0.0; arbitrary for nulls."""
    negative: Mask = np.signbit(_primitive(array, f"f{array.type.bit_width // 8}"))
    return negative


def _equal_intervals(one: pa.Array, other: pa.Array) -> Mask:
    """Compare month-day-nanosecond intervals, for which Arrow has no kernel."""
    words = [
        _elements(side.buffers()[1], np.uint64)[2 * side.offset : 2 * (side.offset + len(side))]
        for side in (one, other)
    ]
    return np.asarray((words[0] == words[1]).reshape(-1, 2).all(axis=1), dtype=np.bool_)


def _equal_lists(one: pa.Array, other: pa.Array, by_sign: bool) -> Mask:
    """Compare lists and maps by length and by elements in order."""
    one, other = _as_lists(one), _as_lists(other)
    sizes = [np.asarray(pc.list_value_length(side).fill_null(0)) for side in (one, other)]
    same = np.asarray(sizes[0] == sizes[1], dtype=np.bool_)
    rows = np.flatnonzero(same & (sizes[0] > 0))
    if not len(rows):
        return same
    left, right = (side.take(pa.array(rows)).flatten() for side in (one, other))
    begins = np.concatenate([[0], np.cumsum(sizes[0][rows])[:-1]])
    same[rows] = np.logical_and.reduceat(_equal(left, right, by_sign), begins)
    return same


def _as_lists(array: pa.Array) -> pa.Array:
    """Return maps as lists of key-value structs, which Arrow can measure and flatten."""
    if not pa.types.is_map(array.type):
        return array
    struct = pa.struct([array.type.key_field, array.type.item_field])
    return array.cast(pa.list_(struct))
