"""Kill a running pair of queries again and again, then see that nothing is lost or doubled.

    python integration/chaos.py --kills 200

Each round adds commands to the feed, starts `chain` in processes of its own and kills them
all, the driver, Java and the Python workers, at a random moment; with ``--executors`` it
sometimes kills one executor only, which the queries must survive. At the end the chain runs
undisturbed, and `chain.check` compares the tables with a model. With ``--publish`` the chain publishes its tables,
and their mirrors are looked at behind each kill. With ``--inputs`` the program
is `confluence`, one query over so many tables; with ``--view`` it is `kept_view`, which keeps one;
with ``--flow`` it is `two_regions`, a flow in both plans.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # Started as a program, from anywhere.

from integration import (  # noqa: E402 - needs the path
    chain,
    confluence,
    kept_view,
    publisher,
    two_regions,
)
from integration.environ import environment, from_checkout  # noqa: E402
from tests.support.model import Command  # noqa: E402

WINDOW_SECONDS = 4.0
"""From the start of the queries to the latest kill: recovery and a few micro-batches."""

COMMITS_PER_ROUND = 4
"""A program that keeps a view, runs a flow or publishes is killed behind fewer commits than these,
by `WINDOW_SECONDS` at most."""

BATCHES_PER_ROUND = 3
"""About what a round comes to do before it is killed; the last one does the rest."""

START_SECONDS = 180
"""What hangs longer than this has failed."""


@dataclass(frozen=True)
class Process:
    """A line of `ps`."""

    pid: int
    parent: int
    state: str
    command: str


def processes() -> list[Process]:
    """Return all processes that are not dead already."""
    text = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fields = (line.split(None, 3) for line in text.splitlines())
    found = [Process(int(f[0]), int(f[1]), f[2], f[3] if len(f) > 3 else "") for f in fields]
    return [process for process in found if not process.state.startswith("Z")]


def tree(root: int) -> list[Process]:
    """Return a process and its descendants, parents first. Python's workers leave the group."""
    every = processes()
    found = [process for process in every if process.pid == root]
    for process in found:
        found += [child for child in every if child.parent == process.pid]
    return found


def kill(victims: list[Process]) -> None:
    """Kill processes at once, and wait until they are gone."""
    for process in victims:
        _signal(process.pid, signal.SIGKILL)
    pids = {process.pid for process in victims}
    deadline = time.monotonic() + START_SECONDS
    while pids & {process.pid for process in processes()}:
        assert time.monotonic() < deadline, f"{pids} survive SIGKILL"
        time.sleep(0.02)


def kill_tree(root: int) -> None:
    """Kill a process and its descendants; those it makes meanwhile, too."""
    for process in tree(root):
        _signal(process.pid, signal.SIGSTOP)
    kill(tree(root))


