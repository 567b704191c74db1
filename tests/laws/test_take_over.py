"""A query that still runs when another takes the root: it writes nothing behind that one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from spark_upsert.errors import ContentionError, OtherTableError
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import table_below
from spark_upsert.state.log.manifest import Transaction
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
    table.append(table.snapshot(), transaction=other)
    write(root, options, [batch(dice, TOPICS)], transaction(1, OLD))
    assert transactions_of(root, "sum")[-2:] == [("query:other", 0), ("query:old", 1)]
