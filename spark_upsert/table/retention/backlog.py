"""The backlog: what lies between the slowest live consumer of a table and its newest version.

The counter counts epochs, and the bytes of the files that they added, as the log has them: a
compaction neither adds to the backlog nor takes from it. The rest of a snapshot that a consumer
begins with does not count. Without a live lease there is no consumer to wait for, and no backlog.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from spark_upsert.table.log.caps import Caps
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Manifest
from spark_upsert.table.retention.leases import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """The backlog of the slowest consumer."""

    consumer: str
    version: int
    """The last version that it has read."""
    epochs: int
    bytes: int
    """Bytes of its backlog. Both counts may be too low: counting ends beyond the caps."""


def slowest(leases: Iterable[Lease], now_ms: int) -> Lease | None:
    """Return the live lease that is furthest behind; names decide between equals."""
    live = (lease for lease in leases if lease.is_live(now_ms))
    return min(live, key=lambda lease: (lease.version, lease.consumer), default=None)


class BacklogCounter:
    """Counts the backlog of one table; safe for threads.

    It remembers the epochs that it has counted, so that each version is read once, and few of
    those that do not fit into the caps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin_anew(-1)

    def _begin_anew(self, version: int) -> None:
        self._lower = self._last = version
        """The lower bound, exclusive, of the counted versions, which go up to ``last``."""
        self._epochs: deque[tuple[int, int]] = deque()
        """The version of each counted epoch, and its bytes."""
        self._bytes = 0

    def behind(self, lease: Lease, log: Log, head: Manifest, caps: Caps) -> ConsumerLag:
        """Return the backlog between a lease and a version, counted until it exceeds the caps."""
        with self._lock:
            if not max(lease.version, head.since) <= self._last <= head.version:
                self._begin_anew(head.version)
            for commit in log.commits(self._last + 1, head.upper):
                self._add(commit)
            self._last = head.version
            self._drop(lease.version)
            # The newest first: once there is no room, the rest need not be counted.
            while self._lower > max(lease.version, head.since) and caps.admits(
                epochs=len(self._epochs), bytes=self._bytes
            ):
                self._add(log.commit(self._lower), older=True)
                self._lower -= 1
            return ConsumerLag(
                consumer=lease.consumer,
                version=lease.version,
                epochs=len(self._epochs),
                bytes=self._bytes,
            )

    def _add(self, commit: Commit, *, older: bool = False) -> None:
        if not commit.is_epoch:
            return
        size = sum(file.bytes for file in commit.added)
        self._bytes += size
        (self._epochs.appendleft if older else self._epochs.append)((commit.version, size))

    def _drop(self, version: int) -> None:
        while self._epochs and self._epochs[0][0] <= version:
            self._bytes -= self._epochs.popleft()[1]
        # A consumer may be ahead of what this writer has seen: what comes there is not counted yet.
        self._lower = min(max(self._lower, version), self._last)
