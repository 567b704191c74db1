"""SQL casts (`cast`) as in Spark's ANSI mode; casts not listed in `_CASTS` are refused.

A value that the type cannot represent is an error for its row (docs/adr/0050).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import UnfitError, convert, range_of
from spark_upsert.core.threads import Rounding, shorten
from spark_upsert.errors import PlanError

Datum = Any
"""A `pyarrow.Array`, or a `pyarrow.Scalar` for all rows; ``Any``, because pyarrow is untyped."""

UTC = pa.timestamp("us", tz="UTC")
NAIVE = pa.timestamp("us")

_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("nothing", pa.types.is_null),
    ("truth", pa.types.is_boolean),
    ("whole", pa.types.is_integer),
    ("decimal", pa.types.is_decimal),
    ("float", pa.types.is_floating),
    ("text", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    ("bytes", lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind)),
    ("date", pa.types.is_date),
    ("moment", lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None),
    ("naive", pa.types.is_timestamp),
)


def kind_of(type_: pa.DataType) -> str:
    """Return a type's kind, which ignores layout and width."""
    return next((kind for kind, is_of in _KINDS if is_of(type_)), "other")


def cast(value: Datum, type_: pa.DataType) -> Datum:
    """Cast a value; raises `PlanError` if no cast exists between the types."""
    if isinstance(value, pa.Scalar):
        return cast(pa.repeat(value, 1), type_)[0]
    kinds = kind_of(value.type), kind_of(type_)
    if kinds[0] == "nothing":
        return pa.nulls(len(value), type_)
    rule = _CASTS.get(kinds)
    if rule is None:
        raise PlanError(
            f"CAST of {value.type} to {type_} is not known.",
            hint=_INSTEAD.get(kinds, "docs/tasks.md lists what becomes what: cast twice."),
        )
    return rule(value, type_)


_INSTEAD = {
    ("float", "moment"): "cast whole seconds: CAST(CAST(x AS BIGINT) AS TIMESTAMP).",
    ("decimal", "moment"): "cast whole seconds: CAST(CAST(x AS BIGINT) AS TIMESTAMP).",
    ("moment", "float"): "cast to whole seconds first: CAST(CAST(x AS BIGINT) AS DOUBLE).",
    (
        "moment",
        "decimal",
    ): "cast to whole seconds first: CAST(CAST(x AS BIGINT) AS DECIMAL(19, 0)).",
}


def nearest(value: Datum, type_: pa.DataType) -> Datum:
    """Convert a value to an operator's type that holds it; floats are rounded to the nearest."""
    if value.type == type_:
        return value
    rounding = Rounding.HALF_UP if pa.types.is_floating(type_) else Rounding.EXACT
    return convert(value, type_, rounding)


def _rounded(value: Datum, type_: pa.DataType) -> Datum:
    if pa.types.is_float32(value.type):
        value = convert(value, pa.float64())
    return convert(value, type_, Rounding.HALF_UP)


def _down(value: Datum, type_: pa.DataType) -> Datum:
    return convert(value, type_, Rounding.DOWN)


def _truth_of_number(value: Datum, type_: pa.DataType) -> Datum:
    return pc.not_equal(value, convert(pa.scalar(0), value.type))


def _number_of_truth(value: Datum, type_: pa.DataType) -> Datum:
    return convert(pc.if_else(value, 1, 0), type_)


# -- moments ---------------------------------------------------------------------------------

_SECOND_US = 1_000_000
_SECONDS_MIN, _SECONDS_END = -62_135_596_800, 253_402_300_800
"""Seconds since 1970 for the years 0001 to 9999."""


def _moment_of_seconds(value: Datum, type_: pa.DataType) -> Datum:
    seconds = convert(value, pa.int64())
    is_inside = pc.and_(pc.greater_equal(seconds, _SECONDS_MIN), pc.less(seconds, _SECONDS_END))
    # Others are out of the type's range, but not of its multiplication's.
    micros = pc.multiply(pc.if_else(is_inside, seconds, _SECONDS_END), _SECOND_US)
    return convert(micros.view(UTC), type_)


def _seconds_of_moment(value: Datum, type_: pa.DataType) -> Datum:
    micros = convert(value, UTC, Rounding.DOWN).view(pa.int64())
    fraction = pc.subtract(micros, pc.multiply(pc.divide(micros, _SECOND_US), _SECOND_US))
    # Divided towards zero; time is counted down to the second.
    is_before = pc.less(fraction, 0)
    seconds = pc.subtract(pc.divide(micros, _SECOND_US), _number_of_truth(is_before, pa.int64()))
    return convert(seconds, type_)


def _utc(value: Datum) -> Datum:
    """Return timestamps in UTC, which decides their dates and texts."""
    return value.view(pa.timestamp(value.type.unit, tz="UTC"))


