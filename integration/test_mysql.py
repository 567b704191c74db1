"""MariaDB, Debezium's connector and Kafka, into tables that equal the database.

The order is the one of the pages for MySQL. The binlog rotates, also from number 999999 on, and goes
on under another base name. `UPSERTFLOW_FLOW_ROUNDS` is how often the longer part goes around.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from integration.environ import from_checkout
from integration.mysql_changes import SOURCES, Source, transaction
from integration.program import Program
from integration.promises import assert_sound, canonical, counters_of
from integration.queries import wait_until
from integration.servers.kafka import Broker, Connect, connect_mariadb_jars, running_connect
from integration.servers.mariadb import MariaDB, running_mariadb
from integration.test_debezium_types import Topic
from spark_upsert.errors import TableNotFoundError
from spark_upsert.table.table import Table
from tests.support.envelopes import assert_sound as assert_changes_fold

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("UPSERTFLOW_FLOW_ROUNDS", "1"))
TRANSACTIONS = 60
"""From one thing that is done to the pipeline to the next."""

ORDER = "source.file,source.pos,source.row"
MODULE = "integration.debezium_flow"
FLOW, MINIMAL = "flow", "minimal"
PATTERN = rf"{FLOW}\.shop\..*"
LOOK_SECONDS = 0.5

KINDS = """
CREATE TABLE kinds (
  id BIGINT PRIMARY KEY, i INT, u INT UNSIGNED, large BIGINT UNSIGNED, s SMALLINT, tiny TINYINT(1),
  yes BIT(1), bits BIT(9), r FLOAT, d DOUBLE, n DECIMAL(20, 4), t VARCHAR(20), e ENUM('a', 'b'),
  st SET('x', 'y'), j JSON, b BLOB, day DATE, milli DATETIME(3), micro DATETIME(6),
  zoned TIMESTAMP(6) NULL, clock TIME(6), y YEAR
)
"""

SCHEMA = (
    "id BIGINT, i INT, u BIGINT, large DECIMAL(20, 0), s SMALLINT, tiny INT, yes BOOLEAN, "
    "bits BINARY, r FLOAT, d DOUBLE, n DECIMAL(20, 4), t STRING, e STRING, st STRING, j STRING, "
    "b BINARY, day DATE, milli TIMESTAMP_NTZ, micro TIMESTAMP_NTZ, zoned TIMESTAMP, clock BIGINT, "
    "y INT"
)

# Whole milliseconds only: with `connect` Debezium cuts off the rest.
SNAPSHOT = """
(1, 2147483647, 4294967295, 18446744073709551615, -32768, 1, b'1', b'100000101', 0.5, 0.1, 1.5,
 'Zoë', 'a', 'x,y', '{"a": [1, null]}', x'00ff', '2026-02-28', '2026-01-02 03:04:05.678',
 '2026-01-02 03:04:05', '2026-01-02 03:04:05.006', '23:59:59.999', 2026)
"""
STREAMED = """
(2, -2147483648, 0, 9223372036854775808, 32767, 0, b'0', b'0', -1024, -1e300,
 -9999999999999999.9999, '', 'b', '', 'null', '', '1000-01-01', '1969-12-31 23:59:59.999',
 '9999-12-31', '1970-01-01 00:00:01', '00:00', 1901)
