"""Mirror upkeep (`Upkeep`): checksums, checkpoints, and file removal.

No failure here fails a commit. Ages are by the storage's clock only.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from spark_upsert.core.durations import Fields
from spark_upsert.delta.actions import DeltaAction
from spark_upsert.delta.checkpoints import (
    CHECKSUM,
    checkpoint_path,
    checksum_path,
    recent_tombstones,
    stored_vectors,
    write_checkpoint,
    write_checksum,
)
from spark_upsert.delta.deletion_vectors import decode_z85, vector_file_name
from spark_upsert.delta.log import ENTRY, FOLDER, DeltaLog, commit_path
from spark_upsert.delta.parquet_files import run_id_of_copy
from spark_upsert.errors import masked
from spark_upsert.store import Store
from spark_upsert.store.protocol import ObjectInfo, new_token

_LOGGER = logging.getLogger(__name__)

CHECKPOINT_EVERY = 10
"""Minimum commits between two checkpoints."""

_TOMBSTONES_PER_COMMIT = 1000
"""Checkpoints become rarer with more tombstones, because each one stores all tombstones."""

CLEAN_EVERY_MS = 3_600_000

ORPHAN_MS = 24 * 3_600_000
"""Age at which an unnamed file is removed; a commit may still name a younger one."""

REMOVALS_MAX = 100
"""Maximum objects removed after one commit, so no commit waits long.

A commit creates fewer than ten, so removals keep up with any commit rate."""

WAITING_MAX = 20_000
"""Maximum objects per cleanup: an hour's, at five per second. Their names take 2 MB."""

