"""Accumulators (`accumulator_of`): group counts, sums, extremes and averages as columns.

Row values are *lifted* to states, states are *folded* by sum, minimum or maximum, and the last
state is *lowered* to the result. Types: docs/tasks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import UnfitError, convert
from spark_upsert.core.keys import is_hashable, ordered_words, validity
from spark_upsert.plan.aggregates import AggregateKind
from spark_upsert.table.state.sums import (
    average_type,
    averages,
    carried,
    from_limbs,
    limbs_of,
    wide_from_limbs,
)

_INT64, _FLOAT64 = pa.int64(), pa.float64()

_DIGITS_MAX = 38
_MORE_DIGITS = 10
"""Digits gained by a decimal sum: room for ten thousand million values, as in Spark."""

_SIGN = np.uint64(1 << 63)


class Accumulator(Protocol):
    """Computation of one aggregation column."""

    @property
    def type(self) -> pa.DataType:
        """The result type."""
        ...

    @property
    def folds(self) -> Sequence[str]:
        """The fold function for each state column, by Arrow's name."""
        ...

    def lift(self, values: pa.Array) -> list[pa.Array]:
        """Return the rows' states."""
        ...

    def normalize(self, states: list[pa.Array]) -> list[pa.Array]:
        """Return folded states in a form for further folds."""
        ...

    def lower(self, states: list[pa.Array]) -> pa.Array:
        """Return the groups' results."""
        ...

    def empty_state(self) -> list[pa.Array]:
        """Return the state for zero rows, one value per column."""
        ...


def accumulator_of(kind: AggregateKind, type_: pa.DataType | None) -> Accumulator | None:
    """Return the accumulator for an aggregate, None if it does not support the type."""
    if kind is AggregateKind.COUNT:
        return Count(is_of_rows=type_ is None)
    if type_ is None:
        return None
    if kind in (AggregateKind.MIN, AggregateKind.MAX) and is_hashable(type_):
        return Extreme(kind.value, type_)
    is_float = pa.types.is_float32(type_) or pa.types.is_float64(type_)
    match kind:
        case AggregateKind.SUM if pa.types.is_integer(type_) or pa.types.is_decimal128(type_):
            return ExactSum(type_)
        case AggregateKind.SUM if is_float:
            return FloatSum()
        case AggregateKind.AVG if pa.types.is_integer(type_) or is_float:
            return Average(FloatSum() if is_float else ExactSum(type_))
        case AggregateKind.AVG if pa.types.is_decimal128(type_):
            return Average(ExactSum(type_), type=average_type(type_))
    return None


@dataclass(frozen=True, slots=True)
class Count:
    """How many values there are, or rows."""

    is_of_rows: bool
    type: pa.DataType = _INT64
    folds: Sequence[str] = ("sum",)

    def lift(self, values: pa.Array) -> list[pa.Array]:
        if self.is_of_rows:
            return [pa.array(np.ones(len(values), dtype=np.int64))]
        return [values.is_valid().cast(pa.int64())]

    def normalize(self, states: list[pa.Array]) -> list[pa.Array]:
        return states

    def lower(self, states: list[pa.Array]) -> pa.Array:
        return states[0]

    def empty_state(self) -> list[pa.Array]:
        return [pa.array([0], pa.int64())]


@dataclass(frozen=True, slots=True)
class FloatSum:
    """Float sum, as computed by Arrow."""

    type: pa.DataType = _FLOAT64
    folds: Sequence[str] = ("sum",)

    def lift(self, values: pa.Array) -> list[pa.Array]:
        return [values.cast(pa.float64())]

    def normalize(self, states: list[pa.Array]) -> list[pa.Array]:
        return states

    def lower(self, states: list[pa.Array]) -> pa.Array:
        return states[0]

    def empty_state(self) -> list[pa.Array]:
        return [pa.nulls(1, pa.float64())]


