"""A real broker, Spark's real Kafka source, and a table: keys, nulls and broken payloads end to end.

The broker and Spark's connector come from Maven's central repository by `mvn`, once, into pytest's
cache. Without Maven this file is left out, and the head of the report says so: what envelopes do is
tested without a broker elsewhere (`test_envelopes.py`); this one shows that Spark's source gives what
they expect.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import import_roots
from integration.promises import assert_sound, epochs_of
from spark_upsert.state.manifest import Kind
from tests.support.envelopes import quarantine_of, rows_of

pytestmark = pytest.mark.spark

BROKER = ("org.apache.kafka:kafka_2.13:4.1.1",)
CONNECTOR = (
    # The newest connector that is published works on newer Sparks; and so its parts do on it.
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)

FETCH_SECONDS_MAX = 300
BROKER_SECONDS_MAX = 60
QUERY_SECONDS_MAX = 600

FORMAT = ("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c")

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
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""

SCRIPT = """
import json, shutil, sys
from pyspark.sql import SparkSession

jars, server, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)


def produce(*records):
    rows = [tuple(bytes.fromhex(side) if side is not None else None for side in r) for r in records]
    frame = spark.createDataFrame(rows, "key binary, value binary").coalesce(1)
    frame.write.format("kafka").option("kafka.bootstrap.servers", server).option("topic", "t").save()


def upsert(checkpoint):
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", server)
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = stream.writeStream.format("upsertflow").option("path", f"{folder}/table")
    writer = writer.option("checkpointLocation", f"{folder}/{checkpoint}").options(
        envelope="kafka",
        keyFormat="json",
        keySchema="k BIGINT",
        valueFormat="json",
        valueSchema="v STRING",
        onError="quarantine",
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


for records in json.load(open(f"{folder}/batches.json")):
    produce(*records)
    upsert("checkpoint")
upsert("another")
spark.stop()
"""


def jars(cache: pytest.Cache, coordinates: tuple[str, ...], *, transitive: bool) -> list[Path]:
    """Return jars, fetched once; the test fails if they cannot be."""
    folder = cache.mkdir(f"jars-{coordinates[0].replace(':', '-')}")
    if not (folder / "complete").exists():
        (folder / "pom.xml").write_text(pom(coordinates, transitive=transitive))
        command = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies"]
        where = [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        fetched = subprocess.run(
            [*command, *where],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
        if fetched.returncode:
            pytest.fail(f"Maven could not fetch {coordinates[0]}: {fetched.stdout[:300]}")
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


def pom(coordinates: tuple[str, ...], *, transitive: bool) -> str:
    """Return a project that depends on artifacts, and on nothing else unless they do."""
    every = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    exclusions = "" if transitive else f"<exclusions>{every}</exclusions>"
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(
            *one.split(":")
        )
        + f"{exclusions}</dependency>"
        for one in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tests</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def broker(
    request: pytest.FixtureRequest, tmp_path: Path, spark_environ: dict[str, str]
) -> Iterator[str]:
    """Start a broker of one node; gives its address."""
    classes = ":".join(map(str, jars(request.config.cache, BROKER, transitive=True)))
    port, controller = free_port(), free_port()
    properties = tmp_path / "server.properties"
    folder = tmp_path / "broker"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
    java = ["java", "-Xmx512m", "-cp", classes]
    subprocess.run(
        [*java, *FORMAT, str(properties)],
        env=spark_environ,
        check=True,
        capture_output=True,
        timeout=BROKER_SECONDS_MAX,
    )
    with (tmp_path / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], env=spark_environ, stdout=log, stderr=log
        )
    try:
        wait_for(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=BROKER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BROKER_SECONDS_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, "the broker ended before it listened"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail("the broker does not listen")


def key(number: int) -> str:
    return json.dumps({"k": number}).encode().hex()


def value(text: str) -> str:
    return json.dumps({"v": text}).encode().hex()


BAD, BAD_KEY = b"{".hex(), b"?".hex()


def test_a_topic_with_errors_becomes_a_table_and_a_quarantine(
    request: pytest.FixtureRequest, broker: str, tmp_path: Path, spark_environ: dict[str, str]
) -> None:
    batches = [
        [(key(k), value(f"a{k}")) for k in range(20)]
        + [(key(3), BAD), (key(4), None), (None, value("x")), (BAD_KEY, value("y"))],
        [(key(3), value("b3")), (key(5), BAD), (None, None), (key(6), "")],
        [(BAD_KEY, None), (key(6), value("c6"))],
    ]
    (tmp_path / "batches.json").write_text(json.dumps(batches))
    connector = jars(request.config.cache, CONNECTOR, transitive=False)
    roots = ":".join(map(str, import_roots()))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(map(str, connector)), broker, str(tmp_path)],
        env={**spark_environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=QUERY_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    table = tmp_path / "table"
    expected = {k: f"a{k}" for k in range(20)} | {3: "b3", 6: "c6"}
    del expected[4], expected[5]
    assert {row["k"]: row["v"] for row in rows_of(table)} == expected
    [error] = quarantine_of(table)
    assert (error["k"], error["_raw_value"]) == (5, b"{")
    first, second, third, again = epochs_of(table)
    assert [row["k"] for row in quarantine_of(table, first.version)] == [3, None, None]
    assert {row["k"] for row in quarantine_of(table, second.version)} == {5, 6, None}
    # A new checkpoint reads the topic from its beginning as one epoch, which changes nothing.
    assert again.kind is Kind.APPEND
    assert rows_of(table, again.version) == rows_of(table, third.version)
    assert quarantine_of(table, again.version) == quarantine_of(table, third.version)
    assert_sound(table)
