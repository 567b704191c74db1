"""Start a reader in an environment of its own, ask it, and take its rows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from benchmarks.peers import DELTA, Environment, SetupError
from integration.servers.install import HOME, alone

ROOT = Path(__file__).resolve().parent.parent.parent

READERS = {
    "spark": DELTA,
    "duckdb": Environment(packages=("duckdb==1.5.5", "duckdb-extension-delta==1.5.5")),
    "kernel": Environment(packages=("delta-kernel-rust-sharing-wrapper==0.3.3",)),
}
"""Their programs are `by_<name>`."""


class RefusedError(Exception):
    """A reader said no; the text is what it said."""


@dataclass
class Reader:
    """A reader that runs."""

    name: str
    folder: Path
    process: subprocess.Popen[str]
    log: Path
    numbers: Iterator[int] = field(default_factory=count)

    def ask(self, kind: str, **what: Any) -> pa.Table:
        """Return rows of a reader.

        Raises
        ------
        RefusedError
            The reader refused.
        """
        to = self.folder / f"{next(self.numbers)}.arrow"
        question = {"kind": kind, "to": str(to), **what}
        self._into.write(json.dumps(question, default=str) + "\n")
        self._into.flush()
        said = self._answer()
        if "error" in said:
            raise RefusedError(f"{self.name}: {said['error']}")
        with pa.OSFile(str(to)) as file:
            return pa.ipc.open_file(file).read_all()

    @property
    def _into(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return dict(json.loads(line.removeprefix("ANSWER ")))
        raise AssertionError(f"{self.name} ended:\n{self.log.read_text()[-4000:]}")


@contextmanager
def running(name: str, folder: Path, environ: Mapping[str, str]) -> Iterator[Reader]:
    """Start a reader; what it lacks is fetched below ``.servers``, once."""
    environment, log = READERS[name], folder / "reader.log"
    try:
        with alone(f"reader {name}"):
            python, jars = environment.prepare(HOME / "readers")
    except SetupError as error:
        pytest.fail(f"the reader '{name}' cannot be had: {error}", pytrace=False)
    # The variables of a test's own Spark and packages mean nothing in another environment.
    own = {"SPARK_HOME", "SPARK_CONF_DIR", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    with log.open("w") as words:
        process = subprocess.Popen(
            [python, "-m", f"integration.readers.by_{name}", *map(str, jars)],
            cwd=ROOT,
            env={name: value for name, value in environ.items() if name not in own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        )
    try:
        yield Reader(name, folder, process, log)
    finally:
        # It ends with its input, and takes its Java along.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
