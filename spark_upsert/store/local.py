"""A table on a local or mounted POSIX file system (`LocalStore`), and its durable writes.

Also regular-file checks, release of mapped pages, and `OSError` translation.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import threading
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_upsert.errors import CorruptionError, StorageError
from spark_upsert.store.protocol import OBJECT_BYTES_MAX, MappedFile, ObjectInfo

# An opened terminal would otherwise become this process's controlling one.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class RegularFile:
    """An open regular file."""

    handle: int
    length: int
    """In bytes, when it was opened."""

    @property
    def path(self) -> bytes:
        """A name for this very file, for a library opening by name; valid while it is open."""
        return os.fsencode(f"/dev/fd/{self.handle}")

    def read(self) -> bytes:
        """Return its contents, no more than its length; less if it was truncated since."""
        pieces = []
        left = self.length
        while left and (piece := os.read(self.handle, left)):  # One call may read less.
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def map(self) -> pa.Buffer:
        """Return its mapped contents; they stay mapped when it is closed."""
        if not self.length:
            return pa.py_buffer(b"")
        with pa.memory_map(os.fsdecode(self.path)) as mapped:
            return mapped.read_buffer()


@contextmanager
def open_regular_file(path: Path) -> Iterator[RegularFile]:
    """Open a regular file for the duration of the body.

    A name may lead to a FIFO, a device or a link to either: the file is opened without waiting,
    then its type is checked. A check by name could be outdated at the open.
    """
    try:
        handle = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # A socket, or a device without a driver.
            raise special_file_error(path, os.stat(path).st_mode) from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise special_file_error(path, status.st_mode)
        yield RegularFile(handle, status.st_size)
    finally:
        os.close(handle)


def special_file_error(path: Path, mode: int) -> CorruptionError:
    """Return the error for a path with something other than a regular file."""
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
    at = f"a link to {kind}" if path.is_symlink() else kind
    return CorruptionError(
        f"damaged file '{path}': expected a regular file, found {at}; it was not read.",
        hint=f"remove '{path}', and put the file that belongs there in its place, from a copy. "
        "Nothing was changed.",
        path=str(path),
    )


_STATM = Path("/proc/self/statm")
_PAGES_OF_FILES = 2
"""Position of the resident file-page count in ``/proc/self/statm``."""

_ADVICE = getattr(mmap, "MADV_DONTNEED", None)
_madvise = getattr(ctypes.CDLL(None), "madvise", None)


def resident_bytes() -> int:
    """Return the file bytes in this process's memory, its libraries included.

    0 if the system does not report them (anything but Linux).
    """
    try:
        return int(_STATM.read_bytes().split()[_PAGES_OF_FILES]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return 0


def release_mapped(buffer: pa.Buffer) -> None:
    """Release a mapped file's pages; a further read loads them again."""
    if _madvise is not None and _ADVICE is not None and buffer.size > 0:
        # Only advice: nothing is lost if the system ignores it.
        _madvise(ctypes.c_void_p(buffer.address), ctypes.c_size_t(buffer.size), _ADVICE)


_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
_NO_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_NO_LINKS = (
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
)


@contextmanager
def translated(verb: str, path: Path) -> Iterator[None]:
    """Translate file system errors into a `StorageError` with path and remedy.

    For ``read``, `FileNotFoundError` passes: it is often expected.
    """
    try:
        yield
    except OSError as error:
        # A file to read may be absent; for a file to write, its folder was removed.
        if isinstance(error, StorageError) or (
            isinstance(error, FileNotFoundError) and verb == "read"
        ):
            raise
        raise _storage_error(error, f"could not {verb} '{path}'", _advice(error)) from error


