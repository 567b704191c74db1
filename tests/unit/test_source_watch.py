"""When inputs are looked at again: so rarely that it takes a bounded share of the time."""

from __future__ import annotations

import pickle
from itertools import count

import pytest

from spark_upsert.streams.inputs.inputs import Heads
from spark_upsert.streams.offsets.position import Position
from spark_upsert.streams.planner.watch import PAUSE_MAX_S, Watch
from tests.support.clocked import Now


class World:
    """A clock, inputs that take their time, and a watch over them."""

    def __init__(self, *, look_s: float) -> None:
        self.look_s = look_s
        self.now = Now(0.0)
        self.looks: list[float] = []
        self.slept: list[float] = []
        self._numbers = count(1)
        self.watch = Watch(self.look, clock=self.now, sleep=self.sleep)

    def look(self) -> Heads:
        self.looks.append(self.now())
        self.now.advance(self.look_s)
        return {"a": Position.of({"n": next(self._numbers)})}

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now.advance(seconds)


@pytest.mark.parametrize(
    ("after_s", "is_new"),
    [
        pytest.param(0.0, False, id="at once"),
        pytest.param(1.4, False, id="earlier"),
        pytest.param(4.0, True, id="after four times as long as it took"),
        pytest.param(99.0, True, id="much later"),
    ],
)
def test_a_look_stands_for_four_times_as_long_as_it_took(after_s: float, is_new: bool) -> None:
    world = World(look_s=1.0)
    first = world.watch.seen()
    world.now.advance(after_s)
    assert (world.watch.seen() is not first) == is_new
    assert len(world.looks) == 1 + is_new
    assert world.slept == []


def test_a_look_that_is_almost_due_is_waited_for() -> None:
    """What was written before the question is in the answer."""
    world = World(look_s=0.01)
    for number in range(1, 4):
        world.watch.seen()
        assert len(world.looks) == number
    assert world.slept == pytest.approx([0.04, 0.04])
    assert max(world.slept) <= PAUSE_MAX_S


@pytest.mark.parametrize("look_s", [0.0001, 0.01, 1.0, 30.0])
def test_looking_takes_at_most_a_fifth_of_the_time(look_s: float) -> None:
    world = World(look_s=look_s)
    while len(world.looks) < 20:
        world.watch.seen()
        world.now.advance(look_s / 7)
    assert 19 * look_s <= 0.2 * (world.looks[-1] - world.looks[0]) + 1e-9


def test_who_needs_to_know_looks_at_once() -> None:
    world = World(look_s=1.0)
    first = world.watch.seen()
    second = world.watch.look()
    assert second != first
    assert world.watch.seen() is second


def test_what_a_look_leads_to_belongs_to_it() -> None:
    world = World(look_s=1.0)
    world.watch.seen()
    world.now.advance(2.0)
    world.watch.rest()
    world.now.advance(9.4)
    world.watch.seen()
    assert len(world.looks) == 1
    world.now.advance(2.7)
    world.watch.seen()
    assert len(world.looks) == 2


def test_a_report_tells_of_the_last_look() -> None:
    world = World(look_s=1.0)
    first = world.watch.last()
    world.now.advance(99.0)
    assert world.watch.last() is first
    assert len(world.looks) == 1


def test_a_look_that_fails_is_not_remembered() -> None:
    failing = [True]

    def look() -> Heads:
        if failing.pop():
            raise OSError("no answer")
        return {}

    failing.insert(0, False)
    watch = Watch(look, clock=Now(0.0), sleep=lambda seconds: None)
    with pytest.raises(OSError, match="no answer"):
        watch.seen()
    assert watch.seen() == {}


def test_what_was_seen_stays_where_it_was_seen() -> None:
    watch = Watch(_nothing)
    watch.look()
    assert b"here" not in pickle.dumps(watch)


def _nothing() -> Heads:
    return {"a": Position.of({"here": 1})}
