"""Fail every step of every operation, before and after its effect, and pairs of them.

After each fault: the table is as before the operation or as after it, never between; the
same operation, tried again, ends as if nothing had happened; and what was once committed is
there exactly once (P1, P3, P6).
"""

from __future__ import annotations

import itertools
import os
from functools import cache, lru_cache

import pytest

from spark_upsert.store import Store
from tests.support.stores import (
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    is_place,
)
from tests.support.sweep import KINDS, Attempts, Left, Process, State, state_of, store_of
from tests.support.workload import ABSENT, OPERATIONS, Seen, observe

FAULTS = [
    pytest.param(kind, moment, id=f"{kind.__name__} {moment.value}")
    for kind in KINDS
    for moment in Moment
]
EACH_OPERATION = pytest.mark.parametrize(
    "index", range(len(OPERATIONS)), ids=[str(o) for o in OPERATIONS]
)
STEPS_MAX = 2_000
"""More steps than any operation takes: a sweep that comes here does not end."""

INNER_PAIRS_EVERY = int(os.environ.get("CRASH_PAIRS_EVERY", "47"))
"""Of pairs of which one lies in the middle of a file, one of so many is tried; of others all."""


@cache
def prefixes() -> list[State]:
    """Return the state before each operation, and behind the last one."""
    store = MemoryStore()
    found = [state_of(store)]
    for operation in OPERATIONS:
        operation.act(store)
        found.append(state_of(store))
    return found


@cache
def seen_at() -> list[Seen]:
    """Return what is seen of each of these states."""
    return [ABSENT, *(observe(store_of(state)) for state in prefixes()[1:])]


def look(store: Store, index: int) -> Seen:
    """Read what an operation may have changed: the versions from just before it on."""
    return observe(store, lower=max(0, len(seen_at()[index].history) - 1))


class Sweep(Attempts):
    """What follows from a state in which an operation was left, found out once for each state."""

    def __init__(self, index: int) -> None:
        super().__init__(OPERATIONS[index].act)
        self.index = index
        self.look = cache(self._look)
        self.again = cache(self._again)

    def _look(self, state: State) -> Seen:
        return look(store_of(state), self.index)

    def _again(self, state: State) -> Seen:
        """Return what is seen when the operation is done again, without a fault."""
        left = self.attempt(state, Process.LAST)
        assert left.finished
        return self.look(left.state)

    def check(self, left: Left, *faults: Fault) -> None:
        """Judge what one or two faults have left, and what comes of it."""
        told = ", then ".join(map(str, faults))
        seen, new = self.look(left.state), seen_at()[self.index + 1]
        assert seen in (seen_at()[self.index], new), told
        assert not left.finished or seen == new, told
        assert self.again(left.state) == new, told


@lru_cache(maxsize=1)
def sweep_of(index: int) -> Sweep:
    """Return what is known of an operation, by its other tests too."""
    return Sweep(index)


@pytest.mark.parametrize(("kind", "moment"), FAULTS)
@EACH_OPERATION
def test_a_fault_at_any_step_leaves_old_or_new(
    index: int, kind: type[BaseException], moment: Moment
) -> None:
    sweep = sweep_of(index)
    for fault, left, _ in sweep.struck(prefixes()[index], kind, moment):
        sweep.check(left, fault)


@EACH_OPERATION
def test_a_fault_during_recovery_leaves_old_or_new(index: int) -> None:
    """Fault an operation anywhere, then kill its repetition anywhere."""
    sweep = sweep_of(index)
    firsts: dict[State, tuple[Fault, bool]] = {}
    for kind, moment in itertools.product(KINDS, Moment):
        for fault, left, is_first_place in sweep.struck(prefixes()[index], kind, moment):
            if is_first_place or left.state not in firsts:
                firsts[left.state] = fault, is_first_place
    inner = itertools.count()
    for state, (first, is_first_place) in firsts.items():
        steps = sweep.attempt(state, Process.SECOND).steps
        for step, moment in itertools.product(range(len(steps)), Moment):
            if (is_first_place and is_place(steps, step)) or next(inner) % INNER_PAIRS_EVERY == 0:
                second = Fault(step, moment)
                sweep.check(sweep.attempt(state, Process.SECOND, second), first, second)


@EACH_OPERATION
def test_what_a_process_does_follows_from_what_it_finds(index: int) -> None:
    """Else a state would have more than one future, and one look at it would not do."""
    once, twice = (Sweep(index).attempt(prefixes()[index], Process.FIRST) for _ in range(2))
    assert once == twice


@EACH_OPERATION
def test_a_reader_at_any_moment_sees_old_or_new(index: int) -> None:
    """A reader looks behind every step; what it has once seen as new stays."""
    store = store_of(prefixes()[index])
    seen: list[Seen] = []
    steps = Steps(watch=lambda: seen.append(look(store, index)))
    OPERATIONS[index].act(FaultyStore(store, steps))
    old, new = seen_at()[index], seen_at()[index + 1]
    assert seen == [old] * seen.count(old) + [new] * (len(seen) - seen.count(old))


def test_the_operations_do_what_they_are_named_after() -> None:
    kinds = [str(version[0].value) for version in seen_at()[-1].history]
    assert kinds == [
        "create",
        "append",
        "append",
        "compact",
        "append",
        "alter",
        "overwrite",
        "append",
        "append",
        "overwrite",
    ]
    assert [seen.rows for seen in seen_at()] == [
        None,
        {},
        {1: 10, 2: 20, 3: 30},
        {1: 12, 3: 30},
        {1: 12, 3: 30},
        {1: 12, 3: 30, 4: 40},
        {1: 12, 3: 30, 4: 40},
        {3: 31, 5: 50},
        {3: 31, 5: 50},
        {3: 31, 6: 60},
        {3: 31, 6: 61, 7: 70},
        {6: 61, 9: 90},
        {6: 61, 9: 90},
    ]


def test_the_whole_work_in_one_process_survives_a_kill_at_any_step() -> None:
    """The handle lives on over the operations, as a driver's does, until it is killed."""
    for step in range(0, STEPS_MAX, 7):
        store, steps = MemoryStore(), Steps(Fault(step, Moment.AFTER))
        faulty = FaultyStore(store, steps)
        done = 0
        try:
            for operation in OPERATIONS:
                operation.act(faulty)
                done += 1
        except KilledError:
            pass
        else:
            return
        assert look(store, done) in (seen_at()[done], seen_at()[done + 1])
        for operation in OPERATIONS[done:]:
            operation.act(store)
        assert observe(store) == seen_at()[-1]
