"""The key hash of ``docs/format.md`` in plain Python integers, one value at a time.

Written from the documented formula alone, so that it shares no code with the fast one.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

MASK = (1 << 64) - 1
G = 0x9E3779B97F4A7C15
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def mix(z: int) -> int:
    """Return the finaliser of splitmix64."""
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash_key(values: Sequence[Any], *, seed: int, prefix: int = 0) -> int:
    """Return the hash of one composite key, its upper half of the first columns if they are named.

    Python types stand for Arrow's: int, bool, float, str, bytes, `Decimal` (its unscaled
    integer is hashed), date, time and datetime.
    """
    parts = [_part(value, mix(seed + (j + 1) * G)) for j, value in enumerate(values)]
    whole = mix(sum(parts))
    if not prefix:
        return whole
    half = (1 << 32) - 1
    return (mix(sum(parts[:prefix])) & ~half) | (whole & half)


def _part(value: Any, s: int) -> int:
    if value is None:
        return mix(~s)
    length, words = _words(value)
    part = s + length * G
    for i, word in enumerate(words):
        part += mix((word & MASK) ^ mix(s + (i + 1) * G))
    return part


def _words(value: Any) -> tuple[int, list[int]]:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        padded = value + b"\0" * (-len(value) % 8)
        return len(value), [
            int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)
        ]
    if isinstance(value, Decimal):
        unscaled = _unscaled(value)
        return 16, [unscaled & MASK, (unscaled >> 64) & MASK]
    if isinstance(value, float):
        return 8, [_float_bits(value)]
    return 8, [_integer(value)]


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _float_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FF8000000000000
    if value == 0:
        return 0
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _integer(value: Any) -> int:
    match value:
        case dt.datetime():
            return (value - _EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - _EPOCH.date()).days
        case dt.time():
            midnight = dt.datetime.combine(dt.date(1970, 1, 1), dt.time())
            return (dt.datetime.combine(midnight.date(), value) - midnight) // dt.timedelta(
                microseconds=1
            )
    return int(value)
