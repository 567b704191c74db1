"""Promises of tables with many files, whose checkpoints have leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

from spark_upsert.core.schema import Scope
from spark_upsert.table.log import slices, storage
from spark_upsert.table.log.codec import (
    HINT_PATH,
    LEAVES,
    checkpoint_path,
)
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.log.storage import read_checkpoint, write_checkpoint
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import forget_runs_and_logs
from tests.support.tables import append, rows_at, schema_of

EVERY = 5


def with_small_leaves(test: Callable[[], None]) -> Callable[[], None]:
    """Let a few versions have a checkpoint, and a few slices several leaves."""
    every = patch.object(storage, "CHECKPOINT_EVERY", EVERY)
    return every(patch.object(slices, "LEAF_SLICES", 4)(test))


class PutStore(ClockedStore):
    """Remembers the paths of its puts."""

    def __init__(self, now: Now) -> None:
        super().__init__(now)
        self.puts: list[str] = []

    def put(self, path: str, data: bytes) -> None:
        self.puts.append(path)
        super().put(path, data)

    def leaves(self) -> set[str]:
        return {path for path in self.objects if path.startswith(f"{LEAVES}/")}


def filled(versions: int) -> tuple[Table, PutStore]:
    store = PutStore(Now())
    table = Table(store, clock=store.now)
    table.log.create(Draft(kind=Kind.CREATE, schema=schema_of(Scope.EPOCH)))
    grow(table, store, versions)
    return table, store


def grow(table: Table, store: ClockedStore, versions: int) -> None:
    for _ in range(versions):
        store.now.advance(HOUR_S)
        number = table.log.head().version
        append(table, [Command(number, number, number)])


@with_small_leaves
def test_p7_a_checkpoint_writes_only_the_touched_leaves_whoever_writes_it() -> None:
    table, store = filled(40)
    head = table.log.head()
    for writer in (None, table, None, table):
        store.puts.clear()
        other = writer or Table(store, clock=store.now)
        grow(other, store, EVERY)
        head = other.log.head()
        assert len([path for path in store.puts if path.startswith(LEAVES)]) <= EVERY // 4 + 2
        assert head.slices == Log(store).without_cache().head().slices
        stored = read_checkpoint(store, head.version)
        assert stored is not None
        assert [leaf.file for leaf in stored.slice_list.leaves] == [
            leaf.file for leaf in head.slice_list.leaves
        ]
    assert len(head.slice_list.leaves) > 10


@with_small_leaves
def test_p6_without_a_leaf_the_checkpoint_is_none_and_the_log_is_read() -> None:
    table, store = filled(12)
    rows = rows_at(table)
    del store.objects[max(store.leaves())]
    assert read_checkpoint(store, 10) is None
    forget_runs_and_logs()
    assert rows_at(Table(store, clock=store.now)) == rows
    grow(table, store, EVERY)
    assert read_checkpoint(store, 15) is not None, "it reuses no leaf that is gone"


@with_small_leaves
def test_p6_a_writer_reuses_no_leaf_that_others_removed() -> None:
    table, store = filled(10)
    for path in (*store.leaves(), checkpoint_path(10), HINT_PATH):
        del store.objects[path]
    grow(table, store, EVERY)
    assert read_checkpoint(store, 15) is not None


@with_small_leaves
def test_p6_a_vacuum_retains_leaves_of_checkpoints_and_those_that_it_cuts() -> None:
    table, store = filled(30)
    table.compact(full=True)
    grow(table, store, 12)
    rows = rows_at(table)
    counts = []
    for _ in range(3):
        store.now.advance(2 * DAY_S)
        table.expire(retain_versions=1)
        before = store.leaves()
        table.vacuum()
        counts.append(len(before - store.leaves()))
        forget_runs_and_logs()
        assert rows_at(Table(store, clock=store.now)) == rows
        assert Table(store, clock=store.now).check().is_sound
    assert counts[0] == 0 < counts[1], "the first one still retains what it cuts off the log"
    head = table.log.head()
    used = {leaf.file.path for leaf in head.slice_list.leaves if leaf.file}
    assert len(store.leaves() - used) <= 4


@with_small_leaves
def test_p6_a_suspended_writer_does_not_replace_the_checkpoint_of_a_vacuum() -> None:
    table, store = filled(10)
    suspended = table.log.at(10)
    data = store.objects[checkpoint_path(10)]
    for leaf in suspended.slice_list.leaves:
        assert leaf.file is not None
        leaf.file = replace(leaf.file, path=leaf.file.path.replace("-", "-0")[:-7] + ".arrow")
    reusable = frozenset(leaf.file for leaf in suspended.slice_list.leaves if leaf.file)
    write_checkpoint(store, suspended, reusable=reusable)
    assert store.objects[checkpoint_path(10)] == data
