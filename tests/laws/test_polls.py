"""Laws of polls: budgets hold, nobody is forgotten, and nobody is looked at too often."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.streams.planner.poller import PollBounds, PollSchedule

TICK_S = 0.01
SPAN_S = 40.0


@dataclass
class Life:
    """So many inputs for a while, and threads that look at what is due."""

    seed: int
    count: int
    rate: float
    most_s: float
    threads: int
    looks: list[tuple[float, str, int]] = field(default_factory=list)
    """When each began, of what, and its requests."""
    longest_s: float = 0.0
    """The longest interval that was allowed at any time."""

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        schedule = PollSchedule(PollBounds(most_s=self.most_s, requests_per_s=self.rate))
        names = [f"t{number}" for number in range(self.count)]
        schedule.add_all(names, 0.0)
        busy = dict.fromkeys(names[: self.count // 10 + 1], True)
        under_way: list[tuple[float, str]] = []
        for tick in range(int(SPAN_S / TICK_S)):
            now_s = tick * TICK_S
            for over_s, name in [each for each in under_way if each[0] <= now_s]:
                under_way.remove((over_s, name))
                if draw.random() < 0.02:
                    schedule.record_failure(name, now_s, may_pass=draw.random() < 0.5)
                else:
                    has_moved = name in busy and draw.random() < 0.8
                    schedule.record_poll(name, now_s, has_moved=has_moved)
            free = self.threads - len(under_way)
            for name in schedule.take_due(now_s, free) if free > 0 else ():
                self.looks.append((now_s, name, 1))
                under_way.append((now_s + draw.random() * 0.05, name))
            self.longest_s = max(self.longest_s, schedule.most_s)


LIVES = st.builds(
    Life,
    seed=st.integers(0, 2**32),
    count=st.integers(1, 60),
    rate=st.sampled_from([5.0, 20.0, 100.0]),
    most_s=st.sampled_from([0.02, 0.5, 3.0]),
    threads=st.integers(4, 16),
)


@given(LIVES)
@settings(deadline=None, max_examples=25)
def test_requests_of_any_second_keep_the_budget(life: Life) -> None:
    times = [now_s for now_s, _, _ in life.looks]
    first = 0
    for last, now_s in enumerate(times):
        while times[first] < now_s - 1.0:
            first += 1
        # A tenth of a second that was not used, and the one that empties the budget.
        assert last - first + 1 <= life.rate * (1.0 + 0.1 + TICK_S) + 2


@given(LIVES)
@settings(deadline=None, max_examples=25)
def test_nobody_is_left_alone_for_longer_than_an_interval_and_a_round(life: Life) -> None:
    round_s = life.count / min(life.rate, life.threads / 0.06)
    bound_s = life.longest_s + round_s + 0.05 + 4 * TICK_S
    before = {f"t{number}": 0.0 for number in range(life.count)}
    for now_s, name, _ in life.looks:
        assert now_s - before[name] <= bound_s
        before[name] = now_s
    assert all(SPAN_S - began_s <= bound_s for began_s in before.values())


@given(LIVES)
@settings(deadline=None, max_examples=25)
def test_nobody_is_looked_at_more_often_than_the_least_allows(life: Life) -> None:
    least_s = min(PollBounds().least_s, life.most_s)
    before: dict[str, float] = {}
    for now_s, name, _ in life.looks:
        assert now_s - before.get(name, -1.0) >= least_s - 1e-9
        before[name] = now_s
