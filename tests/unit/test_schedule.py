"""Who is served next: the cases of the rules of priorities, bands, the queue and the rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from spark_upsert.scheduler.scheduler import (
    TICK_MS,
    DirtySet,
    Schedule,
    Service,
    Turn,
    Urgency,
    bands_of,
    priority_of,
)

NOW_MS = 1_000_000


def manual(value: int) -> Urgency:
    return Urgency(manual=value)


def idle(ms: int) -> Urgency:
    """Return the standing of an input that was read so long ago, and that nothing was said of."""
    return Urgency(read_ms=NOW_MS - ms)


def band(points: int) -> str:
    return f"B{bands_of(np.array([points]))[0]}"


@pytest.mark.parametrize(
    ("standing", "waited_ms", "points", "expected"),
    [
        pytest.param(manual(750), 0, 750, "B4", id="1: manual 750"),
        pytest.param(
            Urgency(manual=750, read_ms=NOW_MS), 0, 750, "B4", id="1: manual 750, just read"
        ),
        pytest.param(manual(5000), 0, 1000, "B4", id="2: manual 5000"),
        pytest.param(manual(-5000), 0, -1000, "B0", id="2: manual -5000"),
        pytest.param(idle(0), 0, 500, "B3", id="3: idle for no time"),
        pytest.param(idle(30_000), 0, 250, "B2", id="3: idle for 30 s"),
        pytest.param(idle(60_000), 0, 125, "B1", id="3: idle for 60 s"),
        pytest.param(idle(300_000), 0, 0, "B1", id="3: idle for 300 s"),
        pytest.param(Urgency(), 0, 0, "B1", id="5: never read"),
        pytest.param(
            Urgency(manual=0, read_ms=NOW_MS), 0, 0, "B1", id="6: manual 0 switches the rest off"
        ),
        pytest.param(Urgency(), 0, 0, "B1", id="7: nobody asks when it was read"),
        pytest.param(manual(0), 2500, 250, "B2", id="8: manual 0, waited 2.5 s"),
        pytest.param(manual(0), 7500, 750, "B4", id="8: manual 0, waited 7.5 s"),
        pytest.param(manual(-250), 10_000, 750, "B4", id="9: manual -250, waited 10 s"),
        pytest.param(manual(-251), 10_000, 749, "B3", id="9: manual -251, waited 10 s"),
        pytest.param(manual(-1000), 10_000, 0, "B1", id="11: manual -1000, waited 10 s"),
        pytest.param(manual(-1000), 10**9, 0, "B1", id="11: manual -1000, waited for days"),
        pytest.param(manual(1000), 10_000, 2000, "B4", id="12: manual 1000, waited 10 s"),
        pytest.param(idle(-5000), 0, 500, "B3", id="14: read in the future"),
        pytest.param(manual(10), -5000, 10, "B1", id="14: waits since the future"),
    ],
)
def test_an_input_has_a_priority_and_a_band(
    standing: Urgency, waited_ms: int, points: int, expected: str
) -> None:
    found = priority_of(standing, now_ms=NOW_MS, waited_ms=waited_ms)
    assert (found, band(found)) == (points, expected)


def urgencies_of(**values: int) -> dict[str, Urgency]:
    return {name: manual(value) for name, value in values.items()}


def first_of(service: Service, round_: int) -> str:
    """Return who is served in a round, in words."""
    names = zip(service.names, service.rounds.tolist(), strict=True)
    return " ".join(name for name, each in names if each == round_)


def drained(schedule: Schedule, service: Service, count: int | None = None) -> Schedule:
    """Return what is behind a service that serves some whole, by default all."""
    count = len(service.names) if count is None else count
    return schedule.after_service(service, count, service.names[:count], [], NOW_MS)


def test_case_15_bands_are_drained_from_the_highest_and_each_in_its_order() -> None:
    urgencies = urgencies_of(low=10, hi=800, mid=300, hi2=900, neg=-50)
    schedule = Schedule()
    for name in ("low", "hi", "mid", "hi2", "neg", "hi"):
        schedule = schedule.with_changed([name], 0)
    service = schedule.plan_service(0, urgencies)
    assert service.names == ["hi", "hi2", "mid", "low", "neg"]
    assert drained(schedule, service).plan_service(0, urgencies).names == []


def test_case_16_who_is_marked_again_and_again_is_served_once() -> None:
    schedule = (
        Schedule().with_changed(["hot"], 0).with_changed(["hot"], 1).with_changed(["hot", "hot"], 2)
    )
    assert schedule.plan_service(2).names == ["hot"]
    schedule = drained(schedule, schedule.plan_service(2)).with_changed(["hot"], 3)
    assert schedule.plan_service(3).names == ["hot"]


CASE_17 = [*(f"h{n}" for n in range(1, 11)), "l1", "l2", "n1"]
STANDINGS_17 = {name: manual({"h": 800, "l": 10, "n": -10}[name[0]]) for name in CASE_17}


def test_case_17_a_round_serves_bands_by_their_weights() -> None:
    service = Schedule().with_changed(CASE_17, 0).plan_service(0, STANDINGS_17)
    assert first_of(service, 1) == "h1 h2 h3 h4 h5 h6 h7 h8 l1 n1"
    assert first_of(service, 2) == "h9 h10 l2"


def test_credit_stays_with_a_band_whose_only_one_has_more() -> None:
    urgencies = urgencies_of(hot=800, low=0)
    schedule = Schedule().with_changed(["hot", "low"], 0)
    served: list[str] = []
    for _ in range(18):
        service = schedule.plan_service(0, urgencies)
        name = service.names[0]
        schedule = schedule.after_service(service, 1, [name], [name], 0)
        served.append(name)
    assert served == (["hot"] * 8 + ["low"]) * 2


CASE_19 = ["h1", "h2", "n1", "n2"]


def test_cases_19_and_20_a_deferred_band_is_passed_over_and_served_when_released() -> None:
    schedule = Schedule().with_changed(CASE_19, 0)
    service = schedule.plan_service(0, STANDINGS_19, defers_lowest=True)
    assert service.names == ["h1", "h2"]
    schedule = drained(schedule, service)
    assert list(schedule.dirty) == ["n1", "n2"]
    assert schedule.plan_service(0, STANDINGS_19, defers_lowest=True).names == []
    assert schedule.plan_service(0, STANDINGS_19).names == ["n1", "n2"]


STANDINGS_19 = {name: manual({"h": 800, "n": -10}[name[0]]) for name in CASE_19}


def test_who_grew_older_than_the_lowest_band_is_deferred_no_more() -> None:
    schedule = Schedule().with_changed(["n"], 0)
    urgencies = urgencies_of(n=-10)
    assert schedule.plan_service(50, urgencies, defers_lowest=True).names == []
    assert schedule.plan_service(100, urgencies, defers_lowest=True).names == ["n"]


def test_case_21_the_wait_of_who_gets_more_and_more_goes_on() -> None:
    schedule, found = Schedule(), []
    for now_ms in range(0, 500, 100):
        schedule = schedule.with_changed(["often"], now_ms)
        waited_ms = int(schedule.dirty.waited_ms(now_ms)[0])
        found.append(priority_of(Urgency(), now_ms=now_ms, waited_ms=waited_ms))
    assert found == [0, 10, 20, 30, 40]


def test_who_comes_into_a_band_stands_there_by_the_time_it_has_waited() -> None:
    schedule = Schedule().with_changed(["aged"], 0).with_changed(["young"], 2500)
    urgencies = urgencies_of(aged=0, young=250)
    assert schedule.plan_service(2450, urgencies).names == ["young", "aged"]
    assert schedule.plan_service(2500, urgencies).names == ["aged", "young"]


def test_bands_change_at_ticks_alone() -> None:
    schedule = Schedule().with_changed(["other"], 0).with_changed(["one"], 1)
    urgencies = urgencies_of(other=249, one=250)
    bands = [
        schedule.plan_service(now_ms, urgencies).bands.tolist() for now_ms in range(3 * TICK_MS)
    ]
    assert [bands[now] != bands[now - 1] for now in range(1, 3 * TICK_MS)] == [
        now == TICK_MS for now in range(1, 3 * TICK_MS)
    ]


def test_a_clock_that_went_back_lets_nobody_wait_since_the_future() -> None:
    schedule = Schedule().with_changed(["a"], 10**12).with_changed(["b"], 500)
    assert list(schedule.dirty.items()) == [("a", 500), ("b", 500)]
    assert schedule.dirty.waited_ms(1500).tolist() == [1000, 1000]


def test_a_clock_that_leaps_makes_all_as_old_as_one_can_be() -> None:
    schedule = Schedule().with_changed(["old"], 0).with_changed(["new"], 10**12)
    assert schedule.plan_service(10**12, urgencies_of(old=-1000, new=100)).names == ["old", "new"]
    assert schedule.plan_service(10**13, urgencies_of(old=-1000, new=100)).names == ["new", "old"]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: DirtySet([("a", 1), ("a", 2)]), id="twice"),
        pytest.param(lambda: DirtySet([("a", 2), ("b", 1)]), id="times that fall"),
        pytest.param(lambda: Turn(band=5), id="no such band"),
        pytest.param(lambda: Turn(band=4, credit=9), id="more credit than weight"),
        pytest.param(lambda: Turn(band=4, credit=-1), id="debt"),
    ],
)
def test_what_cannot_be_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"twice|cannot have"):
        build()
