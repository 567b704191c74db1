"""The servers of the tests: they answer, they can be killed, and nothing of them is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from integration.queries import wait_until
from integration.servers import install, server
from integration.servers.guard import session
from integration.servers.postgres import Postgres
from integration.servers.server import (
    Image,
    Process,
    Program,
    Server,
    docker_answers,
    free_port,
    running,
)
from spark_upsert.store.open import open_store
from tests.support.engine import Engine, running_engine
from tests.support.s3 import S3

pytestmark = pytest.mark.slow

LISTENER = """
import os, socket, subprocess, sys
port = int(sys.argv[1])
# A child in a group of its own, as Python's workers are.
child = subprocess.Popen(["sleep", "600"], process_group=0)
with socket.create_server(("127.0.0.1", port)) as listening:
    print("listens", flush=True)
    while True:
        listening.accept()[0].close()
"""


def listener(folder: Path, port: int, *code: str) -> Program:
    """Return a small server."""
    return Program(
        name="the listener",
        log=folder / "log",
        command=lambda: [sys.executable, "-c", *(code or (LISTENER,)), str(port)],
    )


def session_of(running: Server) -> int:
    assert isinstance(running, Process)
    assert running._guard is not None
    return running._guard.pid


def is_free(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_server_is_gone_with_all_that_it_started(tmp_path: Path) -> None:
    port = free_port()
    with running(listener(tmp_path, port)) as process:
        process.wait_for_port(port)
        leader = session_of(process)
        assert len(session(leader)) == 3  # The guard, the server and its child.
    assert is_free(port)
    assert session(leader) == set()


def test_a_server_is_gone_when_a_test_fails(tmp_path: Path) -> None:
    port = free_port()

    def fail() -> None:
        with running(listener(tmp_path, port)) as process:
            process.wait_for_port(port)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert is_free(port)


def test_a_server_is_gone_when_the_test_run_is_killed(tmp_path: Path) -> None:
    port = free_port()
    code = (
        "import os, signal, sys, pathlib; from integration.test_servers import listener, session_of;"
        "from integration.servers.server import Process;"
        "folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2]);"
        "process = Process(listener(folder, port)); process.start(); process.wait_for_port(port);"
        "print(session_of(process), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(port)],
        env=environ,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -9
    leader = int(done.stdout)
    wait_until(lambda: not session(leader), "the server is gone")


def test_a_killed_server_comes_back_on_its_port(tmp_path: Path) -> None:
    port = free_port()
    with running(listener(tmp_path, port)) as process:
        process.wait_for_port(port)
        process.kill()
        assert not process.is_alive()
        assert is_free(port)
        process.start()
        process.wait_for_port(port)


def test_a_server_that_does_not_start_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    program = listener(tmp_path, 1, "raise SystemExit('no room for a server')")
    with pytest.raises(pytest.fail.Exception, match="no room for a server"):  # noqa: SIM117
        with running(program) as process:
            process.wait_for_port(free_port())


def test_a_missing_tool_is_a_failure_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "HOME", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match=r"no `go` on the PATH.*apt install golang"):
        install.go_program("server", "example.com/server", "v1")
    with pytest.raises(pytest.fail.Exception, match=r"no `mvn` on the PATH.*apt install maven"):
        install.jars("server", ["org.example:server:1"])


def test_what_could_not_be_fetched_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "HOME", tmp_path / "home")
    tool = tmp_path / "go"
    tool.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(pytest.fail.Exception, match="could not fetch server-v1:\nno such module"):
        install.go_program("server", "example.com/server", "v1")
    assert list((tmp_path / "home").iterdir()) == []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that testcontainers finds."""
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)
    with running_engine("example/server:1") as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        monkeypatch.delenv(server.DOCKER, raising=False)
        monkeypatch.setattr(server, "docker_answers", docker_answers.__wrapped__)
        yield engine


def contained(folder: Path, image: str = "example/server:1") -> Program:
    """Return a server whose process would fail, and whose container does not."""
    return Program(
        name="the server",
        log=folder / "log",
        command=lambda: pytest.fail("a process is started"),
        image=Image(name=image, command=["serve", "--well"], environ={"A": "1"}, folders=[folder]),
    )


def test_an_engine_that_answers_gets_the_server(engine: Engine, tmp_path: Path) -> None:
    with running(contained(tmp_path)) as container:
        assert container.is_alive()
        assert "its last words" in container.last_words
        container.kill()
        assert not container.is_alive()
        container.start()
        assert container.is_alive()
    assert engine.status == "removed"
    [created] = engine.created
    host = created["HostConfig"]
    assert (created["Entrypoint"], created["Cmd"]) == (["serve"], ["--well"])
    assert (created["Env"], host["NetworkMode"], host["PidMode"]) == (["A=1"], "host", "host")
    assert created["User"] == f"{os.getuid()}:{os.getgid()}"
    assert host["Binds"] == [f"{tmp_path}:{tmp_path}:rw"]


def test_an_image_that_cannot_be_had_is_a_failure_that_says_so(
    engine: Engine, tmp_path: Path
) -> None:
    problem = "could not start the server from the image none/such:1; UPSERTFLOW_TEST_DOCKER=0"
    with pytest.raises(pytest.fail.Exception, match=problem):  # noqa: SIM117
        with running(contained(tmp_path, "none/such:1")):
            pass
    assert engine.created == []


def test_an_engine_can_be_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.docker_answers() is True
    monkeypatch.setenv(server.DOCKER, "0")
    assert server.docker_answers() is False


def test_no_engine_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{free_port()}")
    assert docker_answers.__wrapped__() is False


def test_postgres_decodes_what_is_committed(postgres: Postgres) -> None:
    with postgres.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        connection.execute("INSERT INTO t VALUES (1), (2)")
        query = (
            "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'p')"
        )
        kinds = [row[0][:1] for row in connection.execute(query)]
    assert kinds == [b"B", b"R", b"I", b"I", b"C"]


def test_of_many_threads_one_creates_each_object_of_the_gateway(gateway: S3) -> None:
    url = f"s3://{gateway.new_bucket()}/table"

    def create(writer: int) -> list[tuple[int, int]]:
        store = open_store(url, gateway.storage)
        return [(k, writer) for k in range(50) if store.put_if_absent(f"o/{k}", b"%d" % writer)]

    with ThreadPoolExecutor(8) as pool:
        made = [one for each in pool.map(create, range(8)) for one in each]
    assert Counter(key for key, _ in made) == dict.fromkeys(range(50), 1)
    store = open_store(url, gateway.storage)
    assert all(store.read(f"o/{key}") == b"%d" % writer for key, writer in made)


FETCHING = """
import sys
from pathlib import Path
from integration.servers import install

install.HOME = Path(sys.argv[1])
found = install.fetched("it-1", "sh", "-", "-c", "echo made >> ../count; echo x > {}/it", files={})
assert (found / "it").read_text() == "x\\n"
"""


def test_what_several_processes_need_is_fetched_by_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FETCHING, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "made\n"
