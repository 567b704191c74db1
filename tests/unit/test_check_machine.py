"""What a machine lacks is said in one sentence that names the remedy."""

import subprocess
import sys
import tomllib
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
        pytest.param(
            'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17, id="a release with patches"
        ),
        pytest.param('openjdk version "21" 2023-09-19', 21, id="a first release"),
        pytest.param('openjdk version "22-ea" 2024-03-19', 22, id="an early access build"),
        pytest.param('java version "1.8.0_392"', 8, id="the old numbering"),
        pytest.param('java version "11.0.2" 2019-01-15 LTS', 11, id="another vendor"),
        pytest.param(
            'Picked up JAVA_TOOL_OPTIONS: -Xmx9g\nopenjdk version "17" 2021-09-14',
            17,
            id="a line before it",
        ),
        pytest.param("Unrecognized option: -version", None, id="no version at all"),
    ],
)
def test_the_release_is_read_from_what_java_prints(output: str, release: int | None) -> None:
    assert check_machine.java_version(output) == release


def test_a_new_enough_java_is_no_problem(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.15" 2025-04-15')
    assert check_machine.java_problem({"JAVA_HOME": str(home)}) is None


def test_java_home_wins_over_the_path_as_it_does_in_spark(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    good = fake_java(tmp_path / "good", 'openjdk version "21" 2023-09-19')
    path = f"{good / 'bin'}:/usr/bin:/bin"
    assert check_machine.java_problem({"PATH": f"{path}"}) is None
    assert "is Java 8" in (check_machine.java_problem({"JAVA_HOME": str(old), "PATH": path}) or "")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"PATH": ""}, "no java on the PATH", id="no java"),
        pytest.param({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere", id="a wrong JAVA_HOME"),
    ],
)
def test_a_missing_java_is_one_sentence_with_a_remedy(
    environ: dict[str, str], expected: str
) -> None:
    problem = check_machine.java_problem(environ)
    assert problem is not None
    assert expected in problem
    assert "install" in problem or "unset" in problem
    assert "\n" not in problem


def test_a_java_that_does_not_run_is_one_sentence(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("not a program")
    assert "does not run" in (check_machine.java_problem({"JAVA_HOME": str(tmp_path)}) or "")


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (4, 0)])
def test_a_new_enough_python_is_no_problem(version: tuple[int, int]) -> None:
    assert check_machine.python_problem(version) is None


def test_an_old_python_is_told_how_to_choose_another() -> None:
    problem = check_machine.python_problem((3, 9))
    assert problem is not None
    assert "is 3.9" in problem
    assert "make PYTHON=" in problem


@pytest.mark.parametrize("version", ["4.1.1", "4.2.0", "4.3.0", "4.10.1", "5.0.0.dev1"])
def test_a_new_enough_pyspark_is_no_problem(version: str) -> None:
    assert check_machine.pyspark_problem(version) is None


@pytest.mark.parametrize("version", ["3.5.4", "4.0.0", "4.0.5"])
def test_an_old_pyspark_is_told_how_to_upgrade(version: str) -> None:
    problem = check_machine.pyspark_problem(version)
    assert problem is not None
    assert f"{version} is installed" in problem
    assert "pip install" in problem


def test_the_minimum_versions_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python, pyspark = map(
        check_machine.dotted, (check_machine.PYTHON_MIN, check_machine.PYSPARK_MIN)
    )
    assert project["requires-python"] == f">={python}"
    assert f"pyspark[sql]>={pyspark},<5" in project["optional-dependencies"]["spark"]


def test_the_program_prints_nothing_but_the_problem(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_machine.py", "--java"],
        env={"JAVA_HOME": str(fake_java(tmp_path, 'java version "1.8.0_392"'))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Spark needs Java 17 or newer")


@pytest.mark.parametrize("arguments", [(), ("--installed",)])
def test_java_is_asked_for_only_where_it_is_needed(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_machine.py", *arguments],
        env={"JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_runs_on_a_python_that_is_too_old() -> None:
    # It could not complain about such a Python if its own syntax were too new for it.
    import ast

    for file in ("tools/check_machine.py", "spark_upsert/cli/java.py"):
        ast.parse((ROOT / file).read_text(), feature_version=(3, 6))
