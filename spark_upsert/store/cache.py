"""Local copies (`LocalCopies`) of immutable objects, complete or in blocks: fetched once, bounded.

All processes of a user share one folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.store.protocol import MappedFile

CAPACITY_BYTES = 8 << 30
"""Default capacity, or a quarter of the file system if less: it may be a RAM disk."""

_PART = ".part"
_BLOCKS = ".blocks"

CACHED_BLOCK_BYTES = 1024
"""Unit in which parts of objects are kept: the unit of a run's checksums."""

_JOINED_BLOCKS = 16
"""Maximum cached blocks fetched again between two missing ones, which are requested together."""

_MAGIC = b"upsertfl"
_TRAILER_BYTES = len(_MAGIC) + 8

_IDLE_S = 600.0
"""A copy not mapped for this long may be evicted for a reserved one. Otherwise the copies first made
stay: reads of more than the capacity would replace each other's copies, and find none."""

_USED_S = 60.0
"""Precision of a copy's last use."""

_RESCAN_S = 1.0
"""Time for which the free space found by a scan holds."""

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


ByteRange = tuple[int, int]
"""The bytes ``low <= i < high``."""

FetchRanges = Callable[[Sequence[ByteRange]], Sequence[Any]]

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
        self._free_bytes = 0
        self._scanned_s: float | None = None

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
        if time.time() - status.st_mtime > _USED_S:
            with suppress(FileNotFoundError):
                os.utime(self._folder / name)
        # Not its times: each mapping process sets them, so it is removed late.
        return MappedFile(status.st_size - _TRAILER_BYTES, (status.st_dev, status.st_ino))

    def reserve(self, size: int) -> bool:
        """Reserve space for a copy; False if copies used recently would have to be evicted."""
        with self._lock:
            now = time.monotonic()
            if self._scanned_s is None or now - self._scanned_s > _RESCAN_S:
                self._free_bytes = self.capacity_bytes - self._used_bytes()
                self._scanned_s = now
            if size > self._free_bytes:
                return False
            self._free_bytes -= size
            return True

    def _used_bytes(self) -> int:
        """Return the bytes of the copies used recently, and of unfinished ones."""
        used_since = time.time() - _IDLE_S
        total = 0
        for file in self.folder().iterdir():
            with suppress(FileNotFoundError):  # Another process removed it.
                status = file.stat()
                total += _disk_bytes(status) if status.st_mtime > used_since else 0
        return total

    def forget(self, name: str) -> None:
        """Remove a copy, for example because its contents are damaged."""
        (self._folder / name).unlink(missing_ok=True)
        (self._folder / (name + _BLOCKS)).unlink(missing_ok=True)

    def read_ranges(
        self, name: str, ranges: Sequence[ByteRange], size: int, fetch: FetchRanges
    ) -> list[memoryview]:
        """Return parts of an object of ``size`` bytes; missing blocks are fetched, and kept.

        They are kept in a sparse file, if there is room for them without an eviction.

        Parameters
        ----------
        ranges : sequence of tuple of int
            The bytes ``low <= i < high`` of each part, in blocks of `CACHED_BLOCK_BYTES`; only the
            object's last block may be shorter.
        fetch : callable
            Returns the bytes for such ranges.
        """
        file = self.folder() / (name + _BLOCKS)
        contents = [memoryview(bytearray(high - low)) for low, high in ranges]
        with usable(self._folder), _opened_blocks(file, size) as cached:
            missing = [
                (low, first, last)
                for (low, high), content in zip(ranges, contents, strict=True)
                for first, last in cached.fill(content, low, high)
            ]
        if not missing:
            return contents
        content_at = dict(zip((low for low, _ in ranges), contents, strict=True))
        fetched = fetch([(first, last) for _, first, last in missing])
        for (low, first, last), data in zip(missing, fetched, strict=True):
            content_at[low][first - low : last - low] = memoryview(data)
        added_bytes = sum(last - first for _, first, last in missing)
        if self.reserve(added_bytes):
            # On a full disk they are read all the same, and fetched again next time.
            with suppress(OSError), _opened_blocks(file, size) as cached:
                for (_, first, _), data in zip(missing, fetched, strict=True):
                    cached.keep(memoryview(data), first)
            self._evict_if_due(added_bytes, keep=file)
        return contents

    def _fill(self, copy: Path, fetch: WriteCopy) -> pa.Buffer:
        """Fetch an object into a new copy and map it; one process fetches, the others wait."""
        part = copy.with_name(copy.name + _PART)
        with _claimed(part) as file:
            buffer = _try_map(copy)  # Another process may have fetched it while this one waited.
            if buffer is not None:
                return buffer
            size = fetch(file)
            copy.with_name(copy.name + _BLOCKS).unlink(missing_ok=True)
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
            entries.append((status.st_mtime, _disk_bytes(status), file))
        total = sum(size for _, size, _ in entries)
        if total <= self.capacity_bytes:
            return
        for _, size, file in sorted(entries):
            if total <= self.capacity_bytes * _KEPT_SHARE:
                return
            if file != keep:
                file.unlink(missing_ok=True)
                total -= size


