"""Pairs of old and new rows: keys by the engine's equality, values by bits or by that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.views.intervals import Pairs

NAN = float("nan")
SCHEMA = pa.schema({"k": pa.float64(), "s": pa.string(), "v": pa.float64()})

Row = tuple[Any, ...]


def rows(*given: Row) -> pa.RecordBatch:
    columns = zip(*given, strict=True) if given else ([], [], [])
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def aligned(old: list[Row], new: list[Row]) -> Pairs:
    return Pairs.from_rows(rows(*old), rows(*new), ["k", "s"])


def shown(pairs: Pairs) -> list[str]:
    return [
        f"{old['v'] if has_old else ''}>{new['v'] if has_new else ''}"
        for old, new, has_old, has_new in zip(
            pairs.old.to_pylist(), pairs.new.to_pylist(), pairs.has_old, pairs.has_new, strict=True
        )
    ]


def test_rows_of_equal_keys_are_a_pair() -> None:
    old = [(1.0, "a", 1.0), (NAN, "b", 2.0), (0.0, None, 3.0)]
    new = [(-0.0, None, 4.0), (NAN, "b", 5.0), (1.0, "b", 6.0)]
    assert shown(aligned(old, new)) == ["1.0>", "2.0>5.0", "3.0>4.0", ">6.0"]


@pytest.mark.parametrize(
    ("old", "new", "by_bits", "by_equality"),
    [
        (1.0, 1.0, False, False),
        (1.0, 2.0, True, True),
        (0.0, -0.0, True, False),
        (NAN, NAN, False, False),
        (None, None, False, False),
        (None, 1.0, True, True),
    ],
    ids=["same", "other", "sign of zero", "NaN", "NULL", "from NULL"],
)
def test_bits_and_the_engine_differ_in_the_sign_of_zero(
    old: Any, new: Any, by_bits: bool, by_equality: bool
) -> None:
    pairs = aligned([(1.0, "a", old)], [(1.0, "a", new)])
    assert bool(len(pairs.drop_identical())) == by_bits
    assert bool(len(pairs.drop_equal())) == by_equality


def test_bits_are_compared_within_lists_that_begin_in_the_middle() -> None:
    column = pa.array([[9.0], [0.0], None, [1.0, NAN], []])
    other = pa.array([[9.0], [-0.0], None, [1.0, NAN], []])
    old, new = (
        pa.RecordBatch.from_pydict({"k": pa.array(range(5)), "l": side}).slice(1)
        for side in (column, other)
    )
    pairs = Pairs.from_rows(old, new, ["k"])
    assert pairs.drop_identical().keys(["k"]).to_pydict() == {"k": [1]}
    assert len(pairs.drop_equal()) == 0


def test_an_absent_row_is_no_row_of_nulls() -> None:
    pairs = Pairs.from_rows(
        rows((1.0, None, None)).select(["k", "v"]), rows().select(["k", "v"]), ["k"]
    )
    assert len(pairs.drop_equal()) == 1
    assert pairs.old_rows().num_rows == 1
    assert pairs.new_rows().num_rows == 0


def test_steps_in_a_row_net_to_the_first_old_and_the_last_new_row() -> None:
    key = ["k", "s"]
    steps = [
        aligned([], [(1.0, "a", 1.0)]),
        aligned([(1.0, "a", 1.0), (2.0, "a", 7.0)], [(1.0, "a", 2.0)]),
        aligned([(1.0, "a", 2.0)], [(1.0, "a", 3.0), (2.0, "a", 8.0)]),
    ]
    assert shown(Pairs.net_changes(steps, key)) == [">3.0", "7.0>8.0"]
