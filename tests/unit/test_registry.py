"""A schema registry: what is asked how often, what outages are, and tables by its schemas."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import urllib3

from spark_upsert.errors import DataError, OptionError, StorageError
from spark_upsert.payloads import schema_registry
from spark_upsert.payloads.avro import AvroDecoder
from spark_upsert.payloads.decoder import Unreadable
from spark_upsert.payloads.embedded_schema import ByRegistry, WriterSchema
from spark_upsert.payloads.schema_registry import (
    MISSING_MAX,
    MISSING_S,
    LookupThrottle,
    RegistrySettings,
    UnknownSchema,
    forget_schemas,
    latest_schema,
    limit_response_time,
    schema_of_id,
)
from tests.support.envelopes import reasons, records, rows_of, write, write_found
from tests.support.own_schemas import DECIMAL, avro, record
from tests.support.registry import (
    Answering,
    RegistryDouble,
    bomb,
    endless,
    framed,
    running_registry,
    slow,
    slow_headers,
)

KEY = record("Key", id="long")
ROW = record("Row", id="long", name=["null", "string"], n="int")
WIDER = record("Row", id="long", n="long", extra=["null", "boolean"])


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryDouble]:
    with running_registry() as double:
        yield double


@pytest.fixture
def registry(server: RegistryDouble) -> RegistryDouble:
    forget_schemas()
    server.asked.clear()
    server.user = None
    server.refuse_next.clear()
    server.hostile = None
    return server


def settings(registry: RegistryDouble, **more: Any) -> RegistrySettings:
    return RegistrySettings(urls=(registry.url,), backoff_s=0, **more)


def options(registry: RegistryDouble, **more: Any) -> dict[str, Any]:
    formats = {"keyFormat": "avro-confluent", "valueFormat": "avro-confluent"}
    return {"envelope": "kafka", **formats, "schemaRegistry.url": registry.url, **more}


def row_of(key: int, number: int, schema: Any = ROW, **values: Any) -> tuple[bytes, bytes]:
    """Return a record whose key and value name their schemas by ids."""
    return avro(key, KEY, {"id": values["id"]}), avro(number, schema, values)


def test_a_schema_is_asked_for_once(registry: RegistryDouble) -> None:
    number = registry.register("t-value", ROW)
    found = [schema_of_id(settings(registry), number) for _ in range(3)]
    assert [(each.kind, json.loads(each.text)) for each in found] == [("AVRO", ROW)] * 3
    assert registry.asked == [f"/schemas/ids/{number}"]


def test_the_newest_schema_is_asked_for_each_time(registry: RegistryDouble) -> None:
    registry.register("growing value", KEY)
    assert json.loads(latest_schema(settings(registry), "growing value").text) == KEY
    registry.register("growing value", ROW)
    assert json.loads(latest_schema(settings(registry), "growing value").text) == ROW
    with pytest.raises(OptionError, match="no subject 'x/y'"):
        latest_schema(settings(registry), "x/y")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the registry's client sees."""
    now = [1000.0]
    monkeypatch.setattr(schema_registry, "_clock", lambda: now[0])
    return now


def test_an_unknown_id_is_asked_for_once_in_a_while_and_found_when_it_is_there(
    registry: RegistryDouble, seconds: list[float]
) -> None:
    number = registry.register("late", record("Before", id="long")) + 1
    for _ in range(5):
        with pytest.raises(UnknownSchema):
            schema_of_id(settings(registry), number)
    assert len(registry.asked) == 1
    seconds[0] += MISSING_S
    with pytest.raises(UnknownSchema):
        schema_of_id(settings(registry), number)
    assert len(registry.asked) == 2
    assert registry.register("late", record(f"Late{number}", id="long")) == number
    seconds[0] += MISSING_S
    assert schema_of_id(settings(registry), number).kind == "AVRO"


def test_a_schema_that_refers_to_nothing_is_asked_for_once_in_a_while(
    registry: RegistryDouble, seconds: list[float]
) -> None:
    lying = registry.register("lies", record("L", a="Gone"), references=[("Gone", "gone", 1)])
    for _ in range(3):
        with pytest.raises(Unreadable, match="a schema that is not in the registry"):
            schema_of_id(settings(registry), lying)
    assert sum(path.startswith("/schemas/ids/") for path in registry.asked) == 1
    assert len(registry.asked) == 2


