"""The tutorial, block by block, against a real PostgreSQL, Debezium and Kafka."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from integration.pages import code_of
from integration.queries import wait_until
from integration.servers.kafka import Broker, running_connect, spark_jars
from integration.servers.postgres import Postgres
from tools.stopwatch import run, steps_of, words

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = "docs/tutorial.md"
RUNNER = "integration/test_tutorial.py"

MESSAGES = {"1. A shop": 22, "5. The shop goes on": 27}
"""In all topics behind the statements of a section. A delete is two: the event, and its tombstone."""


def test_the_tutorial_is_followed(
    broker: Broker, postgres: Postgres, spark_environ: dict[str, str], tmp_path: Path
) -> None:
    own = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.sql.shuffle.partitions=2 "
        f"--jars {','.join(map(str, spark_jars()))} pyspark-shell",
    }
    environ = {**os.environ, **spark_environ, **own}
    folder = tmp_path / "reader"
    folder.mkdir()
    (config,) = code_of(PAGE, "json", runner=RUNNER)
    first, *steps = [step for step in steps_of(PAGE) if step.block.runner == RUNNER]
    execute(postgres, first.block.code)
    with running_connect(tmp_path / "connect", environ, broker, connector(config, postgres)):
        await_messages(broker, MESSAGES[first.section])
        for step in steps:
            match step.block.language:
                case "sql":
                    execute(postgres, step.block.code)
                    await_messages(broker, MESSAGES[step.section])
                case "python":
                    code = step.block.code.replace("localhost:9092", broker.address)
                    (folder / step.block.title).write_text(code, "utf-8")
                case "sh":
                    said = run(step.block, folder, environ)
                    shown = step.shown
                    assert shown is None or words(said) == words(shown), f"{step.block}:\n{said}"


def execute(postgres: Postgres, statements: str) -> None:
    """Do what a block of SQL says, as one transaction."""
    with postgres.connect() as connection:
        connection.execute(statements.encode())


def connector(text: str, postgres: Postgres) -> dict[str, Any]:
    """Return the connector of the page, with the address of a server of the test."""
    given: dict[str, Any] = json.loads(text)
    given["config"] |= {
        "database.hostname": postgres.host,
        "database.port": str(postgres.port),
        "database.user": postgres.user,
    }
    return given


def await_messages(broker: Broker, count: int) -> None:
    """Wait until the topics of the page have so many messages: then nothing more is to come."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "t", "log_level": 0})
    try:
        wait_until(lambda: messages(consumer) >= count, f"{count} messages are there", every=0.5)
        assert messages(consumer) == count
    finally:
        consumer.close()


def messages(consumer: Consumer) -> int:
    """Return how many messages the topics of the page have; -1 if the broker does not say."""
    try:
        topics = consumer.list_topics(timeout=5).topics
        partitions = [
            TopicPartition(name, number)
            for name, topic in topics.items()
            if name.startswith("shop.public.")
            for number in topic.partitions
        ]
        ends = [consumer.get_watermark_offsets(each, timeout=5) for each in partitions]
    except KafkaException:
        return -1
    return sum(high - low for low, high in ends)
