"""Kept views that begin while another process expires the past.

Streams of a table: `test_stream_promises`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from spark_upsert.errors import ContentionError
from tests.support.kept_machine import (
    Machine,
    kept_by_query,
    refreshed,
    require_right,
    survived,
    swept,
    write,
)
from tests.support.seeds import seeds
from tests.support.stores import BrokenError, Fault, KilledError, Moment

SWEEPS_MAX = 4
"""How often another process disturbs an operation."""

FAULTS = (KilledError, BrokenError)


def fault_of(dice: random.Random, *, below: int) -> Fault:
    """Return what fails one of so many steps."""
    return Fault(dice.randrange(below), dice.choice([*Moment]), dice.choice(FAULTS))


def written(dice: random.Random, machine: Machine, number: int) -> None:
    """Write an epoch of each table of the view."""
    order = [dice.randrange(3), dice.randrange(4), dice.choice([7, 8, 9, None]), number]
    write(number, "orders", tuple(order), gone=dice.random() < 0.3)(machine)
    customer = (dice.choice([7, 8, 9]), dice.choice(["NO", "SE", None]))
    write(number, "customers", customer, gone=dice.random() < 0.3)(machine)


def carried_out(machine: Machine, act: Callable[[Machine], None]) -> None:
    """Do an operation, again behind each sweep that gave up what it had planned."""
    for _ in range(SWEEPS_MAX):
        try:
            survived(machine, act)
        except ContentionError:
            continue
        else:
            return
    raise AssertionError(f"it is not done behind {SWEEPS_MAX} sweeps")


@seeds(8)
def test_p6_what_is_kept_goes_on_whenever_the_past_is_expired(seed: int) -> None:
    """Refreshes and queries take turns, each with one step that fails and is tried again."""
    dice = random.Random(seed)
    machine, numbers = Machine({}), iter(range(1_000))
    other = machine.beside()
    written(dice, other, next(numbers))

    def disturb() -> None:
        if disturbances and len(machine.steps.names) > quiet and dice.random() < 0.1:
            disturbances.pop()
            written(dice, other, next(numbers))
            swept(other)

    for _ in range(6):
        act = dice.choice([refreshed, kept_by_query])
        quiet, disturbances = dice.randrange(80), [None] * dice.randrange(SWEEPS_MAX)
        machine.steps.begin_anew(fault_of(dice, below=300), watch=disturb)
        if dice.random() < 0.5:
            machine.begin_anew()
        elif act is refreshed:
            machine.forget_notes()  # A query behind it begins where the table is.
        with machine.running():
            carried_out(machine, act)
    machine.steps.begin_anew()
    with machine.running():
        require_right(machine)
