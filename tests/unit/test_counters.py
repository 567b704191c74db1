"""Counters: every row that comes in is accounted for."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.table.state.reduce import EMPTY, Counters

NAMES = [field.name for field in fields(Counters)]
ANY = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES}).map(
    lambda numbers: Counters(**numbers)
)


@given(a=ANY, b=ANY, c=ANY)
def test_counters_add_up_in_any_grouping_and_survive_json(
    a: Counters, b: Counters, c: Counters
) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert (a + b) - b == a + EMPTY == a
    assert Counters.from_json(a.to_json()) == a


@given(a=ANY)
def test_the_derived_numbers_follow_their_formulas(a: Counters) -> None:
    gone = a.deletes + a.displaced + a.retracted
    assert a.eligible == a.inserts + a.updates + a.deletes + a.absent + a.quarantined
    assert a.result_count == a.updates + a.deletes + a.displaced
    assert a.output_count == a.inserts + 2 * a.updates + gone + a.restored
    assert a.live_delta == a.inserts + a.restored - gone


_NOT_REASONS = {"rows", "retracted", "displaced", "restored", "tied", "late"}
_NOT_REASONS |= {"filled", "unknown", "strayed", "completed"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in _NOT_REASONS])
def test_a_row_under_any_reason_balances_a_row_that_came_in(name: str) -> None:
    assert Counters(rows=1, **{name: 1}).is_balanced
    assert not Counters(**{name: 1}).is_balanced


def test_counters_balance_where_each_row_that_came_in_has_a_reason() -> None:
    assert not Counters(rows=1).is_balanced
    assert Counters(retracted=5).is_balanced, "by an overwrite"
    assert Counters(retracted=5, restored=7).is_balanced
    assert Counters(rows=1, quarantined=1, displaced=1).is_balanced


def test_counters_of_an_older_or_newer_release_are_read() -> None:
    assert Counters.from_json({"rows": 2, "inserts": 2}) == Counters(rows=2, inserts=2)
    assert Counters.from_json({"rows": 2, "sideways": 1}) == Counters(rows=2)
