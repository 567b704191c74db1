"""The bases of offsets survive kills, errors and power losses at every step.

The next process goes on from the offsets that are noted: it must find the base of each that a
replay may need, and come to the very texts of a life without faults.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_upsert.errors import StorageError
from spark_upsert.store import LocalStore, Store
from tests.support.disk import Disk, Loss
from tests.support.notebooks import Notebook, few_are_many, offsets_over
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
)

KEPT = 2
HISTORY = [
    {"a": 1, "b": 1, "c": 1},
    {"a": 2, "b": 1, "c": 1},
    {"a": 3, "b": 3, "c": 1},
    {"a": 3, "b": 4, "c": 4, "d": 1},
    {"a": 3, "b": 4, "c": 4},
    {"a": 9, "b": 9, "c": 9},
    {"a": 9, "b": 9},
    {"a": 10, "b": 10, "e": 10},
    {"a": 10, "b": 10, "e": 11},
]
KINDS: list[type[BaseException]] = [KilledError, BrokenError]
STEPS_MAX = 500


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with few_are_many(delta=1, kept=KEPT):
        yield


def texts() -> list[str]:
    """Return what a life without faults notes."""
    notebook = Notebook(lambda: offsets_over(MemoryStore()))
    notebook.note_all(HISTORY)
    return notebook.noted


def look(store: Store, noted: list[str]) -> None:
    """Read the offsets that may be replayed, as a fresh process."""
    reader = Notebook(lambda: offsets_over(store))
    for number in range(max(1, len(noted) - KEPT - 1), len(noted)):
        assert reader.read(noted[number]) == HISTORY[number - 1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
def test_a_fault_at_any_step_changes_no_text(kind: type[BaseException], moment: Moment) -> None:
    expected = texts()
    for step in range(STEPS_MAX):
        store, steps = MemoryStore(), Steps(Fault(step, moment, kind))
        notebook = Notebook(lambda: offsets_over(FaultyStore(store, steps)))  # noqa: B023
        try:
            notebook.note_all(HISTORY)
        except (KilledError, BrokenError):
            look(store, notebook.noted)
        if not steps.struck:
            assert step > 10
            return
        after = Notebook(lambda: offsets_over(store))  # noqa: B023
        after.noted = notebook.noted
        after.note_all(HISTORY)
        assert after.noted == expected, f"step {step}"
        look(store, after.noted)
    pytest.fail(f"more than {STEPS_MAX} steps")


@pytest.mark.parametrize("loss", Loss, ids=lambda loss: f"taking {loss.value}")
def test_a_power_loss_at_any_step_leaves_the_base_of_each_offset(
    tmp_path: Path, loss: Loss
) -> None:
    """Spark notes an offset at once and durably, so that its base has to be durable before."""
    expected, number = texts(), itertools.count()

    def at(root: Path) -> LocalStore:
        return LocalStore(root / "lake" / "_offsets")

    for step in range(STEPS_MAX):
        disk, steps = Disk(tmp_path / f"disk{next(number)}"), Steps(Fault(step, Moment.AFTER))
        notebook = Notebook(lambda: offsets_over(at(disk.root)))  # noqa: B023
        with disk.traced(steps), suppress(KilledError, StorageError):
            notebook.note_all(HISTORY)
        survivor = at(disk.lose_power(tmp_path / f"disk{next(number)}", loss))
        look(survivor, notebook.noted)
        if not steps.struck:
            assert step > 30
            return
        # A second process goes on from what the first left, before the power fails.
        after = Notebook(lambda: offsets_over(at(disk.root)))  # noqa: B023
        after.noted = notebook.noted
        with disk.traced(Steps()):
            after.note_all(HISTORY)
        assert after.noted == expected, f"step {step}"
        look(at(disk.lose_power(tmp_path / f"disk{next(number)}", loss)), after.noted)
    pytest.fail(f"more than {STEPS_MAX} steps")
