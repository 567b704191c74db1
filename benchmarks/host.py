"""A contender in a process of its own, commanded through a socket.

Peers need interpreters, jars and Java machines of their own, and the memory of each is to be
seen apart. ``python -m benchmarks.host <socket>`` is the far end; `Host` is the near one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from benchmarks.measure import Sampler, cpu_seconds
from benchmarks.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 180
"""A Java machine on a busy computer takes its time; nothing takes longer than this."""


class PeerError(Exception):
    """What went wrong over there, as text."""


class Host:
    """Runs a contender elsewhere: `call` a method of it, `memory` since the last look."""

    def __init__(
        self,
        name: str,
        folder: Path,
        workload: Workload,
        *,
        python: str = sys.executable,
        jars: list[Path] | None = None,
        log: Path,
    ) -> None:
        roots = [ROOT, ROOT / "datasource", ROOT / "sink"]
        address = os.path.join(tempfile.mkdtemp(prefix="bench-"), "socket")
        folder.mkdir(parents=True, exist_ok=True)
        with Listener(address) as listener, log.open("ab") as output:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.host", address],
                stdout=output,
                stderr=output,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, roots)),
                    "PYSPARK_PYTHON": python,
                    "PYSPARK_DRIVER_PYTHON": python,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "BENCH_JARS": ",".join(map(str, jars or [])),
                },
            )
            self._connection: Connection = self._accept(listener, log)
        self._sampler = Sampler(self._process.pid)
        try:
            self.call("make", name, str(folder), workload.to_json())
        except BaseException:
            self.close()
            raise

    def _accept(self, listener: Listener, log: Path) -> Connection:
        """Wait until the far end calls, unless it has ended before."""
        listener._listener._socket.settimeout(1)  # type: ignore[attr-defined]
        for _ in range(START_SECONDS):
            try:
                return listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise PeerError(log.read_text()) from None
        self._process.kill()
        raise PeerError(f"it did not start within {START_SECONDS} s:\n{log.read_text()}")

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the contender and wait for its answer."""
        self._connection.send((method, arguments))
        good, answer = self._connection.recv()
        if not good:
            raise PeerError(answer)
        return answer

    def memory(self) -> dict[str, int]:
        """Return the peaks since the last call."""
        return self._sampler.take()

    def cpu(self) -> float:
        """Return the processor time so far, in seconds."""
        return cpu_seconds(self._process.pid)

    def close(self) -> None:
        """End the process."""
        # It is ended in any case.
        with suppress(PeerError, OSError, EOFError):
            self.call("close")
        self._connection.close()
        self._sampler.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def serve(address: str) -> None:
    """Obey until the near end hangs up."""
    from benchmarks.contenders.protocol import make

    contender: Any = None
    with Client(address) as connection:
        while True:
            try:
                method, arguments = connection.recv()
            except EOFError:
                return
            try:
                if method == "make":
                    name, folder, workload = arguments
                    contender = make(name, Path(folder), Workload(**workload))
                    answer = None
                else:
                    answer = getattr(contender, method)(*arguments)
            except Exception:  # noqa: BLE001  the near end decides what it means
                connection.send((False, traceback.format_exc()))
            else:
                connection.send((True, answer))
            if method == "close":
                return


if __name__ == "__main__":
    serve(sys.argv[1])
