"""What the real Debezium writes for PostgreSQL's types, in each of its modes, and what we read.

The messages of `tests/support/debezium.py` are made by hand after Debezium's
documentation; these are its own. The table is to hold what the database answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message

from integration.queries import wait_until
from integration.servers.kafka import Broker, running_connect
from integration.servers.postgres import Postgres
from integration.test_deployment import connector
from spark_upsert.errors import DataError
from tests.support.envelopes import KAFKA, assert_sound, rows_of, write

pytestmark = pytest.mark.slow

TABLE = """
CREATE TABLE kinds (
  id BIGINT PRIMARY KEY, i INT, s SMALLINT, yes BOOLEAN, r REAL, d DOUBLE PRECISION,
  n NUMERIC(20, 4), t TEXT, c CHAR(3), u UUID, j JSONB, b BYTEA,
  day DATE, milli TIMESTAMP(3), micro TIMESTAMP(6), zoned TIMESTAMPTZ, clock TIME(6),
  any_scale NUMERIC, tags TEXT[]
);
ALTER TABLE kinds REPLICA IDENTITY FULL;
CREATE PUBLICATION kinds FOR TABLE kinds;
"""

ANSWER = """
SELECT id, i, s, yes, r::DOUBLE PRECISION AS r, d, n, t, c, u::TEXT AS u, j::TEXT AS j, b, day, milli, micro, zoned,
  (EXTRACT(EPOCH FROM clock) * 1000000)::BIGINT AS clock,
  any_scale, tags
FROM kinds ORDER BY id
"""

SCHEMA = (
    "id BIGINT, i INT, s SMALLINT, yes BOOLEAN, r FLOAT, d DOUBLE, n DECIMAL(20, 4), t STRING, "
    "c STRING, u STRING, j STRING, b BINARY, day DATE, milli TIMESTAMP_NTZ, micro TIMESTAMP_NTZ, "
    "zoned TIMESTAMP, clock BIGINT, tags ARRAY<STRING>"
)

ANY_SCALE = ", any_scale DECIMAL(38, 10)"
"""A number whose scale is its own is an object in precise messages. Those that do not say what it
means are refused where it is declared: see `test_a_scale_that_is_not_said_is_an_error`."""

# Whole milliseconds only: with `connect` Debezium cuts off the rest.
STREAMED = """
(1, 2147483647, -32768, TRUE, 0.5, 0.1, 1.5, 'Zoë', 'ab',
 '6f1c7d8e-0000-4000-8000-000000000001', '{"a": [1, null]}', '\\x00ff', '2026-02-28',
 '2026-01-02 03:04:05.678', '2026-01-02 03:04:05', '2026-01-02 03:04:05.006+02', '23:59:59.999',
 12345678901234567890.0000000001, ARRAY['a', NULL, ''])
"""
STORED = """
(2, -2147483648, 32767, FALSE, -1e30, -1e300, -9999999999999999.9999, '', '',
 '00000000-0000-0000-0000-000000000000', 'null', '', '0001-01-01',
 '1969-12-31 23:59:59.999', '1900-01-01', '1969-12-31 23:59:59+00', '00:00', -7, '{}')
"""

MODES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "described": ({"value.converter.schemas.enable": "true"}, {}),
    "bare": ({}, {"timeUnit": "micros", "timeUnit.milli": "millis", "decimalHandling": "precise"}),
    "connect": (
        {"time.precision.mode": "connect", "decimal.handling.mode": "string"},
        {"timeUnit": "millis", "decimalHandling": "string"},
    ),
    "described-connect": (
        {"time.precision.mode": "connect", "value.converter.schemas.enable": "true"},
        {},
    ),
}
"""Settings of the connector, and the options of a write that go with them."""


def prefix(mode: str) -> str:
    return f"kinds-{mode}"


def connector_in(mode: str, postgres: Postgres) -> dict[str, Any]:
    """Return a connector of this mode, with a slot and topics of its own."""
    given = connector(postgres)
    settings, _ = MODES[mode]
    own = {
        "publication.name": "kinds",
        "slot.name": f"kinds_{mode.replace('-', '_')}",
        "table.include.list": "public.kinds",
        "topic.prefix": prefix(mode),
    }
    return {"name": prefix(mode), "config": given["config"] | own | settings}


def answer(postgres: Postgres) -> list[dict[str, Any]]:
    """Return what the database holds."""
    with postgres.connect() as connection, connection.cursor() as cursor:
        cursor.execute(ANSWER)
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def as_record(message: Message) -> dict[str, Any]:
    """Return a message as Spark's source gives it."""
    assert not message.error(), message.error()
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
    }


