"""Objects of simulated worlds are lost: each use of the table names them, or does not need them."""

from __future__ import annotations

import os

import pytest

from tests.planted import BUGS
from tests.simulation.losses import (
    PER_WORLD,
    WrongResultError,
    lose_objects,
    lose_objects_of_many,
)

LOSSES = int(os.environ.get("SIMULATION_LOSSES", "48"))
"""Lost objects of single tables; the long form loses more: `make chaos`."""


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(LOSSES // PER_WORLD), ids="seed {}".format)
def test_no_use_of_a_table_goes_on_with_wrong_rows(seed: int) -> None:
    outcomes = {outcome for _, _, outcome in lose_objects(seed)}
    assert outcomes >= {"the same"}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(2), ids="seed {}".format)
def test_no_use_of_many_tables_goes_on_with_wrong_rows(seed: int) -> None:
    assert {outcome for _, _, outcome in lose_objects_of_many(seed)} == {"the same", "named"}


PLANTED = {
    "the first missing version is the end of the log": 0,
    "a version is put into a gap": 3,
    "a commit is published into a gap": 29,
    "a version that was lost is as old as those that were cut off": 4,
}
"""Bugs, and a world that finds each."""


@pytest.mark.parametrize(("name", "seed"), PLANTED.items(), ids=str)
def test_a_planted_bug_is_caught(name: str, seed: int) -> None:
    [planted] = [each for each in BUGS if each.name == name]
    with planted.plant(), pytest.raises(WrongResultError):
        lose_objects(seed)
