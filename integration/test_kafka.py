"""A real broker, Spark's real Kafka source, and a table: keys, nulls and broken payloads end to end.

What envelopes do is tested without a broker elsewhere (`test_kafka_envelope.py`); this one shows that
Spark's source gives what they expect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from integration.environ import ROOTS
from integration.promises import assert_sound, epochs_of
from integration.servers.kafka import Broker, spark_jars
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.store import LocalStore
from spark_upsert.table.log.manifest import Kind
from tests.support.envelopes import quarantine_of, rows_of
from tests.support.own_schemas import avro, record
from tests.support.registry import RegistryDouble, running_registry

pytestmark = [pytest.mark.spark, pytest.mark.slow]

QUERY_SECONDS_MAX = 600
RUNNER = "integration/test_kafka.py"
"""What the pages call this file."""

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from integration.pages import code_of

jars, servers, folder, runner, registry = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
records, table, contents = code_of("docs/kafka.md", "python", runner=runner)
names = {"spark": spark, "servers": servers, "path": f"{folder}/table"}


def produce(*records):
    for key, value in records:
        key, value = (side if side is None else bytes.fromhex(side) for side in (key, value))
        # A record without a key has no partition of its own, and no order among its like.
        where = {} if key else {"partition": 0}
        names["producer"].produce("customers", key=key, value=value, **where)
    names["producer"].flush()


def upsert(checkpoint):
    exec(table, names | {"checkpoint": f"{folder}/{checkpoint}"})
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()


exec(records, names)
upsert("checkpoint")
exec(contents, names)
shown = {name: [row.asDict() for row in names[name].collect()] for name in ("customers", "errors")}
with open(f"{folder}/shown.json", "w") as file:
    json.dump(shown, file, default=bytes.decode)
for batch in json.load(open(f"{folder}/batches.json")):
    produce(*batch)
    upsert("checkpoint")
upsert("another")

# The queries of another page, which begin with what comes after their start.
events = json.load(open(f"{folder}/events.json"))
for code in code_of("docs/envelopes.md", "python", runner=runner):
    topic = "customers" if "keySchema" in code else "shop.public.customers"
    topic = "shop.public.invoices" if "schemaRegistry" in code else topic
    key, value = map(bytes.fromhex, events[topic])
    names["producer"].produce(topic, key=key, value=value)
    names["producer"].flush()
    path = f"{folder}/{topic}"
    own = {"path": path, "checkpoint": f"{path}.checkpoint", "registry": registry, "lake": f"{folder}/topics"}
    exec(code, names | own)
    (query,) = spark.streams.active
    query.processAllAvailable()
    names["producer"].produce(topic, key=key, value=value)
    names["producer"].flush()
    query.processAllAvailable()
    query.stop()

# The topics of many tables.
routed, found = code_of("docs/routed.md", "python", runner=runner)
orders = '{"customer": 1, "amount": 30}'
names["producer"].produce("crm.customers", key='{"id": 1}', value='{"name": "Ada", "city": "Paris"}')
names["producer"].produce("crm.orders", key='{"id": 7}', value=orders)
names["producer"].flush()
exec(routed, names | {"lake": f"{folder}/lake", "checkpoint": f"{folder}/lake.checkpoint"})
(query,) = spark.streams.active
query.processAllAvailable()
query.stop()

# It begins with what comes later, and a topic of a table is parked that has no schemas.
exec(found, names | {"lake": f"{folder}/found", "checkpoint": f"{folder}/found.checkpoint"})
(query,) = spark.streams.active
query.processAllAvailable()
names["producer"].produce("shop.public.customers", key=key, value=value)
names["producer"].flush()
query.processAllAvailable()
query.stop()
spark.stop()
"""

ID = record("Key", id="long")
ROW = record("Row", id="long", total="double")
EVENT = record(
    "Envelope",
    op="string",
    before=["null", ROW],
    after=["null", "Row"],
    source=record("Source", lsn="long"),
)


def events(registry: RegistryDouble) -> dict[str, tuple[bytes, bytes]]:
    """Return what the queries of docs/envelopes.md take: a key and a value by topic."""
    text = {"name": "Ada", "address": {"city": "Paris"}, "since": "2026-01-31"}
    # 1234 as the bytes of a decimal of scale 2, and a second after 1970.
    row = {"id": 7, "name": "Ada", "balance": "BNI=", "since": 1_000_000}
    event = {"op": "c", "before": None, "source": {"lsn": 1}}
    key, value = (
        registry.register(f"shop.public.invoices-{side}", schema)
        for side, schema in (("key", ID), ("value", EVENT))
    )
    return {
        "customers": (b'{"id": 7}', json.dumps(text).encode()),
        "shop.public.customers": (b'{"id": 7}', json.dumps({**event, "after": row}).encode()),
        "shop.public.invoices": (
            avro(key, ID, {"id": 7}),
            avro(value, EVENT, {**event, "after": {"id": 7, "total": 12.5}}),
        ),
    }


def key(number: int) -> str:
    return json.dumps({"id": number}).encode().hex()


def value(text: str) -> str:
    return json.dumps({"name": text}).encode().hex()


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
    roots = ":".join(map(str, ROOTS))
    with running_registry() as registry:
        sides = {topic: [side.hex() for side in each] for topic, each in events(registry).items()}
        (tmp_path / "events.json").write_text(json.dumps(sides))
        told = (connector, broker.address, str(tmp_path), RUNNER, registry.url)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *told],
            env={**spark_environ, "PYTHONPATH": roots},
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]

    table = tmp_path / "table"
    # What the page says of its own records.
    shown = json.loads((tmp_path / "shown.json").read_text())
    assert shown["customers"] == [{"id": 1, "name": "Ada", "city": "Paris"}]
    [unread] = shown["errors"]
    assert (unread["id"], unread["_raw_value"]) == (3, '{"name": ')

    expected = {k: f"a{k}" for k in range(20)} | {3: "b3", 6: "c6"}
    del expected[4], expected[5]
    assert {row["id"]: row["name"] for row in rows_of(table)} == expected
    [error] = quarantine_of(table)
    assert (error["id"], error["_raw_value"]) == (5, b"{")
    _, first, second, third, again = epochs_of(table)
    assert [row["id"] for row in quarantine_of(table, first.version)] == [3, None, None]
    assert {row["id"] for row in quarantine_of(table, second.version)} == {5, 6, None}
    # And of another page's queries.
    [customer] = rows_of(tmp_path / "customers")
    assert customer["address"] == {"city": "Paris"}
    [customer] = rows_of(tmp_path / "shop.public.customers")
    assert (customer["name"], str(customer["balance"])) == ("Ada", "12.34")
    assert customer["since"] == datetime(1970, 1, 1, 0, 0, 1)
    assert rows_of(tmp_path / "topics" / "shop.public.invoices") == [{"id": 7, "total": 12.5}]
    for topic, held in {"customers": ("city", "Paris"), "orders": ("amount", 30)}.items():
        [row] = rows_of(tmp_path / "lake" / f"crm.{topic}")
        assert row[held[0]] == held[1]
    parked = DeadLetterTable(LocalStore(str(tmp_path / "found"))).counts()
    assert parked == {"shop.public.customers": 1}
    # A new checkpoint reads the topic from its beginning as one epoch, which changes nothing.
    assert again.kind is Kind.APPEND
    assert rows_of(table, again.version) == rows_of(table, third.version)
    assert quarantine_of(table, again.version) == quarantine_of(table, third.version)
    assert_sound(table)
