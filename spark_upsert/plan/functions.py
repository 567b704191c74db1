"""SQL operators and functions on complete columns, with the semantics of Spark's ANSI mode."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import convert, round_decimals
from spark_upsert.core.threads import Rounding
from spark_upsert.errors import PlanError
from spark_upsert.plan.casts import UTC, Datum, kind_of, nearest

_DOTTED_I = "\u0130"
_SIGMA, _FINAL_SIGMA = "\u03a3", "\u03c2"

_CASED = r"\p{Lu}\p{Ll}\p{Lt}"
_PASSED_OVER = r"\p{M}\p{Lm}\p{Sk}\p{Cf}'.:\x{B7}\x{2018}\x{2019}"
_AT_THE_END = (
    rf"([{_CASED}][{_PASSED_OVER}]*){_SIGMA}([{_PASSED_OVER}]*(?:[^{_CASED}{_PASSED_OVER}]|$))"
)
"""A final sigma: after a letter and not before one (Unicode, table 3-17)."""


def upper(texts: Any) -> Any:
    """Convert texts to upper case with Unicode's full mappings.

    Arrow maps one character to one, so characters such as the sharp s are replaced first.
    """
    if not _is_plain(texts):
        longer = _multi_letter_upper_cases()
        if _any(pc.match_substring_regex(texts, f"[{''.join(longer)}]")):
            for letter, letters in longer.items():
                texts = pc.replace_substring(texts, letter, letters)
    return pc.utf8_upper(texts)


def lower(texts: Any) -> Any:
    """Convert texts to lower case, including the dotted I and the final sigma."""
    if not _is_plain(texts):
        texts = pc.replace_substring(texts, _DOTTED_I, _DOTTED_I.lower())
        texts = pc.replace_substring_regex(texts, _AT_THE_END, rf"\1{_FINAL_SIGMA}\2")
    return pc.utf8_lower(texts)


def _is_plain(texts: Any) -> bool:
    return not _any(pc.invert(pc.string_is_ascii(texts)))


def _any(found: Any) -> bool:
    return pc.any(found, min_count=0).as_py() is True


@cache
def _multi_letter_upper_cases() -> dict[str, str]:
    """Return letters with an upper case of several letters, such as the sharp s."""
    letters = map(chr, range(0x80, sys.maxunicode + 1))
    return {letter: letter.upper() for letter in letters if len(letter.upper()) > 1}


CAST_HINT = "docs/tasks.md lists what expressions may hold; CAST(... AS ...) changes a type."

_LONG = pa.decimal128(20, 0)
"""The decimal type for a BIGINT operand next to decimals, as in Spark."""

_DIGITS_MAX = 38

FLOAT_PLACES = -20, 38
"""Minimum and maximum decimal places for ROUND on floats, which are rounded as decimals."""

_INT_MAX = (1 << 31) - 1


def apply(name: str, arguments: Sequence[Datum]) -> Datum:
    """Apply an operator or a function; raises `PlanError` for unsupported argument types."""
    try:
        return FUNCTIONS[name](*arguments)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise refused(name, arguments) from error
    except pa.ArrowInvalid as error:
        if _is_about_types(error):
            raise refused(name, arguments) from error
        raise


def refused(name: str, arguments: Sequence[Datum]) -> PlanError:
    """Return the error for unsupported argument types."""
    types = " and ".join(str(argument.type) for argument in arguments)
    return PlanError(f"{name} does not take {types}.", hint=CAST_HINT)


def _is_about_types(error: pa.ArrowInvalid) -> bool:
    """Return whether an error depends only on the types, so that the plan is wrong."""
    return "precision out of range" in str(error) or "Cannot compare" in str(error)


# -- types that are alike ----------------------------------------------------------------------


def to_common_type(*values: Datum) -> list[Datum]:
    """Convert values to a common type; untyped NULLs get it too.

    Numbers become DOUBLE if any is a float (FLOAT if all are), else decimals, else BIGINT.
    """
    types = [value.type for value in values if not pa.types.is_null(value.type)]
    type_ = _common(types) if types else pa.bool_()
    return [nearest(value, type_) for value in values]


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the common type; raises `ArrowNotImplementedError` if there is none."""
    kinds = {kind_of(type_) for type_ in types}
    if len(kinds) == 1 and all(type_ == types[0] for type_ in types):
        return types[0] if kinds != {"whole"} else pa.int64()
    if kinds <= {"whole", "decimal", "float"}:
        return _common_number(types, kinds)
    if kinds <= {"date", "naive", "moment"}:
        unit = max(
            (getattr(type_, "unit", "us") for type_ in types), key=["s", "ms", "us", "ns"].index
        )
        return pa.timestamp(unit, tz="UTC" if "moment" in kinds else None)
    if kinds == {"text"} or kinds == {"bytes"}:
        return pa.large_string() if kinds == {"text"} else pa.large_binary()
    raise pa.ArrowNotImplementedError("types differ")


