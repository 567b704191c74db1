"""The bounded map (`LruMap`): least recently used entries go first, by count, bytes or age.

`put` returns the evicted values, so that the owner closes them outside its lock.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruMap(Generic[K, V]):
    """A map that drops the least recently used entries first (LRU). Not thread-safe.

    Each call takes constant time, except `put`, which takes it for each dropped value.

    Parameters
    ----------
    count_max : int, optional
        Maximum entries.
    bytes_max : int, optional
        Maximum bytes in all entries, measured by `weigh`. A single larger entry is not stored.
    weigh : callable, optional
        Returns the approximate bytes in a key and its value; always the same.
    rest_s : float, optional
        Seconds without use after which an entry is dropped at the next `put`.
    rested_max : int
        Number of most recently used entries that ``rest_s`` does not drop.
    clock : callable
        Returns monotonic seconds.
    """

    __slots__ = (
        *("_bytes", "_clock", "_entries", "_used_s", "_weigh"),
        *("bytes_max", "count_max", "rest_s", "rested_max"),
    )

    def __init__(
        self,
        count_max: int | None = None,
        *,
        bytes_max: int | None = None,
        weigh: Callable[[K, V], int] | None = None,
        rest_s: float | None = None,
        rested_max: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert (bytes_max is None) == (weigh is None)
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.rest_s = rest_s
        self.rested_max = rested_max
        self._weigh = weigh
        self._clock = clock
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._used_s: dict[K, float] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, least recently used first."""
        return iter(self._entries)

    @property
    def bytes_used(self) -> int:
        """Bytes in all entries, as measured by `weigh`."""
        return self._bytes

    def get(self, key: K) -> V | None:
        """Return a key's value and mark it as used; None if it is missing."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
            if self.rest_s is not None:
                self._used_s[key] = self._clock()
        return value

    def peek(self, key: K) -> V | None:
        """Return a key's value without marking it as used; None if it is missing."""
        return self._entries.get(key)

    def get_or_create(self, key: K, make: Callable[[], V]) -> V:
        """Return a key's value, or make and store it; an exception stores nothing."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> list[V]:
        """Store a value as the most recently used one, and return the dropped values.

        These are the key's previous value, if different, and the entries beyond the bounds,
        including the new value if it is too large.
        """
        old = self.pop(key)
        gone = [] if old is None or old is value else [old]
        weight = 0 if self._weigh is None else self._weigh(key, value)
        if self.bytes_max is not None and weight > self.bytes_max:
            return [*gone, value]
        self._entries[key] = value
        self._bytes += weight
        if self.rest_s is not None:
            self._used_s[key] = self._clock()
        while self._is_over():
            gone.append(self._pop_oldest())
        return gone

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value; None if it is missing."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._forget(key, value)
        return value

    def values(self) -> list[V]:
        """Return all values, least recently used first."""
        return list(self._entries.values())

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._used_s.clear()
        self._bytes = 0

    def _is_over(self) -> bool:
        """Return whether to drop the least recently used entry."""
        count = len(self._entries)
        if self.count_max is not None and count > self.count_max:
            return True
        if self.bytes_max is not None and self._bytes > self.bytes_max:
            return True
        return self.rest_s is not None and count > self.rested_max and self._has_rested()

    def _has_rested(self) -> bool:
        assert self.rest_s is not None
        oldest = next(iter(self._entries))
        return self._clock() - self._used_s[oldest] > self.rest_s

    def _pop_oldest(self) -> V:
        key, value = self._entries.popitem(last=False)
        self._forget(key, value)
        return value

    def _forget(self, key: K, value: V) -> None:
        if self._weigh is not None:
            self._bytes -= self._weigh(key, value)
        if self.rest_s is not None:
            del self._used_s[key]


class SharedLruMap(LruMap[K, V]):
    """An `LruMap` for several threads.

    The methods here hold a lock; `get_or_create` makes values outside it.
    """

    __slots__ = ("_lock",)

    def __init__(self, *, bytes_max: int, weigh: Callable[[K, V], int]) -> None:
        super().__init__(bytes_max=bytes_max, weigh=weigh)
        self._lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """Return a key's value and mark it as used; None if it is missing."""
        with self._lock:
            return super().get(key)

    def put(self, key: K, value: V) -> list[V]:
        """Store a value as the most recently used one, and return the dropped values."""
        with self._lock:
            return super().put(key, value)

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value; None if it is missing."""
        with self._lock:
            return super().pop(key)

    def values(self) -> list[V]:
        """Return all values, least recently used first."""
        with self._lock:
            return super().values()

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            super().clear()
