"""Hints of payloads, of the schemas that tell them, and of the registry that knows these."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.options.declare import Options
from spark_upsert.options.routed import is_routed_write
from spark_upsert.options.write import WRITE_OPTIONS, registry_settings
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import PARTS_MAX, RawDecoder
from spark_upsert.payloads.embedded_schema import ByRegistry, Inline, OwnDecoder, fields_in
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.schema_registry import (
    RegisteredSchema,
    _fetch_of,
    forget_schemas,
    latest_schema,
)
from tests.hints.envelopes import KAFKA, RECORDS, ROWS_OF_KAFKA, record
from tests.hints.hint import Told, follows
from tests.hints.tables import write, write_and_open
from tests.support.own_schemas import INLINE, change, change_schema, inline, member, struct
from tests.support.own_schemas import avro as avro_of
from tests.support.own_schemas import record as record_of
from tests.support.registry import RegistryDouble, running_registry
from tests.support.stores import MemoryStore
from tests.unit.test_routed_schemas import message as sent
from tests.unit.test_routed_schemas import rows_of
from tests.unit.test_routed_schemas import write as write_routed

ROW = json.dumps({"type": "record", "name": "r", "fields": [{"name": "v", "type": "string"}]})
EMPTY = json.dumps({"type": "record", "name": "r", "fields": []})


def avro(text: str) -> pa.Schema:
    return parse_avro("valueSchema", text, bare_name="value").fields


@follows("payloads.avro:parse_avro")
def _(told: Told) -> None:
    with told:
        avro("{")
    told("give the writer's schema, as the schema registry shows it")
    assert avro(ROW).names == ["v"]


@follows("payloads.avro:read_avro")
def _(told: Told) -> None:
    with told:
        avro(EMPTY)
    told("give the schema of a record with fields")
    avro(ROW)
    told("or of a plain value")
    avro('"string"')


@follows("payloads.avro:_unsupported")
def _(told: Told) -> None:
    with told:
        avro(json.dumps(["int", "string"]))
    told("leave that field out of the schema's writer")
    avro(ROW)


@follows("payloads.avro:_unsupported")
def _(told: Told) -> None:
    fields = [{"name": "v", "type": ["int", "string"]}, {"name": "w", "type": "int"}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    given = {"keyFormat": "raw", "keySchema": "id STRING", "valueFormat": "avro"}
    given |= {"envelope": "kafka", "valueSchema": schema}
    with told:
        write(told.folder, NONE, **given)
    told("leave it out of the table by except_column_list=v")
    write_and_open(told.folder, NONE, **given, **told.options)


@follows("payloads.avro:_fastavro")
def _(told: Told) -> None:
    with patch.dict(sys.modules, {"fastavro": None}), told:
        avro(ROW)
    told("run `pip install 'upsertflow[payloads]'`")
    avro(ROW)


@follows("payloads.ddl:parse_schema")
def _(told: Told) -> None:
    with told:
        parse_schema("schema", "id", bare_name="value")
    told("write the columns as in CREATE TABLE")
    own, _ = parse_schema("schema", "id BIGINT", bare_name="value")
    told("take df.schema.json()")
    text = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    assert parse_schema("schema", text, bare_name="value")[0] == own


@follows("payloads.json:JsonDecoder.__post_init__")
def _(told: Told) -> None:
    nested = pa.schema({"value": pa.struct({"id": pa.int64()})})
    with told:
        JsonDecoder(nested, is_bare=True)
    told('declare the members of the objects, for example "id BIGINT, name STRING"')
    fields, is_bare = parse_schema("valueSchema", "id BIGINT, name STRING", bare_name="value")
    JsonDecoder(fields, is_bare=is_bare)


@follows("payloads.json:_require_decodable")
def _(told: Told) -> None:
    with told:
        JsonDecoder(parse_schema("valueSchema", "m MAP<STRING, INT>", bare_name="value")[0])
    told("declare a STRUCT for an object whose members are known")
    JsonDecoder(parse_schema("valueSchema", "m STRUCT<a: INT>", bare_name="value")[0])


@follows("payloads.decoder:RawDecoder.__post_init__")
def _(told: Told) -> None:
    with told:
        write(told.folder, ROWS_OF_KAFKA, **{**KAFKA, "valueFormat": "raw", "valueSchema": "v INT"})
    told('declare for example "id STRING"')
    RawDecoder(pa.schema({"id": pa.string()}))
    told("use the format 'json'")
    write(told.folder, record({"v": 3}), **{**KAFKA, "valueSchema": "v INT"})


# The registry -------------------------------------------------------------------------------


def settings(url: str, **more: str) -> Any:
    given = {"schemaRegistry.url": url, **more}
    found = registry_settings(Options(given, WRITE_OPTIONS))
    assert found is not None
    return found


class registry:
    """A registry that has the schema of a topic's values."""

    def __enter__(self) -> RegistryDouble:
        forget_schemas()
        self._running = running_registry()
        double = self._running.__enter__()
        double.register("t-value", ROW)
        return double

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)


