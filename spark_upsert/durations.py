"""Durations as people write them: ``7 days``, ``7d``, ``90 min``, ``1 hour``."""

from __future__ import annotations

import re

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}

EXPECTED = "a number with a unit from milliseconds to weeks, such as '7 days' or '12h'"
"""What an error says that it expected."""


def try_parse_ms(text: str) -> int | None:
    """Return a duration in milliseconds, or None if the text is none.

    >>> try_parse_ms("7 days") == try_parse_ms("7d") == 7 * 86_400_000
    True
    >>> try_parse_ms("seven days") is None
    True
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip().lower())
    if match is None:
        return None
    unit = _UNITS_MS.get(match[2]) or _UNITS_MS.get(match[2].removesuffix("s"))
    return None if unit is None else int(match[1]) * unit


def render_ms(milliseconds: int) -> str:
    """Return a duration in its largest whole unit.

    >>> render_ms(604_800_000), render_ms(5_400_000)
    ('7 days', '90 minutes')
    """
    for unit in ("day", "hour", "minute", "second"):
        count, rest = divmod(milliseconds, _UNITS_MS[unit])
        if count and not rest:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{milliseconds} ms"
