"""What `make` runs, seen by programs that only write down how they were called."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = ("make", "sh", "awk", "cat")
"""The programs that a recipe may find beside those of the environment."""


class Machine:
    """A machine with Python and a complete environment, but without Java."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self.path = folder / "path"
        self.path.mkdir()
        for name in SYSTEM:
            program = shutil.which(name)
            assert program is not None, f"this test needs {name}"
            (self.path / name).symlink_to(program)
        (self.path / "python3.11").symlink_to(sys.executable)
        self.environment = folder / "environment"
        (self.environment / "bin").mkdir(parents=True)
        for name in ("python", "ruff", "mypy", "pyright"):
            self.replace(name)
        (self.environment / ".installed").touch()

    def replace(self, name: str, *, status: int = 0) -> None:
        """Let a program of the environment do nothing but write down its arguments."""
        program = self.environment / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.calls}"\nexit {status}\n')
        program.chmod(0o755)

    def add_java(self) -> None:
        """Add a Java that says it is new enough."""
        java = self.path / "java"
        java.write_text("#!/bin/sh\necho 'openjdk version \"17\"' >&2\n")
        java.chmod(0o755)

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `make` with this environment, and with some variables more."""
        return subprocess.run(
            ["make", f"VENV={self.environment}", *arguments],
            cwd=ROOT,
            env={"PATH": str(self.path), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def called(self) -> list[str]:
        """Return the calls so far, each with its arguments."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def call_of_pytest(machine: Machine) -> str:
    """Return the one call that runs tests; others run beside it."""
    [call] = [call for call in machine.called() if call.startswith("python -m pytest")]
    return call


def test_a_check_needs_no_java_and_runs_every_tool(machine: Machine) -> None:
    done = machine.make("check")
    assert (done.returncode, done.stderr) == (0, "")
    tools = [" ".join(call.split()[:3]) for call in machine.called()]
    assert tools[:2] == ["ruff check .", "ruff format --check"]
    # Side by side.
    assert sorted(tools[2:]) == ["mypy spark_upsert datasource", "python -m pytest"]


@pytest.mark.parametrize("target", ["demo", "test", "bench", "chaos"])
@pytest.mark.sweep(2)
def test_what_starts_spark_asks_for_java_first(machine: Machine, target: str) -> None:
    done = machine.make(target)
    assert done.returncode != 0
    assert "Spark needs Java" in done.stderr
    assert machine.called() == []


def test_all_tests_run_side_by_side_unless_somebody_wants_one_after_the_other(
    machine: Machine,
) -> None:
    machine.add_java()
    assert machine.make("test").returncode == 0
    assert machine.make("test", "ARGS=-n0 -k name").returncode == 0
    assert machine.make("test-all").returncode == 0
    quick, chosen, complete = machine.called()
    assert complete == "python -m pytest -n 3 --dist loadfile"
    assert quick == f"{complete} -m not slow"
    assert chosen == f"{quick} -n0 -k name"


def test_what_python_compiles_is_kept(machine: Machine) -> None:
    python = machine.environment / "bin" / "python"
    python.write_text('#!/bin/sh\necho "compiled: ${PYTHONDONTWRITEBYTECODE-kept}"\n')
    machine.add_java()
    done = machine.make("test", PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout == "compiled: kept\n"


@pytest.mark.parametrize(
    ("target", "tool"),
    [
        ("check", "ruff"),
        ("check", "mypy"),
        ("check", "python"),
        ("lint", "mypy"),
        ("lint", "pyright"),
    ],
)
def test_a_target_fails_with_each_of_its_tools(machine: Machine, target: str, tool: str) -> None:
    assert machine.make(target).returncode == 0
    machine.replace(tool, status=1)
    assert machine.make(target).returncode != 0


def test_the_tests_of_a_check_start_no_spark(machine: Machine) -> None:
    machine.make("check")
    call = call_of_pytest(machine)
    assert "-m not slow and not spark" in call
    # The fixtures that start Spark are those of `integration`.
    folders = [word for word in call.split() if word.startswith(("tests", "integration"))]
    assert folders
    assert all((ROOT / folder).exists() for folder in folders)
    assert "integration" not in call


def test_tests_can_be_chosen(machine: Machine) -> None:
    machine.make("check", "ARGS=-k name -x")
    assert call_of_pytest(machine).endswith(" -k name -x")


def test_the_help_names_each_target(machine: Machine) -> None:
    lines = machine.make("help").stdout.splitlines()
    named = [line.split()[1] for line in lines]
    targets = (ROOT / "Makefile").read_text().split(".PHONY:")[1].splitlines()[0].split()
    assert sorted([*named, "machine"]) == sorted(targets)
