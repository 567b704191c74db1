"""The laws of the exact orders: they equal the slow telling, and no cut changes them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.input_order import (
    Concat,
    Order,
    RoundRobin,
    Seeded,
    advance,
    draws,
    iter_picks,
    order_from_json,
    raw_numbers,
    rows_of_inputs,
    spend,
)
from spark_upsert.merge.merged import arrange
from tests.support.merging import Generator, batches_of, check_picks, rows_in

STATES = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])
BOUNDS = (
    st.integers(1, 5)
    | st.integers(1, 2**64 - 1)
    # From here on, every second number is rejected.
    | st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1])
)
REMAINING = st.lists(st.integers(0, 5), min_size=1, max_size=5) | st.lists(
    st.integers(0, 300), min_size=1, max_size=40
)
ORDERS: st.SearchStrategy[Order] = (
    st.just(Concat())
    | st.builds(RoundRobin, cursor=st.integers(0, 50))
    | st.builds(Seeded, state=STATES)
)
LIMITS = st.none() | st.integers(0, 12) | st.integers(0, 500)


@given(state=STATES, bound=BOUNDS, count=st.integers(0, 40))
def test_draws_equal_those_of_numbers_without_a_length(state: int, bound: int, count: int) -> None:
    generator = Generator(state)
    expected = [generator.below(bound) for _ in range(count)]
    drawn, behind = draws(state, bound, count)
    assert (drawn.tolist(), behind) == (expected, generator.state)


def test_draws_are_rejected_where_the_law_looks() -> None:
    generator = Generator(42)
    drawn = [generator.below(2**63 + 1) for _ in range(1_000)]
    assert generator.consumed > 1_500
    assert draws(42, 2**63 + 1, 1_000)[0].tolist() == drawn


@given(state=STATES, bound=BOUNDS, one=st.integers(0, 20), other=st.integers(0, 20))
def test_draws_may_be_cut(state: int, bound: int, one: int, other: int) -> None:
    first, between = draws(state, bound, one)
    second, behind = draws(between, bound, other)
    whole, end = draws(state, bound, one + other)
    assert ([*first, *second], behind) == ([*whole], end)


@given(state=STATES, count=st.integers(0, 20))
def test_raw_numbers_equal_those_of_numbers_without_a_length(state: int, count: int) -> None:
    generator = Generator(state)
    expected = [generator.raw() for _ in range(count)]
    numbers, behind = raw_numbers(state, count)
    assert (numbers.tolist(), behind) == (expected, generator.state)


@given(order=ORDERS, remaining=REMAINING, limit=LIMITS)
def test_any_order_is_the_one_that_is_told_slowly(
    order: Order, remaining: list[int], limit: int | None
) -> None:
    check_picks(order, remaining, limit)


@given(order=ORDERS, remaining=REMAINING, cuts=st.lists(st.integers(0, 9), max_size=30))
def test_no_cut_changes_an_order(order: Order, remaining: list[int], cuts: list[int]) -> None:
    whole, end = advance(order, remaining)
    left = np.array(remaining)
    given_so_far: list[int] = []
    for limit in [*cuts, None]:
        picks, order = advance(order, left, limit)
        # As it is kept between two batches.
        order = order_from_json(json.loads(json.dumps(order.to_json())))
        left -= rows_of_inputs(picks, len(left))
        given_so_far += picks.tolist()
    assert (given_so_far, order) == (whole.tolist(), end)


@given(order=ORDERS, remaining=REMAINING, limit=st.integers(0, 60), data=st.data())
def test_counts_from_the_limit_on_mean_the_same(
    order: Order, remaining: list[int], limit: int, data: st.DataObject
) -> None:
    bounds = [data.draw(st.integers(min(rows, limit), rows)) for rows in remaining]
    exact, bounded = advance(order, remaining, limit), advance(order, bounds, limit)
    assert (exact[0].tolist(), exact[1]) == (bounded[0].tolist(), bounded[1])


@given(order=ORDERS, remaining=REMAINING, limit=LIMITS)
def test_a_plan_counts_what_the_order_gives(
    order: Order, remaining: list[int], limit: int | None
) -> None:
    picks, behind = advance(order, remaining, limit)
    taken, end = spend(order, remaining, limit)
    assert (taken.tolist(), end) == (rows_of_inputs(picks, len(remaining)).tolist(), behind)


@pytest.mark.parametrize(
    "order", [Concat(), RoundRobin(cursor=1), Seeded(state=9)], ids=["concat", "turns", "seeded"]
)
def test_a_long_order_comes_in_pieces(order: Order) -> None:
    remaining = [150_000, 0, 70_001, 3]
    whole, end = advance(order, remaining)
    pieces = list(iter_picks(order, remaining))
    assert np.concatenate([picks for picks, _ in pieces]).tolist() == whole.tolist()
    assert pieces[-1][1] == end
    assert len(pieces) > 3


@given(
    order=ORDERS,
    sizes=st.lists(st.lists(st.integers(0, 7), max_size=5), min_size=1, max_size=6),
    limit=LIMITS,
    rows=st.integers(1, 20),
)
def test_rows_come_whole_in_their_order_and_none_twice(
    order: Order, sizes: list[list[int]], limit: int | None, rows: int
) -> None:
    names = [f"i{index}" for index in range(len(sizes))]
    picks, _ = advance(order, [sum(each) for each in sizes], limit)
    inputs = [batches_of(name, each) for name, each in zip(names, sizes, strict=True)]
    batches = list(arrange(inputs, picks, rows=rows))
    seen = Counter[str]()
    expected = []
    for pick in picks.tolist():
        seen[names[pick]] += 1
        expected.append((names[pick], seen[names[pick]]))
    assert rows_in(batches) == expected
    assert all(0 < batch.num_rows <= rows for batch in batches)


@given(seed=STATES, inputs=st.integers(60, 300), rows=st.integers(1, 9), limit=st.integers(0, 900))
def test_very_many_inputs_are_arranged_like_a_few(
    seed: int, inputs: int, rows: int, limit: int
) -> None:
    for order in (RoundRobin(cursor=inputs // 2), Seeded(state=seed)):
        picks, _ = advance(order, [4] * inputs, limit)
        batches = [batches_of(str(index), [1, 3]) for index in range(inputs)]
        out = list(arrange(batches, picks, rows=rows))
        assert [int(name) for name, _ in rows_in(out)] == picks.tolist()
        assert all(batch.num_rows == rows for batch in out[:-1])


@given(remaining=REMAINING, state=STATES)
def test_the_order_of_the_inputs_is_part_of_the_contract(remaining: list[int], state: int) -> None:
    """Turned around, inputs give the same rows; their sequence is that of other inputs."""
    for order in (Concat(), Seeded(state=state)):
        picks, _ = advance(order, remaining)
        turned, _ = advance(order, remaining[::-1])
        assert sorted(picks.tolist()) == sorted(len(remaining) - 1 - i for i in turned.tolist())


def test_inputs_turned_around_are_another_sequence() -> None:
    for order in (Concat(), Seeded(state=42)):
        there, _ = advance(order, [3, 3])
        back, _ = advance(order, [3, 3])
        assert there.tolist() != [1 - index for index in back.tolist()]
