"""Laws of the scheduler: the slow obvious rounds, nothing lost, and how long anybody waits."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.scheduler.scheduler import (
    BANDS,
    HALF_LIFE_MS,
    IDLE_MAX_MS,
    PRIORITY_MAX,
    PRIORITY_MIN,
    ROUND,
    TICK_MS,
    WAITED_MAX_MS,
    WEIGHTS,
    Schedule,
    Turn,
    Urgency,
    bands_of,
    priority_of,
)

MANUALS = st.integers(-1200, 1200) | st.sampled_from([-1000, -251, -250, 0, 249, 250, 750])
STANDINGS = st.builds(
    Urgency, manual=st.none() | MANUALS, read_ms=st.none() | st.integers(0, 400_000)
)
NAMES = st.sampled_from("abcdefghijklmnopqrst")


# -- priorities ---------------------------------------------------------------------------


@given(st.integers(-10, IDLE_MAX_MS + 10), st.integers(-10, WAITED_MAX_MS + 10))
def test_a_priority_is_that_of_the_formula(idle_ms: int, waited_ms: int) -> None:
    idle, waited = max(idle_ms, 0), min(max(waited_ms, 0), WAITED_MAX_MS)
    with localcontext(prec=40):
        decay = Decimal(2) ** (Decimal(-idle) / HALF_LIFE_MS) if idle < IDLE_MAX_MS else Decimal(0)
        exact = 500 * decay + Decimal(waited) / 10
        rounded = int(exact.quantize(Decimal(1), rounding="ROUND_HALF_UP"))
    standing = Urgency(read_ms=IDLE_MAX_MS - idle_ms)
    found = priority_of(standing, now_ms=IDLE_MAX_MS, waited_ms=waited_ms)
    # The table knows a priority to a ten millionth: it may round otherwise within that of a half.
    is_near_a_half = abs(exact % 1 - Decimal("0.5")) < Decimal("1e-6")
    assert found == rounded or (is_near_a_half and abs(found - rounded) == 1)


@given(STANDINGS, st.integers(0, 500_000), st.integers(0, 20_000), st.integers(0, 20_000))
def test_who_waits_longer_is_no_less_urgent(
    standing: Urgency, now_ms: int, one_ms: int, other_ms: int
) -> None:
    found = [
        priority_of(standing, now_ms=now_ms, waited_ms=waited_ms)
        for waited_ms in sorted([one_ms, other_ms])
    ]
    assert found == sorted(found)
    assert found[0] >= PRIORITY_MIN
    assert found[1] <= PRIORITY_MAX + 1000


# -- the order of service -----------------------------------------------------------------

Band = list[str]


def rounds_of(bands: list[Band], turn: Turn) -> Iterator[tuple[str, Turn]]:
    """Yield who is served and whose turn it is then, as the rules are told: band by band."""
    lines = [deque(band) for band in bands]
    band, credit = turn.band, turn.credit
    while any(lines):
        while credit and lines[band]:
            credit -= 1
            yield lines[band].popleft(), Turn(band=band, credit=credit)
        band = (band or len(lines)) - 1
        credit = BANDS[band].weight


TURNS = st.sampled_from(
    [Turn(band=b, credit=c) for b, band in enumerate(BANDS) for c in range(band.weight + 1)]
)


@given(
    st.dictionaries(st.integers(0, 99).map(str), st.integers(-1000, 1000), max_size=60),
    TURNS,
)
def test_an_order_is_that_of_rounds_band_by_band(manuals: dict[str, int], turn: Turn) -> None:
    schedule = Schedule(turn=turn).with_changed(list(manuals), 0)
    urgencies = {name: Urgency(manual=value) for name, value in manuals.items()}
    bands: list[Band] = [[] for _ in BANDS]
    for name, value in manuals.items():
        bands[int(bands_of(np.array([value]))[0])].append(name)
    expected = [*rounds_of(bands, turn)]
    service = schedule.plan_service(0, urgencies)
    assert service.names == [name for name, _ in expected]
    turns = [service.turn_after(count + 1) for count in range(len(expected))]
    assert turns == [each for _, each in expected]


@given(
    st.dictionaries(st.integers(0, 99).map(str), st.integers(-1000, 1000), max_size=40),
    TURNS,
    st.integers(0, 40),
)
def test_a_cut_decides_nothing(manuals: dict[str, int], turn: Turn, count: int) -> None:
    schedule = Schedule(turn=turn).with_changed(list(manuals), 0)
    urgencies = {name: Urgency(manual=value) for name, value in manuals.items()}
    whole = schedule.plan_service(0, urgencies)
    first = whole.names[:count]
    behind = schedule.after_service(whole, len(first), first, [], 0)
    assert first + behind.plan_service(0, urgencies).names == whole.names


@given(
    st.dictionaries(NAMES, STANDINGS), st.lists(NAMES), st.integers(0, 10**6), st.booleans(), TURNS
)
def test_all_that_wait_are_served_once_and_the_lowest_band_alone_is_deferred(
    urgencies: dict[str, Urgency], names: list[str], now_ms: int, defers: bool, turn: Turn
) -> None:
    schedule = Schedule(turn=turn).with_changed(names, 0)
    service = schedule.plan_service(now_ms, urgencies, defers_lowest=defers)
    tick_ms = now_ms - now_ms % TICK_MS
    lowest = {
        name
        for name in names
        if priority_of(urgencies.get(name, Urgency()), now_ms=tick_ms, waited_ms=tick_ms) < 0
    }
    assert sorted(service.names) == sorted(set(names) - (lowest if defers else set()))


@given(st.lists(st.tuples(st.lists(NAMES), st.integers(0, 1000))))
def test_a_place_and_a_time_are_those_of_the_first_mark(
    marks: list[tuple[list[str], int]],
) -> None:
    schedule = Schedule()
    expected: dict[str, int] = {}
    for names, now_ms in sorted(marks, key=lambda mark: mark[1]):
        schedule = schedule.with_changed(names, now_ms)
        for name in names:
            expected.setdefault(name, now_ms)
    assert list(schedule.dirty.items()) == list(expected.items())


# -- a life of arrivals and services ------------------------------------------------------


class Life:
    """A schedule under arrivals and services, and how many turns each has waited."""

    def __init__(self, manuals: Mapping[str, int], *, has_deferral: bool) -> None:
        self.manuals = manuals
        self.urgencies = {name: Urgency(manual=value) for name, value in manuals.items()}
        self.has_deferral = has_deferral
        self.schedule = Schedule()
        self.now_ms = 0
        self.turns = 0
        """So many were served in their turn."""
        self.since: dict[str, int] = {}
        self.since_aged: dict[str, int] = {}

    def mark(self, names: list[str]) -> None:
        self.schedule = self.schedule.with_changed(names, self.now_ms)
        for name in names:
            self.since.setdefault(name, self.turns)

    def serve(self, count: int, dice: Any, *, defers: bool) -> None:
        """Serve some in their turn, one perhaps out of it, and let some have more."""
        service = self.schedule.plan_service(self.now_ms, self.urgencies, defers_lowest=defers)
        self._note_ages()
        served = service.names[:count]
        behind = service.names[count + 1 :]
        extra = [dice.draw(st.sampled_from(behind))] if behind and dice.draw(st.booleans()) else []
        for place, name in enumerate(served):
            self._check(name, self.turns + place)
        self.turns += len(served)
        left = [name for name in served + extra if dice.draw(st.booleans())]
        self.schedule = self.schedule.after_service(
            service, len(served), served + extra, left, self.now_ms
        )
        for name in served + extra:
            self.since.pop(name)
            self.since_aged.pop(name, None)
        for name in left:
            self.since[name] = self.turns
        for name in self.schedule.dirty:
            self._check(name, self.turns)

    def _note_ages(self) -> None:
        for name, waited_ms in zip(
            self.schedule.dirty, self.schedule.dirty.waited_ms(self.now_ms), strict=True
        ):
            if waited_ms >= WAITED_MAX_MS + TICK_MS:
                self.since_aged.setdefault(name, self.turns)

    def _check(self, name: str, turns: int) -> None:
        """Hold the bounds that `spark_upsert.scheduler.scheduler` states."""
        count = len(self.manuals)
        if not self.has_deferral:
            assert turns - self.since[name] <= ROUND * (count + 5)
        if name in self.since_aged:
            weight = next(w for least, w in AGED if self.manuals[name] >= least)
            rounds = -(-count // weight) + 1
            assert turns - self.since_aged[name] <= ROUND * rounds


AGED = ((-250, 8), (-500, 4), (-750, 2), (-1000, 1))
"""The least priority, and the weight of the band that it has come to."""


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(NAMES, st.integers(-1000, 1000), min_size=1),
    st.sampled_from(["never", "always", "at times"]),
    st.data(),
)
def test_nobody_waits_for_longer_than_is_stated(
    manuals: dict[str, int], deferral: str, dice: Any
) -> None:
    life = Life(manuals, has_deferral=deferral != "never")
    names = st.lists(st.sampled_from(sorted(manuals)))
    for _ in range(dice.draw(st.integers(1, 60))):
        life.now_ms += dice.draw(st.sampled_from([0, 1, 49, 50, 900, 4000, 11_000]))
        life.mark(dice.draw(names))
        defers = deferral == "always" or (deferral == "at times" and dice.draw(st.booleans()))
        life.serve(dice.draw(st.integers(0, 20)), dice, defers=defers)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(24, 40), min_size=5, max_size=5),
    st.integers(0, 60),
    st.integers(1, 200),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_while_bands_have_somebody_yet_to_serve_service_follows_their_weights(
    sizes: list[int], skipped: int, counted: int, cuts: list[int]
) -> None:
    names = {f"{band}.{n}": band for band, size in enumerate(sizes) for n in range(size)}
    urgencies = {
        name: Urgency(manual=[-500, 0, 300, 600, 900][band]) for name, band in names.items()
    }
    schedule = Schedule().with_changed(list(names), 0)
    order: list[str] = []
    cut = iter(cuts * (skipped + counted))
    while len(order) < skipped + counted:
        service = schedule.plan_service(0, urgencies)
        served = service.names[: next(cut)]
        schedule = schedule.after_service(service, len(served), served, served, 0)
        order += served
    found = Counter(names[name] for name in order[skipped : skipped + counted])
    per_weight = [found[band] / weight for band, weight in enumerate(WEIGHTS)]
    assert max(per_weight) - min(per_weight) <= 1
