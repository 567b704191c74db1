"""A server: where it runs, how it starts, dies and comes back."""

from __future__ import annotations

import functools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.servers import guard

START_SECONDS = 90
"""What does not answer by then hangs. A bound for the failing case, not an expectation."""

STOP_SECONDS = 20
"""Servers whose data are not needed any more are killed then."""

PORTS = 20_000, 32_000
_ANY = random.SystemRandom()
"""Two lanes whose tests begin with the same seed must not choose the same ports."""

ENGINE_SECONDS = 3
DOCKER = "UPSERTFLOW_TEST_DOCKER"
"""Environment variable: `0` runs processes although a Docker engine answers."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """How the same server runs in a container, in the network of this machine."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()
    """Folders of this machine that it sees under the same paths."""
    own_user: bool = False
    """Whether the image chooses its user; else it is ours, which can remove what it writes."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a server is, in either place."""

    name: str
    log: Path
    command: Callable[[], Sequence[str]]
    """Gives the command of the process; installs it, so it is asked only if it is needed."""
    image: Image | None = None
    """Without one it is a process in either case."""
    environ: Mapping[str, str] | None = None
    user: str = ""
    """Whose rights the process gets, if not ours."""


class Server(ABC):
    """A program that can be started again and again."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """Kill it and all that it started, at once."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and leave nothing behind."""

    @abstractmethod
    def is_alive(self) -> bool: ...

    @property
    def last_words(self) -> str:
        """The end of its log."""
        log = self.program.log
        return log.read_text(errors="replace")[-3000:] if log.exists() else "(it said nothing)"

    def wait_until(self, answers: Callable[[], Any]) -> None:
        """Wait until it answers; an OSError says that it does not yet."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            if not self.is_alive():
                pytest.fail(f"{self.program.name} ended:\n{self.last_words}")
            try:
                answers()
            except OSError:
                if time.monotonic() > deadline:
                    pytest.fail(f"{self.program.name} does not answer:\n{self.last_words}")
                time.sleep(0.05)
            else:
                return

    def wait_for_port(self, port: int) -> None:
        """Wait until it listens."""
        self.wait_until(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close())


class Process(Server):
    """A server of this machine, in a session of its own."""

    _guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = self.program
        command = list(map(str, program.command()))
        with program.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-P", guard.__file__, program.user, *command],
                cwd="/",
                env=None if program.environ is None else dict(program.environ),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def is_alive(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def _end(self, first: signal.Signals) -> None:
        if self._guard is None:
            return
        deadline = time.monotonic() + STOP_SECONDS
        number = first
        while members := guard.session(self._guard.pid):
            for pid in members - {self._guard.pid}:
                guard.send(pid, number)
            if members == {self._guard.pid} or number is signal.SIGKILL:
                guard.send(self._guard.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            # Also collects the guard, whose entry would stay in the list of processes.
            self._guard.poll()
            time.sleep(0.02)
        self._guard.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard = None


class Container(Server):
    """A server in a container that shares this machine's network and sees its own folders."""

    _container: Any = None

    def start(self) -> None:
        if self._container is not None:
            self._container.get_wrapped_container().start()
            return
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer

        image = self.program.image
        assert image is not None
        program, *arguments = map(str, image.command)
        container = DockerContainer(image.name).with_command(arguments)
        user = {} if image.own_user else {"user": f"{os.getuid()}:{os.getgid()}"}
        # `ps` and `kill` of this machine reach what runs there.
        container.with_kwargs(network_mode="host", pid_mode="host", entrypoint=[program], **user)
        for name, value in image.environ.items():
            container.with_env(name, value)
        for folder in image.folders:
            container.with_volume_mapping(str(folder), str(folder), "rw")
        try:
            self._container = container.start()
        except DockerException as error:
            pytest.fail(
                f"Docker could not start {self.program.name} from the image {image.name}; "
                f"{DOCKER}=0 runs it as a process of this machine instead: {error}",
                pytrace=False,
            )

    def kill(self) -> None:
        if self.is_alive():
            self._container.get_wrapped_container().kill()

    def stop(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None

    def is_alive(self) -> bool:
        if self._container is None:
            return False
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return bool(wrapped.status in {"created", "running"})

    @property
    def last_words(self) -> str:
        if self._container is None:
            return "(it is not there)"
        return b"".join(self._container.get_logs()).decode(errors="replace")[-3000:]


@functools.cache
def docker_answers() -> bool:
    """Return whether containers can be started."""
    if os.environ.get(DOCKER) == "0":
        return False
    # Elsewhere, because the client leaves its socket open if no server answers.
    ping = f"import docker; docker.from_env(timeout={ENGINE_SECONDS}).ping()"
    done = subprocess.run([sys.executable, "-P", "-c", ping], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def running(program: Program) -> Iterator[Server]:
    """Start a server, and leave nothing of it behind."""
    in_container = program.image is not None and docker_answers()
    server = Container(program) if in_container else Process(program)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """Return a port of loopback on which no server listens.

    Below those that a system gives to clients: a client that waits for a server to come back may
    get the server's own port, and is then connected with itself.
    """
    while True:
        port = _ANY.randrange(*PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
