"""A publisher's clock that goes back: times still grow, and nothing waits or goes too early."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.check import check_mirror
from spark_upsert.delta.place import place_of
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.upkeep import CLEAN_EVERY_MS
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})

JUMPS_S = (10.0, -60.0, -2 * DAY_S, 5.0, -HOUR_S, 3 * DAY_S, -DAY_S, 1.0)


class KnownStore(ClockedStore):
    """A store that a process knows again, as it does a place of a disk."""

    @property
    def cache_key(self) -> Hashable | None:
        return self.url


class Skewed:
    """A published table by a machine whose clock is set anew, on a storage whose clock is right."""

    def __init__(self, **properties: str) -> None:
        self.right, self.now = Now(), Now()
        self.store = KnownStore(self.right)
        schema = TableSchema.of(COLUMNS, keys=["id"], hash_seed=7)
        Table(self.store, clock=self.now).ensure(schema, {"publish": "delta", **properties})
        self.target = place_of(self.store, None)

    @property
    def table(self) -> Table:
        return Table(self.store, clock=self.now)

    def append(self, *ids: int, x: str = "a") -> None:
        self.table.upsert(pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=COLUMNS))

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.right.advance(seconds)
        self.now.advance(seconds)

    def mirror(self) -> Mirror:
        return Mirror(self.table.log, self.store, self.target)

    def require_copy(self) -> DeltaTable:
        found = DeltaTable(self.target)
        assert canonical(found.rows()) == canonical(self.table.snapshot())
        assert not list(check_mirror(self.mirror()))
        return found


def test_49_times_and_versions_grow_whatever_the_clock_says() -> None:
    case, times = Skewed(publishChangeFeed="true"), []
    for number, seconds in enumerate(JUMPS_S):
        case.right.advance(abs(seconds))
        case.now.advance(seconds)
        case.append(number, 99, x=f"x{number}")
        times.append(case.table.log.head().timestamp_ms)
    found = case.require_copy()
    assert found.times == times == sorted(set(times))
    shown = [next(a for a in each if "txn" in a)["txn"]["version"] for each in found.commits]
    assert shown == list(range(1, len(JUMPS_S) + 1))


def test_49_a_file_is_removed_no_earlier_than_its_commit() -> None:
    case = Skewed()
    for seconds in JUMPS_S:
        case.right.advance(abs(seconds))
        case.now.advance(seconds)
        case.append(1, 2)
    found = case.require_copy()
    told = [
        (each["remove"]["deletionTimestamp"], time)
        for time, actions in zip(found.times, found.commits, strict=True)
        for each in actions
        if "remove" in each
    ]
    assert told
    assert all(removed_ms >= time for removed_ms, time in told)


def test_47_what_went_while_the_clock_was_behind_is_kept_for_the_retention() -> None:
    case = Skewed()
    for number in range(4):
        case.append(number, 9)
    case.advance(2 * DAY_S)
    case.append(7)
    before = DeltaTable(case.target)
    rows = canonical(before.rows())
    case.now.advance(-DAY_S)
    case.table.compact(full=True)
    case.now.advance(DAY_S)
    case.advance(60.0)
    assert DeltaTable(case.target).version > before.version
    case.table.vacuum()
    assert canonical(DeltaTable(case.target, before.version).rows()) == rows
    case.advance(2 * DAY_S)
    assert case.table.vacuum().orphans


def test_an_interval_is_no_longer_where_the_clock_goes_back() -> None:
    case, versions = Skewed(publishInterval="10 seconds"), []
    for number, seconds in enumerate((0.0, 4.0, -DAY_S, 4.0, 8.0)):
        case.right.advance(abs(seconds))
        case.now.advance(seconds)
        case.append(number)
        versions.append(DeltaTable(case.target).version)
    assert versions == [0, 0, 1, 1, 2]


def test_a_lease_follows_where_the_clock_goes_back() -> None:
    case = Skewed()
    case.append(1)
    case.now.advance(-DAY_S)
    case.append(2)
    [lease] = case.table.consumers()
    assert lease.version == case.table.log.head().version


def test_a_clock_that_went_back_is_cleaned_behind_an_hour_later() -> None:
    case, done = Skewed(), []
    mirror = case.mirror()
    upkeep = mirror.upkeep
    old = upkeep._old

    def noted(**how: Any) -> Any:
        done.append(how["now_ms"])
        return old(**how)

    upkeep._old = noted  # type: ignore[method-assign]
    case.append(1)
    mirror.state()
    begin_ms = int(case.now() * 1000)
    for now_ms in (begin_ms, begin_ms - 100 * CLEAN_EVERY_MS, begin_ms - 99 * CLEAN_EVERY_MS):
        upkeep.follow(now_ms=now_ms, retention_ms=CLEAN_EVERY_MS)
    assert done == [begin_ms - 99 * CLEAN_EVERY_MS]
