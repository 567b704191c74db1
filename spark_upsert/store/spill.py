"""Spill folders (`SpillFolder`) for rows beyond the memory limit, on Spark's local disks if any.

A lock on each folder ends with its process, so abandoned folders can be removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from spark_upsert.store.local import translated

_PREFIX = "upsertflow-spill-"

_REMOVED_MAX = 64
"""Maximum abandoned spill folders that the creation of one removes."""


class SpillFolder:
    """A spill folder, removed by `remove` or at the end of its holder or process.

    Parameters
    ----------
    parent : path or None
        The parent folder; None: one from ``SPARK_LOCAL_DIRS``, else the system's temporary folder.
    """

    def __init__(self, parent: Path | None = None) -> None:
        above = _usual_parent() if parent is None else parent
        with translated("make a folder in", above):
            self.path, lock = _create_folder(above)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        with suppress(OSError):  # Others' folders are not worth an error here.
            _sweep(above)

    def __repr__(self) -> str:
        return f"SpillFolder({str(self.path)!r})"

    def remove(self) -> None:
        """Remove the folder with its contents. Twice is harmless."""
        self._finalizer()


def _usual_parent() -> Path:
    """Return this process's share of Spark's local folders, or the system's folder."""
    folders = [Path(text) for text in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if text]
    usable = [folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)]
    # Workers are many, and Spark spreads its own files over its disks, too.
    return usable[os.getpid() % len(usable)] if usable else Path(tempfile.gettempdir())


def _create_folder(parent: Path) -> tuple[Path, int]:
    """Create a folder; return it with the lock marking it as in use."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Before it was locked, another process may have swept it.
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def _remove(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:  # A fork does not own its parent's folder.
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove at most `_REMOVED_MAX` folders whose process has ended."""
    removed = 0
    for folder in _left_in(parent):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # Removed meanwhile, or another user's.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
        if removed == _REMOVED_MAX:
            return


def _left_in(parent: Path) -> Iterator[Path]:
    with os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
