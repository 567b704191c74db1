"""A Kafka broker of one node, Spark's jars for it, and Debezium beside it on Kafka Connect."""

from __future__ import annotations

import functools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from integration.servers.install import jars
from integration.servers.server import Image, Program, Server, free_port, running

VERSION = "4.1.1"
LOGGER = "org.slf4j:slf4j-simple:1.7.36"
BROKER = (f"org.apache.kafka:kafka_2.13:{VERSION}", LOGGER)
CONNECT = (
    f"org.apache.kafka:connect-runtime:{VERSION}",
    f"org.apache.kafka:connect-json:{VERSION}",
    "io.debezium:debezium-connector-postgres:3.3.1.Final",
    LOGGER,
)
CONNECT_MARIADB = (
    *CONNECT[:2],
    # Debezium's connector for MySQL runs against a MariaDB, too, but loses a row when it restarts.
    "io.debezium:debezium-connector-mariadb:3.5.0.Final",
    LOGGER,
)
CONNECTOR = (
    # The newest connector that is published works on newer Sparks; and so its parts do on it.
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)

HEAP = "512m"


def java(heap: str = HEAP) -> list[str]:
    """Return the command of a Java that is short-lived.

    What the second compiler would gain is never earned back.
    """
    return [
        *("java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    ]


PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
num.partitions=3
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"

WORKER = """\
bootstrap.servers={broker}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=500
listeners=http://127.0.0.1:{port}
plugin.discovery=service_load
plugin.path={folder}/no-plugins
"""


def broker_jars() -> list[Path]:
    """Return the class path of the broker."""
    return jars("kafka", BROKER)


def connect_jars() -> list[Path]:
    """Return the class path of Kafka Connect with Debezium's connector for PostgreSQL."""
    return jars("kafka-connect", CONNECT)


def connect_mariadb_jars() -> list[Path]:
    """Return the class path of Kafka Connect with Debezium's connector for MariaDB."""
    return jars("kafka-connect-mariadb", CONNECT_MARIADB)


def spark_jars() -> list[Path]:
    """Return what Spark needs to read and write topics."""
    return jars("spark-kafka", CONNECTOR, transitive=False)


def _class_path(found: Sequence[Path]) -> str:
    return ":".join(map(str, found))


@dataclass(frozen=True)
class Broker:
    """A broker, and what a test may do to it."""

    port: int
    server: Server

    @property
    def address(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def restart(self) -> None:
        """Kill it, and start it again on what it has written."""
        self.server.kill()
        self.server.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers."""
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self.server.wait_until(lambda: self._ask(client))

    def _ask(self, client: AdminClient) -> None:
        try:
            client.list_topics(timeout=1)
        except KafkaException as error:
            raise OSError(str(error)) from error


@contextmanager
def running_broker(
    folder: Path,
    environ: Mapping[str, str],
    *,
    heap: str = HEAP,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """Start a broker that keeps its files in a folder.

    Parameters
    ----------
    folder : Path
    environ : mapping of str to str
    heap : str
        Of its Java, as `-Xmx` takes it.
    settings : mapping of str to str, optional
        Further lines of its properties.
    """
    folder.mkdir(parents=True)
    port, controller = free_port(), free_port()
    properties = folder / "server.properties"
    lines = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    text = PROPERTIES.format(port=port, controller=controller, folder=folder)
    properties.write_text(text + lines)

    def script(storage: str, server: str) -> list[str]:
        """Return the command, from the two programs that a start consists of."""
        is_formatted = f"test -e {folder}/data/meta.properties"
        form = f"{storage} format -t {CLUSTER_ID} -c {properties}"
        return ["sh", "-c", f"({is_formatted} || {form}) && exec {server} {properties}"]

    def command() -> list[str]:
        program = " ".join([*java(heap), "-cp", _class_path(broker_jars())])
        return script(f"{program} kafka.tools.StorageTool", f"{program} kafka.Kafka")

    tools = "/opt/kafka/bin"
    program = Program(
        name="the Kafka broker",
        log=folder / "broker.log",
        command=command,
        environ=environ,
        image=Image(
            name=f"apache/kafka:{VERSION}",
            command=script(f"{tools}/kafka-storage.sh", f"{tools}/kafka-server-start.sh"),
            environ={"LOG_DIR": str(folder / "logs"), "KAFKA_HEAP_OPTS": f"-Xmx{heap}"},
            folders=[folder],
        ),
    )
    with running(program) as server:
        broker = Broker(port, server)
        broker.wait()
        yield broker


@dataclass(frozen=True)
class Connect:
    """Kafka Connect with some connectors: reads databases, writes topics."""

    port: int
    names: Sequence[str]
    server: Server

    def kill(self) -> None:
        """Kill it. What it has read since it last noted its position, it reads again."""
        self.server.kill()

    def start(self) -> None:
        """Start it where it was."""
        self.server.start()
        self.wait()

    def wait(self) -> None:
        """Wait until the connectors run."""
        for name in self.names:
            self.server.wait_until(functools.partial(self._ask, name))

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of a connector; an OSError if there is none yet."""
        url = f"http://127.0.0.1:{self.port}/connectors/{name}/status"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                status: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            raise OSError(str(error)) from error
        return status

    def _ask(self, name: str) -> None:
        status = self.status(name)
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        if "FAILED" in states:
            pytest.fail(f"the connector failed: {status}")
        if len(states) < 2 or set(states) != {"RUNNING"}:
            raise OSError(f"the connector does not run yet: {states}")


@contextmanager
def running_connect(
    folder: Path,
    environ: Mapping[str, str],
    broker: Broker,
    *connectors: Mapping[str, Any],
    jars: Callable[[], Sequence[Path]] = connect_jars,
) -> Iterator[Connect]:
    """Start Kafka Connect with connectors. Of this one there is no container: it is a client."""
    folder.mkdir(parents=True)
    port = free_port()
    worker = folder / "worker.properties"
    worker.write_text(WORKER.format(broker=broker.address, folder=folder, port=port))
    (folder / "no-plugins").mkdir()
    files = [folder / f"{connector['name']}.json" for connector in connectors]
    for file, connector in zip(files, connectors, strict=True):
        file.write_text(json.dumps(connector))

    def command() -> list[str]:
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        return [*java(), "-cp", _class_path(jars()), main, str(worker), *map(str, files)]

    program = Program(
        name="Kafka Connect", log=folder / "connect.log", command=command, environ=environ
    )
    with running(program) as server:
        connect = Connect(port, [connector["name"] for connector in connectors], server)
        connect.wait()
        yield connect
