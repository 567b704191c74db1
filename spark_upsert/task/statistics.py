"""Counts of a task's work so far."""

from __future__ import annotations

from dataclasses import dataclass

HISTOGRAM_SECONDS = 30
"""A bucket for each second that a barrier took; the last one has all that took longer, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCounts:
    """Counts of the splits of data; a barrier is no split.

    Parameters
    ----------
    total : int
        Added.
    queued : int
        Not begun.
    finished : int
        Read to their end, or given up because the plan needs no more rows of them.
    """

    total: int = 0
    queued: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The counts of a task's work so far.

    Parameters
    ----------
    barriers : int
        Begun.
    splits : SplitCounts
    rows : int
        Handed to the caller that pulls.
    histogram : tuple of int
        How many barriers took 0 to 1 seconds, 1 to 2, and so on, from request to end.
    """

    barriers: int
    splits: SplitCounts
    rows: int
    histogram: tuple[int, ...]


class Histogram:
    """Counts of durations, second by second."""

    def __init__(self) -> None:
        self._counts = [0] * HISTOGRAM_SECONDS

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[min(max(int(seconds), 0), HISTOGRAM_SECONDS - 1)] += 1

    def counts(self) -> tuple[int, ...]:
        """Return the counts."""
        return tuple(self._counts)
