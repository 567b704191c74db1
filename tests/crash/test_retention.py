"""Expiry and vacuum, interrupted at every step: nothing readable is lost, and nothing is left."""

from __future__ import annotations

import contextlib

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.table.log import slices, storage
from spark_upsert.table.log.codec import LEAVES, commit_path
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    Moment,
    Steps,
    forget_runs_and_logs,
)
from tests.support.tables import append, plan_epoch, rows_at, schema_of

EVERY = 5
RETAIN = 4


@pytest.fixture(autouse=True, params=[slices.LEAF_SLICES, 3], ids=["slices", "leaves"])
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)
    monkeypatch.setattr(slices, "LEAF_SLICES", request.param)


class PreparationCache:
    """A table with expired versions, orphans, a compaction, a lease, and a log to be cut."""

    def __init__(self) -> None:
        self.now = Now()
        self.store = ClockedStore(self.now)
        table = Table(self.store, clock=self.now)
        schema = schema_of(Scope.EPOCH)
        table.log.create(Draft(kind=Kind.CREATE, schema=schema))
        self.rows: dict[int, dict[int, int]] = {}
        for number in range(1, 14):
            self.now.advance(HOUR_S)
            append(table, [Command(number % 4, number, number), Command(number, 0, number)])
            self.note(table)
            if number == 6:
                table.compact(full=True)
                self.note(table)
                plan_epoch(table, [[[Command(99, 99, 99)]], [[Command(98, 98, 98)]]])
        self.now.advance(2 * DAY_S)
        append(table, [Command(0, 99, 99)])
        self.note(table)
        table.hold("reports", table.log.head().version - RETAIN, ttl_ms=30 * 86_400_000)
        self.now.advance(DAY_S)

    def note(self, table: Table) -> None:
        """Remember the rows of the newest version."""
        self.rows[table.log.head().version] = rows_at(table)

    def copy(self) -> ClockedStore:
        """Return a store with the same objects."""
        store = ClockedStore(Now(self.now()))
        store.objects, store.times = dict(self.store.objects), dict(self.store.times)
        return store

    def verify(self, store: ClockedStore) -> Table:
        """Check that all that is promised to be readable is."""
        forget_runs_and_logs()
        table = Table(store, clock=store.now)
        since = table.log.head().since
        for version, rows in self.rows.items():
            if version >= since:
                assert rows_at(table, version) == rows, f"version {version}"
        assert rows_at(table) == self.rows[max(self.rows)]
        assert table.check().is_sound, table.check().findings
        return table


def night(store: ClockedStore, steps: Steps) -> None:
    """Do what a schedule does each night."""
    table = Table(FaultyStore(store, steps), clock=store.now)
    table.expire(retain_versions=RETAIN)
    table.vacuum()


def quiet_nights(store: ClockedStore, count: int) -> None:
    """Let nights pass. What a night leaves behind may take two more to be old enough."""
    for _ in range(count):
        store.now.advance(DAY_S + 1)
        night(store, Steps())


def paths(store: ClockedStore, folder: str) -> set[str]:
    return {path for path in store.objects if path.startswith(f"{folder}/")}


def test_an_undisturbed_night() -> None:
    prepared = PreparationCache()
    store, steps = prepared.copy(), Steps()
    night(store, steps)
    table = prepared.verify(store)
    assert table.log.head().since == max(prepared.rows) - RETAIN
    assert len(paths(store, "data")) < len(paths(prepared.store, "data"))
    assert len(paths(store, "_log")) < len(paths(prepared.store, "_log"))
    verbs = {name.split()[0] for name in steps.names}
    assert {"read", "put", "put_if_absent", "list", "delete"} <= verbs


@pytest.mark.parametrize("kind", [KilledError, BrokenError], ids=["a kill", "an error"])
@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
def test_a_night_that_is_struck_at_any_step_by(moment: Moment, kind: type[BaseException]) -> None:
    prepared = PreparationCache()
    whole = prepared.copy()
    night(whole, Steps())
    quiet_nights(whole, 3)
    step = 0
    while _strike(prepared, whole, Fault(step=step, moment=moment, kind=kind)):
        step += 1
    assert step > 50


def _strike(prepared: PreparationCache, whole: ClockedStore, fault: Fault) -> bool:
    """Let one step fail, look, and let other nights pass; False if there is no such step."""
    store, steps = prepared.copy(), Steps(fault)
    with contextlib.suppress(KilledError, BrokenError):
        night(store, steps)
    prepared.verify(store)
    quiet_nights(store, 3)
    prepared.verify(store)
    for folder in ("data", LEAVES):
        assert paths(store, folder) == paths(whole, folder), str(fault)
    oldest = [min(paths(each, "_log") - {commit_path(0)}) for each in (store, whole)]
    assert oldest[0] == oldest[1], str(fault)
    return steps.struck
