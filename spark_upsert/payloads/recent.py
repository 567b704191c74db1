"""Least-recently-used caches of schemas in a process, bounded in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from spark_upsert.core.lru import LruMap

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
        self._known: LruMap[K, V] = LruMap(bytes_max=bytes_max, weigh=weigh)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def bytes_used(self) -> int:
        """The bytes of all that is kept, as it was weighed."""
        return self._known.bytes_used

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return what is kept for a key, or make it, outside the lock; what raises is not kept."""
        with self._lock:
            value = self._known.get(key)
        if value is None:
            value = make()
            with self._lock:
                self._known.put(key, value)
        return value

    def clear(self) -> None:
        """Forget all, as a new process would."""
        with self._lock:
            self._known.clear()
