"""Seeded crowds of inputs: nobody waits for longer than is stated, and nothing is lost."""

from __future__ import annotations

import random

import pytest

from tests.simulation.crowd import Crowd, Wait, live, recover


@pytest.mark.parametrize("first", range(0, 40, 10), ids=lambda first: f"seeds from {first}")
def test_every_crowd_is_served_as_is_promised(first: int) -> None:
    for seed in range(first, first + 10):
        live(seed)


def test_the_same_seed_gives_the_same_services() -> None:
    assert live(3).served == live(3).served


def test_crowds_wait_long_enough_to_tell() -> None:
    waits = [served.waited_ms for seed in range(10) for served in live(seed).served]
    assert max(waits) > 20_000
    assert sum(each > 10_000 for each in waits) > 200


def test_ten_thousand_inputs_under_overload_are_served_as_is_promised() -> None:
    dice = random.Random(1)
    crowd = Crowd([dice.choice([None, 800, 300, -300, -1000]) for _ in range(10_000)], limit=2_000)
    names = sorted(crowd.members)
    for number in range(16):
        for name in dice.choices(names, k=200 if number < 3 else 6_000):
            crowd.arrive(name, 1)
        crowd.batch()
        crowd.now_ms += 1_000
    assert len(crowd.dirty) > 5_000
    crowd.limit = 20_000
    recover(crowd)


def test_a_wait_that_is_too_long_is_told() -> None:
    crowd = Crowd([None, None], limit=1)
    crowd.arrive("t00000", 1)
    crowd.members["t00000"].wait = Wait(crowd.now_ms, crowd.turns - 10_000, 1)
    with pytest.raises(AssertionError, match="starves"):
        crowd.batch()
