"""The values that a condition pins columns to."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.plan.expressions import bind_condition, pins_of

SCHEMA = pa.schema(
    {
        "id": pa.int32(),
        "region": pa.string(),
        "price": pa.decimal128(10, 2),
        "at": pa.timestamp("us", tz="Europe/Berlin"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "rate": pa.float64(),
        "open": pa.bool_(),
        "who": pa.struct({"id": pa.int32()}),
    }
)
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)

CASES: list[tuple[str, dict[str, list[Any]]]] = [
    ("id = 1", {"id": [1]}),
    ("1 = id", {"id": [1]}),
    ("id = id", {}),
    ("ID IN (1, 2, NULL)", {"id": [1, 2]}),
    ("id = -5 OR id = 7", {"id": [-5, 7]}),
    ("id <=> 3", {"id": [3]}),
    ("id <=> NULL", {}),
    ("id = NULL", {"id": []}),
    ("id = 1.5", {"id": []}),
    ("id = 9999999999", {"id": []}),
    ("id = CAST('7' AS BIGINT)", {"id": [7]}),
    ("id = 1e0", {}),
    ("id = 1 AND region = 'eu' AND rate > 0", {"id": [1], "region": ["eu"]}),
    ("id IN (1, 2) AND id IN (2, 3)", {"id": [2]}),
    ("(id = 1 AND region = 'a') OR region = 'b'", {"region": ["a", "b"]}),
    ("(id = 1 AND open) OR (id = 2 AND region = 'b')", {"id": [1, 2]}),
    ("id = 1 OR rate = 2", {}),
    ("id = NULL OR region = 'b'", {"region": ["b"]}),
    ("NOT (id = 1)", {}),
    ("id BETWEEN 1 AND 1", {}),
    ("id + 0 = 1", {}),
    ("who.id = 1", {}),
    ("open = TRUE", {"open": [True]}),
    ("price = 19.99", {"price": [Decimal("19.99")]}),
    ("price = 1.005", {"price": []}),
    ("day = DATE '2026-01-31'", {"day": [datetime.date(2026, 1, 31)]}),
    ("at = TIMESTAMP '2026-01-31 12:00:00Z'", {"at": [NOON]}),
    (
        "local = CAST('2026-01-31 12:00:00' AS TIMESTAMP_NTZ)",
        {"local": [NOON.replace(tzinfo=None)]},
    ),
    ("at = CAST('2026-01-31 12:00:00' AS TIMESTAMP_NTZ)", {}),
]


@pytest.mark.parametrize(("condition", "expected"), CASES, ids=[text for text, _ in CASES])
def test_a_condition_pins_columns_to_values(condition: str, expected: dict[str, list[Any]]) -> None:
    bind_condition(condition, SCHEMA)
    pins = pins_of(condition, SCHEMA)
    assert {name: values.to_pylist() for name, values in pins.items()} == expected
    assert all(values.type == SCHEMA.field(name).type for name, values in pins.items())
