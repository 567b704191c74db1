"""The exact orders and the settings of a merge: the cases of the rules, one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.input_order import (
    Concat,
    RoundRobin,
    Seeded,
    advance,
    draws,
    iter_picks,
    order_from_json,
    raw_numbers,
    spend,
)
from spark_upsert.errors import OptionError
from spark_upsert.merge.merged import arrange
from spark_upsert.merge.readers import MergeConfig
from tests.support.merging import batches_of, rows_in

CONCAT, INTERLEAVE = {"mode": "concat"}, {"mode": "interleave"}


def seeded(seed: int) -> dict[str, Any]:
    return INTERLEAVE | {"interleave_seed": seed}


@pytest.mark.parametrize(
    ("config", "inputs", "expected"),
    [
        ({}, {"b": 2, "a": 1}, "b1 b2 a1"),
        (INTERLEAVE, {"a": 3, "b": 1}, "a1 b1 a2 a3"),
        (seeded(7), {"a": 3, "b": 3}, "b1 a1 b2 a2 a3 b3"),
        (seeded(123), {"a": 5, "b": 1, "c": 3}, "c1 b1 c2 c3 a1 a2 a3 a4 a5"),
    ],
    ids=["4: the default is concat", "6: not live", "12: seed 7", "14: seed 123"],
)
def test_a_merge_that_cannot_be_live_has_an_order(
    config: dict[str, Any], inputs: dict[str, int], expected: str
) -> None:
    """`test_exact_order` has the other cases."""
    order = MergeConfig.parse(config).order(is_live=False)
    assert order is not None
    picks, _ = advance(order, list(inputs.values()))
    rows = rows_in(arrange([batches_of(name, [count]) for name, count in inputs.items()], picks))
    assert " ".join(f"{name}{row}" for name, row in rows) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"sed": 1}, "unknown option 'sed'", id="21: an unknown key"),
        pytest.param(seeded(-1), "from 0 up to 18446744073709551615, found -1", id="22: seed -1"),
        pytest.param(seeded(2**64), "found 18446744073709551616", id="22: seed 2^64"),
        pytest.param(seeded("1"), "found '1'", id="a seed as text"),  # type: ignore[arg-type]
        pytest.param(seeded(True), "found True", id="a truth value as a seed"),
        pytest.param({"mode": "zip"}, "one of concat, interleave, found 'zip'", id="another mode"),
    ],
)
def test_settings_that_are_refused(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected.replace("^", r"\^")):
        MergeConfig.parse(config)


def test_a_live_merge_has_no_order_but_that_of_its_seed() -> None:
    assert MergeConfig.parse(INTERLEAVE).order() is None
    assert MergeConfig.parse(seeded(2**64 - 1)).order() == Seeded(state=2**64 - 1)
    assert MergeConfig.parse(CONCAT | {"interleave_seed": 42}).order() == Concat()


def test_the_raw_numbers_of_seed_42() -> None:
    numbers, _ = raw_numbers(42, 4)
    assert [f"{number:016x}" for number in numbers.tolist()] == [
        *("ca71d87c76983989", "7e5ba61552085fc6", "cdf101e3bab88b9f", "0a3825ad73267808")
    ]


@pytest.mark.parametrize(
    ("seed", "bound", "expected"),
    [
        pytest.param(42, 2, "10101010100111111101", id="seed 42, below 2"),
        pytest.param(0, 2, "10000010110110110010", id="seed 0, below 2"),
        pytest.param(7, 3, "20210020011022112111", id="seed 7, below 3"),
    ],
)
def test_the_first_draws(seed: int, bound: int, expected: str) -> None:
    drawn, _ = draws(seed, bound, 20)
    assert "".join(map(str, drawn.tolist())) == expected


def test_an_order_has_a_json_form() -> None:
    for record in ({}, {"cursor": 3}, {"random": "18446744073709551615"}):
        assert order_from_json(record).to_json() == record
    assert order_from_json({"cursor": 3}) == RoundRobin(cursor=3)
    assert order_from_json({"random": "7"}) == Seeded(state=7)


@pytest.mark.parametrize(
    "record",
    [
        {"cursor": True},
        {"cursor": -1},
        {"random": 3},
        {"random": "²"},
        {"random": str(2**64)},
        {"random": "1", "cursor": 1},
        {"seed": 1},
    ],
    ids=str,
)
def test_what_is_no_state_of_an_order_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"state|cursor"):
        order_from_json(record)


def test_counts_and_bounds_that_cannot_be_are_refused() -> None:
    for remaining, limit in (([-1], None), ([1], -1), ([[1]], None)):
        with pytest.raises(ValueError, match="rows are counted from 0"):
            advance(RoundRobin(), remaining, limit)  # type: ignore[arg-type]
    for bound in (-1, 0, 2**64):
        with pytest.raises(ValueError, match=f"no draw is below {bound}"):
            draws(1, bound, 1)


def test_a_plan_of_very_many_rows_needs_little_memory() -> None:
    taken, order = spend(RoundRobin(), [2**40, 3, 2**40], 300_000)
    assert (taken.tolist(), order) == ([149_999, 3, 149_998], RoundRobin(cursor=1))
    assert max(len(picks) for picks, _ in iter_picks(Concat(), [2**40], 300_000)) <= 1 << 16


def test_an_input_that_ends_too_early_is_an_error() -> None:
    picks, _ = advance(RoundRobin(), [1, 3])
    with pytest.raises(ValueError, match="input 1 ended behind 2 rows, but the order wants 1 more"):
        list(arrange([batches_of("a", [1]), batches_of("b", [2])], picks))


def test_output_batches_are_not_copied_and_keep_their_bound() -> None:
    source = pa.record_batch({"row": range(10)})
    (batch,) = arrange([iter([source])], advance(Concat(), [10])[0])
    assert batch["row"].buffers()[1].address == source["row"].buffers()[1].address
    cut = arrange([iter([source])], advance(Concat(), [10])[0], rows=4)
    assert [each.num_rows for each in cut] == [4, 4, 2]
    with pytest.raises(ValueError, match="at least one row"):
        next(arrange([], advance(Concat(), [])[0], rows=0))
