"""A Delta log in a store: follow it to its end, and put the next commit if nobody else has.

Creating ``_delta_log/<n>.json`` is the commit point. A put that raises may have taken effect: the
commit that stands there is compared by its ``txnId``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_upsert.errors import CorruptionError
from spark_upsert.mirror.actions import (
    DeltaAction,
    DeltaState,
    Foreign,
    applied,
    parsed,
    rendered,
)
from spark_upsert.mirror.checkpoints import HINT_PATH, read_checkpoint
from spark_upsert.store import Store

FOLDER = "_delta_log"

ENTRY = re.compile(FOLDER + r"/(\d{20})\.(json|checkpoint\.parquet)")
"""The names of commits and checkpoints."""

_BACK_MAX = 1000
"""Commits of others that are read back from a checkpoint at most."""


def commit_path(version: int) -> str:
    """Return where a commit lies."""
    return f"{FOLDER}/{version:020d}.json"


class DeltaLog:
    """The log of one Delta table; keeps the state that it has seen last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state: DeltaState | None = None
        self._crc = 0

    def reach_by(self, store: Store) -> None:
        """Reach the same log by another object."""
        self._store = store

    @property
    def seen(self) -> DeltaState | None:
        """The state at the last version that was seen."""
        return self._state

    def follow(self) -> DeltaState | None:
        """Return the state at the end of the log; None if there is none.

        Raises
        ------
        CorruptionError
            A commit cannot be read, or the log has no beginning.
        """
        if self._state is not None and not self._is_as_seen(self._state.version):
            self._state = None  # Removed, or made anew: what was seen is of no use.
        if self._state is None and not self._load():
            return None
        while (data := self._try_read(self._next)) is not None:
            self._take(self._next, data)
        if self._state is not None:
            # Its writer may have been killed before it was durable.
            self._store.sync(commit_path(self._state.version))
        return self._state

    def forget(self) -> None:
        """Forget what was seen, so that the log is loaded anew."""
        self._state = None

    def put(self, actions: Sequence[DeltaAction], *, id_: str) -> bool:
        """Commit behind the state that was seen last; False if another publisher was faster.

        Parameters
        ----------
        id_ : str
            The `txnId` among the actions.
        """
        path, data = commit_path(self._next), rendered(actions)
        self._store.prepare(FOLDER)
        try:
            is_ours = self._store.put_if_absent(path, data)
        except Exception:
            found = self._try_read(self._next)
            if found is None or not self._has_id(found, id_):
                raise
            self._store.sync(path)
            is_ours = True
        if not is_ours:
            # A client that repeats a put by itself meets its own object.
            found = self._try_read(self._next)
            is_ours = found is not None and self._has_id(found, id_)
        if is_ours:
            self._take(self._next, data)
        return is_ours

    @property
    def _next(self) -> int:
        return 0 if self._state is None else self._state.version + 1

    def _load(self) -> bool:
        """Begin with the newest checkpoint, or with version 0; False if there is no log.

        The hint says only where the listing begins: it may be old, or of a checkpoint that is gone,
        and commits behind an old one may be gone, too.
        """
        found = self._entries(after=f"{FOLDER}/{self._hinted():020d}")
        if not any(is_checkpoint for _, is_checkpoint in found):
            found = self._entries()
        if not found:
            return False
        newest = max((version for version, is_checkpoint in found if is_checkpoint), default=None)
        if newest is not None:
            self._begin_at(newest)
        elif (0, False) not in found:
            raise CorruptionError.in_file(
                f"{self._store.url}/{FOLDER}",
                "a log from its version 0 on, or a checkpoint",
                f"version {found[0][0]} and those behind it",
            )
        return True

    def _hinted(self) -> int:
        """Return the version of the last checkpoint by the hint, 0 if there is none that helps."""
        try:
            hint = json.loads(self._store.read(HINT_PATH))
            return max(0, int(hint["version"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def _entries(self, *, after: str = "") -> list[tuple[int, bool]]:
        """Return versions in the log, and whether the entry is their checkpoint."""
        names = (info.path for info in self._store.list(FOLDER, after=after))
        found = (ENTRY.fullmatch(name) for name in names)
        return [(int(each[1]), each[2] != "json") for each in found if each]

    def _begin_at(self, version: int) -> None:
        """Take the state of a checkpoint, and what only its commit says.

        A commit of others below a checkpoint of others shows in the commits alone: these are read
        back to the last one of ours.
        """
        state = read_checkpoint(self._store, version)
        data = self._try_read(version)
        if data is None:
            raise CorruptionError.in_file(
                f"{self._store.url}/{commit_path(version)}", "the commit of a checkpoint", "none"
            )
        told = self._told(version, data)
        foreign, at = None, version
        while told.shown is None:
            foreign = told.foreign or foreign
            at -= 1
            below = self._try_read(at)
            if below is None or version - at > _BACK_MAX:
                foreign = foreign or Foreign(version=version, operation="commits that are gone")
                break
            told = self._told(at, below)
        self._state = replace(state, time_ms=self._told(version, data).time_ms, foreign=foreign)
        self._crc = zlib.crc32(data)

    def _told(self, version: int, data: bytes) -> DeltaState:
        """Return what one commit says by itself."""
        return applied(DeltaState(version=version - 1), version, self._parsed(version, data))

    def note_checkpoint(self) -> None:
        """Take note that the state that was seen last has a checkpoint."""
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
        self._state = applied(self._state, version, self._parsed(version, data))
        self._crc = zlib.crc32(data)

    def _has_id(self, data: bytes, id_: str) -> bool:
        found = self._parsed(self._next, data)
        return any(each.get("commitInfo", {}).get("txnId") == id_ for each in found)

    def _parsed(self, version: int, data: bytes) -> Iterable[DeltaAction]:
        try:
            found = parsed(data)
            applied(None if version == 0 else DeltaState(version=version - 1), version, found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError.in_file(
                f"{self._store.url}/{commit_path(version)}", "a commit of Delta", repr(error)
            ) from error
        return found
