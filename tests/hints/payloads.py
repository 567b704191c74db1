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

from spark_upsert.options.parse import Options
from spark_upsert.options.reference import WRITE_OPTIONS
from spark_upsert.options.registry import registry_settings
from spark_upsert.options.routed import is_routed_write
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.budgets import PARTS_MAX
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.json_text import JsonDecoder
from spark_upsert.payloads.own_schema import Inline, fields_in
from spark_upsert.payloads.raw import RawDecoder
from spark_upsert.payloads.registry import _fetch_of, forget_schemas, latest_schema
from tests.hints.envelopes import KAFKA, RECORDS, ROWS_OF_KAFKA, record
from tests.hints.hint import Told, follows
from tests.hints.tables import write, write_and_open
from tests.support.own_schemas import inline, member, struct
from tests.support.registry import RegistryDouble, running_registry

ROW = json.dumps({"type": "record", "name": "r", "fields": [{"name": "v", "type": "string"}]})
EMPTY = json.dumps({"type": "record", "name": "r", "fields": []})


def field(type_: Any) -> str:
    fields = [{"name": "v", "type": "string"}, {"name": "u", "type": type_}]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


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
        avro(field(["int", "string"]))
    told("leave that field out of the schema's writer")
    avro(ROW)


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


@follows("payloads.json_text:JsonDecoder.__post_init__")
def _(told: Told) -> None:
    nested = pa.schema({"value": pa.struct({"id": pa.int64()})})
    with told:
        JsonDecoder(nested, is_bare=True)
    told('declare the members of the objects, for example "id BIGINT, name STRING"')
    fields, is_bare = parse_schema("valueSchema", "id BIGINT, name STRING", bare_name="value")
    JsonDecoder(fields, is_bare=is_bare)


@follows("payloads.json_text:_require_decodable")
def _(told: Told) -> None:
    with told:
        JsonDecoder(parse_schema("valueSchema", "m MAP<STRING, INT>", bare_name="value")[0])
    told("declare a STRUCT for an object whose members are known")
    JsonDecoder(parse_schema("valueSchema", "m STRUCT<a: INT>", bare_name="value")[0])


@follows("payloads.raw:RawDecoder.__post_init__")
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


@follows("payloads.registry:latest_schema")
def _(told: Told) -> None:
    with registry() as double:
        with told:
            latest_schema(settings(double.url), "t")
        told("name one that it has, usually '<topic>-value'")
        latest_schema(settings(double.url), "t-value")


@follows("payloads.registry:_answer")
def _(told: Told) -> None:
    with registry() as double:
        double.user = ("me", "hush")
        with told:
            latest_schema(settings(double.url), "t-value")
        told("give schema_registry.user=... and schema_registry.password=...")
        own = {"schemaRegistry.user": "me", "schemaRegistry.password": "hush"}
        latest_schema(settings(double.url, **own), "t-value")


@follows("payloads.registry:_strange")
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


@follows("payloads.registry:_fetch_of")
def _(told: Told) -> None:
    with registry() as double:
        own = settings(double.url)
        with patch.dict(sys.modules, {"urllib3": None}), told:
            _fetch_of.__wrapped__(own)
        told("run `pip install 'upsertflow[registry]'`")
        latest_schema(own, "t-value")


@follows("payloads.registry:_silent")
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


@follows("upsert.envelopes.found:_planned")
def _(told: Told) -> None:
    with registry() as double:
        with told:
            write(told.folder, NONE, **by_registry(double))
        told("name the subject of its newest schema by 'valueSubject'")
        write_and_open(told.folder, NONE, **by_registry(double, valueSubject="t-value"))


@follows("upsert.envelopes.found:_planned:3")
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


@follows("upsert.envelopes.found:_planned:2")
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


@follows("payloads.connect_types:_unsupported")
def _(told: Told) -> None:
    with registry() as double:
        double.register("any-value", {"type": "object"}, kind="JSON")
        own = {"valueSubject": "any-value", "valueFormat": "json-confluent"}
        with told:
            write(told.folder, NONE, **by_registry(double, **own))
        told("declare the columns to be read, as by value_schema=id BIGINT, name STRING")
        write_and_open(told.folder, NONE, **{**KAFKA, **told.options})


@follows("payloads.own_schema:joined")
def _(told: Told) -> None:
    half = PARTS_MAX // 2 + 1
    kinds = [struct(*(member(f"{side}{n}", "int8") for n in range(half))) for side in "ab"]
    messages = [inline(kind, {}) for kind in kinds]
    with told:
        fields_in(Inline("value"), [pa.array(messages)])
    told("write the payloads of several kinds to several tables")
    for message in messages:
        assert fields_in(Inline("value"), [pa.array([message])]) is not None
    told("a path that names the column that tells them apart ('/lake/{topic}')")
    assert is_routed_write({"path": "/lake/{topic}"})
