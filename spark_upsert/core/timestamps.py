"""Dates and times from text: ISO 8601 in the UTC years 0001 to 9999 (`parse_times`)."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.threads import Undecodable, shorten

_EPOCH = dt.date(1970, 1, 1).toordinal()
DAYS_MIN, DAYS_MAX = dt.date.min.toordinal() - _EPOCH, dt.date.max.toordinal() - _EPOCH
"""Range of valid dates, in days since 1970."""

_DAY_US = 86_400_000_000
MICROS_MIN, MICROS_MAX = DAYS_MIN * _DAY_US, (DAYS_MAX + 1) * _DAY_US - 1
"""Range of valid times, in microseconds since 1970."""

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)

# Texts that Arrow may parse: calendar days, including leap days.
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    f"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3])(?::[0-5][0-9])?)"

_USUAL_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_USUAL_TIME = rf"{_USUAL_DATE}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?"
_USUAL_ZONE = "(?:Z|[+-][0-9]{2}(?::[0-9]{2})?)"

_DATE_CHARS = len("2024-02-29")


def parse_times(texts: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Parse texts as dates or times; also return a mask of invalid texts.

    Notes
    -----
    A DATE is ``2024-02-29``. A TIMESTAMP_NTZ is a date, or a date, ``T`` or a space, and
    ``12:30[:00[.123456]]``. A TIMESTAMP is the same with ``Z``, ``+02``, ``+0200``, ``+02:00`` or,
    for UTC, nothing. Finer fractions, and a zone in a TIMESTAMP_NTZ, are invalid.

    The usual forms are converted in one step; others (zeros beyond the microsecond, a zone without
    a colon) one by one, at about 3 us each.
    """
    moments = _try_cast(texts, type_)
    if moments is not None:
        return moments, np.zeros(len(texts), dtype=np.bool_)
    if pa.types.is_date32(type_):
        is_plain = pc.match_substring_regex(texts, rf"\A{_DAY}\z").fill_null(True)
        moments = _null_unless(texts, is_plain).cast(type_)
    else:
        zone = "" if type_.tz is None else f"{_ZONE}?"
        is_plain = pc.match_substring_regex(texts, rf"\A{_DAY}(?:{_CLOCK}{zone})?\z")
        is_plain = is_plain.fill_null(True)
        moments = _instants(_null_unless(texts, is_plain), type_)
        # A zone may lead out of the calendar.
        micros = moments.view(pa.int64())
        is_inside = pc.and_(pc.greater_equal(micros, MICROS_MIN), pc.less_equal(micros, MICROS_MAX))
        is_plain = pc.and_(is_plain, is_inside.fill_null(True))
        moments = _null_unless(moments, is_plain)
    bad = np.zeros(len(texts), dtype=np.bool_)
    others = np.flatnonzero(~is_plain.to_numpy(zero_copy_only=False))
    if not len(others):
        return moments, bad
    values = [_value_or_none(text, type_) for text in texts.take(pa.array(others)).to_pylist()]
    bad[others] = [value is None for value in values]
    row_indices = np.arange(len(texts))
    row_indices[others] = len(texts) + np.arange(len(others))
    mended = pa.array(values, pa.int32() if pa.types.is_date32(type_) else pa.int64()).view(type_)
    return pa.concat_arrays([moments, mended]).take(pa.array(row_indices)), bad


def _try_cast(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Cast texts if all have the usual form; None otherwise.

    The form ignores the calendar, so it matches several times as fast as `_DAY`.
    """
    is_date = pa.types.is_date32(type_)
    form = _USUAL_DATE if is_date else _USUAL_TIME + ("" if type_.tz is None else _USUAL_ZONE)
    if not pc.all(pc.match_substring_regex(texts, rf"\A{form}\z"), min_count=0).as_py():
        return None
    try:
        moments = texts.cast(type_)
    except pa.ArrowInvalid:  # The 30th of February, perhaps.
        return None
    if is_date:
        least, most = DAYS_MIN, DAYS_MAX
    else:
        least, most = MICROS_MIN, MICROS_MAX
    bounds = pc.min_max(moments.view(pa.int32() if is_date else pa.int64()))
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    return moments if lowest is None or least <= lowest <= highest <= most else None


def _null_unless(array: pa.Array, mask: pa.Array) -> pa.Array:
    """Set values to null where a mask is false; optimized for a mask that is mostly true."""
    return array if pc.all(mask, min_count=0).as_py() else pc.if_else(mask, array, None)


def _instants(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Parse plain texts as times; Arrow requires a zone in each if the type has one."""
    if type_.tz is None:
        return texts.cast(type_)
    has_zone = pc.match_substring_regex(texts, "[Z+]|:.*-")
    if not pc.all(has_zone, min_count=0).as_py():
        is_date = pc.equal(pc.binary_length(texts), _DATE_CHARS)
        missing = pc.if_else(has_zone, "", pc.if_else(is_date, "T00:00Z", "Z"))
        texts = pc.binary_join_element_wise(texts, missing, "")
    return texts.cast(type_)


def parse_day(text: str) -> int:
    """Parse a date into days since 1970; raise `Undecodable` if it is invalid."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise Undecodable(f"'{shorten(text)}' is no date")
    try:
        return dt.date(*map(int, match.groups())).toordinal() - _EPOCH
    except ValueError as error:
        raise Undecodable(f"'{text}' is no date: {error}") from error


def parse_time_of_day(text: str, *, has_zone: bool) -> int:
    """Parse a time into microseconds since 1970; raise `Undecodable` if it is invalid."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise Undecodable(f"'{shorten(text)}' is no time")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if zone is not None and not has_zone:
        raise Undecodable(f"'{shorten(text)}' has a zone, and is declared TIMESTAMP_NTZ")
    fraction = (fraction or "").rstrip("0")
    if len(fraction) > 6:
        raise Undecodable(f"'{shorten(text)}' is finer than a microsecond")
    try:
        date = dt.date(int(year), int(month), int(day))
        time = dt.time(int(hour or 0), int(minute or 0), int(second or 0))
        offset_s = _offset_s(zone)
    except ValueError as error:
        raise Undecodable(f"'{shorten(text)}' is no time: {error}") from error
    seconds = time.hour * 3600 + time.minute * 60 + time.second - offset_s
    micros = (date.toordinal() - _EPOCH) * _DAY_US + seconds * 1_000_000
    return require_time(micros + int(fraction.ljust(6, "0")))


def require_day(days: int) -> int:
    """Return ``days`` if they are a valid date, or raise `Undecodable`."""
    if not DAYS_MIN <= days <= DAYS_MAX:
        raise Undecodable(f"day {days} since 1970 is outside the years 1 to 9999")
    return days


def require_time(micros: int) -> int:
    """Return ``micros`` if they are a valid time, or raise `Undecodable`."""
    if not MICROS_MIN <= micros <= MICROS_MAX:
        raise Undecodable(f"microsecond {micros} since 1970 is outside the years 1 to 9999")
    return micros


def _offset_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    time = dt.time(int(digits[:2]), int(digits[2:]))
    offset_s = time.hour * 3600 + time.minute * 60
    return -offset_s if zone[0] == "-" else offset_s


def _value_or_none(text: str, type_: pa.DataType) -> int | None:
    try:
        if pa.types.is_date32(type_):
            return parse_day(text)
        return parse_time_of_day(text, has_zone=type_.tz is not None)
    except Undecodable:
        return None
