"""Fail every step of a publication, before and after its effect, and publish again.

After each fault the mirror is as before the step or as after it, never between, and the table does
not notice. The next publication, by a process that knows nothing, ends as if nothing had happened;
what the failed one left is named by nobody.
"""

from __future__ import annotations

from functools import cache

import pytest

from spark_upsert.mirror import publish
from spark_upsert.mirror.check import check_mirror
from spark_upsert.mirror.place import place_of
from spark_upsert.mirror.publish import Mirror
from spark_upsert.store import Store
from spark_upsert.table.log.log import Log
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
    is_place,
)
from tests.support.workload import OPERATIONS

FAULTS = [
    pytest.param(kind, moment, id=f"{kind.__name__} {moment.value}")
    for kind in (KilledError, BrokenError)
    for moment in Moment
]


def mirror_in(store: Store) -> Mirror:
    forget_runs_and_logs()
    return Mirror(Log(store), store, place_of(store, None))


@cache
def prefixes() -> list[dict[str, bytes]]:
    """Return the objects just before each publication: one behind each operation."""
    store, found = MemoryStore(), []
    for operation in OPERATIONS:
        operation.act(store)
        found.append(dict(store.objects))
        mirror_in(store).publish()
    return found


def store_at(index: int) -> MemoryStore:
    store = MemoryStore()
    store.objects = dict(prefixes()[index])
    return store


def require_a_version(store: MemoryStore) -> int | None:
    """Require that the mirror shows the rows of the version that it says, and return that."""
    mirror = mirror_in(store)
    shown = mirror.shown()
    if shown is None:
        return None
    assert not list(check_mirror(mirror))
    rows = DeltaTable(mirror.target).rows()
    assert canonical(rows) == canonical(Table(store).snapshot(shown))
    return shown


@pytest.mark.parametrize("index", range(len(OPERATIONS)), ids=[str(o) for o in OPERATIONS])
@pytest.mark.parametrize(("kind", "moment"), FAULTS)
def test_a_publication_that_fails_at_any_step_is_made_up_for(
    index: int, kind: type[BaseException], moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "INLINE_BYTES_MAX", 0)
    counted = Steps(None)
    mirror_in(FaultyStore(store_at(index), counted)).publish()
    expected = versions_of(store_at(index))
    before = require_a_version(store_at(index))
    for step in range(len(counted.names)):
        if not is_place(counted.names, step):
            continue
        store, fault = store_at(index), Fault(step, moment, kind)
        try:
            mirror_in(FaultyStore(store, Steps(fault))).publish()
        except (KilledError, BrokenError):
            now = require_a_version(store)
            assert now in (before, Log(store).head().version), counted.names[step]
        assert versions_of(store) == expected, counted.names[step]
        assert require_a_version(store) == Log(store).head().version, counted.names[step]


def versions_of(store: MemoryStore) -> list[int]:
    """Publish, and return the versions that the commits of the mirror show."""
    mirror_in(store).publish()
    commits = DeltaTable(place_of(store, None)).commits
    return [actions[1]["txn"]["version"] for actions in commits]


@cache
def published() -> list[dict[str, bytes]]:
    """Return the objects before each operation on a table that is published behind each commit."""
    store, found = MemoryStore(), []
    for index, operation in enumerate(OPERATIONS):
        if index == 1:
            table = Table(store)
            table.alter(table.schema, {"publish": "delta"})
        found.append(dict(store.objects))
        operation.act(store)
    return found


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, id=each.name, marks=() if each.is_quick else pytest.mark.slow)
        for index, each in enumerate(OPERATIONS)
        if index
    ],
)
@pytest.mark.parametrize(("kind", "moment"), FAULTS)
def test_an_operation_that_publishes_may_fail_at_any_step(
    index: int, kind: type[BaseException], moment: Moment
) -> None:
    """Those of its tasks among them, which write twins; repeated, it ends as if it had not."""

    def store_before() -> MemoryStore:
        store = MemoryStore()
        store.objects = dict(published()[index])
        forget_runs_and_logs()
        return store

    counted, whole = Steps(None), store_before()
    OPERATIONS[index].act(FaultyStore(whole, counted))
    expected = canonical(Table(whole).snapshot())
    for step in range(len(counted.names)):
        if not is_place(counted.names, step):
            continue
        store = store_before()
        try:
            OPERATIONS[index].act(FaultyStore(store, Steps(Fault(step, moment, kind))))
        except (KilledError, BrokenError):
            require_a_version(store)
        forget_runs_and_logs()
        OPERATIONS[index].act(store)
        mirror_in(store).publish()
        assert require_a_version(store) == Log(store).head().version, counted.names[step]
        assert canonical(Table(store).snapshot()) == expected, counted.names[step]


def test_a_publication_takes_few_steps() -> None:
    """So that a sweep that sweeps over nothing is noticed, and so are requests that are added."""
    counted = Steps(None)
    mirror_in(FaultyStore(store_at(1), counted)).publish()
    assert 8 <= len(counted.names) <= 60, counted.names
