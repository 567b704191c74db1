"""Whatever types and values meet in an expression, its errors are ours, with what to do."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal
from itertools import product

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, PlanError
from spark_upsert.plan.functions import FUNCTIONS
from spark_upsert.plan.sql import FUNCTIONS as ARITIES
from spark_upsert.plan.sql import TYPES
from spark_upsert.task import bind

DAY = datetime.datetime(2026, 1, 31, 12)

ODD = pa.record_batch(
    {
        "a_null": pa.nulls(3),
        "a_byte": pa.array([1, None, 200], pa.uint8()),
        "a_word": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "a_half": pa.array([1.5, None, 2.5], pa.float16()),
        "a_wide": pa.array([Decimal(7), None, Decimal(8)], pa.decimal256(76, 0)),
        "a_decimal": pa.array([Decimal("0.5"), None, Decimal("-0.5")], pa.decimal128(38, 38)),
        "a_text": pa.array(["x", None, ""], pa.large_string()),
        "a_view": pa.array(["x", None, ""], pa.string_view()),
        "bytes": pa.array([b"\xff", None, b""]),
        "words": pa.array(["x", None, "y"]).dictionary_encode(),
        "a_second": pa.array([DAY, None, DAY], pa.timestamp("s", tz="Asia/Tokyo")),
        "a_nano": pa.array([1, None, 3], pa.timestamp("ns")),
        "far": pa.array([2**62, None, -(2**62)], pa.timestamp("us", tz="UTC")),
        "a_time": pa.array([1, None, 3], pa.time64("us")),
        "a_while": pa.array([1, None, 3], pa.duration("us")),
        "a_day": pa.array([DAY, None, DAY], pa.date64()),
        "far_day": pa.array([2**31 - 1, None, -(2**31)], pa.date32()),
        "a_list": pa.array([[1], None, []]),
        "a_struct": pa.array([{"x": 1}, None, {"x": None}]),
        "a_map": pa.array([[("x", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)
NAMES = [*ODD.schema.names, "1", "2.5", "1e300", "'x'", "NULL", "TRUE", "DATE '2026-01-31'"]

OPERATORS = ["=", "<", "<=>", "+", "-", "*", "/", "%", "DIV", "||", "LIKE", "AND", "OR"]
TEXTS = [
    *(f"CAST({name} AS {type_})" for name in NAMES for type_ in [*TYPES, "DECIMAL(38, 2)"]),
    *(f"{a} {sign} {b}" for sign, a, b in product(OPERATORS, NAMES, NAMES)),
    *(f"{a} IN ({b}, NULL)" for a, b in product(NAMES, NAMES)),
    *(f"CASE WHEN TRUE THEN {a} ELSE {b} END" for a, b in product(NAMES, NAMES)),
    *(f"-{name}" for name in NAMES),
    *(f"{name} IS {word}" for name in NAMES for word in ("NULL", "TRUE", "FALSE")),
    *(
        f"{function}({', '.join((name, second)[: max(least, 1)])})"
        for function, (least, _) in ARITIES.items()
        for name, second in product(NAMES, ("2", "'x'", "a_text", "NULL") if least > 1 else ("",))
    ),
]


def test_all_functions_are_tried() -> None:
    assert {*FUNCTIONS, "COALESCE"} >= set(ARITIES) - {"CONCAT"}


@pytest.mark.parametrize("share", range(8))
@pytest.mark.sweep(1)
def test_no_raw_error_leaves_an_expression(share: int) -> None:
    for text in TEXTS[share::8]:
        with contextlib.suppress(PlanError, DataError):
            bind(text, ODD.schema)(ODD)