def _common_number(types: Sequence[pa.DataType], kinds: set[str]) -> pa.DataType:
    if "float" in kinds:
        is_single = all(map(pa.types.is_float32, types))
        return pa.float32() if is_single else pa.float64()
    if "decimal" not in kinds:
        return pa.int64()
    held = [type_ if pa.types.is_decimal(type_) else _LONG for type_ in types]
    scale = max(type_.scale for type_ in held)
    precision = scale + max(type_.precision - type_.scale for type_ in held)
    if precision > _DIGITS_MAX:
        raise pa.ArrowNotImplementedError("no decimal holds both")
    return pa.decimal128(precision, scale)


def _is_number(value: Datum) -> bool:
    return kind_of(value.type) in ("whole", "decimal", "float")


def _is_whole(value: Datum) -> bool:
    return pa.types.is_integer(value.type)


def _is_floating(value: Datum) -> bool:
    return pa.types.is_floating(value.type)


def choose_values(is_first: Datum, first: Datum, second: Datum) -> Datum:
    """Return the first value where ``is_first`` is true, else the second, in their common type."""
    try:
        first, second = to_common_type(first, second)
    except pa.ArrowNotImplementedError as error:
        raise refused("CASE", [first, second]) from error
    return pc.if_else(is_first, first, second)


# -- truth -------------------------------------------------------------------------------------