def _disk_bytes(status: os.stat_result) -> int:
    """Return how much of the disk a file takes: less than its size if it is sparse."""
    return min(status.st_size, status.st_blocks * 512)


class _CachedBlocks:
    """An object's cached blocks, in an open sparse file.

    After the object's bytes, one byte per block marks it as present; it is written after the
    block. The end mark names the system's start: after a crash of the system, present bytes may
    have reached the disk without their blocks.
    """

    def __init__(self, handle: int, size: int) -> None:
        self._handle = handle
        self._size = size
        self._mark_offset = size + -(-size // CACHED_BLOCK_BYTES)

    @property
    def is_sound(self) -> bool:
        """Whether the file was created for this size since the system's start."""
        return os.pread(self._handle, len(_MAGIC) + 17, self._mark_offset) == _MAGIC + _boot_id()

    def create(self) -> None:
        """Write the end mark into an empty file."""
        os.pwrite(self._handle, _MAGIC + _boot_id(), self._mark_offset)

    def fill(self, content: memoryview, low: int, high: int) -> Iterator[ByteRange]:
        """Copy the cached blocks in a byte range; yield the ranges of the missing ones."""
        first, end = low // CACHED_BLOCK_BYTES, -(-high // CACHED_BLOCK_BYTES)
        present = np.frombuffer(os.pread(self._handle, end - first, self._size + first), np.uint8)
        if not present.any():
            yield low, high
            return
        if os.preadv(self._handle, [content], low) != len(content):
            present = np.zeros_like(present)
        missing = np.flatnonzero(present == 0)
        if not len(missing):
            return
        parted = np.flatnonzero(np.diff(missing) > _JOINED_BLOCKS)
        firsts = missing[np.concatenate([[0], parted + 1])] + first
        lasts = missing[np.concatenate([parted, [len(missing) - 1]])] + first
        for begin, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            yield begin * CACHED_BLOCK_BYTES, min((last + 1) * CACHED_BLOCK_BYTES, self._size)

    def keep(self, data: memoryview, low: int) -> None:
        """Write whole blocks, then mark them as present."""
        first, end = low // CACHED_BLOCK_BYTES, -(-(low + len(data)) // CACHED_BLOCK_BYTES)
        if os.pwrite(self._handle, data, low) == len(data):
            os.pwrite(self._handle, b"\1" * (end - first), self._size + first)


@contextmanager
def _opened_blocks(file: Path, size: int) -> Iterator[_CachedBlocks]:
    """Open an object's cached blocks, created if they are absent or of another start.

    A file is never emptied: another process may be about to mark a block in it as present.
    """
    try:
        opened = open(file, "r+b", buffering=0)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        opened = None
    if opened is not None:
        with opened:
            cached = _CachedBlocks(opened.fileno(), size)
            if cached.is_sound:
                if time.time() - os.fstat(opened.fileno()).st_mtime > _USED_S:
                    os.utime(opened.fileno())
                yield cached
                return
    with tempfile.NamedTemporaryFile(dir=file.parent, buffering=0, delete=False) as created:
        cached = _CachedBlocks(created.fileno(), size)
        cached.create()
        with suppress(FileNotFoundError):  # Evicted already: then its blocks are not kept.
            os.replace(created.name, file)
        yield cached


@cache
def _boot_id() -> bytes:
    """Return 16 bytes for the system's present start; for this process if it names none."""
    with suppress(OSError, ValueError):
        return UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    return os.urandom(16)


def _trailer(size: int) -> bytes:
    """Return the end mark of a complete copy with ``size`` content bytes."""
    return _MAGIC + size.to_bytes(8, "little")


def whole_copy(data: pa.Buffer) -> pa.Buffer:
    """Return a complete copy's content, without its trailer; other data unchanged."""
    size = data.size - _TRAILER_BYTES
    is_copy = size >= 0 and data.slice(size).to_pybytes() == _trailer(size)
    return data.slice(0, size) if is_copy else data


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
            whole = whole_copy(content)
            if whole.size < content.size:
                os.utime(copy)
                return whole
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
