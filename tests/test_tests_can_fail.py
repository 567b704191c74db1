"""Plant bugs and see the promises break: a test that cannot fail is worth nothing.

Each bug is a change of one rule, made in this process by a patch (`tests.planted`). For each, the
named test of `tests.promises` is run until it fails; a bug that survives is a hole in the tests.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.table.changes.modes import Deduplication
from tests.planted import BUGS, Bug
from tests.support.disk import Loss
from tests.support.stores import forget_runs_and_logs
from tests.support.workload import OPERATIONS


def runs_of(test: Callable[..., None]) -> Iterator[Callable[[], None]]:
    """Yield the test with each of its arguments."""
    arguments: dict[str, Sequence[Any]] = {
        "seed": range(72),
        "index": range(len(OPERATIONS)),
        "loss": list(Loss),
        "mode": [mode.value for mode in Deduplication],
        "other": [False, True],
    }
    names = list(inspect.signature(test).parameters)
    for values in itertools.product(*(arguments[name] for name in names)):
        yield partial(test, **dict(zip(names, values, strict=True)))


NOTICED = (AssertionError, UpsertFlowError, pytest.fail.Exception)
"""How a test says no. Anything else would be a mistake in the patch."""


@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_planted_bug_is_caught(planted: Bug) -> None:
    with planted.plant():
        for attempt in runs_of(planted.caught_by):
            forget_runs_and_logs()
            try:
                attempt()
            except NOTICED:
                break
        else:
            pytest.fail(f"{planted.caught_by.__name__} does not notice")
    forget_runs_and_logs()


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= 25
    assert len({planted.name for planted in BUGS}) == len(BUGS)


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    broken = {planted.caught_by.__name__.split("_")[1] for planted in BUGS}
    assert broken == {"p1", "p2", "p3", "p4", "p5", "p6", "p7"}
