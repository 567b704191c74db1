"""Messages of Debezium that are no change events: each is named where a write meets it.

Messages as in Debezium's documentation, pages "Debezium connector for PostgreSQL" ("Transaction
metadata", "message events"), "Debezium connector for MySQL" ("Schema change topic"), "Debezium
connector for Oracle" ("Schema changes"), "Debezium connector for MongoDB" ("Data change events"),
"Debezium notifications"; heartbeats as ``SchemaFactory`` has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, SchemaError
from tests.support import own_schemas
from tests.support.debezium import CREATE, OPTIONS, bare, key
from tests.support.envelopes import quarantine_of, records, rows_of, write, write_found
from tests.support.own_schemas import member, struct

SOURCE = {"version": "3.3.1.Final", "connector": "mysql", "name": "shop", "ts_ms": 1}

COLLECTIONS = {"data_collections": [{"data_collection": "s1.a", "event_count": 1}]}
MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "a heartbeat": ({"ts_ms": 1717000000123}, "a heartbeat of Debezium"),
    "the begin of a transaction": (
        {"status": "BEGIN", "id": "571:1", "ts_ms": 1, "event_count": None, **COLLECTIONS},
        "a transaction boundary of Debezium",
    ),
    "the end of a transaction": (
        {"status": "END", "id": "571:2", "ts_ms": 2, "event_count": 1, **COLLECTIONS},
        "a transaction boundary of Debezium",
    ),
    "a schema change": (
        {
            "source": SOURCE,
            "ts_ms": 1,
            "databaseName": "inventory",
            "schemaName": None,
            "ddl": "ALTER TABLE customers ADD middle_name varchar(255)",
            "tableChanges": [{"type": "ALTER", "id": '"inventory"."customers"', "table": {}}],
        },
        "a schema change of Debezium",
    ),
    "a notification": (
        {
            "id": "c485c3c3",
            "type": "STARTED",
            "aggregate_type": "Initial Snapshot",
            "additional_data": {"connector_name": "shop"},
            "timestamp": 1,
        },
        "a notification of Debezium",
    ),
    "a logical decoding message": (
        {
            "source": {**SOURCE, "connector": "postgresql", "lsn": 46523128},
            "op": "m",
            "ts_ms": 1,
            "message": {"prefix": "foo", "content": "Ymfy"},
        },
        "a logical decoding message of PostgreSQL",
    ),
    "a document of MongoDB": (
        {
            "before": None,
            "after": '{"_id": {"$numberLong": "1004"}}',
            "source": {**SOURCE, "connector": "mongodb", "ord": 31},
            "op": "c",
            "ts_ms": 1,
        },
        "MongoDB connector writes documents",
    ),
}

TYPES = {bool: "boolean", int: "int64", str: "string", type(None): "string"}


def schema_of(value: Any) -> dict[str, Any]:
    """Return a Connect schema of a message."""
    if isinstance(value, dict):
        fields = [{**schema_of(each), "field": name} for name, each in value.items()]
        return struct(*fields, optional=True)
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0]), "optional": True}
    return {"type": TYPES[type(value)], "optional": True}


@pytest.mark.parametrize(("message", "name"), MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["bare", "with a schema"])
def test_a_record_that_is_no_change_event_is_named(
    tmp_path: Path, message: dict[str, Any], name: str, is_wrapped: bool
) -> None:
    value = own_schemas.inline(schema_of(message), message) if is_wrapped else bare(message)
    rows = records([(key(1), bare(CREATE)), (None, value)])
    by_offsets = {n: t for n, t in OPTIONS.items() if n != "sequenceBy"}
    with pytest.raises(DataError, match=name):
        write(tmp_path / "t", rows, **by_offsets)
    write(tmp_path / "t", rows, onError="quarantine", **by_offsets)
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a"}]
    (entry,) = quarantine_of(tmp_path / "t")
    assert name in entry["_reason"]


@pytest.mark.parametrize("kind", [kind for kind in MESSAGES if "logical" not in kind])
def test_a_topic_without_change_events_is_named(tmp_path: Path, kind: str) -> None:
    message, name = MESSAGES[kind]
    value = own_schemas.inline(schema_of(message), message)
    pair = own_schemas.inline(struct(member("id", "int64")), {"id": 1}), value
    options = {"envelope": "debezium", "valueFormat": "json", "valueSchema": "inline"}
    with pytest.raises(SchemaError, match=name):
        write_found(tmp_path / "t", records([pair]), **options)


def test_an_event_without_an_operation_is_no_known_message(tmp_path: Path) -> None:
    for value in ({"ts_ms": 1, "a": 2}, {"status": "SHIPPED", "id": "1"}, {}):
        rows = records([(key(1), bare(value))])
        with pytest.raises(DataError, match=r"the event has no 'op' in 1 of 1 rows"):
            write(tmp_path / "t", rows, **{**OPTIONS, "sequenceBy": "offset"})


def test_parsed_documents_of_mongodb_are_named(tmp_path: Path) -> None:
    rows = pa.table({"after": ['{"_id": 1}'], "op": ["c"]})
    with pytest.raises(SchemaError, match=r"found string \(a text, as Debezium's MongoDB"):
        write(tmp_path / "t", rows, envelope="debezium", keys="id")
