"""Projects of `upsertflow init` that start a Spark: their own tests, and their jobs as users run them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from integration.queries import wait_until
from integration.servers.kafka import (
    CONNECT,
    CONNECTOR,
    VERSION,
    Broker,
    running_connect,
    spark_jars,
)
from integration.servers.postgres import RELEASE, Postgres
from spark_upsert.cli.commands import write_project
from spark_upsert.table.table import Table
from tests.support.projects import made

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def environ(spark_environ: dict[str, str]) -> dict[str, str]:
    """An environment in which a project has its own settings."""
    return {name: value for name, value in spark_environ.items() if name != "SPARK_CONF_DIR"}


def amounts(table: Path) -> dict[int, int]:
    return {row["order_id"]: row["amount"] for row in Table.open(str(table)).snapshot().to_pylist()}


def test_files_pass_their_tests_and_run_twice(tmp_path: Path, environ: dict[str, str]) -> None:
    project = tmp_path / "a project"
    write_project("files", project)
    assert "1 passed" in made(project, "test", environ=environ)
    for _ in range(2):
        made(project, "run", environ=environ)
        assert amounts(project / "lake" / "orders") == {1: 500, 3: 30}
        assert Table.open(str(project / "lake" / "orders")).log.head().version == 0


def written(kind: str, project: Path) -> Path:
    """Write a project that reads Kafka, with the connector's jars from where the tests have them."""
    write_project(kind, project)
    conf = project / "conf" / "spark-defaults.conf"
    text = conf.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("spark.jars.packages")]
    assert line.split()[1] == CONNECTOR[0], "the one that is tried"
    conf.write_text(text.replace(line, f"spark.jars {','.join(map(str, spark_jars()))}"))
    return project


def rows(table: Path, *names: str) -> list[tuple[object, ...]]:
    found = Table.open(str(table)).snapshot(columns=names).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_a_topic_of_a_real_broker_becomes_a_table(
    broker: Broker, tmp_path: Path, environ: dict[str, str]
) -> None:
    project = written("kafka", tmp_path / "project")
    assert "1 passed" in made(project, "test", environ=environ)
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for line in (project / "records.txt").read_text().splitlines():
        key, value = line.split("\t")
        producer.produce("customers", key=key, value=None if value == "NULL" else value)
    producer.flush()
    table = project / "lake" / "customers"
    for _ in range(2):
        shown = made(project, "run", environ=environ, SERVERS=broker.address)
        assert rows(table, "id", "name", "city") == [(1, "Ada", "Paris")]
        assert "Paris" in shown
    assert Table.open(str(table)).log.head().version == 0, "a second run has nothing to add"


def end_of(broker: Broker, topic: str) -> int:
    """Return the number of records of a topic."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "none"})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, n)) for n in partitions]
        return sum(high for _, high in ends)
    finally:
        consumer.close()


def test_a_real_database_becomes_a_table(
    broker: Broker, postgres: Postgres, tmp_path: Path, environ: dict[str, str]
) -> None:
    project = written("debezium", tmp_path / "project")
    assert "1 passed" in made(project, "test", environ=environ)
    connector = json.loads((project / "connector.json").read_text())
    address = {"database.hostname": postgres.host, "database.port": str(postgres.port)}
    connector["config"] |= address | {"database.user": postgres.user}
    question = "SELECT id, customer, amount, due FROM orders ORDER BY id"
    with postgres.connect(autocommit=True) as database:
        database.execute((project / "orders.sql").read_bytes())
        with running_connect(tmp_path / "connect", environ, broker, connector):
            # Three rows; then an update, a delete with its tombstone, and an insert.
            for changes, end in ((b"SELECT 1", 3), ((project / "changes.sql").read_bytes(), 7)):
                database.execute(changes)
                wait_until(lambda end=end: end_of(broker, "shop.public.orders") == end, f"{end}")
                made(project, "run", environ=environ, SERVERS=broker.address)
                found = rows(project / "lake" / "orders", "id", "customer", "amount", "due")
                assert found == database.execute(question).fetchall()
    assert len(found) == 3


def is_docker_there() -> bool:
    """Return whether Docker answers."""
    docker = shutil.which("docker")
    command = [docker or "false", "info"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["kafka", "debezium"])
def test_the_servers_of_a_project_are_those_that_are_tried(kind: str, tmp_path: Path) -> None:
    write_project(kind, tmp_path)
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    images = {name: service["image"] for name, service in services.items()}
    assert images.pop("kafka") == f"apache/kafka:{VERSION}"
    assert images.pop("postgres", f"postgres:{RELEASE}") == f"postgres:{RELEASE}"
    (debezium,) = [each for each in CONNECT if "debezium" in each]
    minor = ".".join(debezium.rpartition(":")[2].split(".")[:2])
    assert images in ({}, {"connect": f"quay.io/debezium/connect:{minor}"})
    if is_docker_there():  # Else the tests above stand for it, with servers as processes.
        made(tmp_path, "up", "down")
