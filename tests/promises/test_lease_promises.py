"""What begins under an expiry: loaders and kept views, while another process expires the past.

Streams of a table: `test_stream_promises`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_upsert.errors import ContentionError
from spark_upsert.loader import Loader, TableRows
from spark_upsert.table.table import Table
from tests.promises.layouts import OF_SEEDS
from tests.support.kept_machine import (
    Machine,
    kept_by_query,
    refreshed,
    require_right,
    survived,
    swept,
    write,
)
from tests.support.loading import carried
from tests.support.seeds import seeds
from tests.support.stores import BrokenError, Fault, FaultyStore, KilledError, Moment, Steps
from tests.support.streams import Lived

SWEEPS_MAX = 4
"""How often another process disturbs an operation."""

LIVES_MAX = 100
"""More than a loader needs to come to its end."""

FAULTS = (KilledError, BrokenError)


@dataclass(frozen=True)
class OnStore(TableRows):
    """A source whose table lies in a store."""

    store: Any = None
    now: Any = None

    def open(self) -> Table:
        return Table(self.store, clock=self.now)


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


@OF_SEEDS
def test_p6_a_loader_goes_on_whenever_the_past_is_expired(seed: int) -> None:
    """Each life begins where the last one noted it, and has one step that fails."""
    dice = random.Random(seed)
    lived = Lived()
    at: dict[int, dict[int, int]] = {}

    def append() -> None:
        lived.write({key: dice.randrange(100) for key in dice.sample(range(40), 20)})
        at[lived.table.log.head().version] = lived.rows

    def disturb() -> None:
        if disturbances and dice.random() < 0.1:
            disturbances.pop()
            append()
            lived.table.compact(full=True)
            lived.expire(after_s=1)

    append()
    state: dict[str, Any] = {}
    found: list[tuple[int, int]] = []
    for _ in range(LIVES_MAX):
        disturbances = [None] * dice.randrange(5)
        steps = Steps(fault_of(dice, below=100), watch=disturb)
        store = FaultyStore(lived.store, steps)
        source = OnStore(path="here", consumer="trainer", store=store, now=lived.now)
        loader = Loader(source, batch_rows=3, window_rows=9, seed=seed, ahead=0)
        noted = len(found)
        try:
            if state:
                loader.load_state_dict(carried(state))
            while loader.epoch < 2:
                for batch in loader:
                    found += zip(*(batch[name].to_pylist() for name in ("k", "v")), strict=True)
                    if dice.random() < 0.5:
                        state, noted = loader.state_dict(), len(found)
        except FAULTS:
            del found[noted:]
        else:
            break
    version = max(each for each in at if each <= state["splits"]["version"])
    assert sorted(found) == sorted([*at[version].items()] * 2)
