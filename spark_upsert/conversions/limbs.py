"""Many whole numbers of any width at once: limbs of 32 bits in 64, the lowest first.

    limbs[i, n] < 2**32,    number[n] = sum of limbs[i, n] * 2**(32 * i)

Numbers have no sign. Every limb leaves room for a carry, so that numpy's wrapping is never met.
The decimals of Arrow are such numbers in two's complement (`taken_apart`, `put_together`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Mask

Limbs = npt.NDArray[np.uint64]
"""Shape (limbs, numbers)."""

_BITS = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_STEP_DIGITS = 9
"""The digits of the largest power of ten below 2**32."""


def taken_apart(column: pa.Array) -> tuple[Limbs, Mask]:
    """Return the absolute numbers of decimals, 0 for null, and which of them are negative."""
    count = len(column)
    width = column.type.bit_width // 32
    data = column.buffers()[1] if count else None
    words = np.frombuffer(data or b"", "<u4")[column.offset * width :][: count * width]
    limbs = np.ascontiguousarray(words.reshape(count, width).T).astype(np.uint64)
    if column.null_count:
        limbs *= np.asarray(column.is_valid()).astype(np.uint64)
    negative = limbs[-1] >> np.uint64(31) != 0
    _negate(limbs, negative)
    return limbs, negative


def put_together(limbs: Limbs, negative: Mask, valid: Mask, type_: pa.DataType) -> pa.Array:
    """Return decimals, given numbers that fit; null where they are not valid."""
    width = type_.bit_width // 32
    own = np.zeros((width, limbs.shape[1]), dtype=np.uint64)
    own[: len(limbs)] = limbs[:width]
    _negate(own, negative)
    words = np.ascontiguousarray(own.astype("<u4").T)
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(type_, limbs.shape[1], [bits, pa.py_buffer(words)])


def _negate(limbs: Limbs, where: Mask) -> None:
    """Negate numbers in two's complement, in place."""
    if not where.any():
        return
    flip = where.astype(np.uint64) * _LOW
    carry = where.astype(np.uint64)
    for limb in limbs:
        total = (limb ^ flip) + carry
        limb[:] = total & _LOW
        carry = total >> _BITS


def from_integers(numbers: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> tuple[Limbs, Mask]:
    """Return the absolute values of integers of 64 bits, and which of them are negative."""
    negative = numbers < 0
    words = numbers.view(np.uint64)
    limbs = np.stack([words & _LOW, words >> _BITS])
    _negate(limbs, negative)
    return limbs, negative


def to_integers(limbs: Limbs, negative: Mask) -> npt.NDArray[np.uint64]:
    """Return numbers that fit into 64 bits, the negative ones in two's complement."""
    words = (limbs[1] << _BITS) | limbs[0]
    return np.where(negative, ~words + np.uint64(1), words)


def multiply_add(limbs: Limbs, factor: int, plus: Limbs | int = 0) -> None:
    """Multiply by a factor below 2**32 and add numbers below 2**32, in place."""
    carry = np.asarray(plus, dtype=np.uint64)
    for limb in limbs:
        total = limb * np.uint64(factor) + carry
        limb[:] = total & _LOW
        carry = total >> _BITS


def scale_up(limbs: Limbs, digits: int) -> None:
    """Multiply by a power of ten, in place."""
    for step in _steps(digits):
        multiply_add(limbs, 10**step)


def scale_down(limbs: Limbs, digits: int) -> tuple[Mask, Mask]:
    """Divide by a power of ten, in place.

    Returns
    -------
    tuple of (numpy.ndarray of bool, numpy.ndarray of bool)
        Where something is left, and where that is half of the power or more.
    """
    is_left = np.zeros(limbs.shape[1], dtype=np.bool_)
    is_half = is_left
    for step in _steps(digits):
        divisor = np.uint64(10**step)
        rest = np.zeros(limbs.shape[1], dtype=np.uint64)
        for limb in limbs[::-1]:
            total = (rest << _BITS) | limb
            limb[:] = total // divisor
            rest = total - limb * divisor
        is_left = is_left | (rest != 0)
        # The highest digits that are cut off decide: the power is even.
        is_half = rest >= np.uint64(10**step // 2)
    return is_left, is_half


def at_least(limbs: Limbs, bound: int) -> Mask:
    """Return which numbers are not below a bound."""
    if bound >> 32 * len(limbs):
        return np.zeros(limbs.shape[1], dtype=np.bool_)
    found = np.ones(limbs.shape[1], dtype=np.bool_)
    for index, limb in enumerate(limbs):
        word = np.uint64(bound >> 32 * index & 0xFFFFFFFF)
        found = (limb > word) | ((limb == word) & found)
    return found


def widened(limbs: Limbs, count: int) -> Limbs:
    """Return numbers with a given count of limbs at least."""
    if len(limbs) >= count:
        return limbs
    more = np.zeros((count - len(limbs), limbs.shape[1]), dtype=np.uint64)
    return np.concatenate([limbs, more])


def _steps(digits: int) -> list[int]:
    """Return powers of ten below 2**32 that make up one: those of the lowest digits first."""
    whole, rest = divmod(digits, _STEP_DIGITS)
    return [_STEP_DIGITS] * whole + [rest] * (rest > 0)
