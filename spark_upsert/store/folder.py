"""A folder of files that others write: what is in it, and their bytes.

Nothing here is ours, so that nothing is assumed but what a listing tells: a file has a name, a size
and the time at which it was last written. Files below the folder appear whole, by a rename or by
the end of an upload; names that begin with ``_`` or ``.`` are those of files in the making and of
markers, and are passed over, with all that lies below such folders.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from spark_upsert.store.regular import opened_regular
from spark_upsert.store.system_errors import translated

_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One state of a file: with another size or time, it is another state."""

    name: str
    """Below the folder, with ``/`` between its parts."""
    bytes: int
    modified_us: int
    """When it was last written, in microseconds since 1970 by the storage's own clock."""

    @property
    def written(self) -> str:
        """When that was, as a text in UTC."""
        seconds, us = divmod(self.modified_us, 1_000_000)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{us:06d}Z"


class Folder(Protocol):
    """A folder that is read and never written."""

    @property
    def url(self) -> str:
        """The folder, in the form that `folders.open_folder` takes."""
        ...

    def files(self, *, is_recursive: bool) -> Iterator[FileStatus]:
        """Yield the files in it, in any order.

        Raises
        ------
        FileNotFoundError
            There is no such folder. A bucket knows no folders: there is none but an empty one.
        """
        ...

    def status(self, name: str) -> FileStatus:
        """Return the present state of a file; raises FileNotFoundError."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """Return the bytes of a file, which the caller closes; raises FileNotFoundError."""
        ...


class LocalFolder:
    """A folder of a local or mounted file system; links to files are followed, to folders not."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    @property
    def url(self) -> str:
        return str(self._root)

    def files(self, *, is_recursive: bool) -> Iterator[FileStatus]:
        with translated("read", self._root):
            top = list(os.scandir(self._root))
        waiting = [("", top)]
        while waiting:
            prefix, entries = waiting.pop()
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                name = f"{prefix}{entry.name}"
                with translated("list", Path(entry.path)):
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            if is_recursive:
                                waiting.append((f"{name}/", list(os.scandir(entry.path))))
                        elif entry.is_file():
                            yield _status(name, entry.stat())
                    except FileNotFoundError:
                        continue  # Removed since the folder was read.

    def status(self, name: str) -> FileStatus:
        target = self._root / name
        with translated("read", target):
            return _status(name, os.stat(target))

    def open(self, name: str) -> pa.NativeFile:
        target = self._root / name
        with translated("read", target), opened_regular(target) as file:
            # Not mapped: a process that touches a page behind the end of a file cut short is
            # killed.
            return pa.OSFile(file.path, "rb")


def is_hidden(name: str) -> bool:
    """Return whether a name, of a file or of a folder, is passed over."""
    return name.startswith(_HIDDEN)


def _status(name: str, found: os.stat_result) -> FileStatus:
    return FileStatus(name, found.st_size, found.st_mtime_ns // 1000)
