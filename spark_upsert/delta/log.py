"""A mirror's Delta log (`DeltaLog`), and the Delta table properties.

Creating ``_delta_log/<n>.json`` is the commit point; a put is recognised by its ``txnId`` after an
error.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_upsert.delta.actions import (
    GUARD,
    RETENTION,
    DeltaAction,
    DeltaState,
    Foreign,
    apply_commit,
    encode_commit,
    has_change_feed,
    parse_commit,
)
from spark_upsert.delta.checkpoints import (
    HINT_PATH,
    checkpoint_path,
    hinted_version,
    read_checkpoint,
)
from spark_upsert.errors import ContentionError, CorruptionError, OptionError
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore, open_store
from spark_upsert.store.records import checked_data
from spark_upsert.table.log.properties import (
    PUBLISH_FEED,
    PUBLISH_GUARD,
    PUBLISH_PATH,
    PUBLISH_RETENTION,
    parse_flag,
    parse_retention,
)
from spark_upsert.table.published import DEFAULT_FOLDER

FOLDER = "_delta_log"

ENTRY = re.compile(FOLDER + r"/(\d{20})\.(json|checkpoint\.parquet)")
"""Matches commit and checkpoint paths."""

_BACK_MAX = 1000
"""Maximum external commits read backwards from a checkpoint."""

_LOADS_MAX = 100
"""Maximum consecutive loads interrupted by a cleanup; more indicate a fault."""


def commit_path(version: int) -> str:
    """Return the path for a commit."""
    return f"{FOLDER}/{version:020d}.json"


class DeltaLog:
    """A Delta table's log; caches the last seen state."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state: DeltaState | None = None
        self._crc = 0

    def use_store(self, store: Store) -> None:
        """Access the same log through another store."""
        self._store = store

    @property
    def seen(self) -> DeltaState | None:
        """The last seen state."""
        return self._state

    def follow(self) -> DeltaState | None:
        """Read new commits and return the newest state; None if the log is empty."""
        if self._state is not None and not self._is_as_seen(self._state.version):
            self._state = None  # Removed or created again: the cached state is invalid.
        for _ in range(_LOADS_MAX):
            begun, newest = self._state, -1
            if begun is None:
                newest = self._load()
                begun = self._state
                if newest < 0:
                    return None
            while (data := self._try_read(self._next)) is not None:
                self._take(self._next, data)
            if self._next > newest:
                assert self._state is not None
                # Its writer may have been killed before it was durable.
                self._store.sync(commit_path(self._state.version))
                return self._state
            self._require_cleaned(begun, newest)
            self._state = None
        raise ContentionError(
            f"the log of '{self._store.url}' was cleaned {_LOADS_MAX} times while it was read.",
            hint="publish to one place with fewer processes at once.",
        )

    def forget(self) -> None:
        """Drop the cached state, so the next read loads the log from scratch."""
        self._state = None

    def put(self, actions: Sequence[DeltaAction], *, id_: str) -> bool:
        """Commit after the last seen state; return False if another publisher was faster.

        The commit counts if its predecessor is unchanged after the put: a paused publisher could
        use a number freed by a cleanup. The commit after it must not exist before the put.
        """
        if self._has_later():
            return False
        version = self._next
        record = checked_data(
            commit_path(version),
            [*actions],
            lambda: encode_commit(actions),
            lambda data: self._parsed(version, data),
        )
        self._store.prepare(FOLDER)
        try:
            is_ours = record.put_if_absent(self._store)
        except Exception:
            stored = self._try_read(version)
            if stored is None or not self._has_id(stored, id_):
                raise
            self._store.sync(record.path)
            is_ours = True
        if not is_ours:
            # A client repeating a put automatically meets its own object.
            stored = self._try_read(version)
            is_ours = stored is not None and self._has_id(stored, id_)
        if is_ours and not self._is_continued(self._next):
            self._store.delete(record.path)
            self._state = None
            return False
        if is_ours:
            self._apply(version, record.data, actions)
        return is_ours

    def _has_later(self) -> bool:
        """Return whether other publishers are ahead by at least two commits."""
        if self._try_read(self._next + 1) is None:
            return False
        if self._try_read(self._next) is None:
            self._require_cleaned(self._state, self._next + 1)
            self._state = None
        return True

    def _is_continued(self, version: int) -> bool:
        """Return whether a new commit follows its predecessor.

        If the predecessor was removed, a checkpoint at this version proves that another publisher
        continued from the commit. A newer checkpoint includes both versions, or a late put used a
        number freed by a cleanup; readers need the commit in neither case.
        """
        if version and self._is_as_seen(version - 1):
            return True
        checkpoints = [version for version, is_checkpoint in self._entries() if is_checkpoint]
        newest = max(checkpoints, default=-1)
        return newest == version or (version == 0 and newest < 0)

    def _require_cleaned(self, begun: DeltaState | None, newest: int) -> None:
        """Raise `CorruptionError` unless a cleanup explains the missing next commit."""
        if self._try_read(0 if begun is None else begun.version) is not None:
            path = f"{self._store.url}/{commit_path(self._next)}"
            raise CorruptionError.gap(path, self._next, newest)

    @property
    def _next(self) -> int:
        return 0 if self._state is None else self._state.version + 1

    def _load(self) -> int:
        """Load the newest checkpoint, or start at version 0.

        Return the newest listed version; -1 for an empty log. The hint only sets where the listing
        starts: it may be outdated or name a removed checkpoint, and commits after an old checkpoint
        may be removed, too.
        """
        entries = self._entries(after=f"{FOLDER}/{self._read_hint():020d}")
        if not any(is_checkpoint for _, is_checkpoint in entries):
            entries = self._entries()
        if not entries:
            return -1
        newest = max((version for version, is_checkpoint in entries if is_checkpoint), default=None)
        if newest is not None:
            self._begin_at(newest)
        elif (0, False) not in entries:
            first = entries[0][0]
            missing = commit_path(0) if first == 1 else checkpoint_path(first)
            raise CorruptionError.in_file(
                f"{self._store.url}/{missing}",
                f"a checkpoint or version 0, before version {first}",
                "no such object",
            )
        return max(version for version, _ in entries)

    def _read_hint(self) -> int:
        """Return the hint's checkpoint version; 0 without a usable hint."""
        try:
            return hinted_version(self._store.read(HINT_PATH))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def _entries(self, *, after: str = "") -> list[tuple[int, bool]]:
        """Return the listed versions, and for each whether the entry is a checkpoint."""
        names = (info.path for info in self._store.list(FOLDER, after=after))
        matches = (ENTRY.fullmatch(name) for name in names)
        return [(int(match[1]), match[2] != "json") for match in matches if match]

    def _begin_at(self, version: int) -> None:
        """Load a checkpoint's state and the fields contained only in commits.

        External commits before an external checkpoint appear in commits only: these are read
        backwards to our last publication.
        """
        state = read_checkpoint(self._store, version)
        data = self._try_read(version)
        if data is None:
            raise CorruptionError.in_file(
                f"{self._store.url}/{commit_path(version)}", "the commit of a checkpoint", "none"
            )
        commit_info = self._state_of_commit(version, data)
        foreign, at = None, version
        while commit_info.shown is None:
            foreign = commit_info.foreign or foreign
            at -= 1
            checkpoint = self._try_read(at)
            if checkpoint is None or version - at > _BACK_MAX:
                foreign = foreign or Foreign(version=version, operation="commits that are gone")
                break
            commit_info = self._state_of_commit(at, checkpoint)
        own_commit = self._state_of_commit(version, data)
        self._state = replace(
            state, time_ms=own_commit.time_ms, last_id=own_commit.last_id, foreign=foreign
        )
        self._crc = zlib.crc32(data)

    def _state_of_commit(self, version: int, data: bytes) -> DeltaState:
        """Return the state from a single commit."""
        return apply_commit(DeltaState(version=version - 1), version, self._parsed(version, data))

    def note_checkpoint(self) -> None:
        """Record that the last seen state has a checkpoint."""
        if self._state is not None:
            self._state = replace(self._state, checkpoint=self._state.version, removed=())

    def _is_as_seen(self, version: int) -> bool:
        data = self._try_read(version)
        return data is not None and zlib.crc32(data) == self._crc

    def _try_read(self, version: int) -> bytes | None:
        try:
            return self._store.read(commit_path(version))
        except FileNotFoundError:
            return None

    def _take(self, version: int, data: bytes) -> None:
        self._apply(version, data, self._parsed(version, data))

    def _apply(self, version: int, data: bytes, actions: Iterable[DeltaAction]) -> None:
        """Advance the state by a commit; `data` and `actions` are its two forms."""
        self._state = apply_commit(self._state, version, actions)
        self._crc = zlib.crc32(data)

    def _has_id(self, data: bytes, id_: str) -> bool:
        actions = self._parsed(self._next, data)
        return any(action.get("commitInfo", {}).get("txnId") == id_ for action in actions)

    def _parsed(self, version: int, data: bytes) -> list[DeltaAction]:
        try:
            actions = parse_commit(data)
            apply_commit(
                None if version == 0 else DeltaState(version=version - 1), version, actions
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError.in_file(
                f"{self._store.url}/{commit_path(version)}", "a commit of Delta", repr(error)
            ) from error
        return actions


_RETENTION_MS = 6 * 3_600_000
"""Default retention. It is short because each commit replaces many files' deletion vectors: with 10
million rows and a commit per second, a mirror writes 4 GB per hour."""

_INTERVAL = re.compile(r"interval (\d+) seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """A Delta table's mirror settings."""

    guard: bool = True
    """Whether conforming writers reject the mirror."""
    change_feed: bool = False
    retention_ms: int = _RETENTION_MS
    """Retention for versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSettings:
    """Requested mirror settings; None leaves a setting unchanged."""

    guard: bool | None = None
    change_feed: bool | None = None
    retention_ms: int | None = None

    def with_defaults(self, properties: Mapping[str, str]) -> PublicationSettings:
        """Return these settings, completed from the table's properties."""
        guard, feed, retention = self.guard, self.change_feed, self.retention_ms
        if guard is None and PUBLISH_GUARD in properties:
            guard = parse_flag(PUBLISH_GUARD, properties[PUBLISH_GUARD])
        if feed is None and PUBLISH_FEED in properties:
            feed = parse_flag(PUBLISH_FEED, properties[PUBLISH_FEED])
        if retention is None and PUBLISH_RETENTION in properties:
            retention = parse_retention(properties[PUBLISH_RETENTION])
        return PublicationSettings(guard=guard, change_feed=feed, retention_ms=retention)

    def applied_to(self, current: MirrorSettings) -> MirrorSettings:
        """Return these settings, completed from the Delta table's current ones."""
        return MirrorSettings(
            guard=current.guard if self.guard is None else self.guard,
            change_feed=current.change_feed if self.change_feed is None else self.change_feed,
            retention_ms=current.retention_ms if self.retention_ms is None else self.retention_ms,
        )


NO_CHANGES = PublicationSettings()


def mirror_settings(state: DeltaState | None) -> MirrorSettings:
    """Return a mirror's settings from its log; the defaults if there is no mirror."""
    if state is None or state.shown is None:
        return MirrorSettings()
    configuration = state.metadata.get("configuration") or {}
    interval = _INTERVAL.fullmatch(str(configuration.get(RETENTION, "")))
    return MirrorSettings(
        guard=GUARD in state.protocol.get("writerFeatures", ()),
        change_feed=has_change_feed(state.metadata),
        retention_ms=_RETENTION_MS if interval is None else int(interval[1]) * 1000,
    )


_OWN_FOLDERS = ("data", "_log", "_manifest", "_index", "_consumers", "_mirror")
"""A table's own folders, which must not contain a mirror."""


def open_mirror_store(
    table: Store, path: str | None, storage: Mapping[str, str] | None = None
) -> Store:
    """Open the store for a mirror; `path` None is the table's default folder."""
    if path is None:
        return PrefixStore(table, DEFAULT_FOLDER)
    store = open_store(path.rstrip("/") or path, storage)
    taken = [table.url, *(f"{table.url}/{folder}" for folder in _OWN_FOLDERS)]
    if store.url == table.url or any(
        f"{store.url}/".startswith(f"{other_url}/") for other_url in taken[1:]
    ):
        raise OptionError.invalid(
            "publishPath",
            path,
            "a place outside of the table's own files",
            hint=f"publish to '{table.url}/{DEFAULT_FOLDER}', or to a folder of its own.",
        )
    return store


def open_published_mirror(table: Store, properties: Mapping[str, str]) -> Store:
    """Open the store for a table's mirror at the location in its properties."""
    path = properties.get(PUBLISH_PATH, "").strip()
    name = table.url.rstrip("/").rpartition("/")[2]
    return open_mirror_store(table, path.replace("{table}", name) or None)
