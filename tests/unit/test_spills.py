"""Folders for spilled rows: where they lie, and that nothing of them stays behind."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import StorageError
from spark_upsert.store import spill
from spark_upsert.store.spill import SpillFolder

HOLDER = """
import sys
from pathlib import Path
from spark_upsert.store.spill import SpillFolder
folder = SpillFolder(Path(sys.argv[1]))
(folder.path / "rows").write_bytes(b"rows")
print(folder.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that holds a folder until its input ends, or it is killed."""
    command = [sys.executable, "-c", HOLDER, str(parent)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.mark.parametrize("given", ["", "{tmp}/none", "{tmp}/none,{tmp}/disk"])
def test_it_lies_on_sparks_disk_where_there_is_one(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("disk", "system"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", given.format(tmp=tmp_path))
    folder = SpillFolder()
    assert folder.path.parent.name == ("disk" if given.endswith("disk") else "system")
    folder.remove()


def test_it_is_removed_once_or_goes_with_its_holder(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    (folder.path / "rows").write_bytes(b"rows")
    folder.remove()
    folder.remove()
    SpillFolder(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fork_does_not_remove_it(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    child = os.fork()
    if not child:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.is_dir()


def test_what_a_killed_process_left_goes_with_the_next_folder(tmp_path: Path) -> None:
    with another_process(tmp_path) as (process, left):
        folder = SpillFolder(tmp_path)
        assert left.is_dir()
        process.kill()
        process.wait()
        assert left.is_dir()
        SpillFolder(tmp_path)
        assert not left.exists()
        assert folder.path.is_dir()


def test_folders_in_use_do_not_hide_an_abandoned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_use = [SpillFolder(tmp_path) for _ in range(70)]
    abandoned = tmp_path / "abandoned"
    abandoned.mkdir()
    listed = [*(folder.path for folder in in_use), abandoned]
    monkeypatch.setattr(spill, "_left_in", lambda parent: iter(listed))
    SpillFolder(tmp_path)
    assert not abandoned.exists()
    assert all(folder.path.is_dir() for folder in in_use)


def test_one_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    swept: list[Path] = []

    def late(handle: int, how: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].rmdir()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    folder = SpillFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder.path]
    assert swept != [folder.path]


def test_where_none_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"could not make a folder in .*none"):
        SpillFolder(tmp_path / "none")
