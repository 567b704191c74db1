"""A Delta log in a store: follow it to its end, and put the next commit if nobody else has.

Creating ``_delta_log/<n>.json`` is the commit point. A put that raises may have taken effect: the
commit that stands there is compared by its ``txnId``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

from spark_upsert.errors import CorruptionError
from spark_upsert.mirror.actions import DeltaAction, DeltaState, applied, parsed, rendered
from spark_upsert.store import Store

FOLDER = "_delta_log"

_COMMIT = re.compile(FOLDER + r"/(\d{20})\.json")


def commit_path(version: int) -> str:
    """Return where a commit lies."""
    return f"{FOLDER}/{version:020d}.json"


class DeltaLog:
    """The log of one Delta table; keeps the state that it has seen last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state: DeltaState | None = None
        self._crc = 0

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
        if self._state is None and not self._begins():
            return None
        while (data := self._try_read(self._next)) is not None:
            self._take(self._next, data)
        if self._state is not None:
            # Its writer may have been killed before it was durable.
            self._store.sync(commit_path(self._state.version))
        return self._state

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

    def _begins(self) -> bool:
        """Return whether there is a log, from its beginning."""
        found = [each for each in self._store.list(FOLDER) if _COMMIT.fullmatch(each.path)]
        if not found:
            return False
        if found[0].path != commit_path(0):
            raise CorruptionError.in_file(
                f"{self._store.url}/{FOLDER}", "a log from its version 0 on", found[0].path
            )
        return True

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
