"""Records whose payloads name their own schemas: messages of Connect, and those of a registry."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from tests.support.registry import framed

DECIMAL = "org.apache.kafka.connect.data.Decimal"

INLINE = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "inline",
    "valueFormat": "json",
    "valueSchema": "inline",
}


def member(name: str, type_: str, **more: Any) -> dict[str, Any]:
    """Return a member of a Connect struct."""
    return {"field": name, "type": type_, "optional": True, **more}


def struct(*members: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a struct of Connect."""
    return {"type": "struct", "fields": list(members), **more}


def inline(schema: Any, payload: Any) -> bytes:
    """Return a message as Connect writes it with schemas."""
    return json.dumps({"schema": schema, "payload": payload}).encode()


def change_schema(row: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of Debezium's events about rows of a schema."""
    source = struct(member("lsn", "int64"), member("table", "string"), field="source")
    return struct(
        {**row, "field": "before", "optional": True},
        {**row, "field": "after", "optional": True},
        source,
        member("op", "string"),
        member("ts_ms", "int64"),
    )


def change(op: str, before: Any, after: Any, lsn: int) -> dict[str, Any]:
    """Return the payload of an event."""
    source = {"lsn": lsn, "table": "orders"}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


def avro(schema_id: int, schema: Any, value: Any) -> bytes:
    """Return a value of Avro behind the id of its schema."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return framed(schema_id, out.getvalue())


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return a record of Avro."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": type_} for field, type_ in fields.items()],
    }