@follows("payloads.schema_registry:latest_schema")
def _(told: Told) -> None:
    with registry() as double:
        with told:
            latest_schema(settings(double.url), "t")
        told("name one that it has, usually '<topic>-value'")
        latest_schema(settings(double.url), "t-value")


@follows("payloads.schema_registry:_answer")
def _(told: Told) -> None:
    with registry() as double:
        double.user = ("me", "hush")
        with told:
            latest_schema(settings(double.url), "t-value")
        told("give schema_registry.user=... and schema_registry.password=...")
        own = {"schemaRegistry.user": "me", "schemaRegistry.password": "hush"}
        latest_schema(settings(double.url, **own), "t-value")


@follows("payloads.schema_registry:_strange")
def _(told: Told) -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with told:
            latest_schema(settings(f"http://127.0.0.1:{other.server_port}"), "t-value")
    finally:
        other.shutdown()
        other.server_close()
        thread.join()
    told("see that schema_registry.url=... is the address of its REST interface")
    with registry() as double:
        latest_schema(settings(double.url), "t-value")


@follows("payloads.schema_registry:_fetch_of")
def _(told: Told) -> None:
    with registry() as double:
        own = settings(double.url)
        with patch.dict(sys.modules, {"urllib3": None}), told:
            _fetch_of.__wrapped__(own)
        told("run `pip install 'upsertflow[registry]'`")
        latest_schema(own, "t-value")


@follows("payloads.schema_registry:_silent")
def _(told: Told) -> None:
    with registry() as double:
        double.refuse_next = [503] * 20
        own = settings(double.url)
        with patch.object(type(own), "backoff_s", 0, create=True), told:
            latest_schema(own, "t-value")
        told("see whether it runs")
        double.refuse_next.clear()
        latest_schema(own, "t-value")


CONFLUENT = {**KAFKA, "keyFormat": "json", "valueFormat": "avro-confluent"}
NONE = RECORDS.empty_table()


def by_registry(double: RegistryDouble, **more: str) -> Mapping[str, str]:
    own = {name: text for name, text in CONFLUENT.items() if name != "valueSchema"}
    return {**own, "schemaRegistry.url": double.url, **more}


@follows("envelopes.inferred_schema:_planned")
def _(told: Told) -> None:
    with registry() as double:
        with told:
            write(told.folder, NONE, **by_registry(double))
        told("name the subject of its newest schema by 'valueSubject'")
        write_and_open(told.folder, NONE, **by_registry(double, valueSubject="t-value"))


@follows("envelopes.inferred_schema:_planned:3")
def _(told: Told) -> None:
    with registry() as double:
        double.register("json-value", {"type": "object"}, kind="JSON")
        with told:
            write(told.folder, NONE, **by_registry(double, valueSubject="json-value"))
        told("give valueFormat=avro-confluent or json-confluent, as it is written")
        double.register(
            "json-value",
            {"type": "object", "properties": {"v": {"type": "string"}}},
            kind="JSON",
        )
        own = {"valueSubject": "json-value", "valueFormat": "json-confluent"}
        write_and_open(told.folder, NONE, **by_registry(double, **own))


@follows("envelopes.inferred_schema:_planned:2")
def _(told: Told) -> None:
    with registry() as double:
        double.register("bad-value", "{", kind="JSON")
        own = {"valueSubject": "bad-value", "valueFormat": "json-confluent"}
        with told:
            write(told.folder, NONE, **by_registry(double, **own))
        told("correct it in the registry")
        row = {"type": "object", "properties": {"v": {"type": "string"}}}
        double.register("bad-value", row, kind="JSON")
        write_and_open(told.folder, NONE, **by_registry(double, **own))
        told("give 'valueSchema'")
        write_and_open(told.folder, NONE, "other", **{**CONFLUENT, "valueSchema": ROW})


@follows("payloads.connect:_unsupported")
def _(told: Told) -> None:
    with registry() as double:
        double.register("any-value", {"type": "object"}, kind="JSON")
        own = {"valueSubject": "any-value", "valueFormat": "json-confluent"}
        with told:
            write(told.folder, NONE, **by_registry(double, **own))
        told("declare the columns to be read, as by value_schema=id BIGINT, name STRING")
        declared = {"valueSchema": told.options["valueSchema"]}
        write_and_open(told.folder, NONE, **{**KAFKA, **declared})


@follows("payloads.connect:_unsupported")
def _(told: Told) -> None:
    with registry() as double:
        members = {"v": {"type": "string"}, "m": {"type": "object"}}
        double.register("some-value", {"type": "object", "properties": members}, kind="JSON")
        own = {"valueSubject": "some-value", "valueFormat": "json-confluent"}
        with told:
            write(told.folder, NONE, **by_registry(double, **own))
        told("leave it out of the table by except_column_list=m")
        write_and_open(told.folder, NONE, **by_registry(double, **own, exceptColumnList="m"))


