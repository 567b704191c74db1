"""`upsertflow init`: what it writes and leaves alone; its project without Java, as users run it."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from integration.pages import code_of
from spark_upsert.cli.commands import KINDS, upsertflow
from spark_upsert.cli.doctor import requirement
from tests.support.projects import HOME, made


def init(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, ["init", *arguments])


def test_every_project_that_is_there_can_be_written() -> None:
    assert {each.name for each in HOME.iterdir() if each.is_dir()} == {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_whole(kind: str, tmp_path: Path) -> None:
    done = init(kind, str(tmp_path / "own"), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    found = {
        path.relative_to(tmp_path / "own").as_posix()
        for path in (tmp_path / "own").rglob("*")
        if path.is_file()
    }
    assert found == {*told["files"]}
    assert {"Makefile", "README.md", "requirements.txt", ".gitignore"} <= found
    assert [name for name in found if name.startswith("test_")]
    assert not [name for name in found if "__pycache__" in name or name.startswith("lake/")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_installs_this_very_package(kind: str, tmp_path: Path) -> None:
    init(kind, str(tmp_path))
    (line,) = [
        line
        for line in (tmp_path / "requirements.txt").read_text().splitlines()
        if line.startswith("upsertflow")
    ]
    extras = line.partition("[")[2].partition("]")[0]
    assert line == requirement(extras)


@pytest.mark.parametrize("kind", KINDS)
def test_all_else_is_as_it_stands(kind: str, tmp_path: Path) -> None:
    init(kind, str(tmp_path))
    own = f"{tmp_path}/lake"
    changed = set()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        name = path.relative_to(tmp_path).as_posix()
        if path.read_text() != (HOME / kind / name).read_text():
            changed.add(name)
            assert name == "requirements.txt" or path.read_text().count(own) == 1
    paths = {"spark-pipeline.yml", "transformations/orders.py"} if kind == "pipelines" else set()
    assert changed == {"requirements.txt"} | paths


def test_the_targets_that_are_told_are_there(tmp_path: Path) -> None:
    for kind in KINDS:
        shown = init(kind, str(tmp_path / kind)).stdout
        makefile = (tmp_path / kind / "Makefile").read_text()
        for line in shown.splitlines():
            if line.startswith("  make "):
                assert f"\n{line.split()[1]}:" in makefile


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    done = init("polars", str(tmp_path))
    assert done.exit_code == 2
    assert "Nothing is overwritten" in done.stderr
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("README.md", "mine")]


@pytest.mark.parametrize("is_there", [False, True], ids=["a new folder", "an empty folder"])
def test_a_fault_at_any_file_leaves_nothing_and_may_be_repeated(
    tmp_path: Path, is_there: bool
) -> None:
    write, own = Path.write_text, tmp_path / "own"
    count = len(json.loads(init("kafka", str(tmp_path / "whole"), "--json").stdout)["files"])
    if is_there:
        own.mkdir()
    for fault in range(count):
        left = iter(range(fault))

        def full(path: Path, *given: Any, left: Iterator[int] = left, **how: Any) -> int:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, *given, **how)

        with patch.object(Path, "write_text", full):
            done = init("kafka", str(own))
        assert done.exit_code == 1
        assert f"could not write '{own}/" in done.stderr
        assert "Hint: " in done.stderr
        assert own.exists() == is_there
        assert not is_there or not any(own.iterdir())
    assert init("kafka", str(own)).exit_code == 0


@pytest.mark.slow
def test_the_page_without_java_is_followed_word_for_word(tmp_path: Path) -> None:
    (page,) = code_of("docs/kafka.md", "sh", runner="tests/unit/test_projects.py")
    at, said = tmp_path, ""
    for line in page.splitlines():
        match shlex.split(line, comments=True):
            case ["upsertflow", "init", kind, name]:
                assert init(kind, str(at / name)).exit_code == 0
            case ["cd", name]:
                at /= name
            case ["make", target]:  # What is to be installed is installed.
                said += made(at, target)
            case other:
                pytest.fail(f"not known: {other}")
    assert "4 passed" in said
    assert "2 new files, version 2" in said
    assert "530" in said
    assert "0 new files, version 2" in made(at, "run"), "no file counts twice"


@pytest.mark.slow
def test_a_project_that_is_broken_fails_its_own_tests(tmp_path: Path) -> None:
    init("polars", str(tmp_path))
    job = tmp_path / "job.py"
    job.write_text(job.read_text().replace(', sequence_by=["at"]', ""))
    with pytest.raises(subprocess.CalledProcessError):
        made(tmp_path, "test")
