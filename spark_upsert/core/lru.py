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
    """Values by keys, the least recently used dropped first (LRU). Not safe for threads.

    Each call takes constant time, but for `put`, which takes it for each value that goes.

    Parameters
    ----------
    count_max : int, optional
        The most entries.
    bytes_max : int, optional
        The most bytes of all entries, as `weigh` tells. An entry that is larger by itself is not
        kept.
    weigh : callable, optional
        Returns about how many bytes a key and its value take; always the same.
    rest_s : float, optional
        The seconds without use after which an entry goes as soon as another one is put.
    rested_max : int
        The number of entries used last that stay however long they rest.
    clock : callable
        Returns seconds that only grow.
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
        """Iterate over the keys, the least recently used first."""
        return iter(self._entries)

    @property
    def bytes_used(self) -> int:
        """The bytes of all entries, as they were weighed."""
        return self._bytes

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as its use; None if there is none."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
            if self.rest_s is not None:
                self._used_s[key] = self._clock()
        return value

    def peek(self, key: K) -> V | None:
        """Return the value of a key, which does not count as its use; None if there is none."""
        return self._entries.get(key)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, or make it; what `make` raises is not kept."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> list[V]:
        """Keep a value as the one that was used last, and return the values that go for it.

        These are the one that the key had, if it was another, and those beyond the bounds: the
        value itself, too, if it is too large.
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
        """Take an entry out, and return its value; None if there is none."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._forget(key, value)
        return value

    def values(self) -> list[V]:
        """Return all values, the least recently used first."""
        return list(self._entries.values())

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._used_s.clear()
        self._bytes = 0

    def _is_over(self) -> bool:
        """Return whether the least recently used entry is to go."""
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
    """An `LruMap` for several threads: each call holds its lock; `of` makes values outside it."""

    __slots__ = ("_lock",)

    def __init__(self, *, bytes_max: int, weigh: Callable[[K, V], int]) -> None:
        super().__init__(bytes_max=bytes_max, weigh=weigh)
        self._lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as its use; None if there is none."""
        with self._lock:
            return super().get(key)

    def put(self, key: K, value: V) -> list[V]:
        """Store a value as the most recently used one, and return the values that it displaces."""
        with self._lock:
            return super().put(key, value)

    def pop(self, key: K) -> V | None:
        """Remove an entry, and return its value; None if there is none."""
        with self._lock:
            return super().pop(key)

    def values(self) -> list[V]:
        """Return all values, the least recently used first."""
        with self._lock:
            return super().values()

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            super().clear()
