"""Reading the log: the proven newest version (`LogReader`), and a process's memory of it.

``v`` is the end if ``v + 1`` is absent and *then* the version at which the read began is found by
its token. The memory (`LogMemory`) is a hint that each read proves again (docs/adr/0015).
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
from spark_upsert.table.log.snapshot import Look
from spark_upsert.table.log.storage import AT_ONCE, Clock, StoredLog, last_checkpoint

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

    Safe for threads. The bytes are an upper estimate. A remembered version replaces the records
    that it was folded from, so damage to those stays unnoticed here until a read needs them.
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


_SEVERAL = 2
"""New versions of a process that has not looked for a while."""

READ_TRIES_MAX = 1000
"""The most looks in a row. A look fails if a cut came between; a thousand in a row is a fault."""


class LogReader:
    """The versions of one table (`Versions`). Safe for threads; keeps the newest that it has seen.

    Each question about versions looks at the end of the log first. A caller with several questions
    asks one `Look`: a new one (`look`), or that of the newest version seen so far (`last_look`).

    Parameters
    ----------
    store : Store
    memory : LogMemory, optional
        The hints of where to begin, shared with other readers. None: reads all there is.
    clock : callable, optional
        Returns seconds since 1970.
    """

    def __init__(
        self, store: Store, *, memory: LogMemory | None = LOGS, clock: Clock = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._stored = StoredLog(store)
        self._memory = memory
        self._lock = threading.RLock()
        self._head: Manifest | None = None
        self._behind: Manifest | None = None
        """The version that the head was made from last: a follower asks for the state before it."""
        self._durable_version = -1
        self._idle_looks = 0
        self._told: TableVersion | None = None
        self._resting = threading.local()

    def anew(self) -> LogReader:
        """Return a reader of the same table that reads all of it from the storage."""
        fresh = LogReader(self._store, memory=None, clock=self._clock)
        if self._head is not None:
            fresh.require(self._head.place, "what was opened here")
        return fresh

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970, by the log's clock."""
        return int(self._clock() * 1000)

    @property
    def stored(self) -> StoredLog:
        """The records of the log in the storage."""
        return self._stored

    # -- looks -----------------------------------------------------------------------

    def look(self) -> Look:
        """Look at the end of the log, in the storage.

        Costs one failed look-up and one read if nothing is new.
        """
        snapshot = self.try_look()
        if snapshot is None:
            raise no_table(self._store)
        return snapshot

    def try_look(self, *, told: TableVersion | None = None) -> Look | None:
        """Look at the end of the log (`look`); None if there is no table."""
        with self._lock:
            self._note(told)
            resting = self._resting_look()
            if resting is not None:
                return resting
            head = self._find_end()
            return None if head is None else self._look_from(head)

    def last_look(self) -> Look:
        """Return a look from the newest version that was seen; looks anew if none was.

        It is for a caller that has just looked and asks only about that version and older ones.
        """
        return self._known() or self.look()

    def look_at(self, place: TableVersion, *, told: TableVersion | None = None) -> Look | None:
        """Return a look from a version that another process has just proven to be the newest.

        It spares a look for a writer that proposes the next version: the put finds out whether
        there is a newer one, and `Log` proves before and after the put that the version is in the
        log. Where the version cannot be made from what is remembered, this looks for the end and
        returns what it finds (`try_look`, which says what ``told`` is).
        """
        with self._lock:
            self._note(told)
            base = self._head or self._recalled() or last_checkpoint(self._store)
            manifest = None
            if base is None or base.version <= place.version:
                manifest = self._reached(base, place)
            if manifest is None:
                return self.try_look()
            self._note(place)
            self._remember(manifest, base)
            return self._look_from(manifest)

    def _note(self, told: TableVersion | None) -> None:
        """Take note of a version that was in the log, and durable."""
        if told is None:
            return
        self._durable_version = max(self._durable_version, told.version)
        if self._told is None or self._told.version < told.version:
            self._told = told

    def _known(self) -> Look | None:
        """Return a look from the newest version that was seen."""
        with self._lock:
            if self._head is None:
                return None
            return self._resting_look() or self._look_from(self._head)

    def _look_from(self, head: Manifest) -> Look:
        return Look(
            self._stored, head, behind=self._behind, now_ms=self.now_ms, again=self._find_end
        )

    @property
    def seen(self) -> Manifest | None:
        """The newest version that this reader has seen, if any; there may be newer ones by now."""
        return self._head

    def has_newer(self) -> bool:
        """Return whether there is a version behind the newest one that was seen; one request.

        Whether the log is still the one that was seen is left open; `look` finds that out.
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
    def as_seen(self) -> Iterator[None]:
        """Let one look answer all questions of this thread, in the block.

        It is for views alone (`View.resting`), whose relations hold their tables and not looks. The
        end of the block proves what was read, as that of a `Look` does.
        """
        if self._is_resting:
            yield
            return
        self._resting.is_on, self._resting.look = True, None
        try:
            yield
        except CorruptionError:
            self._find_end()  # A version that is there no longer is no damage.
            raise
        else:
            if self._resting.look is not None:
                self._resting.look.prove()
        finally:
            self._resting.is_on = False

    @property
    def _is_resting(self) -> bool:
        return getattr(self._resting, "is_on", False)

    def _resting_look(self) -> Look | None:
        """Return the look that answers in this thread, if one does."""
        if not self._is_resting or self._head is None:
            return None
        snapshot: Look | None = self._resting.look
        if snapshot is None:
            snapshot = self._resting.look = self._look_from(self._head)
        return snapshot

    # -- one question, behind a look -------------------------------------------------

    def head(self) -> Manifest:
        """Return the manifest of the newest version (`look`)."""
        return self.look().head()

    def try_head(self) -> Manifest | None:
        """Return the manifest of the newest version, or None if there is no table."""
        snapshot = self.try_look()
        return None if snapshot is None else snapshot.head()

    def at(self, version: int) -> Manifest:
        """Return the manifest of a version (`Look.at`)."""
        return self.look().at(version)

    def before(self, version: int) -> Manifest:
        """Return the table just before a version (`Look.before`)."""
        return self.look().before(version)

    def commit(self, version: int) -> Commit:
        """Return one commit (`Look.commit`); without a look, for it never changes."""
        snapshot = self._known()
        stored_commit = (
            self._stored.commit(version) if snapshot is None else snapshot.commit(version)
        )
        return self.look().commit(version) if stored_commit is None else stored_commit

    def commits(self, lower: int, upper: int) -> Iterator[Commit]:
        """Yield the commits of the versions ``lower <= v < upper``."""
        for version in range(lower, upper):
            if (version - lower) % AT_ONCE == 0:
                self._stored.bring(version, min(version + AT_ONCE, upper))
            yield self.commit(version)

    def require_changes(self, lower: int) -> None:
        """Raise unless the changes of a version and of all behind it can be read (`Look`)."""
        self.look().require_changes(lower)

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest of a time (`Look.at_timestamp`)."""
        return self.look().at_timestamp(timestamp_ms)

    def require_past(self, timestamp_ms: int) -> None:
        """Raise if a time is in the future (`Look.require_past`)."""
        self.look().require_past(timestamp_ms)

    def version_at(self, timestamp_ms: int) -> int:
        """Return the last version of a time (`Look.version_at`)."""
        return self.look().version_at(timestamp_ms)

    def place(self, version: int) -> TableVersion:
        """Return the place of a version, to be remembered (`Look.place`)."""
        return self.look().place(version)

    def require(self, place: TableVersion, who: str, *, hint: str = "") -> Manifest:
        """Return the newest manifest, which must descend from a version (`Look.require`)."""
        snapshot = self.try_look()
        if snapshot is None:
            raise self._stored.other(place, "no table", who, hint)
        return snapshot.require(place, who, hint=hint)

    def require_descent(self, head: Manifest, place: TableVersion, who: str) -> None:
        """Raise unless a version descends from one that is remembered (`Look.require`)."""
        self._look_from(head).require(place, who)

    def has(self, manifest: Manifest) -> bool:
        """Return whether a version is in the log, so that none behind it was removed yet."""
        return self._stored.holds(manifest)

    # -- the end of the log ----------------------------------------------------------

    def _find_end(self) -> Manifest | None:
        """Return the newest version in the storage; None if there is no table."""
        with self._lock:
            base = self._head or self._recalled()
            is_remembered = base is not None and self._idle_looks < LOOKS_PER_LISTING
            base = base or last_checkpoint(self._store)
            for _ in range(READ_TRIES_MAX):
                head = self._end_at_told(base)
                if head is None:
                    # Listed before it is read: what comes meanwhile is no version after a gap.
                    newest = -1 if is_remembered else self._stored.newest_listed(base)
                    if base is None and newest < 0 and self._head is None:
                        return None
                    head = self._proven(base, newest)
                if head is not None:
                    is_idle = is_remembered and head is base
                    self._idle_looks = self._idle_looks + 1 if is_idle else 0
                    if self._head is not None and base is not self._head:
                        self.require_descent(head, self._head.place, "what was opened here")
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
        """Return whether there is no table; raise if there was one, or the rest of one is there."""
        if self._stored.commit(0) is not None:
            return False
        if self._head is not None:
            raise self._stored.other(self._head.place, "no table", "what was opened here")
        require_no_rest(self._store)
        return self._stored.commit(0) is None

    def _recalled(self) -> Manifest | None:
        return None if self._memory is None else self._memory.recall(self._store)

    def _remember(self, head: Manifest, base: Manifest | None) -> None:
        """Keep a version that is proven to be in the log, and the one that it was made from.

        A reader that forgot a commit of this process would follow an older copy.
        """
        with self._lock:
            if self._head is None or self._head.version <= head.version:
                self._head = head
                if base is not None and base.version < head.version:
                    self._behind = base
        if self._memory is not None:
            self._memory.keep(self._store, head)

    def _proven(self, base: Manifest | None, newest: int) -> Manifest | None:
        """Return the end of the log, from a version on."""
        try:
            head = self._stored.roll(base, None)
        except CorruptionError:
            if self._stored.holds(base):
                raise
            return None  # A commit that does not continue another log is no damage.
        if head is None or not self._stored.holds(base):
            return None
        if newest < 0 and base is not None and head.version >= base.version + _SEVERAL:
            newest = self._newest_probed(head.version)
        if head.version < newest:
            self._require_newer_checkpoint(head, newest)
            return None
        return head

    def _newest_probed(self, version: int) -> int:
        """Return the newest version by a read of the one after the next."""
        if self._stored.mark(version + 2) is None or self._stored.mark(version + 1) is not None:
            return version
        return version + 2

    def require_no_gap(self, head: Manifest) -> None:
        """Raise if the version after one was lost, where a still newer one was found."""
        newest = self._stored.newest_listed(head)
        is_there = self._stored.mark(head.version + 1) is not None
        if newest <= head.version or is_there or not self._stored.holds(head):
            return  # Other writers came meanwhile, or the log was cut.
        if self._memory is not None:
            self._memory.forget(self._store, head)
        raise self._stored.gap(head.version + 1, newest)

    def _require_newer_checkpoint(self, head: Manifest, newest: int) -> None:
        """Raise unless a checkpoint is newer than a gap."""
        checkpoint = self._stored.newest_checkpoint()
        if checkpoint is None or checkpoint.version <= head.version:
            raise self._stored.gap(head.version + 1, newest)

    def _end_at_told(self, base: Manifest | None) -> Manifest | None:
        """Return the version that a caller was told of (`try_look`), if it is the end of the log.

        This saves one read against beginning at the remembered version: the commit, which has to be
        read anyway, is read after the look for the next one, and so proves the end.
        """
        reported = self._told
        if reported is None or (base is not None and base.version >= reported.version):
            return None
        if self._stored.commit(reported.version + 1) is not None:
            return None
        self._stored.forget(reported.version)  # Read before the look it would prove nothing.
        return self._reached(base, reported)

    def _reached(self, base: Manifest | None, place: TableVersion) -> Manifest | None:
        """Return the manifest of a place from an older one; None if that does not lead there."""
        try:
            manifest = self._stored.roll(base, place.version)
        except CorruptionError:
            return None  # A look at all of the log says what is wrong with it.
        return manifest if manifest is not None and manifest.place == place else None

    def _make_durable(self, version: int) -> None:
        """Sync a version that another process may have left half-way, before it is acted on.

        Its writer may have been killed, or seen an error, between making the version visible
        and making it durable. A reader must not follow what a power loss can still undo, and
        a writer must not report it.
        """
        if version > self._durable_version:
            self._store.sync(commit_path(version))
            self._durable_version = version
