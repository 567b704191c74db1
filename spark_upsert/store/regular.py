"""Files that are opened to be read: regular ones, and nothing else.

A name in a folder may lead to anything: a FIFO makes its reader wait for a writer, a device may
never end, and a link may lead to either. So a file is opened without waiting, then the open file
says what it is, and only a regular one is read, as far as it was long at that moment. A reader maps
the file that was looked at, and does not open its name again.

Rejected: a look at the name before it is opened, because what it leads to may be another thing by
then.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from spark_upsert.errors import CorruptionError

# A terminal that is opened would become that of this process.
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
        """A name of just this file, for a library that opens by name; valid while it is open."""
        return os.fsencode(f"/dev/fd/{self.handle}")

    def read(self) -> bytes:
        """Return its contents, no more than its length; less if it was cut since."""
        pieces = []
        left = self.length
        while left and (piece := os.read(self.handle, left)):  # One call may read less.
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def map(self) -> pa.Buffer:
        """Return its contents, mapped; they stay mapped when it is closed."""
        if not self.length:
            return pa.py_buffer(b"")
        with pa.memory_map(os.fsdecode(self.path)) as mapped:
            return mapped.read_buffer()


@contextmanager
def opened_regular(path: Path) -> Iterator[RegularFile]:
    """Open a regular file for as long as the body runs.

    Raises
    ------
    CorruptionError
        There is something else at the path.
    OSError
        It cannot be opened; FileNotFoundError if there is nothing.
    """
    try:
        handle = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # A socket, or a device without a driver.
            raise not_regular(path, os.stat(path).st_mode) from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise not_regular(path, status.st_mode)
        yield RegularFile(handle, status.st_size)
    finally:
        os.close(handle)


def not_regular(path: Path, mode: int) -> CorruptionError:
    """Return the error about a thing that stands in the place of a file."""
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
    at = f"a link to {kind}" if path.is_symlink() else kind
    return CorruptionError(
        f"damaged file '{path}': expected a regular file, found {at}; it was not read.",
        hint=f"remove '{path}', and put the file that belongs there in its place, from a copy. "
        "Nothing was changed.",
        path=str(path),
    )
