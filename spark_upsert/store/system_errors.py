"""Errors of the operating system, translated for their caller: the only place that reads errno.

Every `OSError` of a local store becomes a `StorageError` that names the path and the remedy,
but one: `FileNotFoundError` of a read, which is often an answer and not a failure.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_upsert.errors import StorageError

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
    """Turn what the system refuses into advice.

    Parameters
    ----------
    verb : str
        What is tried, for the message; a ``read`` is told of absence as such.
    path : pathlib.Path
        What it is tried on.
    """
    try:
        yield
    except OSError as error:
        # A file that is read may be absent; where one is written, its folder went away.
        if isinstance(error, StorageError) or (
            isinstance(error, FileNotFoundError) and verb == "read"
        ):
            raise
        raise _storage_error(error, f"could not {verb} '{path}'", _advice(error)) from error


@contextmanager
def links_required(path: Path) -> Iterator[None]:
    """Say of a file system that it has no hard links, by which versions are created."""
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
    said = error.strerror or str(error) or type(error).__name__
    return StorageError(f"{tried}: {said}.", hint=hint, errno=error.errno)


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
