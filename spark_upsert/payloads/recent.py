"""Least-recently-used caches of schemas in a process, bounded in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

RECENT_BYTES_MAX = 64 << 20
"""Bytes of one cache: some thousand schemas of usual tables, or six as large as they may be."""


class Recent(Generic[K, V]):
    """Values by keys; safe for threads.

    Parameters
    ----------
    weigh : callable
        Returns about how many bytes a key and its value take.
    bytes_max : int
        A value that is larger by itself is not kept.
    """

    def __init__(self, weigh: Callable[[K, V], int], bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._weigh = weigh
        self.bytes_max = bytes_max
        self._known: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def bytes_used(self) -> int:
        """The bytes of all that is kept, as it was weighed."""
        return self._bytes

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return what is kept for a key, or make it; what raises is not kept."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key][0]
        made = make()
        weight = self._weigh(key, made)
        if weight <= self.bytes_max:
            self._keep(key, made, weight)
        return made

    def clear(self) -> None:
        """Forget all, as a new process would."""
        with self._lock:
            self._known.clear()
            self._bytes = 0

    def _keep(self, key: K, made: V, weight: int) -> None:
        with self._lock:
            if key in self._known:
                self._bytes -= self._known.pop(key)[1]
            self._known[key] = made, weight
            self._bytes += weight
            while self._bytes > self.bytes_max:
                self._bytes -= self._known.popitem(last=False)[1][1]
