"""Watchers: who sees which epoch when, who lags, and what is told of what was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import (
    DataLossError,
    OptionError,
    OtherTableError,
    VersionNotFoundError,
)
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.watch import POLL_S_MAX, POLL_S_MIN, Gap, SealedEpoch, Watcher, Watchers
from tests.support.stores import BrokenError, Fault, FaultyStore, MemoryStore, Moment, Steps
from tests.support.tables import make_table, schema_of
from tests.support.waiting import PATIENCE_SECONDS, no_thread_is_left, passed


def new_table(store: MemoryStore | None = None) -> Table:
    return make_table(store or MemoryStore(), schema_of(Scope.ARRIVAL))


def append(table: Table, *keys: int, **how: Any) -> int:
    commit = table.upsert(pa.table({"k": list(keys), "v": [0] * len(keys)}), **how)
    assert commit is not None
    return commit.version


class Time:
    """A clock that waits by going on, and lets something happen while it does."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits: list[float] = []
        self.events: dict[int, Callable[[], object]] = {}

    def clock(self) -> float:
        return self.now_s

    def wait(self, arrived: threading.Condition, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now_s += seconds
        event = self.events.pop(len(self.waits), None)
        if event is not None:
            arrived.release()
            event()
            arrived.acquire()
        return False


def watcher_of(
    table: Table, time: Time, *, start: int = 1, capacity: int = 100, **how: Any
) -> Watcher:
    watchers = Watchers(
        table.log, table.changes, capacity=capacity, clock=time.clock, wait=time.wait
    )
    watchers.poll()
    return Watcher(watchers, start, **how)


def versions(watcher: Watcher) -> list[int | Gap]:
    """Return what there is to see."""
    all_seen: list[int | Gap] = []
    while (seen := watcher.take(0)) is not None:
        all_seen.append(seen if isinstance(seen, Gap) else seen.version)
    return all_seen


# -- what is seen ------------------------------------------------------------------------


def test_watcher_sees_number_time_counters_and_changes_of_an_epoch() -> None:
    table = new_table()
    with table.watch() as watcher:
        transaction = Transaction(writer="a", number=3)
        append(table, 1, 2, transaction=transaction)
        seen = next(watcher)
        append(table)
    assert isinstance(seen, SealedEpoch)
    assert (seen.version, seen.timestamp_ms) == (1, table.log.commit(1).timestamp_ms)
    assert seen.counters == Counters(rows=2, inserts=2)
    assert (seen.transactions, seen.live_rows, seen.is_late) == ((transaction,), 2, False)
    assert seen.changes().equals(table.changes(1, 2))
    assert len(seen.changes()) == 2
    assert list(watcher) == [], "what comes behind the close is not seen"
    lose(table)
    with pytest.raises(DataLossError):
        seen.changes()


def test_watcher_begins_behind_the_newest_version_unless_told_where() -> None:
    table = new_table()
    for key in range(3):
        append(table, key)
    newest, from_two = table.watch(), table.watch(2)
    append(table, 9)
    assert versions(newest) == [4]
    assert versions(from_two) == [2, 3, 4]
    for start in (-1, 6):
        with pytest.raises((OptionError, VersionNotFoundError), match=r"from 0 to"):
            table.watch(start)


def test_watcher_sees_epochs_without_rows_and_no_version_that_is_no_epoch() -> None:
    table = new_table()
    watcher = table.watch()
    append(table, 1)
    append(table)
    table.compact(full=True)
    table.alter(table.schema, {"tombstoneRetention": "3 days"})
    last = append(table, 3)
    assert versions(watcher) == [1, 2, last]


# -- when --------------------------------------------------------------------------------


def test_commit_of_the_watched_object_wakes_a_waiting_watcher_without_a_look() -> None:
    table, waiting = new_table(), threading.Event()
    looks: list[int] = []

    def wait(arrived: threading.Condition, seconds: float) -> bool:
        waiting.set()
        return arrived.wait(PATIENCE_SECONDS)

    watchers = Watchers(table.log, table.changes, clock=lambda: 0.0, wait=wait)
    watchers.poll()
    watchers.poll = lambda: looks.append(1)  # type: ignore[method-assign, assignment, return-value]
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(Watcher(watchers, 1).take()))
    thread.start()
    passed(waiting)
    append(table, 1)
    thread.join(PATIENCE_SECONDS)
    assert [each.version for each in seen] == [1]
    assert looks == []


