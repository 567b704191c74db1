"""Seeded mills: a flow between tables that is killed at any step keeps each row once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from unittest.mock import patch

import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.flow import local, operators, rescale
from tests.planted.bug import Patch
from tests.simulation.mill import live

MILLS = int(os.environ.get("SIMULATION_MILLS", "8"))
"""The long form lives more of them."""


@cache
def life(seed: int) -> tuple[str, ...]:
    """Return the trace of a mill."""
    return tuple(live(seed).trace)


@pytest.mark.parametrize("seed", range(MILLS))
def test_every_reading_comes_through_once(seed: int) -> None:
    life(seed)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert tuple(live(0).trace) == life(0)


def test_mills_are_killed_between_the_tables_of_a_batch() -> None:
    pairs = [pair for seed in range(MILLS) for pair in pairwise(life(seed))]
    # A table has the batch already, and the next one has not.
    assert any(
        one == "counts: None" and other.startswith("latest: ") and "None" not in other
        for one, other in pairs
    )
    assert any(one.startswith("killed") for one, _ in pairs)
    assert any(one.startswith("compacted") for one, _ in pairs)


def _has_no_id() -> Patch:
    return patch.object(rescale, "read_record", lambda *_: None)


def _has_no_transaction() -> Patch:
    return patch.object(local, "_transactions", lambda _: ())


def _does_not_drain() -> Patch:
    return patch.object(operators.Element, "drain", lambda _: iter(()))


PLANTED: dict[str, Callable[[], Patch]] = {
    "a flow draws its id anew at each start": _has_no_id,
    "tables are not told whose batch it is": _has_no_transaction,
    "an element ends without draining": _does_not_drain,
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_bug_of_flows_between_tables_is_caught(plant: Callable[[], Patch]) -> None:
    def look() -> None:
        for seed in range(40):
            live(seed)

    with plant(), pytest.raises((AssertionError, UpsertFlowError)):
        look()
