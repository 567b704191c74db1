"""When inputs are looked at again: intervals, budgets, failures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spark_upsert.streams.planner.poller import (
    LEAST_S,
    MOST_LOCAL_S,
    MOST_S,
    REQUESTS_PER_S,
    RETRIES,
    Budget,
    PollBounds,
    PollSchedule,
)


def schedule_of(count: int, **bounds: Any) -> PollSchedule:
    """Return what knows of so many inputs, all looked at just now."""
    schedule = PollSchedule(PollBounds(**bounds))
    schedule.add_all([f"t{number}" for number in range(count)], 0.0)
    return schedule


@pytest.mark.parametrize(
    ("gap_s", "expected_s"),
    [
        pytest.param(0.0, 0.05, id="changes all the time: the least"),
        pytest.param(0.2, 0.05, id="a tenth is below the least"),
        pytest.param(60.0, 6.0, id="every minute: a tenth of it"),
        pytest.param(3600.0, 30.0, id="every hour: the most"),
        pytest.param(math.inf, 30.0, id="never"),
    ],
)
def test_an_input_is_looked_at_after_a_tenth_of_its_gap(gap_s: float, expected_s: float) -> None:
    assert schedule_of(1, most_s=30.0).interval_s(gap_s) == pytest.approx(expected_s)


def test_what_changes_is_looked_at_more_and_more_often_and_what_rests_less_and_less() -> None:
    schedule = schedule_of(1, most_s=30.0)
    now_s, intervals = 30.0, []
    for has_moved in [True] * 8 + [False] * 60:
        assert schedule.take_due(now_s, 9) == ["t0"]
        schedule.record_poll("t0", now_s, has_moved=has_moved)
        intervals.append(schedule.wait_s(now_s))
        now_s += intervals[-1]
    assert intervals[:8] == sorted(intervals[:8], reverse=True)
    assert intervals[8:] == sorted(intervals[8:])
    assert intervals[7] < 1.0
    assert intervals[-1] == 30.0


def test_each_input_is_taken_when_it_is_due_unless_it_is_under_way_or_dropped() -> None:
    schedule = schedule_of(4, most_s=8.0)
    taken = [schedule.take_due(now_s, 9) for now_s in (0, 2, 4, 6, 8)]
    assert taken == [[], ["t0"], ["t1"], ["t2"], ["t3"]]
    assert schedule.take_due(99.0, 9) == []
    schedule.record_poll("t1", 99.0, has_moved=False)
    schedule.drop("t0")
    schedule.add("new", 99.0)
    assert schedule.names == {"t1", "t2", "t3", "new"}
    assert schedule.take_due(199.0, 1) == ["new"]
    assert schedule.take_due(199.0, 9) == ["t1"]


@pytest.mark.parametrize(
    ("count", "rate", "most_s"),
    [
        pytest.param(100, 200.0, 30.0, id="the budget suffices"),
        pytest.param(10_000, 200.0, 100.0, id="half of it for those at rest"),
        pytest.param(10_000, None, 30.0, id="no budget"),
    ],
)
def test_inputs_at_rest_get_half_of_the_requests(
    count: int, rate: float | None, most_s: float
) -> None:
    assert schedule_of(count, most_s=30.0, requests_per_s=rate).most_s == most_s


def test_looks_that_take_long_are_fewer() -> None:
    schedule = schedule_of(1000, most_s=0.5, busy_share=0.2)
    schedule.record_busy_time(0.001)
    assert schedule.rate == pytest.approx(200.0)
    assert schedule.most_s == pytest.approx(10.0)


def test_a_budget_is_paid_back_before_more_is_spent_and_not_by_a_clock_that_goes_back() -> None:
    budget = Budget(10.0)
    assert budget.wait_s(100.0) == 0.0
    budget.spend(21.0)
    assert budget.wait_s(100.0) == pytest.approx(2.0, abs=0.01)
    assert budget.wait_s(101.0) == pytest.approx(1.0, abs=0.01)
    assert budget.wait_s(50.0) == pytest.approx(1.0, abs=0.01)
    assert budget.wait_s(51.1) == 0.0


def test_a_failure_is_told_when_it_does_not_pass_and_one_of_another_kind_at_once() -> None:
    schedule = schedule_of(1, most_s=0.1)
    for now_s in map(float, range(1, 20)):
        schedule.take_due(now_s, 1)
        assert not schedule.record_failure("t0", now_s, may_pass=True), (
            "a look in between forgets it"
        )
        schedule.take_due(now_s + 0.9, 1)
        schedule.record_poll("t0", now_s + 0.9, has_moved=False)
    now_s, failures = 30.0, []
    for _ in range(RETRIES + 1):
        assert schedule.take_due(now_s, 1) == ["t0"]
        failures.append(schedule.record_failure("t0", now_s, may_pass=True))
        now_s += schedule.wait_s(now_s)
    assert failures == [False] * RETRIES + [True]
    assert now_s < 32.0, "it is tried again soon"
    schedule.take_due(40.0, 1)
    assert schedule.record_failure("t0", 40.0, may_pass=False)


def bounds(least_s: float, most_s: float, requests_per_s: float | None) -> PollBounds:
    return PollBounds(least_s=least_s, most_s=most_s, requests_per_s=requests_per_s)


@pytest.mark.parametrize(
    ("is_remote", "most_ms", "requests", "expected"),
    [
        pytest.param(False, None, None, bounds(LEAST_S, MOST_LOCAL_S, None), id="file system"),
        pytest.param(True, None, None, bounds(LEAST_S, MOST_S, REQUESTS_PER_S), id="a bucket"),
        pytest.param(True, 5_000, 50, bounds(LEAST_S, 5.0, 50.0), id="as it is said"),
        pytest.param(True, None, 0, bounds(LEAST_S, MOST_S, None), id="any number"),
        pytest.param(False, 10, None, bounds(0.01, 0.01, None), id="more often than the least"),
    ],
)
def test_bounds_are_those_of_options_or_of_the_storage(
    is_remote: bool, most_ms: int | None, requests: int | None, expected: PollBounds
) -> None:
    assert PollBounds.of(is_remote=is_remote, most_ms=most_ms, requests_per_s=requests) == expected
