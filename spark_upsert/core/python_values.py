"""Python arguments: values to look up as Arrow arrays (`array_of`), whole numbers and durations.

A look-up is stricter than a write: rounding could find or delete another row (docs/adr/0048).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import UnfitError, convert, kind_of, try_convert
from spark_upsert.core.threads import QuotedValue
from spark_upsert.errors import OptionError

T = TypeVar("T")

_UNIFORM = frozenset({bool, float, str, bytes, date})
"""Types that Arrow converts to one array without a check per value."""

_ONE_VALUE = (str, bytes, bytearray, memoryview, Mapping, pa.Scalar, np.generic)
"""Types that are a single value, although they have a length or elements."""

_POWER_MAX = 400
"""Powers of ten above this are out of range for every number; their text has any length."""

_INT64_END = 1 << 63

_POLARS_OBJECT = "Object"


def is_many(value: Any) -> bool:
    """Return whether an argument holds several values: a sequence, set, array or column."""
    if isinstance(value, _ONE_VALUE):
        return False
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return _is_arrow(value) or isinstance(value, Iterable)


def array_of(values: Any, type_: pa.DataType) -> pa.Array:
    """Convert several values to one Arrow array.

    Each value is converted alone, so that its meaning does not depend on its neighbours.
    """
    if _is_column(values):
        return _convert_exactly(
            _convert_or_raise(_array_of_column, values, type(values).__name__), type_
        )
    listed = list(values)
    kinds = set(map(type, listed))
    if len(kinds) == 1 and kinds <= _UNIFORM:
        return _array_of_plain(listed, type_)
    if kinds == {int} and max(map(abs, listed)) < _INT64_END:
        return _array_of_plain(listed, type_)
    row_indices: dict[_Group, list[int]] = {}
    for index, value in enumerate(listed):
        row_indices.setdefault(_group_of(value), []).append(index)
    arrays = [pa.nulls(0, type_)]
    arrays += [
        rule([listed[at] for at in group], type_) for (rule, _), group in row_indices.items()
    ]
    order = np.argsort(np.array([at for group in row_indices.values() for at in group], np.int64))
    return pa.concat_arrays(arrays).take(pa.array(order))


# -- columns ---------------------------------------------------------------------------------


def _is_arrow(value: Any) -> bool:
    return hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__")


def object_columns(frame: Any) -> list[str]:
    """Return the columns with Python objects in a Polars frame.

    Polars passes their addresses to Arrow, as binary values with eight bytes.
    """
    types = zip(getattr(frame, "columns", ()), getattr(frame, "dtypes", ()), strict=False)
    return [str(name) for name, type_ in types if str(type_) == _POLARS_OBJECT]


def _is_column(values: Any) -> bool:
    """Return whether values already have one type, other than Python objects."""
    has_objects = str(getattr(values, "dtype", "")) in ("object", _POLARS_OBJECT)
    return (_is_arrow(values) or hasattr(values, "__array__")) and not has_objects


def _array_of_column(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if not hasattr(values, "__arrow_c_array__") and hasattr(values, "__arrow_c_stream__"):
        values = pa.chunked_array(values)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)


# -- equal values ----------------------------------------------------------------------------


_TIMES = ("date", "time", "time of day", "duration")

_UNEQUAL = frozenset(
    {
        *((kind, "text") for kind in ("boolean", "float", "decimal", *_TIMES)),
        *(("boolean", kind) for kind in ("integer", "float")),
    }
)
"""Kinds of values and columns that a write converts and a look-up does not.

A look-up for ``True`` or ``1.0`` does not mean ``1`` or ``'1'``.
"""

_ROUNDED = frozenset({("float", "float"), ("float", "decimal"), ("decimal", "float")})


def _convert_exactly(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert values to equal values in another type, or raise `UnfitError`."""
    value_type = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    kinds = kind_of(value_type), kind_of(type_)
    if kinds in _UNEQUAL:
        raise UnfitError(f"{value_type} is no {type_}")
    converted = convert(values, type_)
    if kinds in _ROUNDED and value_type != type_:
        values = convert(values, value_type)  # Without a dictionary.
        rounded = pc.and_not(pc.invert(_is_same(values, converted)), pc.is_null(values))
        if pc.any(rounded).as_py():
            _refuse(values.filter(rounded).slice(0, 1).to_pylist(), type_)
    return converted


def _is_same(values: pa.Array, found: pa.Array) -> pa.Array:
    """Return whether numbers are equal or have the same shortest text, as 0.1 in 32 and 64 bits."""
    back, _ = try_convert(convert(found, pa.string()), values.type)
    is_same = pc.equal(back, values).fill_null(False)
    if pa.types.is_decimal(values.type):
        return is_same
    is_nan = pc.is_nan(values).fill_null(False)
    wide = convert(found, pa.float64())
    return pc.or_(pc.or_(is_same, is_nan), pc.equal(wide, convert(values, pa.float64())))


# -- values of Python ------------------------------------------------------------------------

_Rule: TypeAlias = Callable[[Sequence[Any], pa.DataType], pa.Array]
_Group: TypeAlias = tuple[_Rule, Any]
"""A rule, and a hashable key for values that the rule may convert together."""


