"""A restore is an epoch that turns the present table into an old one, and rewrites nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import DataLossError, UpsertFlowError
from spark_upsert.metadata import summary
from spark_upsert.table.changelog.render import Deduplication
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log.manifest import Draft, Kind, Transaction
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.model import Command, Model, fold
from tests.support.seeds import seeds
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import (
    append,
    changes_of,
    make_table,
    plan_epoch,
    rows_at,
    rows_of,
    schema_of,
    tally_of,
)

KEYS = 6


def drawn(dice: random.Random, count: int) -> list[Command]:
    """Return some commands, a third of them deletes."""
    return [
        Command(
            dice.randrange(KEYS),
            None if dice.random() < 0.3 else dice.randrange(100),
            dice.randrange(40),
        )
        for _ in range(count)
    ]


class Lived:
    """A table and a model that live through the same epochs; the model remembers its versions."""

    def __init__(self, scope: Scope, seed: int, **properties: str) -> None:
        self.dice = random.Random(seed)
        self.table = make_table(MemoryStore(), schema_of(scope), properties=properties)
        self.model = Model(scope)
        self.entries: dict[int, dict[Any, Command]] = {0: {}}

    def step(self) -> None:
        """Append, overwrite or compact."""
        chance = self.dice.random()
        if chance < 0.2:
            self.table.compact(full=self.dice.random() < 0.5)
        else:
            overwrite = chance > 0.93
            commands = drawn(self.dice, self.dice.randrange(1, 5))
            commit = append(self.table, commands, overwrite=overwrite)
            assert commit is not None
            self.model.version = commit.version - 1
            _, tally = self.model.append(commands, overwrite=overwrite)
            assert tally_of(commit) == tally
        self.remember()

    def restore(self, version: int) -> None:
        """Go back, in the table and in the model."""
        before = self.version
        self.table.restore(version)
        self.model.entries = copy.copy(self.entries[version])
        self.remember()
        assert rows_at(self.table) == self.model.rows() == rows_at(self.table, version)
        for show in (Deduplication.NONE, Deduplication.DROP_CARRYOVERS, Deduplication.NET_CHANGES):
            changes = changes_of(self.table, before + 1, show=show)
            assert fold(changes, rows_at(self.table, before)) == self.model.rows()

    def remember(self) -> None:
        """Note what the newest versions hold."""
        for version in range(max(self.entries) + 1, self.version + 1):
            self.entries[version] = copy.copy(self.model.entries)

    @property
    def version(self) -> int:
        return self.table.log.head().version


@seeds(12)
@pytest.mark.parametrize("scope", Scope)
@pytest.mark.sweep(1)
def test_a_restored_table_lives_on_as_if_nothing_had_come_since(scope: Scope, seed: int) -> None:
    # Ties are avoided: which of them wins is not what is tested here.
    lived = Lived(scope, seed, tombstoneRetention="forever")
    lived.dice.randrange(2)
    for _ in range(4):
        for _ in range(lived.dice.randrange(1, 7)):
            lived.step()
        lived.restore(lived.dice.randrange(lived.version + 1))
    for _ in range(4):
        lived.step()
        assert rows_at(lived.table) == lived.model.rows()
    for version, entries in lived.entries.items():
        expected = {key: e.value for key, e in entries.items() if e.value is not None}
        assert rows_at(lived.table, version) == expected
    assert fold(changes_of(lived.table)) == lived.model.rows()
    assert lived.table.check().findings == ()


ENGINES = {
    Engine.PARTIAL_UPDATE: MergeEngine(kind=Engine.PARTIAL_UPDATE),
    Engine.AGGREGATION: MergeEngine(kind=Engine.AGGREGATION, rules={"v": Rule.SUM}),
    Engine.FIRST_ROW: MergeEngine(kind=Engine.FIRST_ROW),
}


@pytest.mark.parametrize("engine", ENGINES)
@seeds(6)
@pytest.mark.sweep(1)
def test_a_restored_table_equals_a_twin_that_made_no_mistake(engine: Engine, seed: int) -> None:
    dice = random.Random(seed)
    columns = pa.schema({"k": pa.int64(), "v": pa.int64()})
    schema = TableSchema.of(
        columns,
        keys=["k"],
        order=[pa.field("seq", pa.int64())],
        scope=Scope.TABLE,
        engine=ENGINES[engine],
        hash_seed=7,
    )
    table, twin = make_table(MemoryStore(), schema), make_table(MemoryStore(), schema)

    def write(*tables: Table) -> None:
        commands = drawn(dice, 4)
        if not ENGINES[engine].takes_deletes:
            commands = [replace(each, value=each.value or 0) for each in commands]
        rows = rows_of(schema, commands)
        for each in tables:
            if ENGINES[engine].takes_deletes:
                each.upsert(rows, deletes="gone")
            else:
                each.upsert(rows.drop_columns("gone"))

    def both() -> None:
        write(table, twin)
        if dice.random() < 0.3:
            table.compact(full=True)

    for _ in range(4):
        both()
    good = table.log.head().version
    for _ in range(3):
        write(table)
        table.compact()
    mistaken = rows_at(table)
    commit = table.restore(good)
    assert commit is not None
    assert rows_at(table) == rows_at(twin)
    assert fold(changes_of(table, commit.version), mistaken) == rows_at(twin)
    for _ in range(4):
        both()
        assert rows_at(table) == rows_at(twin)
        assert table.log.head().live_rows == twin.log.head().live_rows
    assert fold(changes_of(table)) == rows_at(twin)
    assert table.check().is_sound


# -- what it costs and says --------------------------------------------------------------


@pytest.fixture
def table() -> Table:
    """Return a table of three epochs."""
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    append(table, [Command(1, 10, 1), Command(2, 20, 1)])
    append(table, [Command(1, None, 2), Command(3, 30, 2)])
    append(table, [Command(2, 21, 3)])
    return table


def test_nothing_is_written_but_a_version(table: Table) -> None:
    store = table.store
    assert isinstance(store, MemoryStore)
    before = set(store.objects)
    table.restore(1)
    (new,) = set(store.objects) - before
    assert new.startswith("_log/")


def test_it_is_an_overwrite_that_accounts_for_its_rows(table: Table) -> None:
    commit = table.restore(1)
    assert commit is not None
    assert (commit.kind, commit.restored) == (Kind.OVERWRITE, 1)
    counters = commit.counters
    assert (counters["rows"], counters["retracted"], counters["restored"]) == (0, 2, 2)
    assert commit.live_rows == 2
    assert table.check().is_sound


def test_what_it_takes_over_counts_as_written_once(table: Table) -> None:
    before = summary(table)
    table.restore(1)
    assert summary(table).bytes_appended == before.bytes_appended


def test_the_present_is_restored_without_a_version(table: Table) -> None:
    assert table.restore(3) is None
    table.restore(1)
    assert table.restore(1) is None
    assert table.restore(4) is None


def test_a_restore_can_be_undone(table: Table) -> None:
    rows = rows_at(table)
    table.restore(1)
    table.restore(3)
    assert rows_at(table) == rows


def test_the_first_version_can_be_restored(table: Table) -> None:
    table.restore(0)
    assert rows_at(table) == {}
    append(table, [Command(1, 11, 1)])
    assert rows_at(table) == {1: 11}


@pytest.mark.parametrize("version", [4, -1])
def test_a_missing_version_is_refused(version: int, table: Table) -> None:
    with pytest.raises(UpsertFlowError, match=f"{version}"):
        table.restore(version)


def test_transactions_are_not_rolled_back(table: Table) -> None:
    for number in (1, 2):
        append(
            table, [Command(number, number, 9)], transaction=Transaction(writer="w", number=number)
        )
    table.restore(3)
    again = append(table, [Command(2, 2, 9)], transaction=Transaction(writer="w", number=2))
    assert again is None
    nxt = append(table, [Command(5, 5, 9)], transaction=Transaction(writer="w", number=3))
    assert nxt is not None
    assert rows_at(table) == {2: 21, 3: 30, 5: 5}


# -- beside others -----------------------------------------------------------------------


def test_an_epoch_that_was_staged_before_is_judged_against_the_restored_table(
    table: Table,
) -> None:
    staged = plan_epoch(table, [[[Command(2, 99, 2), Command(3, None, 5), Command(1, 12, 0)]]])
    table.restore(1)
    commit = table.commit(staged)
    assert commit is not None
    # Key 2 was stale and is newer now, 3 is not there, 1 is older than what came back.
    assert rows_at(table) == {1: 10, 2: 99}
    assert (commit.counters["updates"], commit.counters["absent"]) == (1, 1)
    assert table.check().is_sound


def test_a_merge_that_was_planned_before_is_dropped(table: Table) -> None:
    (job,) = table.compaction_jobs(full=True)
    merged = compact_runs(table.store, table.log.head(), job)
    table.restore(1)
    table.restore(3)
    assert table.commit_compactions([merged]) == 0
    assert rows_at(table) == {2: 21, 3: 30}


def test_deletes_that_were_forgotten_since_are_remembered_again() -> None:
    store = MemoryStore()
    properties = {"tombstoneRetention": "1 epochs"}
    table = make_table(store, schema_of(Scope.TABLE), properties=properties)
    append(table, [Command(1, 10, 1)])
    append(table, [Command(1, None, 50)])
    for order in range(60, 64):
        append(table, [Command(2, order, order)])
    table.compact(full=True)
    assert table.log.head().low_water is not None
    table.restore(2)
    assert table.log.head().low_water is None
    # Late for the delete that is back, and not late for any that was forgotten.
    append(table, [Command(1, 11, 49), Command(4, 40, 3)])
    assert rows_at(table) == {4: 40}


def test_deletes_that_were_forgotten_before_stay_forgotten() -> None:
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "1 epochs"}
    )
    append(table, [Command(1, 10, 1)])
    append(table, [Command(1, None, 50)])
    for order in range(60, 64):
        append(table, [Command(2, order, order)])
    table.compact(full=True)
    mark, version = table.log.head().low_water, table.log.head().version
    append(table, [Command(3, 30, 70)], overwrite=True)
    assert table.log.head().low_water is None
    staged = plan_epoch(table, [[[Command(1, 11, 49)]]])
    table.restore(version)
    assert table.log.head().low_water == mark
    commit = table.commit(staged)
    assert commit is not None
    assert commit.counters["rejected"] == 1
    assert rows_at(table) == {2: 63}


def test_what_was_restored_survives_the_expiry_of_its_version() -> None:
    now = Now()
    store = ClockedStore(now)
    table = Table(store, clock=now)
    table.log.create(Draft(kind=Kind.CREATE, schema=schema_of(Scope.EPOCH)))

    def day(act: Callable[[], Any]) -> None:
        now.advance(86_400)
        act()

    for value in range(4):
        now.advance(86_400)
        append(table, [Command(value, value, value)])
    day(lambda: append(table, [Command(9, 9, 9)], overwrite=True))
    day(lambda: table.restore(3))
    day(lambda: table.expire(retain_versions=0))
    day(lambda: table.vacuum(grace_ms=0))
    forget_runs_and_logs()
    assert table.log.head().since >= 6
    assert rows_at(table) == {0: 0, 1: 1, 2: 2}
    assert table.check().is_sound
    with pytest.raises(DataLossError):
        table.restore(3)
