"""Stored log records: commits, checkpoints, and the comparison with the storage's clock.

The end of the log is decided in `reader`; a checkpoint is only a shortcut.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, takewhile
from typing import Any, TypeAlias

from spark_upsert.core.durations import render_time
from spark_upsert.core.lru import LruMap
from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import ClockError, CorruptionError, OtherTableError, UpsertFlowError
from spark_upsert.store import Store
from spark_upsert.store.records import (
    MALFORMED,
    RECORD_BYTES_MAX,
    UNREADABLE,
    CheckedRecord,
    checked_data,
    checked_record,
    encode,
    read_record,
    text,
    whole,
)
from spark_upsert.table.log.codec import (
    CHECKPOINT_FORMAT,
    FOLDER,
    HINT_PATH,
    LogEntry,
    checkpoint_from_json,
    checkpoint_path,
    checkpoint_to_json,
    commit_path,
    commits_from_json,
    entries,
    leaf_from_arrow,
    leaf_path,
    leaf_to_arrow,
    manifest_from_json,
    manifest_to_json,
)
from spark_upsert.table.log.manifest import Commit, Manifest, Slice, TableVersion, apply
from spark_upsert.table.log.slices import Leaf, LeafFile, SliceList

CHECKPOINT_EVERY = 50
"""Versions between checkpoints: a fresh reader replays at most this many small objects."""


def last_checkpoint_due(version: int) -> int:
    """Return the newest checkpoint version at or below a version, if no checkpoint failed."""
    return version - version % CHECKPOINT_EVERY


def iter_windows(lower: int, upper: int) -> Iterator[range]:
    """Cut a range of existing versions for `StoredLog.prefetch`: blocks, one and then more at once.

    A block ends with a version that repeats the others (`Log`).
    """
    for count in itertools.count():
        if lower >= upper:
            return
        blocks = min(1 << count, AT_ONCE)
        stop = min(last_checkpoint_due(lower - 1) + blocks * CHECKPOINT_EVERY + 1, upper)
        yield range(lower, stop)
        lower = stop


def block_after(version: int, newest: int) -> range:
    """Return the last version of a version's block, as a range; empty if it would save no read."""
    last = last_checkpoint_due(version - 1) + CHECKPOINT_EVERY
    saves_reads = version > last_checkpoint_due(version) + 1 and last <= newest
    return range(last, last + int(saves_reads))


def read_checkpoint(store: Store, version: int) -> Manifest | None:
    """Return the manifest in a version's checkpoint; None if there is none."""
    path = checkpoint_path(version)
    manifest = read_manifest(store, path)
    if manifest is not None and manifest.version != version:
        raise CorruptionError.in_file(
            f"{store.url}/{path}", f"version {version}", f"version {manifest.version}"
        )
    return manifest


def read_manifest(store: Store, path: str) -> Manifest | None:
    """Return a checkpoint's manifest; None if the checkpoint or one of its leaves is missing.

    A checkpoint without a leaf is the rest of a removed one, or was written by a process suspended
    for longer than its leaves were retained. The log replaces it, as it replaces a missing one.
    """
    root = read_record(store, path, checkpoint_from_json, format_max=CHECKPOINT_FORMAT)
    if root is None:
        return None
    manifest, files = root
    if not files:
        return manifest
    leaves = []
    for leaf in map_in_order(partial(_read_leaf, store), files, min(len(files), AT_ONCE)):
        if leaf is None:
            return None
        leaves.append(leaf)
    return replace(manifest, slices=SliceList.of_leaves(leaves))


def _read_leaf(store: Store, file: LeafFile) -> Leaf | None:
    """Return a leaf; None if it does not exist."""
    where = f"{store.url}/{file.path}"
    try:
        data = store.read(file.path, bytes_max=RECORD_BYTES_MAX)
    except FileNotFoundError:
        return None
    if (len(data), zlib.crc32(data)) != (file.bytes, file.crc):
        raise CorruptionError.in_file(
            where, f"{file.bytes} bytes with the CRC-32 {file.crc:08x}", "other bytes"
        )
    try:
        leaf = leaf_from_arrow(data)
        if (len(leaf), leaf.span) != (file.slices, file.span):
            raise ValueError("other slices than the checkpoint lists")
    except (*MALFORMED, UpsertFlowError) as error:
        raise CorruptionError.in_file(where, "a leaf as in docs/format.md", str(error)) from error
    leaf.version, leaf.file = file.version, file
    return leaf


