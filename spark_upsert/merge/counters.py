"""Counters of a merge for each input as it runs: rows that wait, rows under way, time blocked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCounters:
    """An input at one moment. Events are rows, and a mark is one event."""

    queued: int = 0
    """Events in the channel."""
    queued_bytes: int = 0
    queued_peak: int = 0
    """The most events that were in the channel at once."""
    in_flight: int = 0
    """Events that were taken from the input and not handed over, those in the channel included."""
    in_flight_peak: int = 0
    handed: int = 0
    """Events that were handed over."""
    blocked_seconds: float = 0.0
    """How long the reader has waited for room; a wait counts once it is over."""
    is_finished: bool = False
    """Whether the input came to its end, and all of it was handed over."""


class Gauge:
    """The counters of one input, where they are counted."""

    __slots__ = (
        "blocked_seconds",
        "handed",
        "in_flight_peak",
        "in_hand",
        "is_finished",
        "queued",
        "queued_bytes",
        "queued_peak",
    )

    def __init__(self) -> None:
        self.queued = self.queued_bytes = self.queued_peak = 0
        self.in_hand = self.in_flight_peak = 0
        self.handed = 0
        self.blocked_seconds = 0.0
        self.is_finished = False

    def taken(self, events: int) -> None:
        """Count what the reader took from its input."""
        self.in_hand += events
        self.in_flight_peak = max(self.in_flight_peak, self.queued + self.in_hand)

    def put(self, events: int, size: int) -> None:
        """Count what went from the reader's hand into the channel."""
        self.in_hand -= events
        self.queued += events
        self.queued_bytes += size
        self.queued_peak = max(self.queued_peak, self.queued)

    def handed_over(self, events: int, size: int) -> None:
        """Count what left the channel."""
        self.queued -= events
        self.queued_bytes -= size
        self.handed += events

    def snapshot(self) -> InputCounters:
        return InputCounters(
            queued=self.queued,
            queued_bytes=self.queued_bytes,
            queued_peak=self.queued_peak,
            in_flight=self.queued + self.in_hand,
            in_flight_peak=self.in_flight_peak,
            handed=self.handed,
            blocked_seconds=self.blocked_seconds,
            is_finished=self.is_finished,
        )


class MergeCounters:
    """The counters of all inputs of one merge, to be read from any thread at any time.

    Reading takes no lock, so that it never delays a merge; numbers that change at that very moment
    may belong to two moments. An input is listed from when it is opened; if the same object serves
    merge after merge, an input shows the numbers of the newest one that opened it.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}

    def open(self, name: str) -> Gauge:
        """Return where an input is counted that is opened now."""
        gauge = self._gauges[name] = Gauge()
        return gauge

    def snapshot(self) -> Mapping[str, InputCounters]:
        """Return the counters of each input that was opened, by its name."""
        return {name: gauge.snapshot() for name, gauge in self._gauges.copy().items()}
