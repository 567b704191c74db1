"""Watchers (`Table.watch`): each returns every epoch of a table in order, once it is durable.

All share a ring with this process's newest commits; a slow watcher reads the log. Other processes'
commits are found by one waiting watcher, so there is no thread (docs/adr/0032).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from spark_upsert.errors import DataLossError
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.state.reduce import Counters

CAPACITY = 1024
"""Versions in the ring. A commit with a few files takes some kilobytes."""

POLL_S_MIN = 0.02
POLL_S_MAX = 1.0
"""The maximum polling interval, with two requests per poll."""

_QUARTER = 0.25

ReadChanges: TypeAlias = Callable[[int, int], pa.Table]
"""A callable returning the changes for epochs ``lower <= e < upper``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedEpoch:
    """An epoch seen by a watcher."""

    version: int
    """The epoch number."""
    timestamp_ms: int
    """Commit time, in ms since 1970."""
    counters: Counters
    """Row counters by outcome."""
    transactions: tuple[Transaction, ...]
    live_rows: int
    """Table row count after the epoch."""
    is_late: bool
    """Whether the watcher lagged, and read it from the log."""
    read_changes: ReadChanges

    def changes(self) -> pa.Table:
        """Return this epoch's changes (`Table.changes`).

        Raises
        ------
        DataLossError
            The epoch has been expired meanwhile.
        """
        return self.read_changes(self.version, self.version + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Versions ``lower <= v < upper`` expired before a watcher read them."""

    lower: int
    upper: int


WatchEvent: TypeAlias = SealedEpoch | Gap


class Watchers:
    """The ring and the clock shared by one table's watchers. Thread-safe.

    A watcher is only a position, so a commit never waits for it.

    Parameters
    ----------
    log : Log
    changes : callable
    capacity : int
        Versions in the ring.
    clock, wait : callable, optional
        The clock is monotonic; ``wait(arrived, seconds)`` waits for a notification.
    """

    def __init__(
        self,
        log: Log,
        changes: ReadChanges,
        *,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Condition, float], bool] = threading.Condition.wait,
    ) -> None:
        self.log = log
        self.changes = changes
        self.capacity = capacity
        self._clock = clock
        self._wait = wait
        self._arrived = threading.Condition()
        self._ring: dict[int, Commit] = {}
        self._upper = 0
        self._came_s = clock()
        self._polled_s = clock()
        self._is_polling = False
        log.listen(self._publish)

    @property
    def upper(self) -> int:
        """The version after the newest one seen."""
        return self._upper

    def now_s(self) -> float:
        """Return the current time by the watchers' clock."""
        return self._clock()

    def recent(self, version: int) -> Commit | None:
        """Return a version still in the ring, else None."""
        return self._ring.get(version)

    def _publish(self, commit: Commit) -> None:
        """Notify the watchers about a durable version. Never waits."""
        with self._arrived:
            self._ring[commit.version] = commit
            while len(self._ring) > self.capacity:
                del self._ring[next(iter(self._ring))]
            self._advance(commit.version + 1)

    def _advance(self, upper: int) -> None:
        if upper > self._upper:
            self._upper, self._came_s = upper, self._clock()
            self._arrived.notify_all()

    def poll(self) -> Manifest:
        """Poll the log's end."""
        try:
            head = self.log.head()
            with self._arrived:
                self._advance(head.upper)
        finally:
            with self._arrived:
                self._is_polling = False
                self._polled_s = self._clock()
        return head

    def wake(self) -> None:
        """Wake the waiting watchers, so they check whether they are closed."""
        with self._arrived:
            self._arrived.notify_all()

    def wait_beyond(
        self, position: int, until_s: float | None, is_over: Callable[[], bool]
    ) -> bool:
        """Wait for a version at or after a position; return False if closed or timed out."""
        while True:
            with self._arrived:
                while not is_over() and self._upper <= position:
                    now_s, due_s = self._clock(), self._next_poll_s()
                    if due_s <= now_s:
                        break
                    if until_s is not None and until_s <= now_s:
                        return False
                    end_s = due_s if until_s is None else min(due_s, until_s)
                    self._wait(self._arrived, end_s - now_s)
                else:
                    return not is_over()
                self._is_polling = True
            self.poll()

    def _next_poll_s(self) -> float:
        """Return when a waiting watcher should poll; later, while another one polls."""
        if self._is_polling:
            return self._clock() + POLL_S_MAX
        rest_s = _QUARTER * (self._polled_s - self._came_s)
        return self._polled_s + min(max(rest_s, POLL_S_MIN), POLL_S_MAX)


class Watcher:
    """One reader for a table's epochs: an iterator, and a context manager (`Table.watch`).

    For use by one thread; any thread may call `close`.

    Parameters
    ----------
    watchers : Watchers
    position : int
        The first version to return.
    fail_on_data_loss : bool
        Whether expired unread versions are an error, or a `Gap`.
    """

    def __init__(
        self, watchers: Watchers, position: int, *, fail_on_data_loss: bool = True
    ) -> None:
        self._watchers = watchers
        self._position = position
        self._fail_on_data_loss = fail_on_data_loss
        self._is_lagging = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "lagging" if self.is_lagging else "live"
        return f"Watcher(position={self._position}, lag={self.lag}, {state})"

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, also for a thread waiting in it."""
        self._is_closed = True
        self._watchers.wake()

    @property
    def position(self) -> int:
        """The first version not yet returned."""
        return self._position

    @property
    def lag(self) -> int:
        """The number of committed versions not yet returned."""
        return max(0, self._watchers.upper - self._position)

    @property
    def is_lagging(self) -> bool:
        """Whether the ring has passed it; until it has caught up, it reads the log."""
        return self._is_lagging or self.lag > self._watchers.capacity

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        step = self.take()
        if step is None:
            raise StopIteration
        return step

    def take(self, timeout_s: float | None = None) -> WatchEvent | None:
        """Return the next epoch, waiting for it if necessary."""
        until_s = None if timeout_s is None else self._watchers.now_s() + timeout_s
        while not self._is_closed:
            while self._position < self._watchers.upper:
                step = self._step()
                if step is not None:
                    return step
            self._is_lagging = False
            if not self._watchers.wait_beyond(self._position, until_s, lambda: self._is_closed):
                return None
        return None

    def _step(self) -> WatchEvent | None:
        """Advance by one version; return None if it is no epoch."""
        self._is_lagging = is_late = self.is_lagging
        version, log = self._position, self._watchers.log
        head = log.cached_head
        if head is None or version < head.first_changes:
            return self._gap()
        commit = self._watchers.recent(version)
        if commit is None:
            try:
                commit = log.commit(version)
            except DataLossError:
                gap = self._gap()
                if gap is None:
                    raise
                return gap
        self._position += 1
        if not commit.is_epoch:
            return None
        return SealedEpoch(
            version=version,
            timestamp_ms=head.time_ms(version, commit.timestamp_ms),
            counters=Counters.from_json(commit.counters),
            transactions=commit.transactions,
            live_rows=commit.live_rows,
            is_late=is_late,
            read_changes=self._watchers.changes,
        )

    def _gap(self) -> Gap | None:
        """Skip the expired versions, if allowed; return None if there are none."""
        head = self._watchers.poll()
        lower, upper = self._position, head.first_changes
        if lower >= upper:
            return None
        if self._fail_on_data_loss:
            raise DataLossError.changes_expired(
                f"what a watcher sees from version {lower} on",
                lower=lower,
                since=head.since,
                newest=head.version,
            )
        self._position = upper
        return Gap(lower=lower, upper=upper)
