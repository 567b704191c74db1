"""A Spark standalone cluster: a master and two workers, each with room for one executor."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.servers.server import Image, Program, Server, free_port, running

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = 2
SETTINGS = ("SPARK", "PYSPARK", "PYTHONPATH")
"""Beginnings of the names of the variables that a daemon and its executors need."""

EXECUTOR = "CoarseGrainedExecutorBackend"
"""The class that an executor runs, which its command line names."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    master: Server
    workers: list[Server]


@contextmanager
def running_cluster(folder: Path, environ: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a master and its workers; an application may have one core and 1 GiB of each."""
    folder.mkdir(parents=True)
    port, host = free_port(), "127.0.0.1"
    environ = {
        **environ,
        # What is left of an application would fill the folder of the checkout otherwise.
        "SPARK_LOG_DIR": str(folder),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with ExitStack() as stack:
        arguments = ["--host", host, "--port", str(port), "--webui-port", str(free_port())]
        program = _program("master.Master", folder / "master", environ, arguments)
        master = stack.enter_context(running(program))
        master.wait_for_port(port)
        workers = []
        for number in range(WORKERS):
            own, ui = folder / f"worker-{number}", free_port()
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(own)]
            arguments = ["--host", host, *size, "--webui-port", str(ui), f"spark://{host}:{port}"]
            # By default local copies of a bucket's objects are there: each worker has its own.
            environ_of_worker = {**environ, "TMPDIR": str(own)}
            program = _program("worker.Worker", own, environ_of_worker, arguments)
            worker = stack.enter_context(running(program))
            workers.append(worker)
        yield Cluster(f"spark://{host}:{port}", master, workers)


def _program(name: str, folder: Path, environ: Mapping[str, str], arguments: list[str]) -> Program:
    """Return one of Spark's daemons; its executors run the interpreter that runs the tests."""
    folder.mkdir()
    home = Path(environ["SPARK_HOME"])
    command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    java = Path(shutil.which("java") or "java").resolve().parent.parent
    return Program(
        name=f"Spark's {name}",
        log=folder / "log",
        command=lambda: command,
        environ=environ,
        image=Image(
            # This machine's Java and Python, with all that is installed for the tests.
            name=f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm",
            command=command,
            environ={
                **{name: value for name, value in environ.items() if name.startswith(SETTINGS)},
                "JAVA_HOME": str(java),
            },
            # Tables of the tests are in the folder of temporary files.
            folders=[
                *(ROOT, Path(sys.prefix), Path(sys.base_prefix), java),
                Path(tempfile.gettempdir()),
            ],
        ),
    )