def newest_checkpoint_up_to(store: Store, version: int) -> Manifest | None:
    """Return the newest checkpoint at or below a version; None if there is none."""
    for candidate in range(last_checkpoint_due(version), 0, -CHECKPOINT_EVERY):
        manifest = read_checkpoint(store, candidate)
        if manifest is not None:
            return manifest
    return None


def last_checkpoint(store: Store) -> Manifest | None:
    """Return the hint's checkpoint; None without a hint or checkpoint."""
    version = read_hint(store)
    return None if version is None else read_checkpoint(store, version)


def read_hint(store: Store) -> int | None:
    """Return the hint's checkpoint version, which may be cut off; None without a valid hint."""
    try:
        return read_record(store, HINT_PATH, _hinted_version)
    except CorruptionError:
        return None  # Only a shortcut is lost.


def _missing_leaf(store: Store, version: int) -> LeafFile | None:
    """Return a checkpoint's first missing leaf; None without one."""
    leaves = sorted(stored_leaves(store, version), key=lambda file: file.path)
    return next((file for file in leaves if _read_leaf(store, file) is None), None)


def write_checkpoint(
    store: Store,
    manifest: Manifest,
    checked: Iterable[Slice] = (),
    *,
    reusable: Set[LeafFile] = frozenset(),
    is_replacing: bool = False,
) -> None:
    """Write a version's checkpoint.

    ``checked``: slices without need for another decoding check. ``reusable``: leaves found in the
    storage just now; others are written again. ``is_replacing``: for a vacuum, which has found
    the leaves; another process may have been suspended until its leaves were removed, so it must
    not replace the vacuum's checkpoint.
    """
    if manifest.slice_list.leaves:
        root = _write_leaves(store, manifest, reusable)
        if is_replacing:
            root.put(store)
        else:
            root.put_if_absent(store)
        return
    record = manifest_to_json(manifest)
    checked_ids = {id(slice_) for slice_ in checked}
    is_new = [id(slice_) not in checked_ids for slice_ in manifest.slices]
    part = {**record, "slices": list(compress(record["slices"], is_new))}
    checked_data(
        checkpoint_path(manifest.version),
        replace(manifest, slices=tuple(compress(manifest.slices, is_new))),
        lambda: encode(record),
        lambda _: manifest_from_json(json.loads(encode(part))),
    ).put(store)


def _write_leaves(store: Store, manifest: Manifest, reusable: Set[LeafFile]) -> CheckedRecord:
    """Write a checkpoint's missing leaves; return the record that lists all leaves."""
    files = []
    for leaf in manifest.slice_list.leaves:
        file = leaf.file
        if file is None or file not in reusable:
            file, record = _encode_leaf(leaf, manifest.version)
            if file not in reusable:  # Else another writer has made the same leaf.
                record.put(store)
        files.append(file)
    value = replace(manifest, slices=()), tuple(files)
    return checked_record(
        checkpoint_path(manifest.version), value, checkpoint_to_json(*value), checkpoint_from_json
    )


def _encode_leaf(leaf: Leaf, version: int) -> tuple[LeafFile, CheckedRecord]:
    """Return a leaf's entry and its file; ``version`` made it if it has no version yet."""
    data = leaf_to_arrow(leaf)
    leaf.version = version if leaf.version is None else leaf.version
    path = leaf_path(leaf.version, hashlib.blake2b(data, digest_size=16).hexdigest())
    record = checked_data(path, leaf, lambda: data, leaf_from_arrow)
    leaf.file = LeafFile(
        path=path, slices=len(leaf), bytes=len(data), crc=zlib.crc32(data), span=leaf.span
    )
    return leaf.file, record


def stored_leaves(store: Store, version: int | None) -> frozenset[LeafFile]:
    """Return the leaves in a version's checkpoint; empty without one."""
    if version is None:
        return frozenset()
    path = checkpoint_path(version)
    root = read_record(store, path, checkpoint_from_json, format_max=CHECKPOINT_FORMAT)
    return frozenset() if root is None else frozenset(root[1])


def write_hint(store: Store, version: int) -> None:
    """Set the hint to a version's checkpoint."""
    checked_record(HINT_PATH, version, {"version": version}, _hinted_version).put(store)


def _hinted_version(record: Mapping[str, Any]) -> int:
    return whole(record["version"])


_COMMITS_KEPT = 4096

