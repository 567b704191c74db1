"""Exact sums of groups of integers and decimals: right, or an `OverflowError`; never wrapped.

A value is taken apart into limbs of 32 bits, the highest of them signed. Sums of limbs fit into
64 bits for as many rows as a batch can hold, in any order of the rows, so that only the sum
itself can overflow, and no partial one. Arrow's own sums wrap silently.

Sums of floats are Arrow's: added up in another order they may differ in the last bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.words import fixed_words, validity

_LIMB_BITS = 32
_LOW = np.uint64(0xFFFFFFFF)

Limbs = list[npt.NDArray[np.int64]]
"""Arrays of equal length, the lowest limb first."""


def exact_sums(column: pa.Array, firsts: npt.NDArray[np.int64]) -> pa.Array:
    """Return the sum of each group of consecutive values, null where all are null.

    Parameters
    ----------
    column : pyarrow.Array
        Integers or decimals of 128 bits.
    firsts : numpy.ndarray of int64
        Where each group begins.

    Raises
    ------
    OverflowError
        A sum does not fit into the column's type.
    """
    valid = validity(column)
    present = np.ones(len(column), dtype=np.bool_) if valid is None else valid
    limbs = [np.add.reduceat(limb * present, firsts) for limb in _limbs(column)]
    has_value = np.logical_or.reduceat(present, firsts)
    sums = _carried(limbs)
    if pa.types.is_decimal(column.type):
        return _decimals(sums, column.type, ~has_value)
    low, high = sums
    limit = 1 << (31 if pa.types.is_signed_integer(column.type) else 32)
    least = -limit if pa.types.is_signed_integer(column.type) else 0
    _require(bool(((high >= least) & (high < limit)).all()), column.type)
    words = (high.astype(np.uint64) << np.uint64(_LIMB_BITS)) | low.astype(np.uint64)
    is_signed = pa.types.is_signed_integer(column.type)
    wide = pa.array(words.view(np.int64 if is_signed else np.uint64), mask=~has_value)
    try:
        return wide.cast(column.type)
    except pa.ArrowInvalid:
        raise _overflow(column.type) from None


def _limbs(column: pa.Array) -> Limbs:
    """Take values apart; those of nulls are arbitrary."""
    words = fixed_words(column)  # The high word first.
    is_signed = not pa.types.is_unsigned_integer(column.type)
    limbs: Limbs = []
    for index, word in enumerate(reversed(words)):
        is_highest = index == len(words) - 1
        limbs.append((word & _LOW).astype(np.int64))
        high = word.view(np.int64) if is_highest and is_signed else word
        limbs.append((high >> high.dtype.type(_LIMB_BITS)).astype(np.int64))
    return limbs


def _carried(limbs: Limbs) -> Limbs:
    """Return the same numbers with all limbs but the highest in their range."""
    carried: Limbs = []
    carry = np.zeros_like(limbs[0])
    for limb in limbs[:-1]:
        total = limb + carry
        carried.append(total & np.int64(0xFFFFFFFF))
        carry = total >> np.int64(_LIMB_BITS)
    return [*carried, limbs[-1] + carry]


def _decimals(limbs: Limbs, type_: pa.DataType, mask: npt.NDArray[np.bool_]) -> pa.Array:
    highest = limbs[-1]
    _require(bool(((highest >= -(1 << 31)) & (highest < 1 << 31)).all()), type_)
    halves = np.empty(2 * len(highest), dtype=np.uint64)
    shift = np.uint64(_LIMB_BITS)
    halves[0::2] = (limbs[1].astype(np.uint64) << shift) | limbs[0].astype(np.uint64)
    halves[1::2] = (highest.astype(np.uint64) << shift) | limbs[2].astype(np.uint64)
    high, low = halves[1::2].view(np.int64), halves[0::2]
    bound = 10**type_.precision - 1
    _require(
        bool((_at_most(high, low, bound) & ~_at_most(high, low, -bound - 1) | mask).all()), type_
    )
    bits = pa.array(~mask).buffers()[1]
    return pa.Array.from_buffers(type_, len(highest), [bits, pa.py_buffer(halves)])


def _at_most(
    high: npt.NDArray[np.int64], low: npt.NDArray[np.uint64], bound: int
) -> npt.NDArray[np.bool_]:
    """Return which numbers of 128 bits are not above a bound."""
    top, rest = np.int64(bound >> 64), np.uint64(bound & (1 << 64) - 1)
    return (high < top) | ((high == top) & (low <= rest))


def _require(fits: bool, type_: pa.DataType) -> None:
    if not fits:
        raise _overflow(type_)


def _overflow(type_: pa.DataType) -> OverflowError:
    return OverflowError(f"a sum does not fit into {type_}")
