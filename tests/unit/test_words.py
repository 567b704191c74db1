"""Word views: their order is the order of the values, their equality is the values'."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.keys import compare, equal_rows, is_hashable, sort_words

NESTED_TEXT = st.text(alphabet="a\0é\U0001f600", max_size=20)

ORDERED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 3) | st.integers(0, 2**64 - 1),
    pa.float64(): st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]) | st.floats(),
    pa.string(): NESTED_TEXT,
    pa.binary(): st.binary(max_size=20)
    | st.sampled_from([b"", b"\0", b"\0\0", b"\xff", b"\xff" * 9]),
    pa.decimal128(38, 2): st.decimals(places=2, min_value=-(10**30), max_value=10**30),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.integers(-(2**62), 2**62),
}


def sign(left: Any, right: Any) -> int:
    """Compare two values as documented: text by its bytes, NaN equal to itself and above all."""
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return int(math.isnan(left)) - int(math.isnan(right))
    return int(left > right) - int(left < right)


@pytest.mark.parametrize("type_", ORDERED, ids=str)
@given(data=st.data())
@pytest.mark.sweep(4)
def test_compare_is_the_order_of_the_values(type_: pa.DataType, data: Any) -> None:
    rows = data.draw(st.lists(st.tuples(ORDERED[type_], ORDERED[type_]), max_size=6))
    start = data.draw(st.integers(0, len(rows)))
    left, right = (pa.array([row[side] for row in rows], type=type_)[start:] for side in (0, 1))
    assert compare([left], [right]).tolist() == [sign(*row) for row in rows[start:]]


TEXT_NUMBER = (pa.string(), pa.int64())
PAIRS = st.lists(st.tuples(NESTED_TEXT, st.integers(0, 1), NESTED_TEXT, st.integers(0, 1)))


@given(rows=PAIRS)
def test_compare_goes_column_after_column(rows: Any) -> None:
    types = enumerate(TEXT_NUMBER * 2)
    columns = [pa.array([row[index] for row in rows], type_) for index, type_ in types]
    expected = [sign((a.encode(), b), (c.encode(), d)) for a, b, c, d in rows]
    assert compare(columns[:2], columns[2:]).tolist() == expected


@pytest.mark.parametrize(
    "values",
    [["b", "a", None], [2, 1, None], [Decimal(2), Decimal(1), None]],
    ids=["texts", "numbers", "decimals"],
)
def test_a_buffer_may_be_longer_than_its_values(values: list[Any]) -> None:
    column = pa.array(values)
    valid, buffer, *data = column.buffers()
    longer = pa.py_buffer(buffer.to_pybytes() + b"x")
    odd = pa.Array.from_buffers(column.type, len(column), [valid, longer, *data])
    odd.validate(full=True)
    assert compare([odd], [column]).tolist()[:2] == [0, 0]
    assert sort_words([odd])[0].tolist() == sort_words([column])[0].tolist()
    assert equal_rows([odd], [column]).all()


@pytest.mark.parametrize(
    "ascending",
    [
        ["", "\0", "\0\0", "a", "a\0", "a\0b", "aa", "b"],
        ["12345678", "12345678\0", "123456789", "2"],
        ["z", "é", "\uffff", "\U0001f600"],
    ],
    ids=["zero bytes", "around one word", "by bytes, not by UTF-16"],
)
def test_each_text_is_below_the_next(ascending: list[str]) -> None:
    below, above = pa.array(ascending[:-1]), pa.array(ascending[1:])
    assert compare([below], [above]).tolist() == [-1] * len(below)
    assert compare([above], [below]).tolist() == [1] * len(below)


def nulls_first(row: Any) -> list[Any]:
    return [(v is not None, v.encode() if isinstance(v, str) else v or 0) for v in row]


@given(rows=st.lists(st.tuples(st.none() | NESTED_TEXT, st.none() | st.integers(-2, 2))))
def test_sort_words_put_nulls_first(rows: Any) -> None:
    words = sort_words([pa.array([row[i] for row in rows], TEXT_NUMBER[i]) for i in (0, 1)])
    order = np.lexsort(tuple(reversed(words))).tolist() if rows else []
    assert [rows[i] for i in order] == sorted(rows, key=nulls_first)


SCALARS = st.none() | st.sampled_from([0.0, -0.0, 1.0, math.nan])
BITS = st.none() | st.integers(0, 1)


def lists(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(elements, max_size=2)


EQUATED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "floats": (pa.float64(), SCALARS),
    "texts": (pa.string(), st.none() | st.sampled_from(["", "a", "a\0"])),
    "decimals": (
        pa.decimal128(5, 1),
        st.none() | st.sampled_from([Decimal("1.0"), Decimal("1.5")]),
    ),
    "lists": (pa.list_(pa.float64()), lists(SCALARS)),
    "lists of lists": (pa.list_(pa.list_(pa.int64())), lists(lists(BITS))),
    "structs": (
        pa.struct({"x": pa.float64(), "y": pa.string()}),
        st.none() | st.fixed_dictionaries({"x": SCALARS, "y": st.none() | st.just("a")}),
    ),
    "structs without fields": (pa.struct([]), st.none() | st.just({})),
    "lists of structs": (
        pa.list_(pa.struct({"x": pa.int64()})),
        lists(st.none() | st.fixed_dictionaries({"x": BITS})),
    ),
    "maps of lists": (
        pa.map_(pa.int64(), pa.list_(pa.float64())),
        lists(st.tuples(st.integers(0, 1), lists(SCALARS))),
    ),
}


def same(left: Any, right: Any) -> bool:
    """Compare as documented: null equals null, NaN equals NaN, in every depth."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return all(same(left[name], right[name]) for name in left)
    return bool(left == right)


@pytest.mark.parametrize("name", EQUATED)
@given(data=st.data())
@pytest.mark.sweep(4)
def test_equal_rows_is_the_equality_of_the_values_of_any_slice(name: str, data: Any) -> None:
    type_, values = EQUATED[name]
    rows = data.draw(st.lists(st.tuples(values, values), max_size=6))
    start = data.draw(st.integers(0, len(rows)))
    left, right = (pa.array([row[side] for row in rows], type=type_)[start:] for side in (0, 1))
    assert equal_rows([left], [right]).tolist() == [same(*row) for row in rows[start:]]


def test_only_plain_types_are_hashable() -> None:
    nested = [pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.int64())]
    assert all(map(is_hashable, [*ORDERED.keys() - {pa.duration("us")}, pa.timestamp("us")]))
    assert not any(map(is_hashable, [*nested, pa.null(), pa.float16(), pa.decimal256(50, 2)]))
