"""Laws of the governor: more of anything is never less pressure, and deferral does not flap."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.scheduler.governor import (
    SAMPLE_MS,
    SUSTAINED_SAMPLES,
    Governor,
    Sample,
    coalesce_ms,
    commit_window_ms,
    pressure_of,
)

RATIOS = st.floats(0, 1.2)
LATENCIES = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
SAMPLES = st.builds(
    Sample,
    waiting=st.integers(0, 20),
    slots=st.integers(1, 8),
    latency_ms=LATENCIES,
    busy=st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
    is_full=st.booleans(),
)
TIMES = st.integers(-(2**62), 2**62)


@given(RATIOS, RATIOS)
def test_windows_grow_with_the_pressure_and_never_jump(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for window, width in ((coalesce_ms, 20.0), (commit_window_ms, 9.5)):
        assert window(low) <= window(high)
        # The steepest of both: all of the width within six tenths.
        assert window(high) - window(low) <= width / 0.6 * (high - low) + 1e-9


@given(SAMPLES, st.integers(0, 9), st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e6))
def test_more_of_anything_is_never_less_pressure(
    sample: Sample, waiting: int, latency_ms: float, busy: float, before_ms: float
) -> None:
    calm = replace(sample, busy=0.0)
    pressure = pressure_of(calm, before_ms, target_ms=1000)
    assert 0 <= pressure <= 1
    more = replace(calm, waiting=calm.waiting + waiting)
    assert pressure_of(more, before_ms, target_ms=1000) >= pressure
    assert pressure_of(replace(calm, busy=busy), before_ms, target_ms=1000) >= pressure
    assert pressure_of(calm, before_ms + latency_ms, target_ms=1000) >= pressure
    assert pressure_of(replace(calm, slots=calm.slots + 1), before_ms, target_ms=1000) <= pressure


@given(st.lists(st.tuples(SAMPLES, TIMES), max_size=60))
def test_any_samples_at_any_times_leave_a_governor_that_can_be(
    samples: list[tuple[Sample, int]],
) -> None:
    governor = Governor(target_ms=1000)
    for sample, now_ms in samples:
        governor = governor.after_sample(sample, now_ms)
        assert 0 <= governor.pressure <= 1
        assert 0 <= governor.high_count <= SUSTAINED_SAMPLES
        assert 0 <= governor.rung <= 4
        assert governor.latency_ms is None or governor.latency_ms >= 0
        assert governor.sampled_ms is not None


@given(st.lists(st.floats(0, 1), max_size=120))
def test_a_deferral_begins_only_behind_a_second_of_high_samples(pressures: list[float]) -> None:
    governor, begun, released = Governor(target_ms=1000), [], []
    for index, pressure in enumerate(pressures):
        was = governor.is_deferring
        governor = governor.after_sample(Sample(busy=pressure), index * SAMPLE_MS)
        if governor.is_deferring and not was:
            assert all(each > 0.8 for each in pressures[index - SUSTAINED_SAMPLES + 1 : index + 1])
            begun.append(index)
        if was and not governor.is_deferring:
            assert pressure < 0.6
            released.append(index)
    # It never flaps faster: the way up is a second long, each time anew.
    for last, begin in zip(released, begun[1:], strict=False):
        assert begin - last >= SUSTAINED_SAMPLES