def lies(count: int) -> list[bytes]:
    return [framed(1_000_000 - n, b"\0") for n in range(count)]


def test_ids_that_lie_cost_a_bounded_number_of_requests(
    registry: RegistryDouble, seconds: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of many of them, and the next one; a schema that comes later is found."""
    most = 20
    monkeypatch.setattr(schema_registry, "MISSING_MAX", most)
    key, row = registry.register("t-key", KEY), registry.register("t-value", ROW)
    good = avro(row, ROW, {"id": 1, "name": "a", "n": 5})
    values = [good, *lies(2 * most), good]
    pairs = [(avro(key, KEY, {"id": n}), value) for n, value in enumerate(values)]
    given = options(registry, onError="quarantine")
    write_found(tmp_path / "t", records(pairs), **given)
    assert [each["id"] for each in rows_of(tmp_path / "t")] == [0, len(values) - 1]
    found = reasons(tmp_path / "t")
    assert len(found) == 2 * most
    assert sum("is not in the registry" in why for why in found) == most
    assert sum("others were not in the registry just now" in why for why in found) == most
    assert len(registry.asked) == most + 2
    write_found(tmp_path / "t", records(pairs, offsets=itertools.count(5000)), **given)
    assert len(registry.asked) == most + 2
    seconds[0] += MISSING_S
    schema = record("Row", id="long", name="string", n="int")
    later = registry.register("t-value", schema)
    newest = records([row_of(key, later, schema, id=0, name="b", n=6)], offsets=[9000])
    write_found(tmp_path / "t", newest, **given)
    assert {"id": 0, "name": "b", "n": 6} in rows_of(tmp_path / "t")


def test_ids_of_many_payloads_are_asked_for_before_those_that_lie(
    registry: RegistryDouble, seconds: list[float]
) -> None:
    row = registry.register("t-value", ROW)
    good = avro(row, ROW, {"id": 1, "name": "a", "n": 5})
    schemas = ByRegistry(settings(registry), "AVRO", "value", is_connect=False)
    parts = schemas.parts(pa.array([*lies(10_000), good, good]))
    rows = [part.rows.tolist() for part in parts if isinstance(part.writer_schema, WriterSchema)]
    assert rows == [[10_000, 10_001]]
    assert len(registry.asked) == MISSING_MAX + 1


def test_tenants_of_one_address_have_ids_and_missing_schemas_of_their_own(
    registry: RegistryDouble, seconds: list[float]
) -> None:
    one, other = (settings(registry, headers=(("X-Tenant", name),)) for name in "ab")
    number = registry.register("t-value", ROW)
    for tenant in (one, other, one):
        schema_of_id(tenant, number)
    assert [headers["X-Tenant"] for headers in registry.headers[-2:]] == ["a", "b"]
    for missing in range(10_000, 10_000 + MISSING_MAX):
        with pytest.raises(UnknownSchema):
            schema_of_id(one, missing)
    with pytest.raises(LookupThrottle):
        schema_of_id(one, 20_000)
    with pytest.raises(UnknownSchema):
        schema_of_id(other, 20_000)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_registry_is_asked_again(registry: RegistryDouble, status: int) -> None:
    number = registry.register("t-value", ROW)
    registry.refuse_next[:] = [status] * 4
    assert schema_of_id(settings(registry), number).kind == "AVRO"
    assert len(registry.asked) == 5


def test_a_registry_that_does_not_answer_is_an_outage_and_the_next_address_is_asked(
    registry: RegistryDouble, seconds: list[float]
) -> None:
    number = registry.register("t-value", ROW)
    registry.refuse_next[:] = [503] * 5
    with pytest.raises(StorageError, match=f"{registry.url} does not answer: it says 503"):
        schema_of_id(settings(registry), number)
    # Nothing is remembered of an outage.
    assert schema_of_id(settings(registry), number).kind == "AVRO"
    forget_schemas()
    nobody = RegistrySettings(urls=("http://127.0.0.1:9",), backoff_s=0)
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9 does not answer"):
        schema_of_id(nobody, number)
    both = replace(nobody, urls=(*nobody.urls, registry.url))
    assert schema_of_id(both, number).kind == "AVRO"


def test_who_may_not_ask_is_told(registry: RegistryDouble) -> None:
    number = registry.register("t-value", ROW)
    registry.user = ("me", "hunter2")
    with pytest.raises(StorageError, match=r"refuses to answer \(401\)"):
        schema_of_id(settings(registry), number)
    assert registry.asked == [f"/schemas/ids/{number}"]
    known = settings(registry, user="me", password="hunter2", headers=(("X-Tenant", "a"),))
    assert schema_of_id(known, number).kind == "AVRO"
    assert registry.headers[-1]["X-Tenant"] == "a"


def test_secrets_are_not_logged(registry: RegistryDouble, caplog: pytest.LogCaptureFixture) -> None:
    registry.refuse_next[:] = [503] * 9
    secret = settings(registry, user="me", password="hunter2", headers=(("X-Key", "hunter2"),))
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as caught:
        schema_of_id(secret, 1)
    assert "hunter2" not in caplog.text + str(caught.value) + repr(secret)


def test_something_else_at_the_address_is_an_error(registry: RegistryDouble) -> None:
    elsewhere = RegistrySettings(urls=(f"{registry.url}/elsewhere",), backoff_s=0)
    registry.refuse_next[:] = [302]
    with pytest.raises(StorageError, match="status 302"):
        schema_of_id(elsewhere, 1)
    # As a wrong path of a registry itself: no id is known there.
    with pytest.raises(UnknownSchema):
        schema_of_id(elsewhere, 1)


def ticking() -> Callable[[], float]:
    """Return a clock on which each look takes a second."""
    seconds = itertools.count()
    return lambda: float(next(seconds))


@pytest.mark.parametrize(
    ("answering", "why"),
    [
        pytest.param(endless, "gave more than 8388608 bytes", id="without end"),
        pytest.param(bomb, "gave more than 8388608 bytes, once it is unpacked", id="packed"),
        pytest.param(slow, "does not answer: .*timed out", id="a byte at a time"),
        pytest.param(slow_headers, "does not answer: .*timed out", id="headers without end"),
    ],
)
@pytest.mark.sweep(1)
def test_an_answer_without_bounds_is_an_outage(
    registry: RegistryDouble, answering: Answering, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by reads and bytes: the clock takes a second for each read."""
    monkeypatch.setattr(
        schema_registry, "limit_response_time", partial(limit_response_time, clock=ticking())
    )
    monkeypatch.setattr(schema_registry, "_fetch_of", schema_registry._fetch_of.__wrapped__)
    number = registry.register("t-value", ROW)
    registry.hostile = answering
    if answering in (endless, bomb):  # Of the bytes, not of the time.
        monkeypatch.setattr(schema_registry, "ANSWER_S", 1e9)
    with pytest.raises(StorageError, match=why):
        schema_of_id(settings(registry, tries=1), number)
    registry.hostile = None
    assert schema_of_id(settings(registry), number).kind == "AVRO"


def test_an_answer_may_be_packed(registry: RegistryDouble) -> None:
    number = registry.register("t-value", ROW)
    body = gzip.compress(json.dumps({"schema": json.dumps(ROW)}).encode())
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)

    def packed(out: io.BufferedIOBase) -> None:
        out.write(head + body)

    registry.hostile = packed
    assert json.loads(schema_of_id(settings(registry), number).text) == ROW


