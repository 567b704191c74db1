"""A folder of files that others write, in a bucket (`store.folder`)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_upsert.store.folder import FileStatus, is_hidden
from spark_upsert.store.objects import RANGE_BYTES, ObjectStore

_US = 1_000_000


class ObjectFolder:
    """A prefix of a bucket."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def files(self, *, is_recursive: bool) -> Iterator[FileStatus]:
        for entry in self._store.entries(is_recursive=is_recursive):
            if not any(is_hidden(part) for part in entry["path"].split("/")):
                yield _status(entry)

    def status(self, name: str) -> FileStatus:
        return _status(self._store.entry(name))

    def open(self, name: str) -> pa.NativeFile:
        return pa.PythonFile(_Ranges(self._store, name, self.status(name).bytes), mode="r")


def _status(entry: Any) -> FileStatus:
    modified = entry["last_modified"]
    return FileStatus(
        entry["path"], entry["size"], int(modified.timestamp()) * _US + modified.microsecond
    )


class _Ranges(io.RawIOBase):
    """An object as a file, of which what is asked for is fetched, `RANGE_BYTES` at the least."""

    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        self._store = store
        self._name = name
        self._size = size
        self._at = 0
        self._held_at = 0
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._size - self._at
        if size is not None and size >= 0:
            wanted = min(wanted, size)
        if wanted <= 0:
            return b""
        start = self._at - self._held_at
        if start < 0 or start + wanted > len(self._held):
            stop = min(self._size, self._at + max(wanted, RANGE_BYTES))
            self._held = self._store.read_range(self._name, self._at, stop)
            self._held_at, start = self._at, 0
        self._at += wanted
        return bytes(self._held[start : start + wanted])
