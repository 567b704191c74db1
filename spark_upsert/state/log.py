"""The log: one immutable object per version, created only if absent.

Creating ``_log/<version>.json`` is the commit point of everything: an epoch is visible when
its version exists, whole, and not before. Whoever creates version ``v`` has read ``v - 1``,
so that the log is a chain. A put that raises may have taken effect; the unique token in the
record settles whose it is.

Every `CHECKPOINT_EVERY` versions the manifest is written as a checkpoint, a pure shortcut:
without any checkpoint the log reads the same. ``_log/_last_checkpoint`` is a hint that may
be old or absent.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataLossError,
    TableNotFoundError,
    UpsertFlowError,
)
from spark_upsert.state.manifest import FORMAT_VERSION, Commit, Kind, Manifest, apply
from spark_upsert.store import Store

CHECKPOINT_EVERY = 50
"""Versions between checkpoints: a fresh reader replays at most this many small objects."""

COMMIT_TRIES_MAX = 1000
"""Each lost race means that another writer succeeded; a thousand in a row is a fault."""

_FOLDER = "_log"
_HINT = f"{_FOLDER}/_last_checkpoint"
_COMMITS_KEPT = 4096

Clock = Callable[[], float]


def new_token() -> str:
    """Return a name that nobody has used before."""
    return uuid.uuid4().hex


def commit_path(version: int) -> str:
    """Return where a version's commit lies."""
    return f"{_FOLDER}/{version:020d}.json"