def test_referenced_avro_types_stand_where_they_are_named(registry: RegistryDouble) -> None:
    city = {**record("City", name="string"), "namespace": "geo"}
    place = {**record("Place", city="City", other="City"), "namespace": "geo"}
    registry.register("city", city)
    registry.register("place", place, references=[("geo.City", "city", 1)])
    row = record("Row", id="long", at="geo.Place", then=["null", "geo.City"])
    whole = {**row, "namespace": "shop"}
    number = registry.register("rows", whole, references=[("geo.Place", "place", 1)])
    decoder = AvroDecoder(schema_of_id(settings(registry), number).text, "value")
    inner = pa.struct({"name": pa.string()})
    assert decoder.fields.types[1:] == [pa.struct({"city": inner, "other": inner}), inner]
    value = {"id": 1, "at": {"city": {"name": "a"}, "other": {"name": "b"}}, "then": None}
    out = io.BytesIO()
    named: dict[str, Any] = {}
    for schema in (city, place):
        fastavro.parse_schema(schema, named)
    fastavro.schemaless_writer(out, fastavro.parse_schema(whole, named), value)
    found = decoder.decode(pa.array([out.getvalue()]))
    assert found.reasons is None
    assert found.columns[1].to_pylist() == [value["at"]]


def test_referenced_json_schemas_are_found(registry: RegistryDouble, tmp_path: Path) -> None:
    city = {"type": "object", "properties": {"name": {"type": "string"}}}
    registry.register("city.json", city, "JSON")
    price = {"type": "number", "title": DECIMAL, "connect.parameters": {"scale": "2"}}
    row = {"properties": {"price": price, "city": {"$ref": "city.json"}}}
    number = registry.register("r", row, "JSON", references=[("city.json", "city.json", 1)])
    key = registry.register("k", {"type": "integer"}, "JSON")
    payload = framed(number, b'{"price": 12.5, "city": {"name": "a"}}')
    given = options(registry, keyFormat="json-confluent", valueFormat="json-confluent")
    write_found(tmp_path / "t", records([(framed(key, b"1"), payload)]), **given)
    expected = {"key": 1, "price": Decimal("12.50"), "city": {"name": "a"}}
    assert rows_of(tmp_path / "t") == [expected]