@contextmanager
def require_links(path: Path) -> Iterator[None]:
    """Translate errors from a file system without hard links, which commits need."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise _storage_error(
            error,
            f"could not create '{path}' by a hard link, which is how a version is made only if it "
            "is absent",
            "put the table on a file system that allows hard links (ext4, XFS, APFS, NFS; FAT and "
            "many mounts of SMB or FUSE do not), or into object storage. On a share that maps "
            "users, let the one who runs this own the files it makes (Linux: "
            "fs.protected_hardlinks).",
        ) from error


def _storage_error(error: OSError, tried: str, hint: str) -> StorageError:
    description = error.strerror or str(error) or type(error).__name__
    return StorageError(f"{tried}: {description}.", hint=hint, errno=error.errno)


def _advice(error: OSError) -> str:
    number = error.errno
    if number in _DENIED:
        return (
            f"give user {os.getuid()} of this process the right to write there (or to read, if it "
            "only reads), on the driver and on every executor, or choose another path."
        )
    if number in _FULL:
        return "make room there, then try again; nothing half-written can be seen."
    if number in _NO_FOLDER:
        return "choose a path all of whose parts are a folder, or do not exist yet."
    if number in _NO_NAME:
        return "choose a path that the file system can hold."
    return (
        "check the disk or the mount, and the system's log, then try again; what was asked for "
        "may have been done or not."
    )


_TEMPORARY = ".tmp-"


class LocalStore:
    """A folder on a local file system.

    Order for a durable write: write a file under a unique or temporary name, ``fsync`` it, for a
    commit ``link`` it to its final name, ``fsync`` the folder and, once, those above it. A process
    finding another's version repeats the last step (`sync`), because the writer may have been
    killed before it. ``rename`` would replace a version; ``O_EXCL`` could leave a torn one.
    """

    def __init__(self, root: str | Path) -> None:
        # Made absolute once: the process may change its folder, the table does not.
        self._root = Path(root).absolute()

    @property
    def url(self) -> str:
        return str(self._root)

    @property
    def cache_key(self) -> Hashable:
        return self.url

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def iter_above(self) -> Iterator[LocalStore]:
        """Yield the folders above this one, the nearest first."""
        yield from map(LocalStore, self._root.parents)

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        target = self._root / path
        with translated("read", target), open_regular_file(target) as file:
            if file.length > bytes_max:
                raise CorruptionError.in_file(
                    str(target), f"at most {bytes_max} bytes", f"{file.length}"
                )
            return file.read()

    def prepare(self, folder: str) -> None:
        target = self._root / folder
        with translated("create", target):
            self._make_folder(target)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = self._root / path
        with translated("create", target):
            if target.exists():
                return False
            temporary = self._write_temporary(target, data)
            try:
                self._sync_once(target.parent)
                with require_links(target):
                    os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                with suppress(FileNotFoundError):  # A vacuum removed it as a leftover.
                    os.unlink(temporary)
            sync_folder(target.parent)
        return True

    def sync(self, path: str) -> None:
        target = self._root / path
        # A read-only process cannot do more.
        with translated("sync", target), suppress(PermissionError):
            sync_folder(target.parent)

    def put(self, path: str, data: bytes) -> None:
        target = self._root / path
        with translated("write", target):
            self._make_folder(target.parent)
            os.replace(self._write_temporary(target, data), target)
            sync_folder(target.parent)

    def create(self, path: str) -> LocalSink:
        target = self._root / path
        with translated("create", target):
            self._make_folder(target.parent)
            return LocalSink(target)

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Do nothing: files are local."""

    def map(self, path: str) -> pa.Buffer:
        target = self._root / path
        with translated("read", target), open_regular_file(target) as file:
            return file.map()

    def needs_fetch(self, path: str) -> bool:
        return False

    def reserve(self, size: int) -> bool:
        return True

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        raise AssertionError(f"'{path}' is a file, and so it is mapped")

    def mapped_file(self, path: str) -> MappedFile | None:
        target = f"{self._root}/{path}"
        with translated("read", Path(target)):
            try:
                status = os.stat(target)
            except FileNotFoundError:
                return None
        # Either time may be set by hand, both at once not.
        mark = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        return MappedFile(status.st_size, mark)

    def release(self, buffer: pa.Buffer) -> None:
        release_mapped(buffer)

    def forget(self, path: str) -> None:
        """Do nothing: there is no copy, the file itself is mapped."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        for info in self._entries(prefix, after=after):
            if not _is_temporary(info):
                yield info

    def folders(self, prefix: str) -> Iterator[str]:
        folder = self._root / prefix
        with translated("list", folder):
            try:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries if entry.is_dir()]
            except (FileNotFoundError, NotADirectoryError):
                return
        yield from sorted(names)

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from filter(_is_temporary, self._entries(prefix))

    def delete(self, path: str) -> None:
        target = self._root / path
        with translated("delete", target):
            target.unlink(missing_ok=True)

    def _entries(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the files directly below a folder, temporary files too, sorted."""
        folder = self._root / prefix
        with translated("list", folder):
            try:
                names = os.listdir(folder)
            except FileNotFoundError:
                return
            is_linked = bool(prefix) and folder.is_symlink()
        for name in sorted(names):
            path = f"{prefix}/{name}" if prefix else name
            if path <= after:
                continue
            with translated("list", folder / name):
                try:
                    status = os.lstat(folder / name)
                except FileNotFoundError:
                    continue  # Removed since the folder was read.
            is_link = is_linked or stat.S_ISLNK(status.st_mode)
            if is_link or stat.S_ISREG(status.st_mode):
                yield ObjectInfo(
                    path=path,
                    bytes=status.st_size,
                    modified_s=status.st_mtime,
                    is_link=is_link,
                )

    def _write_temporary(self, target: Path, data: bytes) -> Path:
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        with LocalSink(temporary, sync_parent=False) as sink:
            sink.write(data)
        return temporary

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and those above it, durable in their parents."""
        if not folder.is_dir():
            _FOLDERS.forget_absent(folder)
            folder.mkdir(parents=True, exist_ok=True)
        self._sync_once(folder)

    def _sync_once(self, folder: Path) -> None:
        """Make a folder and those above it durable in their parents, once.

        A folder's creator may have been killed before its sync.
        """
        for directory in (folder, *folder.parents[:-1]):
            number = _number(directory)
            if _FOLDERS.is_durable(directory, number):
                continue
            try:
                sync_folder(directory.parent)
            except PermissionError:
                break  # Another user made folders unreadable to us.
            _FOLDERS.remember(directory, number)


_Number = tuple[int, int]
"""Device number and inode number."""


def _number(folder: Path) -> _Number:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


class _Folders:
    """Folders with names made durable by this process, each with its inode number then.

    A folder removed and created again usually has another number. The system may reuse a number; if
    this process created the folder again, it forgets the old one. One case remains: another process
    did both, got the same number and was killed before its sync. A commit there is durable only
    after the file system has written the folder by itself.
    """

    def __init__(self, count_max: int = 1 << 14) -> None:
        self._count_max = count_max
        self._numbers: dict[Path, _Number] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._numbers)

    def is_durable(self, folder: Path, number: _Number) -> bool:
        """Return whether the name of the folder with this number is known to be durable."""
        return self._numbers.get(folder) == number

    def remember(self, folder: Path, number: _Number) -> None:
        """Record that a folder's name is durable; the oldest entries are evicted."""
        with self._lock:
            self._numbers.pop(folder, None)
            self._numbers[folder] = number
            while len(self._numbers) > self._count_max:
                del self._numbers[next(iter(self._numbers))]

    def forget_absent(self, folder: Path) -> None:
        """Forget a folder and those above it, unless they exist."""
        for directory in (folder, *folder.parents):
            if directory.is_dir():
                break
            with self._lock:
                self._numbers.pop(directory, None)


_FOLDERS = _Folders()
"""Durable folders known to this process."""


def _is_temporary(info: ObjectInfo) -> bool:
    return info.path.rpartition("/")[2].startswith(_TEMPORARY)


class LocalSink:
    """A file, durable when closed, and removed if an error interrupts it."""

    def __init__(self, target: Path, *, sync_parent: bool = True) -> None:
        self._target = target
        self._sync_parent = sync_parent
        with translated("create", target):
            self._file = open(target, "xb", buffering=0)  # noqa: SIM115 - closed by __exit__

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        written = 0
        with translated("write", self._target):
            while written < len(view):  # A raw write may be short, for example on a full disk.
                written += self._file.write(view[written:])
        return written

    def __enter__(self) -> LocalSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with translated("write", self._target):
            try:
                if error is None:
                    os.fsync(self._file.fileno())
            finally:
                self._file.close()
                if error is not None:
                    self._target.unlink(missing_ok=True)
            if error is None and self._sync_parent:
                sync_folder(self._target.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
