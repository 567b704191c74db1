"""Decimals out of single texts, and out of the floats next to them: exactly, or none.

A text is ``[+-] digits [. digits] [e [+-] digits]`` in ASCII; a JSON number is such a text, too.
A number fits ``DECIMAL(p, s)`` if it is a whole multiple of ``10**-s`` below ``10**(p - s)``:
``1.500`` and ``15e-1`` are 1.50, ``1e-41`` is no ``DECIMAL(38, 2)`` and not 0.00 either. Columns of
texts are converted by the same rule in `spark_upsert.conversions`; here are reasons for one.
"""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions.reasons import Undecodable, shown

_TEXT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")

_EXPONENT_DIGITS = 10
"""An exponent of more digits is beyond any payload that Arrow can hold: out of every range."""


def decimal_of(text: str, type_: pa.Decimal128Type) -> Decimal:
    """Return the decimal that a text writes, with the scale of the type.

    Raises
    ------
    Undecodable
        It writes none, or one that the type cannot hold exactly.

    Notes
    -----
    O(length); only numbers that fit are ever converted.
    """
    match = _TEXT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise Undecodable(f"'{shown(text)}' is no decimal number")
    sign, whole, fraction, exponent_sign, exponent = match.groups(default="")
    written = (whole + fraction).lstrip("0")
    digits = written.rstrip("0")
    if not digits:
        return Decimal((0, (0,), -type_.scale))
    exponent = exponent.lstrip("0")[: _EXPONENT_DIGITS + 1] or "0"
    shift = int(exponent_sign + exponent) + type_.scale - len(fraction) + len(written) - len(digits)
    if shift < 0:
        raise Undecodable(f"{shown(text)} needs a finer scale than {_name(type_)} has")
    if len(digits) + shift > type_.precision:
        raise Undecodable(f"{shown(text)} needs a greater precision than {_name(type_)} has")
    return decimal_from(int(sign + digits) * 10**shift, type_)


def decimal_from(unscaled: int, type_: pa.Decimal128Type) -> Decimal:
    """Return ``unscaled * 10**-scale``.

    Raises
    ------
    Undecodable
        It has more digits than the type.
    """
    if abs(unscaled) >= 10**type_.precision:
        raise Undecodable(f"a number needs a greater precision than {_name(type_)} has")
    # Not `scaleb`, which rounds to the precision of the context.
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -type_.scale))


_FLOAT_DIGITS = 15
"""Most digits at which each number has a float of its own: 2**53 is beyond 10**15."""


def is_short(type_: pa.Decimal128Type) -> bool:
    """Return whether a float can tell usual numbers of a type apart."""
    return _short_whole(type_) > 0


def no_short_number(type_: pa.Decimal128Type) -> str:
    """Return the pattern of text that begins no number of a type that `decimals_of_floats` takes.

    It need not match what is no JSON. ``null`` is none of it.
    """
    whole, fraction = _short_whole(type_), type_.scale
    return (
        r"(?:-?[^-0-9n\s]"
        rf"|-?[0-9]{{{whole + 1}}}"
        rf"|-?[0-9]+\.[0-9]{{{fraction + 1 if fraction else 0}}}"
        r"|-?[0-9]+(?:\.[0-9]+)?[eE])"
    )


def decimals_of_floats(numbers: pa.Array, type_: pa.Decimal128Type) -> tuple[pa.Array, np.ndarray]:
    """Return decimals that were written in few digits, given the floats nearest to them.

    Others that do not fit are bad, as in `decimals`.

    Notes
    -----
    Two roundings, of the number and of its product with a power of ten, of one part in 2**53
    each: for 15 digits, less than a quarter of the last one.
    """
    floats = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
    words = np.empty((len(floats), 2), dtype="<i8")
    bad = ~(np.abs(floats) < 10.0 ** _short_whole(type_))
    words[:, 0] = np.rint(np.where(bad, 0.0, floats) * 10.0**type_.scale)
    words[:, 1] = words[:, 0] >> 63
    found = pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(words)])
    return pc.if_else(numbers.is_valid(), found, None) if numbers.null_count else found, bad


def _short_whole(type_: pa.Decimal128Type) -> int:
    """Return how many digits before the point a short number may have."""
    return min(type_.precision, _FLOAT_DIGITS) - type_.scale


def _name(type_: pa.Decimal128Type) -> str:
    return f"DECIMAL({type_.precision}, {type_.scale})"
