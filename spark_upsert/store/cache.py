"""Local copies (`LocalCopies`) of immutable objects: fetched once, mapped by many, bounded.

All processes of a user share one folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.store.protocol import MappedFile

CAPACITY_BYTES = 8 << 30
"""Default capacity, or a quarter of the file system if less: it may be a RAM disk."""

_PART = ".part"
_MAGIC = b"upsertfl"
_TRAILER_BYTES = len(_MAGIC) + 8

_SCAN_SHARE = 64
"""Divisor for the capacity: after fetching that share, a process scans the folder, O(copies)."""

_KEPT_SHARE = 15 / 16
"""The share of the capacity left after eviction, so not every fetch evicts."""


@dataclass(frozen=True, slots=True)
class CopyFile:
    """A copy during its fetch."""

    handle: int
    folder: Path

    def write_at(self, data: bytes | memoryview, position: int) -> None:
        """Write all bytes at a position; threads may write at several positions in parallel."""
        view = memoryview(data)
        with usable(self.folder):
            while len(view):  # One call may write less.
                written = os.pwrite(self.handle, view, position)
                view, position = view[written:], position + written


WriteCopy = Callable[[CopyFile], int]
"""Writes an object from position 0; returns its byte count."""


class LocalCopies:
    """A bounded folder of copies. Safe for threads and processes.

    A copy is written as ``<name>.part`` under an exclusive ``flock`` and renamed, so a lockable
    ``.part`` is a leftover. Its trailer has its length; a torn copy lacks it and is fetched again.
    The least recently mapped copies are removed first and stay readable where mapped.
    """

    def __init__(self, parent: str | Path | None = None, capacity_bytes: int | None = None) -> None:
        self._parent = Path(tempfile.gettempdir() if parent is None else parent)
        self._folder = self._parent / f"upsertflow-cache-{os.getuid()}"
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._unscanned_bytes: int | None = None  # None: the folder was never scanned.

    def __repr__(self) -> str:
        return f"LocalCopies({str(self._folder)!r}, capacity_bytes={self.capacity_bytes:_})"

    @property
    def capacity_bytes(self) -> int:
        """Maximum total bytes of finished copies; unfinished downloads do not count.

        By default `CAPACITY_BYTES`, or a quarter of the file system if that is less.
        """
        if self._capacity_bytes is None:
            with usable(self._folder):
                total = shutil.disk_usage(self.folder()).total
            self._capacity_bytes = min(CAPACITY_BYTES, total // 4)
        return self._capacity_bytes

    def folder(self) -> Path:
        """Return the folder, created if it is absent."""
        with usable(self._folder):
            # Checked every time: cleaners of temporary folders may remove it.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(self._folder)
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            raise OptionError(
                f"the folder of local copies, '{self._folder}', belongs to another user.",
                hint="set 'storage.cache_dir' to a folder of your own on a local disk.",
                option="storage.cache_dir",
            )
        return self._folder

    def map(self, name: str, fetch: WriteCopy) -> pa.Buffer:
        """Return an object's mapped copy, fetched first if there is none."""
        copy = self.folder() / name
        buffer = _try_map(copy)
        return self._fill(copy, fetch) if buffer is None else buffer

    def file_of(self, name: str) -> MappedFile | None:
        """Return a copy's state, without its trailer; None if there is no copy."""
        try:
            status = os.stat(f"{self._folder}/{name}")
        except FileNotFoundError:
            return None
        # Not its times: each mapping process sets them, so it is removed late.
        return MappedFile(status.st_size - _TRAILER_BYTES, (status.st_dev, status.st_ino))

    def forget(self, name: str) -> None:
        """Remove a copy, for example because its contents are damaged."""
        (self._folder / name).unlink(missing_ok=True)

    def _fill(self, copy: Path, fetch: WriteCopy) -> pa.Buffer:
        """Fetch an object into a new copy and map it; one process fetches, the others wait."""
        part = copy.with_name(copy.name + _PART)
        with _claimed(part) as file:
            buffer = _try_map(copy)  # Another process may have fetched it while this one waited.
            if buffer is not None:
                return buffer
            size = fetch(file)
            file.write_at(_trailer(size), size)
            with usable(self._folder):
                # Mapped before it can be seen, and so removed, by others.
                buffer = _map(part, size)
                os.replace(part, copy)
        self._evict_if_due(size, keep=copy)
        return buffer

    def _evict_if_due(self, added_bytes: int, *, keep: Path) -> None:
        """Evict copies, but not ``keep``, if enough was fetched since the last scan."""
        with self._lock:
            if self._unscanned_bytes is not None:
                self._unscanned_bytes += added_bytes
                if self._unscanned_bytes < self.capacity_bytes // _SCAN_SHARE:
                    return
            self._unscanned_bytes = 0
        self._evict(keep)

    def _evict(self, keep: Path) -> None:
        """Remove the least recently mapped copies beyond the capacity, and abandoned downloads."""
        entries: list[tuple[float, int, Path]] = []
        for file in self._folder.iterdir():
            if file.suffix == _PART:
                _remove_if_abandoned(file)
                continue
            try:
                status = file.stat()
            except FileNotFoundError:
                continue  # Another process removed it.
            entries.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in entries)
        if total <= self.capacity_bytes:
            return
        for _, size, file in sorted(entries):
            if total <= self.capacity_bytes * _KEPT_SHARE:
                return
            if file != keep:
                file.unlink(missing_ok=True)
                total -= size


def _trailer(size: int) -> bytes:
    """Return the end mark of a complete copy with ``size`` content bytes."""
    return _MAGIC + size.to_bytes(8, "little")


def _map(file: Path, size: int) -> pa.Buffer:
    """Map a complete copy's content, without its trailer."""
    with pa.memory_map(str(file)) as mapped:
        return mapped.read_buffer().slice(0, size)


def _try_map(copy: Path) -> pa.Buffer | None:
    """Return the mapped copy, or None if there is none; a torn one is removed."""
    try:
        if os.stat(copy).st_size >= _TRAILER_BYTES:
            with pa.memory_map(str(copy)) as mapped:
                content = mapped.read_buffer()
            size = content.size - _TRAILER_BYTES
            if content.slice(size).to_pybytes() == _trailer(size):
                os.utime(copy)
                return content.slice(0, size)
        copy.unlink()
    except FileNotFoundError:
        return None
    return None


@contextmanager
def _claimed(part: Path) -> Iterator[CopyFile]:
    """Open an empty file owned by this process alone; removed afterwards unless renamed."""
    while True:
        with usable(part.parent):
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with usable(part.parent):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(handle, part):
                try:
                    os.ftruncate(handle, 0)
                    yield CopyFile(handle, part.parent)
                finally:
                    if _is_at(handle, part):
                        part.unlink(missing_ok=True)
                return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Return whether an open file still has its name; another file may have replaced it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_if_abandoned(part: Path) -> None:
    """Remove a download whose process has ended: its lock is free."""
    try:
        handle = os.open(part, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(handle, part):
            part.unlink(missing_ok=True)
    except BlockingIOError:
        return  # Its owner is alive and fetching.
    finally:
        os.close(handle)


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Translate file system errors into an `OptionError` about the cache folder."""
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"the folder of local copies, '{folder}', cannot be used: {error}.",
            hint="set 'storage.cache_dir' to a folder on a local disk with room for "
            "'storage.cache_bytes'.",
            option="storage.cache_dir",
        ) from error
