"""Tests that run side by side: what belongs together stays together, and the report is one."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import conftest

ROOT = Path(__file__).resolve().parents[2]

SPARK = """\
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def spark():
    with (Path(__file__).parent.parent / "starts").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return os.getpid()
"""

USES_SPARK = """\
def test_it(spark: int) -> None:
    assert spark

def test_it_again(spark: int) -> None:
    assert not spark, "the Spark one"
"""

QUICK = """\
def test_quick() -> None:
    pass

def test_wrong() -> None:
    assert False, "the quick one"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project with the real conftest.py: two files that share, three that do not."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    for folder in ("integration", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "integration" / "conftest.py").write_text(SPARK)
    for name in ("first", "second"):
        (tmp_path / "integration" / f"test_{name}.py").write_text(USES_SPARK)
    for name in ("one", "three", "two"):
        (tmp_path / "tests" / f"test_{name}.py").write_text(QUICK)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    return tmp_path


LANES = [*(sys.executable, "-m", "pytest", "-v"), *("-p", "xdist", "-n", "2", "--dist", "loadfile")]
# Quicker to start without hypothesis.
ENVIRONMENT = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

FAILURES = [
    "integration/test_first.py::test_it_again",
    "integration/test_second.py::test_it_again",
    "tests/test_one.py::test_wrong",
    "tests/test_three.py::test_wrong",
    "tests/test_two.py::test_wrong",
]
OF_SPARK = [
    f"integration/test_{name}.py::{test}"
    for name in ("first", "second")
    for test in ("test_it", "test_it_again")
]


@pytest.mark.slow
def test_spark_starts_once_and_the_failures_of_all_lanes_are_reported_at_the_end(
    project: Path,
) -> None:
    done = subprocess.run(
        LANES, cwd=project, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert len((project / "starts").read_text().split()) == 1
    lines = done.stdout.splitlines()
    # By the names that run them alone.
    failed = [line.split()[1] for line in lines if line.startswith("FAILED")]
    assert sorted(failed) == FAILURES
    assert "5 failed, 5 passed" in lines[-1]

    lanes: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("[gw") and "%]" in line:
            lanes.setdefault(line[:5], []).append(line.split()[-1])
    [shared] = [tests for tests in lanes.values() if OF_SPARK[0] in tests]
    assert shared[:4] == OF_SPARK
    for tests in lanes.values():
        files = [conftest.file_of(test) for test in tests]
        assert files[::2] == files[1::2], "each file has two tests"


@pytest.mark.slow
def test_an_interrupt_ends_all_lanes_of_a_run_in_the_background(project: Path) -> None:
    (project / "tests" / "test_hangs.py").write_text(
        "import os, threading\n"
        "from pathlib import Path\n"
        "def test_hangs() -> None:\n"
        "    os.write(os.open('pipe', os.O_WRONLY), f'{os.getpid()}\\n'.encode())\n"
        "    threading.Event().wait()\n"
    )
    shutil.copy(project / "tests" / "test_hangs.py", project / "tests" / "test_hangs_too.py")
    os.mkfifo(project / "pipe")
    # As a script starts what runs beside it: `make test &`.
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    # Ctrl-C goes to the group that the terminal shows.
    with subprocess.Popen(
        [*ignoring, *LANES, "-k", "hangs"],
        cwd=project,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            with (project / "pipe").open() as pipe:
                lanes = [int(pipe.readline()), int(pipe.readline())]
            assert lanes[0] != lanes[1]
            os.killpg(run.pid, signal.SIGINT)
            output, _ = run.communicate(timeout=240)
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_the_files_that_share_a_spark_are_those_that_take_it() -> None:
    shared = {
        file.name
        for file in (ROOT / "integration").glob("test_*.py")
        if conftest.lane_of(f"integration/{file.name}") == conftest.SHARED
    }
    assert {"test_batch_read.py", "test_stream_write.py", "test_types.py"} <= shared
    # These start Java themselves, or do without.
    assert shared.isdisjoint({"test_crash.py", "test_deployment.py", "test_gateway.py"})
    assert conftest.lane_of("tests/unit/test_spark_types.py") != conftest.SHARED


def test_the_longest_files_are_there_and_begin_before_all_but_those_that_share() -> None:
    for file in conftest.LONGEST:
        assert (ROOT / file).is_file()
        assert conftest.rank("integration/test_types.py") < conftest.rank(file)
        assert conftest.rank(file) < conftest.rank("integration/test_gateway.py")


def test_a_module_of_make_test_that_starts_its_own_processes_gives_the_reason() -> None:
    missing, unneeded = [], []
    for file in sorted((ROOT / "integration").glob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if re.search(r"^pytestmark = .*mark.slow", text, re.MULTILINE):
            continue
        docstring = ast.get_docstring(ast.parse(text)) or ""
        has_reason = re.search(r"^Own processes: \S", docstring, re.MULTILINE) is not None
        is_shared = conftest.lane_of(f"integration/{file.name}") == conftest.SHARED
        if not (is_shared or has_reason):
            missing.append(file.name)
        if is_shared and has_reason:
            unneeded.append(file.name)
    assert not missing, "use the fixture `spark`, or mark the module `slow`, or give the reason"
    assert not unneeded