class Topic:
    """A topic, and the table into which it is written as far as it has come."""

    def __init__(self, name: str, broker: Broker, path: Path, **options: str) -> None:
        usual = {"envelope": "debezium", "keys": "id", "valueFormat": "json"}
        self._options = {**usual, **options}
        self._path = path
        settings = {"bootstrap.servers": broker.address, "group.id": uuid4().hex}
        # A topic that is not there yet is looked for again so often.
        fresh = {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500}
        self._consumer = Consumer(settings | fresh)
        self._consumer.subscribe([name])

    def rows(self) -> list[dict[str, Any]]:
        """Write the new records; return the rows of the table."""
        messages = self._consumer.consume(100, timeout=0.5)
        new = [as_record(message) for message in messages if not message.error()]
        if new:
            write(self._path, pa.Table.from_pylist(new, schema=KAFKA), **self._options)
        rows = rows_of(self._path) if self._path.exists() else []
        return sorted(rows, key=lambda row: int(row["id"]))

    def close(self) -> None:
        self._consumer.close()


def topic_of(mode: str, broker: Broker, path: Path, **more: str) -> Topic:
    """Return the topic of a mode."""
    schema = SCHEMA if mode == "bare" else SCHEMA + ANY_SCALE
    usual = {"sequenceBy": "source.lsn", "valueSchema": schema}
    return Topic(
        f"{prefix(mode)}.public.kinds", broker, path, **{**usual, **MODES[mode][1], **more}
    )


def in_micros(rows: list[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """Return rows with times of day in microseconds: `connect` writes milliseconds."""
    factor = 1000 if "connect" in mode else 1
    return [{**r, "clock": None if r["clock"] is None else r["clock"] * factor} for r in rows]


@pytest.fixture(scope="module")
def kinds(
    broker: Broker,
    postgres: Postgres,
    spark_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Rows that Debezium reads as a snapshot, and then changes that it reads from the log."""
    with postgres.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE)
        cursor.execute(f"INSERT INTO kinds VALUES {STORED}".encode())
        cursor.execute("INSERT INTO kinds (id) VALUES (3)")
    connectors = [connector_in(mode, postgres) for mode in MODES]
    folder = tmp_path_factory.mktemp("connect") / "own"
    with running_connect(folder, spark_environ, broker, *connectors):
        with postgres.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO kinds VALUES {STREAMED}".encode())
            cursor.execute("INSERT INTO kinds SELECT id + 10, i FROM kinds WHERE id = 2")
            cursor.execute("UPDATE kinds SET id = id + 10 WHERE id = 12")
            cursor.execute("UPDATE kinds SET yes = NOT yes, t = t || '!' WHERE id = 2")
            cursor.execute("INSERT INTO kinds (id) VALUES (4)")
            cursor.execute("DELETE FROM kinds WHERE id = 4")
        yield answer(postgres)


@pytest.mark.parametrize("mode", MODES)
def test_a_table_holds_what_the_database_does(
    kinds: list[dict[str, Any]], broker: Broker, mode: str, tmp_path: Path
) -> None:
    topic = topic_of(mode, broker, tmp_path / "table")
    try:
        # The last change of each row has come.
        last = [(1, "Zoë"), (2, "!"), (3, None), (22, None)]
        wait_until(
            lambda: [(row["id"], row["t"]) for row in topic.rows()] == last,
            "the topic has been read",
        )
        answer = kinds
        if mode == "bare":
            answer = [{n: v for n, v in row.items() if n != "any_scale"} for row in kinds]
        assert in_micros(topic.rows(), mode) == answer
    finally:
        topic.close()
    assert_sound(tmp_path / "table")


@pytest.mark.usefixtures("kinds")
def test_a_scale_that_is_not_said_is_an_error(broker: Broker, tmp_path: Path) -> None:
    topic = topic_of("bare", broker, tmp_path / "table", valueSchema=SCHEMA + ANY_SCALE)

    def is_refused() -> bool:
        try:
            topic.rows()
        except DataError as error:
            return "after.any_scale" in str(error)
        return False

    try:
        wait_until(is_refused, "the first of them has come")
        # Rows without such a number are sound, and can come first: the topic has three partitions.
        written = rows_of(tmp_path / "table") if (tmp_path / "table").exists() else []
        assert all(row["any_scale"] is None for row in written)
    finally:
        topic.close()