@dataclass(frozen=True, slots=True)
class ExactSum:
    """Sum for integers or decimals, as 32-bit limbs in 64 bits."""

    of: pa.DataType

    @property
    def type(self) -> pa.DataType:
        if pa.types.is_decimal(self.of):
            digits = min(_DIGITS_MAX, self.of.precision + _MORE_DIGITS)
            return pa.decimal128(digits, self.of.scale)
        return pa.int64() if pa.types.is_signed_integer(self.of) else pa.uint64()

    @property
    def folds(self) -> Sequence[str]:
        return ("sum",) * (4 if pa.types.is_decimal(self.of) else 2)

    def lift(self, values: pa.Array) -> list[pa.Array]:
        valid = validity(values)
        mask = None if valid is None else ~valid
        return [pa.array(limb, mask=mask) for limb in limbs_of(values)]

    def normalize(self, states: list[pa.Array]) -> list[pa.Array]:
        valid = validity(states[0])
        mask = None if valid is None else ~valid
        limbs = [np.asarray(state.fill_null(0)) for state in states]
        return [pa.array(limb, mask=mask) for limb in carried(limbs)]

    def lower(self, states: list[pa.Array]) -> pa.Array:
        mask = ~np.asarray(states[0].is_valid())
        limbs = [np.asarray(state.fill_null(0)) for state in self.normalize(states)]
        return from_limbs(limbs, self.type, mask=mask)

    def empty_state(self) -> list[pa.Array]:
        return [pa.nulls(1, pa.int64()) for _ in self.folds]


@dataclass(frozen=True, slots=True)
class Extreme:
    """Minimum or maximum; floats are compared by sort words, which order NaN."""

    function: str
    type: pa.DataType

    @property
    def folds(self) -> Sequence[str]:
        return (self.function,)

    @property
    def _is_by_words(self) -> bool:
        # Of durations Arrow has no extremes.
        return bool(pa.types.is_floating(self.type) or pa.types.is_duration(self.type))

    def lift(self, values: pa.Array) -> list[pa.Array]:
        if not self._is_by_words:
            return [values]
        valid = validity(values)
        return [pa.array(ordered_words(values)[0], mask=None if valid is None else ~valid)]

    def normalize(self, states: list[pa.Array]) -> list[pa.Array]:
        return states

    def lower(self, states: list[pa.Array]) -> pa.Array:
        if not self._is_by_words:
            return states[0]
        words = np.asarray(states[0].fill_null(_SIGN))
        mask = ~np.asarray(states[0].is_valid())
        if pa.types.is_duration(self.type):
            return pa.array((words ^ _SIGN).view(np.int64), mask=mask).cast(self.type)
        bits = np.where(words & _SIGN != 0, words ^ _SIGN, ~words)
        return pa.array(bits.view(np.float64), mask=mask).cast(self.type)

    def empty_state(self) -> list[pa.Array]:
        return [pa.nulls(1, pa.uint64() if self._is_by_words else self.type)]


@dataclass(frozen=True, slots=True)
class Average:
    """A sum divided by a count; the sum may exceed its own type's range."""

    sum: ExactSum | FloatSum
    type: pa.DataType = _FLOAT64

    @property
    def folds(self) -> Sequence[str]:
        return ("sum", *self.sum.folds)

    def lift(self, values: pa.Array) -> list[pa.Array]:
        return [values.is_valid().cast(pa.int64()), *self.sum.lift(values)]

    def normalize(self, states: list[pa.Array]) -> list[pa.Array]:
        return [states[0], *self.sum.normalize(states[1:])]

    def lower(self, states: list[pa.Array]) -> pa.Array:
        count, *limbs = self.normalize(states)
        if isinstance(self.sum, FloatSum):
            return pc.divide(limbs[0], count.cast(pa.float64()))
        if pa.types.is_decimal(self.type):
            mask = ~np.asarray(limbs[0].is_valid())
            parts = [np.asarray(limb.fill_null(0)) for limb in limbs]
            total = wide_from_limbs(parts, self.sum.type.scale, mask=mask)
            try:
                return convert(averages(total, count, self.type.scale), self.type)
            except UnfitError as error:
                raise OverflowError(str(error)) from error
        low, high = (np.asarray(limb.fill_null(0)) for limb in limbs)
        # A sum of 53 bits, as nearly all are, is a float64 without loss; others lose their last.
        total = high.astype(np.float64) * 2.0**32 + low.astype(np.float64)
        mask = ~np.asarray(limbs[0].is_valid())
        counts = np.maximum(np.asarray(count), 1)
        return pa.array(total / counts, mask=mask)

    def empty_state(self) -> list[pa.Array]:
        return [pa.array([0], pa.int64()), *self.sum.empty_state()]
