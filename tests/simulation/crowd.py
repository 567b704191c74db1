"""A crowd: many inputs that get epochs at random, and a query that serves them batch by batch.

There is no table: what the crowd plays is how far batches go (`plan_limited_batch`), with the state of fairness
as the text that a checkpoint keeps, and a clock that it sets. After each batch it holds the bounds
that `spark_upsert.scheduler.scheduler` states, by a model of its own: who waits, how many wait
before it, and how many turns have passed. Nothing but the text goes from one batch to the next, so
each of them is a restart.

An overloaded crowd has writers, too, who write more than the query reads as long as it does not
refuse them. What it remembers of its pressure is in that text as well, so that no input waits for
longer than what the writers could write before they were refused, however often it restarts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from spark_upsert.scheduler.scheduler import Urgency
from spark_upsert.streams.inputs.protocol import Backlog, ReadPiece, StreamPressure
from spark_upsert.streams.offsets.offset import Offset, Position
from spark_upsert.streams.planner.pressure import StreamGauge
from spark_upsert.streams.planner.rate_limit import Limits, plan_limited_batch
from tests.support.streams import options_of

BEGIN_MS = 1_700_000_000_000
ROUND = 16
"""So many a round serves at most."""

AGED_MS = 10_050
"""Who has waited for so long, a tick included, is as old as one can be."""

_WEIGHTS_OF_THE_OLD = ((-250, 8), (-500, 4), (-750, 2), (-1000, 1))


@cache
def at(place: int) -> Position:
    """Return the position behind so many epochs."""
    return Position.of({"at": place})


@dataclass
class Wait:
    """Since when somebody waits."""

    since_ms: int
    since_turn: int
    rivals: int
    """So many waited then, itself included: nobody else will be served before it."""
    old_since_turn: int | None = None
    falls: int = 0
    """So often the clock went back meanwhile."""


@dataclass
class Member:
    """One input."""

    priority: int | None = None
    rows: list[int] = field(default_factory=list)
    """Of all epochs that it ever got."""
    taken: int = 0
    wait: Wait | None = None

    @property
    def is_dirty(self) -> bool:
        return self.taken < len(self.rows)

    def backlog(self) -> Backlog:
        """Return what lies ahead, epoch by epoch."""
        return Backlog(
            start=at(self.taken),
            pieces=self._pieces(),
            reach=lambda: at(len(self.rows)),
            end=lambda: at(len(self.rows)),
        )

    def report_pressure(self, pressure: StreamPressure | None) -> None:
        """Ignore the pressure: `Crowd` reads it from the gauge."""

    def _pieces(self) -> Iterator[ReadPiece]:
        for place in range(self.taken, len(self.rows)):
            after = partial(_behind, place + 1)
            yield ReadPiece(steps=1, rows=self.rows[place], epochs=1, after=after)


def _behind(place: int, _: int) -> Position:
    return at(place)


@dataclass(frozen=True)
class Served:
    """Somebody was served."""

    at_ms: int
    name: str
    waited_ms: int


class Crowd:
    """Inputs by name, and the checkpoint of the query that reads them.

    Parameters
    ----------
    priorities : sequence of int or None
        One for each input.
    limit : int
        Rows of a batch.
    """

    def __init__(self, priorities: Sequence[int | None], *, limit: int) -> None:
        self.members = {
            f"t{number:05}": Member(priority) for number, priority in enumerate(priorities)
        }
        self.urgencies = {
            name: Urgency(manual=member.priority)
            for name, member in self.members.items()
            if member.priority is not None
        }
        self.limit = limit
        self.now_ms = BEGIN_MS
        self.state = "{}"
        self.turns = 0
        self.has_deferred = False
        self.served: list[Served] = []
        self.pressed: StreamGauge | None = None
        """What the process of the query makes of its batches, where that is played."""
        self.refuses = False
        """Whether it told its writers to wait; that outlives the process by seconds."""

    @property
    def dirty(self) -> list[str]:
        """Who has something, by name."""
        return [name for name, member in self.members.items() if member.is_dirty]

    def arrive(self, name: str, *rows: int) -> None:
        """Let an input get epochs."""
        self.members[name].rows += rows

    def restart(self) -> None:
        """Give the query another process, which is told how pressed the one before was."""
        inputs: Any = self.members  # No table is told: the writers of a crowd ask it.
        self.pressed = StreamGauge(inputs, options_of(parallelism=1).query)

    def batch(self, *, defers: bool = False) -> list[str]:
        """Plan and read the next batch, and hold what is promised of it; returns who was served."""
        if self.pressed is not None:
            begun = {name: at(member.taken) for name, member in self.members.items()}
            self.pressed.resume(Offset(positions=begun, state=json.loads(self.state)))
            defers = self.pressed.defers_lowest
        self.has_deferred |= defers
        dirty = self.dirty
        self._begin_waits(dirty)
        offset = self._planned(dirty, defers=defers)
        if self.pressed is not None:
            offset = self._noted(self.pressed, dirty, offset)
        served = [name for name in dirty if offset.positions[name] != at(self.members[name].taken)]
        largest = self._take(offset, served)
        self.state = json.dumps(offset.state, sort_keys=True)
        in_turn = min(len(served), max(1, len(served) - min(largest, self.limit) + 1))
        self._end_waits(served, in_turn)
        self._check_state(offset)
        return served

    def _planned(self, dirty: list[str], *, defers: bool) -> Offset:
        plan = partial(
            plan_limited_batch,
            limits=Limits(rows=self.limit),
            state=json.loads(self.state),
            now_ms=self.now_ms,
            urgencies=self.urgencies,
            defers_lowest=defers,
        )
        offset = plan({name: self.members[name].backlog() for name in dirty})
        if len(dirty) < 100:
            others = reversed(dirty)
            again = plan({name: self.members[name].backlog() for name in others})
            assert again == offset, "the same state decides otherwise"
        return offset

    def _noted(self, pressed: StreamGauge, dirty: list[str], reached: Offset) -> Offset:
        """Return the end of a batch with what the process says of its pressure."""
        if not dirty:
            pressed.record_idle()
            self.refuses = False
            return reached
        backlogs = {name: self.members[name].backlog() for name in dirty}
        pressed.record_batch(backlogs, reached, self.now_ms)
        self.refuses = pressed.governor.refuses
        return Offset(positions=reached.positions, state=pressed.offset_state(reached))

    def _take(self, offset: Offset, served: list[str]) -> int:
        """Take what a batch has; returns how many rows the largest epoch has that waits."""
        steps: list[int] = []
        largest = 1
        for name in served:
            member = self.members[name]
            reached = offset.positions[name].record["at"]
            assert reached > member.taken, f"{name} goes back"
            steps += member.rows[member.taken : reached]
            member.taken = reached
        for member in self.members.values():
            if member.is_dirty:
                largest = max(largest, member.rows[member.taken])
        assert sum(steps) <= self.limit or len(steps) == 1, "the limit is exceeded"
        return largest

    # -- how long anybody waits ------------------------------------------------------

    def _begin_waits(self, dirty: list[str]) -> None:
        for name in dirty:
            member = self.members[name]
            if member.wait is None:
                member.wait = Wait(self.now_ms, self.turns, len(dirty))
            elif member.wait.since_ms > self.now_ms:
                member.wait.since_ms = self.now_ms
                member.wait.falls += 1
                member.wait.old_since_turn = None
            is_old = self.now_ms - member.wait.since_ms >= AGED_MS
            if is_old and member.wait.old_since_turn is None:
                member.wait.old_since_turn = self.turns

    def _end_waits(self, served: list[str], in_turn: int) -> None:
        self.turns += in_turn
        for name in served:
            wait = self._checked(name)
            self.served.append(Served(self.now_ms, name, self.now_ms - wait.since_ms))
            self.members[name].wait = None
        dirty = self.dirty
        for name in served:
            if self.members[name].is_dirty:
                self.members[name].wait = Wait(self.now_ms, self.turns, len(dirty))
        for name in dirty:
            self._checked(name)

    def _checked(self, name: str) -> Wait:
        """Hold the stated bounds of one wait."""
        member = self.members[name]
        wait = member.wait
        assert wait is not None
        if not self.has_deferred:
            rounds = wait.rivals + 5 * (1 + wait.falls)
            assert self.turns - wait.since_turn <= ROUND * rounds, f"{name} starves"
        if wait.old_since_turn is not None:
            weight = weight_when_old(member.priority)
            rounds = -(-wait.rivals // weight) + 1
            assert self.turns - wait.old_since_turn <= ROUND * rounds, f"{name} is old and starves"
        return wait

    def _check_state(self, offset: Offset) -> None:
        """Hold that the state has those that wait, and nobody else."""
        schedule: Any = offset.state.get("schedule", {"dirty": []})
        noted = [name for _, *names in schedule["dirty"] for name in names]
        assert sorted(noted) == self.dirty, "the state has not those that wait"


def weight_when_old(priority: int | None) -> int:
    """Return the weight of the band that an input comes to by waiting."""
    return next(weight for least, weight in _WEIGHTS_OF_THE_OLD if (priority or 0) >= least)


PRIORITIES = (None, None, None, 800, 600, 300, 0, -1, -250, -251, -700, -1000)


def live(seed: int, *, batches: int = 120) -> Crowd:
    """Play a crowd: calm, overload, and recovery; deferral, clocks that leap; to its end."""
    dice = random.Random(seed)
    count = dice.choice([2, 5, 17, 40, 60])
    largest = dice.choice([1, 1, 4, 30])
    crowd = Crowd(
        [dice.choice(PRIORITIES) for _ in range(count)], limit=dice.choice([1, 4, 10, 25])
    )
    deferral = dice.choice([0.0, 0.0, 0.5, 1.0])
    leaps = dice.choice([0.0, 0.0, 0.02])
    often = dice.sample(sorted(crowd.members), 2)
    for number in range(batches):
        is_overloaded = batches // 4 < number < batches // 2
        for _ in range(crowd.limit * 6 if is_overloaded else crowd.limit // 2):
            name = dice.choice(often if dice.random() < 0.3 else sorted(crowd.members))
            crowd.arrive(name, dice.randint(1, largest))
        crowd.batch(defers=dice.random() < deferral)
        crowd.now_ms += dice.choice([0, 49, 300, 1000, 2500])
        if dice.random() < leaps:
            crowd.now_ms += dice.choice([-3_600_000, -5_000, 20_000, 3_600_000])
    recover(crowd)
    return crowd


OVERLOAD = 4
"""So many times as much as a batch reads is written meanwhile, unless the query refuses."""


def overloaded(seed: int, *, batches: int = 80) -> Crowd:
    """Play a crowd whose writers heed a query that restarts under overload.

    A batch takes a second. Writers are refused once two batches in a row were cut, and write no
    more than `OVERLOAD` batches before each of these; each input is served by when all that was
    read and it was the turn of all others once. One task reads, so that one input that waits is
    full pressure.
    """
    dice = random.Random(seed)
    crowd = Crowd(
        [dice.choice(PRIORITIES) for _ in range(dice.choice([2, 5, 17]))],
        limit=dice.choice([4, 10, 25]),
    )
    restarts = dice.choice([0.0, 0.3, 1.0])
    crowd.restart()
    names = sorted(crowd.members)
    for number in range(batches):
        if dice.random() < restarts:
            crowd.restart()
        if not crowd.refuses:
            count = crowd.limit // 2 if number < 5 else crowd.limit * OVERLOAD
            for name in dice.choices(names, k=count):
                crowd.arrive(name, 1)
        crowd.batch()
        waiting = sum(len(member.rows) - member.taken for member in crowd.members.values())
        most = (2 * OVERLOAD + 1) * crowd.limit
        assert waiting <= most, f"{waiting} epochs wait, and writers go on"
        crowd.now_ms += 1_000
    recover(crowd)
    return crowd


def recover(crowd: Crowd) -> None:
    """Let nothing come any more, and hold that all that came is delivered once."""
    left = sum(len(member.rows) - member.taken for member in crowd.members.values())
    for _ in range(left):
        if not crowd.dirty:
            break
        assert crowd.batch(), "a batch that takes nothing would be asked for for ever"
        crowd.now_ms += 100
    assert not crowd.dirty
    assert crowd.state == "{}"
