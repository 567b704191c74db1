"""Fail the steps of a routed batch, repeat it with other tasks, and find every table right.

The batch goes to a table that is there, to one that is due for compaction, and to a new one. Each
attempt is failed at another step, by an error or a kill, before and after the effect of the step.
Then each table has the batch or not, whole; and the batch, divided otherwise, ends as if nothing
had happened.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import pytest

from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import table_below
from tests.support.routed_worlds import (
    Content,
    Row,
    content,
    routed_options,
    row,
    transaction,
    write,
)
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
    is_place,
)

EVERY = int(os.environ.get("CRASH_STRIDE", "37"))
"""One of so many steps fails, another one in each way; 1 tries them all."""

OPTIONS = routed_options()

BATCH = 8

TOPICS = ("last", "part", "sum")


def rows_of(number: int) -> list[Row]:
    """Return the rows of a batch: of the table ``part`` only the last one has some."""
    rng = random.Random(number)
    topics = TOPICS if number == BATCH else ("last", "sum")
    rows = [row(rng, topic) for topic in topics for _ in range(3)]
    return [{**each, "at": 10 * number + at, "v": number} for at, each in enumerate(rows)]


@cache
def before() -> dict[str, bytes]:
    """Return the objects of a root with eight whole batches: the next one compacts."""
    store = MemoryStore()
    for number in range(BATCH):
        write(store, OPTIONS, [rows_of(number)], transaction(number))
    assert GroupTable(store).at().members["last"].debt
    return dict(store.objects)


def store_of(objects: dict[str, bytes]) -> MemoryStore:
    """Return a store of its own, of which no process remembers anything."""
    store = MemoryStore()
    store.objects = dict(objects)
    forget_runs_and_logs()
    return store


def contents(store: MemoryStore) -> dict[str, Content | None]:
    """Return what each table holds; None if it is not there."""
    tables = {topic: table_below(store, topic) for topic in TOPICS}
    return {t: None if x.log.try_head() is None else content(x) for t, x in tables.items()}


def attempt(store: MemoryStore, steps: Steps, *, tasks: int) -> None:
    """Write the batch, divided into some tasks."""
    rows = rows_of(BATCH)
    write(
        FaultyStore(store, steps, process="p"),
        OPTIONS,
        [rows[index::tasks] for index in range(tasks)],
        transaction(BATCH),
    )


@cache
def places() -> list[int]:
    """Return the steps of the batch that are worth failing."""
    steps = Steps()
    attempt(store_of(before()), steps, tasks=2)
    return [step for step in range(len(steps.names)) if not step or is_place(steps.names, step)]


def faults(kind: type[BaseException], moment: Moment, first: int) -> Iterator[Fault]:
    """Yield the faults of a way to fail."""
    yield from (
        Fault(step, moment, kind) for step in itertools.islice(places(), first, None, EVERY)
    )


WAYS = list(itertools.product((KilledError, BrokenError), Moment))


@pytest.mark.parametrize(("kind", "moment"), WAYS, ids=[f"{k.__name__} {m.value}" for k, m in WAYS])
def test_a_batch_that_failed_at_any_step_can_just_be_repeated(
    kind: type[BaseException], moment: Moment
) -> None:
    old = contents(store_of(before()))
    done = store_of(before())
    attempt(done, Steps(), tasks=1)
    new = contents(done)
    assert all(new[topic] != old[topic] for topic in TOPICS)
    for fault in faults(kind, moment, WAYS.index((kind, moment))):
        store = store_of(before())
        with suppress(KilledError, BrokenError):
            attempt(store, Steps(fault), tasks=2)
        store = store_of(store.objects)
        for topic, found in contents(store).items():
            assert found in (old[topic], new[topic]), fault
        is_whole = GroupTable(store).has(transaction(BATCH))
        assert not is_whole or contents(store) == new, fault
        attempt(store, Steps(), tasks=3)
        assert contents(store) == new, fault
        group = GroupTable(store).at()
        for topic in TOPICS:
            place = group.members[topic].place
            table = table_below(store, topic)
            assert content(table, place.version) == new[topic], fault
            assert not table.check().findings, fault
