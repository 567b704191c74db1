"""Floats as decimals: each rounded half-even to some digits behind the point, exactly.

The value that is rounded is the one that the float is, not the shortest text of it: 0.15 is a
little less than that, and with one digit becomes 0.1.

A float is the sum of its whole part and its fraction, both exact. The fraction times ``10**scale``
is a double and its error (Dekker's product), so that it is known on which side of a half it lies.

Source: T. J. Dekker, "A floating-point technique for extending the available precision", 1971.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions import convert
from spark_upsert.errors import DataError

_Doubles = npt.NDArray[np.float64]

_SPLITTER = float((1 << 27) + 1)


@dataclass(frozen=True, slots=True)
class Summand:
    """A column of floats as a sum takes it: a value that has too many digits is none."""

    type: pa.DataType
    name: str
    scale: int
    digits: int

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the values of some rows.

        Raises
        ------
        DataError
            One is finite, and has too many digits.
        """
        column = rows.column(self.name)
        doubles = np.asarray(convert(column, pa.float64()).fill_null(0.0))
        _require_fitting(np.where(np.isfinite(doubles), doubles, 0.0), self.scale, self.digits)
        return column


def rounded(values: pa.Array, scale: int, digits: int) -> pa.Array:
    """Return floats as decimals, NULL as NULL.

    Parameters
    ----------
    values : pyarrow.Array
        Values of float32 or float64, all finite.
    scale : int
        Digits behind the point, 0 to 15.
    digits : int
        Digits of the decimals, at most 38.

    Raises
    ------
    DataError
        A value has more digits than that.
    """
    mask = values.is_null().to_numpy(zero_copy_only=False)
    doubles = np.asarray(values.cast(pa.float64()).fill_null(0.0))
    # With digits behind the point the whole part is even among them; without, it has a parity.
    whole = np.trunc(doubles) if scale else np.rint(doubles)
    _require_fitting(whole, scale, digits)
    fraction = doubles - whole if scale else np.zeros_like(whole)
    ends = _half_even(fraction, 10.0**scale).astype(np.int64)
    type_ = pa.decimal128(digits, scale)
    parts = (pa.array(whole).cast(pa.decimal128(digits, 0)), _shifted(ends, scale))
    total = pc.add(*(part.cast(pa.decimal256(digits + 2, scale)) for part in parts))
    return pc.if_else(pa.array(mask), pa.scalar(None, type_), convert(total, type_))


def _require_fitting(whole: _Doubles, scale: int, digits: int) -> None:
    """Raise `DataError` if a number has too many digits before the point."""
    largest = float(np.abs(whole).max(initial=0.0))
    if largest >= 10.0 ** (digits - scale):
        raise DataError(
            f"{largest!r} has more than {digits - scale} digits before the point, which is the "
            f"most that a sum with scale={scale} takes."
        )


def _shifted(numbers: npt.NDArray[np.int64], scale: int) -> pa.Array:
    """Return whole numbers as decimals with ``scale`` digits behind the point: 5 is 0.05 by 2."""
    column = pa.array(numbers).cast(pa.decimal128(19, 0))
    return pa.Array.from_buffers(pa.decimal128(19, scale), len(column), column.buffers())


def _half_even(fraction: _Doubles, factor: float) -> _Doubles:
    """Return fractions times a factor below 2**53, rounded half to even."""
    product = fraction * factor
    error = _error_of_product(fraction, factor, product)
    nearest = np.rint(product)
    beyond = product - nearest
    # Only where the double lies just at a half does what it lacks decide.
    up = (beyond == 0.5) & (error > 0)
    down = (beyond == -0.5) & (error < 0)
    return nearest + up - down


def _error_of_product(one: _Doubles, other: float, product: _Doubles) -> _Doubles:
    """Return exactly what a product of doubles lacks."""
    high, low = _halves(one)
    other_high, other_low = (float(half[0]) for half in _halves(np.array([other])))
    rest = ((high * other_high - product) + high * other_low) + low * other_high
    return rest + low * other_low


def _halves(values: _Doubles) -> tuple[_Doubles, _Doubles]:
    """Split doubles into two of 26 bits each."""
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    return high, values - high
