"""The log: one immutable object per version, created only if absent.

Creating ``_log/<version>.json`` is the commit point of everything: an epoch is visible when
its version exists, whole, and not before. A put that raises may have taken effect; the unique
token in the record settles whose it is.

The log is a chain: version ``v`` names the token of ``v - 1``, and the token of version 0 is
the table's *identity*. What a process remembers of the log is worth nothing by itself: the
folder may have been removed, replaced by another table or by an older copy, or be another
one than before. So the end of the log is *proven*, each time anew:

- ``v`` is the end if ``v + 1`` is absent and *then* the version that the reader began at is
  found in the log, by its token;
- the put of ``v + 1`` has counted if, *after* it, ``v`` is found in the log, by its token. A put
  never makes a folder, so that it fails where a table was removed from a file system; where
  there are no folders, this look finds nothing, and the writer takes its stray version back.

Who does not find what it remembers begins again at the newest checkpoint, and refuses to go
on (`OtherTableError`) unless it finds the same table, at no older version, with the same
version where it knew one. A table that was moved as a whole is still itself.

Every `CHECKPOINT_EVERY` versions the manifest is written as a checkpoint, a pure shortcut:
without any checkpoint the log reads the same. ``_log/_last_checkpoint`` is a hint that may
be old or absent.

The beginning of the log can be *cut* off (`Log.cut`), and then a name behind an old manifest
is free again: a process that slept meanwhile would take it for the end of the log, read old
rows for ever or, worse, commit there. So the cut keeps an order, the only copy of the rule:

1. the newest checkpoint at or below ``since``, made anew from what it replaces, is durable,
   and the hint is not older;
2. version 0, which is never removed, is marked as cut;
3. the versions below that checkpoint are removed one by one, the oldest first, each of them
   `LOG_SECONDS_MIN` old at least.

Hence, as long as the commit of version ``v`` is in the log, none behind ``v`` was removed: the
proof above is good for cuts, too.

Rejected: to leave a mark in place of each removed version. It needs no rule, but leaves a
file per version for ever.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spark_upsert.durations import render_time
from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataLossError,
    OtherTableError,
    TableNotFoundError,
    UpsertFlowError,
)
from spark_upsert.state.log.clock import AHEAD_MS, require_clock, storage_ms
from spark_upsert.state.log.manifest import Commit, Draft, Kind, Manifest, Place, Slice, apply
from spark_upsert.state.log.tell import tell
from spark_upsert.store import Store
from spark_upsert.store.records import encode, read_record, text, whole
from spark_upsert.store.tokens import new_token

CHECKPOINT_EVERY = 50
"""Versions between checkpoints: a fresh reader replays at most this many small objects."""

COMMIT_TRIES_MAX = 1000
"""Each lost race means that another writer succeeded; a thousand in a row is a fault."""

LOG_SECONDS_MIN = 3600.0
"""Versions younger than this stay in the log, so that cuts rarely meet those who are at work."""

_FOLDER = "_log"
_HINT = f"{_FOLDER}/_last_checkpoint"
_ENTRY = re.compile(_FOLDER + r"/(\d{20})(\.checkpoint)?\.json")
_COMMITS_KEPT = 4096

Clock = Callable[[], float]


def commit_path(version: int) -> str:
    """Return where a version's commit lies."""
    return f"{_FOLDER}/{version:020d}.json"


def _checkpoint_path(version: int) -> str:
    return f"{_FOLDER}/{version:020d}.checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One object of the log: the commit or the checkpoint of a version."""

    version: int
    path: str
    is_checkpoint: bool
    modified_s: float
    """By the storage's own clock, in seconds since 1970."""
    is_link: bool = False
    """Whether it lies elsewhere, where nothing is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """What of a commit tells whose it is."""

    token: str
    is_cut: bool
    """Of version 0: the versions behind it may be cut off."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> _Mark:
        return cls(token=text(record["token"]), is_cut=record.get("cut", False) is True)


