"""A clock that stands still until it is told, and a store whose objects know their times."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from spark_upsert.store import ObjectInfo
from tests.support.stores import MemorySink, MemoryStore

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@dataclass
class Now:
    """A clock: seconds since 1970, by hand."""

    seconds: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds


class ClockedStore(MemoryStore):
    """Objects in memory, each with the time of its last write."""

    def __init__(self, now: Now) -> None:
        super().__init__()
        self.now = now
        self.times: dict[str, float] = {}

    def put_if_absent(self, path: str, data: bytes) -> bool:
        done = super().put_if_absent(path, data)
        if done:
            self.times[path] = self.now()
        return done

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.times[path] = self.now()

    def create(self, path: str) -> MemorySink:
        self.times[path] = self.now()
        return super().create(path)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, after=after):
            yield replace(info, modified_s=self.times[info.path])


class KnownStore(ClockedStore):
    """A store that a process knows again, as it does a place of a disk."""

    @property
    def cache_key(self) -> Hashable | None:
        return self.url
