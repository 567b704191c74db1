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
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest

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
    _known: OrderedDict[Hashable, Manifest] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def bytes_used(self) -> int:
        """The estimate for all that is remembered."""
        return self._bytes

    def recall(self, store: Store) -> Manifest | None:
        """Return a version that was the newest once, or None: to be proven, not believed."""
        if store.cache_key is None:
            return None
        with self._lock:
            found = self._known.get(store.cache_key)
            if found is not None:
                self._known.move_to_end(store.cache_key)
            return found

    def keep(self, store: Store, manifest: Manifest) -> None:
        """Remember a proven version, unless a newer one of the same table is known."""
        key = store.cache_key
        if key is None:
            return
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.table_id == manifest.table_id:
                if known.version > manifest.version:
                    return
                if known.token == manifest.token:
                    self._known.move_to_end(key)
                    return
            self._drop(key)
            if _bytes_of(manifest) > self.bytes_max:
                return
            self._known[key] = manifest
            self._bytes += _bytes_of(manifest)
            while len(self._known) > self.count_max or self._bytes > self.bytes_max:
                self._drop(next(iter(self._known)))

    def forget(self, store: Store, manifest: Manifest) -> None:
        """Forget a version that is not in the log."""
        with self._lock:
            if self._known.get(store.cache_key) is manifest:
                self._drop(store.cache_key)

    def clear(self) -> None:
        """Forget everything, as the end of the process would."""
        with self._lock:
            self._known.clear()
            self._bytes = 0

    def _drop(self, key: Hashable) -> None:
        dropped = self._known.pop(key, None)
        if dropped is not None:
            self._bytes -= _bytes_of(dropped)


def _bytes_of(manifest: Manifest) -> int:
    writers = len(manifest.transactions) + len(manifest.forgotten) + len(manifest.repairs)
    return _TABLE_BYTES + _SLICE_BYTES * len(manifest.slices) + _WRITER_BYTES * writers


LOGS = LogMemory()
"""The memory of this process."""
