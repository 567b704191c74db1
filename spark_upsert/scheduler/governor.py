"""The pressure governor (`Governor`): latency gives way in steps, correctness never.

Pressure is the greatest of three clamped ratios (`pressure_of`). With it batches coalesce, commit
windows grow, the lowest band is deferred, and writes are refused (docs/adr/0031).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

SAMPLE_MS = 100
"""Minimum time between two samples; an earlier one is ignored."""

LATENCY_WEIGHT = 0.2
"""Weight for a new sample in the moving average: a single sample has little effect, ten do."""

COALESCE_ABOVE = 0.2
COALESCE_MS_MAX = 20.0
WINDOW_ABOVE = 0.4
WINDOW_MS_MIN = 0.5
WINDOW_MS_MAX = 10.0
DEFER_ABOVE = 0.8
RELEASE_BELOW = 0.6
SUSTAINED_SAMPLES = 10
"""Samples in a row, one second, that start a deferral."""
REFUSE_FROM = 0.99

RETRY_AFTER_MS = 1000
"""Time before a refused writer should retry: ten samples, in which pressure can change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured load signals; None means that there was nothing to measure."""

    waiting: int = 0
    """Number of inputs with changes that are not being served yet."""
    slots: int = 1
    """Number of inputs that can be served at the same time; 1 or more."""
    latency_ms: float | None = None
    """Time from commit to planning, for changes planned since the last sample."""
    busy: float | None = None
    """Share of time since the last sample in which all slots were busy, from 0 to 1."""
    is_full: bool = False
    """Whether there is no room: the waiting changes exceed the next batch's capacity."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots is at least 1, found {self.slots}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Governor:
    """The current pressure and its effects; immutable.

    Parameters
    ----------
    target_ms : float
        Latency that counts as a pressure of 1.
    latency_ms : float, optional
        Moving average; None before the first latency.
    sampled_ms : int, optional
        Time of the last sample that was not ignored.
    pressure : float
        From 0 to 1.
    high_count : int
        Number of samples in a row above the deferral limit, up to `SUSTAINED_SAMPLES`.
    is_deferring : bool
        Whether the lowest band waits.
    is_full : bool
        Whether there is no room for more.
    """

    target_ms: float
    latency_ms: float | None = None
    sampled_ms: int | None = None
    pressure: float = 0.0
    high_count: int = 0
    is_deferring: bool = False
    is_full: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.target_ms < math.inf:
            raise ValueError(f"target_ms is a positive number, found {self.target_ms}")

    def is_due(self, now_ms: int) -> bool:
        """Return whether a sample at ``now_ms`` would count.

        True also if the clock went back: otherwise samples could stop for a long time.
        """
        return self.sampled_ms is None or not 0 <= now_ms - self.sampled_ms < SAMPLE_MS

    def after_sample(self, sample: Sample, now_ms: int) -> Governor:
        """Return the governor after a sample; the same object if none was due.

        Missing samples have no effect: they neither start nor end a deferral.
        """
        if not self.is_due(now_ms):
            return self
        latency_ms = _update_average(self.latency_ms, sample)
        pressure = pressure_of(sample, latency_ms, target_ms=self.target_ms)
        high_count = min(SUSTAINED_SAMPLES, self.high_count + 1) if pressure > DEFER_ABOVE else 0
        stays_deferring = self.is_deferring and pressure >= RELEASE_BELOW
        return replace(
            self,
            latency_ms=latency_ms,
            sampled_ms=now_ms,
            pressure=pressure,
            high_count=high_count,
            is_deferring=stays_deferring or high_count == SUSTAINED_SAMPLES,
            is_full=sample.is_full,
        )

    @property
    def refuses(self) -> bool:
        """Whether writes are refused, to be retried after `RETRY_AFTER_MS`."""
        return self.pressure >= REFUSE_FROM and self.is_full

    @property
    def rung(self) -> int:
        """Highest escalation level in effect; 0 for none.

        1: above 0.2 batches coalesce. 2: above 0.4 the commit window grows. 3: above 0.8 in
        `SUSTAINED_SAMPLES` samples in a row the lowest band is deferred, until below 0.6. 4: from
        0.99, without room for more, writes are refused.
        """
        if self.refuses:
            return 4
        if self.is_deferring:
            return 3
        return int(self.pressure > COALESCE_ABOVE) + int(self.pressure > WINDOW_ABOVE)

    @property
    def coalesce_ms(self) -> float:
        """Batch delay at this pressure (`coalesce_ms`)."""
        return coalesce_ms(self.pressure)

    @property
    def commit_window_ms(self) -> float:
        """Group commit delay at this pressure (`commit_window_ms`)."""
        return commit_window_ms(self.pressure)


def pressure_of(sample: Sample, latency_ms: float | None, *, target_ms: float) -> float:
    """Return the greatest of three ratios, each clamped to the range from 0 to 1."""
    ratios = (sample.waiting / sample.slots, (latency_ms or 0.0) / target_ms, sample.busy or 0.0)
    return max(map(_clamp, ratios))


def coalesce_ms(pressure: float) -> float:
    """Return a batch's delay for coalescing: 0 up to a pressure of 0.2, then up to 20 ms."""
    share = (_clamp(pressure) - COALESCE_ABOVE) / (1 - COALESCE_ABOVE)
    return COALESCE_MS_MAX * max(0.0, share)


def commit_window_ms(pressure: float) -> float:
    """Return a group commit's delay: 0.5 ms up to a pressure of 0.4, then up to 10 ms."""
    share = (_clamp(pressure) - WINDOW_ABOVE) / (1 - WINDOW_ABOVE)
    return WINDOW_MS_MIN + (WINDOW_MS_MAX - WINDOW_MS_MIN) * max(0.0, share)


def _update_average(before: float | None, sample: Sample) -> float | None:
    """Return the moving average after a sample; a latency that is not finite counts as None."""
    latency_ms = sample.latency_ms
    if latency_ms is None or not math.isfinite(latency_ms):
        if sample.waiting or before is None:
            return before  # Something waits, and it is not known yet for how long.
        latency_ms = 0.0
    latency_ms = max(0.0, latency_ms)  # It was planned before it was committed: two clocks.
    return latency_ms if before is None else before + LATENCY_WEIGHT * (latency_ms - before)


def _clamp(ratio: float) -> float:
    """Clamp a ratio to the range from 0 to 1; NaN becomes 0."""
    return min(1.0, max(0.0, ratio)) if ratio == ratio else 0.0
