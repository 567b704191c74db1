"""Bugs at the door of conversions: what does not fit, and what is cut off."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core import casts, decimals, python_values
from spark_upsert.core import python_values as arguments
from spark_upsert.core.casts import convert
from spark_upsert.core.decimals import Limbs
from spark_upsert.core.threads import Rounding
from spark_upsert.plan import expressions, sql
from spark_upsert.table import arguments as given_keys
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_conversion_promises as promises

NUMBERS = promises.test_p5_a_number_is_stored_as_it_is_or_kept_apart
TIMES = promises.test_p5_a_time_that_python_cannot_read_is_refused
ROUNDED = promises.test_p5_a_rounded_number_has_room
ARGUMENT = promises.test_p5_an_argument_that_no_record_can_hold_is_refused
DOUBLE_QUOTES = promises.test_p5_a_text_between_double_quotes_is_no_column
LOOKED_UP = promises.test_p5_a_look_up_takes_no_value_for_another


@bug("a number may have any number of digits", NUMBERS)
def _() -> Patch:
    return patch.object(
        decimals, "is_at_least", lambda numbers, bound: np.zeros(numbers.shape[1], dtype=np.bool_)
    )


@bug("digits behind the scale are cut off", NUMBERS)
def _() -> Patch:
    def cut(original: Any, *arguments: Any) -> Any:
        return original(*arguments[:-1], Rounding.DOWN)

    return wrapped(decimals, "_rounded", cut)


@bug("digits of a text count from the wrong place", NUMBERS)
def _() -> Patch:
    def beside(original: Any, texts: pa.Array, point: Any, precision: int) -> Any:
        return original(texts, point + (point > 20), precision)

    return wrapped(decimals, "_parse_digits", beside)


@bug("a carry is lost between limbs", NUMBERS)
def _() -> Patch:
    def careless(numbers: Limbs, factor: int, plus: Any = 0) -> None:
        numbers[:] = (numbers * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
        numbers[0] += np.asarray(plus, dtype=np.uint64)

    return patch.object(decimals, "multiply_add", careless)


@bug("a time may be of any year", TIMES)
def _() -> Patch:
    return patch.multiple(casts, DAYS_MIN=-(10**8), DAYS_MAX=10**8)


@bug("a rounded number has the precision of what is rounded", ROUNDED)
def _() -> Patch:
    def narrow(original: Any, type_: pa.DataType, places: int) -> pa.DataType:
        found = original(type_, places)
        return pa.decimal128(found.precision - 1, found.scale)

    return wrapped(decimals, "rounding_type", narrow)


@bug("a value that is looked up is cut to the type of its column", LOOKED_UP)
def _() -> Patch:
    def cut(values: Any, type_: pa.DataType) -> pa.Array:
        return convert(values, type_, Rounding.DOWN)

    return patch.object(python_values, "_convert_exactly", cut)


@bug("a list is converted by the type of its first value", LOOKED_UP)
def _() -> Patch:
    def by_first(original: Any, values: Any, type_: pa.DataType) -> pa.Array:
        listed = list(values)
        return original([type(listed[0])(value) for value in listed], type_)

    return wrapped(given_keys, "array_of", by_first)


@bug("a decimal that is looked up is rounded", LOOKED_UP)
def _() -> Patch:
    return patch.object(python_values, "_ROUNDED", frozenset())


@bug("any number but 0 is true", LOOKED_UP)
def _() -> Patch:
    def cast(numbers: pa.Array, type_: pa.DataType, _: Rounding) -> tuple[pa.Array, Any]:
        return numbers.cast(type_), np.zeros(len(numbers), dtype=np.bool_)

    changed = {("integer", "boolean"): cast, ("float", "boolean"): cast}
    return patch.dict(casts._RULES, changed)


@bug("a float is a number of milliseconds", ARGUMENT)
def _() -> Patch:
    return patch.object(arguments, "_integer", lambda value: value)


@bug("a text between double quotes is a column", DOUBLE_QUOTES)
def _() -> Patch:
    def as_names(original: Any, text: str) -> Any:
        return original(sql.replace_quotes(text, "`"))

    return wrapped(expressions, "parse_sql", as_names)
