"""Whole numbers and durations that a caller passes as arguments in Python.

Records of a table store them, and readers of records accept integers only. So a public method
converts such an argument here before it uses it: a value with ``__index__`` (``int``, integers of
numpy) becomes an ``int``. Floats are refused even if they have no fraction, because large ones
skip integers, and so are truth values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from spark_upsert.conversions.reasons import Quoted
from spark_upsert.errors import OptionError

WHOLE_MAX: Final = 2**63 - 1
"""The largest integer that a record of a table may contain."""

DURATION_MS_MAX: Final = 253_402_300_800_000
"""The longest duration in milliseconds: the year 9999, counted from 1970."""


def whole_argument(name: str, value: Any, *, least: int = 0, most: int = WHOLE_MAX) -> int:
    """Return an argument as an integer within bounds.

    Parameters
    ----------
    name : str
        The name of the argument, for the error.
    value : object
        The argument as the caller passed it.
    least, most : int
        The bounds, both included.

    Raises
    ------
    OptionError
        The value is no integer, or out of bounds.
    """
    number = _integer(value)
    if number is None or not least <= number <= most:
        raise _unfit(name, value, f"a whole number from {least} to {most}", least, most)
    return number


def version_argument(name: str, value: Any) -> int:
    """Return a version as an integer of any sign; the log refuses versions that it lacks."""
    return whole_argument(name, value, least=-WHOLE_MAX)


def optional(convert: Callable[..., int], name: str, value: Any, **bounds: int) -> int | None:
    """Return an argument as one of the other functions does, or None if the caller passed None."""
    return None if value is None else convert(name, value, **bounds)


def duration_argument(name: str, value: Any, *, least: int = 0) -> int:
    """Return a duration in milliseconds as an integer; raises as `whole_argument`."""
    number = _integer(value)
    if number is None or not least <= number <= DURATION_MS_MAX:
        expected = f"a whole number of milliseconds from {least} to {DURATION_MS_MAX}"
        raise _unfit(name, value, expected, least, DURATION_MS_MAX)
    return number


def _integer(value: Any) -> int | None:
    """Return the integer that a value is; None for all else, truth values included."""
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
    return OptionError.invalid(name, Quoted(value), expected, hint=hint)