"""

MICROS = {"timeUnit": "micros", "timeUnit.milli": "millis"}
MODES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "described": ({"value.converter.schemas.enable": "true"}, {}),
    "bare": ({}, {**MICROS, "decimalHandling": "precise"}),
    "connect": (
        {"time.precision.mode": "connect", "decimal.handling.mode": "string"},
        {"timeUnit": "millis", "decimalHandling": "string"},
    ),
}
"""Settings of the connector, and the options of a write that go with them."""


@dataclass
class Pipeline:
    """The database, and Kafka Connect with a connector for each mode."""

    mariadb: MariaDB
    connect: Connect


def connector(name: str, number: int, mariadb: MariaDB, folder: Path, **settings: str) -> Any:
    """Return a connector with topics, a place in the log and a history of schemas of its own."""
    config = {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": "1",
        "database.hostname": mariadb.host,
        "database.port": str(mariadb.port),
        "database.user": mariadb.user,
        "database.password": "",
        "database.server.id": str(1000 + number),
        "database.ssl.mode": "disable",
        "topic.prefix": name,
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / f"{name}.history"),
        "bigint.unsigned.handling.mode": "precise",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }
    return {"name": name, "config": config | settings}


@pytest.fixture(scope="module")
def pipeline(
    broker: Broker, spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Rows that the connectors read as a snapshot, and then changes that they read from the log."""
    folder = tmp_path_factory.mktemp("mysql")
    described = {"key.converter.schemas.enable": "true", "value.converter.schemas.enable": "true"}
    flow = "|".join(f"shop.{source.name}" for source in SOURCES)
    tables = {FLOW: (flow, described), MINIMAL: (f"shop.{MINIMAL}", {})}
    tables |= {f"kinds-{mode}": ("shop.kinds", settings) for mode, (settings, _) in MODES.items()}
    with running_mariadb() as mariadb:
        # The number of the first binlog: two rotations later it has seven digits.
        mariadb.run("RESET MASTER TO 999998", database=None)
        mariadb.run(
            KINDS, f"INSERT INTO kinds VALUES {SNAPSHOT}", "INSERT INTO kinds (id) VALUES (3)"
        )
        mariadb.run(f"CREATE TABLE {MINIMAL} (id BIGINT PRIMARY KEY, v VARCHAR(9), n INT)")
        mariadb.run(f"INSERT INTO {MINIMAL} VALUES (1, 'a', 1), (2, 'b', 2)")
        for source in SOURCES:
            mariadb.run(source.created())
        dice = random.Random(0)
        for _ in range(TRANSACTIONS):
            mariadb.run(*transaction(dice))
        connectors = [
            connector(name, number, mariadb, folder, **{"table.include.list": include}, **settings)
            for number, (name, (include, settings)) in enumerate(tables.items())
        ]
        with running_connect(
            folder / "connect", spark_environ, broker, *connectors, jars=connect_mariadb_jars
        ) as connect:
            # A restart of Kafka Connect does not wait for the connector that fails.
            others = [name for name in connect.names if name != MINIMAL]
            yield Pipeline(mariadb, replace(connect, names=others))


# -- types -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The rows of all types, after changes."""
    pipeline.mariadb.run(
        f"INSERT INTO kinds VALUES {STREAMED}",
        "INSERT INTO kinds SELECT id + 10, i, u, large, s, tiny, yes, bits, r, d, n, t, e, st, j, b,"
        " day, milli, micro, zoned, clock, y FROM kinds WHERE id = 1",
        "FLUSH BINARY LOGS",
        "UPDATE kinds SET id = id + 10 WHERE id = 11",
        "UPDATE kinds SET tiny = 1 - tiny, t = CONCAT(t, '!') WHERE id IN (1, 2)",
        "INSERT INTO kinds (id) VALUES (4)",
        "DELETE FROM kinds WHERE id = 4",
    )
    columns = [part.split()[0] for part in SCHEMA.replace("(20, ", "(20 ").split(", ")]
    micros = "CAST(TIME_TO_SEC(clock) * 1000000 AS SIGNED) AS clock"
    expressions = ", ".join({"clock": micros, "yes": "yes + 0 AS yes"}.get(c, c) for c in columns)
    rows = pipeline.mariadb.run(f"SELECT {expressions} FROM kinds ORDER BY id")
    return [_as_table(dict(zip(columns, row, strict=True))) for row in rows]