def boolean(name: str, value: Datum) -> Datum:
    """Return a BOOLEAN operand; raises `PlanError` for other types."""
    if pa.types.is_null(value.type):
        return nearest(value, pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise refused(name, [value])
    return value


def negated(value: Datum) -> Datum:
    """Evaluate NOT."""
    return pc.invert(boolean("NOT", value))


def is_true(value: Datum) -> Datum:
    """Evaluate IS TRUE."""
    return pc.fill_null(boolean("IS TRUE", value), False)


def _is_false(value: Datum) -> Datum:
    return negated(pc.fill_null(boolean("IS FALSE", value), True))


def equal(*values: Datum) -> Datum:
    """Return whether two values are equal; NaN equals NaN."""
    left, right = to_common_type(*values)
    is_equal = pc.equal(left, right)
    if _is_floating(left):
        return pc.or_(is_equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return is_equal


def _less(*values: Datum) -> Datum:
    left, right = to_common_type(*values)
    if pa.types.is_boolean(left.type):
        left, right = pc.if_else(left, 1, 0), pc.if_else(right, 1, 0)
    is_less = pc.less(left, right)
    if _is_floating(left):
        return pc.or_(is_less, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    return is_less


def _same(left: Datum, right: Datum) -> Datum:
    """Return whether both values are NULL or equal; never NULL."""
    neither = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(neither, pc.fill_null(equal(left, right), False))


def _null_if(left: Datum, right: Datum) -> Datum:
    is_equal = pc.fill_null(equal(left, right), False)
    return pc.if_else(is_equal, pa.scalar(None, left.type), left)


def _least(*values: Datum) -> Datum:
    return reduce(lambda a, b: _preferred(_less(b, a), a, b), to_common_type(*values))


def _greatest(*values: Datum) -> Datum:
    return reduce(lambda a, b: _preferred(_less(a, b), a, b), to_common_type(*values))


def _preferred(is_second: Datum, first: Datum, second: Datum) -> Datum:
    """Return the second value if it is preferred or the first is NULL, else the first."""
    is_second = pc.or_(pc.fill_null(is_second, False), pc.is_null(first))
    return pc.if_else(is_second, second, first)


# -- numbers -----------------------------------------------------------------------------------


def _numbers(*values: Datum) -> list[Datum]:
    """Convert arithmetic operands: decimals keep their scale, other numbers get a common type."""
    if not all(_is_number(value) or pa.types.is_null(value.type) for value in values):
        raise pa.ArrowNotImplementedError("no numbers")
    if all(pa.types.is_null(value.type) for value in values):
        raise pa.ArrowNotImplementedError("no numbers")
    kinds = {kind_of(value.type) for value in values}
    if "decimal" in kinds and "float" not in kinds:
        first = next(value.type for value in values if pa.types.is_decimal(value.type))
        nulls_typed = (
            nearest(value, first) if pa.types.is_null(value.type) else value for value in values
        )
        return [_decimal(number) for number in nulls_typed]
    return to_common_type(*values)


def _decimal(value: Datum) -> Datum:
    return value if pa.types.is_decimal(value.type) else nearest(value, _LONG)


def in_own_digits(value: Datum) -> Datum:
    """Convert an integer literal to a decimal with exactly its digits."""
    digits = len(str(abs(value.as_py())))
    return nearest(value, pa.decimal128(digits, 0))


def _add(*values: Datum) -> Datum:
    left, right = _numbers(*values)
    return pc.add_checked(left, right)


def _minus(*values: Datum) -> Datum:
    operands = _numbers(*values)
    return pc.negate_checked(*operands) if len(operands) == 1 else pc.subtract_checked(*operands)


def _multiply(*values: Datum) -> Datum:
    left, right = _numbers(*values)
    return pc.multiply_checked(left, right)


def _divide(*values: Datum) -> Datum:
    left, right = _numbers(*values)
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        raise pa.ArrowNotImplementedError("decimals are not divided")
    return pc.divide_checked(nearest(left, pa.float64()), nearest(right, pa.float64()))


def _whole_numbers(*values: Datum) -> list[Datum]:
    operands = _numbers(*values)
    if not all(map(_is_whole, operands)):
        raise pa.ArrowNotImplementedError("no whole numbers")
    return operands


def _div(*values: Datum) -> Datum:
    left, right = _whole_numbers(*values)
    return pc.divide_checked(left, right)


def _remainder(*values: Datum) -> Datum:
    """Return the remainder after division towards zero; it has the left side's sign."""
    left, right = _whole_numbers(*values)
    # By -1 nothing is left, but the least number divided by it would not fit.
    right = pc.if_else(pc.equal(right, -1), 1, right)
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


def _whole(value: Datum, least: int, most: int) -> int:
    """Return an integer literal within bounds; raises `PlanError`."""
    if not isinstance(value, pa.Scalar) or not pa.types.is_integer(value.type):
        raise PlanError(f"a whole number was expected, found {value.type}.", hint="write 2.")
    number = int(value.as_py())
    if not least <= number <= most:
        raise PlanError(
            f"a number from {least} to {most} was expected, found {number}.",
            hint=f"write {least if number < least else most}.",
        )
    return number


def _round(value: Datum, digits: Datum | None = None) -> Datum:
    [number] = _numbers(value)
    if _is_floating(number):
        return _round_float(number, 0 if digits is None else _whole(digits, *FLOAT_PLACES))
    scale = 0 if digits is None else _whole(digits, -_INT_MAX, _INT_MAX)
    if not _is_whole(number):
        return round_decimals(number, scale)
    return number if scale >= 0 else nearest(round_decimals(_decimal(number), scale), pa.int64())


def _round_float(number: Datum, places: int) -> Datum:
    """Round floats by their shortest text, so that 1.005 becomes 1.01.

    A text has at most 17 digits. So a DOUBLE from 1 has at most 16 decimal places, from 2**53 none,
    and from 1e36 no digits below 1e20; such values are returned unchanged.
    """
    if isinstance(number, pa.Scalar):
        return _round_float(pa.repeat(number, 1), places)[0]
    double = nearest(number, pa.float64())
    end = 1e36 if places < 0 else 2.0**53 if places < 16 else 1.0
    is_rounded = pc.fill_null(pc.less(pc.abs(double), end), False)
    text = convert(pc.if_else(is_rounded, double, 0.0), pa.string())
    if places < 0:
        # What is cut off is no half, or more than the half that is rounded by.
        decimals = round_decimals(convert(text, pa.decimal128(38, 0), Rounding.DOWN), places)
    else:
        decimals = convert(text, pa.decimal128(38, places), Rounding.HALF_UP)
    return pc.if_else(is_rounded, nearest(decimals, number.type), number)


def _to_whole(function: Callable[[Datum], Datum], rounding: Rounding) -> Callable[[Datum], Datum]:
    def applied(value: Datum) -> Datum:
        [number] = _numbers(value)
        if _is_floating(number):
            return convert(function(number), pa.int64())
        is_whole = _is_whole(number) or number.type.scale == 0
        return number if is_whole else round_decimals(number, 0, rounding)

    return applied


def _sign(value: Datum) -> Datum:
    [number] = _numbers(value)
    if not _is_floating(number):
        return nearest(pc.sign(number), pa.int64())
    # Arrow's sign of -0.0 is 0.0.
    signs = pc.if_else(pc.equal(number, 0), number, pc.sign(number))
    return nearest(signs, pa.float64())


def _nan(value: Datum) -> Datum:
    if pa.types.is_null(value.type):
        value = nearest(value, pa.float64())
    return pc.fill_null(pc.is_nan(nearest(_numbers(value)[0], pa.float64())), False)


# -- texts and times ---------------------------------------------------------------------------


def _text(value: Datum) -> str:
    """Return a text literal; raises `PlanError`."""
    if not isinstance(value, pa.Scalar) or not pa.types.is_string(value.type):
        raise PlanError(f"a text was expected, found {value.type}.", hint="write it in quotes.")
    return str(value.as_py())


def _texts(*values: Datum) -> list[Datum]:
    """Return text operands; other types must be cast first."""
    if not all(kind_of(value.type) in ("text", "nothing") for value in values):
        raise pa.ArrowNotImplementedError("no texts")
    texts = to_common_type(*values)
    return [nearest(value, pa.string()) if value.type == pa.bool_() else value for value in texts]


_ESCAPES = re.compile(r"(?:[^\\]|\\[%_\\])*", re.DOTALL)


def _like(text: Datum, pattern: Datum) -> Datum:
    written = _text(pattern)
    if not _ESCAPES.fullmatch(written):
        raise PlanError(
            f"LIKE '{written}': a backslash stands before %, _ or another backslash only.",
            hint="write two for one that means itself.",
        )
    return pc.match_like(*_texts(text), written)


def _with_part(kernel: Callable[..., Datum]) -> Callable[[Datum, Datum], Datum]:
    return lambda text, part: kernel(*_texts(text), _text(part))


def _substring(text: Datum, first: Datum, length: Datum | None = None) -> Datum:
    start = _whole(first, 1, _INT_MAX)
    stop = None if length is None else start - 1 + max(_whole(length, -_INT_MAX, _INT_MAX), 0)
    return pc.utf8_slice_codeunits(*_texts(text), start=start - 1, stop=stop)


def _concat(*texts: Datum) -> Datum:
    return pc.binary_join_element_wise(*_texts(*texts), "")


def _part_of_day(kernel: Callable[[Datum], Datum]) -> Callable[[Datum], Datum]:
    return lambda time: kernel(nearest(time, UTC) if pa.types.is_null(time.type) else time)


FUNCTIONS: dict[str, Callable[..., Datum]] = {
    "NOT": negated,
    "IS NULL": pc.is_null,
    "IS TRUE": is_true,
    "IS FALSE": _is_false,
    "=": equal,
    "<>": lambda left, right: pc.invert(equal(left, right)),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: pc.invert(_less(right, left)),
    ">=": lambda left, right: pc.invert(_less(left, right)),
    "<=>": _same,
    "LIKE": _like,
    "+": _add,
    "-": _minus,
    "*": _multiply,
    "/": _divide,
    "%": _remainder,
    "DIV": _div,
    "||": _concat,
    "ABS": lambda value: pc.abs_checked(*_numbers(value)),
    "CEIL": _to_whole(pc.ceil, Rounding.CEILING),
    "CONTAINS": _with_part(pc.match_substring),
    "DAY": _part_of_day(pc.day),
    "ENDS_WITH": _with_part(pc.ends_with),
    "FLOOR": _to_whole(pc.floor, Rounding.FLOOR),
    "GREATEST": _greatest,
    "ISNAN": _nan,
    "LEAST": _least,
    "LENGTH": lambda text: nearest(pc.utf8_length(*_texts(text)), pa.int64()),
    "LOWER": lambda text: lower(*_texts(text)),
    "MONTH": _part_of_day(pc.month),
    "NULLIF": _null_if,
    "ROUND": _round,
    "SIGN": _sign,
    "SQRT": lambda value: pc.sqrt(nearest(_numbers(value)[0], pa.float64())),
    "STARTS_WITH": _with_part(pc.starts_with),
    "SUBSTRING": _substring,
    "TRIM": lambda text: pc.utf8_trim(*_texts(text), " "),
    "UPPER": lambda text: upper(*_texts(text)),
    "YEAR": _part_of_day(pc.year),
}
"""Functions by `Call` name; `expressions` evaluates conditional functions itself."""
