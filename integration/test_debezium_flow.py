"""Twenty tables of PostgreSQL, through Debezium and Kafka, into twenty routed ones, with a quarantine.

Their rows have all that a database has and we do not: infinite dates, years before the first, in
values and in a key. Writers insert, update, delete, change keys and roll back; columns are added and
widened; Debezium and the query are killed on the way, and all topics are read again by a second
query. Now and then the writers are stopped. Then each table is what PostgreSQL answers, and the
rows that we cannot hold are listed under their keys, and nowhere else; they come back when they are
mended.

`UPSERTFLOW_FLOW_ROUNDS` is how often that goes around: once in `make test-all`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.debezium_flow import PREFIX, SOURCES, WRITERS_LOCK, Source, changes_of
from integration.environ import from_checkout
from integration.load import Load
from integration.program import Program
from integration.promises import assert_sound, canonical, counters_of
from integration.queries import wait_until
from integration.servers.kafka import Broker, Connect, running_connect
from integration.servers.postgres import Postgres
from integration.test_deployment import connector
from spark_upsert.errors import TableNotFoundError
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = int(os.environ.get("UPSERTFLOW_FLOW_ROUNDS", "1"))
MODULE = "integration.debezium_flow"
LOOK_SECONDS = 0.5
TRANSACTIONS = 60
"""From one thing that is done to the pipeline to the next."""

FILLING = 15
"""Rows that are put into each table before the log is read."""

Key = tuple[Any, ...]
Answer = tuple[dict[Key, Key], set[Key]]
"""The rows by their keys, and the keys of those that we cannot hold."""

UNREADABLE = ("unreadable",)
"""In place of a key that we cannot hold, followed by what tells it from others."""


@dataclass
class Flow:
    """All of it, and what it is compared with."""

    postgres: Postgres
    program: Program
    load: Load
    folder: Path

    @contextmanager
    def alone(self) -> Iterator[Any]:
        """Wait until all that writers began has ended; let none begin. Gives a cursor."""
        with self.postgres.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (WRITERS_LOCK,))
            yield cursor
        self.load.raise_failure()

    def go_on(self) -> None:
        """Let the writers write some more."""
        aim = self.load.committed + TRANSACTIONS
        wait_until(lambda: self.load.committed >= aim, "the writers have gone on")
        self.load.raise_failure()

    def require_equal(self) -> None:
        """Wait until every table is what the database answers at a locked position."""
        with self.alone() as cursor:
            for source in SOURCES:
                answer = _answer(source, cursor)
                try:
                    wait_until(
                        lambda source=source, answer=answer: self._found(source) == answer,
                        f"{source.name} is the database's own answer",
                        every=LOOK_SECONDS,
                    )
                except AssertionError as error:
                    pytest.fail(f"{error}: {_difference(self._found(source), answer)}")

    def path(self, source: Source) -> Path:
        """Return where the copy of a table is."""
        return self.folder / "lake" / f"{PREFIX}.public.{source.name}"

    def _found(self, source: Source) -> Answer:
        self.program.keep_running()
        return self.found(source)

    def found(self, source: Source) -> Answer:
        """Return what our table has, in the columns of the database."""
        try:
            table = Table.open(str(self.path(source)))
            rows = table.snapshot().to_pylist()
            errors = [row for batch in table.quarantine() for row in batch.to_pylist()]
        except TableNotFoundError:
            return {}, set()
        keys = [column.name for column in source.shape.keys]
        others = [column.name for column in source.columns if column.name not in keys]

        def key_of(row: dict[str, Any]) -> Key:
            return tuple(canonical(row[name]) for name in keys)

        found = {key_of(row): tuple(canonical(row.get(name)) for name in others) for row in rows}
        listed = [_raw_key(row["_raw_key"]) if row["_raw_key"] else key_of(row) for row in errors]
        assert len(found) == len(rows)
        raw = [row["_raw_key"] for row in errors if row["_raw_key"]]
        assert len(set(listed)) == len(listed), f"listed twice: {listed}: {raw}"
        return found, set(listed)


def _answer(source: Source, cursor: Any) -> Answer:
    """Return what the database holds."""
    cursor.execute(source.question().encode())
    count = len(source.shape.keys)
    rows, listed = {}, set()
    for *values, is_beyond in cursor.fetchall():
        row = tuple(canonical(value) for value in values)
        if not is_beyond:
            rows[row[:count]] = row[count:]
        elif None not in row[:count]:
            listed.add(row[:count])
    [column] = source.shape.keys[:1]
    if column.is_beyond != "FALSE":
        day = f"CASE WHEN isfinite({column.name}) THEN {column.name} - DATE '1970-01-01' END"
        question = f"SELECT {day} FROM {source.name} WHERE {column.is_beyond}"
        cursor.execute(question.encode())
        listed |= {(*UNREADABLE, number) for (number,) in cursor.fetchall()}
    return rows, listed


_INFINITE = 100_000_000
"""Days from 1970 that are no day of PostgreSQL. Debezium writes the infinite ones as some number."""


def _raw_key(raw: bytes) -> Key:
    """Return a key that is a day, which is none if it is infinite."""
    [number] = json.loads(raw)["payload"].values()
    return (*UNREADABLE, None if abs(number) > _INFINITE else number)


def _difference(found: Answer, answer: Answer) -> str:
    rows, listed = found
    expected, beyond = answer
    return (
        f"rows {dict(rows.items() - expected.items())} instead of "
        f"{dict(expected.items() - rows.items())}, listed {listed - beyond} instead of "
        f"{beyond - listed}"
    )


def _connector(postgres: Postgres) -> dict[str, Any]:
    given = connector(postgres)
    own = {
        "publication.name": PREFIX,
        "slot.name": PREFIX,
        "table.include.list": r"public\.t[0-9]+",
        "topic.prefix": PREFIX,
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
    }
    return {"name": PREFIX, "config": given["config"] | own}


def test_twenty_tables_are_the_database_s_own_answer(
    broker: Broker, postgres: Postgres, plain_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = from_checkout(plain_environ)
    with postgres.connect(autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET deadlock_timeout = '50ms'")
        connection.execute("SELECT pg_reload_conf()")
        for source in SOURCES:
            connection.execute(source.made().encode())
        names = ", ".join(source.name for source in SOURCES)
        connection.execute(f"CREATE PUBLICATION {PREFIX} FOR TABLE {names}".encode())
    _fill(postgres)
    told = (str(tmp_path), broker.address)
    program = Program(tmp_path, MODULE, (*told, "checkpoint"), environ)
    load = Load(postgres, seed=11, changes=changes_of(SOURCES))
    flow = Flow(postgres, program, load, tmp_path)
    try:
        with running_connect(
            tmp_path / "connect", environ, broker, _connector(postgres)
        ) as connect:
            # The snapshot alone: what a snapshot writes otherwise than the log is not in it.
            flow.require_equal()
            with load.running():
                _play(flow, connect, environ, told)
    finally:
        flow.program.kill()
    for source in SOURCES:
        assert_sound(flow.path(source))
        counted = counters_of(flow.path(source))
        assert (counted.tied, counted.rejected, counted.late) == (0, 0, 0), source.name
    assert sum(counters_of(flow.path(source)).displaced for source in SOURCES) > 0


def _play(flow: Flow, connect: Connect, environ: Mapping[str, str], told: Sequence[str]) -> None:
    """Let the database change, and each part of the pipeline fall, and compare now and then."""
    for number in range(ROUNDS):
        flow.go_on()
        with flow.alone() as cursor:
            for source in SOURCES:
                source.alter(cursor)
        flow.go_on()
        flow.program.kill()
        connect.kill()
        connect.start()
        flow.require_equal()
        flow.program.kill()
        # Another query reads all topics again, beside the rows that go on coming.
        flow.go_on()
        again = (*told, f"again {number}")
        Program(flow.folder, MODULE, (*again, "--once"), environ).finish()
        flow.program = Program(flow.folder, MODULE, again, environ)
        flow.require_equal()
    with flow.alone() as cursor:
        for source in SOURCES:
            cursor.execute(source.mended().encode())
    flow.require_equal()


def _fill(postgres: Postgres) -> None:
    """Make the rows that are there before the log is read."""
    dice = random.Random(0)
    with postgres.connect() as connection, connection.cursor() as cursor:
        for source in SOURCES:
            for _ in range(FILLING):
                source.put(cursor, dice)
            if source.shape.keys[0].is_beyond != "FALSE":
                # Debezium writes an infinite day otherwise in a snapshot than from the log: as a
                # key it would be two.
                cursor.execute(source.mended().encode())
            for column in source.shape.values:
                if column.type == "DATE":
                    # Of a day before the first year a snapshot of Debezium loses the era.
                    early = f"UPDATE {source.name} SET {column.name} = '-infinity'"
                    cursor.execute(f"{early} WHERE {column.name} < '0001-01-01'".encode())
