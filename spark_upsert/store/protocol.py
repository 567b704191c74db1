"""The storage protocol (`Store`): a flat space for immutable objects with conditional puts.

Paths are relative to the table, with ``/`` between their parts.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

OBJECT_BYTES_MAX = 256 << 20
"""Maximum bytes for a completely read object: a checkpoint with a million runs has some 200 MB,
more than a table ever has."""

PROBE = "_conditional_put"
"""An empty object, possibly left at a store's root, to test conditional puts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object in a listing."""

    path: str
    bytes: int
    modified_s: float
    """Last write time by the storage's clock, in seconds since 1970."""
    is_link: bool = False
    """Whether it, or its folder, is a link to another location, with files outside the table."""


class MappedFile(NamedTuple):
    """A mapped file's state; another state differs in length or mark."""

    length: int
    """In bytes."""
    mark: Hashable
    """A value changed by the file system when the file is modified or replaced."""


class ObjectSink(Protocol):
    """A new object while it is written; it appears, complete and durable, when closed."""

    def write(self, data: bytes) -> int:
        """Append bytes; returns their count."""
        ...

    def __enter__(self) -> ObjectSink: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make the object durable; after an error, remove it as far as possible."""
        ...


class Store(Protocol):
    """A flat space for immutable objects below one root."""

    @property
    def url(self) -> str:
        """The root, in a form accepted by `open_store`."""
        ...

    @property
    def cache_key(self) -> Hashable | None:
        """A key shared by stores with the same location and settings.

        None: nothing may be cached. Contains no credential.
        """
        ...

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """Return a complete object.

        Raises
        ------
        FileNotFoundError
            There is none.
        CorruptionError
            It is larger than ``bytes_max``, or no regular file; no memory was allocated for it.
        """
        ...

    def prepare(self, folder: str) -> None:
        """Create a folder durably, if the storage has folders; a new table calls it for its log.

        Raises
        ------
        OptionError
            The storage does not support `put_if_absent`.
        """
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object durably, completely or not at all; False if it exists.

        This is the table's commit point. If it raises, the object may or may not exist: the caller
        must read back and compare. It never creates a folder, so a commit to a removed table fails.
        """
        ...

    def sync(self, path: str) -> None:
        """Make an existing object durable, because its writer may have been killed before it did.

        A reader or writer calls it for another writer's commit, before acting upon the commit.
        """

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a small object atomically."""
        ...

    def create(self, path: str) -> ObjectSink:
        """Return a sink for a new object with a unique name."""
        ...

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Copy the objects mapped next, in parallel; nothing if they are local.

        Parameters
        ----------
        sizes : mapping of str to int
            Bytes per object. Large objects are left to `map`, which fetches their parts in parallel;
            missing objects are skipped.

        Raises
        ------
        StorageError
            The storage does not respond.
        """

    def map(self, path: str) -> pa.Buffer:
        """Return an immutable object's bytes, mapped rather than read if possible."""
        ...

    def needs_fetch(self, path: str) -> bool:
        """Return whether `map` would have to fetch an object."""
        ...

    def reserve(self, size: int) -> bool:
        """Reserve space for a local copy by `map`; False if copies in use would be evicted."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        """Return the bytes ``low <= i < high`` for ranges in a remote object of ``size`` bytes.

        The ranges are in whole blocks of 1 KiB, but for the object's end; they may be kept locally.

        Raises
        ------
        FileNotFoundError
            There is none.
        StorageError
            The storage does not respond, or the object is shorter.
        """
        ...

    def mapped_file(self, path: str) -> MappedFile | None:
        """Return the present state of the file for `map`; None if it is gone or not a file.

        The system kills a process touching a mapped file after its end, and another process's
        writes into the file appear as its contents. So a reader checks before a read. A removed
        file stays readable for all processes with a mapping.
        """
        ...

    def release(self, buffer: pa.Buffer) -> None:
        """Release a mapped object's memory in this process; it stays readable."""
        ...

    def forget(self, path: str) -> None:
        """Drop an object's local copy, so the next `map` reads it again."""
        ...

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly below a folder with paths after ``after``, sorted by path."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below a folder, sorted.

        In a bucket, a folder is the common part of object names before the next ``/``.
        """
        ...

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the files with temporary names directly below a folder.

        They are no objects: a writer is about to rename them, or was killed before.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove an object; no error if it is absent."""
        ...


def new_token() -> str:
    """Return 128 random bits as hex digits."""
    return uuid.uuid4().hex
