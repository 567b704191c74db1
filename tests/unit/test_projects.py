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
def test_a_project_is_whole_and_differs_in_its_requirements_and_paths_alone(
    kind: str, tmp_path: Path
) -> None:
    result = init(kind, str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    files = {
        path.relative_to(tmp_path).as_posix(): path.read_text()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert files.keys() == {*json.loads(result.stdout)["files"]}
    assert {"Makefile", "README.md", "requirements.txt", ".gitignore"} <= files.keys()
    assert [name for name in files if name.startswith("test_")]
    assert not [name for name in files if "__pycache__" in name or name.startswith("lake/")]
    changed = {name for name, text in files.items() if text != (HOME / kind / name).read_text()}
    paths = {"spark-pipeline.yml", "transformations/orders.py"} if kind == "pipelines" else set()
    assert changed == {"requirements.txt"} | paths
    assert all(files[name].count(f"{tmp_path}/lake") == 1 for name in paths)
    lines = files["requirements.txt"].splitlines()
    [line] = [line for line in lines if line.startswith("upsertflow")]
    assert line == requirement(line.partition("[")[2].partition("]")[0]), "this very package"


@pytest.mark.parametrize("kind", KINDS)
def test_the_targets_that_are_named_are_there(kind: str, tmp_path: Path) -> None:
    shown = init(kind, str(tmp_path)).stdout
    makefile = (tmp_path / "Makefile").read_text()
    for line in shown.splitlines():
        if line.startswith("  make "):
            assert f"\n{line.split()[1]}:" in makefile


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    result = init("polars", str(tmp_path))
    assert result.exit_code == 2
    assert "Nothing is overwritten" in result.stderr
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
            result = init("kafka", str(own))
        assert result.exit_code == 1
        assert f"could not write '{own}/" in result.stderr
        assert "Hint: " in result.stderr
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
