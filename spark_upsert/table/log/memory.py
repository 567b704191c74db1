"""A process's memory of logs: the newest version that it has proven of each table, as a hint.

Spark makes a new `Log` for each plan and each commit of a micro-batch. Without the memory each
would read every commit since the last checkpoint, one after the other. The memory is a hint as
``_last_checkpoint`` is: a look begins there, finds the version in the storage, by its token, and
reads what lies behind it (`read`). So a table that was removed, made anew, restored or set back is
noticed all the same, and the memory need not be right, only well-formed.

A remembered version stands for the files that it was folded from, as a checkpoint does. If a commit
is damaged *after* this process has folded it, this process still finds the end of the log. The
damage is met by a reader that needs that very version (its changes, the table as it was, the next
checkpoint), by every other process, and by `table.entries.check`, which remembers nothing.

Entries are immutable and keyed by the place and by how it is reached (`Store.cache_key`), so that
nothing passes between different settings; bounded in number and in bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from spark_upsert.model.bounded import LruMap
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest

LOOKS_PER_LISTING = 100
"""Looks of a process that find nothing new, between two listings of a log: each look is two reads,
a listing costs as much as ten of them, and so this adds a twentieth to the costs at rest."""

_SLICE_BYTES = 1 << 10
"""Bytes of a slice with its file, ranges and epochs; 611 were measured."""

_WRITER_BYTES = 1 << 8
"""Bytes of a writer with its number and time, or of a fingerprint; 196 were measured."""

_TABLE_BYTES = 1 << 14
"""Bytes of a schema and of properties."""


@dataclass
class LogMemory:
    """The newest proven version of some tables, the least recently used forgotten first.

    Safe for threads. The bytes are an estimate from above: the slices of two versions of a table
    are mostly the same objects, and those that an open log holds count here as well.
    """

    count_max: int = 4096
    bytes_max: int = 64 << 20
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._known: LruMap[Hashable, Manifest] = LruMap(
            self.count_max, bytes_max=self.bytes_max, weigh=_bytes_of
        )
        self._recalls: LruMap[Hashable, int] = LruMap(self.count_max)
        """How often each version was recalled, by table."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def bytes_used(self) -> int:
        """The estimate for all that is remembered."""
        return self._known.bytes_used

    def recall(self, store: Store) -> Manifest | None:
        """Return a version that was the newest once, or None: to be proven, not believed.

        A version is recalled `LOOKS_PER_LISTING` times and then forgotten, so that the next reader
        lists the log.
        """
        key = store.cache_key
        if key is None:
            return None
        with self._lock:
            count = 1 + (self._recalls.get(key) or 0)
            if count > LOOKS_PER_LISTING:
                self._known.pop(key)
            self._recalls.put(key, count)
            return self._known.get(key)

    def keep(self, store: Store, manifest: Manifest) -> None:
        """Remember a proven version, unless a newer one of the same table is known."""
        key = store.cache_key
        if key is None:
            return
        with self._lock:
            known = self._known.peek(key)
            if known is not None and known.table_id == manifest.table_id:
                if known.version > manifest.version:
                    return
                if known.token == manifest.token:
                    self._known.get(key)  # It counts as used.
                    return
            self._recalls.pop(key)
            self._known.put(key, manifest)

    def forget(self, store: Store, manifest: Manifest) -> None:
        """Forget a version that is not in the log."""
        with self._lock:
            if self._known.peek(store.cache_key) is manifest:
                self._known.pop(store.cache_key)

    def clear(self) -> None:
        """Forget everything, as the end of the process would."""
        with self._lock:
            self._known.clear()


def _bytes_of(_: Hashable, manifest: Manifest) -> int:
    writers = len(manifest.transactions) + len(manifest.forgotten) + len(manifest.repairs)
    return _TABLE_BYTES + _SLICE_BYTES * len(manifest.slices) + _WRITER_BYTES * writers


LOGS = LogMemory()
"""The memory of this process."""
