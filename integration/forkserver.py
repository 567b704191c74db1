"""Fork Spark's Python processes from one that has loaded their modules.

Each Spark starts a Python process for each kind of work, and each of them imports PySpark, PyArrow
and this package anew: most of what such a process does in a short test. The server imports them
once. Spark is told of an interpreter (``PYSPARK_PYTHON``) that lets the server fork what Spark
wants to run, and runs itself what the server does not know (`forked`).

What is forked is no child of its Java. Programs that a test kills, with all their processes at one
moment, run another interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import marshal
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from integration.environ import ROOT, from_checkout
from integration.forked import ADDRESS, NOT_MINE

PROGRAMS = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
"""What Spark runs by ``python -m``; a daemon is told the module of its workers."""

LOADED = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pyspark_upsertflow.limited_stream_reader",
    "pyspark_upsertflow.readers",
    "pyspark_upsertflow.source",
    "pyspark_upsertflow.writers",
    "spark_upsert_sink.routed",
    "spark_upsert_sink.writers",
)

SINGLE = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Libraries that would start a thread when they are loaded: a fork would be without it."""

SEED = "PYTHONHASHSEED"
QUESTION_BYTES_MAX = 1 << 18

_SCRIPT = """#!/bin/sh
exec '{python}' -IS '{program}' "$0" "$@"
"""


@contextmanager
def running_forkserver(folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Run a server below a new folder; gives the path of its interpreter: Python's, if not Linux."""
    if sys.platform != "linux":
        yield sys.executable
        return
    folder.mkdir()
    interpreter = folder / "python"
    program = ROOT / "integration" / "forked.py"
    interpreter.write_text(_SCRIPT.format(python=sys.executable, program=program))
    interpreter.chmod(0o755)
    # It ends with its input: with this process, however that ends.
    server = subprocess.Popen(
        [sys.executable, "-m", "integration.forkserver", str(folder)],
        env=from_checkout({**environ, **SINGLE, SEED: "0"}),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield str(interpreter)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def is_known(arguments: list[str], environ: Mapping[str, str]) -> bool:
    """Return whether a command line means, in its environment, what the server has loaded."""
    paths = [Path(path) for path in _folders(environ)]
    others = [path for path in paths if path != ROOT and (path / "spark_upsert").exists()]
    zipped = [path for path in paths if path.name == "pyspark.zip" and path.exists()]
    return (
        arguments[:2] in [["-m", program] for program in PROGRAMS]
        and not others
        and not zipped
        and environ.get(SEED, "0") == "0"
    )


def _folders(environ: Mapping[str, str]) -> list[str]:
    """Return what an environment puts on the path of modules."""
    return [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _say(line: socket.socket, word: bytes) -> None:
    """Say a last word to an interpreter, which may be gone."""
    with line, contextlib.suppress(OSError):
        line.send(word)


class Server:
    """Forks what it is asked for, in one thread, and says how each fork ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._take)
        self._selector.register(0, selectors.EVENT_READ, sys.exit)

    def serve(self) -> None:
        """Answer until the input ends."""
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _take(self) -> None:
        line, _ = self._listener.accept()
        question, files, _, _ = socket.recv_fds(line, QUESTION_BYTES_MAX, 3)
        if not question:
            line.close()
            return
        arguments, folder, environ = marshal.loads(question)
        if not is_known(arguments, environ):
            _say(line, NOT_MINE)
        elif pid := os.fork():
            self._look_after(pid, line)
        else:
            line.close()
            self._become(arguments, folder, environ, files)
        for file in files:
            os.close(file)

    def _look_after(self, pid: int, line: socket.socket) -> None:
        """Tell the end of a process to its interpreter, and end it with that."""
        ended = os.pidfd_open(pid)

        def end() -> None:
            if line.fileno() != -1:
                self._selector.unregister(line)
                line.close()
                os.kill(pid, signal.SIGTERM)

        def tell() -> None:
            _, status = os.waitpid(pid, 0)
            self._selector.unregister(ended)
            os.close(ended)
            if line.fileno() != -1:
                self._selector.unregister(line)
                _say(line, str(abs(os.waitstatus_to_exitcode(status))).encode())

        self._selector.register(line, selectors.EVENT_READ, end)
        self._selector.register(ended, selectors.EVENT_READ, tell)

    def _become(
        self, arguments: list[str], folder: str, environ: dict[str, str], files: list[int]
    ) -> None:
        """Be the program, in its folder and environment; the server's own files are closed."""
        code = 1
        try:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
                else:
                    os.close(key.fd)
            self._selector.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environ)
            _, module, *rest = arguments
            sys.path[:1] = [folder, *_folders(environ)]
            sys.argv[1:] = rest
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(write_through=True)  # Spark sets PYTHONUNBUFFERED.
            sys.modules.pop(module, None)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        except BaseException:  # noqa: BLE001 - the server goes on, and this process ends.
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)


def main() -> None:
    """Load the modules, then listen in the folder that is the argument."""
    for module in LOADED:
        importlib.import_module(module)
    # What every fork has is not looked through, nor copied by that, in each of them.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.path.join(sys.argv[1], ADDRESS))
        listener.listen()
        Server(listener).serve()


if __name__ == "__main__":
    main()
