"""P1 to P7, each by name, each on seeded random work that is small enough to read.

These tests are plain functions of a seed, so that `tests.test_tests_can_fail` can run them
on an engine with a planted bug and see them fail.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.core.schema import Scope
from spark_upsert.errors import (
    CorruptionError,
    DataError,
    OptionError,
    OtherTableError,
    VersionNotFoundError,
)
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.compaction import CompactionResult, choose, compact_runs
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.log.snapshot import (
    manifest_at,
    resolve_ending_version,
    resolve_starting_version,
)
from spark_upsert.table.run.file import RUNS
from spark_upsert.table.table import Table
from spark_upsert.table.write import stage as stash_module
from spark_upsert.table.write.stage import Stash
from tests.promises.layouts import OF_SEEDS, ON_BOTH_LAYOUTS
from tests.support.histories import WrittenEpoch
from tests.support.model import Change, Command, Model, fold, visible
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
)
from tests.support.tables import (
    append,
    apply_epoch,
    batch_of,
    by_epoch,
    changes_of,
    hashes_of_few_values,
    make_table,
    plan_epoch,
    rows_at,
    schema_of,
    tally_of,
)
from tests.support.workload import OPERATIONS, observe
from tests.unit.test_identity import made

T = TypeVar("T")
EACH_OPERATION = pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, id=each.name, marks=() if each.is_quick else pytest.mark.slow)
        for index, each in enumerate(OPERATIONS)
    ],
)
SCOPES = (Scope.TABLE, Scope.EPOCH, Scope.ARRIVAL)


def commands_of(dice: random.Random, count: int, *, keys: int = 6) -> list[Command]:
    return [
        Command(dice.randrange(keys), dice.choice([None, 0, 1, 2, 3]), dice.randrange(12))
        for _ in range(count)
    ]


def tasks_of(dice: random.Random) -> list[list[list[Command]]]:
    return [
        [commands_of(dice, dice.randrange(5)) for _ in range(dice.randrange(3))]
        for _ in range(dice.randrange(1, 4))
    ]


@contextmanager
def few_hashes(dice: random.Random) -> Iterator[None]:
    with hashes_of_few_values(dice.choice([None, None, 2, 3])):
        yield


@contextmanager
def many_checkpoints() -> Iterator[None]:
    with patch.object(storage, "CHECKPOINT_EVERY", 4):
        yield


def merge_neighbours(table: Table) -> None:
    head = table.log.head()
    for job in choose(head, fanout=2)[:1]:
        table.commit_compactions([compact_runs(table.store, head, job)])


def merge_due(table: Table) -> list[CompactionResult]:
    head = table.log.head()
    return [compact_runs(table.store, head, job) for job in table.compaction_jobs()]


# -- P1: every reported command is in the table and in the changelog exactly once ---------


@OF_SEEDS
def test_p1_reported_commands_are_there_exactly_once(seed: int) -> None:
    """Two queries write over a storage that fails; each retries until it has an answer."""
    dice = random.Random(seed)
    scope = SCOPES[seed % 3]
    store = MemoryStore()
    make_table(store, schema_of(scope))
    batches = {
        Transaction(writer=f"query{q}", number=n): commands_of(dice, 4)
        for q in range(2)
        for n in range(5)
    }
    delivered: list[Transaction] = []
    with few_hashes(dice):
        for transaction in sorted(batches, key=lambda t: (t.number, dice.random())):
            deliver(store, transaction, batches[transaction], dice)
            delivered.append(transaction)
            for earlier in dice.sample(delivered, min(len(delivered), 2)):  # As after a restart.
                deliver(store, earlier, batches[earlier], dice)
        log = Log(store)
        commits = log.commits(1, log.head().upper)
        done = [transaction for commit in commits for transaction in commit.transactions]
        assert sorted(map(repr, done)) == sorted(map(repr, batches))
        model = Model(scope)
        changes = [c for transaction in done for c in model.append(batches[transaction])[0]]
        table = make_table(store, schema_of(scope))
        assert rows_at(table) == model.rows()
        assert by_epoch(changes_of(table)) == by_epoch(changes)


def deliver(
    store: MemoryStore, transaction: Transaction, commands: Sequence[Command], dice: random.Random
) -> None:
    """Append a batch, over faults, until the table says that it has it."""
    for _ in range(20):
        fault = Fault(
            dice.randrange(60), dice.choice(list(Moment)), dice.choice([BrokenError, KilledError])
        )
        table = make_table(store, schema_of(Scope.TABLE))
        table = Table(FaultyStore(store, Steps(fault)), clock=table.log._clock)
        try:
            append(table, commands, transaction=transaction)
        except (BrokenError, KilledError):
            continue
        return
    append(make_table(store, schema_of(Scope.TABLE)), commands, transaction=transaction)


@OF_SEEDS
def test_p1_an_error_behind_the_commit_does_not_commit_twice(seed: int) -> None:
    """Without a transaction nothing but the token tells whose a version is."""
    store, dice = MemoryStore(), random.Random(seed)
    table = make_table(store, schema_of(Scope.ARRIVAL))
    commands = commands_of(dice, 4)
    append(table, commands)
    probe = Steps()
    copied = MemoryStore()
    copied.objects = dict(store.objects)
    append(Table(FaultyStore(copied, probe)), commands)
    step = next(i for i, name in enumerate(probe.names) if name.startswith("put_if_absent"))
    append(Table(FaultyStore(store, Steps(Fault(step, Moment.AFTER, BrokenError)))), commands)
    assert Log(store).head().version == 2


@OF_SEEDS
def test_p1_writers_that_race_all_get_in(seed: int) -> None:
    dice = random.Random(seed)
    store = MemoryStore()
    table = make_table(store, schema_of(Scope.TABLE))
    model = Model(Scope.TABLE)
    with few_hashes(dice):
        for _ in range(4):
            writers = [make_table(store, schema_of(Scope.TABLE)) for _ in range(3)]
            planned = []
            for writer in writers:
                commands = commands_of(dice, 4)
                planned.append((writer, plan_epoch(writer, [[commands]]), commands))
            dice.shuffle(planned)
            for writer, epoch, commands in planned:
                assert writer.commit(epoch) is not None
                model.append(commands)
        assert rows_at(table) == model.rows()
    assert table.log.head().version == 12


@OF_SEEDS
def test_p1_what_does_not_fit_in_memory_is_not_lost(seed: int) -> None:
    dice = random.Random(seed)
    scope = SCOPES[seed % 3]
    table, model = make_table(MemoryStore(), schema_of(scope)), Model(scope)
    small = {"compact_bytes": 300, "spill_bytes": 600}
    defaults = {**(Stash.__init__.__kwdefaults__ or {}), **small}
    with patch.object(stash_module.Stash.__init__, "__kwdefaults__", defaults):
        for _ in range(3):
            batches = [commands_of(dice, 8, keys=30) for _ in range(8)]
            apply_epoch(table, [batches])
            model.append([command for batch in batches for command in batch])
            assert rows_at(table) == model.rows()


@OF_SEEDS
def test_p1_a_source_that_retries_after_an_error_loses_nothing(seed: int) -> None:
    """Any call of an operator may fail once, at any step; what failed is called again."""
    dice = random.Random(seed)
    sent = [commands_of(dice, 2) for _ in range(2)]
    model = Model(Scope.EPOCH)
    for commands in sent:
        model.append(commands)
    for moment in Moment:
        for step in itertools.count():
            steps = Steps(Fault(step, moment, BrokenError))
            table = operate(sent, steps)
            assert rows_at(table) == model.rows(), f"{steps.names[-1]} failed {moment.value}"
            if not steps.struck:
                break


def operate(sent: Sequence[Sequence[Command]], steps: Steps) -> Table:
    """Send commands, one timestamp after the other, through an operator on a failing store."""
    schema = schema_of(Scope.EPOCH)
    table = make_table(MemoryStore(), schema)
    failing = Table(FaultyStore(table.store, steps))
    loop = twice(lambda: FeedbackUpsert(failing, "source", lambda batch: batch))
    for ts, commands in enumerate(sent):
        twice(partial(loop.ingest, batch_of(schema, commands), ts))
    loop.advance(len(sent))
    for _ in range(2 * len(sent)):
        twice(loop.step)
    return table


def twice(act: Callable[[], T]) -> T:
    """Repeat what fails."""
    try:
        return act()
    except BrokenError:
        return act()


@ON_BOTH_LAYOUTS
def test_p1_what_several_writers_put_into_one_version_is_there_once() -> None:
    """Each of them comes again by itself, over a checkpoint, with rows that nobody wants."""
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    with many_checkpoints():
        for number in range(5):
            writers = tuple(Transaction(writer=f"w{w}", number=number) for w in range(3))
            planned = plan_epoch(table, [[[Command(w, number, number)]] for w in range(3)])
            assert table.commit(replace(planned, transactions=writers)) is not None
            for writer in writers:
                again = Table(table.store)
                assert append(again, [Command(9, 9, 9)], transaction=writer) is None
    assert rows_at(table) == dict.fromkeys(range(3), 4)
    assert table.log.head().version == 5


@ON_BOTH_LAYOUTS
def test_p1_a_query_goes_on_only_behind_its_earlier_batches() -> None:
    """Its table was restored from before its last batch, for example."""
    table = made(MemoryStore())
    for number in (0, 2):
        transaction = Transaction(writer="q", number=number, is_consecutive=True)
        if number:
            with pytest.raises(OtherTableError, match="those up to 0"):
                append(table, [Command(7, 7, 7)], transaction=transaction)
        else:
            append(table, [Command(7, 7, 7)], transaction=transaction)


# -- P2: folding the changelog gives the snapshot, row for row, for every epoch ------------


@OF_SEEDS
def test_p2_folding_the_changelog_gives_every_snapshot(seed: int) -> None:
    dice = random.Random(seed)
    scope = SCOPES[seed % 3]
    table, model = make_table(MemoryStore(), schema_of(scope)), Model(scope)
    snapshots = [model.rows()]
    changes: list[Change] = []
    with few_hashes(dice), many_checkpoints():
        for _ in range(14):
            if dice.random() < 0.25:
                if dice.random() < 0.5:
                    merge_neighbours(table)
                else:
                    table.compact(full=True)
                while len(snapshots) <= table.log.head().version:
                    snapshots.append(snapshots[-1])
                    model.version += 1
                continue
            step = WrittenEpoch(tasks_of(dice), overwrite=dice.random() < 0.15)
            apply_epoch(table, step.tasks, overwrite=step.overwrite)
            changes += model.append(step.commands, overwrite=step.overwrite)[0]
            snapshots.append(model.rows())
        fresh = Table(table.store)
        assert [rows_at(fresh, version) for version in range(len(snapshots))] == snapshots
        assert by_epoch(changes_of(fresh)) == by_epoch(changes)
        spared = changes_of(fresh, show=Deduplication.DROP_CARRYOVERS)
        assert by_epoch(spared) == by_epoch(visible(changes))
        lower = dice.randrange(len(snapshots))
        upper = dice.randrange(lower, len(snapshots))
        for show in Deduplication:
            found = changes_of(fresh, lower + 1, upper + 1, show=show)
            assert fold(found, snapshots[lower]) == snapshots[upper]


@OF_SEEDS
def test_p2_however_the_hashes_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    table, model = make_table(MemoryStore(), schema_of(Scope.TABLE)), Model(Scope.TABLE)
    changes = []
    with few_hashes(dice):
        for _ in range(4):
            commands = commands_of(dice, 12, keys=20)
            apply_epoch(table, [[commands]])
            changes += model.append(commands)[0]
        bounds = sorted({0, HASH_END, *(dice.randrange(HASH_END) for _ in range(6))})
        bounds = sorted({*bounds, *(int(h) for h in stored_hashes(table))})
        cuts = list(itertools.starmap(HashRange, itertools.pairwise(bounds)))
        rows = [
            (row["k"], row["v"])
            for cut in cuts
            for batch in table.at().read(hash_range=cut)
            for row in batch.to_pylist()
        ]
        assert sorted(rows) == sorted(model.rows().items())
        found = [change for cut in cuts for change in changes_of(table, hash_range=cut)]
        assert by_epoch(found) == by_epoch(changes)


def stored_hashes(table: Table) -> list[int]:
    return [
        int(hash)
        for part in table.log.head().slices
        for hash in RUNS.open(table.store, part.file).hashes
    ]


@ON_BOTH_LAYOUTS
def test_p2_late_rows_that_are_applied_stand_in_the_changelog() -> None:
    """Read in one stretch with epochs whose deletes are forgotten since."""
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "0 epochs"}
    )
    append(table, [Command(1, 1, 1), Command(2, 2, 1)])
    append(table, [Command(1, None, 5)])
    table.compact(full=True)
    late = append(table, [Command(1, 3, 3), Command(3, 3, 9)], late_rows=LateRows.APPLY)
    assert late is not None
    assert late.counters["late"] == 1
    for lower in range(1, table.log.head().upper):
        assert fold(changes_of(table, lower), rows_at(table, lower - 1)) == {1: 3, 2: 2, 3: 3}


def test_p2_rows_written_before_a_column_was_added_have_null_in_it() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.ARRIVAL))
    append(table, [Command(1, 10)])
    columns = pa.schema({"k": pa.int64(), "v": pa.int64(), "note": pa.string()})
    table.alter(table.log.head().schema.accept(columns, merge=True))
    table.upsert(pa.table({"k": [1, 2], "v": [11, 20], "note": ["a", "b"]}))
    changes = table.changes().select(["k", "v", "note", "_change_type"]).to_pylist()
    assert [tuple(change.values()) for change in changes[:2]] == [
        (1, 10, None, "insert"),
        (1, 10, None, "update_preimage"),
    ] or changes[0]["note"] is None
    rows = table.snapshot().sort_by("k").to_pylist()
    assert rows == [{"k": 1, "v": 11, "note": "a"}, {"k": 2, "v": 20, "note": "b"}]


def test_p2_a_read_of_a_version_that_does_not_exist_shows_no_other_one() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.ARRIVAL))
    append(table, [Command(1, 1)])
    head = table.log.head()
    for time_ms in (head.timestamp_ms + 2**40, table.log.commit(0).timestamp_ms - 1):
        with pytest.raises(VersionNotFoundError):
            manifest_at(table.log, time_ms=time_ms)
    for bound in (resolve_starting_version, resolve_ending_version):
        with pytest.raises(VersionNotFoundError):
            bound(table.log, version=head.version + 2)
        with pytest.raises(VersionNotFoundError):
            bound(table.log, time_ms=head.timestamp_ms + 2**40)
    with pytest.raises(OptionError):
        table.changes(2, 1)


# -- P3: an epoch is visible whole or not at all ------------------------------------------


@EACH_OPERATION
def test_p3_a_reader_sees_an_epoch_whole_or_not_at_all(index: int) -> None:
    store = MemoryStore()
    for operation in OPERATIONS[:index]:
        operation.act(store)
    old, seen = observe(store), []
    steps = Steps(watch=lambda: seen.append(observe(store, lower=10**6)))
    OPERATIONS[index].act(FaultyStore(store, steps))
    new = observe(store)
    assert all(each in (old, new) for each in seen)
    assert sorted(seen, key=lambda each: each == new) == seen


@OF_SEEDS
def test_p3_an_epoch_of_several_tasks_is_one_version(seed: int) -> None:
    store = MemoryStore()
    table = make_table(store, schema_of(Scope.TABLE))
    apply_epoch(table, [[[Command(k, 0, 0) for k in range(6)]]])
    count = 2 + seed % 4
    epoch = plan_epoch(
        table, [[[Command(k, 1, 1)] for k in range(t, 6, count)] for t in range(count)]
    )
    seen: list[set[int]] = []

    def watch() -> None:
        rows = rows_at(Table(store))
        seen.append(set(rows.values()))

    watched = Table(FaultyStore(store, Steps(watch=watch)))
    watched.commit(epoch)
    watch()
    assert [values for values, _ in itertools.groupby(seen)] == [{0}, {1}]


# -- P4: the table depends on the set of commands alone ------------------------------------


@OF_SEEDS
def test_p4_batches_arrival_retries_and_writers_do_not_matter(seed: int) -> None:
    dice = random.Random(seed)
    places = [(key, order) for key in range(6) for order in range(8)]
    commands = [Command(k, dice.choice([None, 1, 2, 3]), o) for k, o in dice.sample(places, 30)]
    model = Model(Scope.TABLE)
    model.append(commands)
    for _ in range(3):
        table = make_table(MemoryStore(), schema_of(Scope.TABLE))
        pending = [*commands, *dice.sample(commands, 5)]
        dice.shuffle(pending)
        with few_hashes(dice):
            while pending:
                tasks = [
                    [[pending.pop() for _ in range(min(len(pending), dice.randrange(4)))]]
                    for _ in range(3)
                ]
                epochs = [plan_epoch(table, tasks[:1]), plan_epoch(table, tasks[1:])]
                dice.shuffle(epochs)
                for epoch in epochs:
                    table.commit(epoch)
                if dice.random() < 0.3:
                    table.compact(full=True)
            assert rows_at(table) == model.rows()


@OF_SEEDS
def test_p4_a_forgotten_delete_brings_no_key_back(seed: int) -> None:
    """Deletes are forgotten at once; then late commands may be refused, never applied wrongly."""
    dice = random.Random(seed)
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "0 epochs"}
    )
    deleted: dict[int, int] = {}
    rejected = 0
    for _ in range(12):
        commands = [
            Command(key, None if dice.random() < 0.4 else order, order)
            for key, order in ((dice.randrange(4), dice.randrange(30)) for _ in range(3))
        ]
        for command in commands:
            if command.value is None:
                deleted[command.key] = max(deleted.get(command.key, -1), command.order)
        commit = apply_epoch(table, [[commands]])
        rejected += commit.counters["rejected"]
        tally_of(commit)
        table.compact(full=True)
        rows = rows_at(table)
        assert len(rows) == table.log.head().live_rows
        assert all(order >= deleted.get(key, -1) for key, order in rows.items())
    assert rejected or seed not in (0, 1, 2)
    assert fold(changes_of(table)) == rows_at(table)


@OF_SEEDS
def test_p4_a_delete_that_is_forgotten_meanwhile_brings_no_key_back(seed: int) -> None:
    """Epochs lie staged while others delete, and compactions forget."""
    dice = random.Random(seed)
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "1 epoch"}
    )
    deleted: dict[int, int] = {}
    # Late by up to some twenty, so that most keys are above the mark.
    orders = iter(sorted(range(400), key=lambda order: order + dice.random() * 24))

    def drawn() -> list[Command]:
        commands = [Command(dice.randrange(4), o, o) for o in itertools.islice(orders, 3)]
        return [c if dice.random() < 0.5 else Command(c.key, None, c.order) for c in commands]

    for _ in range(24):
        waiting = drawn()
        epoch = plan_epoch(table, [[waiting[:2]], [waiting[2:]]])
        others = [drawn() for _ in range(dice.randrange(3))]
        for commands in others:
            apply_epoch(table, [[commands]])
            table.compact(full=dice.random() < 0.7)
        commit = table.commit(epoch)
        assert commit is not None
        tally_of(commit)
        for command in itertools.chain(waiting, *others):
            if command.value is None:
                deleted[command.key] = max(deleted.get(command.key, -1), command.order)
        rows = rows_at(table)
        assert all(order > deleted.get(key, -1) for key, order in rows.items())
        assert table.log.head().live_rows == len(rows)
        assert fold(changes_of(table)) == rows
    assert table.check().is_sound


@ON_BOTH_LAYOUTS
def test_p4_a_delete_forgotten_below_the_mark_brings_no_key_back() -> None:
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "1 epoch"}
    )
    append(table, [Command(9, None, 5)])
    append(table, [Command(2, 2, 1), Command(1, None, 3)])
    table.compact(full=True)
    mark = table.log.head().low_water
    late = plan_epoch(table, [[[Command(1, 1, 2)]]])
    append(table, [Command(3, 3, 9)])
    table.compact(full=True)
    assert table.log.head().low_water == mark
    commit = table.commit(late)
    assert commit is not None
    assert commit.counters["rejected"] == 1
    assert rows_at(table) == {2: 2, 3: 3}


@ON_BOTH_LAYOUTS
def test_p4_a_merge_from_before_a_restore_brings_no_key_back() -> None:
    """It did not know of the late command when it chose which deletes to forget."""
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "1 epoch"}
    )
    append(table, [Command(1, 1, 1)])
    append(table, [Command(1, None, 5)])
    append(table, [Command(2, 2, 6)])
    append(table, [Command(1, 3, 3)])
    table.restore(3)
    (job,) = table.compaction_jobs(full=True)
    merged = compact_runs(table.store, table.log.head(), job)
    assert merged.low_water is not None
    table.restore(4)
    table.commit_compactions([merged])
    assert rows_at(table) == {2: 2}


@ON_BOTH_LAYOUTS
def test_p4_a_restored_table_takes_what_the_old_one_would_have_taken() -> None:
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "1 epoch"}
    )
    append(table, [Command(1, 1, 1)])
    append(table, [Command(1, None, 50)])
    for order in (60, 61, 62):
        append(table, [Command(2, order, order)])
    table.compact(full=True)
    assert table.log.head().low_water is not None
    table.restore(2)
    # The first is late for a delete that is remembered again, the second for none.
    append(table, [Command(1, 3, 49), Command(4, 4, 3)])
    assert rows_at(table) == {4: 4}


@OF_SEEDS
def test_p4_a_retry_decides_a_tie_the_same(seed: int) -> None:
    """Tasks of one epoch in any order, rows tied between them: the same table."""
    dice = random.Random(seed)
    found = []
    drawn = [commands_of(dice, 4, keys=3) for _ in range(3)]
    tasks = [[[Command(c.key, c.value, c.order % 2) for c in commands]] for commands in drawn]
    for _ in range(4):
        table = make_table(MemoryStore(), schema_of(Scope.TABLE))
        dice.shuffle(tasks)
        apply_epoch(table, tasks)
        found.append(rows_at(table))
        assert fold(changes_of(table)) == found[-1]
        append(table, [Command(9, 9, 9)])
        table.compact(full=True)
        assert rows_at(table) == {**found[-1], 9: 9}
    assert all(rows == found[0] for rows in found)


# -- P5: nothing is dropped silently --------------------------------------------------------


@OF_SEEDS
def test_p5_every_row_is_counted_under_its_reason(seed: int) -> None:
    dice = random.Random(seed)
    scope = SCOPES[seed % 3]
    table, model = make_table(MemoryStore(), schema_of(scope)), Model(scope)
    with few_hashes(dice):
        for number in range(8):
            tasks, overwrite = tasks_of(dice), number == 5
            others = commands_of(dice, 3)
            epoch = plan_epoch(table, tasks, overwrite=overwrite)
            if number % 3 == 0:  # Another writer is faster, so that the counts must be redone.
                model.append(others)
                apply_epoch(table, [[others]])
                if scope is not Scope.TABLE:
                    table.compact(full=True)
                    model.version = table.log.head().version
            commit = table.commit(epoch)
            assert commit is not None
            written = WrittenEpoch(tasks, overwrite=overwrite)
            changes, tally = model.append(written.commands, overwrite=overwrite)
            assert tally_of(commit) == tally
            assert commit.live_rows == len(model.rows())
            shown = changes_of(table, commit.version, commit.version + 1)
            assert by_epoch(shown) == by_epoch(changes)


@ON_BOTH_LAYOUTS
def test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    first = append(table, [Command(1, 11, 5), Command(1, 10, 5)])
    assert rows_at(table) == {1: 10}
    second = append(table, [Command(1, 12, 5), Command(1, 13, 4)])
    third = append(table, [Command(1, 12, 5), Command(1, 12, 5)])
    assert first is not None
    assert second is not None
    assert third is not None
    assert rows_at(table) == {1: 12}
    assert (first.counters["tied"], first.counters["superseded"]) == (1, 1)
    assert (second.counters["tied"], second.counters["updates"]) == (1, 1)
    assert (third.counters["tied"], third.counters["duplicates"]) == (0, 2)
    assert fold(changes_of(table)) == {1: 12}


def test_p5_a_row_without_a_key_is_refused() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    with pytest.raises(DataError, match="the key 'k' is null"):
        append(table, [Command(None, 1, 1)])


@ON_BOTH_LAYOUTS
def test_p5_a_row_without_an_order_is_refused() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    with pytest.raises(DataError, match="'seq' is null"):
        append(table, [Command(1, 1, None)])


@ON_BOTH_LAYOUTS
def test_p5_two_values_that_nothing_orders_are_refused() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.ARRIVAL))
    epoch = plan_epoch(table, [[[Command(1, 1)]], [[Command(1, 2)]]], allow_unordered=False)
    with pytest.raises(DataError, match="nothing says which is the later one"):
        table.commit(epoch)
    assert rows_at(table) == {}


@ON_BOTH_LAYOUTS
def test_p5_a_check_finds_damage_of_what_the_process_has_read() -> None:
    store = MemoryStore()
    process = FaultyStore(store, Steps(), process="one that checks")
    table = made(process)
    assert table.check().is_sound
    damaged = commit_path(1)
    store.objects[damaged] = store.objects[damaged].replace(b'"kind"', b'"kinb"')
    for each in (table, Table(process)):
        with pytest.raises(CorruptionError, match=damaged):
            each.check()


@ON_BOTH_LAYOUTS
def test_p5_a_damaged_run_is_an_error_and_not_a_smaller_table() -> None:
    store = MemoryStore()
    table = make_table(store, schema_of(Scope.TABLE))
    commit = append(table, [Command(key, key, 1) for key in range(3000)])
    assert commit is not None
    path = commit.added[0].path
    intact = store.objects[path]
    for position in range(3000, len(intact), len(intact) // 25):
        store.objects[path] = (
            intact[:position] + bytes([intact[position] ^ 1]) + intact[position + 1 :]
        )
        forget_runs_and_logs()
        rows = rows_or_named_file(Table(store), path)
        assert rows is None or rows == {key: key for key in range(3000)}


def rows_or_named_file(table: Table, path: str) -> dict[int, int] | None:
    try:
        return rows_at(table)
    except CorruptionError as error:
        if path not in str(error):
            raise
        return None


# -- P6: after any crash, a restart needs no manual step ------------------------------------


@EACH_OPERATION
@pytest.mark.sweep(1)
def test_p6_a_killed_operation_can_just_be_repeated(index: int) -> None:
    prefix = MemoryStore()
    for operation in OPERATIONS[:index]:
        operation.act(prefix)
    whole = MemoryStore()
    whole.objects = dict(prefix.objects)
    steps = Steps()
    OPERATIONS[index].act(FaultyStore(whole, steps))
    expected = observe(whole)
    for step in range(0, len(steps.names), 2):
        store = MemoryStore()
        store.objects = dict(prefix.objects)
        with pytest.raises(KilledError):
            OPERATIONS[index].act(FaultyStore(store, Steps(Fault(step, Moment.AFTER))))
        OPERATIONS[index].act(store)
        assert observe(store) == expected, f"killed at {steps.names[step]}"


# -- P7: cost follows the change, not the table ---------------------------------------------


@ON_BOTH_LAYOUTS
def test_p7_a_small_upsert_costs_the_same_in_a_large_table() -> None:
    costs = []
    for count in (500, 50_000):
        store = MemoryStore()
        table = make_table(store, schema_of(Scope.TABLE))
        append(table, [Command(key, key, 1) for key in range(count)])
        forget_runs_and_logs()
        before = sum(map(len, store.objects.values()))
        steps = Steps()
        append(Table(FaultyStore(store, steps)), [Command(key, -1, 2) for key in range(10)])
        costs.append((len(steps.names), sum(map(len, store.objects.values())) - before))
        run = RUNS.open(store, table.log.commit(1).added[0])
        verified = run._blocks.verified_count
    assert costs[0][0] == costs[1][0]
    assert abs(costs[0][1] - costs[1][1]) < 100
    # Of some 1 600 blocks: the head, and for each key one of hashes, keys, order and diff.
    assert verified <= 2 + 5 * 10


@ON_BOTH_LAYOUTS
def test_p7_a_delete_that_cannot_be_forgotten_is_not_written_again_for_ever() -> None:
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "0 epochs"}
    )
    append(table, [Command(1, None, 5)])
    append(table, [Command(1, 1, 3)])  # Late, so that it holds the delete.
    merges = sum(table.commit_compactions(merge_due(table)) for _ in range(10))
    assert merges <= 1
