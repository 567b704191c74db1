"""Reading the log: the proven newest version (`LogReader`), and a process's memory of it.

``v`` is the end if ``v + 1`` is absent and *then* the version at which the read began is found by
its token. The memory (`LogMemory`) is a hint, proved again by each read (docs/adr/0015).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spark_upsert.core.lru import LruMap
from spark_upsert.errors import ContentionError, CorruptionError
from spark_upsert.store import Store
from spark_upsert.table.log.codec import commit_path, no_table, require_no_rest
from spark_upsert.table.log.manifest import Commit, Manifest, TableVersion
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.log.storage import Clock, StoredLog, iter_windows, last_checkpoint

POLLS_PER_LISTING = 100
"""Polls without news between two log listings. A poll is two reads and a listing costs as much as
ten polls, so this adds a twentieth to the cost at rest."""

_WRITER_BYTES = 1 << 8
"""Estimated bytes per fingerprint, or writer with number and time; 196 were measured."""

_TABLE_BYTES = 1 << 14
"""Estimated bytes for a schema and properties."""


@dataclass
class LogMemory:
    """The newest proven version per table; the least recently used tables are evicted first.

    Safe for threads. The bytes are an upper estimate. A cached version replaces its source records,
    so damage to those goes unnoticed here until a read needs them.
    """

    count_max: int = 4096
    bytes_max: int = 256 << 20
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
        """Estimated bytes for all cached versions."""
        return self._known.bytes_used

    def recall(self, store: Store) -> Manifest | None:
        """Return a formerly newest version, or None; the caller must prove it again.

        A version is returned `POLLS_PER_LISTING` times and then evicted, so the next reader lists
        the log.
        """
        key = store.cache_key
        if key is None:
            return None
        with self._lock:
            count = 1 + (self._recalls.get(key) or 0)
            if count > POLLS_PER_LISTING:
                self._known.pop(key)
            self._recalls.put(key, count)
            return self._known.get(key)

    def keep(self, store: Store, manifest: Manifest) -> None:
        """Cache a proven version, unless the cache has a newer one for the same table."""
        key = store.cache_key
        if key is None:
            return
        with self._lock:
            entry = self._known.peek(key)
            if entry is not None and entry.table_id == manifest.table_id:
                if entry.version > manifest.version:
                    return
                if entry.token == manifest.token:
                    self._known.get(key)  # It counts as used.
                    return
            self._recalls.pop(key)
            self._known.put(key, manifest)

    def forget(self, store: Store, manifest: Manifest) -> None:
        """Evict a version missing from the log."""
        with self._lock:
            if self._known.peek(store.cache_key) is manifest:
                self._known.pop(store.cache_key)

    def clear(self) -> None:
        """Evict everything, like a process restart."""
        with self._lock:
            self._known.clear()


def _bytes_of(_: Hashable, manifest: Manifest) -> int:
    writers = len(manifest.transactions) + len(manifest.forgotten) + len(manifest.repairs)
    return _TABLE_BYTES + manifest.slice_list.memory_bytes + _WRITER_BYTES * writers


LOGS = LogMemory()
"""This process's cache."""


_SEVERAL = 2
"""New versions indicating a long pause since the last poll."""

LISTED_S_MAX = 10.0
"""Maximum age of a listing that proves a version to be the newest: a few requests."""

READ_TRIES_MAX = 1000
"""Maximum polls in a row. A cut during a poll fails it; a thousand in a row is a fault."""


