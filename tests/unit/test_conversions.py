"""What a table stores of a value of another type is that value, or the write says why not."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.conversions import UnfitError, convert
from spark_upsert.errors import DataError, SchemaError
from spark_upsert.table import Table
from spark_upsert.task.expressions import bind

BAD_DECIMALS = [
    ("48151415102163378576555277819065061780", pa.decimal128(38, 2)),
    ("1e-9999999", pa.decimal128(38, 2)),
    ("1e99999999999999999999", pa.decimal128(38, 2)),
    ("78418803888720.81917", pa.decimal128(38, 38)),
    ("9" * 200, pa.decimal128(38, 0)),
    ("9" * 39, pa.decimal128(38, 0)),
    ("", pa.decimal128(38, 0)),
    ("1_0", pa.decimal128(38, 0)),
]


def table_of(tmp_path: Path, type_: pa.DataType, **options: Any) -> Table:
    columns = pa.schema({"id": pa.int64(), "value": type_})
    return Table.create(str(tmp_path), columns, keys=["id"], **options)


def rows(value: Any, *, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": pa.array([1]), "value": pa.array([value], type_)})


@pytest.mark.parametrize(("text", "type_"), BAD_DECIMALS)
def test_a_text_that_is_no_such_decimal_is_not_stored(
    tmp_path: Path, text: str, type_: pa.DataType
) -> None:
    table = table_of(tmp_path, type_)
    with pytest.raises(SchemaError, match="'value' cannot be stored as decimal128"):
        table.append(rows(text))
    assert table.snapshot().num_rows == 0


@pytest.mark.parametrize(("text", "type_"), BAD_DECIMALS)
def test_a_decimal_of_another_scale_that_does_not_fit_is_not_stored(
    tmp_path: Path, text: str, type_: pa.DataType
) -> None:
    if not text.replace(".", "").isdigit() or len(text) > 38:
        return
    table = table_of(tmp_path, type_)
    with pytest.raises(SchemaError, match="digits before the point"):
        table.append(rows(Decimal(text)))


def test_a_key_and_an_order_are_converted_by_the_same_rules(tmp_path: Path) -> None:
    number = pa.decimal128(38, 2)
    columns = pa.schema({"id": number, "at": number})
    table = Table.create(str(tmp_path), columns, keys=["id"], sequence_by=["at"])
    bad = "48151415102163378576555277819065061780"
    with pytest.raises(SchemaError, match="column 'id' cannot be stored"):
        table.append(pa.table({"id": [bad], "at": ["1"]}))
    with pytest.raises(SchemaError, match="column 'at' cannot be stored"):
        table.append(pa.table({"id": ["1"], "at": [bad]}))
    table.append(pa.table({"id": ["0.10"], "at": ["1e2"]}))
    assert table.snapshot().to_pylist() == [{"id": Decimal("0.10"), "at": Decimal("100.00")}]


@pytest.mark.parametrize("form", [str, Decimal])
def test_rows_are_not_looked_for_by_another_number(tmp_path: Path, form: Any) -> None:
    table = table_of(tmp_path, pa.decimal128(38, 2))
    table.append(rows("1.50"))
    assert table.rows_having("value", [form("15e-1")]).num_rows == 1
    for bad in ("1e-9999999", "48151415102163378576555277819065061780"):
        with pytest.raises(SchemaError, match="column 'value' has no such value"):
            table.rows_having("value", [form(bad)])
    with pytest.raises(SchemaError, match="column 'value' has no such value"):
        table.rows_having("value", pa.array(["1e-9999999"]))


@pytest.mark.parametrize(
    ("text", "value", "expected", "type_"),
    [
        ("round(x, 1)", Decimal("0.97"), Decimal("1.0"), pa.decimal128(2, 1)),
        ("CAST(x AS DECIMAL(4, 1))", Decimal("0.97"), Decimal("1.0"), pa.decimal128(4, 1)),
        ("ceil(x)", Decimal("99999999.99"), Decimal(100_000_000), pa.decimal128(9, 0)),
        ("floor(x)", Decimal("-99999999.99"), Decimal(-100_000_000), pa.decimal128(9, 0)),
        ("round(x, -2)", Decimal("950"), Decimal(1000), pa.decimal128(4, 0)),
        ("round(x, 1099511627776)", Decimal("1.5"), Decimal("1.5"), pa.decimal128(3, 1)),
        ("CAST(x AS DECIMAL(10, 2))", "1.005", Decimal("1.01"), pa.decimal128(10, 2)),
        ("CAST(x AS DECIMAL(10, 2))", "1e-9999999", Decimal("0.00"), pa.decimal128(10, 2)),
        ("x = 19.99", 19.99, True, pa.bool_()),
    ],
)
def test_sql_rounds_with_room_for_the_carry(
    text: str, value: Any, expected: Any, type_: pa.DataType
) -> None:
    # With a second row, because Arrow notices an overflow in the last valid row only.
    column = pa.array([value, value, None])
    bound = bind(text, pa.schema({"x": column.type}))
    assert bound.type == type_
    found = bound(pa.record_batch({"x": column}))
    assert found.to_pylist() == [expected, expected, None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CAST(x AS DECIMAL(38, 2))", "48151415102163378576555277819065061780"),
        ("CAST(x AS DECIMAL(38, 0))", "9" * 200),
        ("CAST(x AS DECIMAL(38, 30))", 123456789012345678),
        ("CAST(x AS DECIMAL(2, 1))", Decimal("9.96")),
        ("CAST(x AS INT)", "0x10"),
        ("CAST(x AS INT)", Decimal("2147483648")),
        ("round(x, -38)", Decimal("9" * 38)),
    ],
)
def test_sql_has_no_value_where_the_type_has_no_room(text: str, value: Any) -> None:
    column = pa.array([value])
    with pytest.raises(DataError, match="has no value for some row"):
        bind(text, pa.schema({"x": column.type}))(pa.record_batch({"x": column}))


def test_an_error_says_what_does_not_fit_and_what_would() -> None:
    with pytest.raises(
        UnfitError,
        match=r"'abc' is no decimal128\(5, 2\), which has 3 digits before the point and 2 behind",
    ):
        convert(pa.array([None, "abc"]), pa.decimal128(5, 2))
    with pytest.raises(UnfitError, match="300 is no int8, which is whole and from -128 to 127"):
        convert(pa.array([300]), pa.int8())
