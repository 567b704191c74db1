"""A copy of a table, made as docs/operations.md says, while others write, merge and clean up."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from integration.pages import code_of
from spark_upsert.errors import ContentionError, DataLossError
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.table import Table
from tests.support.stores import forget_runs_and_logs
from tests.support.tables import rows_at

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
KEYS = 50


def recipe() -> str:
    """Return the commands that the page tells."""
    [commands] = code_of("docs/operations.md", "sh", runner="tests/crash/test_backup.py")
    return commands


def back_up(table: Path, copy: Path, *, tools: Path | None = None) -> None:
    """Carry out what the page says; ``tools`` are found before those of the system."""
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([*([] if tools is None else [str(tools)]), *path]),
        "table": str(table),
        "copy": str(copy),
    }
    command = ["bash", "-euc", recipe()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    # The last command checks the copy.
    assert done.returncode == 0, done.stdout + done.stderr


def put(table: Table, number: int) -> int:
    """Write an epoch whose contents follow from its number; returns its version."""
    rows = pa.table({"k": [number % KEYS, (number * 7) % KEYS], "v": [number, number]})
    commit = table.upsert(rows.slice(0, 1) if number % KEYS == (number * 7) % KEYS else rows)
    assert commit is not None
    return commit.version


class Beside:
    """What goes on while the copy is made, each in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.written: dict[int, dict[int, int]] = {}
        """The rows behind each epoch."""
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._busy = threading.Event()
        acts = (self._write, self._compact, self._clean)
        self._threads = [threading.Thread(target=self._watched, args=(act,)) for act in acts]

    def __enter__(self) -> Beside:
        for thread in self._threads:
            thread.start()
        assert self._busy.wait(240)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _watched(self, act: Callable[[Table], None]) -> None:
        try:
            act(Table.open(self.path))
        except BaseException as error:
            self.errors.append(error)
            raise

    def _write(self, table: Table) -> None:
        rows: dict[int, int] = {}
        for number in itertools.count():
            if self._stop.is_set():
                return
            try:
                version = put(table, number)
            except ContentionError:
                continue  # A vacuum without grace gave up what was staged.
            rows = {**rows, number % KEYS: number, (number * 7) % KEYS: number}
            self.written[version] = rows
            if len(self.written) == 30:
                self._busy.set()

    def _compact(self, table: Table) -> None:
        while not self._stop.is_set():
            table.compact()

    def _clean(self, table: Table) -> None:
        while not self._stop.is_set():
            table.expire(retain_versions=3, safety_ms=0)
            table.vacuum(grace_ms=1000)


@pytest.mark.slow
def test_a_copy_that_is_made_beside_writers_is_a_table(tmp_path: Path) -> None:
    original, copy = tmp_path / "table", tmp_path / "copy"
    Table.create(str(original), COLUMNS, keys=["k"])
    with Beside(original) as beside:
        first = Table.open(str(original)).log.head().version
        back_up(original, copy)
    assert beside.errors == []
    copied = Table.open(str(copy))
    version = copied.log.head().version
    assert version >= first
    epoch = max(written for written in beside.written if written <= version)
    assert rows_at(copied) == beside.written[epoch]
    assert copied.check().findings == ()
    assert copied.consumers() == []
    # Both live on, each for itself.
    for table in (copied, Table.open(str(original))):
        put(table, 10_000)
        table.compact(full=True)
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)
        forget_runs_and_logs()
        assert table.check().findings == ()


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table whose log a vacuum is going to cut."""
    folder = tmp_path_factory.mktemp("expired") / "table"
    table = Table.create(str(folder), COLUMNS, keys=["k"])
    for number in range(120):
        put(table, number)
    table.expire(retain_versions=5, safety_ms=0)
    for path in folder.rglob("*.*"):
        old_s = path.stat().st_mtime - 30 * 86_400
        os.utime(path, (old_s, old_s))
    return folder


_CP = """#!/bin/bash
# Copies as cp does, and lets a vacuum run between two copies.
echo x >> "$0.count"
if [ "$(wc -l < "$0.count")" = {turn} ]; then upsertflow vacuum "$table" > "$0.said"; fi
exec {cp} "$@"
"""


@pytest.mark.parametrize("turn", [10, 60])
@pytest.mark.sweep(1)
def test_a_log_that_is_cut_meanwhile_is_copied_whole(
    turn: int, expired: Path, tmp_path: Path
) -> None:
    original, copy, tools = tmp_path / "table", tmp_path / "copy", tmp_path / "tools"
    shutil.copytree(expired, original, copy_function=shutil.copy2)
    rows = rows_at(Table.open(str(original)))
    tools.mkdir()
    (tools / "cp").write_text(_CP.format(turn=turn, cp=shutil.which("cp")))
    (tools / "cp").chmod(0o755)
    back_up(original, copy, tools=tools)
    assert not (original / commit_path(1)).exists(), "the vacuum did cut the log"
    copied = Table.open(str(copy))
    assert rows_at(copied) == rows
    put(copied, 1000)
    assert copied.check().findings == ()


def test_a_lease_keeps_what_a_copy_needs(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), COLUMNS, keys=["k"])
    for number in range(5):
        put(table, number)
    table.hold_all("backup")
    before = {part.file.path for part in table.log.head().slices}
    table.compact(full=True)
    table.expire(retain_versions=0, safety_ms=0)
    table.vacuum(grace_ms=0)
    assert before <= {f"data/{path.name}" for path in (tmp_path / "data").iterdir()}
    table.release("backup")
    table.expire(retain_versions=0, safety_ms=0)
    table.vacuum(grace_ms=0)
    assert not before & {f"data/{path.name}" for path in (tmp_path / "data").iterdir()}
    with pytest.raises(DataLossError):
        table.hold("backup", 0)
