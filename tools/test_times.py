"""Where the time of the tests goes: a plugin of pytest, which prints it for each file (`make times`).

Processor time is that of this process and of all that it started, Java and servers included, even
where their end was not waited for. It tells more than the clock: the machine may be busy otherwise.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PR_SET_CHILD_SUBREAPER = 36
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds by the clock and of processors."""

    wall: float
    processor: float


def spent() -> Spent:
    """Return what was spent up to now, since some time in the past."""
    mine, ticks, parents = os.getpid(), {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name of a program, in brackets, may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(folder.name)
        # Its own, and of the children that it waited for.
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    below = [mine]
    for parent in below:
        below += [pid for pid, its in parents.items() if its == parent]
    return Spent(time.monotonic(), sum(ticks[pid] for pid in below) / TICKS_PER_SECOND)


class Times:
    """What each file took, on this lane or on all."""

    def __init__(self) -> None:
        self.of_files: dict[str, Spent] = {}
        self._last = spent()
        # A process that loses its parent becomes our child, so that its time is not lost.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def add(self, file: str, more: Spent) -> None:
        """Add what a file took."""
        known = self.of_files.get(file, Spent(0, 0))
        self.of_files[file] = Spent(*map(sum, zip(known, more, strict=True)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        """Look at the clocks behind the last test of a file and its fixtures."""
        done = yield
        if nextitem is None or nextitem.path != item.path:
            now = spent()
            since = Spent(*(b - a for a, b in zip(self._last, now, strict=True)))
            self.add(item.nodeid.partition("::")[0], since)
            self._last = now
        return done

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a lane's times over."""
        if hasattr(session.config, "workeroutput"):
            handed = {file: tuple(taken) for file, taken in self.of_files.items()}
            session.config.workeroutput["times"] = handed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take a lane's times."""
        for file, taken in getattr(node, "workeroutput", {}).get("times", {}).items():
            self.add(file, Spent(*taken))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, the dearest file first."""
        files = sorted(self.of_files.items(), key=lambda each: -each[1].processor)
        terminalreporter.section("seconds of processors, and by the clock")
        total = Spent(*map(sum, zip(*self.of_files.values(), strict=True))) if files else None
        for file, taken in [*files, *([("in all", total)] if total else [])]:
            terminalreporter.write_line(f"{taken.processor:8.1f} {taken.wall:8.1f}  {file}")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure."""
    config.pluginmanager.register(Times(), "test times")
