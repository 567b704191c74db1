"""What an expression gives for each row: a value, or that there is none; or that it is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_upsert.errors import DataError, PlanError
from spark_upsert.task import bind
from tests.support.sql_differences import NO_VALUE


@dataclass(frozen=True, slots=True)
class Refused:
    """It is refused when the plan is made."""

    why: str


@dataclass(frozen=True, slots=True)
class Answers:
    """A value for each row, in a form that tells all apart that differ, and the kind of type."""

    kind: str
    values: tuple[Any, ...]


def kind_of(type_: pa.DataType) -> str:
    """Return the kind of a type: whole numbers have one, decimals one for each scale."""
    if pa.types.is_integer(type_):
        return "whole"
    if pa.types.is_decimal(type_):
        return f"decimal of scale {type_.scale}"
    if pa.types.is_timestamp(type_):
        return "moment" if type_.tz else "ntz"
    if pa.types.is_date(type_):
        return "date"
    return str(type_)


def told_apart(value: Any) -> Any:
    """Return a value so that equal ones are the same in all that can be seen."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value


def answers_of(array: pa.Array | pa.ChunkedArray) -> Answers:
    """Return the answers that an array holds."""
    if pa.types.is_timestamp(array.type):
        return Answers(kind_of(array.type), tuple(array.cast(pa.int64()).to_pylist()))
    if pa.types.is_date32(array.type):
        return Answers(kind_of(array.type), tuple(array.cast(pa.int32()).to_pylist()))
    return Answers(kind_of(array.type), tuple(map(told_apart, array.to_pylist())))


def answers_here(text: str, rows: pa.RecordBatch) -> Answers | Refused:
    """Return what we give: of each row alone where the batch has a row without a value."""
    try:
        bound = bind(text, rows.schema)
    except PlanError as error:
        return Refused(error.message)
    try:
        return answers_of(bound(rows))
    except DataError:
        pass
    found: list[Any] = []
    for index in range(rows.num_rows):
        try:
            found.extend(answers_of(bound(rows.slice(index, 1))).values)
        except DataError:
            found.append(NO_VALUE)
    return Answers(kind_of(bound.type), tuple(found))


def differences(
    here: Answers | Refused, there: Answers | Refused, *, is_near_enough: bool = False
) -> Sequence[int | str]:
    """Return the rows whose answers differ, or how the kinds do; what is refused here is right."""
    if isinstance(here, Refused):
        return ()
    if isinstance(there, Refused):
        return (f"Spark refuses it: {there.why}",)
    pairs = zip(here.values, there.values, strict=True)
    rows = [
        index
        for index, (ours, theirs) in enumerate(pairs)
        if ours != theirs and not (is_near_enough and _are_near(ours, theirs))
    ]
    is_nothing = {"null", "void"} & {here.kind, there.kind}
    if not rows and not is_nothing and here.kind != there.kind:
        return (f"the kinds differ: {here.kind}, {there.kind} of Spark",)
    return rows


def _are_near(ours: Any, theirs: Any) -> bool:
    """Say whether two numbers agree in sixteen digits."""
    try:
        one, other = (Decimal(_number(each)) for each in (ours, theirs))
    except (ArithmeticError, TypeError, ValueError):
        return False
    return abs(one - other) <= abs(one) * Decimal("1e-15")


def _number(value: Any) -> Any:
    is_hexadecimal = isinstance(value, str) and "0x" in value
    return float.fromhex(value) if is_hexadecimal else value