def encode(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON whose last field is the CRC-32 of all before it."""
    body = json.dumps(record, separators=(",", ":")).encode()
    return body[:-1] + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


_CHECKSUM_BYTES = len(_checksum(b""))


def _checkpoint_path(version: int) -> str:
    return f"{_FOLDER}/{version:020d}.checkpoint.json"


class Log:
    """The versions of one table. Safe for threads; keeps the newest manifest it has seen."""

    def __init__(self, store: Store, *, clock: Clock = time.time) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._head: Manifest | None = None
        self._commits: dict[int, Commit] = {}

    # -- reading ---------------------------------------------------------------------

    def head(self) -> Manifest:
        """Return the manifest of the newest version.

        Costs one failed look-up if nothing is new.

        Raises
        ------
        TableNotFoundError
            There is no version 0.
        """
        manifest = self.try_head()
        if manifest is None:
            raise TableNotFoundError.at(self._store.url)
        return manifest

    def try_head(self) -> Manifest | None:
        """Return the manifest of the newest version, or None if there is no table."""
        with self._lock:
            if self._head is None:
                self._head = self._last_checkpoint()
            self._head = self._roll(self._head, None)
            return self._head

    def at(self, version: int) -> Manifest:
        """Return the manifest of a version.

        Raises
        ------
        DataLossError
            The version is not in the log: not yet, or no longer.
        """
        with self._lock:
            head = self.head()
            if version == head.version:
                return head
            if not 0 <= version <= head.version:
                raise _no_version(version, head.version)
            start = self._checkpoint_at(version - version % CHECKPOINT_EVERY)
            manifest = self._roll(start, version)
            if manifest is None or manifest.version != version:
                raise _no_version(version, head.version)
            return manifest

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest that is not younger than a time (ms since 1970)."""
        version = self.version_at(timestamp_ms)
        if version < 0:
            first = self.commit(0).timestamp_ms
            raise DataLossError(
                f"the table begins at {first} ms, after the timestamp {timestamp_ms} ms asked for.",
                hint=f"ask for a timestamp at or after {_iso(first)}, or for 'versionAsOf' 0.",
            )
        return self.at(version)

    def version_at(self, timestamp_ms: int) -> int:
        """Return the last version committed at or before a time, or -1."""
        versions = range(self.head().version + 1)
        return bisect_right(versions, timestamp_ms, key=lambda v: self.commit(v).timestamp_ms) - 1

    def commit(self, version: int) -> Commit:
        """Return one commit.

        Raises
        ------
        DataLossError
            The version is not in the log.
        """
        found = self._read_commit(version)
        if found is None:
            raise _no_version(version, self.head().version)
        return found

    def commits(self, lower: int, upper: int) -> Iterator[Commit]:
        """Yield the commits of the versions ``lower <= v < upper``."""
        for version in range(lower, upper):
            yield self.commit(version)

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
        record = self._read_json(commit_path(version))
        if record is None:
            return None
        commit = Commit.from_json(record)
        with self._lock:
            if len(self._commits) >= _COMMITS_KEPT:
                self._commits.clear()
            self._commits[version] = commit
        return commit

    def _last_checkpoint(self) -> Manifest | None:
        try:
            hint = self._read_json(_HINT)
        except CorruptionError:
            return None  # Only a shortcut is lost.
        return self._checkpoint_at(hint["version"]) if hint else None

    def _checkpoint_at(self, version: int) -> Manifest | None:
        """Return the newest checkpoint at or below a multiple of the interval, if near."""
        for candidate in range(version, 0, -CHECKPOINT_EVERY):
            record = self._read_json(_checkpoint_path(candidate))
            if record is not None:
                return Manifest.from_json(record)
        return None

    def _read_json(self, path: str) -> dict[str, Any] | None:
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            return None
        body = data[:-_CHECKSUM_BYTES] + b"}"
        if data[-_CHECKSUM_BYTES:] != _checksum(body):
            raise CorruptionError.in_file(
                f"{self._store.url}/{path}",
                "a JSON record that ends with its checksum",
                f"{len(data)} bytes with another end",
            )
        record: dict[str, Any] = json.loads(body)
        if record.get("format", FORMAT_VERSION) > FORMAT_VERSION:
            raise CorruptionError.in_file(
                f"{self._store.url}/{path}",
                f"format {FORMAT_VERSION} or older",
                f"format {record['format']}; a newer release wrote it",
            )
        return record

    # -- writing ---------------------------------------------------------------------

    def append(self, propose: Callable[[Manifest], Commit | None]) -> Commit | None:
        """Commit the next version, whatever its number turns out to be.

        Parameters
        ----------
        propose : callable
            Takes the newest manifest and returns the commit to be made behind it; its
            version, timestamp and token are filled in here. It may return None, for
            example because the epoch turns out to be committed; then nothing is written.
            It is called again after each lost race.

        Returns
        -------
        Commit or None
            What was committed.

        Raises
        ------
        ContentionError
            Other writers won `COMMIT_TRIES_MAX` races.
        """
        for _ in range(COMMIT_TRIES_MAX):
            manifest = self.head()
            proposal = propose(manifest)
            if proposal is None:
                return None
            commit = replace(
                proposal,
                version=manifest.version + 1,
                timestamp_ms=max(self.now_ms(), manifest.timestamp_ms + 1),
                token=new_token(),
            )
            if self._try_put(commit):
                self._checkpoint(commit.version)
                return commit
        raise ContentionError(
            f"{COMMIT_TRIES_MAX} attempts to commit to '{self._store.url}' lost against others.",
            hint="retry later, or write with fewer writers at once.",
        )

    def create(self, commit: Commit) -> bool:
        """Create the table; False if another writer was faster."""
        return self._try_put(replace(commit, timestamp_ms=self.now_ms(), token=new_token()))

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970, by the log's clock."""
        return int(self._clock() * 1000)

    def _try_put(self, commit: Commit) -> bool:
        path = commit_path(commit.version)
        # A put may take effect before it fails, and a client that repeats it by itself meets
        # its own object: only the token can tell whose it is.
        try:
            if self._store.put_if_absent(path, encode(commit.to_json())):
                return True
            record = self._read_json(path)
        except Exception:
            record = self._read_json(path)
            if record is None:
                raise
        return record is not None and bool(record["token"] == commit.token)

    def _checkpoint(self, version: int) -> None:
        """Write a checkpoint if one is due. A failure costs only speed, so it is not raised."""
        if version % CHECKPOINT_EVERY:
            return
        try:
            self._store.put(_checkpoint_path(version), encode(self.at(version).to_json()))
            self._store.put(_HINT, encode({"version": version}))
        except (OSError, UpsertFlowError):
            return


def _no_version(version: int, newest: int) -> DataLossError:
    return DataLossError(
        f"version {version} is not in the log, whose newest is {newest}.",
        hint=f"ask for a version from 0 to {newest}; older ones may have been expired.",
        version=version,
    )


def _iso(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp_ms / 1000))


__all__ = ["CHECKPOINT_EVERY", "Clock", "Kind", "Log", "commit_path", "new_token"]