class LogReader:
    """The versions of one table (`Versions`), with a cache of the newest one. Safe for threads.

    Each request about versions polls the log first. A caller with several requests uses one
    snapshot (`LogSnapshot`): a new one (`refresh`), or one at the newest cached version (`cached_snapshot`).

    Parameters
    ----------
    store : Store
    memory : LogMemory, optional
        Start hints shared with other readers. None: read the complete log.
    clock : callable, optional
        Returns seconds since 1970.
    """

    def __init__(
        self, store: Store, *, memory: LogMemory | None = LOGS, clock: Clock = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._stored = StoredLog(store, reads_each=memory is None)
        self._memory = memory
        self._lock = threading.RLock()
        self._head: Manifest | None = None
        self._newest_base: Manifest | None = None
        """The head's base version: a follower requests the state before the head."""
        self._durable_version = -1
        self._idle_polls = 0
        self._reported: TableVersion | None = None
        """The newest version received from another process (`try_refresh`)."""
        self._listed = "", 0.0
        """The newest version's token in the last listing, and the time (`_prove_listed`)."""
        self._pinned = threading.local()

    def without_cache(self) -> LogReader:
        """Return an uncached reader for the same table."""
        fresh = LogReader(self._store, memory=None, clock=self._clock)
        if self._head is not None:
            fresh.require(self._head.version_ref, "what was opened here")
        return fresh

    def now_ms(self) -> int:
        """Return the time by the log's clock, in milliseconds since 1970."""
        return int(self._clock() * 1000)

    @property
    def is_contended(self) -> bool:
        """Whether each poll lists the log, because many versions come between two polls (`Log`)."""
        return False

    @property
    def stored(self) -> StoredLog:
        """The stored log records."""
        return self._stored

    # -- snapshots -------------------------------------------------------------------

    def refresh(self) -> LogSnapshot:
        """Poll the log and return a snapshot at the newest version; raises if there is no table.

        Costs one failed look-up and one read if nothing is new.
        """
        snapshot = self.try_refresh()
        if snapshot is None:
            raise no_table(self._store)
        return snapshot

    def try_refresh(self, *, reported: TableVersion | None = None) -> LogSnapshot | None:
        """Poll the log (`refresh`); None if there is no table.

        ``reported`` is a durable version that the caller received from another process, for example
        in a routed write's plan or commit message. The poll then starts there.
        """
        with self._lock:
            self._record_reported(reported)
            pinned = self._pinned_snapshot()
            if pinned is not None:
                return pinned
            head = self._find_end()
            return None if head is None else self._snapshot_from(head)

    def cached_snapshot(self) -> LogSnapshot:
        """Return a snapshot at the newest cached version; polls the log if none is cached.

        For a caller right after its own poll, needing only that version and older ones.
        """
        return self._cached_snapshot() or self.refresh()

    def snapshot_at(
        self, version_ref: TableVersion, *, reported: TableVersion | None = None
    ) -> LogSnapshot | None:
        """Return a snapshot at a version just proven to be the newest by another process.

        Saves a poll for a writer proposing the next version: the put detects a newer one, and `Log`
        proves before and after the put that the version is in the log. If the version cannot be
        built from the cache, this polls the log instead (`try_refresh`, also for ``reported``).
        """
        with self._lock:
            self._record_reported(reported)
            base = self._head or self._cached_version() or last_checkpoint(self._store)
            manifest = None
            if base is None or base.version <= version_ref.version:
                manifest = self._roll_to(base, version_ref)
            if manifest is None:
                return self.try_refresh()
            self._record_reported(version_ref)
            self._remember(manifest, base)
            return self._snapshot_from(manifest)

    def at_planned(self, version_ref: TableVersion, who: str) -> Manifest:
        """Return the manifest of a version that another process received from the log.

        For the tasks of a plan: they read the log instead of a pickled manifest with many slices.
        Raises `OtherTableError`; ``who`` names the plan's operation in its message.
        """
        snapshot = self.snapshot_at(version_ref)
        if snapshot is None:
            raise self._stored.other_table_error(version_ref, "no table", who)
        with snapshot as look:
            look.require(version_ref, who)
            return look.at(version_ref.version)

    def _record_reported(self, reported: TableVersion | None) -> None:
        """Record a version that another process read from the log and made durable."""
        if reported is None:
            return
        self._durable_version = max(self._durable_version, reported.version)
        if self._reported is None or self._reported.version < reported.version:
            self._reported = reported

    def _cached_snapshot(self) -> LogSnapshot | None:
        """Return a snapshot at the newest cached version; None if none is cached."""
        with self._lock:
            if self._head is None:
                return None
            return self._pinned_snapshot() or self._snapshot_from(self._head)

    def _snapshot_from(self, head: Manifest) -> LogSnapshot:
        return LogSnapshot(
            self._stored,
            head,
            newest_base=self._newest_base,
            now_ms=self.now_ms,
            find_end=self._find_end,
        )

    @property
    def cached_head(self) -> Manifest | None:
        """The newest version read by this reader, if any; newer ones may exist by now."""
        return self._head

    def has_newer(self) -> bool:
        """Return whether a version after the newest cached one exists; one request.

        Does not check that the log is still the same; `refresh` does.
        """
        cached_head = self._head
        if cached_head is None:
            return True
        try:
            self._store.read(commit_path(cached_head.version + 1))
        except FileNotFoundError:
            return False
        return True

    # -- a view that reads at one position -------------------------------------------

    @contextmanager
    def pin_snapshot(self) -> Iterator[None]:
        """Serve all this thread's requests in the block from one snapshot.

        Only views need it (`View.use_cached_heads`): their relations hold tables instead of snapshots. The
        end of the block proves the reads, like the end of a `LogSnapshot`.
        """
        if self._is_pinned:
            yield
            return
        self._pinned.is_on, self._pinned.snapshot = True, None
        try:
            yield
        except CorruptionError:
            self._find_end()  # A removed version is no damage.
            raise
        else:
            if self._pinned.snapshot is not None:
                self._pinned.snapshot.prove()
        finally:
            self._pinned.is_on = False

    @property
    def _is_pinned(self) -> bool:
        return getattr(self._pinned, "is_on", False)

    def _pinned_snapshot(self) -> LogSnapshot | None:
        """Return this thread's snapshot within `pin_snapshot`, otherwise None."""
        if not self._is_pinned or self._head is None:
            return None
        snapshot: LogSnapshot | None = self._pinned.snapshot
        if snapshot is None:
            snapshot = self._pinned.snapshot = self._snapshot_from(self._head)
        return snapshot

    # -- one request per poll ---------------------------------------------------------

    def head(self) -> Manifest:
        """Return the newest manifest (`refresh`)."""
        return self.refresh().head()

    def try_head(self) -> Manifest | None:
        """Return the newest manifest, or None if there is no table."""
        snapshot = self.try_refresh()
        return None if snapshot is None else snapshot.head()

    def at(self, version: int) -> Manifest:
        """Return a version's manifest (`LogSnapshot.at`)."""
        return self.refresh().at(version)

    def before(self, version: int) -> Manifest:
        """Return the table just before a version (`LogSnapshot.before`)."""
        return self.refresh().before(version)

    def commit(self, version: int) -> Commit:
        """Return one commit (`LogSnapshot.commit`); no poll if it is stored, because it never changes."""
        snapshot = self._cached_snapshot()
        stored_commit = (
            self._stored.commit(version) if snapshot is None else snapshot.commit(version)
        )
        return self.refresh().commit(version) if stored_commit is None else stored_commit

    def commits(self, lower: int, upper: int) -> Iterator[Commit]:
        """Yield the commits of the versions ``lower <= v < upper``."""
        for window in iter_windows(lower, upper):
            self._stored.prefetch_blocks(window)
            yield from map(self.commit, window)

    def require_changes(self, lower: int) -> None:
        """Raise unless changes from a version on can be read (`LogSnapshot.require_changes`)."""
        self.refresh().require_changes(lower)

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest at a time (`LogSnapshot.at_timestamp`)."""
        return self.refresh().at_timestamp(timestamp_ms)

    def require_past(self, timestamp_ms: int) -> None:
        """Raise if a time is in the future (`LogSnapshot.require_past`)."""
        self.refresh().require_past(timestamp_ms)

    def version_at(self, timestamp_ms: int) -> int:
        """Return the last version at a time (`LogSnapshot.version_at`)."""
        return self.refresh().version_at(timestamp_ms)

    def version_ref(self, version: int) -> TableVersion:
        """Return the reference to a version (`LogSnapshot.version_ref`)."""
        return self.refresh().version_ref(version)

    def require(self, version_ref: TableVersion, who: str, *, hint: str = "") -> Manifest:
        """Return the newest manifest, which must descend from a version (`LogSnapshot.require`)."""
        snapshot = self.try_refresh()
        if snapshot is None:
            raise self._stored.other_table_error(version_ref, "no table", who, hint)
        return snapshot.require(version_ref, who, hint=hint)

    def require_descent(self, head: Manifest, version_ref: TableVersion, who: str) -> None:
        """Raise unless a version descends from a recorded one (`LogSnapshot.require`)."""
        self._snapshot_from(head).require(version_ref, who)

    def has(self, manifest: Manifest) -> bool:
        """Return whether a version is in the log; if so, no later version was removed yet."""
        return self._stored.contains(manifest)

    # -- the end of the log ----------------------------------------------------------

    def _find_end(self) -> Manifest | None:
        """Return the newest stored version; None if there is no table."""
        with self._lock:
            base = self._head or self._cached_version()
            is_remembered = base is not None and self._idle_polls < POLLS_PER_LISTING
            is_remembered &= not self.is_contended
            base = base or last_checkpoint(self._store)
            for _ in range(READ_TRIES_MAX):
                head = self._end_at_reported(base)
                if head is None:
                    # Listed before it is read: a version written meanwhile is none after a gap.
                    newest = -1 if is_remembered else self._stored.newest_listed(base)
                    if base is None and newest < 0 and self._head is None:
                        return None
                    if self.is_contended and base is not None:
                        head = self._prove_listed(base, newest)
                    else:
                        head = self._prove_end(base, newest)
                if head is not None:
                    is_idle = is_remembered and head is base
                    self._idle_polls = self._idle_polls + 1 if is_idle else 0
                    if self._head is not None and base is not self._head:
                        self.require_descent(head, self._head.version_ref, "what was opened here")
                    self._make_durable(head.version)
                    self._remember(head, base)
                    return head
                if base is not None and self._memory is not None:
                    self._memory.forget(self._store, base)
                self._stored.forget()
                if self._is_absent():
                    return None
                base, is_remembered = self._stored.newest_checkpoint(), False
        raise ContentionError(
            f"the log of '{self._store.url}' was cut {READ_TRIES_MAX} times while it was read.",
            hint="run fewer vacuums at once, then try again.",
        )

    def _is_absent(self) -> bool:
        """Return whether there is no table; raise if it was removed or only partly remains."""
        if self._stored.commit(0) is not None:
            return False
        if self._head is not None:
            raise self._stored.other_table_error(
                self._head.version_ref, "no table", "what was opened here"
            )
        require_no_rest(self._store)
        return self._stored.commit(0) is None

    def _cached_version(self) -> Manifest | None:
        return None if self._memory is None else self._memory.recall(self._store)

    def _remember(self, head: Manifest, base: Manifest | None) -> None:
        """Cache a version proven to be in the log, and its base version.

        A reader without a commit by this process would follow an older copy.
        """
        with self._lock:
            if self._head is None or self._head.version <= head.version:
                self._head = head
                if base is not None and base.version < head.version:
                    self._newest_base = base
        if self._memory is not None:
            self._memory.keep(self._store, head)

    def _prove_end(self, base: Manifest | None, newest: int) -> Manifest | None:
        """Return the log's proven end, starting at a base version; None if it is not proven."""
        try:
            head = self._stored.apply_commits(base, None)
        except CorruptionError:
            if self._stored.contains(base):
                raise
            return None  # A commit that does not continue another log is no damage.
        if head is None or not self._stored.contains(base):
            return None
        if newest < 0 and base is not None and head.version >= base.version + _SEVERAL:
            newest = self._newest_probed(head.version)
        if head.version < newest:
            self._require_newer_checkpoint(head, newest)
            return None
        return head

    def _prove_listed(self, base: Manifest, newest: int) -> Manifest | None:
        """Return the newest version of a listing; None if it is not proven to continue the base.

        An object read after the listing proves it: the newest, whose tokens lead to the base.
        """
        if newest == base.version:
            head = base if self._stored.contains(base) else None
        else:
            self._stored.forget(newest)
            self._stored.commit(newest)  # It may repeat those before it.
            try:
                head = self._stored.apply_commits(base, newest)
            except CorruptionError:
                head = None
        if head is None or head.version < newest:
            return self._prove_end(base, newest)
        self._listed = head.token, time.monotonic()
        return head

    def _is_listed_newest(self, manifest: Manifest) -> bool:
        """Return whether a listing has just found a version to be the newest."""
        token, listed_s = self._listed
        return token == manifest.token and time.monotonic() - listed_s <= LISTED_S_MAX

    def _newest_probed(self, version: int) -> int:
        """Return the newest version by reading the one after the next."""
        if self._stored.mark(version + 2) is None or self._stored.mark(version + 1) is not None:
            return version
        return version + 2

    def require_no_gap(self, head: Manifest) -> None:
        """Raise if the next version was lost although a later one exists."""
        newest = self._stored.newest_listed(head)
        is_there = self._stored.mark(head.version + 1) is not None
        if newest <= head.version or is_there or not self._stored.contains(head):
            return  # Other writers came meanwhile, or the log was cut.
        if self._memory is not None:
            self._memory.forget(self._store, head)
        raise self._stored.gap(head.version + 1, newest)

    def _require_newer_checkpoint(self, head: Manifest, newest: int) -> None:
        """Raise unless a checkpoint is newer than a gap."""
        checkpoint = self._stored.newest_checkpoint()
        if checkpoint is None or checkpoint.version <= head.version:
            raise self._stored.gap(head.version + 1, newest)

    def _end_at_reported(self, base: Manifest | None) -> Manifest | None:
        """Return the version passed by a caller to `try_refresh`, if it is the log's end.

        Saves one read against starting at the cached version: the commit is needed anyway, and
        reading it after checking for the next one proves the end.
        """
        reported = self._reported
        if reported is None or (base is not None and base.version >= reported.version):
            return None
        if self._stored.commit(reported.version + 1) is not None:
            return None
        self._stored.forget(reported.version)  # Read before the poll it would prove nothing.
        return self._roll_to(base, reported)

    def _roll_to(self, base: Manifest | None, version_ref: TableVersion) -> Manifest | None:
        """Return a version's manifest, built from an older one; None if impossible."""
        try:
            manifest = self._stored.apply_commits(base, version_ref.version)
        except CorruptionError:
            return None  # A poll of the complete log reports the damage.
        return manifest if manifest is not None and manifest.version_ref == version_ref else None

    def _make_durable(self, version: int) -> None:
        """Sync a version possibly left half-way by another process, before acting on it.

        Its writer may have been killed, or received an error, between making the version visible
        and making it durable. A reader must not follow a version still reversible by a power loss,
        and a writer must not report it.
        """
        if version > self._durable_version:
            self._store.sync(commit_path(version))
            self._durable_version = version
