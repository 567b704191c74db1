"""A local table survives a power loss at any moment, and what was reported stays (P1, P3, P6).

A kill before a step is the kill after the one before it, so that only the latter is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_upsert.errors import StorageError
from spark_upsert.store.local import LocalStore
from tests.support.disk import Disk, Loss
from tests.support.stores import (
    BrokenError,
    Fault,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    is_place,
)
from tests.support.workload import ABSENT, OPERATIONS, Seen, observe

WORK = tuple(
    o
    for o in OPERATIONS
    if o.name in ("create", "append", "append by two tasks", "compact", "replay")
)
LOSSES = pytest.mark.parametrize("loss", Loss, ids=lambda loss: f"taking {loss.value}")
MOMENTS = pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)


def _expected() -> Iterator[Seen]:
    store = MemoryStore()
    yield ABSENT
    for operation in WORK:
        operation.act(store)
        yield observe(store)


SEEN = list(_expected())


def look(store: LocalStore, done: int) -> Seen:
    """Read what is there from the last finished operation on."""
    return observe(store, lower=max(0, len(SEEN[done].history) - 1))


@dataclass
class Machine:
    """A disk below one process after another."""

    folder: Path
    number: Iterator[int]

    def fresh(self) -> Disk:
        return Disk(self.folder / f"disk{next(self.number)}")

    def store(self, root: Path) -> LocalStore:
        return LocalStore(root / "lake" / "table")

    def work(self, disk: Disk, done: int = 0, fault: Fault | None = None) -> int:
        """Do the operations from number ``done`` on; returns how many are done at the end."""
        store = self.store(disk.root)
        with disk.traced(Steps(fault)):
            try:
                for operation in WORK[done:]:
                    operation.act(store)
                    done += 1
            except (KilledError, StorageError):
                return done
        return done

    def survivor(self, disk: Disk, loss: Loss) -> LocalStore:
        return self.store(disk.lose_power(self.folder / f"disk{next(self.number)}", loss))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, itertools.count())


def fault_places(machine: Machine) -> list[int]:
    """Return the steps to fail at: all but most of the many writes to one file."""
    disk = machine.fresh()
    machine.work(disk)
    names = disk.steps.names
    return [step for step in range(len(names)) if is_place(names, step)]


@LOSSES
def test_what_was_reported_survives(machine: Machine, loss: Loss) -> None:
    for count in range(len(WORK) + 1):
        disk = machine.fresh()
        store = machine.store(disk.root)
        with disk.traced(Steps()):
            for operation in WORK[:count]:
                operation.act(store)
        assert observe(machine.survivor(disk, loss)) == SEEN[count]


@LOSSES
def test_a_power_loss_at_any_step_leaves_old_or_new(machine: Machine, loss: Loss) -> None:
    for step in fault_places(machine):
        disk = machine.fresh()
        done = machine.work(disk, fault=Fault(step, Moment.AFTER))
        store = machine.survivor(disk, loss)
        assert look(store, done) in SEEN[done : done + 2], disk.steps.names[-1]
        if done < len(WORK):
            WORK[done].act(store)
            assert look(store, done) == SEEN[done + 1], disk.steps.names[-1]


@LOSSES
def test_what_a_retry_reports_survives_a_later_power_loss(machine: Machine, loss: Loss) -> None:
    """The first process is killed, a second one finds its traces and goes on, then power fails."""
    for step in fault_places(machine):
        disk = machine.fresh()
        done = machine.work(disk, fault=Fault(step, Moment.AFTER))
        killed_at = disk.steps.names[-1]
        if done == len(WORK):
            continue
        store = machine.store(disk.root)
        with disk.traced(Steps()):
            WORK[done].act(store)
        survivor = machine.survivor(disk, loss)
        assert look(survivor, done) == SEEN[done + 1], f"killed at {killed_at}"


@LOSSES
@MOMENTS
def test_an_operation_that_reports_success_after_an_error_survives(
    machine: Machine, loss: Loss, moment: Moment
) -> None:
    """An error need not end an operation; what it then reports must be true."""
    for step in fault_places(machine):
        disk = machine.fresh()
        done = machine.work(disk, fault=Fault(step, moment, BrokenError))
        seen = look(machine.survivor(disk, loss), done)
        assert seen in SEEN[done : done + 2], f"an error at {step}"


@LOSSES
def test_what_a_reader_has_seen_survives(machine: Machine, loss: Loss) -> None:
    """A reader that follows the changelog must not have followed a version that then vanishes."""
    for step in fault_places(machine):
        disk = machine.fresh()
        done = machine.work(disk, fault=Fault(step, Moment.AFTER))
        with disk.traced(Steps()):
            seen = look(machine.store(disk.root), done)
        assert look(machine.survivor(disk, loss), done) == seen, f"killed at {step}"
