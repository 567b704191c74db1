"""Two thousand seeded worlds, and proof that the simulation itself is what it claims to be."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

from spark_upsert.state.manifest import Manifest
from spark_upsert.upsert import epoch
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "2000"))
SLICES = 20


def simulate_all(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("index", range(SLICES))
def test_every_world_keeps_every_promise(index: int) -> None:
    simulate_all(range(index * SEEDS // SLICES, (index + 1) * SEEDS // SLICES))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert simulate(seed).trace == simulate(seed).trace


def test_worlds_differ_and_their_weather_is_bad() -> None:
    traces = [simulate(seed).trace for seed in range(40)]
    assert len({tuple(trace) for trace in traces}) == len(traces)
    text = "\n".join(line for trace in traces for line in trace)
    for event in ("KilledError BEFORE", "KilledError AFTER", "BrokenError AFTER", "merged 1"):
        assert event in text, f"no world saw '{event}'"


def test_a_table_that_forgets_its_transactions_is_caught() -> None:
    with (
        patch.object(Manifest, "has", lambda *_: False),
        pytest.raises(AssertionError, match="P1: a transaction came twice"),
    ):
        simulate_all(range(200))


def test_a_seal_that_does_not_look_at_other_writers_is_caught() -> None:
    with (
        patch.object(epoch.Epoch, "_contested", lambda *_: iter(())),
        pytest.raises(AssertionError, match="P5"),
    ):
        simulate_all(range(200))