AT_ONCE = 32
"""Maximum commits read in parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMark:
    """The identifying part of a commit."""

    token: str
    is_cut: bool
    """Whether later versions may have been cut off; recorded in version 0 only."""

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> CommitMark:
        return cls(token=text(record["token"]), is_cut=record.get("cut", False) is True)


class StoredLog:
    """The stored records of one log, with a commit cache. Safe for threads.

    Parameters
    ----------
    store : Store
    reads_each : bool
        Whether to read each version's object, although another version repeats it.
    """

    def __init__(self, store: Store, *, reads_each: bool = False) -> None:
        self.store = store
        self._reads_each = reads_each
        self._lock = threading.Lock()
        self._commits: LruMap[int, Commit] = LruMap(_COMMITS_KEPT)

    def is_cached(self, version: int) -> bool:
        """Return whether a version's commit is cached."""
        return self.cached(version) is not None

    def cached(self, version: int) -> Commit | None:
        """Return a version's commit if it is cached."""
        with self._lock:
            return self._commits.peek(version)

    def forget(self, version: int | None = None) -> None:
        """Evict a version's commit, or all: the stored log may have changed."""
        with self._lock:
            if version is None:
                self._commits.clear()
            else:
                self._commits.pop(version)

    def commit(self, version: int) -> Commit | None:
        """Return a version's commit; None if there is none."""
        with self._lock:
            cached = self._commits.get(version)
        if cached is not None:
            return cached
        commits = self._read(version)
        self.keep(commits)
        return commits[-1] if commits else None

    def prefetch(self, lower: int, upper: int) -> bool:
        """Cache the missing commits ``lower <= v < upper``, read in parallel if storage is remote.

        Returns False if ``lower`` does not exist.
        """
        missing_versions = [
            version for version in range(lower, upper) if not self.is_cached(version)
        ]
        if len(missing_versions) < 2 or not self.store.needs_fetch(commit_path(lower)):
            return True
        commits = map_in_order(self._read, missing_versions, min(len(missing_versions), AT_ONCE))
        # A commit after a gap was written meanwhile, and is read again later.
        for read_commits in takewhile(bool, list(commits)):
            self.keep(read_commits)
        return self.is_cached(lower)

    def prefetch_blocks(self, versions: range) -> None:
        """Cache the missing commits of existing versions: first those that repeat others."""
        if not versions:
            return
        block_ends = [v for v in versions if v == last_checkpoint_due(v) and not self.is_cached(v)]
        threads = min(len(block_ends), AT_ONCE)
        if not self.store.needs_fetch(commit_path(versions.start)):
            threads = 1
        for commits in map_in_order(self._try_read, block_ends, threads):
            self.keep(commits)
        missing_versions = [version for version in versions if not self.is_cached(version)]
        for start in range(0, len(missing_versions), AT_ONCE):
            chunk = missing_versions[start : start + AT_ONCE]
            self.prefetch(chunk[0], chunk[-1] + 1)

    def _try_read(self, version: int) -> list[Commit]:
        """Return a block's commits; empty if they are unreadable, which matters if one is needed."""
        try:
            return self._read(version)
        except UNREADABLE:
            return []

    def _read(self, version: int) -> list[Commit]:
        """Return a version's commit after the earlier ones that it repeats; empty if absent."""
        commits = read_record(self.store, commit_path(version), commits_from_json) or []
        return commits[-1:] if self._reads_each else commits

    def keep(self, commits: Iterable[Commit]) -> None:
        """Cache commits in the log."""
        with self._lock:
            for commit in commits:
                self._commits.put(commit.version, commit)

    def mark(self, version: int) -> CommitMark | None:
        """Return the identifying part of a version's stored commit; None if there is none."""
        return read_record(self.store, commit_path(version), CommitMark.from_json)

    def contains(self, manifest: Manifest | None) -> bool:
        """Return whether a version is in the log; if so, no later version was removed yet.

        Reads the storage, never the cache. None: whether version 0 exists and the log was never
        cut.
        """
        mark = self.mark(0 if manifest is None else manifest.version)
        if mark is None or mark.is_cut:
            return False
        return manifest is None or manifest.token == mark.token

    def apply_commits(self, manifest: Manifest | None, last: int | None) -> Manifest | None:
        """Apply the commits after a manifest, up to ``last`` or to the end.

        From the third commit on, reads are batched in growing sizes: more are likely to follow.
        """
        for count in itertools.count():
            version = 0 if manifest is None else manifest.version + 1
            if last is not None and version > last:
                break
            if count >= 2 and (count & (count - 1) == 0 or count % AT_ONCE == 0):
                stop = version + min(count, AT_ONCE)
                if not self.prefetch(version, stop if last is None else min(stop, last + 1)):
                    break
            commit = self.commit(version)
            if commit is None:
                break
            manifest = apply(manifest, commit)
        return manifest

    def newest_checkpoint(self) -> Manifest | None:
        """Return the newest checkpoint, whatever the hint; None if it was cut meanwhile."""
        listed = self.entries()
        for entry in reversed(listed):
            manifest = read_checkpoint(self.store, entry.version) if entry.is_checkpoint else None
            if manifest is not None and self.contains(manifest):
                return manifest
        if not self.contains(None) and listed == self.entries():
            raise self._no_beginning(listed)
        return None

    def entries(self) -> list[LogEntry]:
        """Return the commits and checkpoints in the log, the oldest version first."""
        return entries(self.store)

    def newest_listed(self, manifest: Manifest | None) -> int:
        """Return the newest version in a listing starting after a manifest.

        The listing is short: a manifest is at most as old as the last checkpoint.
        """
        after = "" if manifest is None else commit_path(manifest.version)
        known_version = -1 if manifest is None else manifest.version
        return max(
            (entry.version for entry in entries(self.store, after=after)), default=known_version
        )

    def gap(self, version: int, newest: int) -> CorruptionError:
        """Return the error for a missing version in a log with a newer one."""
        first = self.mark(0)
        if version == 1 and first is not None and first.is_cut:
            return self._no_beginning(self.entries())
        return CorruptionError.gap(f"{self.store.url}/{commit_path(version)}", version, newest)

    def files_before(self, version: int) -> set[str]:
        """Return the run files named by versions before ``version`` still in the log."""
        listed = [entry for entry in self.entries() if entry.version < version]
        files = set()
        checkpoints = (entry.path for entry in listed if entry.is_checkpoint)
        # The checkpoints after the first one add only files from later commits.
        for manifest in filter(None, (read_manifest(self.store, path) for path in checkpoints)):
            files |= {slice_.file.path for slice_ in manifest.slices}
            break
        versions = {entry.version for entry in listed if not entry.is_checkpoint}
        for window in iter_windows(min(versions - {0}, default=version), version):
            self.prefetch_blocks(window)
            for each in versions.intersection(window):
                commit = self.commit(each)
                files |= frozenset() if commit is None else commit.paths
        first = self.commit(0) if 0 in versions else None
        return files | (frozenset() if first is None else first.paths)

    def _no_beginning(self, listed: Sequence[LogEntry]) -> CorruptionError:
        """Return the error for a cut log without its first checkpoint."""
        later = [entry for entry in listed if entry.version]
        for entry in reversed(later):
            leaf = _missing_leaf(self.store, entry.version) if entry.is_checkpoint else None
            if leaf is not None:
                return CorruptionError.in_file(
                    f"{self.store.url}/{leaf.path}",
                    f"a leaf of the checkpoint '{entry.path}', because the log was cut",
                    "no such object",
                )
        path = FOLDER
        if later:
            has_commit = not later[0].is_checkpoint
            path = (checkpoint_path if has_commit else commit_path)(later[0].version)
        return CorruptionError.in_file(
            f"{self.store.url}/{path}",
            "a checkpoint and its commit, because the log was cut",
            "no such object",
        )

    def other_table_error(
        self, version_ref: TableVersion, found: str, who: str, hint: str = ""
    ) -> OtherTableError:
        """Return the error for a log other than the recorded one, and clear the cache."""
        self.forget()
        return OtherTableError.at(self.store.url, who, str(version_ref), found, hint=hint)


Clock: TypeAlias = Callable[[], float]
"""Returns seconds since 1970."""

AHEAD_MS = 3_600_000
"""Maximum clock difference within a cluster."""

_FOLDER = "data"
_LAST = "f" * 16
"""Sorts a probe after nearly all runs, so few runs are listed with it."""


def storage_ms(store: Store) -> int | None:
    """Return the storage's time in ms since 1970, taken from a new probe object.

    None if the listing does not show it yet.
    """
    probe = f"{_FOLDER}/{_LAST}{uuid.uuid4().hex[:16]}.now"
    store.put(probe, b"")
    try:
        infos = [info for info in store.list(_FOLDER, after=probe[:-1]) if info.path == probe]
    finally:
        store.delete(probe)
    return int(infos[0].modified_s * 1000) if infos else None


def require_clock(store: Store, now_ms: int) -> None:
    """Raise if a time is far ahead of the storage's clock.

    Times in the log only grow, so one commit by a fast clock would stop all expiries. A slow clock
    does no harm. Called at the first commit, after an hour without commits, and at each expiry.
    """
    theirs = storage_ms(store)
    if theirs is not None and now_ms > theirs + AHEAD_MS:
        raise ClockError.ahead(store.url, render_time(now_ms), render_time(theirs))
