"""Decimals and wide integers: column conversion, exact or rounded as the caller requests.

A *limb* is 32 bits of an unsigned number in a 64-bit word, the lowest first. A number fits
``DECIMAL(p, s)`` if it is below ``10**(p - s)`` after rounding to ``s`` digits.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask
from spark_upsert.core.threads import Rounding

Limbs = npt.NDArray[np.uint64]
"""Shape (limbs, numbers)."""

_BITS = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_STEP_DIGITS = 9
"""Digits in the largest power of ten below 2**32."""


def to_limbs(column: pa.Array) -> tuple[Limbs, Mask]:
    """Split decimals into absolute values and a mask of negative numbers; null becomes 0."""
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


def from_limbs(limbs: Limbs, negative: Mask, valid: Mask, type_: pa.DataType) -> pa.Array:
    """Build decimals from numbers that fit the type; null where ``valid`` is false."""
    width = type_.bit_width // 32
    limb = np.zeros((width, limbs.shape[1]), dtype=np.uint64)
    limb[: len(limbs)] = limbs[:width]
    _negate(limb, negative)
    words = np.ascontiguousarray(limb.astype("<u4").T)
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


def limbs_from_integers(
    numbers: npt.NDArray[np.int64] | npt.NDArray[np.uint64],
) -> tuple[Limbs, Mask]:
    """Split 64-bit integers into absolute values and a mask of negative numbers."""
    negative = numbers < 0
    words = numbers.view(np.uint64)
    limbs = np.stack([words & _LOW, words >> _BITS])
    _negate(limbs, negative)
    return limbs, negative


def integers_from_limbs(limbs: Limbs, negative: Mask) -> npt.NDArray[np.uint64]:
    """Return numbers that fit into 64 bits, negative ones in two's complement."""
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

    Returns two masks: a nonzero remainder, and a remainder of at least half the divisor.
    """
    is_left = np.zeros(limbs.shape[1], dtype=np.bool_)
    is_half = is_left
    for step in _steps(digits):
        divisor = np.uint64(10**step)
        remainder = np.zeros(limbs.shape[1], dtype=np.uint64)
        for limb in limbs[::-1]:
            total = (remainder << _BITS) | limb
            limb[:] = total // divisor
            remainder = total - limb * divisor
        is_left = is_left | (remainder != 0)
        # The highest digits that are cut off decide: the power is even.
        is_half = remainder >= np.uint64(10**step // 2)
    return is_left, is_half


def is_at_least(limbs: Limbs, bound: int) -> Mask:
    """Return a mask of numbers at or above a bound."""
    if bound >> 32 * len(limbs):
        return np.zeros(limbs.shape[1], dtype=np.bool_)
    result = np.ones(limbs.shape[1], dtype=np.bool_)
    for index, limb in enumerate(limbs):
        word = np.uint64(bound >> 32 * index & 0xFFFFFFFF)
        result = (limb > word) | ((limb == word) & result)
    return result


def pad_limbs(limbs: Limbs, count: int) -> Limbs:
    """Return numbers with at least ``count`` limbs."""
    if len(limbs) >= count:
        return limbs
    more = np.zeros((count - len(limbs), limbs.shape[1]), dtype=np.uint64)
    return np.concatenate([limbs, more])


def _steps(digits: int) -> list[int]:
    """Return exponents that sum to ``digits``; each power of ten is below 2**32."""
    step_count, remainder = divmod(digits, _STEP_DIGITS)
    return [_STEP_DIGITS] * step_count + [remainder] * (remainder > 0)


_NUMBER = (
    r"\A(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+))?\z"
)

_EXPONENT_DIGITS = 10
"""Maximum digits in an exponent; longer ones exceed any text in Arrow and are out of range."""

_SHORT_CHARS = 200
"""Maximum characters parsed column-wise; a longer text is shortened first, at about 10 us each."""

_BLOCK_CHARS = 4 << 20
"""Characters parsed per block, at about 40 bytes of memory each."""

DIGITS_MAX = 38
"""Precision of the widest decimals here and in Spark."""

_INTEGER_DIGITS = 20
"""Digits in the greatest 64-bit integer."""

_FLAT = np.array([10**n for n in range(_STEP_DIGITS)], dtype=np.float64)


def from_texts(texts: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    """Parse ASCII texts ``[+-] digits [. digits] [e [+-] digits]``; also mask invalid ones."""
    is_plain = pc.match_substring_regex(texts, _plain_pattern(type_)).fill_null(True)
    bad = np.zeros(len(texts), dtype=np.bool_)
    if pc.all(is_plain, min_count=0).as_py():
        return pc.cast(texts, type_), bad
    result = pc.cast(pc.if_else(is_plain, texts, None), type_)
    row_indices = np.flatnonzero(~is_plain.to_numpy(zero_copy_only=False))
    others = texts.take(pa.array(row_indices))
    pieces = [result]
    for block in _blocks(others):
        column, bad[row_indices[block]] = _parse_texts(others[block], type_, rounding)
        pieces.append(column)
    order = np.arange(len(texts))
    order[row_indices] = len(texts) + np.arange(len(row_indices))
    return pa.concat_arrays(pieces).take(pa.array(order)), bad


def _plain_pattern(type_: pa.DataType) -> str:
    """Return a pattern for texts that fit the type, whatever their digits."""
    integer_digits, fraction = type_.precision - type_.scale, type_.scale
    # Arrow wants a digit before the point, and there may be no room for one but zero.
    before = f"[0-9]{{1,{integer_digits}}}" if integer_digits > 0 and fraction >= 0 else "0"
    return rf"\A-?{before}" + (rf"(?:\.[0-9]{{1,{fraction}}})?\z" if fraction > 0 else r"\z")


def _blocks(texts: pa.Array) -> list[slice]:
    """Split texts into slices of about `_BLOCK_CHARS` bytes."""
    reached = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64))
    ends = np.unique(np.searchsorted(reached, np.arange(0, reached[-1], _BLOCK_CHARS)) + 1)
    cuts = np.unique([0, *ends, len(texts)])
    return [slice(int(a), int(b)) for a, b in pairwise(cuts)]


def _parse_texts(texts: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    """Parse texts in any form; also return a mask of invalid ones."""
    is_long = pc.greater(pc.binary_length(texts), _SHORT_CHARS)
    if pc.any(is_long).as_py():
        shortened = [_shorten(text) for text in texts.filter(is_long).to_pylist()]
        texts = pc.replace_with_mask(texts, is_long, pa.array(shortened, texts.type))
    parts = pc.extract_regex(texts, _NUMBER)
    sign, integer_part, fraction, exponent = (
        pc.struct_field(parts, i).fill_null("") for i in range(4)
    )
    digits = pc.binary_join_element_wise(integer_part, fraction, "")
    bad = ~np.asarray(pc.and_(parts.is_valid(), pc.greater(pc.binary_length(digits), 0)))
    point = pc.binary_length(integer_part).to_numpy() + _exponents(exponent) + type_.scale
    numbers, is_left, is_half, beyond = _parse_digits(digits, point, type_.precision)
    negative = np.asarray(pc.equal(sign, "-"))
    bad |= beyond | _rounded(numbers, negative, is_left, is_half, rounding)
    bad |= is_at_least(numbers, 10**type_.precision)
    numbers[:, bad] = 0
    return from_limbs(numbers, negative, ~bad, type_), bad


def _exponents(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Parse exponents; one with too many digits becomes an out-of-range number."""
    digits = pc.utf8_ltrim(texts, characters="+-0")
    is_large = pc.greater(pc.binary_length(digits), _EXPONENT_DIGITS)
    digits = pc.if_else(is_large, f"1{'0' * _EXPONENT_DIGITS}", digits)
    numbers = pc.cast(pc.if_else(pc.equal(digits, ""), "0", digits), pa.int64()).to_numpy()
    return np.where(np.asarray(pc.starts_with(texts, "-")), -numbers, numbers)