_VECTORS = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
FEED_FOLDER = "_change_data"
_FEED = re.compile(FEED_FOLDER + r"/cdc-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """Files removed, or to be removed, by a cleanup."""

    log: tuple[str, ...]
    files: tuple[ObjectInfo, ...]
    """Parquet copies, deletion vectors, change feeds, and killed writers' leftovers."""

    @property
    def paths(self) -> Iterator[str]:
        """All paths in removal order."""
        yield from self.log
        for info in self.files:
            yield info.path


class Upkeep:
    """One process's upkeep for one mirror.

    Parameters
    ----------
    store : Store
        The mirror's location.
    log : DeltaLog
    """

    def __init__(self, store: Store, log: DeltaLog) -> None:
        self._store = store
        self._log = log
        self._tombstones = 0
        self._cleaned_ms: int | None = None
        self._waiting: deque[str] = deque()
        """Paths from the last cleanup not yet removed, oldest first."""
        self.failures = 0
        """Number of failures; the mirror continued without upkeep."""

    def use_store(self, store: Store) -> None:
        """Access the same mirror through another store."""
        self._store = store

    def follow(self, *, now_ms: int, retention_ms: int) -> None:
        """Do the upkeep due after a commit; raises no error."""
        try:
            state = self._log.seen
            if state is not None and state.foreign is None:
                write_checksum(self._store, state)
            if self._is_checkpoint_due():
                self.checkpoint(now_ms=now_ms, retention_ms=retention_ms)
            if self._cleaned_ms is None or now_ms < self._cleaned_ms:
                # The first hour of a process, or of a clock set back, removes nothing.
                self._cleaned_ms = now_ms
            if not self._waiting and now_ms >= self._cleaned_ms + CLEAN_EVERY_MS:
                paths = self._find_removable(now_ms=now_ms, retention_ms=retention_ms).paths
                self._waiting.extend(islice(paths, WAITING_MAX))
                self._cleaned_ms = now_ms
            self._remove_some()
        except FileNotFoundError:
            # Another publisher has gone on from a newer checkpoint, and removed the one known here.
            self._log.forget()
        except Exception as error:  # noqa: BLE001 - upkeep is never worth a commit
            self.failures += 1
            fields = Fields(place=self._store.url, failures=self.failures)
            _LOGGER.warning("mirror not kept up: %s error=%s", fields, masked(f"{error!r}"))

    def _remove_some(self) -> None:
        """Remove some waiting paths, oldest first.

        If a removal fails, the others wait for the next cleanup: no commit may be removed before an
        older one (`delta.log`).
        """
        portion = [self._waiting.popleft() for _ in range(min(REMOVALS_MAX, len(self._waiting)))]
        try:
            for path in portion:
                self._store.delete(path)
        except Exception:
            self._waiting.clear()
            raise

    def _is_checkpoint_due(self) -> bool:
        state = self._log.seen
        if state is None:
            return False
        commits = state.version - (-1 if state.checkpoint is None else state.checkpoint)
        tombstones = self._tombstones + len(state.removed)
        return commits >= max(CHECKPOINT_EVERY, tombstones // _TOMBSTONES_PER_COMMIT)

    def checkpoint(self, *, now_ms: int, retention_ms: int) -> None:
        """Write a checkpoint for the last seen state."""
        state = self._log.seen
        if state is None:
            return
        tombstones = recent_tombstones(
            self._store, state.checkpoint, state.removed, since_ms=now_ms - retention_ms
        )
        write_checkpoint(self._store, state, tombstones, now_ms=now_ms)
        self._tombstones = len(tombstones)
        self._log.note_checkpoint()

    def vacuum(self, *, now_ms: int, retention_ms: int, dry_run: bool) -> CleanupResult:
        """Remove all files no longer needed by a reader, also from an idle mirror.

        An empty object, written and removed, gives the storage's time: in an abandoned mirror even
        the newest file may be old.
        """
        probe = f"{FOLDER}/{new_token()}.now"
        self._store.put(probe, b"")
        try:
            times = [i.modified_s for i in self._store.list(FOLDER) if i.path == probe]
        finally:
            self._store.delete(probe)
        done = self._find_removable(
            now_ms=now_ms, retention_ms=retention_ms, now_s=max(times, default=0.0)
        )
        if not dry_run:
            for path in done.paths:
                self._store.delete(path)
        return done

    def _find_removable(
        self, *, now_ms: int, retention_ms: int, now_s: float = 0.0
    ) -> CleanupResult:
        """Return the removable files, oldest first.

        First log entries before the newest checkpoint older than the retention; that checkpoint's
        commit stays. Then data files and vectors older than a day and named by neither a live file
        nor a young tombstone, and change feeds past the retention. Files with other names stay.
        """
        log = [*self._store.list(FOLDER)]
        infos = [*self._store.list("")]
        feeds = [*self._store.list(FEED_FOLDER)]
        now_s = max((now_s, *(info.modified_s for info in (*log, *infos, *feeds))))
        # This machine's clock counts only if it is slower.
        now_ms = min(now_ms, int(now_s * 1000))
        named = self._find_named_paths(since_ms=now_ms - retention_ms)
        day_s = now_s - ORPHAN_MS / 1000
        # A commit names a feed within the hour in which it is written.
        feed_s = min(day_s, now_s - retention_ms / 1000 - CLEAN_EVERY_MS / 1000)
        gone = [info for info in infos if _is_ours(info) and info.path not in named]
        for folder in ("", FOLDER, FEED_FOLDER):
            gone += self._store.temporaries(folder)
        gone = [info for info in gone if info.modified_s < day_s and not info.is_link]
        gone += [i for i in feeds if _FEED.fullmatch(i.path) and i.modified_s < feed_s]
        return CleanupResult(
            log=tuple(_expired_log_entries(log, now_s - retention_ms / 1000)),
            files=tuple(sorted(gone, key=lambda info: info.modified_s)),
        )

    def _find_named_paths(self, *, since_ms: int) -> set[str]:
        """Return the paths named by live files, or by removals since `since_ms`."""
        state = self._log.seen
        if state is None:
            return set()
        tombstones = recent_tombstones(
            self._store, state.checkpoint, state.removed, since_ms=since_ms
        )
        named = {*state.live, *tombstones.field("path").to_pylist()}
        named |= set(_vector_files(add.get("deletionVector") for add in state.live.values()))
        return named | set(_vector_files(stored_vectors(tombstones)))


def _expired_log_entries(infos: Iterable[ObjectInfo], until_s: float) -> Iterator[str]:
    """Yield the log entries needed by no version since `until_s`, oldest first."""
    infos = list(infos)
    matches = [(info, ENTRY.fullmatch(info.path)) for info in infos]
    entries = [
        (int(name_match[1]), name_match[2], info) for info, name_match in matches if name_match
    ]
    sums = [int(match[1]) for info in infos if (match := CHECKSUM.fullmatch(info.path))]
    old = [version for version, kind, info in entries if info.modified_s < until_s]
    checkpoints = [version for version, kind, _ in entries if kind != "json"]
    cut = max((v for v in checkpoints if v <= max(old, default=-1)), default=0)
    # A checksum goes before its commit: a reader finds none for a missing version.
    yield from (checksum_path(version) for version in sorted(sums) if version < cut)
    for version, kind, _ in sorted(entries, key=lambda entry: entry[:2]):
        if version < cut:
            yield commit_path(version) if kind == "json" else checkpoint_path(version)


def _is_ours(info: ObjectInfo) -> bool:
    return run_id_of_copy(info.path) is not None or _VECTORS.fullmatch(info.path) is not None


def _vector_files(vectors: Iterable[DeltaAction | None]) -> Iterator[str]:
    """Yield the files storing deletion vectors."""
    for vector in vectors:
        if vector is not None and vector["storageType"] == "u":
            yield vector_file_name(uuid.UUID(bytes=decode_z85(vector["pathOrInlineDv"][-20:], 16)))
