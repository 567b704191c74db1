"""What is promised of rows that are parked: each is applied once, in order, or still there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest

from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.store import Store
from tests.support.parked_worlds import FORGIVING, ParkedWorld, parking_options
from tests.support.routed_worlds import Row, content, transaction, write
from tests.support.seeds import seeds
from tests.support.stores import Fault, FaultyStore, KilledError, MemoryStore, Moment, Steps

STRIDE = 24
"""A seed tries every so many-th step; as many seeds are all of them."""

ONE: Row = {"topic": "sum", "id": 1, "at": 0, "v": 1, "w": 0, "gone": False}
OTHER: Row = {**ONE, "topic": "part"}

OPTIONS = parking_options()


@pytest.mark.parametrize("seed", range(1))
def test_p1_what_is_parked_is_applied_once_and_in_order(seed: int) -> None:
    ParkedWorld(seed).play(batches=6)


def test_p1_rows_do_not_come_before_those_that_are_parked() -> None:
    root = copied(broken_after_one_batch()[0])
    write(root, OPTIONS, [[ONE]], transaction(1))
    mend(root)
    write(root, OPTIONS, [[{**ONE, "id": 2}]], transaction(2))
    assert DeadLetterTable(root).counts() == {"sum": 2}
    replay_dead_letters(root)
    rows = table_below(root, "sum").snapshot(columns=["id", "v"]).sort_by("id")
    assert rows.to_pydict() == {"id": [1, 2], "v": [2, 1]}


@cache
def broken_after_one_batch() -> tuple[MemoryStore, MemoryStore]:
    """Return a root whose table of sums is broken, and the same root before it broke."""
    root, whole = MemoryStore(), MemoryStore()
    write(root, OPTIONS, [[ONE, OTHER]], transaction(0))
    whole.objects.update(root.objects)
    for path in root.objects:
        if path.startswith("sum/") and "/_log/" not in path:
            root.objects[path] = b""
    return root, whole


def copied(store: MemoryStore) -> MemoryStore:
    found = MemoryStore()
    found.objects.update(store.objects)
    return found


def mend(root: MemoryStore) -> None:
    """Put the files back that were damaged."""
    root.objects.update(
        {p: data for p, data in broken_after_one_batch()[1].objects.items() if p.startswith("sum/")}
    )


def sweep(seed: int, before: MemoryStore, action: Callable[[Store], object]) -> list[MemoryStore]:
    """Return what is left when an action dies at a step, for each of the steps of a seed."""
    left = []
    for moment in Moment:
        for step in range(seed % STRIDE, 1000, STRIDE):
            root, steps = copied(before), Steps(Fault(step, moment, KilledError))
            with suppress(KilledError):
                action(FaultyStore(root, steps))
            left.append(root)
            if not steps.struck:
                break
    return left


def require_sum(root: MemoryStore, expected: int) -> None:
    """Apply what is parked, and look at the sums and at the group."""
    mend(root)
    replay_dead_letters(root)
    table = table_below(root, "sum")
    assert table.snapshot(columns=["v"]).to_pydict() == {"v": [expected]}
    assert DeadLetterTable(root).counts() == {}
    assert GroupTable(root).at().members["sum"].place.version == table.log.head().version


def test_p1_a_table_that_fails_in_one_task_gets_the_rows_of_all() -> None:
    root = MemoryStore()
    good: Row = {**ONE, "topic": "last", "at": 1}
    write(root, OPTIONS, [[good], [{**good, "id": None}], [{**good, "id": 2}]], transaction(0))
    assert DeadLetterTable(root).counts() == {"last": 3}
    assert table_below(root, "last").log.try_head() is None
    replay_dead_letters(root, options=FORGIVING)
    assert [each["id"] for each in content(table_below(root, "last"))] == [1, 2, None]


@seeds(1, quick=0)
def test_p1_a_batch_that_is_parked_and_repeated_counts_once(seed: int) -> None:
    def batch(root: Store) -> None:
        write(root, OPTIONS, [[OTHER], [ONE], [ONE]], transaction(1))

    for root in sweep(seed, broken_after_one_batch()[0], batch):
        write(root, OPTIONS, [[ONE], [], [OTHER], [], [ONE]], transaction(1))
        require_sum(root, 3)


@seeds(1, quick=0)
def test_p1_what_is_applied_when_it_dies_is_applied_once(seed: int) -> None:
    before = copied(broken_after_one_batch()[0])
    for number in (1, 2):
        write(before, OPTIONS, [[ONE], [ONE, OTHER]], transaction(number))
    mend(before)
    for root in sweep(seed, before, replay_dead_letters):
        require_sum(root, 5)
