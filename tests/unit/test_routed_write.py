"""What a routed write refuses, without Spark; and what it leaves of the tables then."""

from __future__ import annotations

import logging
import random
from collections.abc import Hashable
from typing import Any

import pytest

from spark_upsert.errors import OptionError, OtherTableError
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from tests.support.routed_worlds import (
    ROWS,
    Row,
    append,
    batch_of,
    content,
    routed_options,
    row,
    transaction,
    write,
)
from tests.support.stores import FaultyStore, MemoryStore, Steps


class Folding(PrefixStore):
    """A store to which names are one that differ in case alone."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "root")

    @property
    def cache_key(self) -> Hashable | None:
        return None

    def _path(self, path: str) -> str:
        return super()._path(path.lower())


def rows_of(*topics: str, seed: int = 0) -> list[Row]:
    """Return two rows of each topic."""
    rng = random.Random(seed)
    return [row(rng, topic) for topic in topics for _ in range(2)]


def paths_of(store: MemoryStore) -> set[str]:
    """Return what lies in a store."""
    return set(store.objects)


def test_a_batch_whose_earlier_ones_are_missing_changes_no_table() -> None:
    root, options = MemoryStore(), routed_options()
    with pytest.raises(OtherTableError, match="must hold all batches before it"):
        write(root, options, [rows_of("sum")], transaction(1))
    assert table_below(root, "sum").log.try_head() is None
    write(root, options, [rows_of("sum")], transaction(0))
    before = content(table_below(root, "sum"))
    with pytest.raises(OtherTableError, match="must hold all batches before it"):
        write(root, options, [rows_of("sum")], transaction(2))
    assert content(table_below(root, "sum")) == before


def test_a_batch_without_rows_is_whole_too() -> None:
    root, options = MemoryStore(), routed_options()
    assert write(root, options, [[], []], transaction(0)) is not None
    assert write(root, options, [], transaction(1)) is not None
    batch = GroupTable(root).at().batch
    assert batch is not None
    assert (batch.number, batch.rows, batch.tasks) == (1, 0, 0)


@pytest.mark.parametrize("whole", [True, False], ids=["one batch later", "in one batch"])
def test_names_that_are_one_to_the_storage_are_an_error_that_names_both(whole: bool) -> None:
    root, options = Folding(), routed_options()
    rows = rows_of("Sum", "sum")
    if whole:
        write(root, options, [rows[:2]], transaction(0))
        with pytest.raises(OtherTableError, match=r"'sum'.*'Sum'"):
            write(root, options, [rows], transaction(1))
        assert GroupTable(root).at().members.keys() == {"Sum"}
        return
    for _ in range(2):
        with pytest.raises(OtherTableError, match=r"'Sum' and of 'sum'"):
            write(root, options, [rows], transaction(0))
    assert not GroupTable(root).has(transaction(0))


def removed(root: MemoryStore) -> None:
    """Remove a table."""
    for path in [path for path in root.objects if path.startswith("sum/")]:
        root.delete(path)


def replaced(root: MemoryStore) -> None:
    """Put another table in the place of one."""
    removed(root)
    append(table_below(root, "sum"), routed_options(), "sum", batch_of(rows_of("sum")))


@pytest.mark.parametrize("meddle", [removed, replaced])
def test_a_table_that_is_not_the_one_of_the_group_stops_the_batch(meddle: object) -> None:
    root, options = MemoryStore(), routed_options()
    write(root, options, [rows_of("sum", "last")], transaction(0))
    before = content(table_below(root, "last"))
    assert callable(meddle)
    meddle(root)
    with pytest.raises(OtherTableError, match="the group's table 'sum'") as told:
        write(root, options, [rows_of("sum", "last", seed=1)], transaction(1))
    assert told.value.fields["table"] == "sum"
    assert content(table_below(root, "last")) == before


def test_a_table_that_somebody_removes_between_tasks_and_commit_stops_the_batch() -> None:
    root, options = MemoryStore(), routed_options()
    write(root, options, [rows_of("sum")], transaction(0))
    with pytest.raises(OtherTableError, match="the group's table 'sum'"):
        write(root, options, [rows_of("sum")], transaction(1), between=lambda: removed(root))


def test_an_overwrite_replaces_the_tables_that_have_rows_and_no_others() -> None:
    root, options = MemoryStore(), routed_options()
    write(root, options, [rows_of("sum", "last")], None)
    before = content(table_below(root, "last"))
    [new] = rows_of("sum", seed=9)[:1]
    write(root, options, [[new]], None, overwrite=True)
    assert [each["id"] for each in content(table_below(root, "sum"))] == [new["id"]]
    assert content(table_below(root, "last")) == before


def test_of_a_task_that_fails_at_its_second_table_nothing_is_left() -> None:
    root, options = MemoryStore(), routed_options()
    write(root, options, [rows_of("last", "sum")], transaction(0))
    held = paths_of(root)
    plan = plan_routed(options, ROWS, root=root)
    bad: list[Row] = [{**each, "id": None} for each in rows_of("sum")]
    with pytest.raises(Exception, match="table 'sum'"):
        stage_routed(plan, root, [batch_of([*rows_of("last"), *bad])], transaction(1), 0, threads=1)
    assert paths_of(root) == held


def test_tables_side_by_side_are_as_one_after_the_other() -> None:
    topics = [f"t{number}" for number in range(12)]
    found = []
    for threads in (1, 8):
        options = routed_options(sequenceBy="at", commitThreads=str(threads))
        root = MemoryStore()
        for number in range(3):
            plan, batch = plan_routed(options, ROWS, root=root), transaction(number)
            shares = [batch_of(rows_of(*topics, seed=2 * number + task)) for task in range(2)]
            staged = [
                stage_routed(plan, root, [share], batch, task, threads=threads)
                for task, share in enumerate(shares)
            ]
            commit_routed(root, options, staged, batch)
        members = GroupTable(root).at().members
        assert members.keys() == set(topics)
        tables = {topic: content(table_below(root, topic)) for topic in topics}
        found.append((tables, {topic: members[topic].rows for topic in topics}))
    assert found[0] == found[1]


def test_a_batch_that_is_whole_is_not_looked_at_table_by_table() -> None:
    store: Store = MemoryStore()
    options, rows = routed_options(), rows_of("last", "sum", "part")
    write(store, options, [rows], transaction(0))
    steps = Steps()
    assert write(FaultyStore(store, steps), options, [rows], transaction(0)) is None
    touched = {name.split()[1].partition("/")[0] for name in steps.names}
    assert touched <= {"_group", "_parked"}


ROW = {"id": 1, "at": 1, "v": 1, "w": 1, "gone": False}


def test_without_new_tables_rows_go_to_those_that_were_made_before() -> None:
    root, options = MemoryStore(), routed_options(createTables="false")
    made = MemoryStore()
    write(made, routed_options(), [[{**ROW, "topic": "made"}]], transaction(0))
    schema = table_below(made, "made").log.head().schema
    table_below(root, "made").ensure(schema)

    with pytest.raises(OptionError) as caught:
        write(root, options, [[{**ROW, "topic": "made"}, {**ROW, "topic": "new"}]], transaction(0))
    assert "rows for the table 'new', which is not there" in caught.value.message
    assert table_below(root, "made").log.head().version == 0

    write(root, options, [[{**ROW, "topic": "made"}]], transaction(0))
    assert list(GroupTable(root).at().members) == ["made"]
    assert table_below(root, "made").snapshot().num_rows == 1


def test_one_table_more_than_may_be_is_named() -> None:
    root, options = MemoryStore(), routed_options(tablesMax="2")
    write(root, options, [[{**ROW, "topic": "a"}], [{**ROW, "topic": "b"}]], transaction(0))
    with pytest.raises(OptionError, match=r"with the table 'c' there would be 3 tables"):
        write(root, options, [[{**ROW, "topic": "c"}]], transaction(1))
    # What two tasks see apart is too much together, too.
    both = [[{**ROW, "topic": "c"}], [{**ROW, "topic": "d"}]]
    with pytest.raises(OptionError, match=r"'c' and 1 more there would be 4 tables"):
        write(root, routed_options(tablesMax="3"), both, transaction(1))
    many = [{**ROW, "topic": f"t{index}"} for index in range(9)]
    with pytest.raises(OptionError) as caught:
        write(root, options, [many], transaction(1))
    assert "tables_max=11" in caught.value.hint, "what is advised suffices"
    assert table_below(root, "c").log.try_head() is None


def row_of(topic: str, at: int = 0) -> dict[str, Any]:
    return {"topic": topic, "id": 1, "at": at, "v": 1, "w": 1, "gone": False}


def test_a_pattern_of_no_table_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="spark_upsert")
    given = {"table.late.mergeSchema": "true", "table.typo.*.ties": "last"}
    root, options = MemoryStore(), routed_options(**given)
    unmatched = []
    for number, topic in enumerate(["early", "early", "late", "early"]):
        write(root, options, [[row_of(topic, number)]], transaction(number))
        batch = GroupTable(root).at().batch
        assert batch is not None
        unmatched.append(set(batch.unmatched) & {"late", "typo.*"})
    assert unmatched == [{"late", "typo.*"}, {"late", "typo.*"}, {"typo.*"}, {"typo.*"}]
    for pattern in ("late", "typo.*"):
        text = f"options 'table.{pattern}.*' match no table below '{root.url}'"
        assert [line for line in caplog.messages if f"'table.{pattern}." in line] == [text]


def test_a_pattern_that_is_nearly_a_table_is_told_with_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="spark_upsert")
    options = routed_options(**{"table.order.ties": "last", "table.xyz.ties": "last"})
    write(MemoryStore(), options, [[row_of("orders")]], transaction(0))
    near, none = (
        next(line for line in caplog.messages if f"'table.{pattern}.*'" in line)
        for pattern in ("order", "xyz")
    )
    assert near.endswith("; did you mean 'table.orders.*'?")
    assert ";" not in none
