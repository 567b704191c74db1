"""The steps of a micro-batch: the epochs of all tables, one after the other.

Tables have no common clock, so the planner of steps puts their epochs in *an* order: by commit
time, then by the place of the table in the plan, then by version. The order is a function of both
positions and of the logs alone: a replay of a batch takes the same way. Epochs of one table are
never out of order, as its commit times never fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from spark_upsert.views.relation import At, Step
from spark_upsert.views.ways import LOOK_UPS, Choice, Way


class Moved(NamedTuple):
    """An epoch of a table, in the order of the steps."""

    time_ms: int
    place: int
    """The place of the table among those of the plan."""
    version: int
    path: str


class Timed(NamedTuple):
    """A step, and what its rows say about it."""

    step: Step
    version: int
    """The sum of the versions at its end, which grows with every step."""
    time_ms: int
    """The greatest commit time there, which never falls."""
    choice: Choice = LOOK_UPS
    """How it is found out what the step changed."""


class StepStretch(NamedTuple):
    """Steps that are computed in one pass, with a time for each (`spans`)."""

    step: Step
    """From where the first begins to where the last ends."""
    steps: tuple[Timed, ...]

    @property
    def way(self) -> Way:
        """How it is computed."""
        return self.steps[0].choice.way


def in_stretches(found: Sequence[Timed]) -> list[StepStretch]:
    """Return steps as few stretches: those that are looked up, one behind the other, are one."""
    return [
        stretch
        for is_looked_up, part in groupby(found, key=_is_looked_up)
        for stretch in ([_stretch(tuple(part))] if is_looked_up else map(alone, part))
    ]


def _is_looked_up(timed: Timed) -> bool:
    return bool(timed.step.before) and timed.choice.way is Way.LOOK_UPS


def alone(timed: Timed) -> StepStretch:
    """Return a step as a stretch of its own."""
    return StepStretch(timed.step, (timed,))


def _stretch(found: tuple[Timed, ...]) -> StepStretch:
    if len(found) == 1:
        return alone(found[0])
    epochs = [
        (path, version)
        for timed in found
        for path, version in timed.step.after.items()
        if timed.step.before[path] != version
    ]
    assert len(epochs) == len(found), "each of several steps is of one epoch"
    step = Step(found[0].step.before, found[-1].step.after, tuple(epochs))
    return StepStretch(step, found)


def in_order(moved: Iterable[Moved]) -> list[Moved]:
    """Return epochs in the order in which steps take them."""
    return sorted(moved)


def steps(before: At, moved: Sequence[Moved], times_ms: Mapping[str, int]) -> list[Timed]:
    """Return the steps from a position on, one for each epoch.

    Parameters
    ----------
    before : mapping of str to int
        The position.
    moved : sequence of Moved
        In order.
    times_ms : mapping of str to int
        When the version of each table there was committed.
    """
    found = []
    at, time_ms = dict(before), max(times_ms.values(), default=0)
    for each in moved:
        start, at = at, {**at, each.path: each.version}
        time_ms = max(time_ms, each.time_ms)
        found.append(Timed(Step(start, at), sum(at.values()), time_ms))
    return found


def netted(before: At, moved: Sequence[Moved], times_ms: Mapping[str, int]) -> list[Timed]:
    """Return the one step that goes all the way; none if nothing moved."""
    every = steps(before, moved, times_ms)
    if not every:
        return []
    last = every[-1]
    return [Timed(Step(before, last.step.after), last.version, last.time_ms)]
