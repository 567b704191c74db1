"""What a machine lacks is said in one sentence that names the remedy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_machine

ROOT = Path(__file__).resolve().parents[2]


def fake_java(folder: Path, output: str) -> Path:
    """Make a Java home whose ``java -version`` prints `output`."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{output}\nEND\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("output", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx9g\nopenjdk version "17" 2021-09-14', 17),
        ("Unrecognized option: -version", None),
    ],
)
def test_the_release_is_read_from_what_java_prints(output: str, release: int | None) -> None:
    assert check_machine.java_version(output) == release


def test_java_home_wins_over_the_path_as_it_does_in_spark(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    good = fake_java(tmp_path / "good", 'openjdk version "21" 2023-09-19')
    path = f"{good / 'bin'}:/usr/bin:/bin"
    assert check_machine.java_problem({"PATH": path}) is None
    assert check_machine.java_problem({"JAVA_HOME": str(good)}) is None
    assert "is Java 8" in (check_machine.java_problem({"JAVA_HOME": str(old), "PATH": path}) or "")


def test_a_java_that_is_missing_or_does_not_run_is_one_sentence(tmp_path: Path) -> None:
    broken = fake_java(tmp_path, "")
    (broken / "bin" / "java").write_text("not a program")
    problems = [
        check_machine.java_problem({"PATH": ""}),
        check_machine.java_problem({"JAVA_HOME": "/nowhere"}),
        check_machine.java_problem({"JAVA_HOME": str(broken)}),
    ]
    expected = ("no java on the PATH", "JAVA_HOME is /nowhere", "does not run")
    for problem, text in zip(problems, expected, strict=True):
        assert problem is not None
        assert text in problem
        assert "\n" not in problem


def test_old_versions_of_python_and_pyspark_are_told_the_remedy() -> None:
    python = [check_machine.python_problem(version) for version in ((3, 11), (4, 0), (3, 9))]
    assert python[:2] == [None, None]
    assert "is 3.9" in str(python[2])
    assert "make PYTHON=" in str(python[2])
    for version in ("4.1.1", "4.2.0", "4.10.1", "5.0.0.dev1"):
        assert check_machine.pyspark_problem(version) is None
    for version in ("3.5.4", "4.0.5"):
        problem = str(check_machine.pyspark_problem(version))
        assert f"{version} is installed" in problem
        assert "pip install" in problem


def test_the_program_asks_for_java_only_where_it_is_needed_and_prints_one_line() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tools" / "check_machine.py"), *arguments]
        environ = {"JAVA_HOME": "/nowhere"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    done = run("--java")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "JAVA_HOME is /nowhere" in done.stderr
    assert [(done.returncode, done.stderr) for done in (run(), run("--installed"))] == [(0, "")] * 2


def test_the_program_runs_on_a_python_that_is_too_old() -> None:
    for file in ("tools/check_machine.py", "spark_upsert/cli/java.py"):
        ast.parse((ROOT / file).read_text(), feature_version=(3, 6))
