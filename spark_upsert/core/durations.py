"""Durations (``7 days``, ``1.5 hours``), ISO times in UTC, and log line fields."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from spark_upsert.errors import masked

_UNITS_MS = {
    ("ms", "millisecond", "milliseconds"): 1,
    ("s", "sec", "secs", "second", "seconds"): 1000,
    ("m", "min", "mins", "minute", "minutes"): 60_000,
    ("h", "hour", "hours"): 3_600_000,
    ("d", "day", "days"): 86_400_000,
    ("w", "week", "weeks"): 604_800_000,
}
_MS_BY_UNIT = {unit: factor for units, factor in _UNITS_MS.items() for unit in units}

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)", re.ASCII)

_MS_MAX = 2**62
"""Longest duration, 146 million years: a longer one plus today's time overflows a record."""

EXPECTED = "a number with a unit from milliseconds to weeks, such as '7 days' or '12h'"
"""Expected format, quoted in errors."""


def try_parse_ms(text: str) -> int | None:
    """Parse a duration into milliseconds; None if the text is invalid.

    >>> try_parse_ms("7 days") == try_parse_ms("7d") == 7 * 86_400_000
    True
    >>> try_parse_ms("1.5 h")
    5400000
    >>> try_parse_ms("seven days") is try_parse_ms("7") is None
    True
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _MS_BY_UNIT:
        return None
    milliseconds = int(Fraction(match[1]) * _MS_BY_UNIT[match[2]])
    return milliseconds if milliseconds <= _MS_MAX else None


def render_ms(milliseconds: int) -> str:
    """Format a duration in its largest whole unit.

    >>> render_ms(604_800_000), render_ms(5_400_000)
    ('7 days', '90 minutes')
    """
    for unit in ("day", "hour", "minute", "second"):
        count, remainder = divmod(milliseconds, _MS_BY_UNIT[unit])
        if count and not remainder:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{milliseconds} ms"


def render_age(milliseconds: int) -> str:
    """Format an age in its largest unit, rounded down.

    >>> render_age(200), render_age(5_400_000), render_age(200_000_000)
    ('less than a second', '1 hour', '2 days')
    """
    for unit in ("day", "hour", "minute", "second"):
        count = milliseconds // _MS_BY_UNIT[unit]
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a second"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def render_time(time_ms: int) -> str:
    """Format a time in ms since 1970 as ISO 8601; as a number if it exceeds the calendar.

    >>> render_time(0), render_time(1_769_860_800_120)
    ('1970-01-01T00:00:00Z', '2026-01-31T12:00:00.120Z')
    """
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms since 1970"
    digits = "milliseconds" if time_ms % 1000 else "seconds"
    return time.replace(tzinfo=None).isoformat(timespec=digits) + "Z"


_PLAIN = re.compile(r"[\w.,:/@%+*\-\[\)]+")


class Fields:
    """Names and values for a log line, formatted only on use; None values are left out.

    One event is one line, without rows or secrets in URLs.

    >>> str(Fields(path="s3://me:pass@lake/t", rows=7, writer=None, note="a b"))
    'path=s3://***@lake/t rows=7 note="a b"'
    """

    __slots__ = ("_values",)

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __str__(self) -> str:
        return " ".join(
            f"{name}={_shown(value)}" for name, value in self._values.items() if value is not None
        )


def _shown(value: Any) -> str:
    text = masked(str(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
