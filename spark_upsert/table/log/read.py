"""Reading the log: its proven end, its versions, and whether it is the log that is remembered.

The log is a chain: version ``v`` names the token of ``v - 1``, and the token of version 0 is
the table's *identity*. A process's memory of the log proves nothing: the folder may have been
removed, or replaced by another table or by an older copy. So a reader *proves* the end of the log
each time anew: ``v`` is the end if ``v + 1`` is absent and *then* the version that the reader
began at is found in the log, by its token. A reader that was told of a version newer than its
memory begins there, and reads that version after the look for the next one: the read is the proof.

A reader that does not find the version it remembers begins again at the newest checkpoint, and
refuses to go on (`OtherTableError`) unless it finds the same table, at no older version, with the
same token for the version that it knew. A table that was moved as a whole is still itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataLossError,
    OtherTableError,
    TableNotFoundError,
    UpsertFlowError,
)
from spark_upsert.model.bounded import LruMap
from spark_upsert.model.durations import render_time
from spark_upsert.store import Store
from spark_upsert.store.records import read_record, text
from spark_upsert.table.log.checkpoints import last_checkpoint, newest_up_to, read_checkpoint
from spark_upsert.table.log.codec import commit_from_json, manifest_from_json
from spark_upsert.table.log.entries import FOLDER, LogEntry, checkpoint_path, commit_path, entries
from spark_upsert.table.log.fold import apply
from spark_upsert.table.log.manifest import Commit, Manifest, Slice, TableVersion
from spark_upsert.table.log.memory import LOGS, LogMemory

READ_TRIES_MAX = 1000
"""The most looks in a row. A look fails if a cut came between; a thousand in a row is a fault."""

_COMMITS_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMark:
    """The part of a commit that identifies it."""

    token: str
    is_cut: bool
    """Whether versions behind it may have been cut off; only version 0 can say so."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> CommitMark:
        return cls(token=text(record["token"]), is_cut=record.get("cut", False) is True)