def started(
    module: str, *arguments: str, environ: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a program of ours whose words are appended to a file; `kill_tree` ends all of it."""
    with log.open("ab") as words:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=dict(environ),
            stdout=words,
            stderr=words,
            start_new_session=True,
        )


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass
class Chaos:
    """Rounds of killing on one folder."""

    folder: Path
    seed: int
    environ: Mapping[str, str]
    master: str = "local[2]"
    connect: bool = False
    gates: bool = False
    executors: bool = False
    inputs: int = 0
    """Of the one query; 0: the chain of two."""
    merge: str = confluence.LIVE
    """How they are merged."""
    view: bool = False
    """Whether the program keeps a view."""
    flow: bool = False
    """Whether it runs a flow."""
    publish: bool = False
    """Whether the chain publishes its tables."""
    kills: int = 0
    batches: list[list[Command]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def round(self) -> str:
        """Add commands, start the program, kill it; returns what happened."""
        self._add()
        if self.view:
            kept_view.lose_a_checkpoint(self.folder, self._dice)
        with self.program() as driver:
            if self._module is not chain:
                self._add()  # Beside the query.
            delay = self._dice.uniform(0, WINDOW_SECONDS)
            if self.view or self.flow or self.publish:
                self._wait_for_commits(driver)
            try:
                code = driver.wait(timeout=delay)
            except subprocess.TimeoutExpired:
                return self._kill(driver, delay)
        assert code == 0, f"the program failed by itself:\n{self.log}"
        return "ended before it was killed"

    def _wait_for_commits(self, driver: subprocess.Popen[bytes]) -> None:
        """Let some batches end, however fast the machine is."""
        commits = self._module.commits
        wanted = commits(self.folder) + self._dice.randrange(COMMITS_PER_ROUND)
        deadline = time.monotonic() + START_SECONDS
        while commits(self.folder) < wanted and driver.poll() is None:
            assert time.monotonic() < deadline, f"no batch ends:\n{self.log}"
            time.sleep(0.02)

    @property
    def _module(self) -> ModuleType:
        if self.view or self.flow:
            return kept_view if self.view else two_regions
        return confluence if self.inputs else chain

    def _add(self) -> None:
        if self.view:
            kept_view.add_epochs(self.folder, self.seed, epochs=2)
        elif self.flow:
            two_regions.add_epochs(self.folder, self.seed, epochs=3)
        elif self.inputs:
            confluence.add_epochs(self.folder, self.seed, inputs=self.inputs, epochs=2)
        else:
            self.batches += chain.add_commands(self.folder, self.seed, batches=BATCHES_PER_ROUND)

    def _kill(self, driver: subprocess.Popen[bytes], delay: float) -> str:
        self.kills += 1
        if self.executors and self._dice.random() < 0.5:
            victims = [p for p in tree(driver.pid) if "CoarseGrainedExecutorBackend" in p.command]
            if victims:
                kill([self._dice.choice(victims)])
                return f"killed an executor after {delay:.1f} s, {self.finished(driver)}"
        kill_tree(driver.pid)
        return f"killed the driver after {delay:.1f} s{self._look_at_mirrors()}"

    def _look_at_mirrors(self) -> str:
        """Check that the mirrors of the chain are behind its tables or equal; returns how far."""
        paths = [self.folder / name for name in ("table", "copy") if self.publish]
        behind = [publisher.look(path) for path in paths if (path / "_log").exists()]
        return f", mirrors behind: {behind}" if paths else ""

    def finished(self, driver: subprocess.Popen[bytes]) -> str:
        """Wait until a driver has ended, rightly."""
        assert driver.wait(timeout=chain.END_SECONDS) == 0, f"it failed:\n{self.log}"
        return "and the queries went on"

    def finish(self) -> None:
        """Let the program run to its end."""
        with self.program() as driver:
            self.finished(driver)

    @property
    def log(self) -> str:
        """The end of what the last driver said."""
        return self._log.read_text(errors="replace")[-8000:]

    @property
    def _log(self) -> Path:
        return self.folder / "driver.log"

    @contextmanager
    def program(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the program and wait until its queries start; nothing of it is left behind."""
        mark = self.folder / "started"
        mark.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        # A relative path, which an executor must not take as relative to its own folder. The
        # server of a Connect client has another one: there a relative path means nothing.
        folder = str(self.folder) if self.connect else os.path.relpath(self.folder, ROOT)
        arguments = [folder, "--master", self.master]
        if self.inputs:
            arguments += ["--merge", self.merge]
        if self.connect:
            arguments.append("--connect")
        if self.gates:
            arguments.append("--gates")
        if self.publish:
            arguments.append("--publish")
        driver = started(self._module.__name__, *arguments, environ=self.environ, log=self._log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not mark.exists():
                assert driver.poll() is None, f"the program did not start:\n{self.log}"
                assert time.monotonic() < deadline, f"the program does not start:\n{self.log}"
                time.sleep(0.02)
            yield driver
        finally:
            kill_tree(driver.pid)
            driver.wait()

    def check(self) -> str:
        """Compare what was written with what was to be; returns how much it was."""
        if self.view:
            return kept_view.check(self.folder)
        if self.flow:
            return two_regions.check(self.folder)
        if self.inputs:
            return confluence.check(self.folder)
        chain.check(self.folder, self.batches)
        if self.publish:
            behind = [publisher.look(self.folder / name) for name in ("table", "copy")]
            assert behind == [0, 0], f"mirrors are behind at the end: {behind}"
        return f"{len(self.batches)} micro-batches, {sum(map(len, self.batches))} commands"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument(
        "--executors",
        action="store_true",
        help="run on a local cluster, and kill single executors as well",
    )
    parser.add_argument("--inputs", type=int, default=0, help="one query over so many tables")
    merges = [confluence.LIVE, *confluence.EXACT]
    parser.add_argument("--merge", choices=merges, default=confluence.LIVE, help="of the inputs")
    parser.add_argument("--view", action="store_true", help="queries that keep a view")
    parser.add_argument("--flow", action="store_true", help="a flow of two regions")
    parser.add_argument("--publish", action="store_true", help="a chain that publishes its tables")
    given = parser.parse_args()
    # A caller without more time ends the killing, behind a round, and still learns what it did.
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="upsertflow-chaos-") as folder:
        chaos = Chaos(
            Path(folder),
            seed,
            from_checkout(environment()),
            master="local-cluster[2,1,1024]" if given.executors else "local[2]",
            executors=given.executors,
            inputs=given.inputs,
            merge=given.merge,
            view=given.view,
            flow=given.flow,
            publish=given.publish,
        )
        print(f"seed {seed}, {given.kills} kills")
        while chaos.kills < given.kills and not is_over.is_set():
            what = chaos.round()
            print(f"kill {chaos.kills}/{given.kills}: {what}", flush=True)
        print(f"{chaos.kills} kills", flush=True)
        chaos.finish()
        print(f"{chaos.check()}: 0 lost, 0 doubled")


if __name__ == "__main__":
    main()
