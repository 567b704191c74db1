"""The pressure governor: its ladder by the spec's table, its hysteresis, and clocks that jump."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from spark_upsert.scheduler.governor import (
    RETRY_AFTER_MS,
    SAMPLE_MS,
    SUSTAINED_SAMPLES,
    Governor,
    Sample,
    coalesce_ms,
    commit_window_ms,
    pressure_of,
)

CALM = Governor(target_ms=1000)


def at(pressure: float, *, is_full: bool = False) -> Sample:
    """Return a sample that makes a pressure, by the busy ratio alone."""
    return Sample(busy=pressure, is_full=is_full)


def run(governor: Governor, samples: Iterable[Sample], *, start_ms: int = 0) -> list[Governor]:
    """Return the governor behind each of some samples, which come in time."""
    found = []
    for index, sample in enumerate(samples):
        governor = governor.after_sample(sample, start_ms + index * SAMPLE_MS)
        found.append(governor)
    return found


@pytest.mark.parametrize(
    ("pressure", "coalesce", "window"),
    [
        pytest.param(0.0, 0, 0.5, id="at rest"),
        pytest.param(0.2, 0, 0.5, id="case 22: 0.2 is not above 0.2"),
        pytest.param(0.21, 0.25, 0.5, id="case 23: 0.21 coalesces, and keeps the window"),
        pytest.param(0.3, 2.5, 0.5, id="0.3"),
        pytest.param(0.4, 5, 0.5, id="0.4 is not above 0.4"),
        pytest.param(0.41, 5.25, 0.658, id="case 24: 0.41 widens the window, without a jump"),
        pytest.param(0.5, 7.5, 2.083, id="0.5"),
        pytest.param(0.6, 10, 3.667, id="0.6"),
        pytest.param(0.8, 15, 6.833, id="0.8"),
        pytest.param(0.81, 15.25, 6.992, id="case 25: 0.81"),
        pytest.param(1.0, 20, 10, id="1.0"),
        pytest.param(7.0, 20, 10, id="more than there can be is 1.0"),
        pytest.param(-1.0, 0, 0.5, id="less than nothing is none"),
        pytest.param(math.nan, 0, 0.5, id="no number is none"),
    ],
)
def test_windows_grow_with_the_pressure(pressure: float, coalesce: float, window: float) -> None:
    assert coalesce_ms(pressure) == pytest.approx(coalesce, abs=5e-4)
    assert commit_window_ms(pressure) == pytest.approx(window, abs=5e-4)
    governor = CALM.after_sample(at(pressure), 0)
    assert governor.coalesce_ms == coalesce_ms(governor.pressure)
    assert governor.commit_window_ms == commit_window_ms(governor.pressure)


@pytest.mark.parametrize(
    ("samples", "rung"),
    [
        pytest.param([at(0.2)], 0, id="case 22: 0.2, nothing"),
        pytest.param([at(0.21)], 1, id="case 23: 0.21, coalesced"),
        pytest.param([at(0.41)], 2, id="case 24: 0.41, a wider window"),
        pytest.param([at(0.81)], 2, id="case 25: 0.81 once, not sustained"),
        pytest.param([at(0.81)] * 9, 2, id="0.81 nine times, not sustained"),
        pytest.param([at(0.81)] * 10, 3, id="case 26: 0.81 ten times, deferred"),
        pytest.param([at(0.8)] * 20, 2, id="0.8 for ever, never above"),
        pytest.param([*[at(0.9)] * 9, at(0.8), *[at(0.9)] * 9], 2, id="the row is broken once"),
        pytest.param([at(1.0)], 2, id="case 27: 1.0, and room for more"),
        pytest.param([at(1.0, is_full=True)], 4, id="case 28: 1.0 and full, refused"),
        pytest.param([at(0.99, is_full=True)], 4, id="0.99 and full, refused"),
        pytest.param([at(0.98, is_full=True)], 2, id="0.98 and full, not refused"),
        pytest.param([at(1.0, is_full=True), at(1.0)], 2, id="room again"),
    ],
)
def test_rungs_of_the_ladder(samples: list[Sample], rung: int) -> None:
    governor = run(CALM, samples)[-1]
    assert governor.rung == rung
    assert governor.refuses is (rung == 4)


@pytest.mark.parametrize(("pressure", "is_deferring"), [(0.8, True), (0.6, True), (0.59, False)])
def test_case_20_a_deferral_stays_until_the_pressure_is_low(
    pressure: float, is_deferring: bool
) -> None:
    deferring = replace(CALM, is_deferring=True, pressure=0.9)
    assert deferring.after_sample(at(pressure), 0).is_deferring is is_deferring


@pytest.mark.parametrize(
    ("sample", "pressure"),
    [
        pytest.param(Sample(), 0.0, id="nothing waits"),
        pytest.param(Sample(waiting=2, slots=8), 0.25, id="waiting against slots"),
        pytest.param(Sample(waiting=80, slots=8), 1.0, id="more than slots"),
        pytest.param(Sample(latency_ms=300), 0.3, id="latency against its target"),
        pytest.param(Sample(latency_ms=9e9), 1.0, id="far beyond the target"),
        pytest.param(Sample(busy=0.7), 0.7, id="the busy ratio"),
        pytest.param(Sample(waiting=1, slots=2, latency_ms=700, busy=0.6), 0.7, id="the greatest"),
        pytest.param(Sample(latency_ms=-50), 0.0, id="planned before it was committed"),
        pytest.param(Sample(latency_ms=math.nan), 0.0, id="a latency that is no number"),
        pytest.param(Sample(latency_ms=math.inf, busy=math.inf), 1.0, id="an infinite ratio"),
    ],
)
def test_pressure_is_the_greatest_of_three_ratios(sample: Sample, pressure: float) -> None:
    assert CALM.after_sample(sample, 0).pressure == pytest.approx(pressure)


def test_latency_counts_by_its_moving_average() -> None:
    found = run(CALM, [Sample(latency_ms=100), Sample(latency_ms=600), Sample(latency_ms=600)])
    assert [governor.latency_ms for governor in found] == [
        100,
        pytest.approx(200),
        pytest.approx(280),
    ]
    assert [governor.pressure for governor in found] == pytest.approx([0.1, 0.2, 0.28])


def test_a_latency_that_nobody_saw_stays_while_something_waits() -> None:
    slow = CALM.after_sample(Sample(latency_ms=500), 0)
    assert slow.after_sample(Sample(waiting=1, slots=8), 100).latency_ms == 500
    assert slow.after_sample(Sample(), 100).latency_ms == pytest.approx(400)


@pytest.mark.parametrize(
    ("now_ms", "is_due"),
    [
        pytest.param(1_000_000, False, id="at the same time"),
        pytest.param(1_000_099, False, id="too soon"),
        pytest.param(1_000_100, True, id="in time"),
        pytest.param(10**15, True, id="the clock jumps forward"),
        pytest.param(999_999, True, id="the clock goes back a little"),
        pytest.param(-(10**15), True, id="the clock jumps back"),
    ],
)
def test_a_sample_counts_every_hundred_milliseconds(now_ms: int, is_due: bool) -> None:
    calm = CALM.after_sample(at(0.5), 1_000_000)
    assert calm.is_due(now_ms) is is_due
    sampled = calm.after_sample(at(0.9), now_ms)
    assert sampled.pressure == (0.9 if is_due else 0.5)
    assert (sampled is calm) is not is_due


@pytest.mark.parametrize(
    "gap_ms", [SAMPLE_MS, 3_600_000, -3_600_000], ids=["in time", "late", "back"]
)
def test_missing_samples_neither_defer_nor_release(gap_ms: int) -> None:
    high = run(CALM, [at(0.9)] * (SUSTAINED_SAMPLES - 2))[-1]
    assert high.sampled_ms is not None
    later = high.after_sample(at(0.9), high.sampled_ms + gap_ms)
    assert not later.is_deferring
    assert later.sampled_ms is not None
    last = later.after_sample(at(0.9), later.sampled_ms + gap_ms)
    assert last.is_deferring
    assert last.sampled_ms is not None
    assert last.after_sample(at(0.7), last.sampled_ms + gap_ms).is_deferring


def test_a_governor_that_cannot_be_is_refused() -> None:
    for target_ms in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="target_ms"):
            Governor(target_ms=target_ms)
    with pytest.raises(ValueError, match="slots"):
        Sample(slots=0)


def test_a_refused_writer_waits_until_the_pressure_can_have_changed() -> None:
    assert RETRY_AFTER_MS >= SUSTAINED_SAMPLES * SAMPLE_MS
    assert pressure_of(Sample(), None, target_ms=1) == 0