def _of_moment(value: Datum, type_: pa.DataType) -> Datum:
    return convert(_utc(value), type_, Rounding.DOWN)


# -- texts -----------------------------------------------------------------------------------


def _converted(value: Datum, type_: pa.DataType) -> Datum:
    return convert(value, type_)


_WRITTEN = (
    r"\A(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<fraction>[0-9]+))?(?:e(?P<power>[+-]?[0-9]+))?\z"
)
_PLAIN_POWERS = range(-2, 8)
"""Decimal point positions that Java writes without an exponent: 0.001 to ten millions."""


def _text_of_float(value: Datum, type_: pa.DataType) -> Datum:
    """Format floats as Java does, with the fewest distinguishing digits: ``1.0E20``."""
    text = convert(value, pa.string())
    parts = pc.extract_regex(text, _WRITTEN)
    sign, integer_part, fraction, power = (pc.struct_field(parts, index) for index in range(4))
    written = pc.binary_join_element_wise(integer_part, fraction, "")
    cut = pc.utf8_ltrim(written, "0")
    digits = pc.utf8_rtrim(cut, "0")
    # The point is so many digits behind the first.
    point = pc.subtract(pc.utf8_length(integer_part), pc.utf8_length(written))
    point = pc.add(pc.add(point, pc.utf8_length(cut)), _int32(power))
    fraction_digits = pc.utf8_slice_codeunits(digits, 1)
    exponent = convert(pc.subtract(point, 1), pa.string())
    float_texts = _joined(
        pc.utf8_slice_codeunits(digits, 0, 1), ".", _or_zero(fraction_digits), "E", exponent
    )
    for power_of_ten in _PLAIN_POWERS:
        padded = pc.utf8_rpad(digits, power_of_ten, "0") if power_of_ten > 0 else digits
        before = pc.utf8_slice_codeunits(padded, 0, power_of_ten) if power_of_ten > 0 else "0"
        digits_after = pc.utf8_slice_codeunits(padded, max(power_of_ten, 0))
        plain = _joined(before, ".", "0" * -power_of_ten, _or_zero(digits_after))
        float_texts = pc.if_else(pc.equal(point, power_of_ten), plain, float_texts)
    float_texts = pc.if_else(pc.equal(digits, ""), "0.0", float_texts)
    named = pc.replace_substring(pc.replace_substring(text, "inf", "Infinity"), "nan", "NaN")
    return convert(pc.coalesce(_joined(sign, float_texts), named), type_)


def _int32(power: Datum) -> Datum:
    digits = pc.utf8_ltrim(power, "+")
    return convert(pc.if_else(pc.equal(digits, ""), "0", digits), pa.int32())


def _or_zero(digits: Datum) -> Datum:
    return pc.if_else(pc.equal(digits, ""), "0", digits)


def _joined(*texts: Datum) -> Datum:
    return pc.binary_join_element_wise(*texts, "")


def _text_of_time(value: Datum, type_: pa.DataType) -> Datum:
    """Format timestamps without trailing zeros."""
    text = convert(convert(value, NAIVE, Rounding.DOWN), pa.string())
    return convert(pc.replace_substring_regex(text, r"\.?0*$", ""), type_)


def _text_of_moment(value: Datum, type_: pa.DataType) -> Datum:
    return _text_of_time(_of_moment(value, NAIVE), type_)


_BLANKS = "".join(map(chr, range(0x21)))
_TRUE = r"\A(?i:t|true|y|yes|1)\z"
_SIGNED_NAN = r"\A[+-](?i:nan)\z"
_FALSE = r"\A(?i:f|false|n|no|0)\z"

_DAY = r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
_DATE = rf"\A{_DAY}(?:[T ].*)?)?)?\z"
_MOMENT = (
    rf"\A{_DAY}(?:[T ](?P<hour>[0-9]{{1,2}})"
    r"(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})"
    r"(?:\.(?P<fraction>[0-9]{0,6})[0-9]*)?)?)?"
    r" ?(?P<zone>Z|[+-][0-9]{1,2}(?::[0-9]{1,2})?)?)?)?)?\z"
)


def _trimmed(value: Datum) -> Datum:
    return pc.utf8_trim(convert(value, pa.string()), _BLANKS)


def _of_text(value: Datum, type_: pa.DataType) -> Datum:
    return convert(_trimmed(value), type_, Rounding.HALF_UP)


def _float_of_text(value: Datum, type_: pa.DataType) -> Datum:
    text = _trimmed(value)
    _require(pc.invert(pc.match_substring_regex(text, _SIGNED_NAN)), value, type_)
    return convert(text, type_)


