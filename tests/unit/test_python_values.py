"""Values that a caller looks up: each alone, exactly, or an error that names the value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_upsert.core.casts import UnfitError
from spark_upsert.core.python_values import array_of, is_many
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import SchemaError
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.support.tables import make_table

UTC = pa.timestamp("us", "UTC")
NOON = dt.datetime(2026, 1, 31, 12)


OTHERS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [1.5, Fraction(3, 2), True, 2**63, 1j, "x", NOON, dt.timedelta(1), [1], {}],
    pa.bool_(): [2, 0.5, "maybe"],
    pa.string(): [1.0, True, NOON, "\ud800"],
    pa.date32(): [0, NOON, pd.Timestamp(1, unit="ns")],
    UTC: [0, 1.7, np.datetime64(1, "ns")],
    pa.float64(): [2**53 + 1, 10**400, Decimal("0.10000000000000000001")],
    pa.float32(): [0.1000000001, 1e300, 2**24 + 1],
    pa.decimal128(4, 2): [2.504, 100, Decimal("1e999999"), Decimal("NaN")],
    pa.time64("us"): [dt.time(1, tzinfo=dt.UTC), NOON],
}


@pytest.mark.parametrize("type_", OTHERS, ids=str)
def test_any_other_value_is_refused(type_: pa.DataType) -> None:
    for value in OTHERS[type_]:
        with pytest.raises((UnfitError, pa.ArrowNotImplementedError, pa.ArrowTypeError)):
            array_of([value], type_)


def test_a_value_means_in_a_list_what_it_means_alone() -> None:
    several = [1, 2.0, Decimal(3), "4", None, np.int8(5), pa.scalar(6)]
    assert array_of(several, pa.int64()).to_pylist() == [1, 2, 3, 4, None, 5, 6]
    wide = [dt.date(2026, 1, 31), NOON, NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))]
    hours = [value.hour for value in array_of(wide, UTC).to_pylist()]
    assert hours == [0, 12, 10]


def test_one_value_is_no_sequence() -> None:
    values = [1, "ab", b"ab", bytearray(b"ab"), {"a": 1}, NOON, np.int64(1), np.array(1)]
    assert not any(map(is_many, values))


# -- of a table ------------------------------------------------------------------------------


def table(**columns: pa.DataType) -> Table:
    schema = pa.schema({**columns, "v": pa.string()})
    rows = make_table(MemoryStore(), TableSchema.of(schema, keys=list(columns)))
    rows.upsert(pa.table([*([0, 1, 2] for _ in columns), ["a", "b", "c"]], schema=schema))
    return rows


@pytest.mark.parametrize(
    "keys",
    [
        [(1, 1), (2, 2)],
        {(1, 1), (2, 2)},
        np.array([[1, 1], [2, 2]]),
        {"b": [1, 2], "a": range(1, 3)},
        [{"A": 1, "b": 1}, (2, 2)],
        {"a": np.array([1, 2]), "b": pd.Series([1, 2])},
    ],
    ids=repr,
)
def test_keys_of_several_columns_come_in_any_form(keys: Any) -> None:
    of = table(a=pa.int64(), b=pa.int32())
    assert sorted(of.get(keys).column("v").to_pylist()) == ["b", "c"]
    assert of.get((1, 1)).column("v").to_pylist() == ["b"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"a": [1, 2], "b": 1}, "different numbers of values: 2 for 'a', 1 for 'b'"),
        ({"a": 1, "A": 2, "b": 1}, "found 'a' and 'A'"),
        (pa.table([[1], [1], [1]], names=["a", "b", "b"]), "found 'b' and 'b'"),
        ({"a": 1, 7: 1}, "'b' is not among"),
        ([(1,)], "a value for each of a, b"),
        ([1, 1], "values of one column|a value for each"),
        (pl.Series([1, 2]), "values of one column"),
    ],
    ids=repr,
)
def test_keys_that_are_ambiguous_are_refused(keys: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        table(a=pa.int64(), b=pa.int32()).get(keys)


def test_rows_are_found_by_one_value_or_several_of_its_kind() -> None:
    of = table(id=pa.int64())
    for found in ("b", ["b"], {"b"}, pl.Series(["b"]), np.str_("b"), b"b"):
        assert of.rows_having("v", found).column("id").to_pylist() == [1]
    for other in (1.0, [1.5], True, NOON):
        with pytest.raises(SchemaError, match="column 'v' has no such value"):
            of.rows_having("v", other)
    of.upsert(pa.table({"id": [1], "v": ["b"], "tags": [["x"]]}), merge_schema=True)
    with pytest.raises(SchemaError, match="'tags' has type list<element: string>, whose values"):
        of.rows_having("tags", [["x"]])