def _group_of(value: Any) -> _Group:
    kind = type(value)
    if value is None or kind.__name__ in ("NAType", "NaTType"):
        return _array_of_missing, None
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        return _array_of_numpy, value.dtype
    if isinstance(value, pa.Scalar):
        return _array_of_plain, value.type
    if isinstance(value, datetime):
        # By identity: not all time zones have a hash. Nanoseconds are a part that pandas has.
        has_nanoseconds = bool(getattr(value, "nanosecond", 0))
        rule = _array_of_nanoseconds if has_nanoseconds else _array_of_times
        return rule, (kind, id(value.tzinfo))
    if isinstance(value, Decimal):
        return _array_of_decimals, None
    if isinstance(value, int) and not -_INT64_END <= value < _INT64_END:
        return _array_of_large_integers, None
    if isinstance(value, time) and value.tzinfo is not None:
        return _refuse, None
    return _array_of_plain, kind


def _convert_or_raise(make: Callable[[Any], T], values: Any, quoted: Any) -> T:
    """Convert values with Arrow, numpy or pandas; raise `UnfitError` on failure."""
    try:
        return make(values)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise UnfitError(f"{QuotedValue(quoted)!r} has no type in Arrow: {error}") from error


def _array_of_missing(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return pa.nulls(len(values), type_)


def _array_of_plain(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return _convert_exactly(_convert_or_raise(pa.array, values, values[0]), type_)


def _array_of_numpy(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    array = np.array(values, values[0].dtype)
    return _convert_exactly(_convert_or_raise(pa.array, array, values[0]), type_)


def _array_of_times(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if hasattr(values[0], "to_pydatetime"):  # Of pandas, whose units Arrow does not read.
        times = _convert_or_raise(
            lambda value: [moment.to_pydatetime() for moment in value], values, values[0]
        )
        return _array_of_plain(times, type_)
    return _array_of_plain(values, type_)


def _array_of_nanoseconds(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Convert pandas times by way of UTC: with nanoseconds, no zone makes an exact date."""
    numbers = np.array([value.to_datetime64() for value in values], "datetime64[ns]")
    zone = None if values[0].tzinfo is None else "UTC"
    return convert(pa.array(numbers).view(pa.timestamp("ns", zone)), type_)


def _array_of_decimals(values: Sequence[Decimal], type_: pa.DataType) -> pa.Array:
    """Convert decimals through text: Arrow allocates memory for any exponent."""
    is_whole = pa.types.is_integer(type_)
    if not (is_whole or pa.types.is_decimal(type_) or pa.types.is_floating(type_)):
        _refuse(values, type_)
    for value in values:
        if not value.is_finite() or abs(value.adjusted()) > _POWER_MAX:
            _refuse([value], type_)
    texts = [format(value, "f") for value in values]
    if is_whole:
        texts = [text.rstrip("0").rstrip(".") if "." in text else text for text in texts]
    decimals = convert(pa.array(texts, pa.string()), type_)
    if pa.types.is_floating(type_):
        shortest = convert(decimals, pa.string()).to_pylist()
        for value, text in zip(values, shortest, strict=True):
            if Decimal(text) != value:
                _refuse([value], type_)
    return decimals


def _array_of_large_integers(values: Sequence[int], type_: pa.DataType) -> pa.Array:
    """Convert integers beyond 64 bits; refuse floats, which round them."""
    if pa.types.is_floating(type_) or any(abs(value) >> 1024 for value in values):
        _refuse(values, type_)
    return _array_of_decimals([Decimal(value) for value in values], type_)


def _refuse(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    raise UnfitError(f"{QuotedValue(values[0])!r} is no {type_}")


WHOLE_MAX: Final = 2**63 - 1
"""Largest integer in a table's records."""

DURATION_MS_MAX: Final = 253_402_300_800_000
"""Longest duration in milliseconds: from 1970 through the year 9999."""


def whole_argument(name: str, value: Any, *, least: int = 0, most: int = WHOLE_MAX) -> int:
    """Return an argument as an integer within bounds.

    Accepts ``__index__``; refuses floats and booleans, which records cannot store exactly.
    """
    number = _integer(value)
    if number is None or not least <= number <= most:
        raise _unfit(name, value, f"a whole number from {least} to {most}", least, most)
    return number


def version_argument(name: str, value: Any) -> int:
    """Return a version as an integer with any sign; the log refuses missing versions."""
    return whole_argument(name, value, least=-WHOLE_MAX)


_E = TypeVar("_E", bound=Enum)


def member_argument(name: str, value: Any, members: type[_E]) -> _E:
    """Return an argument as a member of an enumeration; its text will do."""
    if isinstance(value, members):
        return value
    try:
        return members(value)
    except ValueError:
        texts = ", ".join(repr(each.value) for each in members)
        expected = f"a member of {members.__name__} or one of {texts}"
        raise OptionError.invalid(name, QuotedValue(value), expected) from None


def optional(convert: Callable[..., int], name: str, value: Any, **bounds: int) -> int | None:
    """Validate an argument with another function, or return None for None."""
    return None if value is None else convert(name, value, **bounds)


def duration_argument(name: str, value: Any, *, least: int = 0) -> int:
    """Return a duration in milliseconds as an integer; raises like `whole_argument`."""
    number = _integer(value)
    if number is None or not least <= number <= DURATION_MS_MAX:
        expected = f"a whole number of milliseconds from {least} to {DURATION_MS_MAX}"
        raise _unfit(name, value, expected, least, DURATION_MS_MAX)
    return number


def _integer(value: Any) -> int | None:
    """Return a value as an integer; None for other types, including booleans."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _unfit(name: str, value: Any, expected: str, least: int, most: int) -> OptionError:
    number = None
    if isinstance(value, timedelta):
        number = value // timedelta(milliseconds=1)
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    is_inside = number is not None and least <= number <= most
    hint = f"give {name}={number}, an int." if is_inside else ""
    return OptionError.invalid(name, QuotedValue(value), expected, hint=hint)
