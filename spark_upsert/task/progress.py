"""A monitor for the threads of one task: one lock, and a count of changes under it.

A waiter reads the change counter *before* it looks for work, and sleeps only while the counter is
unchanged. So no wake-up is lost.
"""

from __future__ import annotations

from concurrent.futures import Future
from threading import Condition, RLock


class Monitor:
    """The lock of a task, and what has changed under it."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._condition = Condition(self.lock)
        self._waiting: list[Future[None]] = []
        self._asleep = 0
        self.changes = 0
        """How often something has changed."""

    def note(self) -> None:
        """Note a change: wake up all waiting threads and fulfil all futures."""
        with self.lock:
            self.changes += 1
            if self._asleep:
                self._condition.notify_all()
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.set_result(None)

    def wait(self, seen: int) -> None:
        """Wait until something has changed since a count."""
        with self.lock:
            self._asleep += 1
            while self.changes == seen:
                self._condition.wait()
            self._asleep -= 1

    def future(self, seen: int) -> Future[None]:
        """Return a future that is done when something has changed since a count."""
        future: Future[None] = Future()
        with self.lock:
            if self.changes == seen:
                self._waiting.append(future)
                return future
        future.set_result(None)
        return future
