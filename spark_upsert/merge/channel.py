"""A bounded channel: the queue of what one input has ready, in the input's order.

The queue is counted in *events*: the rows of a batch, or one for a mark. A channel has room for so
many events; an empty one has room for any item, so that nothing is too large to pass.

The channel itself neither locks nor waits: the readers of a merge share one lock, and their
conditions decide which thread waits (`readers`). So a channel changes by single steps, which tests
play in any order.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from spark_upsert.merge.counters import Gauge

CHANNEL_EVENTS = 1024
"""Events that one input may have queued, if nothing else is asked for."""

OUTPUT_EVENTS = 256
"""Events between a merge and a sink with a thread of its own (`live.streamed`)."""


def events_of(item: Any) -> int:
    """Return how many events an item is: the rows of a batch, or one."""
    return int(getattr(item, "num_rows", 1))


def bytes_of(item: Any) -> int:
    """Return how much memory an item holds; a mark holds none."""
    return int(getattr(item, "nbytes", 0))


class Channel:
    """The queue of one input.

    Parameters
    ----------
    capacity : int
        Events that may be queued.
    gauge : Gauge
        Where it is counted.
    """

    __slots__ = ("_capacity", "_gauge", "_items", "is_closed", "queued")

    def __init__(self, capacity: int, gauge: Gauge) -> None:
        self._capacity = capacity
        self._gauge = gauge
        self._items: deque[tuple[Any, int, int]] = deque()
        self.queued = 0
        """Events that wait."""
        self.is_closed = False
        """Whether nothing more will be put."""

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"Channel({self.queued}/{self._capacity} events{state})"

    @property
    def is_empty(self) -> bool:
        return not self._items

    @property
    def is_drained(self) -> bool:
        """Whether all that will ever come was taken."""
        return self.is_closed and not self._items

    def has_room(self, item: Any) -> bool:
        """Whether an item may be put."""
        return not self._items or self.queued + events_of(item) <= self._capacity

    def put(self, item: Any) -> None:
        """Append an item, for which there is room."""
        assert self.has_room(item)
        assert not self.is_closed
        events, size = events_of(item), bytes_of(item)
        self._items.append((item, events, size))
        self.queued += events
        self._gauge.put(events, size)

    def take(self) -> Any:
        """Remove and return the first item."""
        item, events, size = self._items.popleft()
        self.queued -= events
        self._gauge.handed_over(events, size)
        return item

    def close(self) -> None:
        """Say that nothing more will be put."""
        self.is_closed = True
