"""A real broker, Spark's real Kafka source, and a table: keys, nulls and broken payloads end to end.

What envelopes do is tested without a broker elsewhere (`test_envelopes.py`); this one shows that
Spark's source gives what they expect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from integration.conftest import import_roots
from integration.promises import assert_sound, epochs_of
from integration.servers.kafka import Broker, spark_jars
from spark_upsert.state.manifest import Kind
from tests.support.envelopes import quarantine_of, rows_of

pytestmark = pytest.mark.spark

QUERY_SECONDS_MAX = 600

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


def key(number: int) -> str:
    return json.dumps({"k": number}).encode().hex()


def value(text: str) -> str:
    return json.dumps({"v": text}).encode().hex()


BAD, BAD_KEY = b"{".hex(), b"?".hex()


def test_a_topic_with_errors_becomes_a_table_and_a_quarantine(
    broker: Broker, tmp_path: Path, spark_environ: dict[str, str]
) -> None:
    batches = [
        [(key(k), value(f"a{k}")) for k in range(20)]
        + [(key(3), BAD), (key(4), None), (None, value("x")), (BAD_KEY, value("y"))],
        [(key(3), value("b3")), (key(5), BAD), (None, None), (key(6), "")],
        [(BAD_KEY, None), (key(6), value("c6"))],
    ]
    (tmp_path / "batches.json").write_text(json.dumps(batches))
    connector = ",".join(map(str, spark_jars()))
    roots = ":".join(map(str, import_roots()))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, connector, broker.address, str(tmp_path)],
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