def test_commits_of_others_are_found_by_a_look() -> None:
    store, time = MemoryStore(), Time()
    table, other = new_table(store), Table(store)
    watcher = watcher_of(table, time)
    assert watcher.take(0) is None
    append(table, 1)
    assert versions(watcher) == [1]
    assert time.waits == [], "a watcher that does not wait sees what is there"
    time.events = {3: lambda: append(other, 1)}
    seen = watcher.take()
    assert isinstance(seen, SealedEpoch)
    assert seen.version == 2
    assert len(time.waits) == 3


def test_looks_become_rare_when_nothing_comes_and_frequent_when_it_does() -> None:
    store, time = MemoryStore(), Time()
    table, other = new_table(store), Table(store)
    watcher = watcher_of(table, time)
    assert watcher.take(60) is None
    *waits, _ = time.waits  # The last one ends with the time that was given.
    assert waits[0] == pytest.approx(POLL_S_MIN)
    assert waits == pytest.approx(sorted(waits))
    assert waits[-1] == pytest.approx(POLL_S_MAX)
    assert len(time.waits) < 100
    append(other, 1)
    assert watcher.take(60) is not None
    time.waits.clear()
    assert watcher.take(0.01) is None
    assert watcher.take(POLL_S_MIN) is None
    assert time.waits[0] == pytest.approx(0.01), "no longer than was asked for"
    assert sum(time.waits) == pytest.approx(0.01 + POLL_S_MIN)


def test_one_watcher_looks_for_all() -> None:
    store, time = MemoryStore(), Time()
    table, other = new_table(store), Table(store)
    watchers = Watchers(table.log, table.changes, clock=time.clock, wait=time.wait)
    watchers.poll()
    first, second = (Watcher(watchers, 1) for _ in range(2))
    looked: list[int] = []
    look = watchers.poll

    def look_while_another_waits() -> Any:
        looked.append(1)
        if len(looked) == 1:
            assert second.take(5.0) is None, "it waits until the look is over"
            append(other, 1)
        return look()

    watchers.poll = look_while_another_waits  # type: ignore[method-assign]
    assert first.take() is not None
    assert looked == [1]
    assert second.take(0) is not None


# -- who is slow -------------------------------------------------------------------------


def test_slow_watcher_lags_reads_the_log_and_is_live_again() -> None:
    table, time = new_table(), Time()
    watcher = watcher_of(table, time, capacity=2)
    for key in range(2):
        append(table, key)
    assert repr(watcher) == "Watcher(position=1, lag=2, live)"
    for key in range(3):
        append(table, key)
    assert watcher.is_lagging
    assert repr(watcher) == "Watcher(position=1, lag=5, lagging)"
    seen = [watcher.take(0) for _ in range(5)]
    assert all(isinstance(each, SealedEpoch) and each.is_late for each in seen)
    assert [each.version for each in seen if isinstance(each, SealedEpoch)] == [1, 2, 3, 4, 5]
    assert watcher.is_lagging, "until it has seen that there is no more"
    assert watcher.take(0) is None
    assert repr(watcher) == "Watcher(position=6, lag=0, live)"
    append(table, 7)
    last = watcher.take(0)
    assert isinstance(last, SealedEpoch)
    assert not last.is_late


# -- what is lost ------------------------------------------------------------------------


def lose(table: Table) -> None:
    """Commit five epochs, and expire all but the last."""
    for key in range(5):
        append(table, key)
    table.compact(full=True)
    table.expire(retain_versions=1, safety_ms=0, writers_ms=0)


