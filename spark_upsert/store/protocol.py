"""The storage protocol (`Store`): a flat space of immutable objects with conditional puts.

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
"""An object that is read whole is no longer: a checkpoint of a million runs has some 200 MB, and
there are never so many."""

PROBE = "_conditional_put"
"""An empty object that a store may leave at its root: it asks whether a put can be conditional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object in a listing."""

    path: str
    bytes: int
    modified_s: float
    """When it was last written, in seconds since 1970 by the storage's own clock."""
    is_link: bool = False
    """Whether it, or its folder, is a link to another place: files there are not the table's."""


class MappedFile(NamedTuple):
    """A state of a file that is mapped; another one has another length or mark."""

    length: int
    """In bytes."""
    mark: Hashable
    """A value that the file system changes when the file is written into, or replaced."""


class ObjectSink(Protocol):
    """A new object while it is written; it appears, whole and durable, when closed."""

    def write(self, data: bytes) -> int:
        """Append bytes; returns their number."""
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
    """A flat space of immutable objects below one root."""

    @property
    def url(self) -> str:
        """The root, in the form that `open_store` takes."""
        ...

    @property
    def cache_key(self) -> Hashable | None:
        """A key that stores share if they reach the same place by the same settings.

        A cache of the process keeps nothing under None. Holds no credential.
        """
        ...

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """Return a whole object.

        Raises
        ------
        FileNotFoundError
            There is none.
        CorruptionError
            It is larger than ``bytes_max``, or no regular file; no memory was taken for it.
        """
        ...

    def prepare(self, folder: str) -> None:
        """Make a folder, durably, where folders exist; a new table asks for that of its log.

        Raises
        ------
        OptionError
            The storage does not keep the promise of `put_if_absent`.
        """
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object durably, whole or not at all; False if it exists.

        This is the commit point of the table. If it raises, the object may or may not
        exist: the caller must read back and compare. It never makes a folder, so that a
        commit to a table that was removed fails.
        """
        ...

    def sync(self, path: str) -> None:
        """Make an existing object durable, because its writer may not have come to that.

        A reader or writer calls it for a commit of another writer, before it acts upon the commit.
        """

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a small object atomically."""
        ...

    def create(self, path: str) -> ObjectSink:
        """Return a sink for a new object with a unique name."""
        ...

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Bring objects near that are mapped next, side by side; nothing where they are near.

        Parameters
        ----------
        sizes : mapping of str to int
            The bytes of each. A large one is left to `map`, which asks for its parts side by side;
            so is one that is not there.

        Raises
        ------
        StorageError
            The storage does not answer.
        """

    def map(self, path: str) -> pa.Buffer:
        """Return the bytes of an immutable object, mapped rather than read where possible."""
        ...

    def is_far(self, path: str) -> bool:
        """Return whether `map` would have to fetch an object."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        """Return the bytes ``low <= i < high`` of some ranges of an object that is far.

        Raises
        ------
        FileNotFoundError
            There is none.
        StorageError
            The storage does not answer, or the object is shorter.
        """
        ...

    def mapped_file(self, path: str) -> MappedFile | None:
        """Return the present state of the file that `map` maps; None if it is gone or no file.

        The system kills a process that touches a mapped file behind its end, and what another
        process wrote into the file is read as if it were ours. So a reader asks before a read. A
        file that is gone stays readable for all processes that have mapped it.
        """
        ...

    def release(self, buffer: pa.Buffer) -> None:
        """Give back what a mapped object takes of this process's memory; it stays readable."""
        ...

    def forget(self, path: str) -> None:
        """Drop what is kept locally of an object, so that the next `map` reads it anew."""
        ...

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly below a folder with paths behind ``after``, sorted by path."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below a folder, sorted.

        In a bucket, a folder is what objects share before the next ``/``.
        """
        ...

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield what is kept under temporary names directly below a folder.

        They are no objects: either a writer is about to name them, or it was killed before.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove an object; it is no error if it is absent."""
        ...


def new_token() -> str:
    """Return 128 random bits, as digits."""
    return uuid.uuid4().hex
