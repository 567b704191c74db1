"""Fail every step of a publication, before and after its effect, and publish again.

After each fault the mirror is as before the step or as after it, never between, and the table does
not notice. The next publication, by a process that knows nothing, ends as if nothing had happened;
what the failed one left is named by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.delta import publish
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.store import Store
from spark_upsert.table.log.log import Log
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import FaultyStore, MemoryStore, Moment, Steps, forget_runs_and_logs
from tests.support.sweep import (
    KINDS,
    STARTED_S,
    Attempts,
    Process,
    State,
    alive,
    state_of,
    store_of,
)
from tests.support.workload import OPERATIONS

FAULTS = [
    pytest.param(kind, moment, id=f"{kind.__name__} {moment.value}")
    for kind in KINDS
    for moment in Moment
]


def mirror_in(store: Store) -> Mirror:
    forget_runs_and_logs()
    return Mirror(Log(store, clock=lambda: STARTED_S), store, open_mirror_store(store, None))


def require_a_version(state: State) -> int | None:
    """Require that the mirror shows the rows of the version that it says, and return that."""
    store = store_of(state)
    mirror = mirror_in(store)
    shown = mirror.shown()
    if shown is None:
        return None
    assert not list(check_mirror(mirror))
    rows = DeltaTable(mirror.target).rows()
    assert canonical(rows) == canonical(Table(store).snapshot(shown))
    return shown


class Sweep(Attempts):
    """What follows from a state in which a publication was left, found out once for each state.

    Parameters
    ----------
    start : State
        What the first process finds.
    act : callable
        What it does: it publishes, or it does something to a table that is published.
    told : callable
        What must be the same in the end, whatever has failed.
    may_lag : bool
        Whether the act may end well although the mirror could not follow.
    """

    def __init__(
        self,
        start: State,
        act: Callable[[Store], Any],
        told: Callable[[MemoryStore], Any],
        *,
        may_lag: bool,
    ) -> None:
        super().__init__(act)
        self.start = start
        self.shown = cache(require_a_version)
        self.end = cache(self._end)
        self._told = told
        self._may_lag = may_lag

    def _end(self, state: State) -> Any:
        """Return what is told when the same was done again, and published, without a fault."""
        left = self.attempt(state, Process.LAST)
        assert left.finished
        store = store_of(left.state)
        with alive(Process.SECOND):
            mirror_in(store).publish()
        assert self.shown(state_of(store)) == Log(store).head().version
        return self._told(store)

    def check(self, kind: type[BaseException], moment: Moment) -> None:
        """Fail each step, and judge what is left and what comes of it."""
        before, expected = self.shown(self.start), self.end(self.start)
        for fault, left, is_place in self.struck(self.start, kind, moment):
            if not is_place:
                continue
            where = f"{fault}: {left.steps[-1]}"
            head = Log(store_of(left.state)).try_head()
            now = head and head.version
            is_behind = self._may_lag or not left.finished
            assert self.shown(left.state) in ((before, now) if is_behind else (now,)), where
            assert self.end(left.state) == expected, where


@cache
def prefixes() -> list[State]:
    """Return the state just before each publication: one behind each operation."""
    store, found = store_of(frozenset()), []
    for operation in OPERATIONS:
        operation.act(store)
        found.append(state_of(store))
        mirror_in(store).publish()
    return found


@lru_cache(maxsize=1)
def publication(index: int) -> Sweep:
    """Return what is known of a publication, by its other tests too."""

    def act(store: Store) -> None:
        with patch.object(publish, "INLINE_BYTES_MAX", 0):
            mirror_in(store).publish()

    return Sweep(prefixes()[index], act, versions_of, may_lag=False)


def versions_of(store: MemoryStore) -> list[int]:
    """Return the versions that the commits of the mirror show."""
    commits = DeltaTable(open_mirror_store(store, None)).commits
    return [actions[1]["txn"]["version"] for actions in commits]


@pytest.mark.parametrize(("kind", "moment"), FAULTS)
@pytest.mark.parametrize("index", range(len(OPERATIONS)), ids=[str(o) for o in OPERATIONS])
def test_a_publication_that_fails_at_any_step_is_made_up_for(
    index: int, kind: type[BaseException], moment: Moment
) -> None:
    publication(index).check(kind, moment)


@cache
def published() -> list[State]:
    """Return the state before each operation on a table that is published behind each commit."""
    store, found = store_of(frozenset()), []
    for index, operation in enumerate(OPERATIONS):
        if index == 1:
            table = Table(store)
            table.alter(table.schema, {"publish": "delta"})
        found.append(state_of(store))
        operation.act(store)
    return found


@lru_cache(maxsize=1)
def operation(index: int) -> Sweep:
    """Return what is known of an operation on a published table, by its other tests too."""
    return Sweep(published()[index], OPERATIONS[index].act, rows_of, may_lag=True)


def rows_of(store: MemoryStore) -> list[str]:
    """Return the rows of the table."""
    return canonical(Table(store).snapshot())


@pytest.mark.parametrize(("kind", "moment"), FAULTS)
@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, id=each.name, marks=() if each.is_quick else pytest.mark.slow)
        for index, each in enumerate(OPERATIONS)
        if index
    ],
)
def test_an_operation_that_publishes_may_fail_at_any_step(
    index: int, kind: type[BaseException], moment: Moment
) -> None:
    """Those of its tasks among them, which write twins; repeated, it ends as if it had not."""
    operation(index).check(kind, moment)


@pytest.mark.parametrize("index", range(1, len(OPERATIONS)))
def test_what_a_process_does_follows_from_what_it_finds(index: int) -> None:
    """Else a state would have more than one future, and one look at it would not do."""
    for sweep, start in ((publication(index), prefixes()), (operation(index), published())):
        once = Attempts(sweep.act).attempt(start[index], Process.FIRST)
        assert once == sweep.attempt(start[index], Process.FIRST)


def test_a_publication_takes_few_steps() -> None:
    """So that a sweep that sweeps over nothing is noticed, and so are requests that are added."""
    counted = Steps(None)
    mirror_in(FaultyStore(store_of(prefixes()[1]), counted)).publish()
    assert 8 <= len(counted.names) <= 60, counted.names