def test_watcher_of_expired_epochs_gets_an_error_each_time_unless_a_lease_kept_them() -> None:
    for is_held in (False, True):
        table = new_table()
        watcher = table.watch()
        if is_held:
            table.hold("watcher", 0)
        lose(table)
        if is_held:
            assert versions(watcher) == [1, 2, 3, 4, 5]
            continue
        for _ in range(2):
            with pytest.raises(DataLossError, match="what a watcher sees from version 1 on"):
                watcher.take(0)
        assert watcher.position == 1


def test_epochs_that_are_expired_between_the_look_and_the_read_are_a_gap() -> None:
    store, time = MemoryStore(), Time()
    table, other = new_table(store), new_table(store)
    watcher = watcher_of(table, time, fail_on_data_loss=False)
    lose(other)
    watcher._watchers._upper = 6
    assert table.log.cached_head is not None
    assert table.log.cached_head.since == 0, "it does not know yet"
    with patch.object(table.log, "commit", side_effect=DataLossError("it was cut off")):
        assert watcher.take(0) == Gap(lower=1, upper=other.log.head().since + 1)


def test_epoch_that_cannot_be_read_and_was_not_expired_is_an_error() -> None:
    store, time = MemoryStore(), Time()
    table, other = new_table(store), Table(store)
    watcher = watcher_of(table, time, fail_on_data_loss=False)
    append(other, 1)
    watcher._watchers.poll()
    gone = patch.object(table.log, "commit", side_effect=DataLossError("it is not there"))
    with gone, pytest.raises(DataLossError, match="it is not there"):
        watcher.take(0)


# -- ends and errors ---------------------------------------------------------------------


def test_iteration_ends_when_another_thread_closes_it() -> None:
    table = new_table()
    began, seen = threading.Event(), list[int]()

    def read() -> None:
        for each in watcher:
            assert isinstance(each, SealedEpoch)
            seen.append(each.version)
            began.set()

    with no_thread_is_left():
        watcher = table.watch()
        thread = threading.Thread(target=read)
        thread.start()
        append(table, 1)
        passed(began)
        watcher.close()
        watcher.close()
        thread.join(PATIENCE_SECONDS)
    assert seen == [1]
    assert watcher.take() is None
    assert "closed" in repr(watcher)


def test_another_table_in_the_place_of_the_watched_one_is_an_error() -> None:
    store = MemoryStore()
    table = new_table(store)
    append(table, 1)
    watcher = watcher_of(table, Time(), start=2)
    store.objects.clear()
    append(new_table(store), 1)
    with pytest.raises(OtherTableError):
        watcher.take()


def test_error_of_a_look_is_raised_and_the_next_look_may_succeed() -> None:
    store, time, steps = MemoryStore(), Time(), Steps()
    new_table(store)
    table, other = Table(FaultyStore(store, steps)), Table(store)
    watcher = watcher_of(table, time)
    append(other, 1)
    steps._fault = Fault(len(steps.names), Moment.BEFORE, BrokenError)
    with pytest.raises(BrokenError):
        watcher.take()
    assert watcher.take() is not None


def test_many_watchers_each_see_what_many_threads_commit_once_and_in_order() -> None:
    store = MemoryStore()
    table, other = new_table(store), Table(store)
    seen: list[list[int]] = [[] for _ in range(4)]

    def write(number: int) -> None:
        for index in range(10):
            append(other if number == 0 else table, 100 * number + index)

    def read(index: int, watcher: Watcher) -> None:
        rows = 0
        while rows < 40:
            epoch = watcher.take(PATIENCE_SECONDS)
            assert isinstance(epoch, SealedEpoch)
            rows += epoch.counters.rows
            seen[index].append(epoch.version)

    threads = [threading.Thread(target=read, args=(index, table.watch())) for index in range(4)]
    threads += [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert seen == [list(range(1, table.log.head().version + 1))] * 4
