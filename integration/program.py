"""A program of queries in a process of its own, which a test kills and starts again."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration.chaos import kill_tree, started
from integration.queries import END_SECONDS

STARTS_MAX = 6
"""The program may fall with the broker and is started again; not for ever."""


@dataclass
class Program:
    """The queries, in a process that is started again when it ends."""

    folder: Path
    """Where its log is."""
    module: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def keep_running(self) -> None:
        """Start it unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        assert self.starts < STARTS_MAX, f"the program keeps failing:\n{self._words()}"
        self.starts += 1
        self._process = started(self.module, *self.arguments, environ=self.environ, log=self._log)

    def failure(self) -> str | None:
        """Return the end of its log if it has failed; None while it runs."""
        assert self._process is not None
        return self._words() if self._process.poll() else None

    def kill(self) -> None:
        """Kill it with its Java and its Python workers."""
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.wait()

    def finish(self) -> None:
        """Start it, and wait until it has come to its end."""
        self.keep_running()
        assert self._process is not None
        assert self._process.wait(END_SECONDS) == 0, f"the program failed:\n{self._words()}"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _words(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]
