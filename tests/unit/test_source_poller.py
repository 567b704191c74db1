"""Discovery beside planning: what came, what is gone, what failed; by hand, and with threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from spark_upsert.errors import OtherTableError, StorageError, UpsertFlowError, about
from spark_upsert.streams.inputs.inputs import Heads, KnownInputs
from spark_upsert.streams.inputs.protocol import PollResult
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.poller import RETRIES, DaemonThreads, PollBounds, Poller
from tests.support.clocked import Now
from tests.support.crews import ByHand, no_time
from tests.support.inputs import at
from tests.support.waiting import PATIENCE_SECONDS


@dataclass
class Lake:
    """Inputs that are looked at one by one (`PolledInputs`)."""

    now: Now = field(default_factory=lambda: Now(0.0))
    is_dynamic: bool = True
    there: dict[str, Position] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """What a listing does not find yet."""
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    looks: list[tuple[str, float]] = field(default_factory=list)
    listings: int = 0

    def list_names(self) -> KnownInputs:
        self.listings += 1
        self._fail("")
        return KnownInputs(
            names=[name for name in self.there if name not in self.hidden], requests=1
        )

    def poll(self, name: str) -> PollResult:
        self.looks.append((name, self.now()))
        with about("input", name):
            self._fail(name)
        return PollResult(head=self.there.get(name), requests=1)

    def _fail(self, name: str) -> None:
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def grow(self, name: str, place: int) -> None:
        self.there[name] = at(place)


class World:
    """So many inputs, and a poller that works by hand."""

    def __init__(self, count: int, *, is_dynamic: bool = True, **bounds: float) -> None:
        self.lake = Lake(is_dynamic=is_dynamic)
        for number in range(count):
            self.lake.grow(f"t{number:03}", 1)
        self.crew = ByHand(self.lake.now)
        self.poller = Poller(
            self.lake,
            dict(self.lake.there),
            PollBounds(**bounds),
            crew=self.crew,
            clock=self.lake.now,
            busy_clock=no_time,
        )

    def heads(self) -> Heads:
        return self.poller.cached_heads().heads


def failing(text: str = "no answer") -> StorageError:
    return StorageError(text, hint="try again.")


def test_what_comes_is_seen_once_and_nothing_else_has_moved() -> None:
    world = World(50, is_dynamic=False)
    before = world.heads()
    world.crew.go(5.0)
    assert world.heads() is before, "while nothing comes"
    assert len(world.lake.looks) >= 50 * 9
    world.lake.grow("t007", 2)
    world.crew.go(1.0)
    seen = world.poller.cached_heads()
    assert seen.heads["t007"] == at(2)
    assert seen.before is before
    assert seen.moved == {"t007"}
    assert seen.has_same_names
    assert all(seen.heads[name] is before[name] for name in before if name != "t007")
    again = world.poller.cached_heads()
    assert (again.before, again.moved) == (seen.heads, frozenset())
    assert again.heads is seen.heads
    assert world.lake.listings == 0, "inputs that are named are not looked for"


def test_an_input_that_comes_has_its_place_by_name_and_may_come_again() -> None:
    world = World(3)
    for place in (5, 6):
        world.lake.grow("t000b", place)
        world.crew.go(2.0)
        seen = world.poller.cached_heads()
        assert list(seen.heads) == ["t000", "t000b", "t001", "t002"]
        assert seen.heads["t000b"] == at(place)
        assert not seen.has_same_names
        assert seen.moved == {"t000b"}
        del world.lake.there["t000b"]
        world.crew.go(2.0)
        assert "t000b" not in world.heads()


@pytest.mark.parametrize("is_listed", [False, True], ids=["by a look", "by a listing"])
def test_an_input_that_is_gone_has_no_head_and_is_not_looked_at(is_listed: bool) -> None:
    world = World(3)
    if is_listed:
        world.lake.hidden.add("t001")
    else:
        del world.lake.there["t001"]
    world.crew.go(1.5 if is_listed else 0.9)
    assert world.lake.listings == is_listed
    seen = world.poller.cached_heads()
    assert list(seen.heads) == ["t000", "t002"]
    assert not seen.has_same_names
    del world.lake.looks[:]
    world.crew.go(5.0)
    assert "t001" not in {name for name, _ in world.lake.looks}


@pytest.mark.parametrize("name", ["t001", ""], ids=["a look", "a listing"])
def test_what_the_storage_does_not_answer_is_tried_again(name: str) -> None:
    world = World(3)
    world.lake.failures[name] = [failing() for _ in range(RETRIES)]
    world.lake.grow("t001", 2)
    world.crew.go(30.0)
    assert world.lake.failures[name] == []
    assert world.heads()["t001"] == at(2)


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        pytest.param(failing, RETRIES + 1, id="the storage does not answer, again and again"),
        pytest.param(
            lambda: OtherTableError("another table.", hint="put it back."), 1, id="another table"
        ),
        pytest.param(lambda: ValueError("a bug"), 1, id="anything else"),
    ],
)
def test_an_error_is_told_by_the_next_question_with_the_input(
    error: Callable[[], Exception], looks: int
) -> None:
    world = World(3)
    world.lake.failures["t001"] = [error() for _ in range(looks)]
    world.crew.go(30.0)
    with pytest.raises((UpsertFlowError, ValueError)) as caught:
        world.heads()
    assert "t001" in f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    world.lake.grow("t001", 2)
    world.crew.go(30.0)
    assert world.heads()["t001"] == at(2), "who asks again is answered"


def test_a_question_that_finds_nothing_waits_for_a_look_at_all_behind_it() -> None:
    world = World(40, most_s=0.5)
    world.crew.go(0.3)
    asked_s = world.lake.now()
    del world.lake.looks[:]
    assert not world.poller.wait_for_news(asked_s, 2.5)
    assert {name for name, began_s in world.lake.looks if began_s >= asked_s} == set(world.heads())
    assert world.lake.now() - asked_s <= 1.0


@pytest.mark.parametrize(
    ("name", "most_s"), [("t039", 0.5), ("t040", 0.1)], ids=["rows", "a table that came"]
)
def test_news_end_the_wait(name: str, most_s: float) -> None:
    world = World(40, most_s=most_s)
    world.crew.go(0.2)
    world.lake.grow(name, 2)
    assert world.poller.wait_for_news(world.lake.now(), 2.5)
    assert world.heads()[name] == at(2)


@pytest.mark.parametrize(("most_s", "waits"), [(30.0, False), (2.0, True)])
def test_nobody_waits_for_a_look_at_all_that_cannot_be_over_in_time(
    most_s: float, waits: bool
) -> None:
    world = World(40, most_s=most_s)
    asked_s = world.lake.now()
    assert not world.poller.wait_for_news(asked_s, 2.5)
    assert (world.lake.now() > asked_s) == waits


def test_nobody_waits_for_longer_than_it_is_said() -> None:
    world = World(40, most_s=0.5)
    world.lake.failures["t001"] = [failing() for _ in range(99)]
    world.crew.go(10.0)
    with pytest.raises(StorageError):
        world.heads()
    world.lake.failures["t001"] = [failing() for _ in range(RETRIES)]
    asked_s = world.lake.now()
    world.poller.wait_for_news(asked_s, 0.6)
    assert world.lake.now() <= asked_s + 0.6 + 1e-9


def test_threads_wake_waiters_look_until_they_are_stopped_and_never_keep_a_process() -> None:
    others = set(threading.enumerate())
    lake = Lake(now=Now(0.0))
    for number in range(20):
        lake.grow(f"t{number:03}", 1)
    bounds = PollBounds(most_s=0.02, least_s=0.02)
    poller = Poller(lake, dict(lake.there), bounds, crew=DaemonThreads(3))
    threads = [
        thread
        for thread in set(threading.enumerate()) - others
        if thread.name.startswith("upsertflow-discovery")
    ]
    assert [thread.daemon for thread in threads] == [True] * 3
    assert not poller.wait_for_news(time.monotonic(), PATIENCE_SECONDS), (
        "a look at all is over long before"
    )
    lake.grow("t003", 2)
    assert poller.wait_for_news(time.monotonic(), PATIENCE_SECONDS)
    assert poller.cached_heads().heads["t003"] == at(2)
    lake.failures["t004"] = [ValueError("a bug")]
    assert poller.wait_for_news(time.monotonic(), PATIENCE_SECONDS)
    with pytest.raises(ValueError, match="a bug"):
        poller.cached_heads()
    lake.grow("t004", 2)
    assert poller.wait_for_news(time.monotonic(), PATIENCE_SECONDS)
    assert poller.cached_heads().heads["t004"] == at(2)
    poller.stop()
    poller.stop()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert poller.work() is None