def _truth_of_text(value: Datum, type_: pa.DataType) -> Datum:
    text = _trimmed(value)
    is_true = pc.match_substring_regex(text, _TRUE)
    _require(pc.or_(is_true, pc.match_substring_regex(text, _FALSE)), value, type_)
    return is_true


def _require(is_known: Datum, value: Datum, type_: pa.DataType) -> None:
    row = is_known.index(False).as_py()
    if row >= 0:
        raise UnfitError(f"'{shorten(value[row].as_py())}' is no {type_}{range_of(type_)}")


def _date_of_text(value: Datum, type_: pa.DataType) -> Datum:
    """Parse ``2026``, ``2026-1`` and ``2026-1-31``; any text after a blank or ``T`` is ignored."""
    parts = _parts(value, _DATE, type_)
    return convert(_day(parts), type_)


def _moment_of_text(value: Datum, type_: pa.DataType) -> Datum:
    """Parse a date, optionally with ``12``, ``12:30`` or ``12:30:00.5`` and a zone."""
    parts = _parts(value, _MOMENT, type_)
    clock = pc.binary_join_element_wise(*(_two_digits(parts, name, "0") for name in _CLOCK), ":")
    fraction = pc.utf8_rpad(pc.struct_field(parts, "fraction"), 6, "0")
    text = pc.binary_join_element_wise(_day(parts), "T", clock, ".", fraction, "")
    if type_.tz is None:  # Spark reads a zone, and does not look at it.
        return convert(text, type_)
    return convert(pc.binary_join_element_wise(text, _zone(parts), ""), type_)


def _parts(value: Datum, form: str, type_: pa.DataType) -> Datum:
    """Split texts by a pattern; raises `UnfitError` if a text does not match."""
    parts = pc.extract_regex(_trimmed(value), form)
    _require(pc.or_(pc.is_valid(parts), pc.is_null(value)), value, type_)
    return parts


_CLOCK = ("hour", "minute", "second")


def _two_digits(parts: Datum, name: str, instead: str) -> Datum:
    """Return a part with two digits, or a default if it is missing."""
    part = pc.struct_field(parts, name)
    return pc.utf8_lpad(pc.if_else(pc.equal(part, ""), instead, part), 2, "0")


def _day(parts: Datum) -> Datum:
    others = (_two_digits(parts, name, "1") for name in ("month", "day"))
    return pc.binary_join_element_wise(pc.struct_field(parts, "year"), *others, "-")


def _zone(parts: Datum) -> Datum:
    """Return the zone as ``+02:00``; UTC if it is missing."""
    zone = pc.struct_field(parts, "zone")
    zone = pc.if_else(pc.or_(pc.equal(zone, ""), pc.equal(zone, "Z")), "+0", zone)
    zone = pc.replace_substring_regex(zone, r"^([+-])([0-9])(:|$)", r"\10\2\3")
    zone = pc.replace_substring_regex(zone, r":([0-9])$", r":0\1")
    return pc.if_else(
        pc.match_substring(zone, ":"), zone, pc.binary_join_element_wise(zone, ":00", "")
    )


_Rule = Callable[[Datum, pa.DataType], Datum]

_CASTS: dict[tuple[str, str], _Rule] = {
    **{(kind, kind): _rounded for kind in ("decimal", "float")},
    **{(kind, kind): _converted for kind in ("truth", "text", "bytes")},
    ("whole", "whole"): _down,
    ("whole", "decimal"): _rounded,
    ("whole", "float"): _rounded,
    ("decimal", "whole"): _down,
    ("decimal", "float"): _rounded,
    ("float", "whole"): _down,
    ("float", "decimal"): _rounded,
    **{(kind, "truth"): _truth_of_number for kind in ("whole", "decimal", "float")},
    **{("truth", kind): _number_of_truth for kind in ("whole", "decimal", "float")},
    **{(kind, "text"): _converted for kind in ("truth", "whole", "decimal", "date", "bytes")},
    ("float", "text"): _text_of_float,
    ("naive", "text"): _text_of_time,
    ("moment", "text"): _text_of_moment,
    **{("text", kind): _of_text for kind in ("whole", "decimal")},
    ("text", "float"): _float_of_text,
    ("text", "truth"): _truth_of_text,
    ("text", "bytes"): _converted,
    ("text", "date"): _date_of_text,
    ("text", "moment"): _moment_of_text,
    ("text", "naive"): _moment_of_text,
    ("whole", "moment"): _moment_of_seconds,
    ("moment", "whole"): _seconds_of_moment,
    **{(kind, "date"): _down for kind in ("date", "naive")},
    **{(kind, "naive"): _down for kind in ("date", "naive")},
    **{(kind, "moment"): _down for kind in ("date", "naive")},
    **{("moment", kind): _of_moment for kind in ("date", "moment", "naive")},
}
