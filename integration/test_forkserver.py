"""What a forkserver forks is what Spark would have started, and goes when its interpreter goes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.environ import ROOT, environment
from integration.forked import ADDRESS
from integration.forkserver import is_known, running_forkserver
from integration.servers.server import START_SECONDS

pytestmark = pytest.mark.slow

DAEMON = ["-m", "pyspark.daemon", "pyspark.worker"]
PLANNER = ["-m", "pyspark.sql.streaming.python_streaming_source_runner"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("python") / "forked"
    with running_forkserver(folder, environment()) as interpreter:
        # Until the server listens, Python runs what is asked for.
        deadline = time.monotonic() + START_SECONDS
        while not answers(folder):
            assert time.monotonic() < deadline, "the server does not listen"
            os.sched_yield()
        yield interpreter


def answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        return line.connect_ex(str(folder / ADDRESS)) == 0


def started(python: str, arguments: list[str], **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, *arguments],
        env={**environment(), **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def is_forked(process: subprocess.Popen[bytes]) -> bool:
    """Return whether an interpreter waits for a fork, rather than being a Python of its own."""
    return b"forked.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes()


@pytest.mark.parametrize("by", ["a fork", "Python"])
def test_a_daemon_answers_and_ends_with_its_input(python: str, by: str) -> None:
    with started(python if by == "a fork" else sys.executable, DAEMON) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert len(daemon.stdout.read(4)) == 4, "the port"
        assert is_forked(daemon) is (by == "a fork")
        daemon.stdin.close()
        assert (daemon.wait(), daemon.stdout.read()) == (1, b""), "as PySpark's ends, if asked to"


def test_a_daemon_ends_with_its_interpreter(python: str) -> None:
    with started(python, DAEMON) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.read(4)
        daemon.kill()
        # Else this would wait for ever: the input is open, and the daemon holds its output.
        assert daemon.stdout.read() == b""


def test_an_end_and_its_words_are_those_of_the_program(python: str) -> None:
    ends = []
    for program in (python, sys.executable):
        with started(program, PLANNER) as planner:
            out, err = planner.communicate()
        ends.append((planner.returncode, out, err.splitlines()[-1]))
    assert ends[0] == ends[1] == (1, b"", ends[0][2]), "there is no Java to talk to"


def test_any_other_command_is_run_by_python(python: str) -> None:
    code = "import os, sys; print(os.environ['A'], sys.executable); sys.exit(7)"
    with started(python, ["-c", code], A="é") as program:
        out, _ = program.communicate()
    assert (program.returncode, out.decode().split()) == (7, ["é", sys.executable])


@pytest.mark.parametrize(
    ("arguments", "environ", "known"),
    [
        (DAEMON, {}, True),
        (PLANNER, {"PYTHONPATH": f"/nowhere:{ROOT}", "PYTHONHASHSEED": "0"}, True),
        (["-m", "pyspark"], {}, False),
        (["-m"], {}, False),
        (["pyspark.daemon"], {}, False),
        (DAEMON, {"PYTHONHASHSEED": "1"}, False),
        (DAEMON, {"PYTHONPATH": "other"}, False),
        (DAEMON, {"PYTHONPATH": "home/pyspark.zip"}, False),
        (DAEMON, {"PYTHONPATH": "nowhere/pyspark.zip"}, True),
    ],
)
def test_what_the_server_has_loaded_is_what_would_be_loaded(
    arguments: list[str],
    environ: dict[str, str],
    known: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other" / "spark_upsert").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "pyspark.zip").touch()
    assert is_known(arguments, environ) is known