def _as_table(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the database as the table has it."""
    if row["i"] is None:
        return row
    bits = row["bits"][::-1]  # Debezium writes the least byte first.
    zoned = row["zoned"].replace(tzinfo=UTC)
    return {**row, "yes": bool(row["yes"]), "bits": bits, "zoned": zoned}


@pytest.mark.parametrize("mode", MODES)
def test_a_table_has_the_types_of_the_database(
    kinds: list[dict[str, Any]], broker: Broker, mode: str, tmp_path: Path
) -> None:
    options = {"sequenceBy": ORDER, "valueSchema": SCHEMA, **MODES[mode][1]}
    topic = Topic(f"kinds-{mode}.shop.kinds", broker, tmp_path / "table", **options)
    try:
        last = [(1, "Zoë!"), (2, "!"), (3, None), (21, "Zoë")]
        wait_until(
            lambda: [(row["id"], row["t"]) for row in topic.rows()] == last,
            "the topic has been read",
        )
        factor = 1000 if mode == "connect" else 1
        rows = [{**r, "clock": r["clock"] and r["clock"] * factor} for r in topic.rows()]
        assert rows == kinds
    finally:
        topic.close()
    assert_changes_fold(tmp_path / "table")


# -- row images --------------------------------------------------------------------------------------


def test_minimal_row_images_stop_the_connector_and_change_no_row(
    pipeline: Pipeline, broker: Broker, tmp_path: Path
) -> None:
    options = {"sequenceBy": ORDER, "valueSchema": "id BIGINT, v STRING, n INT"}
    topic = Topic(f"{MINIMAL}.shop.{MINIMAL}", broker, tmp_path / "table", **options)
    before = [{"id": 1, "v": "a", "n": 1}, {"id": 2, "v": "b", "n": 2}]
    try:
        wait_until(lambda: topic.rows() == before, "the snapshot has been read")
        pipeline.mariadb.run(
            "SET SESSION binlog_row_image = MINIMAL", f"UPDATE {MINIMAL} SET n = 3 WHERE id = 1"
        )
        wait_until(lambda: _failure(pipeline.connect), "the connector has failed")
        assert topic.rows() == before
    finally:
        topic.close()


def _failure(connect: Connect) -> str | None:
    """Return why the connector's task has failed."""
    tasks = connect.status(MINIMAL)["tasks"]
    return next((task["trace"] for task in tasks if task["state"] == "FAILED"), None)


# -- routed tables -----------------------------------------------------------------------------------


@dataclass
class Flow:
    """The query into routed tables."""

    pipeline: Pipeline
    program: Program
    dice: random.Random

    def change(self) -> None:
        """Run transactions, with a rotation of the log in between."""
        for number in range(TRANSACTIONS):
            self.pipeline.mariadb.run(*transaction(self.dice))
            if number % (TRANSACTIONS // 3) == 1:
                self.pipeline.mariadb.run("FLUSH BINARY LOGS")

    def path(self, source: Source) -> Path:
        return self.program.folder / "lake" / f"{FLOW}.shop.{source.name}"

    def require_equal(self) -> None:
        """Wait until every table equals the one of the database."""
        for source in SOURCES:
            names = ", ".join(f"`{name}`" for name, _, _ in source.columns)
            rows = self.pipeline.mariadb.run(f"SELECT {names} FROM {source.name}")
            expected = sorted(map(canonical, rows), key=repr)
            wait_until(
                lambda source=source, expected=expected: self._rows(source) == expected,
                f"{source.name} equals the database",
                every=LOOK_SECONDS,
            )

    def _rows(self, source: Source) -> list[Any]:
        self.program.keep_running()
        try:
            rows = Table.open(str(self.path(source))).snapshot().to_pylist()
        except TableNotFoundError:
            return []
        names = [name for name, _, _ in source.columns]
        return sorted((canonical([row[name] for name in names]) for row in rows), key=repr)


@pytest.mark.spark
def test_routed_tables_equal_the_database_through_rotations_and_another_base_name(
    pipeline: Pipeline, broker: Broker, plain_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = from_checkout(plain_environ)
    mariadb = pipeline.mariadb
    query: tuple[str, ...] = (str(tmp_path), broker.address, "checkpoint", "--pattern", PATTERN)
    query += ("--option", f"sequenceBy={ORDER}")
    program = Program(tmp_path, MODULE, query, environ)
    flow = Flow(pipeline, program, random.Random(1))
    names = mariadb.binlog
    try:
        flow.require_equal()
        for number in range(ROUNDS):
            flow.change()
            flow.require_equal()
            pipeline.connect.kill()
            mariadb.restart(f"binlog{number}")
            flow.change()
            pipeline.connect.start()
            flow.change()
            # Numbers begin again at 1, and no event contains which base name is newer.
            wait_until(flow.program.failure, "the query refuses the other base name")
            failure = flow.program.failure() or ""
            names = f"{names},binlog{number}"
            assert f'"binlogNames", "{names}"' in failure, failure
            extended = (*query, "--option", f"binlogNames={names}")
            flow.program = Program(tmp_path, MODULE, extended, environ)
            flow.require_equal()
    finally:
        flow.program.kill()
    files = [row[0] for row in mariadb.run("SHOW BINARY LOGS")]
    assert "mysql-bin.1000000" in files, files
    for source in SOURCES:
        assert_sound(flow.path(source))
        counted = counters_of(flow.path(source))
        assert (counted.tied, counted.quarantined, counted.rejected, counted.late) == (0, 0, 0, 0)
        assert Table.open(str(flow.path(source))).log.head().properties["binlogNames"] == names
