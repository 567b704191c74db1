"""Fail any step of what keeps a view, try it again, and find the view as if nothing had happened.

A work of several processes on two tables, one with a prefix and an index, and on the table that
keeps groups of their join. Each operation is failed at its steps, by an error or a kill, before and
after the effect of the step, and done again, by the same process behind an error and by another one
behind a kill. What is kept must then be what plain Python makes of the tables.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.table.table import Table
from tests.support.kept_machine import (
    Machine,
    State,
    kept_by_query,
    refreshed,
    require_right,
    survived,
    swept,
    write,
)
from tests.support.stores import BrokenError, Fault, KilledError, Moment, forget_runs_and_logs

EVERY = int(os.environ.get("CRASH_STRIDE", "131"))
"""One of so many steps fails, another one in each operation and way; 1 tries them all."""

STEPS_MAX = 5_000
"""More than any operation takes: a sweep that comes here does not end."""

OPERATIONS: Mapping[str, Callable[[Machine], Any]] = {
    "first orders": write(0, "orders", (1, 1, 7, 10), (1, 2, 8, 5), (2, 1, 7, -1), (2, 2, None, 3)),
    "first customers": write(0, "customers", (7, "NO"), (8, None)),
    "first refresh": refreshed,
    "orders change": write(1, "orders", (1, 1, 8, 11), (3, 1, 9, 4), (1, 2, 0, 0), gone=1),
    "customers change": write(1, "customers", (9, "SE"), (7, "FI")),
    "refresh": refreshed,
    "more orders": write(2, "orders", (1, 3, 9, 2), (2, 1, 9, 8)),
    "more customers": write(2, "customers", (8, "SE"), (9, None), gone=1),
    "a query begins where the table is": kept_by_query,
    "orders go": write(3, "orders", (1, 1, 0, 0), (3, 1, 0, 0), gone=2),
    "customers come again": write(3, "customers", (9, "NO"), (7, "SE")),
    "the query goes on": kept_by_query,
    "all is swept": swept,
    "last orders": write(4, "orders", (1, 1, 7, 1), (2, 2, 9, 6)),
    "the query goes on behind it": kept_by_query,
    "last customers": write(4, "customers", (8, "NO")),
    "last refresh": refreshed,
}


@cache
def states() -> list[State]:
    """Return the state before each operation, and behind the last."""
    machine, found = Machine({}), []
    with machine.running():
        for act in OPERATIONS.values():
            found.append(machine.state)
            act(machine)
            machine.die()
    return [*found, machine.state]


@pytest.mark.parametrize("kind", [KilledError, BrokenError], ids=["a kill", "an error"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_and_a_retry_leave_the_view_as_if_nothing_had_happened(
    name: str, kind: type[BaseException]
) -> None:
    index = list(OPERATIONS).index(name)
    for way, moment in enumerate(Moment, start=2 * (kind is BrokenError)):
        for step in itertools.count((4 * index + way) % EVERY, EVERY):
            assert step < STEPS_MAX, "the sweep does not end"
            fault = Fault(step, moment, kind)
            machine = Machine(states()[index], fault)
            forget_runs_and_logs()
            with machine.running():
                try:
                    if not survived(machine, OPERATIONS[name]):
                        break
                    require_right(machine)
                except (AssertionError, UpsertFlowError) as error:
                    error.add_note(f"{fault}: {machine.steps.names[step]}")
                    raise


def test_every_operation_does_something() -> None:
    """Else nothing that is swept would be wrong."""
    idle = [
        name
        for name, (before, after) in zip(OPERATIONS, itertools.pairwise(states()), strict=True)
        if before == after
    ]
    assert idle == []
    assert len(Table(Machine(states()[-1]).stores["orders"]).snapshot()) > 3
