"""Exact group sums and averages for integers and decimals: correct, or an `OverflowError`.

A *limb* is a 32-bit part of a value; limb sums fit into 64 bits in any row order, so only a final
sum can overflow. Float sums are Arrow's.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import convert
from spark_upsert.core.keys import Mask, fixed_words, validity
from spark_upsert.core.threads import Rounding

_LIMB_BITS = 32
_DIGITS = 38
_MORE_DIGITS = 4
"""Additional fraction digits for a decimal average, as in Spark."""
_INTEGER = 20
"""Number of digits in 2**64."""
_WIDE, _COUNT, _ALL = 56, 19, 76
"""Digits for a dividend (a sum over any number of decimals) and for a count: the quotient then
has 20 more fraction digits, and 76 in all.
"""
_LOW = np.uint64(0xFFFFFFFF)

LimbColumns = list[npt.NDArray[np.int64]]
"""Arrays with equal length, the lowest limb first."""


def exact_sums(column: pa.Array, firsts: npt.NDArray[np.int64]) -> pa.Array:
    """Return each group's sum over consecutive values, null if all are null."""
    valid = validity(column)
    no_value = ~np.logical_or.reduceat(valid, firsts) if valid is not None else None
    small = _as_int64(column, valid)
    if small is not None:
        running = np.cumsum(small)[np.append(firsts[1:], len(small)) - 1]
        return _cast_sums(np.diff(running, prepend=0), column.type, no_value)
    present = np.ones(len(column), dtype=np.bool_) if valid is None else valid
    limbs = [np.add.reduceat(limb * present, firsts) for limb in limbs_of(column)]
    mask = np.zeros(len(firsts), dtype=np.bool_) if no_value is None else no_value
    return from_limbs(carried(limbs), column.type, mask=mask)


def sums_that_fit(column: pa.Array, firsts: npt.NDArray[np.int64]) -> pa.Array:
    """Return each group's sum as `exact_sums` does, null where it overflows.

    Overflowing groups are located by bisection.
    """
    ends = np.append(firsts[1:], len(column))
    parts, pending = [pa.array([], column.type)], [(0, len(firsts))]
    while pending:
        first, count = pending.pop()
        begin, end = int(firsts[first]), int(ends[first + count - 1])
        offsets = firsts[first : first + count] - begin
        try:
            parts.append(exact_sums(column.slice(begin, end - begin), offsets))
        except OverflowError:
            half = count // 2
            if half:
                pending += [(first + half, count - half), (first, half)]
            else:
                parts.append(pa.nulls(1, column.type))
    return pa.concat_arrays(parts)


def _as_int64(column: pa.Array, valid: Mask | None) -> npt.NDArray[np.int64] | None:
    """Return the values, 0 for null, or None if a partial sum could exceed 64 bits."""
    words = [word.view(np.int64) for word in fixed_words(column)]
    low = words[-1]
    if len(words) > 1:  # If the low word suffices, the high word repeats its sign.
        fits = words[0] == low >> 63
    elif pa.types.is_unsigned_integer(column.type):
        fits = low >= 0
    else:
        fits = None
    if fits is not None and not bool((fits if valid is None else fits | ~valid).all()):
        return None
    values = low if valid is None else low * valid
    reach = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    return values if reach * len(values) < 1 << 63 else None


def _cast_sums(sums: npt.NDArray[np.int64], type_: pa.DataType, no_value: Mask | None) -> pa.Array:
    """Return 64-bit sums cast to a type, null where there is no value."""
    if pa.types.is_decimal(type_):
        mask = np.zeros(len(sums), dtype=np.bool_) if no_value is None else no_value
        return _decimals_from_words(sums >> 63, sums.view(np.uint64), type_, mask)
    try:
        return convert(pa.array(sums, mask=no_value), type_)
    except pa.ArrowInvalid:
        raise _overflow(type_) from None


def from_limbs(limbs: LimbColumns, type_: pa.DataType, *, mask: Mask) -> pa.Array:
    """Return the numbers represented by limbs, null where masked."""
    if pa.types.is_decimal(type_):
        return _decimals(limbs, type_, mask)
    low, high = limbs
    is_signed = pa.types.is_signed_integer(type_)
    limit = 1 << (31 if is_signed else 32)
    least = -limit if is_signed else 0
    _require(bool(((high >= least) & (high < limit) | mask).all()), type_)
    words = (high.astype(np.uint64) << np.uint64(_LIMB_BITS)) | low.astype(np.uint64)
    wide = pa.array(words.view(np.int64 if is_signed else np.uint64), mask=mask)
    try:
        return convert(wide, type_)
    except pa.ArrowInvalid:
        raise _overflow(type_) from None


def wide_from_limbs(limbs: LimbColumns, scale: int, *, mask: Mask) -> pa.Array:
    """Return four limbs, as `carried` returns them, as decimals for `averages`."""
    shift = np.uint64(_LIMB_BITS)
    words = np.empty((len(mask), 4), dtype=np.uint64)
    words[:, 0] = (limbs[1].astype(np.uint64) << shift) | limbs[0].astype(np.uint64)
    words[:, 1] = (limbs[3].astype(np.uint64) << shift) | limbs[2].astype(np.uint64)
    words[:, 2] = (limbs[3] >> np.int64(_LIMB_BITS)).view(np.uint64)
    words[:, 3] = (limbs[3] >> np.int64(63)).view(np.uint64)
    bits = pa.array(~mask).buffers()[1]
    type_ = pa.decimal256(_WIDE, scale)
    return pa.Array.from_buffers(type_, len(mask), [bits, pa.py_buffer(words)])


