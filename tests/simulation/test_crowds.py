"""Seeded crowds of inputs: nobody waits for longer than is stated, and nothing is lost."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest

from tests.simulation.crowd import OVERLOAD, Crowd, Wait, live, overloaded, recover
from tests.simulation.waits import COLORS, TARGET, bound_s, longest, picture


@pytest.mark.parametrize("first", range(0, 40, 10), ids=lambda first: f"seeds from {first}")
@pytest.mark.sweep(1)
def test_every_crowd_is_served_as_is_promised(first: int) -> None:
    for seed in range(first, first + 10):
        live(seed)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sweep(2)
def test_writers_are_held_up_however_often_the_query_restarts(seed: int) -> None:
    waits = [served.waited_ms for served in overloaded(seed).served]
    assert max(waits) <= (2 * OVERLOAD + 2) * 1_000


def test_the_same_seed_gives_the_same_services() -> None:
    assert live(3).served == live(3).served


@pytest.mark.slow
def test_crowds_wait_long_enough_to_tell() -> None:
    waits = [served.waited_ms for seed in range(10) for served in live(seed).served]
    assert max(waits) > 20_000
    assert sum(each > 10_000 for each in waits) > 200


@pytest.mark.slow
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


def test_a_picture_has_a_line_for_each_priority_and_its_bound() -> None:
    crowd = Crowd(list(COLORS), limit=1)
    for name in crowd.members:
        crowd.arrive(name, 1)
    while crowd.dirty:
        crowd.batch()
        crowd.now_ms += 1_000
    waits = longest(crowd)
    assert sorted(waited_s for [(_, waited_s)] in waits.values()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    drawn = ElementTree.fromstring(picture(waits))
    kept = ElementTree.fromstring(TARGET.read_text(encoding="utf-8"))
    for image in (drawn, kept):
        tags = [each.tag.rpartition("}")[2] for each in image.iter()]
        assert tags.count("polyline") == len(COLORS)
        assert len([each for each in image.iter() if "stroke-dasharray" in each.attrib]) == 2


def test_a_bound_in_seconds_is_that_of_the_turns_of_a_query() -> None:
    assert bound_s(800) == bound_s(-250) == pytest.approx(10.05 + 16 * 1.251 + 1)
    assert bound_s(-1000) == pytest.approx(10.05 + 16 * 10.001 + 1)
