"""`upsertflow demo`: what it shows is right, what it says to type works; it overwrites nothing."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli import demo
from spark_upsert.cli.commands import upsertflow
from spark_upsert.store import local


def run(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, list(arguments))


def lines(folder: Path) -> list[dict[str, Any]]:
    result = run("demo", str(folder), "--rows", "1000", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_table_shows_the_claim_and_other_engines_find_the_same_sum(tmp_path: Path) -> None:
    *steps, last = lines(tmp_path / "demo")
    assert last["is_right"]
    assert last["path"] == str(tmp_path / "demo" / "orders")
    assert last["seconds"] >= sum(step["seconds"] for step in steps)
    table, changes, before = (step["rows"] for step in steps[3:6])
    assert [(row["order_id"], row["amount"]) for row in table] == [(7, 500), (9, 9)]
    kinds = sorted((row["order_id"], row["amount"], row["_diff"]) for row in changes)
    assert kinds == [(7, 7, -1), (7, 500, 1), (8, 8, -1)]
    assert [(row["order_id"], row["amount"]) for row in before] == [(7, 7), (8, 8), (9, 9)]
    titles = [step["title"] for step in steps]
    [total] = {title.rpartition(": ")[2] for title in titles if "The sum of amount" in title}
    sums = [title for title in titles if title.startswith(("Polars reads", "DuckDB reads"))]
    assert [title.rpartition(": ")[2] for title in sums] == [total.rstrip(".")] * 2


def test_what_is_to_be_typed_next_can_be_typed(tmp_path: Path) -> None:
    place = tmp_path / "a folder with spaces"
    shown = run("demo", str(place), "--rows", "10").stdout
    commands = [line.partition("#")[0] for line in shown.splitlines() if "  upsertflow " in line]
    assert len(commands) >= 3
    for command in commands:
        _, *arguments = shlex.split(command)
        if str(place / "orders") in arguments:
            done = run(*arguments)
            assert done.exit_code == 0, done.output


def test_engines_that_are_missing_or_cannot_read_the_table_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *steps, last = lines(tmp_path / "a space")
    assert last["is_right"]
    assert "Polars cannot read the Delta table: " in " ".join(step["title"] for step in steps)
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    *steps, last = lines(tmp_path / "demo")
    assert last["is_right"]
    shown = " ".join(step["title"] for step in steps)
    assert "pip install polars deltalake" in shown
    assert "pip install duckdb" in shown


def test_a_sum_that_is_wrong_is_shown_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_sum_changes", lambda _: 0)
    result = run("demo", str(tmp_path), "--rows", "10")
    assert result.exit_code == 1
    assert "WRONG: The sum of amount is" in result.stdout


def test_files_that_are_there_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = run("demo", str(tmp_path))
    assert result.exit_code == 2
    assert "'mine'" in result.stderr
    assert "Nothing is overwritten" in result.stderr
    result = run("demo", str(tmp_path / "mine"))
    assert result.exit_code == 2
    assert "found the file" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


class FullAt:
    """The module ``os``, on whose disk so many files get their place, and no more."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __getattr__(self, name: str) -> Any:
        return self.fsync if name == "fsync" else getattr(os, name)

    def fsync(self, handle: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_disk_that_is_full_at_any_file_leaves_nothing_and_it_may_be_typed_again(
    is_there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = tmp_path / "demo"
    full = 0
    while True:
        disk = FullAt(full)
        if is_there:
            own.mkdir(exist_ok=True)
        with monkeypatch.context() as patched:
            patched.setattr(local, "os", disk)
            done = run("demo", str(own), "--rows", "10")
        if disk.left >= 0:
            break
        full += 1
        if done.exit_code == 0:
            # A checksum, which only spares readers of its mirror some work, may be missing.
            assert ".crc" in caplog.text or "_delta_log/.tmp" in caplog.text
            caplog.clear()
            shutil.rmtree(own)
            continue
        assert done.exit_code == 1, full
        assert "Hint: make room there, then try again" in done.stderr
        assert own.exists() == is_there
        assert not is_there or not any(own.iterdir())
    assert full > 10, "the disk was full at each of its files"
    assert done.exit_code == 0


def test_a_temporary_folder_does_not_stay_where_the_demo_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(local, "os", FullAt(3))
        assert run("demo", "--rows", "10").exit_code == 1
    assert not list(tmp_path.glob("upsertflow-demo-*"))
