"""A followed database: its tables as the server has them, and as a root has them."""

from __future__ import annotations

import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from integration.servers.postgres import Postgres
from spark_upsert.core.lsn import parse_lsn
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.replication.follower import FollowedBatch, Follower
from spark_upsert.replication.source import FollowOptions
from spark_upsert.routed.group import GroupTable
from spark_upsert.store.open import open_store
from spark_upsert.streams.planner.formats import MergedRead, batch_inputs, plan_columns
from spark_upsert.table.table import Table

Rows = list[tuple[Any, ...]]


@dataclass
class Followed:
    """A database of a server, and a root that follows it."""

    postgres: Postgres
    database: str
    root: Path
    batches: list[FollowedBatch] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.postgres.url} dbname={self.database}"

    @property
    def path(self) -> str:
        return f"{self.root}/{{_schema}}.{{_table}}"

    def sql(self) -> psycopg.Connection[Any]:
        """Return a connection in autocommit."""
        return self.postgres.connect(database=self.database, autocommit=True)

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own unless they say otherwise."""
        with self.sql() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def follower(self, **options: Any) -> Follower:
        """Return a follower with a slot named as the database."""
        return Follower(
            FollowOptions(
                routed=RoutedOptions.parse({"path": self.path}),
                **{"url": self.url, "slot": self.database, **options},
            )
        )

    def follow(self, **options: Any) -> list[FollowedBatch]:
        """Follow up to what the server has; return the batches written."""
        batches: list[FollowedBatch] = []
        self.follower(**options).run(batches.append, once=True)
        self.batches += batches
        return batches

    def line(self, *more: str) -> str:
        """Return the command line of a follower."""
        return shlex.join(["upsertflow", "follow", self.url, self.path, *more])

    def on_page(self, line: str) -> str:
        """Return a command line of a page for this database and this root."""
        line = line.replace("postgresql://repl@db/shop", f"'{self.url}'")
        return line.replace("/lake/shop", str(self.root))

    def command(self, line: str, before: str = "", *, slot: bool = True) -> list[str]:
        """Return a process's arguments for a command line, with a slot named as the database.

        ``before``: Python code that the process runs first.
        """
        code = f"{before}\nfrom spark_upsert.cli import main; main()"
        options = ["--slot", self.database] if slot else []
        return [sys.executable, "-c", code, *shlex.split(line)[1:], *options]

    def start(self, line: str, before: str = "") -> subprocess.Popen[str]:
        """Start a follower process (`command`)."""
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.Popen(
            self.command(line, before),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def source_rows(self, table: str, columns: str = "*") -> Rows:
        """Return a table's rows in the server, sorted."""
        with self.sql() as connection:
            connection.execute("SET timezone = 'UTC'")
            query = f"SELECT {columns} FROM {table}"
            return sorted(connection.execute(query.encode()).fetchall(), key=repr)

    def rows(
        self, table: str, version: int | None = None, columns: Sequence[str] | None = None
    ) -> Rows:
        """Return a table's rows below the root, sorted; columns in the order of the table."""
        found = Table(open_store(f"{self.root}/public.{table}"))
        rows = pa.table(found.scan(version=version, columns=columns)).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)

    def read(self, **options: str) -> Rows:
        """Return all tables' rows at one batch, sorted."""
        paths = {"path": str(self.root), "inputsPattern": "*", "consistent": "true"}
        plan = ReadPlan.parse({**paths, **options})
        read = MergedRead(batch_inputs(plan, plan_columns(plan)), plan.query)
        batches = [batch for work in read.splits() for batch in read.read(work)]
        rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        return sorted(rows, key=repr)

    def versions(self, batch: int) -> dict[str, int]:
        """Return each table's version that has a batch, by the table's name."""
        group = GroupTable(open_store(str(self.root))).of_batch(batch)
        members = group.members
        return {folder.removeprefix("public."): members[folder].place.version for folder in members}

    def source_of(self, batch: int) -> tuple[str, bool]:
        """Return a batch's log position, and whether it is a state of the database."""
        recorded = GroupTable(open_store(str(self.root))).of_batch(batch).batch
        assert recorded is not None
        assert recorded.source is not None
        return recorded.source.lsn, recorded.source.is_whole

    def crash(self) -> None:
        """Let the server crash and recover: all connections are lost."""
        with self.sql() as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)

    def newest_batch(self) -> int:
        """Return the number of the newest complete batch."""
        batch = GroupTable(open_store(str(self.root))).at().batch
        assert batch is not None
        assert batch.number is not None
        return batch.number


_NUMBERS = itertools.count()


@contextmanager
def own_database(postgres: Postgres, root: Path) -> Iterator[Followed]:
    """Yield a new database; its slots are dropped in the end."""
    name = f"source{next(_NUMBERS)}"
    with postgres.connect(autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    yield Followed(postgres, name, root)
    with postgres.connect(autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
            "WHERE database = %s",
            [name],
        )
    with postgres.connect(database=name, autocommit=True) as server:
        server.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = %s",
            [name],
        )


