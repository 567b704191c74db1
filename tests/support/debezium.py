"""Messages as Debezium writes them: bare and wrapped JSON, and Avro as Confluent frames it."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

OPTIONS = {
    "envelope": "debezium",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, v STRING",
    "keys": "id",
    "sequenceBy": "source.lsn",
}


def image(number: int, text: str | None) -> dict[str, Any]:
    return {"id": number, "v": text}


def event(
    op: str | None,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    lsn: int | None,
) -> dict[str, Any]:
    """Return an event as the PostgreSQL connector (pgoutput) writes it without schemas."""
    return {
        "before": before,
        "after": after,
        "source": {
            "version": "3.0.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": 1717000000123,
            "snapshot": "false",
            "db": "shop",
            "sequence": '["24023119","24023128"]',
            "ts_us": 1717000000123456,
            "ts_ns": 1717000000123456000,
            "schema": "public",
            "table": "customers",
            "txId": 755,
            "lsn": lsn,
            "xmin": None,
        },
        "transaction": None,
        "op": op,
        "ts_ms": 1717000000456,
        "ts_us": 1717000000456789,
        "ts_ns": 1717000000456789012,
    }


def member(field: str, type_: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "optional": True, "field": field, **more}


ROW = [member("id", "int64"), member("v", "string")]


def schema_of(row: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an event's schema as Connect's converter writes it."""
    source = [member("lsn", "int64"), member("txId", "int64"), member("table", "string")]
    return {
        "type": "struct",
        "fields": [
            member("before", "struct", fields=row, name="shop.public.customers.Value"),
            member("after", "struct", fields=row, name="shop.public.customers.Value"),
            member(
                "source", "struct", fields=source, name="io.debezium.connector.postgresql.Source"
            ),
            member("transaction", "struct", fields=[member("id", "string")], name="event.block"),
            {"type": "string", "optional": False, "field": "op"},
            member("ts_ms", "int64"),
        ],
        "optional": False,
        "name": "shop.public.customers.Envelope",
        "version": 2,
    }


def bare(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def wrapped(message: dict[str, Any], row: list[dict[str, Any]] = ROW) -> bytes:
    return bare({"schema": schema_of(row), "payload": message})


def key(number: int | None) -> bytes:
    return bare({"id": number})


def wrapped_key(number: int) -> bytes:
    schema = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}]}
    return bare({"schema": schema, "payload": {"id": number}})


CREATE = event("c", None, image(1, "a"), 1)
UPDATE = event("u", image(1, "a"), image(1, "b"), 2)
DELETE = event("d", image(1, "a"), None, 2)


def meaning(type_: str, name: str, **more: Any) -> Any:
    """Return a nullable Avro type as Confluent's converter writes Connect's."""
    return ["null", {"type": type_, "connect.version": 1, "connect.name": name, **more}]


AVRO_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "v", "type": ["null", "string"], "default": None},
        {"name": "at", "type": meaning("long", "io.debezium.time.MicroTimestamp")},
        {
            "name": "c",
            "type": meaning(
                "long",
                "org.apache.kafka.connect.data.Timestamp",
                logicalType="timestamp-millis",
            ),
        },
        {"name": "z", "type": meaning("string", "io.debezium.time.ZonedTimestamp")},
        {"name": "d", "type": meaning("int", "io.debezium.time.Date")},
        {
            "name": "n",
            "type": meaning(
                "bytes",
                "org.apache.kafka.connect.data.Decimal",
                logicalType="decimal",
                precision=10,
                scale=2,
            ),
        },
        {
            "name": "days",
            "type": {"type": "array", "items": meaning("int", "io.debezium.time.Date")},
        },
    ],
    "connect.name": "shop.public.customers.Value",
}
AVRO_EVENT = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.customers",
    "fields": [
        {"name": "before", "type": ["null", AVRO_ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector.postgresql",
                "fields": [
                    {
                        "name": "snapshot",
                        "type": [
                            {
                                "type": "string",
                                "connect.default": "false",
                                "connect.name": "io.debezium.data.Enum",
                            },
                            "null",
                        ],
                    },
                    {"name": "lsn", "type": ["null", "long"]},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
    "connect.name": "shop.public.customers.Envelope",
}
AVRO = {
    **OPTIONS,
    "valueFormat": "avro-confluent",
    "valueSchema": json.dumps(AVRO_EVENT),
    "valueSchemaId": "7",
    "keySchema": json.dumps(
        {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    ),
}
HEAD = b"\0\0\0\0\x07"


def avro(schema: Any, datum: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return HEAD + out.getvalue()


def avro_row(number: int, **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("v", "at", "c", "z", "d", "n"))
    return {"id": number, **nothing, "days": [], **more}


def avro_event(op: str, before: Any, after: Any, lsn: int | None) -> bytes:
    # Written as the plain types, so that nothing but the schema says what numbers mean.
    plain = json.loads(json.dumps(AVRO_EVENT).replace('"logicalType": "timestamp', '"was": "'))
    source = {"snapshot": "false", "lsn": lsn}
    event = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 5}
    return avro(plain, event)


AVRO_KEY = avro(json.loads(AVRO["keySchema"]), {"id": 1})
