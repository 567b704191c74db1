"""A MariaDB server with a binary log in the row format, as Debezium's connector reads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from integration.servers.install import debian_program
from integration.servers.server import Program, Server, free_port, running

SETTINGS = {
    "bind-address": "127.0.0.1",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "character-set-server": "utf8mb4",
    "server-id": "1",
    "skip-name-resolve": "ON",
    # Its data is not needed after a power cut.
    "innodb-flush-log-at-trx-commit": "0",
}

SYSTEM_TABLES = ("m*_system_tables.sql", "m*_system_tables_data.sql")
"""The statements of `mariadb-install-db`, which needs programs of another package."""


@dataclass
class MariaDB:
    """A running server with the database `shop`, and a superuser without a password."""

    port: int
    folder: Path
    binlog: str = "mysql-bin"
    """The base name of its binary log."""
    host: str = "127.0.0.1"
    user: str = "root"
    database: str = "shop"
    server: Server | None = None

    def run(self, *statements: str, database: str | None = "shop") -> list[tuple[Any, ...]]:
        """Run statements in one session, each in a transaction of its own unless they begin one.

        Returns the rows of the last statement.
        """
        connection = pymysql.connect(
            host=self.host, port=self.port, user=self.user, database=database, autocommit=True
        )
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def restart(self, binlog: str) -> None:
        """Start it again, with another base name for the log that it continues."""
        assert self.server is not None
        self.server.stop()
        self.binlog = binlog
        self.server.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers."""
        assert self.server is not None
        self.server.wait_until(self._ask)

    def _ask(self) -> None:
        try:
            self.run("SELECT 1", database=None)
        except pymysql.OperationalError as error:
            raise OSError(str(error)) from error

    def command(self) -> list[str]:
        """Return the command that makes the system tables, if there are none, and starts."""
        program = debian_program(("mariadbd", "mysqld"), "mariadb-server-core")
        data, boot = self.folder / "data", self.folder / "boot.sql"
        if not data.exists():
            data.mkdir()
            scripts = [next(Path("/usr/share").glob(f"m*/{name}")) for name in SYSTEM_TABLES]
            create = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
            boot.write_text(create + "".join(script.read_text() for script in scripts))
        usual = ["--no-defaults", f"--datadir={data}"]
        usual += ["--user=root"] if os.getuid() == 0 else []
        settings = {
            **SETTINGS,
            "port": str(self.port),
            "socket": str(self.folder / "socket"),
            "pid-file": str(self.folder / "pid"),
            "log-bin": str(data / self.binlog),
            # One index for all base names, so that readers continue in the files of the next one.
            "log-bin-index": str(data / "log.index"),
        }
        start = [str(program), *usual, *(f"--{name}={value}" for name, value in settings.items())]
        make = f"test -d {data}/mysql || {program} {' '.join(usual)} --bootstrap < {boot}"
        return ["sh", "-c", f'({make}) && exec "$@"', "sh", *start]


@contextmanager
def running_mariadb() -> Iterator[MariaDB]:
    """Start a server with an empty database."""
    with tempfile.TemporaryDirectory(prefix="upsertflow-mariadb-") as name:
        mariadb = MariaDB(free_port(), Path(name))
        program = Program(
            name="MariaDB", log=mariadb.folder / "mariadb.log", command=mariadb.command
        )
        with running(program) as server:
            mariadb.server = server
            mariadb.wait()
            mariadb.run("CREATE DATABASE shop", database=None)
            yield mariadb