class Log:
    """The versions of one table. Safe for threads; keeps the newest manifest it has seen."""

    def __init__(self, store: Store, *, clock: Clock = time.time) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._head: Manifest | None = None
        self._commits: dict[int, Commit] = {}
        self._durable_version = -1

    # -- reading ---------------------------------------------------------------------

    def head(self) -> Manifest:
        """Return the manifest of the newest version.

        Costs one failed look-up and one read if nothing is new.

        Raises
        ------
        TableNotFoundError
            There is no version 0.
        OtherTableError
            There is not the table that this log has seen before.
        """
        manifest = self.try_head()
        if manifest is None:
            raise TableNotFoundError.at(self._store.url)
        return manifest

    def try_head(self) -> Manifest | None:
        """Return the manifest of the newest version, or None if there is no table."""
        with self._lock:
            base = self._head or self._last_checkpoint()
            for _ in range(COMMIT_TRIES_MAX):
                head = self._proven(base)
                if head is not None:
                    if self._head is not None and base is not self._head:
                        self.require_descent(head, self._head.place, "what was opened here")
                    self._make_durable(head.version)
                    self._head = head
                    return head
                self._commits.clear()
                if self._read_commit(0) is None:
                    if self._head is not None:
                        raise self._other(self._head.place, "no table", "what was opened here")
                    return None
                base = self._newest_checkpoint()
        raise ContentionError(
            f"the log of '{self._store.url}' was cut {COMMIT_TRIES_MAX} times while it was read.",
            hint="run fewer vacuums at once, then try again.",
        )

    def _proven(self, base: Manifest | None) -> Manifest | None:
        """Return the end of the log, from a version on; None if that is not in the log."""
        try:
            head = self._roll(base, None)
        except CorruptionError:
            if self._is_in_log(base):
                raise
            return None  # What does not continue another log is no damage.
        return head if self._is_in_log(base) else None

    def place(self, version: int) -> Place:
        """Return what to remember of a version (`require`)."""
        table_id, token = self.head().table_id, self.commit(version).token
        return Place(table_id=table_id, version=version, token=token)

    def require(self, place: Place, who: str, *, hint: str = "") -> Manifest:
        """Return the newest manifest, which must descend from a version that is remembered.

        Parameters
        ----------
        place : Place
        who : str
            Whose memory it is, for the error: "the checkpoint", "the epoch".
        hint : str
            What to do, where that differs from other memories.

        Raises
        ------
        OtherTableError
            There is another table, a copy of it that does not have that version, or none.
        """
        head = self.try_head()
        if head is None:
            raise self._other(place, "no table", who, hint)
        self.require_descent(head, place, who, hint=hint)
        return head

    def require_descent(self, head: Manifest, place: Place, who: str, *, hint: str = "") -> None:
        """Raise unless the newest version descends from one that is remembered (`require`)."""
        if head.table_id != place.table_id:
            found = str(head.place)
        elif head.version < place.version:
            found = f"a copy of it that ends at version {head.version}"
        # Where the version was expired since, only the identity is left to compare.
        elif place.version >= head.since and self._token_at(place.version, head) != place.token:
            found = f"a copy of it with another version {place.version}"
        else:
            return
        raise self._other(place, found, who, hint)

    def _token_at(self, version: int, head: Manifest) -> str | None:
        if version == head.version:
            return head.token
        commit = self._read_commit(version)
        return None if commit is None else commit.token

    def _other(self, place: Place, found: str, who: str, hint: str = "") -> OtherTableError:
        self._commits.clear()
        return OtherTableError.at(self._store.url, who, str(place), found, hint=hint)

    def _make_durable(self, version: int) -> None:
        """Sync a version that another process may have left half-way, before anyone acts on it.

        Its writer may have been killed, or seen an error, between making the version visible
        and making it durable. A reader must not follow what a power loss can still undo, and
        a writer must not report it.
        """
        if version > self._durable_version:
            self._store.sync(commit_path(version))
            self._durable_version = version

    def at(self, version: int) -> Manifest:
        """Return the manifest of a version.

        Raises
        ------
        DataLossError
            The version does not exist, or is below ``since``.
        """
        with self._lock:
            head = self.head()
            if version == head.version:
                return head
            if not head.since <= version <= head.version:
                raise _no_version(version, head)
            start = self._checkpoint_at(version - version % CHECKPOINT_EVERY)
            manifest = self._roll(start, version)
            if manifest is None or manifest.version != version:
                raise self._gone(version)
            if manifest.token != self.commit(version).token:
                raise CorruptionError.in_file(
                    f"{self._store.url}/{_checkpoint_path(version)}",
                    f"the checkpoint of table '{head.table_id}'",
                    f"one of '{manifest.table_id}'",
                )
            return manifest

    def before(self, version: int) -> Manifest:
        """Return the table just before a version; before version 0 it was empty."""
        if version > 0:
            return self.at(version - 1)
        first = self.at(0)
        return Manifest.unborn(first.schema, table_id=first.table_id)

    def require_changes(self, lower: int) -> None:
        """Raise unless the changes of version ``lower`` and of all behind it can be read.

        The rule is that of `Manifest.first_changes`.

        Raises
        ------
        DataLossError
            They are expired.
        """
        head = self.head()
        if lower < head.first_changes:
            raise DataLossError.changes_expired(
                f"the change feed from version {lower} on", since=head.since, newest=head.version
            )

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest that is not younger than a time (ms since 1970)."""
        version = self.version_at(timestamp_ms)
        head = self.head()
        if version < head.since and head.since > 0:
            raise DataLossError.state_expired(
                f"the time {render_time(timestamp_ms)}", since=head.since, newest=head.version
            )
        if version < 0:
            first, asked = render_time(self.commit(0).timestamp_ms), render_time(timestamp_ms)
            raise DataLossError(
                f"the table begins at {first}, after the time {asked} asked for.",
                hint=f"ask for a time at or after {first}, or for version 0.",
            )
        return self.at(version)

    def version_at(self, timestamp_ms: int) -> int:
        """Return the last version committed at or before a time, be it expired, or -1.

        Versions that the log was cut of count as the oldest.
        """
        head = self.head()

        def time_ms(version: int) -> int:
            commit = self._read_commit(version)
            return 0 if commit is None else head.time_ms(version, commit.timestamp_ms)

        return bisect_right(range(head.upper), timestamp_ms, key=time_ms) - 1

    def commit(self, version: int) -> Commit:
        """Return one commit.

        Raises
        ------
        DataLossError
            The version does not exist, or is below ``since``.
        """
        expired = self._head is not None and version < self._head.since
        found = None if expired else self._read_commit(version)
        if found is None:
            raise self._gone(version)
        return found

    def commits(self, lower: int, upper: int) -> Iterator[Commit]:
        """Yield the commits of the versions ``lower <= v < upper``."""
        for version in range(lower, upper):
            yield self.commit(version)

    def _gone(self, version: int) -> DataLossError | CorruptionError:
        """Return the error for a version that could not be read."""
        head = self.head()
        if head.since <= version <= head.version:
            return CorruptionError.in_file(
                f"{self._store.url}/{_FOLDER}", f"version {version} and those below", "a gap"
            )
        return _no_version(version, head)

    def _is_in_log(self, manifest: Manifest | None) -> bool:
        """Return whether a version is in the log, so that none behind it was removed yet.

        Reads the storage, never the memory. None stands for a log that was never cut.
        """
        found = self._mark(0 if manifest is None else manifest.version)
        if found is None or found.is_cut:
            return False
        return manifest is None or manifest.token == found.token

    def _mark(self, version: int) -> _Mark | None:
        return read_record(self._store, commit_path(version), _Mark.from_json)

    def _roll(self, manifest: Manifest | None, last: int | None) -> Manifest | None:
        """Apply the commits behind a manifest, up to ``last`` or to the end."""
        while last is None or manifest is None or manifest.version < last:
            commit = self._read_commit(0 if manifest is None else manifest.version + 1)
            if commit is None:
                break
            manifest = apply(manifest, commit)
        return manifest

    def _read_commit(self, version: int) -> Commit | None:
        with self._lock:
            known = self._commits.get(version)
        if known is not None:
            return known
        commit = read_record(self._store, commit_path(version), Commit.from_json)
        if commit is None:
            return None
        with self._lock:
            if len(self._commits) >= _COMMITS_KEPT:
                self._commits.clear()
            self._commits[version] = commit
        return commit

    def _last_checkpoint(self) -> Manifest | None:
        """Return the checkpoint that the hint names, or None: then the log is read without."""
        hinted = self._hint()
        return None if hinted is None else self._read_checkpoint(hinted)

    def _hint(self) -> int | None:
        """Return the version of a checkpoint that is there, or was."""
        try:
            return read_record(self._store, _HINT, lambda record: whole(record["version"]))
        except CorruptionError:
            return None  # Only a shortcut is lost.

    def _newest_checkpoint(self) -> Manifest | None:
        """Return the newest checkpoint of this log that is there, whatever the hint says."""
        for entry in reversed(self.entries()):
            manifest = self._read_checkpoint(entry.version) if entry.is_checkpoint else None
            if manifest is not None and self._is_in_log(manifest):
                return manifest
        if not self._is_in_log(None):
            raise CorruptionError.in_file(
                f"{self._store.url}/{_FOLDER}", "a checkpoint, as the log was cut", "none"
            )
        return None

    def entries(self) -> list[LogEntry]:
        """Return the commits and checkpoints that lie in the log, the oldest version first."""
        found = []
        for info in self._store.list(_FOLDER):
            match = _ENTRY.fullmatch(info.path)
            if match is not None:
                entry = LogEntry(
                    version=int(match[1]),
                    path=info.path,
                    is_checkpoint=match[2] is not None,
                    modified_s=info.modified_s,
                    is_link=info.is_link,
                )
                found.append(entry)
        return sorted(found, key=lambda e: (e.version, e.is_checkpoint))

    def files_before(self, version: int) -> set[str]:
        """Return the run files that versions below one name, as far as the log still holds them."""
        files = set()
        for entry in self.entries():
            if entry.version >= version:
                continue
            slices = _slices_of_checkpoint if entry.is_checkpoint else _slices_of_commit
            parts = read_record(self._store, entry.path, slices)
            files |= {part.file.path for part in parts or ()}
        return files

    def _checkpoint_at(self, version: int) -> Manifest | None:
        """Return the newest checkpoint at or below a multiple of the interval, if near."""
        for candidate in range(version, 0, -CHECKPOINT_EVERY):
            manifest = self._read_checkpoint(candidate)
            if manifest is not None:
                return manifest
        return None

    def _read_checkpoint(self, version: int) -> Manifest | None:
        path = _checkpoint_path(version)
        manifest = read_record(self._store, path, Manifest.from_json)
        if manifest is not None and manifest.version != version:
            raise CorruptionError.in_file(
                f"{self._store.url}/{path}", f"version {version}", f"version {manifest.version}"
            )
        return manifest

    # -- writing ---------------------------------------------------------------------

    def append(self, propose: Callable[[Manifest], Draft | None]) -> Commit | None:
        """Commit the next version, whatever its number turns out to be.

        Parameters
        ----------
        propose : callable
            Takes the newest manifest and returns what is to be committed behind it, or None,
            for example because there is nothing to be done; then nothing is written.
            It is called again after each lost race, so it must only look, and write nothing.

        Returns
        -------
        Commit or None
            What was committed.

        Raises
        ------
        ContentionError
            Other writers won `COMMIT_TRIES_MAX` races.
        OtherTableError
            The table that this log has seen is not there any more; nothing was committed.
        """
        for head in self.heads():
            draft = propose(head)
            if draft is None:
                return None
            commit = self.try_append(head, draft)
            if commit is not None:
                return commit
        raise AssertionError("the heads end with an error")

    def heads(self) -> Iterator[Manifest]:
        """Yield the newest manifest, each time anew, for attempts to commit behind it.

        Raises
        ------
        ContentionError
            Other writers won `COMMIT_TRIES_MAX` races.
        """
        for _ in range(COMMIT_TRIES_MAX):
            yield self.head()
        raise ContentionError(
            f"{COMMIT_TRIES_MAX} attempts to commit to '{self._store.url}' lost against others.",
            hint="retry later, or write with fewer writers at once.",
        )

    def try_append(self, head: Manifest, draft: Draft) -> Commit | None:
        """Commit a draft right behind a version; None if another writer was faster."""
        return self._try_append(head, draft, self._next_ms(head))

    def _try_append(self, head: Manifest, draft: Draft, timestamp_ms: int) -> Commit | None:
        commit = draft.committed(
            version=head.version + 1,
            timestamp_ms=timestamp_ms,
            token=new_token(),
            previous=head.token,
        )
        if not self._try_put(commit):
            return None
        if self._is_in_log(head):
            self._remember(apply(head, commit))
        elif not self._settle(commit, head):
            return None
        self._checkpoint(commit.version)
        tell(commit, self._store.url)
        return commit

    def create(self, draft: Draft, *, table_id: str | None = None) -> Commit | None:
        """Commit version 0, which makes the table; None if another writer was faster.

        Parameters
        ----------
        draft : Draft
        table_id : str, optional
            The identity of the table, where something was staged upon it before it was made.

        Raises
        ------
        CorruptionError
            The folder holds versions of a log that has no beginning.
        """
        rest = [entry for entry in self.entries() if entry.version > 0]
        if rest and self._mark(0) is None:
            raise CorruptionError(
                f"'{self._store.url}' holds no table, but the rest of one: '{rest[0].path}' and "
                f"{len(rest) - 1} further objects of its log. Nothing was written.",
                hint="finish the copy or the removal of that table, or choose another path.",
                path=f"{self._store.url}/{rest[0].path}",
            )
        self._store.prepare(_FOLDER)
        now_ms = self.now_ms()
        require_clock(self._store, now_ms)
        commit = draft.committed(
            version=0, timestamp_ms=now_ms, token=table_id or new_token(), previous=""
        )
        if not self._try_put(commit):
            return None
        made = self.commit(0)  # Of attempts with the same identity, the first one stands.
        tell(made, self._store.url)
        return made

    def _next_ms(self, head: Manifest) -> int:
        """Return the time of the next version: times only grow."""
        now_ms = self.now_ms()
        if now_ms > head.timestamp_ms + AHEAD_MS:
            require_clock(self._store, now_ms)
        return max(now_ms, head.timestamp_ms + 1)

    def repair_clock(self) -> Commit | None:
        """Let the times of versions that lie far in the future count as the storage's own now.

        Returns
        -------
        Commit or None
            None if there are none.
        """
        for head in self.heads():
            now_ms = storage_ms(self._store)
            if now_ms is None or head.timestamp_ms <= now_ms + AHEAD_MS:
                return None
            last_right = self.version_at(now_ms + AHEAD_MS)
            before = self.commit(last_right).timestamp_ms + 1 if last_right >= head.since else 0
            draft = Draft(kind=Kind.CLOCK, live_rows=head.live_rows, wrong_from=last_right + 1)
            commit = self._try_append(head, draft, max(now_ms, before))
            if commit is not None:
                return commit
        raise AssertionError("the heads end with an error")

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970, by the log's clock."""
        return int(self._clock() * 1000)

    def _try_put(self, commit: Commit) -> bool:
        path = commit_path(commit.version)
        # A put may take effect before it fails, and a client that repeats it by itself meets
        # its own object: only the token can tell whose it is.
        try:
            if self._store.put_if_absent(path, encode(commit.to_json())):
                self._durable_version = commit.version
                return True
            found = self._mark(commit.version)
        except Exception as error:
            found = self._mark(commit.version)
            if found is None:
                if isinstance(error, OSError):
                    self.try_head()  # Says what became of the table, if it was removed.
                raise
        if found is None or found.token != commit.token:
            return False
        self._make_durable(commit.version)
        return True

    def _remember(self, manifest: Manifest) -> None:
        """Keep what was committed here: whoever forgets it would follow an older copy."""
        with self._lock:
            if self._head is None or self._head.version < manifest.version:
                self._head = manifest

    def _settle(self, commit: Commit, before: Manifest) -> bool:
        """Find out whether a commit counts although the version before it is gone.

        Either this process slept before its put, which then hit the name of a removed version
        and is in nobody's log; or it slept after it, and the version has been expired since.
        The next cut removes a stray object.

        Raises
        ------
        OtherTableError
            There is another table, another copy, or none. The stray object is taken back:
            it would stand in the way of that table's own version of this number.
        ContentionError
            Only a transaction could tell, and the commit has none.
        """
        if self._is_elsewhere(before):
            self._take_back(commit)
        try:
            head = self.head()
        except OtherTableError:
            self._take_back(commit)
            raise
        if not commit.transactions:
            raise ContentionError(
                f"the commit of version {commit.version} to '{self._store.url}' slept for longer "
                "than the retention; whether it is part of the table cannot be told.",
                hint="look at the table before you write these rows again; give writes a "
                "transaction ('txnAppId' and 'txnVersion'), which settles this by itself.",
            )
        return all(head.has(each) for each in commit.transactions)

    def _is_elsewhere(self, manifest: Manifest) -> bool:
        """Return whether a version that is missing was not cut off: the log is another one."""
        first = self._mark(0)
        if first is None or first.token != manifest.table_id:
            return True
        return not first.is_cut and not self._is_in_log(manifest)

    def _take_back(self, commit: Commit) -> None:
        found = self._mark(commit.version)
        if found is not None and found.token == commit.token:
            self._store.delete(commit_path(commit.version))

    def _checkpoint(self, version: int) -> None:
        """Write a checkpoint if one is due. A failure costs only speed, so it is not raised."""
        if version % CHECKPOINT_EVERY:
            return
        try:
            self._store.put(_checkpoint_path(version), encode(self.at(version).to_json()))
            self._store.put(_HINT, encode({"version": version}))
        except (OSError, UpsertFlowError):
            return

    # -- cutting ---------------------------------------------------------------------

    def cut(
        self, *, now_s: float, seconds_min: float = LOG_SECONDS_MIN, dry_run: bool = False
    ) -> list[str]:
        """Remove the beginning of the log that no readable version needs.

        Kept are version 0, the newest checkpoint at or below ``since`` and all behind it. The
        order of the steps is that of the module; a crash between them is harmless.

        Parameters
        ----------
        now_s : float
            Seconds since 1970 by the storage's own clock.
        seconds_min : float
            Younger versions stay, because their times are still needed.
        dry_run : bool
            Whether only to look.

        Returns
        -------
        list of str
            The paths of what was removed, or would be.
        """
        with self._lock:
            head = self.head()
            lower = head.since - head.since % CHECKPOINT_EVERY
            limit_s = now_s - max(seconds_min, LOG_SECONDS_MIN)
            gone = []
            for entry in self.entries():
                if entry.version == 0 or entry.is_link:
                    continue  # Version 0 is never removed, and young since it was marked.
                if entry.version >= lower or entry.modified_s > limit_s:
                    break
                gone.append(entry.path)
            if gone and not dry_run:
                self._begin_at(lower)
                for path in gone:
                    self._store.delete(path)
            return gone

    def _begin_at(self, version: int) -> None:
        """Make a checkpoint the beginning of the log: steps 1 and 2 of a cut."""
        manifest = self._roll(self._checkpoint_at(version - CHECKPOINT_EVERY), version)
        if manifest is not None and manifest.version == version:
            self._store.put(_checkpoint_path(version), encode(manifest.to_json()))
        else:
            # The log begins here already; what is left below comes from a crash or a sleeper.
            manifest = self._checkpoint_at(version)
            if manifest is None or manifest.version != version:
                raise CorruptionError.in_file(
                    f"{self._store.url}/{_checkpoint_path(version)}", "a checkpoint", "none"
                )
        hinted = self._hint()
        if hinted is None or hinted < version:
            self._store.put(_HINT, encode({"version": version}))
        first = read_record(self._store, commit_path(0), dict)
        if first is not None and not first.get("cut", False):
            self._store.put(commit_path(0), encode({**first, "cut": True}))


def _slices_of_checkpoint(record: dict[str, Any]) -> tuple[Slice, ...]:
    return Manifest.from_json(record).slices


def _slices_of_commit(record: dict[str, Any]) -> tuple[Slice, ...]:
    return Commit.from_json(record).slices()


def _no_version(version: int, head: Manifest) -> DataLossError:
    if 0 <= version < head.since:
        return DataLossError.state_expired(
            f"version {version}", since=head.since, newest=head.version
        )
    return DataLossError(
        f"version {version} is not in the log, whose newest is {head.version}.",
        hint=f"ask for a version from {head.since} to {head.version}.",
        version=version,
    )


__all__ = ["CHECKPOINT_EVERY", "Clock", "Kind", "Log", "commit_path", "encode"]
