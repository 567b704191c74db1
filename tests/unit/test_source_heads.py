"""When inputs are looked at again: so rarely that it takes a bounded share of the time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from spark_upsert.streams.inputs.inputs import Heads, Inputs
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.poller import PAUSE_MAX_S, InputHeads
from tests.support.clocked import Now


class Looking:
    """Inputs of which only the heads are asked."""

    def __init__(self, look: Callable[[], Heads]) -> None:
        self.read_heads = look


def heads_of(look: Callable[[], Heads], **how: Any) -> InputHeads:
    return InputHeads(cast(Inputs, Looking(look)), **how)


class World:
    """A clock, inputs that take their time, and what looks at them."""

    def __init__(self, *, look_s: float) -> None:
        self.look_s = look_s
        self.now = Now(0.0)
        self.looks: list[float] = []
        self.slept: list[float] = []
        self._numbers = count(1)
        self.heads = heads_of(self.look, clock=self.now, sleep=self.sleep)

    def look(self) -> Heads:
        self.looks.append(self.now())
        self.now.advance(self.look_s)
        return {"a": Position.of({"n": next(self._numbers)})}

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now.advance(seconds)


@pytest.mark.parametrize(
    ("after_s", "is_new"), [(0.0, False), (1.4, False), (4.0, True), (99.0, True)]
)
def test_a_look_stands_for_four_times_as_long_as_it_took(after_s: float, is_new: bool) -> None:
    world = World(look_s=1.0)
    first = world.heads.read_if_due().heads
    world.now.advance(after_s)
    assert world.heads.last_heads() is first, "a report tells of the last look"
    assert (world.heads.read_if_due().heads is not first) == is_new
    assert len(world.looks) == 1 + is_new
    assert world.slept == []
    second = world.heads.read_now()
    assert len(world.looks) == 2 + is_new
    assert world.heads.read_if_due().heads is second


def test_a_look_that_is_almost_due_is_waited_for() -> None:
    """What was written before the question is in the answer."""
    world = World(look_s=0.01)
    for number in range(1, 4):
        world.heads.read_if_due()
        assert len(world.looks) == number
    assert world.slept == pytest.approx([0.04, 0.04])
    assert max(world.slept) <= PAUSE_MAX_S


@pytest.mark.parametrize("look_s", [0.0001, 0.01, 1.0, 30.0])
def test_looking_takes_at_most_a_fifth_of_the_time(look_s: float) -> None:
    world = World(look_s=look_s)
    while len(world.looks) < 20:
        world.heads.read_if_due()
        world.now.advance(look_s / 7)
    assert 19 * look_s <= 0.2 * (world.looks[-1] - world.looks[0]) + 1e-9


def test_what_a_look_leads_to_belongs_to_it() -> None:
    world = World(look_s=1.0)
    world.heads.read_if_due()
    world.now.advance(2.0)
    world.heads.restart_pause()
    world.now.advance(9.4)
    world.heads.read_if_due()
    assert len(world.looks) == 1
    world.now.advance(2.7)
    world.heads.read_if_due()
    assert len(world.looks) == 2


def test_a_look_that_fails_is_not_remembered() -> None:
    failing = [True]

    def look() -> Heads:
        if failing.pop():
            raise OSError("no answer")
        return {}

    failing.insert(0, False)
    heads = heads_of(look, clock=Now(0.0), sleep=lambda seconds: None)
    with pytest.raises(OSError, match="no answer"):
        heads.read_if_due()
    assert heads.read_if_due().heads == {}
