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
from spark_upsert.table.changelog.read import Deduplication
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


FIRST = {
    "a batch of kept rows that comes again is one more epoch": 1,
    "a feed has the changes of each epoch, those that were undone among them": 3,
    "a feed over an expired past tells of rows that are as they were": 25,
    "a join that finds its partners by an index gives lone rows for those of others": 2,
    "a late row beats the row that it is late for": 3,
    "a mirror that is up to date is published again": 6,
    "a preimage in a change feed is a row": 3,
    "a step is cut by the hash of a table on which rows depend in two ways": 3,
    "a table does not remember the batch": 4,
    "a twin of older columns is named": 4,
    "a view does not see that a table was set back": 2,
    "a view is kept on from a table that was put in the place of another": 1,
    "an error entry is the row of its key": 3,
    "keys are looked up by hashes without their prefix": 1,
    "rows that were deleted are found by their keys": 3,
    "the changes of a group are those of its newest entries alone": 1,
    "the last rows of a match are lost where a batch is full": 7,
    "the newest run wins in a mirror, whatever the order keys say": 3,
    "the twin of a folding table has the entries as they came": 6,
    "versions do not order changes": 10,
    "whether a folded row lives is asked of the newest entry alone": 7,
    "who takes the root over says so only behind its first batch": 2,
}
"""The attempt that notices a bug, counted from 0, where those before it take long.

The others follow it: where a test has changed, a number is out of date and nothing else.
"""


@pytest.mark.slow
@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_planted_bug_is_caught(planted: Bug) -> None:
    attempts = list(runs_of(planted.caught_by))
    first = FIRST.get(planted.name, 0)
    with planted.plant():
        for attempt in attempts[first:] + attempts[:first]:
            forget_runs_and_logs()
            try:
                attempt()
            except NOTICED:
                break
        else:
            pytest.fail(f"{planted.caught_by.__name__} does not notice")
    forget_runs_and_logs()


def test_first_attempts_are_of_bugs() -> None:
    assert {planted.name for planted in BUGS} >= FIRST.keys()


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= 25
    assert len({planted.name for planted in BUGS}) == len(BUGS)


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    broken = {planted.caught_by.__name__.split("_")[1] for planted in BUGS}
    assert broken == {"p1", "p2", "p3", "p4", "p5", "p6", "p7"}
