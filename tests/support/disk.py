"""A disk that forgets what was not synced.

`LocalStore` works on a real folder; this module stands between it and the system calls that
change something, counts them as steps (see `tests.support.stores.Steps`) and keeps a second
picture of the disk: what is certain to survive a power loss. Of a file, that is what it held
at its last ``fsync``; of a folder, the names that it had at its last ``fsync``.

What a power loss leaves is between two extremes, and code must be right in both:

- `Loss.ALL`: nothing survives that was not synced;
- `Loss.CONTENTS`: all names survive, but files that were not synced are empty.

Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import patch

from spark_upsert.store import local
from tests.support.stores import Steps

_open = open
_mkdir = Path.mkdir
_unlink = Path.unlink


class Loss(Enum):
    """What a power loss takes."""

    ALL = "all that was not synced"
    CONTENTS = "only the contents that were not synced"


class Disk:
    """A real folder, and what of it would survive."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.steps = Steps()
        self._written: dict[int, bytearray] = {}
        self._synced: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._folders: set[int] = {root.stat().st_ino}

    # -- system calls ----------------------------------------------------------------

    @contextmanager
    def traced(self, steps: Steps) -> Iterator[None]:
        """Count and record what `spark_upsert.store.local` does."""
        self.steps = steps
        disk = self

        def mkdir(path: Path, *args: Any, **how: Any) -> None:
            with disk.steps.step(f"mkdir {path.name}"):
                made = not path.exists()
                _mkdir(path, *args, **how)
                if made and path.exists():
                    disk._folders.add(path.stat().st_ino)
                    disk._names[path.stat().st_ino] = {}

        def unlink(path: Path, missing_ok: bool = False) -> None:
            with disk.steps.step(f"unlink {path.name}"):
                _unlink(path, missing_ok=missing_ok)

        with (
            patch.object(local, "os", _System(self)),
            patch.object(local, "open", self._open, create=True),
            patch.object(Path, "mkdir", mkdir),
            patch.object(Path, "unlink", unlink),
        ):
            yield

    def _open(self, path: Path, mode: str, *, buffering: int = -1) -> _File:
        assert mode == "xb", f"unknown mode {mode}"
        with self.steps.step(f"create {path.name}"):
            _open(path, mode).close()
            number = path.stat().st_ino
            self._written[number] = bytearray()
            self._synced.pop(number, None)
        return _File(self, _open(path, "wb", buffering=buffering), path.name)

    def write(self, handle: int, data: bytes) -> None:
        """Record what was written to a file."""
        self._written[os.fstat(handle).st_ino] += data

    def sync(self, handle: int) -> None:
        """Record that a file or folder is durable as it is."""
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode) and status.st_ino not in self._folders:
            return  # Above the disk.
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {
                name: os.stat(name, dir_fd=handle).st_ino for name in os.listdir(handle)
            }
        else:
            self._synced[status.st_ino] = bytes(self._written[status.st_ino])

    # -- power loss ------------------------------------------------------------------

    def lose_power(self, target: Path, loss: Loss) -> Path:
        """Write what survives into a fresh folder; returns it."""
        if loss is Loss.ALL:
            self._restore(self.root.stat().st_ino, target)
        else:
            self._restore_names(self.root, target)
        return target

    def _restore(self, folder: int, target: Path) -> None:
        target.mkdir()
        for name, number in self._names.get(folder, {}).items():
            if number in self._folders:
                self._restore(number, target / name)
            else:
                (target / name).write_bytes(self._synced.get(number, b""))

    def _restore_names(self, source: Path, target: Path) -> None:
        target.mkdir()
        for path in source.iterdir():
            if path.is_dir():
                self._restore_names(path, target / path.name)
            else:
                survived = self._synced.get(path.stat().st_ino, b"")
                (target / path.name).write_bytes(survived)


class _System:
    """The module ``os``, with the calls that change something as steps."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, handle: int) -> None:
        with self._disk.steps.step("fsync"):
            self._disk.sync(handle)

    def link(self, source: Path, target: Path) -> None:
        with self._disk.steps.step(f"link {target.name}"):
            os.link(source, target)

    def unlink(self, path: Path) -> None:
        with self._disk.steps.step(f"unlink {path.name}"):
            os.unlink(path)

    def replace(self, source: Path, target: Path) -> None:
        with self._disk.steps.step(f"replace {target.name}"):
            os.replace(source, target)


class _File:
    """An unbuffered file whose writes are steps."""

    def __init__(self, disk: Disk, file: Any, name: str) -> None:
        self._disk = disk
        self._file = file
        self._name = name

    def write(self, data: bytes) -> int:
        with self._disk.steps.step(f"write {self._name}"):
            count: int = self._file.write(data)
            self._disk.write(self._file.fileno(), bytes(data[:count]))
        return count

    def fileno(self) -> int:
        return int(self._file.fileno())

    def close(self) -> None:
        self._file.close()
