"""A query that still runs when another takes the root: it writes nothing behind that one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from spark_upsert.errors import ContentionError, OtherTableError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed import fence
from spark_upsert.routed.group import GroupTable, incomplete_batches
from spark_upsert.routed.plan import table_below
from spark_upsert.table.log.manifest import Transaction
from tests.support.routed_worlds import (
    TOPICS,
    Row,
    content,
    routed_options,
    row,
    transaction,
    write,
)
from tests.support.seeds import seeds
from tests.support.stores import Fault, FaultyStore, KilledError, MemoryStore, Moment, Steps

OLD, NEW = "old", "new"

STEPS = 220
"""About as many has an attempt."""

COMMIT, END = 36, 64
"""Between these of its steps it commits, if writes into a file are not counted."""


def batch(dice: random.Random, topics: Sequence[str]) -> list[Row]:
    return [row(dice, topic) for topic in topics for _ in range(2)]


def transactions_of(root: MemoryStore, topic: str) -> list[tuple[str, int]]:
    log = table_below(root, topic).log
    if log.try_head() is None:
        return []
    commits = (log.commit(version) for version in range(log.head().upper))
    return [(each.writer, each.number) for commit in commits for each in commit.transactions]


def take(root: MemoryStore, dice: random.Random, rows: list[Row]) -> None:
    """Take the root over by a batch; die of it, perhaps."""
    fault = Fault(dice.randrange(2 * STEPS), dice.choice(list(Moment)), KilledError)
    with suppress(KilledError, ContentionError):
        store = FaultyStore(root, Steps(fault))
        write(store, routed_options(takeOver="true"), [rows], transaction(0, NEW))


@seeds(6, quick=2)
def test_p1_who_lost_the_root_writes_nothing_behind_the_new_query(seed: int) -> None:
    dice = random.Random(f"take over {seed}")
    for due in (dice.randrange(COMMIT), *dice.sample(range(COMMIT, END), 3)):
        check(dice, due)


def check(dice: random.Random, due: int) -> None:
    """Let the new query come into a batch of the old one, behind so many of its steps."""
    root, options = MemoryStore(), routed_options()
    write(root, options, [batch(dice, TOPICS)], transaction(0, OLD))
    rows = batch(dice, dice.sample(TOPICS, 3))
    came = False

    def watch() -> None:
        nonlocal came
        if not came and sum(not name.startswith("write ") for name in steps.names) == due:
            came = True
            take(root, dice, rows)

    steps = Steps(None, watch=watch)
    with suppress(OtherTableError):
        write(FaultyStore(root, steps), options, [batch(dice, TOPICS)], transaction(1, OLD))
    taking = routed_options(takeOver="true")
    write(root, taking, [rows], transaction(0, NEW))  # A restart, if it died.
    members = GroupTable(root).at().members
    for topic in {each["topic"] for each in rows}:
        behind = transactions_of(root, topic)
        assert behind[-1] == ("query:new", 0), (due, topic, behind)
        assert behind.count(("query:new", 0)) == 1
        place, table = members[topic].place, table_below(root, topic)
        assert content(table, place.version) == content(table)
    for refused in (options, taking):
        with pytest.raises(OtherTableError, match="taken over"):
            write(root, refused, [rows], transaction(2, OLD))


@pytest.mark.parametrize("threads", [1, 4])
def test_a_batch_under_way_comes_into_few_tables_once_the_root_is_taken(threads: int) -> None:
    came = came_behind_a_claim(70, taken_at=10, threads=threads)
    assert 0 < came <= fence.ASK_EVERY + threads


def test_p1_a_batch_under_way_does_not_come_into_all_tables_once_the_root_is_taken() -> None:
    assert came_behind_a_claim(40, taken_at=3) <= fence.ASK_EVERY + 1


def came_behind_a_claim(tables: int, *, taken_at: int, threads: int = 1) -> int:
    """Return into how many tables a batch came when another query claimed the root meanwhile."""
    topics = [f"t{index:02}" for index in range(tables)]
    rows = [{"topic": topic, "id": 1, "v": 1, "w": 1} for topic in topics]
    given = {"path": "/lake/{topic}", "keys": "id", "columnList": "id,v,w"}
    options = RoutedOptions.parse({**given, "commitThreads": str(threads)})
    root = Claimed()
    write(root, options, [rows[:1]], transaction(0, OLD))
    root.due = taken_at
    with pytest.raises(OtherTableError, match="'query:new'"):
        write(root, options, [rows], transaction(1, OLD))
    had = [topic for topic in topics if ("query:old", 1) in transactions_of(root, topic)]
    newest = GroupTable(root).table.log.head()
    heads = ((topic, table_below(root, topic).log.try_head()) for topic in topics)
    told = [topic for topic, head in heads if head is not None and incomplete_batches(head, newest)]
    assert told == had, "whoever looks is told which tables have it"
    return len(had) - taken_at


class Claimed(MemoryStore):
    """Another query claims the root when so many tables have a batch."""

    due = -1

    def put_if_absent(self, path: str, data: bytes) -> bool:
        done = super().put_if_absent(path, data)
        if path.startswith("t") and "/_log/" in path:
            self.due -= 1
            if self.due == 0:
                GroupTable(self).claim("query:new")
        return done


def test_a_query_that_dies_behind_its_claim_owns_the_root() -> None:
    root, options, dice = MemoryStore(), routed_options(), random.Random(1)
    write(root, options, [batch(dice, TOPICS)], transaction(0, OLD))
    group = GroupTable(root)
    group.claim("query:new")
    with pytest.raises(OtherTableError, match="'query:new'"):
        write(root, options, [batch(dice, TOPICS)], transaction(1, OLD))
    assert group.of_batch(0).batch == group.at().batch, "readers see the batch before"
    write(root, options, [batch(dice, TOPICS)], transaction(0, NEW))


def test_who_writes_into_a_table_by_its_own_path_takes_nothing() -> None:
    root, options, dice = MemoryStore(), routed_options(), random.Random(2)
    write(root, options, [batch(dice, TOPICS)], transaction(0, OLD))
    table = table_below(root, "sum")
    other = Transaction(writer="query:other", number=0)
    table.upsert(table.snapshot(), transaction=other)
    write(root, options, [batch(dice, TOPICS)], transaction(1, OLD))
    assert transactions_of(root, "sum")[-2:] == [("query:other", 0), ("query:old", 1)]
