"""Word views: their order is the order of the values, their equality is the values'."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.keys import compare, equal_rows, is_hashable, ordered_words, sort_words

NESTED_TEXT = st.text(alphabet="a\0é\U0001f600", max_size=20)

ORDERED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 3) | st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]) | st.floats(),
    pa.string(): NESTED_TEXT,
    pa.large_string(): NESTED_TEXT,
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


@pytest.mark.parametrize("type_", ORDERED, ids=lambda t: f"for {t}")
@given(data=st.data())
@pytest.mark.sweep(4)
def test_compare_is_the_order_of_the_values(type_: pa.DataType, data: Any) -> None:
    rows = data.draw(st.lists(st.tuples(ORDERED[type_], ORDERED[type_]), max_size=6))
    left, right = (pa.array([row[side] for row in rows], type=type_) for side in (0, 1))
    assert compare([left], [right]).tolist() == [sign(*row) for row in rows]


@pytest.mark.parametrize("type_", ORDERED, ids=lambda t: f"for {t}")
@given(data=st.data())
@pytest.mark.sweep(4)
def test_sorting_by_words_sorts_the_values(type_: pa.DataType, data: Any) -> None:
    values = data.draw(st.lists(ORDERED[type_], max_size=8))
    words = ordered_words(pa.array(values, type=type_))
    order = np.lexsort(tuple(reversed(words))).tolist() if values else []
    ordered = [values[index] for index in order]
    assert all(sign(a, b) <= 0 for a, b in itertools.pairwise(ordered))


@given(rows=st.lists(st.tuples(NESTED_TEXT, st.integers(0, 1), NESTED_TEXT, st.integers(0, 1))))
def test_compare_goes_column_after_column(rows: Any) -> None:
    columns = (
        [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), TEXT_NUMBER * 2, strict=True)]
        if rows
        else [pa.array([], t) for t in TEXT_NUMBER * 2]
    )
    expected = [sign((a.encode(), b), (c.encode(), d)) for a, b, c, d in rows]
    assert compare(columns[:2], columns[2:]).tolist() == expected


TEXT_NUMBER = (pa.string(), pa.int64())


@pytest.mark.parametrize(
    "given",
    [
        pa.array(["b", "a", None]),
        pa.array([2, 1, None], pa.int32()),
        pa.array([Decimal(2), Decimal(1), None], pa.decimal128(9, 0)),
    ],
    ids=lambda given: str(given.type),
)
def test_a_buffer_may_be_longer_than_its_values(given: pa.Array) -> None:
    valid, values, *data = given.buffers()
    longer = pa.py_buffer(values.to_pybytes() + b"x")
    odd = pa.Array.from_buffers(given.type, len(given), [valid, longer, *data])
    odd.validate(full=True)
    assert compare([odd], [given]).tolist()[:2] == [0, 0]
    assert sort_words([odd])[0].tolist() == sort_words([given])[0].tolist()
    assert equal_rows([odd], [given]).all()


def test_compare_of_no_columns_is_empty() -> None:
    assert compare([], []).tolist() == []


@pytest.mark.parametrize(
    "ascending",
    [
        pytest.param(["", "\0", "\0\0", "a", "a\0", "a\0b", "aa", "b"], id="texts with zero bytes"),
        pytest.param(["12345678", "12345678\0", "123456789", "2"], id="texts around one word"),
        pytest.param(["z", "é", "\uffff", "\U0001f600"], id="texts by bytes, not by UTF-16"),
        pytest.param([-math.inf, -1.5, -5e-324, 0.0, 5e-324, 1.5, math.inf, math.nan], id="floats"),
        pytest.param([Decimal(-(10**30)), Decimal(-1), Decimal(0), Decimal(10**30)], id="decimals"),
        pytest.param([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1)], id="dates"),
        pytest.param([False, True], id="booleans"),
    ],
)
def test_each_value_is_below_the_next(ascending: list[Any]) -> None:
    below, above = pa.array(ascending[:-1]), pa.array(ascending[1:])
    assert compare([below], [above]).tolist() == [-1] * len(below)
    assert compare([above], [below]).tolist() == [1] * len(below)


def test_the_zeros_are_equal_in_order() -> None:
    assert compare([pa.array([0.0])], [pa.array([-0.0])]).tolist() == [0]


@given(
    rows=st.lists(st.tuples(st.none() | NESTED_TEXT, st.none() | st.integers(-2, 2)), max_size=8)
)
def test_sort_words_put_nulls_first(rows: Any) -> None:
    columns = [pa.array([row[i] for row in rows], TEXT_NUMBER[i]) for i in (0, 1)]
    words = sort_words(columns)
    order = np.lexsort(tuple(reversed(words))).tolist() if rows else []
    assert [rows[i] for i in order] == sorted(rows, key=nulls_first)


def nulls_first(row: Any) -> list[Any]:
    return [(v is not None, v.encode() if isinstance(v, str) else v or 0) for v in row]


@given(values=st.lists(NESTED_TEXT, min_size=1, max_size=9), data=st.data())
def test_words_of_a_slice_are_those_of_the_rows_that_it_shows(values: Any, data: Any) -> None:
    start = data.draw(st.integers(0, len(values)))
    part = pa.array(values)[start:]
    fresh = pa.array(values[start:], pa.string())
    for one, other in zip(ordered_words(part), ordered_words(fresh), strict=True):
        assert one.tolist() == other.tolist()


SCALARS = st.none() | st.sampled_from([0.0, -0.0, 1.0, math.nan])
EQUATED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "floats": (pa.float64(), SCALARS),
    "texts": (pa.string(), st.none() | st.sampled_from(["", "a", "a\0"])),
    "binaries": (pa.binary(), st.none() | st.sampled_from([b"", b"\0"])),
    "decimals": (
        pa.decimal128(5, 1),
        st.none() | st.sampled_from([Decimal("1.0"), Decimal("1.5")]),
    ),
    "lists": (pa.list_(pa.float64()), st.none() | st.lists(SCALARS, max_size=2)),
    "large lists": (pa.large_list(pa.int64()), st.none() | st.lists(st.integers(0, 1), max_size=2)),
    "lists of lists": (
        pa.list_(pa.list_(pa.int64())),
        st.none() | st.lists(st.none() | st.lists(st.integers(0, 1), max_size=2), max_size=2),
    ),
    "structs": (
        pa.struct({"x": pa.float64(), "y": pa.string()}),
        st.none() | st.fixed_dictionaries({"x": SCALARS, "y": st.none() | st.just("a")}),
    ),
    "structs without fields": (pa.struct([]), st.none() | st.just({})),
    "lists of structs": (
        pa.list_(pa.struct({"x": pa.int64()})),
        st.none()
        | st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.just(1)}), max_size=2),
    ),
    "maps": (
        pa.map_(pa.string(), pa.float64()),
        st.none() | st.lists(st.tuples(st.sampled_from(["a", "b"]), SCALARS), max_size=2),
    ),
    "maps of lists": (
        pa.map_(pa.int64(), pa.list_(pa.int64())),
        st.none()
        | st.lists(
            st.tuples(st.integers(0, 1), st.none() | st.lists(st.integers(0, 1), max_size=2)),
            max_size=2,
        ),
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


@pytest.mark.parametrize("name", EQUATED, ids=lambda name: f"for {name}")
@given(data=st.data())
@pytest.mark.sweep(4)
def test_equal_rows_is_the_equality_of_the_values(name: str, data: Any) -> None:
    type_, values = EQUATED[name]
    rows = data.draw(st.lists(st.tuples(values, values), max_size=5))
    left, right = (pa.array([row[side] for row in rows], type=type_) for side in (0, 1))
    assert equal_rows([left], [right]).tolist() == [same(*row) for row in rows]


@pytest.mark.parametrize("name", EQUATED, ids=lambda name: f"for {name}")
@given(data=st.data())
@pytest.mark.sweep(4)
def test_equal_rows_of_slices_is_that_of_the_rows_that_they_show(name: str, data: Any) -> None:
    type_, values = EQUATED[name]
    rows = data.draw(st.lists(st.tuples(values, values), min_size=1, max_size=6))
    start = data.draw(st.integers(0, len(rows)))
    left, right = (pa.array([row[side] for row in rows], type=type_)[start:] for side in (0, 1))
    assert equal_rows([left], [right]).tolist() == [same(*row) for row in rows[start:]]


def test_rows_are_equal_if_all_columns_are() -> None:
    left = [pa.array([1, 1, None]), pa.array(["a", "b", None])]
    right = [pa.array([1, 1, None]), pa.array(["a", "x", None])]
    assert equal_rows(left, right).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("type_", "answer"),
    [
        (pa.int64(), True),
        (pa.string(), True),
        (pa.binary(), True),
        (pa.float32(), True),
        (pa.decimal128(38, 2), True),
        (pa.date32(), True),
        (pa.timestamp("us"), True),
        (pa.bool_(), True),
        (pa.list_(pa.int64()), False),
        (pa.struct({"a": pa.int64()}), False),
        (pa.map_(pa.string(), pa.int64()), False),
        (pa.null(), False),
        (pa.float16(), False),
        (pa.decimal256(50, 2), False),
    ],
    ids=lambda v: str(v),
)
def test_is_hashable(type_: pa.DataType, answer: bool) -> None:
    assert is_hashable(type_) is answer


Compare = Callable[[Sequence[Any], Sequence[Any]], int]


@given(values=st.lists(st.floats(), min_size=3, max_size=3))
def test_the_order_of_floats_is_total(values: list[float]) -> None:
    ordered = sorted(values, key=functools.cmp_to_key(_sign_of_floats))
    for low, high in itertools.pairwise(ordered):
        assert _sign_of_floats(low, high) <= 0
    assert _sign_of_floats(ordered[0], ordered[-1]) <= 0


def _sign_of_floats(left: float, right: float) -> int:
    return int(compare([pa.array([left])], [pa.array([right])])[0])
