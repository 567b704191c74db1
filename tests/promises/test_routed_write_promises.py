"""P1 to P7 of writes into many tables."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from spark_upsert.core.path_template import Template
from spark_upsert.errors import OtherTableError
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.router import Router, Spool
from spark_upsert.routed.stage import COMPACT_TABLES_MIN
from tests.laws.test_mixed_bases import check as check_mixed_bases
from tests.support.routed_worlds import (
    ROWS,
    TOPICS,
    World,
    append,
    batch_of,
    content,
    routed_options,
    row,
    transaction,
    write,
)
from tests.support.seeds import seeds
from tests.support.stores import MemoryStore

EACH_SEED = seeds(2)


@EACH_SEED
def test_p1_every_table_has_every_batch_once_and_the_group_names_its_version(seed: int) -> None:
    World(seed).play(batches=5)


@EACH_SEED
def test_p1_rows_that_go_to_disk_come_back_in_their_order(seed: int) -> None:
    rng = random.Random(seed)
    batches = [batch_of([row(rng, rng.choice(TOPICS)) for _ in range(9)]) for _ in range(9)]
    expected = defaultdict(list)
    for batch in batches:
        for each in batch.to_pylist():
            expected[each["topic"]].append(each)
    with Spool(Router(Template.parse("/lake/{topic}"), ROWS), memory_bytes=500) as spool:
        for batch in batches:
            spool.add(batch)
        counts = spool.seal()
        for _ in range(2):
            found = {
                route.name: [each for batch in spool.rows(route) for each in batch.to_pylist()]
                for route in counts
            }
            assert found == expected
    assert {route.name: count for route, count in counts.items()} == {
        name: len(rows) for name, rows in expected.items()
    }


def test_p1_of_two_queries_on_one_root_the_second_changes_no_table() -> None:
    root, options = MemoryStore(), routed_options()
    rows = [row(random.Random(1), "sum")]
    write(root, options, [rows], transaction(0, "one"))
    before = content(table_below(root, "sum"))
    with pytest.raises(OtherTableError, match="query:one"):
        write(root, options, [rows], transaction(0, "two"))
    assert content(table_below(root, "sum")) == before
    taking = routed_options(takeOver="true")
    write(root, taking, [rows], transaction(0, "two"))
    with pytest.raises(OtherTableError, match="taken over"):
        write(root, taking, [rows], transaction(1, "one"))
    batch = GroupTable(root).at().batch
    assert batch is not None
    assert batch.writer == "query:two"


@EACH_SEED
def test_p5_each_task_is_counted_against_the_version_that_it_saw(seed: int) -> None:
    for each in range(10 * seed, 10 * seed + 10):
        check_mixed_bases(each)


def test_p1_a_table_that_the_batch_compacts_stands_in_the_group_with_its_own_rows() -> None:
    root, options, rng = MemoryStore(), routed_options(), random.Random(7)
    for number in range(8):
        write(root, options, [[row(rng, "sum"), row(rng, "last")]], transaction(number))
    members = GroupTable(root).at().members
    assert members["sum"].debt
    expected = {topic: content(table_below(root, topic)) for topic in ("sum", "last")}
    append(table_below(root, "sum"), options, "sum", batch_of([row(rng, "sum")]))
    write(root, options, [[]], transaction(8))
    for topic, before in members.items():
        member = GroupTable(root).at().members[topic]
        assert (member.batch, member.debt) == (7, 0)
        table = table_below(root, topic)
        assert content(table, member.place.version) == expected[topic]
        assert table.log.head().run_count < 4
        assert (member.place.version > before.place.version) == (topic == "last")


@pytest.mark.slow
def test_p7_tables_that_are_due_at_once_are_compacted_in_several_batches() -> None:
    root, options, rng = MemoryStore(), routed_options(sequenceBy="at"), random.Random(7)
    topics = [f"t{number:02}" for number in range(2 * COMPACT_TABLES_MIN)]
    for number in range(9):
        write(root, options, [[row(rng, topic) for topic in topics]], transaction(number))
        if any(member.debt for member in GroupTable(root).at().members.values()):
            break
    left = []
    for after in range(1, 4):
        write(root, options, [[]], transaction(number + after))
        members = GroupTable(root).at().members.values()
        left.append(sum(member.debt > 0 for member in members))
    assert left == [COMPACT_TABLES_MIN, 0, 0]


@pytest.mark.slow
def test_p7_tables_with_a_higher_priority_are_compacted_first_and_the_others_too() -> None:
    urgent = {"table.t2*.priority": "900", "table.t30.priority": "-500"}
    root, rng = MemoryStore(), random.Random(7)
    options = routed_options(sequenceBy="at", **urgent)
    topics = [f"t{number:02}" for number in range(2 * COMPACT_TABLES_MIN)]
    for number in range(9):
        write(root, options, [[row(rng, topic) for topic in topics]], transaction(number))
        due = {topic for topic, each in GroupTable(root).at().members.items() if each.debt}
        if due:
            break
    assert due == set(topics), "all are due at once"
    first, again = (plan_routed(options, ROWS, root=root).compaction_folders for _ in range(2))
    assert first == again
    write(root, options, [[]], transaction(number + 1))
    members = GroupTable(root).at().members
    done = {topic for topic, each in members.items() if not each.debt}
    assert len(done) == COMPACT_TABLES_MIN
    assert {topic for topic in done if topic.startswith("t2")} == {
        topic for topic in topics if topic.startswith("t2")
    }
    assert "t30" in done, "a low priority has its share, too"
    assert len(done - {"t30"}) == COMPACT_TABLES_MIN - 1
