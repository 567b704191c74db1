"""Discovery of the tables below a root: a glob over folders, and a look for the log of each.

The pattern is split at ``/``, and each part is matched with the names of one level: a look lists as
many folders as the pattern has parts with a wildcard, whatever the tables hold. Names that begin
with ``_`` or ``.`` belong to engines (our own ``_log`` and ``_offsets`` among them): a part matches
them only if it begins so, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from spark_upsert.errors import OptionError
from spark_upsert.model.parallel import in_order
from spark_upsert.options.below import Pattern
from spark_upsert.store import Store
from spark_upsert.table.log.entries import commit_path

FOLDERS_MAX = 200_000
"""More folders than this on one level are rather a wrong pattern than inputs."""

_WILDCARD = re.compile(r"[*?\[]")
_HIDDEN = ("_", ".")


class Discovery:
    """The tables below a root.

    Parameters
    ----------
    root : Store
    pattern : Pattern
    threads : int, optional
        How many folders are listed or looked at at once.
    """

    def __init__(self, root: Store, pattern: Pattern, *, threads: int = 1) -> None:
        self._root = root
        self._pattern = pattern
        self._threads = threads
        self.listings = 0
        """Listings that the last look for folders made."""

    def __str__(self) -> str:
        return f"'{self._pattern}' below '{self._root.url}'"

    def folders(self) -> list[str]:
        """Return the folders that match, tables or not, as paths relative to the root, sorted."""
        found, self.listings = [""], 0
        for part in self._pattern.parts:
            found = self._bounded(self._next(found, part))
        return sorted(found)

    def tables(self, folders: Iterable[str]) -> list[str]:
        """Return those of some folders that are tables; costs one request each."""
        asked = list(folders)
        answers = in_order(self.is_table, asked, min(self._threads, len(asked)))
        return [folder for folder, is_table in zip(asked, answers, strict=True) if is_table]

    def is_table(self, folder: str) -> bool:
        """Return whether a table lies in a folder: there is one from its version 0 on."""
        try:
            self._root.read(f"{folder}/{commit_path(0)}")
        except FileNotFoundError:
            return False
        return True

    def _next(self, folders: list[str], part: str) -> Iterator[str]:
        """Yield the folders one level below some that a part of the pattern matches."""
        if not _WILDCARD.search(part):
            yield from (_below(folder, part) for folder in folders)
            return
        self.listings += len(folders)
        names = in_order(
            lambda folder: list(self._root.folders(folder)),
            folders,
            min(self._threads, len(folders)),
        )
        for folder, found in zip(folders, names, strict=True):
            yield from (_below(folder, name) for name in found if _matches(name, part))

    def _bounded(self, folders: Iterable[str]) -> list[str]:
        found: list[str] = []
        for folder in folders:
            found.append(folder)
            if len(found) > FOLDERS_MAX:
                raise OptionError(
                    f"more than {FOLDERS_MAX} folders match {self}.",
                    hint="narrow 'inputsPattern', or read with several queries.",
                    option="inputsPattern",
                )
        return found


def matches(folder: str, pattern: Pattern) -> bool:
    """Return whether a path below a root is one that a pattern finds."""
    names = folder.split("/")
    return len(names) == len(pattern.parts) and all(map(_matches, names, pattern.parts))


def _matches(name: str, part: str) -> bool:
    if name.startswith(_HIDDEN) and not part.startswith(name[0]):
        return False
    return fnmatchcase(name, part)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