def average_type(type_: pa.DataType) -> pa.DataType:
    """Return the type for a decimal average.

    It is Spark's: four more fraction digits, at the expense of integer digits if the total
    exceeds 38. So the average of 1 and 2 is 1.5 for any declared precision.
    """
    precision, scale = (min(n + _MORE_DIGITS, _DIGITS) for n in (type_.precision, type_.scale))
    return pa.decimal128(precision, scale)


def averages(totals: pa.Array, counts: pa.Array, scale: int) -> pa.Array:
    """Return sums divided by counts, rounded half up; zero if there are no values."""
    wide = convert(totals, pa.decimal256(_WIDE, totals.type.scale))
    divisor = pc.if_else(pc.greater(counts, 0), counts, 1)
    divisor = convert(divisor, pa.decimal256(_COUNT, 0))
    return convert(pc.divide(wide, divisor), pa.decimal256(_ALL, scale), Rounding.HALF_UP)


def split_decimals(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split each decimal in two, such that either part's sums always fit into 38 digits."""
    high, low = (word.view(np.int64) for word in fixed_words(column))
    fits = high == low >> 63
    remainder, times = np.where(fits, high, 0), np.where(fits, 0, high)
    valid = validity(column)
    mask = np.zeros(len(column), dtype=np.bool_) if valid is None else ~valid
    return (
        _decimals_from_words(remainder, low.view(np.uint64), column.type, mask),
        _decimals_from_words(times >> 63, times.view(np.uint64), pa.decimal128(_DIGITS, 0), mask),
    )


def join_decimals(low: pa.Array, high: pa.Array) -> pa.Array:
    """Return the totals from the sums of both parts (`split_decimals`), in 38 digits or more."""
    if not pc.any(pc.not_equal(high, 0), min_count=0).as_py():
        return low
    scale = low.type.scale
    times = convert(high, pa.decimal256(_DIGITS, 0))
    beyond = pc.multiply(times, pa.scalar(Decimal(1 << 64), pa.decimal256(_INTEGER, 0)))
    low_sums = convert(low, pa.decimal256(_DIGITS, scale))
    type_ = pa.decimal256(beyond.type.precision, scale)
    # The same integers, in the units of the last digit.
    bits, words = beyond.buffers()
    beyond = pa.Array.from_buffers(type_, len(beyond), [bits, words], offset=beyond.offset)
    return pc.add(beyond, low_sums)


def limbs_of(column: pa.Array) -> LimbColumns:
    """Split values into limbs; limbs for nulls are arbitrary."""
    words = fixed_words(column)  # The high word first.
    is_signed = not pa.types.is_unsigned_integer(column.type)
    limbs: LimbColumns = []
    for index, word in enumerate(reversed(words)):
        is_highest = index == len(words) - 1
        limbs.append((word & _LOW).astype(np.int64))
        high = word.view(np.int64) if is_highest and is_signed else word
        limbs.append((high >> high.dtype.type(_LIMB_BITS)).astype(np.int64))
    return limbs


def carried(limbs: LimbColumns) -> LimbColumns:
    """Return the same numbers with all limbs but the highest in their range."""
    carried_limbs: LimbColumns = []
    carry = np.zeros_like(limbs[0])
    for limb in limbs[:-1]:
        total = limb + carry
        carried_limbs.append(total & np.int64(0xFFFFFFFF))
        carry = total >> np.int64(_LIMB_BITS)
    return [*carried_limbs, limbs[-1] + carry]


def _decimals(limbs: LimbColumns, type_: pa.DataType, mask: Mask) -> pa.Array:
    highest = limbs[-1]
    _require(bool(((highest >= -(1 << 31)) & (highest < 1 << 31)).all()), type_)
    shift = np.uint64(_LIMB_BITS)
    low = (limbs[1].astype(np.uint64) << shift) | limbs[0].astype(np.uint64)
    high = (highest.astype(np.uint64) << shift) | limbs[2].astype(np.uint64)
    return _decimals_from_words(high.view(np.int64), low, type_, mask)


def _decimals_from_words(
    high: npt.NDArray[np.int64], low: npt.NDArray[np.uint64], type_: pa.DataType, mask: Mask
) -> pa.Array:
    """Return decimals assembled from two words each."""
    bound = 10**type_.precision - 1
    _require(
        bool((_at_most(high, low, bound) & ~_at_most(high, low, -bound - 1) | mask).all()), type_
    )
    halves = np.empty(2 * len(high), dtype=np.uint64)
    halves[0::2], halves[1::2] = low, high.view(np.uint64)
    bits = pa.array(~mask).buffers()[1]
    return pa.Array.from_buffers(type_, len(high), [bits, pa.py_buffer(halves)])


def _at_most(
    high: npt.NDArray[np.int64], low: npt.NDArray[np.uint64], bound: int
) -> npt.NDArray[np.bool_]:
    """Return a mask: the 128-bit numbers not exceeding a bound."""
    top, low_bound = np.int64(bound >> 64), np.uint64(bound & (1 << 64) - 1)
    return (high < top) | ((high == top) & (low <= low_bound))


def _require(fits: bool, type_: pa.DataType) -> None:
    if not fits:
        raise _overflow(type_)


def _overflow(type_: pa.DataType) -> OverflowError:
    return OverflowError(f"a sum does not fit into {type_}")
