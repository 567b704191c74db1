"""What a query over many inputs promises of who is served: bounds, weights, and that none is lost.

Plain functions of a seed, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import random
from collections import Counter

from tests.simulation.crowd import AGED_MS, Crowd, live, recover
from tests.support.seeds import seeds

SEEDS = seeds(3)

CROWDS = 6
"""So many for each seed."""


@SEEDS
def test_p7_no_input_waits_for_longer_than_is_stated(seed: int) -> None:
    for number in range(CROWDS):
        live(CROWDS * seed + number, batches=60)


@SEEDS
def test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still(seed: int) -> None:
    dice = random.Random(seed)
    others = [dice.choice([None, 600, 300, -1]) for _ in range(6)]
    crowd = Crowd([*[800] * 6, *others], limit=3)
    names = sorted(crowd.members)
    for name in names:
        crowd.arrive(name, *[1] * 80)
    for _ in range(150):
        crowd.arrive(dice.choice(names), 1)
        crowd.batch()
    recover(crowd)


BANDS = {900: 8, 600: 4, 300: 2, 0: 1, -500: 1}
"""A priority of each band, and its weight."""


@SEEDS
def test_p7_service_follows_the_weights(seed: int) -> None:
    dice = random.Random(seed)
    # No batch serves all of a band, which would be passed over then.
    crowd = Crowd([priority for priority in BANDS for _ in range(24)], limit=dice.randint(1, 20))
    for name in crowd.members:
        crowd.arrive(name, *[1] * 40)
    # Who was served last is told by who waits: nobody is served whole.
    found: Counter[int] = Counter()
    for _ in range(400 // crowd.limit):
        for name in crowd.batch():
            found[crowd.members[name].priority or 0] += 1
        per_weight = [found[priority] / weight for priority, weight in BANDS.items()]
        assert max(per_weight) - min(per_weight) <= 1


@SEEDS
def test_p7_a_flood_keeps_no_small_input_waiting(seed: int) -> None:
    dice = random.Random(seed)
    crowd = Crowd([None] * 60, limit=2_000)
    names = sorted(crowd.members)
    for flooded in names[:3]:
        crowd.arrive(flooded, *[100] * 1_000)
    for _ in range(30):
        small = dice.sample(names[3:], dice.randint(0, 40))
        for name in small:
            crowd.arrive(name, dice.randint(1, 5))
        served = crowd.batch()
        assert set(small) <= set(served), "a small one waits"
        assert set(served) - set(small) >= set(names[:3]), "nothing is left for the flood"
        crowd.now_ms += dice.choice([100, 1_000, 5_000])


@SEEDS
def test_p7_what_is_larger_than_its_share_has_its_turn(seed: int) -> None:
    dice = random.Random(seed)
    crowd = Crowd([None, -1000, *[800] * 6], limit=10)
    for name in sorted(crowd.members)[:2]:
        crowd.arrive(name, *[9] * 20)
    for _ in range(300):
        for name in sorted(crowd.members)[2:]:
            crowd.arrive(name, dice.randint(1, 3))
        crowd.batch()
    slow = [crowd.members[name].taken for name in sorted(crowd.members)[:2]]
    assert min(slow) >= 15, "it is always too large for what is left"


@SEEDS
def test_p7_who_is_deferred_is_served_when_it_is_old(seed: int) -> None:
    dice = random.Random(seed)
    crowd = Crowd([-1000, -600, *[800] * 20], limit=4)
    low, names = sorted(crowd.members)[:2], sorted(crowd.members)[2:]
    for name in low:
        crowd.arrive(name, 1)
    begun_ms = crowd.now_ms
    if seed:
        # It began to wait when the clock was far ahead.
        crowd.now_ms += 3_600_000
        crowd.batch(defers=True)
        crowd.now_ms = begun_ms
    while crowd.now_ms - begun_ms < 5 * AGED_MS:
        for name in dice.choices(names, k=4):
            crowd.arrive(name, 1)
        served = crowd.batch(defers=True)
        if set(served) & set(low):
            least = {name: -10 * (crowd.members[name].priority or 0) for name in low}
            assert all(crowd.now_ms - begun_ms >= least[name] for name in low if name in served)
        crowd.now_ms += 250
    assert not set(low) & set(crowd.dirty), "it is never released"
    recover(crowd)


@SEEDS
def test_p7_who_is_released_is_served_while_time_stands_still(seed: int) -> None:
    crowd = Crowd([-1, *[800] * 4], limit=2 + seed)
    names = sorted(crowd.members)
    for name in names:
        crowd.arrive(name, *[1] * 30)
    for _ in range(10):
        assert names[0] not in crowd.batch(defers=True)
    assert any(names[0] in crowd.batch() for _ in range(10))