def _parse_digits(
    texts: pa.Array, point: npt.NDArray[np.int64], precision: int
) -> tuple[Limbs, Mask, Mask, Mask]:
    """Return the integers before a decimal point, and three masks.

    The masks: nonzero digits after the point; a first digit after it of 5 or more; digits too high
    for the precision.
    """
    count, steps = len(texts), precision // _STEP_DIGITS + 1
    offsets = np.frombuffer(texts.buffers()[1], np.int32, count + 1, texts.offset * 4)
    chars = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    digits = chars - np.uint8(ord("0"))
    rows = np.repeat(np.arange(count), np.diff(offsets))
    row_indices = np.flatnonzero(digits)
    rows, digits = rows[row_indices], digits[row_indices]
    # Each digit's power of ten.
    powers = point[rows] - 1 - (row_indices - (offsets[:-1] - offsets[0])[rows])
    masks = np.zeros((3, count), dtype=np.bool_)
    masks[0][rows[powers < 0]] = True
    masks[1][rows[(powers == -1) & (digits >= 5)]] = True
    masks[2][rows[powers >= steps * _STEP_DIGITS]] = True
    inside = (powers >= 0) & (powers < steps * _STEP_DIGITS)
    rows, digits, powers = rows[inside], digits[inside], powers[inside]
    # Of nine digits each, for which a double has room.
    sums = np.bincount(
        rows * steps + powers // _STEP_DIGITS,
        weights=digits * _FLAT[powers % _STEP_DIGITS],
        minlength=count * steps,
    )
    numbers = np.zeros((steps, count), dtype=np.uint64)
    for step in sums.astype(np.uint64).reshape(count, steps).T[::-1]:
        multiply_add(numbers, 10**_STEP_DIGITS, step)
    return numbers, masks[0], masks[1], masks[2]