OF_CITY = record("R", a="City")
TREE = {"type": "record", "name": "tree", "fields": []}


@pytest.mark.parametrize(
    ("schema", "referred", "why"),
    [
        pytest.param(OF_CITY, "nothing", "not in the registry", id="nothing there"),
        pytest.param(OF_CITY, TREE, "bytes too many", id="another type there"),
        pytest.param({"fields": [5]}, TREE, "what it refers to is no schema", id="no schema"),
        pytest.param(OF_CITY, "{", "it is no JSON", id="no JSON"),
        pytest.param(OF_CITY, "[" * 900 + "]" * 900, "what it refers to", id="too deep"),
        pytest.param(OF_CITY, f'"{"x" * (1 << 20)}"', "more than", id="too long"),
    ],
)
def test_references_that_lie_are_said_of_the_payloads(
    registry: RegistryDouble, tmp_path: Path, schema: Any, referred: Any, why: str
) -> None:
    key, good = registry.register("t-key", KEY), registry.register("t-value", ROW)
    name = f"lie-{abs(hash(why))}"
    if referred != "nothing":
        registry.register(name, referred)
    lying = registry.register(f"of-{name}", schema, references=[("City", name, 1)])
    lie = avro(key, KEY, {"id": 2}), framed(lying, b"\0")
    pairs = [row_of(key, good, id=1, name="a", n=5), lie]
    write_found(tmp_path / "t", records(pairs), **options(registry, onError="quarantine"))
    assert [row["id"] for row in rows_of(tmp_path / "t")] == [1]
    assert why in " ".join(reasons(tmp_path / "t"))