class LogReader:
    """The versions of one table. Safe for threads; keeps the newest manifest it has seen.

    Parameters
    ----------
    store : Store
    memory : LogMemory, optional
        The hints of where to begin, shared with other readers. None: reads all there is.
    """

    def __init__(self, store: Store, *, memory: LogMemory | None = LOGS) -> None:
        self._store = store
        self._memory = memory
        self._lock = threading.RLock()
        self._head: Manifest | None = None
        self._behind: Manifest | None = None
        """The version that the head was made from last: a follower asks for the state before it."""
        self._commits: LruMap[int, Commit] = LruMap(_COMMITS_KEPT)
        self._durable_version = -1
        self._told: TableVersion | None = None
        self._resting = threading.local()

    def anew(self) -> LogReader:
        """Return a reader of the same table that reads all of it from the storage.

        Raises
        ------
        OtherTableError
            The folder does not hold the table that this log has seen before.
        """
        fresh = LogReader(self._store, memory=None)
        if self._head is not None:
            fresh.require(self._head.place, "what was opened here")
        return fresh

    @contextmanager
    def as_seen(self) -> Iterator[None]:
        """Let the newest version that was seen stand for the newest, in this thread.

        It is for a caller that has just looked and reads only older versions: each look at the end
        of the log is two requests. It is not for a caller that must know of newer versions, such as
        an expiry. At the end one more read proves what was read of the log meanwhile: the table may
        have been replaced in between.

        Raises
        ------
        OtherTableError
            The table was replaced, and what was read may be of another one.
        """
        if self._is_resting:
            yield
            return
        self._resting.is_on, self._resting.has_read = True, False
        try:
            yield
        except CorruptionError:
            self._look()  # A version that is there no longer is no damage.
            raise
        else:
            seen = self._head
            if seen is not None and self._resting.has_read and not self._is_in_log(seen):
                self._look()
        finally:
            self._resting.is_on = False

    @property
    def _is_resting(self) -> bool:
        return getattr(self._resting, "is_on", False)

    @property
    def seen(self) -> Manifest | None:
        """The newest version that this reader has seen, if any; there may be newer ones by now."""
        return self._head

    def head(self) -> Manifest:
        """Return the manifest of the newest version.

        Costs one failed look-up and one read if nothing is new.

        Raises
        ------
        TableNotFoundError
            There is no version 0.
        OtherTableError
            The folder does not hold the table that this log has seen before.
        """
        return self._required(self.try_head())

    def newest(self) -> Manifest:
        """Return the manifest of the newest version from the storage, within `as_seen`, too."""
        return self._required(self._look())

    def _required(self, found: Manifest | None) -> Manifest:
        if found is None:
            raise TableNotFoundError.at(self._store.url)
        return found

    def has_newer(self) -> bool:
        """Return whether there is a version behind the newest one that was seen; one request.

        Whether the log is still the one that was seen is left open; `head` finds that out.
        """
        seen = self._head
        if seen is None:
            return True
        try:
            self._store.read(commit_path(seen.version + 1))
        except FileNotFoundError:
            return False
        return True

    def try_head(self) -> Manifest | None:
        """Return the manifest of the newest version, or None if there is no table."""
        with self._lock:
            return self._head if self._is_resting and self._head is not None else self._look()

    def _look(self) -> Manifest | None:
        """Look at the end of the log in the storage."""
        with self._lock:
            base = self._head or self._recalled() or last_checkpoint(self._store)
            for _ in range(READ_TRIES_MAX):
                if base is None and self._is_absent():
                    return None
                head = self._end_at_told(base) or self._proven(base)
                if head is not None:
                    if self._head is not None and base is not self._head:
                        self.require_descent(head, self._head.place, "what was opened here")
                    self._make_durable(head.version)
                    self._remember(head, base)
                    return head
                if base is not None and self._memory is not None:
                    self._memory.forget(self._store, base)
                self._commits.clear()
                if self._is_absent():
                    return None
                base = self._newest_checkpoint()
        raise ContentionError(
            f"the log of '{self._store.url}' was cut {READ_TRIES_MAX} times while it was read.",
            hint="run fewer vacuums at once, then try again.",
        )

    def _is_absent(self) -> bool:
        """Return whether there is no table; raise if there was one."""
        if self._read_commit(0) is not None:
            return False
        if self._head is not None:
            raise self._other(self._head.place, "no table", "what was opened here")
        return True

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

    def _proven(self, base: Manifest | None) -> Manifest | None:
        """Return the end of the log, from a version on; None if that version is not in the log."""
        try:
            head = self._roll(base, None)
        except CorruptionError:
            if self._is_in_log(base):
                raise
            return None  # A commit that does not continue another log is no damage.
        return head if self._is_in_log(base) else None

    def _end_at_told(self, base: Manifest | None) -> Manifest | None:
        """Return the version that this reader was told of (`told_of`), if it is the end of the log.

        This saves one read against beginning at the remembered version: the commit, which has to be
        read anyway, is read after the look for the next one, and so proves the end.
        """
        told = self._told
        if told is None or (base is not None and base.version >= told.version):
            return None
        if self._read_commit(told.version + 1) is not None:
            return None
        self._commits.pop(told.version)  # Read before the look it would prove nothing.
        return self._reached(base, told)

    def _reached(self, base: Manifest | None, place: TableVersion) -> Manifest | None:
        """Return the manifest of a place from an older one; None if that does not lead there."""
        try:
            found = self._roll(base, place.version)
        except CorruptionError:
            return None  # A look at all of the log says what is wrong with it.
        return found if found is not None and found.place == place else None

    def seen_at(self, place: TableVersion) -> Manifest | None:
        """Return the table at a version that another process has just proven to be the newest.

        It spares a look for a writer that proposes the next version: the put finds out whether
        there is a newer one, and `Log` proves before and after the put that the version is in the
        log. Where the version cannot be made from what is remembered, this looks for the end and
        returns what it finds (`try_head`).
        """
        with self._lock:
            base = self._head or self._recalled() or last_checkpoint(self._store)
            found = None
            if base is None or base.version <= place.version:
                found = self._reached(base, place)
            if found is None:
                return self._look()
            self.told_of(place)
            self._remember(found, base)
            return found

    def place(self, version: int) -> TableVersion:
        """Return the place of a version, to be remembered (`require`)."""
        head = self.head()
        if version == head.version:
            return head.place
        return TableVersion(
            table_id=head.table_id, version=version, token=self.commit(version).token
        )

    def require(self, place: TableVersion, who: str, *, hint: str = "") -> Manifest:
        """Return the newest manifest, which must descend from a version that is remembered.

        Parameters
        ----------
        place : TableVersion
        who : str
            The holder of the memory, for the error: "the checkpoint", "the epoch".
        hint : str
            The hint of the error, where it differs from that for other memories.

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

    def require_descent(
        self, head: Manifest, place: TableVersion, who: str, *, hint: str = ""
    ) -> None:
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

    def _other(self, place: TableVersion, found: str, who: str, hint: str = "") -> OtherTableError:
        self._commits.clear()
        return OtherTableError.at(self._store.url, who, str(place), found, hint=hint)

    def told_of(self, place: TableVersion) -> None:
        """Take note that a version was in the log, and durable.

        It is for a caller that remembers the version from a place that is written only after the
        version was proven and synced. A look begins there, and does not sync it again.
        """
        self._durable_version = max(self._durable_version, place.version)
        if self._told is None or self._told.version < place.version:
            self._told = place

    def _make_durable(self, version: int) -> None:
        """Sync a version that another process may have left half-way, before it is acted on.

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
            if self._behind is not None and self._behind.version == version:
                return self._behind
            self._resting.has_read = True
            start = newest_up_to(self._store, version)
            manifest = self._roll(start, version)
            if manifest is None or manifest.version != version:
                raise self._gone(version)
            if manifest.token != self.commit(version).token:
                raise CorruptionError.in_file(
                    f"{self._store.url}/{checkpoint_path(version)}",
                    f"the checkpoint of table '{head.table_id}'",
                    f"one of '{manifest.table_id}'",
                )
            return manifest

    def kept(self, version: int) -> int | None:
        """Return a version that can be read and has the same rows as another one.

        That is the version itself or, if it is expired, ``since``; None if an epoch came between.
        """
        head = self.head()
        if version >= head.since:
            return version
        if head.changed <= version:
            return head.since
        return head.since if self.at(head.since).changed <= version else None

    def refolded(self, version: int) -> Manifest | None:
        """Return the manifest of a version from older checkpoints and the commits behind them.

        None if the log begins at this version, so that nothing is left to fold.
        """
        manifest = self._roll(newest_up_to(self._store, version - 1), version)
        return manifest if manifest is not None and manifest.version == version else None

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
                f"the change feed from version {lower} on",
                lower=lower,
                since=head.since,
                newest=head.version,
            )

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest that was committed at or before a time (ms since 1970)."""
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
        """Return the last version committed at or before a time, expired or not, or -1.

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

    def _gone(self, version: int) -> UpsertFlowError:
        """Return the error for a version that could not be read; it may have expired just now."""
        head = self._look()
        if head is None:
            return TableNotFoundError.at(self._store.url)
        if head.since <= version <= head.version:
            return CorruptionError.in_file(
                f"{self._store.url}/{FOLDER}", f"version {version} and those below", "a gap"
            )
        return _no_version(version, head)

    def has(self, manifest: Manifest) -> bool:
        """Return whether a version is in the log, so that none behind it was removed yet."""
        return self._is_in_log(manifest)

    def _is_in_log(self, manifest: Manifest | None) -> bool:
        """Return whether a version is in the log, so that none behind it was removed yet.

        Reads the storage, never the memory. None stands for a log that was never cut.
        """
        found = self._mark(0 if manifest is None else manifest.version)
        if found is None or found.is_cut:
            return False
        return manifest is None or manifest.token == found.token

    def _mark(self, version: int) -> CommitMark | None:
        return read_record(self._store, commit_path(version), CommitMark.from_json)

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
        self._resting.has_read = True
        commit = read_record(self._store, commit_path(version), commit_from_json)
        if commit is None:
            return None
        with self._lock:
            self._commits.put(version, commit)
        return commit

    def _newest_checkpoint(self) -> Manifest | None:
        """Return the newest checkpoint of this log that is there, whatever the hint says."""
        for entry in reversed(self.entries()):
            manifest = read_checkpoint(self._store, entry.version) if entry.is_checkpoint else None
            if manifest is not None and self._is_in_log(manifest):
                return manifest
        if not self._is_in_log(None):
            raise CorruptionError.in_file(
                f"{self._store.url}/{FOLDER}", "a checkpoint, as the log was cut", "none"
            )
        return None

    def entries(self) -> list[LogEntry]:
        """Return the commits and checkpoints that lie in the log, the oldest version first."""
        return entries(self._store)

    def files_before(self, version: int) -> set[str]:
        """Return the run files named by versions below this one, as far as the log holds them."""
        files = set()
        for entry in self.entries():
            if entry.version >= version:
                continue
            slices = _slices_of_checkpoint if entry.is_checkpoint else _slices_of_commit
            named = read_record(self._store, entry.path, slices)
            files |= {slice_.file.path for slice_ in named or ()}
        return files


def _slices_of_checkpoint(record: dict[str, Any]) -> tuple[Slice, ...]:
    return manifest_from_json(record).slices


def _slices_of_commit(record: dict[str, Any]) -> tuple[Slice, ...]:
    return commit_from_json(record).slices()


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