def _shorten(text: str) -> str:
    """Shorten a long number to its leading digits and an exponent; empty if invalid."""
    match = re.fullmatch(_NUMBER.removeprefix(r"\A").removesuffix(r"\z"), text, re.ASCII)
    if match is None:
        return ""
    sign, integer_part, fraction, exponent = match.groups(default="")
    written = (integer_part + fraction).lstrip("0")
    if not written:
        return "0" if integer_part or fraction else ""
    # One more digit replaces all that are cut off: it marks a nonzero remainder.
    shown_digits = written[: _SHORT_CHARS // 2] + (
        "1" if written[_SHORT_CHARS // 2 :].strip("0") else ""
    )
    digits = exponent.lstrip("+-0")[: _EXPONENT_DIGITS + 1] or "0"
    power = -int(digits) if exponent.startswith("-") else int(digits)
    return f"{sign}0.{shown_digits}e{power + len(written) - len(fraction)}"


def from_decimals(
    numbers: pa.Array, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    """Convert decimals to another precision and scale; results as in `from_texts`."""
    shift = type_.scale - numbers.type.scale
    is_room = type_.precision - type_.scale >= numbers.type.precision - numbers.type.scale
    if shift >= 0 and is_room:
        return pc.cast(numbers, type_), np.zeros(len(numbers), dtype=np.bool_)
    limbs, negative = to_limbs(numbers)
    limbs, bad = _rescaled(limbs, negative, shift, type_.precision, rounding)
    return from_limbs(limbs, negative, _is_valid(numbers) & ~bad, type_), bad


_PLAIN_SCALE = 6
"""Largest scale at which Arrow formats every decimal without an exponent."""


def to_texts(numbers: pa.Array) -> pa.Array:
    """Format decimals in full, with as many fraction digits as the type's scale."""
    scale = numbers.type.scale
    if scale <= _PLAIN_SCALE:
        return pc.cast(numbers, pa.string())
    # The same bytes without a point, which is put in by hand.
    integer_type = (
        pa.decimal128(DIGITS_MAX, 0) if numbers.type.bit_width == 128 else pa.decimal256(76, 0)
    )
    unscaled = pa.Array.from_buffers(
        integer_type, len(numbers), numbers.buffers(), offset=numbers.offset
    )
    text = pc.cast(unscaled, pa.string())
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -scale)
    fraction = pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(sign, before, ".", fraction, "")


def from_integers(numbers: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Mask]:
    """Convert integers to decimals; results as in `from_texts`."""
    is_unsigned = pa.types.is_unsigned_integer(numbers.type)
    words = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    limbs, negative = limbs_from_integers(words.astype(np.uint64 if is_unsigned else np.int64))
    limbs, bad = _rescaled(limbs, negative, type_.scale, type_.precision, Rounding.EXACT)
    return from_limbs(limbs, negative, _is_valid(numbers) & ~bad, type_), bad


def to_integers(numbers: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    """Convert decimals to integers; results as in `from_texts`."""
    least, most = bounds_of(type_)
    limbs, negative = to_limbs(numbers)
    limbs, bad = _rescaled(limbs, negative, -numbers.type.scale, _INTEGER_DIGITS, rounding)
    bad |= np.where(negative, is_at_least(limbs, 1 - least), is_at_least(limbs, most + 1))
    limbs[:, bad] = 0
    words = integers_from_limbs(pad_limbs(limbs, 2), negative & ~bad)
    result = words.astype(type_.to_pandas_dtype())
    return pa.array(result, type_, mask=~_is_valid(numbers) | bad), bad


def rounding_type(type_: pa.DataType, places: int) -> pa.DataType:
    """Return ROUND's result type: one more integer digit, which rounding may need.

    Source: Spark, ``RoundBase.dataType`` (mathExpressions.scala).
    """
    integer_digits = type_.precision - type_.scale + 1
    if places < 0:
        return pa.decimal128(min(max(integer_digits, 1 - places), DIGITS_MAX), 0)
    scale = min(type_.scale, places)
    return pa.decimal128(min(integer_digits + scale, DIGITS_MAX), scale)


def round_at(
    numbers: pa.Array, places: int, type_: pa.DataType, rounding: Rounding
) -> tuple[pa.Array, Mask]:
    """Round decimals to ``places`` fraction digits; if negative, before the decimal point."""
    limbs, negative = to_limbs(numbers)
    # Beyond the digits that there are, more places change nothing.
    places = max(places, -2 * DIGITS_MAX)
    shift = min(places - numbers.type.scale, 0)
    limbs, bad = _rescaled(limbs, negative, shift, type_.precision, rounding)
    left = type_.scale - numbers.type.scale - shift
    limbs, more = _rescaled(limbs, negative, left, type_.precision, Rounding.EXACT)
    bad |= more
    return from_limbs(limbs, negative, _is_valid(numbers) & ~bad, type_), bad


def bounds_of(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and greatest integer in a type."""
    bounds = np.iinfo(type_.to_pandas_dtype())
    return int(bounds.min), int(bounds.max)


def _rescaled(
    limbs: Limbs, negative: Mask, shift: int, precision: int, rounding: Rounding
) -> tuple[Limbs, Mask]:
    """Multiply numbers by ``10**shift``; also return a mask of those that do not fit.

    A number that exceeds the precision becomes 0. With `Rounding.EXACT`, lost digits do not fit.
    """
    if shift >= 0:
        bad = is_at_least(limbs, 10 ** max(precision - shift, 0))
        limbs[:, bad] = 0
        if shift < precision:  # Else all are 0.
            limbs = pad_limbs(limbs, precision // _STEP_DIGITS + 1)
            scale_up(limbs, shift)
        return limbs, bad
    is_left, is_half = scale_down(limbs, -shift)
    bad = _rounded(limbs, negative, is_left, is_half, rounding)
    bad |= is_at_least(limbs, 10**precision)
    limbs[:, bad] = 0
    return limbs, bad


def _rounded(
    limbs: Limbs, negative: Mask, is_left: Mask, is_half: Mask, rounding: Rounding
) -> Mask:
    """Round numbers up in place by their remainders.

    Returns a mask of numbers that must not be rounded, only for `Rounding.EXACT`.
    """
    match rounding:
        case Rounding.EXACT:
            return is_left
        case Rounding.HALF_UP:
            up = is_half
        case Rounding.CEILING:
            up = is_left & ~negative
        case Rounding.FLOOR:
            up = is_left & negative
        case Rounding.DOWN:
            up = np.zeros_like(is_left)
    if up.any():
        multiply_add(limbs, 1, up.astype(np.uint64))
    return np.zeros_like(is_left)


def _is_valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