class Transfers:
    """Sessions that move amounts between accounts in several tables; the sum never changes.

    Parameters
    ----------
    followed : Followed
    tables : sequence of str
    seed : int
    """

    ACCOUNTS = 20
    BALANCE = 100

    def __init__(self, followed: Followed, tables: Sequence[str], seed: int) -> None:
        self._followed = followed
        self.tables = tables
        self.seed = seed
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.count = 0
        self.states: list[tuple[int, dict[str, Rows]]] = []
        """States of all tables, each at the first transaction that ends after a position."""

    @property
    def total(self) -> int:
        return self.ACCOUNTS * self.BALANCE * len(self.tables)

    def create(self) -> None:
        """Create the tables with their accounts."""
        for table in self.tables:
            self._followed.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, balance int, note text)",
                f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",
                # Too long for the row: what does not touch it does not send it.
                f"INSERT INTO {table} SELECT i, {self.BALANCE}, repeat('account ' || i, 300) "
                f"FROM generate_series(1, {self.ACCOUNTS}) i",
            )

    def require_sums(self, first: int) -> tuple[int, int]:
        """Hold the batches from one on, all consistent, against the server; return last and first.

        A batch ends at each of `states`.
        """
        followed = self._followed
        for table in self.tables:
            assert followed.rows(table) == followed.source_rows(table), f"seed {self.seed}"
        newest = followed.newest_batch()
        ends: list[tuple[int, dict[str, int]]] = []
        for number in range(first, newest + 1):
            versions = followed.versions(number)
            rows = [row for t in self.tables for row in followed.rows(t, versions[t])]
            text = f"batch {number} of {newest}, seed {self.seed}"
            assert sum(row[1] for row in rows) == self.total, text
            ends.append((parse_lsn(followed.source_of(number)[0]), versions))
        judged = 0
        for lsn, state in self.states:
            if lsn > ends[0][0]:  # Else it was taken before the tables had joined.
                versions = next(versions for end, versions in ends if end > lsn)
                for table, rows in state.items():
                    assert followed.rows(table, versions[table]) == rows, f"seed {self.seed}"
                judged += 1
        assert judged > 3
        return newest, first

    def __enter__(self) -> Transfers:
        for session in (*range(3), None):
            thread = threading.Thread(target=self._run, args=[session])
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _run(self, session: int | None) -> None:
        choice = random.Random(self.seed * 10 + (session or 0))
        try:
            while not self._stopping.is_set():
                try:
                    if session is None:
                        self._judge()
                    else:
                        self._connected(session, choice)
                except psycopg.OperationalError:
                    self._stopping.wait(0.1)  # The server comes back.
        except BaseException as error:  # noqa: BLE001 - raised by the test's thread
            self.errors.append(error)

    def _judge(self) -> None:
        """Take states while no transfer is under way; the batch ends there."""
        with self._followed.sql() as connection:
            while not self._stopping.wait(0.3):
                with connection.transaction():
                    names = ", ".join(self.tables)
                    connection.execute(f"LOCK TABLE {names} IN SHARE MODE".encode())
                    [lsn] = connection.execute(
                        "SELECT pg_current_wal_insert_lsn() FROM "
                        "pg_logical_emit_message(true, 'upsertflow', 'cut')"
                    ).fetchone() or [""]
                    state = {
                        table: sorted(
                            connection.execute(f"SELECT * FROM {table}".encode()).fetchall(),
                            key=repr,
                        )
                        for table in self.tables
                    }
                self.states.append((parse_lsn(lsn), state))

    def _connected(self, session: int, choice: random.Random) -> None:
        with self._followed.sql() as connection:
            if session == 1:
                connection.execute("SET synchronous_commit = off")
            while not self._stopping.wait(0.01):
                try:
                    with connection.transaction():
                        self._transfer(connection, choice)
                    self.count += 1
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    continue

    def _transfer(self, connection: psycopg.Connection[Any], choice: random.Random) -> None:
        one, other = choice.choice(self.tables), choice.choice(self.tables)
        amount = choice.randint(1, 50)

        def add(table: str, number: int) -> bool:
            statement = (
                f"UPDATE {table} SET balance = balance + {number} WHERE id = "
                f"(SELECT id FROM {table} ORDER BY random() LIMIT 1)"
            )
            return bool(connection.execute(statement.encode()).rowcount)

        if not add(one, -amount):
            raise psycopg.errors.UniqueViolation  # Try again: nothing is there.
        kind = choice.random()
        if kind < 0.15:
            # A new account; another row moves to another key.
            connection.execute(
                f"INSERT INTO {other} SELECT max(id) + 1, {amount}, 'new' FROM {other}".encode()
            )
            connection.execute(
                f"UPDATE {one} SET id = id + 1000000 WHERE id = (SELECT min(id) FROM {one})".encode()
            )
        elif kind < 0.3:
            with connection.transaction(force_rollback=True):
                add(other, 7)
            # An account is closed, and its balance moves along.
            closed = connection.execute(
                f"DELETE FROM {other} WHERE id = (SELECT max(id) FROM {other}) "
                "RETURNING balance".encode()
            ).fetchone()
            amount += 0 if closed is None else closed[0]
            connection.execute(
                f"INSERT INTO {other} VALUES ((SELECT coalesce(max(id), 0) + 1 FROM {other}), "
                f"{amount}, NULL)".encode()
            )
        elif not add(other, amount):
            raise psycopg.errors.UniqueViolation