def test_references_take_bounded_time(
    registry: RegistryDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer in time, and all of them not."""
    cities = [registry.register(f"city-{n}", record(f"C{n}", name="string")) for n in range(9)]
    several = [(f"C{n}", f"city-{n}", 1) for n in range(len(cities))]
    number = registry.register("late", record("R", a="C0"), references=several)
    monkeypatch.setattr(schema_registry, "_clock", ticking())
    monkeypatch.setattr(schema_registry, "_REFERENCES_S", 5.0)
    with pytest.raises(StorageError, match="more than 5 s for what a schema needs"):
        schema_of_id(settings(registry), number)
    assert len(registry.asked) < 7


def test_hostile_payloads_are_bad_and_their_neighbours_not(
    registry: RegistryDouble, tmp_path: Path
) -> None:
    key, row = registry.register("t-key", KEY), registry.register("t-value", ROW)
    other = registry.register("other", {"type": "integer"}, "JSON")
    good = avro(row, ROW, {"id": 1, "name": "a", "n": 5})
    hostile = [
        *(b"", b"\0", good[:4], b"\1" + good[1:], good[:-1], good + b"\0"),
        *(framed(4_000_000_000, good[5:]), framed(other, b"1")),
    ]
    pairs = [(avro(key, KEY, {"id": n}), value) for n, value in enumerate([good, *hostile])]
    with pytest.raises(DataError, match="undecodable"):
        write_found(tmp_path / "t", records(pairs), **options(registry))
    write_found(tmp_path / "t", records(pairs), **options(registry, onError="quarantine"))
    assert [r["id"] for r in rows_of(tmp_path / "t")] == [0]
    found = " ".join(reasons(tmp_path / "t"))
    assert found.count("lacks the header") == 4
    assert "schema id 4000000000 is not in the registry" in found
    assert f"schema id {other} is one of JSON, expected AVRO" in found


def test_an_outage_is_no_bad_data(
    registry: RegistryDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib3.Retry, "get_backoff_time", lambda self: 0)
    key, row = registry.register("t-key", KEY), registry.register("t-value", ROW)
    rows = records([row_of(key, row, id=1, name="a", n=5)])
    registry.refuse_next[:] = [500] * 5
    given = options(registry, onError="quarantine")
    with pytest.raises(StorageError, match="does not answer"):
        write_found(tmp_path / "t", rows, **given)
    write_found(tmp_path / "t", rows, **given)
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "a", "n": 5}]


def test_events_of_debezium_in_json_of_a_registry(registry: RegistryDouble, tmp_path: Path) -> None:
    """Times mean the same as in Avro."""
    whole = {"type": "integer", "connect.type": "int64"}
    members = {"id": whole, "at": {**whole, "title": "io.debezium.time.MicroTimestamp"}}
    image = {"oneOf": [{"type": "null"}, {"type": "object", "properties": members}]}
    parts = {"before": image, "after": image, "source": {"properties": {"lsn": whole}}}
    event = {"properties": {**parts, "op": {"type": "string"}}}
    key = registry.register("e-key", {"properties": {"id": whole}}, "JSON")
    number = registry.register("e-value", event, "JSON")

    def pair(op: str, before: Any, after: Any, lsn: int) -> tuple[bytes, bytes]:
        value = {"before": before, "after": after, "source": {"lsn": lsn}, "op": op}
        name = json.dumps({"id": (after or before)["id"]}).encode()
        return framed(key, name), framed(number, json.dumps(value).encode())

    one, two = {"id": 1, "at": 1_000_000}, {"id": 2, "at": 0}
    rows = records([pair("c", None, one, 1), pair("c", None, two, 2), pair("d", one, None, 3)])
    given = options(registry, envelope="debezium", valueFormat="json-confluent")
    del given["keyFormat"]
    write_found(tmp_path / "t", rows, **given, sequenceBy="source.lsn")
    assert rows_of(tmp_path / "t") == [{"id": 2, "at": dt.datetime(1970, 1, 1)}]


def test_the_newest_schema_of_a_subject_says_the_columns(
    registry: RegistryDouble, tmp_path: Path
) -> None:
    key, row = registry.register("s-key", KEY), registry.register("s-value", ROW)
    given = options(registry, keySubject="s-key", valueSubject="s-value")
    rows = records([row_of(key, row, id=1, name="a", n=5)])
    write(tmp_path / "t", rows, **given)
    wider = registry.register("s-value", WIDER)
    later = row_of(key, wider, WIDER, id=2, n=2, extra=True)
    both = records([later, (avro(key, KEY, {"id": 1}), None)])
    write(tmp_path / "t", both, **given, mergeSchema=True)
    assert rows_of(tmp_path / "t") == [{"id": 2, "name": None, "n": 2, "extra": True}]
