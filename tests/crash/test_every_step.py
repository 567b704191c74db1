"""Fail every step of every operation, before and after its effect, and pairs of them.

After each fault: the table is as before the operation or as after it, never between; the
same operation, tried again, ends as if nothing had happened; and what was once committed is
there exactly once (P1, P3, P6).
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator

import pytest

from spark_upsert.store import Store
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
)
from tests.support.workload import ABSENT, OPERATIONS, Operation, Seen, observe

KINDS: list[type[BaseException]] = [KilledError, BrokenError]
FAULTS = [
    pytest.param(kind, moment, id=f"{kind.__name__} {moment.value}")
    for kind in KINDS
    for moment in Moment
]
STEPS_MAX = 2_000
"""More steps than any operation takes: a sweep that comes here does not end."""
PAIRS_EVERY = int(os.environ.get("CRASH_PAIRS_EVERY", "23"))
"""One of so many pairs of faults is tried; 1 tries them all, which takes half an hour."""


def before(index: int) -> MemoryStore:
    """Return a store on which the operations up to ``index`` (exclusive) have been done."""
    store = MemoryStore()
    store.objects = copy.copy(_PREFIXES[index])
    return store


def _prefixes() -> Iterator[dict[str, bytes]]:
    store = MemoryStore()
    yield copy.copy(store.objects)
    for operation in OPERATIONS:
        operation.act(store)
        yield copy.copy(store.objects)


_PREFIXES = list(_prefixes())
_SEEN = [ABSENT, *(observe(before(index + 1)) for index in range(len(OPERATIONS)))]


def attempt(operation: Operation, store: Store, fault: Fault) -> bool | None:
    """Return whether an operation came to its end, or None if the fault lies behind it."""
    steps = Steps(fault)
    try:
        operation.act(FaultyStore(store, steps))
    except (KilledError, BrokenError):
        return False
    return True if steps.struck else None


def look(store: Store, index: int) -> Seen:
    """Read what an operation may have changed: the versions from just before it on."""
    return observe(store, lower=max(0, len(_SEEN[index].history) - 1))


def check(store: Store, index: int, *, finished: bool) -> None:
    """Look at a table after a fault in an operation: old or new, and new if it said so."""
    seen = look(store, index)
    assert seen in (_SEEN[index], _SEEN[index + 1])
    assert not finished or seen == _SEEN[index + 1]


def faults(kind: type[BaseException], moment: Moment) -> Iterator[Fault]:
    yield from (Fault(step, moment, kind) for step in range(STEPS_MAX))


@pytest.mark.parametrize(("kind", "moment"), FAULTS)
@pytest.mark.parametrize("index", range(len(OPERATIONS)), ids=[str(o) for o in OPERATIONS])
def test_a_fault_at_any_step_leaves_old_or_new(
    index: int, kind: type[BaseException], moment: Moment
) -> None:
    operation = OPERATIONS[index]
    for fault in faults(kind, moment):
        store = before(index)
        finished = attempt(operation, store, fault)
        if finished is None:
            assert fault.step > 0
            return
        check(store, index, finished=finished)
        operation.act(store)
        assert look(store, index) == _SEEN[index + 1], str(fault)
    pytest.fail(f"{operation} takes more than {STEPS_MAX} steps")


def pairs(index: int, *, every: int) -> None:
    """Fault an operation anywhere, then kill its repetition: one of so many of all pairs."""
    operation = OPERATIONS[index]
    number = 0
    for kind, first_moment in itertools.product(KINDS, Moment):
        for first in faults(kind, first_moment):
            store = before(index)
            if attempt(operation, store, first) is None:
                break
            damaged = copy.copy(store.objects)
            for second in kills(operation, damaged):
                number += 1
                if number % every:
                    continue
                store.objects = copy.copy(damaged)
                finished = attempt(operation, store, second)
                check(store, index, finished=bool(finished))
                operation.act(store)
                assert look(store, index) == _SEEN[index + 1], f"{first}, then {second}"


def kills(operation: Operation, objects: dict[str, bytes]) -> list[Fault]:
    """Return a kill at every step that an operation takes on a store."""
    store, steps = MemoryStore(), Steps()
    store.objects = copy.copy(objects)
    operation.act(FaultyStore(store, steps))
    return [Fault(step, moment) for step in range(len(steps.names)) for moment in Moment]


@pytest.mark.parametrize("index", range(len(OPERATIONS)), ids=[str(o) for o in OPERATIONS])
def test_a_fault_during_recovery_leaves_old_or_new(index: int) -> None:
    pairs(index, every=PAIRS_EVERY)


@pytest.mark.parametrize("index", range(len(OPERATIONS)), ids=[str(o) for o in OPERATIONS])
def test_a_reader_at_any_moment_sees_old_or_new(index: int) -> None:
    """A reader looks behind every step; what it has once seen as new stays."""
    store = before(index)
    seen: list[Seen] = []
    steps = Steps(watch=lambda: seen.append(look(store, index)))
    OPERATIONS[index].act(FaultyStore(store, steps))
    old, new = _SEEN[index], _SEEN[index + 1]
    assert seen == [old] * seen.count(old) + [new] * (len(seen) - seen.count(old))


def test_the_operations_do_what_they_are_named_after() -> None:
    kinds = [str(version[0].value) for version in _SEEN[-1].history]
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
    assert [seen.rows for seen in _SEEN] == [
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
        check(store, done, finished=False)
        for operation in OPERATIONS[done:]:
            operation.act(store)
        assert observe(store) == _SEEN[-1]
