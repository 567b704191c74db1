"""Threads that stand still: a test waits until so many of them wait, and never sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from spark_upsert.merge import readers

PATIENCE_SECONDS = 240.0
"""After so long, what a test waits for has failed to happen."""


class Waits:
    """How many threads wait in the conditions of a merge, exactly."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def until(self, count: int) -> None:
        """Wait until so many threads wait: nothing moves any more if there are no others."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count == count, PATIENCE_SECONDS):
                raise AssertionError(f"{self._count} threads wait, and not {count}")


class _Watched(threading.Condition):
    """A condition that counts who waits; one that is notified waits no more."""

    def __init__(self, waits: Waits, lock: Any) -> None:
        super().__init__(lock)
        self._waits = waits
        self._count = 0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is None, "waits end by events alone"
        self._count += 1
        self._waits.add(1)
        return super().wait()

    def notify(self, n: int = 1) -> None:
        woken = min(n, self._count)
        self._count -= woken
        self._waits.add(-woken)
        super().notify(n)


@contextmanager
def watched() -> Iterator[Waits]:
    """Count who waits in the merges that begin within."""
    waits = Waits()
    with patch.object(readers, "Condition", lambda lock: _Watched(waits, lock)):
        yield waits


def merge_threads() -> list[str]:
    """Return the names of the threads that read inputs at this moment."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("merge-"))


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Hold that each thread begun within has ended; one of another test may end at any time."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert not left, f"expected no thread to be left; found {sorted(t.name for t in left)}"


def passed(event: threading.Event) -> None:
    """Wait for an event that must come."""
    assert event.wait(PATIENCE_SECONDS), "what must happen did not"
