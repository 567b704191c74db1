"""P5 of values that come in another type: each is stored as it is, or refused by name."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.plan.expressions import bind
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.support.tables import make_table

WIDEST = 38


def given(random_: random.Random) -> dict[str, Decimal]:
    """Return numbers of every size by their texts, of which some fit."""
    numbers = (
        Decimal((random_.choice((0, 1)), (random_.randint(1, 9),) * digits, -scale))
        for digits in range(1, WIDEST + 1)
        for scale in (0, 2, digits, WIDEST)
    )
    return {random_.choice((str(n), format(n, "f"), format(n, "e"))): n for n in numbers}


def table_of(columns: Mapping[str, pa.DataType], on_error: ErrorPolicy) -> Table:
    """Return a table whose key is the first column."""
    schema = TableSchema(
        columns=pa.schema(columns),
        keys=(next(iter(columns)),),
        order=(),
        scope=Scope.ARRIVAL,
        hash_seed=0,
        on_error=on_error,
    )
    return make_table(MemoryStore(), schema)


def test_p5_a_number_is_stored_as_it_is_or_kept_apart() -> None:
    for scale in (0, 2, 20, WIDEST):
        check_numbers(scale)


def check_numbers(scale: int) -> None:
    numbers = given(random.Random(scale))
    table = table_of(
        {"text": pa.string(), "n": pa.decimal128(WIDEST, scale)}, ErrorPolicy.QUARANTINE
    )
    table.upsert(pa.table({"text": list(numbers), "n": list(numbers)}))
    fits = {
        text
        for text, n in numbers.items()
        if (unscaled := Fraction(n) * 10**scale).denominator == 1 and abs(unscaled) < 10**WIDEST
    }
    found = {row["text"]: row["n"] for row in table.snapshot().to_pylist()}
    apart = {row["text"] for batch in table.quarantine() for row in batch.to_pylist()}
    assert found == {text: numbers[text] for text in fits}
    assert apart == set(numbers) - fits


BEYOND: list[Any] = [
    pa.array([2**62]).view(pa.timestamp("us", "UTC")),
    pa.array(["9999-12-31T23:59:59-14:00"]),
    pa.array(["0000-12-31"]),
]


def test_p5_a_time_that_python_cannot_read_is_refused() -> None:
    table = table_of({"id": pa.int64(), "at": pa.timestamp("us", "UTC")}, ErrorPolicy.FAIL)
    for time in BEYOND:
        with pytest.raises(DataError, match="0001 to 9999"):
            table.upsert(pa.table({"id": [1], "at": time}))
    table.upsert(pa.table({"id": [1], "at": ["9999-12-31T23:59:59Z"]}))
    assert table.snapshot().column("at").to_pylist()[0].year == 9999


def test_p5_a_rounded_number_has_room() -> None:
    column = pa.array([Decimal("0.97"), Decimal("0.97"), Decimal("0.11")])
    rows = pa.record_batch({"rate": column})
    found = bind("round(rate, 1)", rows.schema)(rows)
    assert found.to_pylist() == [Decimal("1.0"), Decimal("1.0"), Decimal("0.1")]


def test_p5_a_look_up_takes_no_value_for_another() -> None:
    for type_, stored, others in (
        (pa.int64(), [0, 1, 2], [1.5, -0.5, Decimal("1.5"), [0, 1.5], True]),
        (pa.decimal128(4, 2), [Decimal("2.50")], [2.504, Decimal("2.504")]),
        (pa.date32(), [dt.date(1970, 1, 1)], [dt.datetime(1970, 1, 1, 12), 0]),
        (pa.bool_(), [True, False], [2, 0.5]),
    ):
        table = table_of({"id": type_, "n": pa.int64()}, ErrorPolicy.FAIL)
        table.upsert(pa.table({"id": pa.array(stored, type_), "n": range(len(stored))}))
        for other in others:
            with pytest.raises(SchemaError, match="no such value"):
                table.delete(other)
        assert table.get(stored).num_rows == table.snapshot().num_rows == len(stored)


def test_p5_an_argument_that_no_record_can_hold_is_refused() -> None:
    table = table_of({"id": pa.int64()}, ErrorPolicy.FAIL)
    for ttl_ms in (1.5e6, True, "1000", 1 << 70, 0):
        with pytest.raises(OptionError, match="'ttl_ms' expects"):
            table.hold("reader", 0, ttl_ms=ttl_ms)  # type: ignore[arg-type]
    assert table.consumers() == []
    table.expire(retain_versions=0)


def test_p5_a_text_between_double_quotes_is_no_column() -> None:
    table = table_of({"id": pa.int64(), "a": pa.string(), "b": pa.string()}, ErrorPolicy.FAIL)
    table.upsert(pa.table({"id": [1, 2], "a": ["b", "x"], "b": ["x", "x"]}))
    assert table.snapshot(filter='a = "b"').column("id").to_pylist() == [1]
    table.delete(filter='"b" = a')
    assert table.snapshot().column("id").to_pylist() == [2]
