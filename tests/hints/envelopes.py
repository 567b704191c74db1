"""Hints of rows that are records of Kafka, events of Debezium, or changes of another table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.hints.tables import ROW, Rows, write, write_and_open

RECORDS = pa.schema({"key": pa.binary(), "value": pa.binary(), "offset": pa.int64()})


def record(value: Mapping[str, Any] | bytes, offset: int = 1) -> pa.Table:
    """Return one record of Kafka, whose key is the ``id`` 1."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return pa.table({"key": [b'{"id": 1}'], "value": [text], "offset": [offset]}, schema=RECORDS)


def event(**after: Any) -> pa.Table:
    return record({"before": None, "after": {"id": 1, **after}, "op": "c", "source": {"lsn": 1}})


EVENT = event(v="a")
ROWS_OF_KAFKA = record({"v": "a"})
KAFKA = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "v STRING",
}
DEBEZIUM = {"envelope": "debezium", "valueFormat": "json", "valueSchema": "id BIGINT, v STRING"}
AVRO_EVENT = json.dumps(
    {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "before", "type": ["null", "int"]},
            {"name": "after", "type": ["null", "int"]},
            {"name": "op", "type": "string"},
        ],
    }
)
AVRO_WHOLE = json.dumps(
    {
        "type": "record",
        "name": "event",
        "fields": [
            {
                "name": "before",
                "type": [
                    "null",
                    {"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}]},
                ],
            },
            {"name": "after", "type": ["null", "row"]},
            {"name": "op", "type": "string"},
        ],
    }
)
AVRO = {"envelope": "debezium", "valueFormat": "avro", "valueSchema": AVRO_WHOLE}
NO_RECORDS = RECORDS.empty_table()

PARSED = pa.table(
    {
        "before": pa.array([None], pa.struct({"id": pa.int64(), "v": pa.string()})),
        "after": [{"id": 1, "v": "a"}],
        "op": ["c"],
    }
)
UNPARSED = PARSED.set_column(1, "after", pa.array(['{"id": 1}']))

Write = tuple[Rows | pa.Table, Mapping[str, str]]

WRITES: tuple[tuple[str, Write, Mapping[str, Write]], ...] = (
    (
        "envelopes.kafka:KafkaForm.__post_init__",
        ({"id": [1], "key": [1], "value": ["{}"]}, KAFKA),
        {
            "write the rows of spark.readStream.format('kafka') as they come": (
                ROWS_OF_KAFKA,
                KAFKA,
            ),
            "use the envelope 'upsert'": ({"id": [1], "key": [1], "value": ["{}"]}, {}),
        },
    ),
    (
        "envelopes.kafka:PayloadFormat.parse",
        (ROWS_OF_KAFKA, {**KAFKA, "valueSchemaId": "3"}),
        {
            "drop the option": (ROWS_OF_KAFKA, KAFKA),
            "use valueFormat=json-confluent": (
                record(b'\0\0\0\0\3{"v": "a"}'),
                {**KAFKA, "valueSchemaId": "3", "valueFormat": "json-confluent"},
            ),
        },
    ),
    (
        "envelopes.debezium_records:ParsedForm.__post_init__",
        (UNPARSED, {"envelope": "debezium"}),
        {
            "write the rows of spark.readStream.format('kafka') as they come, with 'valueFormat' "
            "and 'valueSchema'": (EVENT, DEBEZIUM),
            "or parse them with a schema that has the fields of the row": (
                PARSED,
                {"envelope": "debezium"},
            ),
        },
    ),
    (
        "envelopes.debezium_records:RecordForm.__post_init__",
        (PARSED.append_column("key", [[1]]).append_column("value", [[1]]), DEBEZIUM),
        {
            "write the rows of spark.readStream.format('kafka') as they come": (EVENT, DEBEZIUM),
            "drop 'valueFormat'": (PARSED, {"envelope": "debezium"}),
        },
    ),
    (
        "envelopes.debezium_records:_json",
        (EVENT, {**DEBEZIUM, "timeUnit.v": "millis"}),
        {
            "drop the option": (EVENT, DEBEZIUM),
            "declare 'v' as TIMESTAMP_NTZ or TIMESTAMP": (
                event(v=1717000000123),
                {**DEBEZIUM, "timeUnit.v": "millis", "valueSchema": "id BIGINT, v TIMESTAMP"},
            ),
        },
    ),
    (
        "envelopes.debezium_records:_avro",
        (NO_RECORDS, {**AVRO, "timeUnit": "millis"}),
        {"drop them": (NO_RECORDS, AVRO)},
    ),
    (
        "envelopes.debezium_records:_avro:2",
        (NO_RECORDS, {**AVRO, "valueSchema": AVRO_EVENT}),
        {"give the writer's schema of the whole event": (NO_RECORDS, AVRO)},
    ),
    (
        "envelopes.debezium:DebeziumEnvelope.__post_init__",
        (EVENT, {**DEBEZIUM, "onTruncate": "overwrite"}),
        {
            "an order such as sequence_by=source.lsn": (
                EVENT,
                {**DEBEZIUM, "onTruncate": "overwrite", "sequenceBy": "source.lsn"},
            )
        },
    ),
    (
        "envelopes.inferred_schema:_planned",
        (ROWS_OF_KAFKA, {**KAFKA, "valueSchema": "inline"}),
        {"give 'valueSchema'": (ROWS_OF_KAFKA, KAFKA)},
    ),
)


def of_write(site: str, wrong: Write, advice: Mapping[str, Write]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            write(told.folder, wrong[0], **wrong[1])
        for number, (quoted, right) in enumerate(advice.items()):
            told(quoted)
            table = write_and_open(told.folder, right[0], f"table{number}", **right[1])
            assert table.snapshot().num_rows == len(write_rows(right[0]))


def write_rows(rows: Rows | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.table(dict(rows))


for _site, _wrong, _advice in WRITES:
    of_write(_site, _wrong, _advice)


@follows("envelopes.debezium:DebeziumEnvelope.commands")
def _(told: Told) -> None:
    bad = event(v={"not": "a text"})
    with told:
        write(told.folder, bad, **DEBEZIUM)
    told("a table with on_error=quarantine keeps such rows apart and goes on")
    write(told.folder, bad, **DEBEZIUM, onError="quarantine")
    assert len(list(Table.open(str(told.folder / "table")).quarantine())) == 1


@follows("envelopes.debezium:DebeziumEnvelope.commands")
def _(told: Told) -> None:
    unsent = event(v="__debezium_unavailable_value")
    with told:
        write(told.folder, unsent, **DEBEZIUM)
    told("a table made with mergeEngine=partial-update keeps the old value")
    for rows in (EVENT, unsent):
        write(told.folder, rows, "partial", **DEBEZIUM, mergeEngine="partial-update")
    assert Table.open(str(told.folder / "partial")).snapshot()["v"].to_pylist() == ["a"]


@follows("envelopes.kafka:KafkaEnvelope.commands")
def _(told: Told) -> None:
    bad = record({"v": 1})
    with told:
        write(told.folder, bad, **KAFKA)
    told("a table with on_error=quarantine keeps such rows apart and goes on")
    write(told.folder, bad, **KAFKA, onError="quarantine")
    assert len(list(Table.open(str(told.folder / "table")).quarantine())) == 1


@follows("envelopes.changelog:ChangelogEnvelope.commands")
def _(told: Told) -> None:
    changes = {**ROW, "_change_type": ["no change"], "_commit_version": [1]}
    with told:
        write(told.folder, changes, envelope="changelog")
    told("a table with on_error=quarantine keeps such rows apart and goes on")
    write(told.folder, changes, envelope="changelog", onError="quarantine")
    assert len(list(Table.open(str(told.folder / "table")).quarantine())) == 1