@follows("payloads.embedded_schema:joined")
def _(told: Told) -> None:
    half = PARTS_MAX // 2 + 1
    kinds = [struct(*(member(f"{side}{n}", "int8") for n in range(half))) for side in "ab"]
    messages = [inline(kind, {}) for kind in kinds]
    with told:
        fields_in(Inline("value"), [pa.array(messages)])
    told("write the payloads of several kinds to several tables")
    for message in messages:
        assert fields_in(Inline("value"), [pa.array([message])]).fields is not None
    told("a path that names the column that tells them apart ('/lake/{topic}')")
    assert is_routed_write({"path": "/lake/{topic}"})


FIVE, HALF = sent("a", 1, n=("int32", 5)), sent("a", 3, n=("double", 0.5))
LONG = sent("a", 2, n=("int64", 2**40))


@follows("payloads.embedded_schema:_contradiction")
def _(told: Told) -> None:
    with told:
        write_routed(MemoryStore(), 0, [LONG, HALF], **INLINE)
    told("correct what writes the later one")
    write_routed(MemoryStore(), 0, [LONG, FIVE], **INLINE)
    told("where both are to be read as JSON, declare the columns, as by value_schema=")
    root = MemoryStore()
    write_routed(root, 0, [LONG, HALF], **{**INLINE, "valueSchema": "n DOUBLE"})
    assert [row["n"] for row in rows_of(root, "a")] == [2**40, 0.5]


@follows("payloads.embedded_schema:_conformed")
def _(told: Told) -> None:
    narrow = OwnDecoder(Inline("value"), pa.schema({"n": pa.int32()}))
    with told:
        narrow.decode(pa.array([LONG[2]]))
    told("correct what writes it")
    narrow.decode(pa.array([FIVE[2]]))
    told("a wider type of the same kind is taken with merge_schema=true")
    root = MemoryStore()
    write_routed(root, 0, [FIVE], **INLINE)
    write_routed(root, 1, [LONG], **INLINE, mergeSchema="true")
    assert [row["n"] for row in rows_of(root, "a")] == [5, 2**40]


@follows("envelopes.inferred_schema:_instead")
def _(told: Told) -> None:
    root = MemoryStore()
    plain = ("a", b'{"id": 1}', b'{"n": 5}')
    with told:
        write_routed(root, 0, [plain], **INLINE)
    told("JSON with schemas ('schemas.enable=true' of Connect's converter)")
    write_routed(root, 0, [FIVE], **INLINE)
    told("JSON without them is read by value_schema=id BIGINT, name STRING")
    other = MemoryStore()
    write_routed(other, 0, [("a", FIVE[1], b'{"name": "x"}')], **{**INLINE, **told.options})
    assert rows_of(other, "a") == [{"id": 1, "name": "x"}]


EVENTS = {"envelope": "debezium", "valueFormat": "json", "valueSchema": "inline"}


@follows("envelopes.inferred_schema:FoundSide.event")
def _(told: Told) -> None:
    root = MemoryStore()
    heartbeat = sent("beats", 1, ts_ms=("int64", 5))
    with told:
        write_routed(root, 0, [heartbeat], **EVENTS, keys="id")
    told("name them by 'subscribe', or by a 'subscribePattern' that no other topic matches")
    row = struct(member("id", "int64"), member("n", "int32"))
    event = inline(change_schema(row), change("c", None, {"id": 1, "n": 5}, 1))
    write_routed(root, 0, [("shop.a", FIVE[1], event)], **EVENTS, keys="id")
    assert rows_of(root, "shop.a") == [{"id": 1, "n": 5}]


@follows("envelopes.inferred_schema:FoundSide.event:2")
def _(told: Told) -> None:
    root = MemoryStore()
    with told:
        write_routed(root, 0, [FIVE], **EVENTS, keys="id")
    told("use the envelope 'kafka' for them")
    write_routed(root, 0, [FIVE], **INLINE)
    assert rows_of(root, "a") == [{"id": 1, "n": 5}]
    told("apply_as_deletes=__deleted where they have that field")
    flattened = sent("b", 1, n=("int32", 5), __deleted=("string", "false"))
    write_routed(root, 1, [flattened], **INLINE, applyAsDeletes="__deleted")
    assert rows_of(root, "b") == [{"id": 1, "n": 5}]


@follows("payloads.embedded_schema:ByRegistry._require_no_newer")
def _(told: Told) -> None:
    row, more = record_of("R", v="string"), record_of("R", v="string", w="string")

    def read(double: RegistryDouble, newest: RegisteredSchema) -> None:
        schemas = ByRegistry(settings(double.url), "AVRO", "value", is_connect=False, newest=newest)
        payloads = [avro_of(double.register("t-value", more), more, {"v": "a", "w": "b"})]
        assert [part.own for part in schemas.parts(pa.array(payloads))]

    with registry() as double:
        double.register("t-value", row)
        newest = latest_schema(settings(double.url), "t-value")
        with told:
            read(double, newest)
        told("run the write again")
        forget_schemas()
        read(double, latest_schema(settings(double.url), "t-value"))
    told("write to a path that names columns of the rows")
    root = MemoryStore()
    write_routed(root, 0, [FIVE, sent("b", 1, w=("string", "b"))], **INLINE)
    assert rows_of(root, "b") == [{"id": 1, "w": "b"}]
