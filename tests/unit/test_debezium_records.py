"""The debezium envelope on Kafka's records: what messages of Debezium mean, byte for byte."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.table.table import Table
from tests.support.debezium import (
    AVRO,
    AVRO_KEY,
    AVRO_ROW,
    CREATE,
    DELETE,
    OPTIONS,
    ROW,
    UPDATE,
    avro_event,
    avro_row,
    bare,
    event,
    image,
    key,
    member,
    schema_of,
    wrapped,
    wrapped_key,
)
from tests.support.envelopes import (
    KAFKA,
    assert_sound,
    counters_of,
    plan,
    quarantine_of,
    records,
    rows_of,
    write,
)

KEY = image(1, None)
QUARANTINE = {**OPTIONS, "onError": "quarantine"}

Message = tuple[int, dict[str, Any] | None]
"""The number in the record's key, and the event; None for a record without a value."""

HISTORIES: dict[str, tuple[list[Message], dict[int, str | None]]] = {
    "an update to nulls": ([(1, CREATE), (1, event("u", None, image(1, None), 2))], {1: None}),
    "a late update": ([(1, UPDATE), (1, CREATE)], {1: "b"}),
    "a delete and its tombstone": ([(1, CREATE), (1, DELETE), (1, None)], {}),
    "a delete of the replica identity": ([(1, CREATE), (1, event("d", KEY, None, 2))], {}),
    "a delete that only the record's key names": (
        [(1, CREATE), (1, event("d", None, None, 2))],
        {},
    ),
    "a row that comes back before its tombstone is read": (
        [(1, CREATE), (1, DELETE), (1, event("c", None, image(1, "z"), 3)), (1, None)],
        {1: "z"},
    ),
    "a change of the key, as Debezium writes it": (
        [(1, CREATE), (1, DELETE), (1, None), (2, event("c", None, image(2, "a"), 2))],
        {2: "a"},
    ),
    "a change of the key in one event": (
        [(1, CREATE), (2, event("u", image(1, "a"), image(2, "b"), 2))],
        {2: "b"},
    ),
}


@pytest.mark.parametrize(
    ("form", "policy"),
    [
        ("bare", "fail"),
        pytest.param("wrapped", "fail", marks=pytest.mark.slow),
        pytest.param("wrapped", "inline", marks=pytest.mark.slow),
        pytest.param("bare", "quarantine", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", HISTORIES.values(), ids=HISTORIES.keys())
@pytest.mark.sweep(4)
def test_a_history_of_messages_is_applied(
    tmp_path: Path, case: tuple[list[Message], dict[int, str | None]], form: str, policy: str
) -> None:
    history, expected = case
    of_key, of_value = (key, bare) if form == "bare" else (wrapped_key, wrapped)
    pairs = [(of_key(k), None if e is None else of_value(e)) for k, e in history]
    for way, path in (("at once", tmp_path / "once"), ("one by one", tmp_path / "each")):
        for part in [pairs] if way == "at once" else [[pair] for pair in pairs]:
            write(path, records(part), onError=policy, **OPTIONS)
        assert {row["id"]: row["v"] for row in rows_of(path)} == expected
        assert policy != "quarantine" or quarantine_of(path) == []
        assert_sound(path)


POSTGRESQL = """{
  "schema": {
    "type": "struct",
    "fields": [
      {
        "type": "struct",
        "fields": [
          {"type": "int32", "optional": false, "default": 0, "field": "id"},
          {"type": "string", "optional": false, "field": "first_name"},
          {
            "type": "int64", "optional": true, "name": "io.debezium.time.MicroTimestamp",
            "version": 1, "field": "seen"
          },
          {
            "type": "int64", "optional": true, "name": "io.debezium.time.Timestamp",
            "version": 1, "field": "born_at"
          },
          {
            "type": "string", "optional": true, "name": "io.debezium.time.ZonedTimestamp",
            "version": 1, "field": "made"
          },
          {
            "type": "int32", "optional": true, "name": "io.debezium.time.Date",
            "version": 1, "field": "since"
          },
          {
            "type": "bytes", "optional": true, "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "10"}, "field": "balance"
          }
        ],
        "optional": true, "name": "PostgreSQL_server.inventory.customers.Value", "field": "%s"
      },
      {
        "type": "struct",
        "fields": [
          {"type": "string", "optional": false, "field": "version"},
          {"type": "string", "optional": false, "field": "connector"},
          {"type": "string", "optional": false, "field": "name"},
          {"type": "int64", "optional": false, "field": "ts_ms"},
          {
            "type": "string", "optional": true, "name": "io.debezium.data.Enum", "version": 1,
            "parameters": {"allowed": "true,first,first_in_data_collection,last,false"},
            "default": "false", "field": "snapshot"
          },
          {"type": "string", "optional": false, "field": "db"},
          {"type": "string", "optional": true, "field": "sequence"},
          {"type": "string", "optional": false, "field": "schema"},
          {"type": "string", "optional": false, "field": "table"},
          {"type": "int64", "optional": true, "field": "txId"},
          {"type": "int64", "optional": true, "field": "lsn"},
          {"type": "int64", "optional": true, "field": "xmin"}
        ],
        "optional": false, "name": "io.debezium.connector.postgresql.Source", "field": "source"
      },
      {
        "type": "struct",
        "fields": [
          {"type": "string", "optional": false, "field": "id"},
          {"type": "int64", "optional": false, "field": "total_order"},
          {"type": "int64", "optional": false, "field": "data_collection_order"}
        ],
        "optional": true, "name": "event.block", "version": 1, "field": "transaction"
      },
      {"type": "string", "optional": false, "field": "op"},
      {"type": "int64", "optional": true, "field": "ts_ms"}
    ],
    "optional": false, "name": "PostgreSQL_server.inventory.customers.Envelope", "version": 2
  },
  "payload": {
    "%s": {
      "id": 1, "first_name": "Anne", "seen": 1529507596945104, "born_at": 1529507596945,
      "made": "2018-06-20T15:13:16.945104Z", "since": 17702, "balance": "AeJA"
    },
    "source": {
      "version": "3.3.1.Final", "connector": "postgresql", "name": "PostgreSQL_server",
      "ts_ms": 1559033904863, "snapshot": "false", "db": "postgres",
      "sequence": "[\\"24023119\\",\\"24023128\\"]", "schema": "public", "table": "customers",
      "txId": 555, "lsn": 24023128, "xmin": null
    },
    "transaction": {"id": "555:24023128", "total_order": 1, "data_collection_order": 1},
    "op": "%s",
    "ts_ms": 1559033904863
  }
}"""
"""A message of PostgreSQL's connector (pgoutput, ``time.precision.mode=adaptive``), as the broker
holds it but for the spaces, and with one image of the row instead of both.

Its fields are those of the page "Debezium connector for PostgreSQL", "Data change events":
https://debezium.io/documentation/reference/3.3/connectors/postgresql.html#postgresql-events
"""

MYSQL = """{
  "before": null,
  "after": {
    "id": 10001, "order_date": 16816, "made": 1465581600000, "price": %s, "quantity": 1
  },
  "source": {
    "version": "3.3.1.Final", "connector": "mysql", "name": "mysql-server", "ts_ms": 1465581029000,
    "snapshot": "false", "db": "inventory", "sequence": null, "table": "orders",
    "server_id": 223344, "gtid": null, "file": "mysql-bin.000003", "pos": 484, "row": 0,
    "thread": 7, "query": null
  },
  "transaction": null,
  "op": "c",
  "ts_ms": 1465581029523
}"""
"""A message of MySQL's connector (``time.precision.mode=connect``) without its schema.

Its fields are those of the page "Debezium connector for MySQL", "Data change events":
https://debezium.io/documentation/reference/3.3/connectors/mysql.html#mysql-events
"""


@pytest.mark.parametrize("form", ["wrapped", "bare"])
def test_a_message_of_postgresql(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"
    options = {
        **OPTIONS,
        "sequenceBy": "source.lsn,transaction.total_order",
        "valueSchema": "id INT, first_name STRING, seen TIMESTAMP_NTZ, born_at TIMESTAMP_NTZ, "
        "made TIMESTAMP, since DATE, balance DECIMAL(10, 2)",
    }
    if form == "bare":
        units = {"timeUnit": "micros", "timeUnit.born_at": "millis"}
        options |= {**units, "decimalHandling": "precise"}

    def sent(text: str) -> bytes:
        return text.encode() if form == "wrapped" else bare(json.loads(text)["payload"])

    at = dt.datetime(2018, 6, 20, 15, 13, 16, 945104)
    write(path, records([(key(1), sent(POSTGRESQL % ("after", "after", "c")))]), **options)
    assert rows_of(path) == [
        {
            "id": 1,
            "first_name": "Anne",
            "seen": at,
            "born_at": at.replace(microsecond=945000),
            "made": at.replace(tzinfo=dt.UTC),
            "since": dt.date(2018, 6, 20),
            "balance": Decimal("1234.56"),
        }
    ]
    delete = (POSTGRESQL % ("before", "before", "d")).replace("24023128,", "24023999,")
    write(path, records([(key(1), sent(delete)), (key(1), None)]), **options)
    assert rows_of(path) == []


@pytest.mark.parametrize(
    ("mode", "price"), [("precise", '"BNI="'), ("string", '"12.34"'), ("double", "12.34")]
)
def test_a_message_of_mysql(tmp_path: Path, mode: str, price: str) -> None:
    path = tmp_path / "t"
    options = {
        **OPTIONS,
        "sequenceBy": "source.file,source.pos,source.row",
        "valueSchema": "id BIGINT, order_date DATE, made TIMESTAMP_NTZ, price DECIMAL(10, 2)",
        "timeUnit": "millis",
        "decimalHandling": mode,
    }
    write(path, records([(key(10001), (MYSQL % price).encode())]), **options)
    assert rows_of(path) == [
        {
            "id": 10001,
            "order_date": dt.date(2016, 1, 16),
            "made": dt.datetime(2016, 6, 10, 18, 0),
            "price": Decimal("12.34"),
        }
    ]


def test_bare_and_wrapped_messages_of_several_schemas_may_be_mixed(tmp_path: Path) -> None:
    """As after a change of the converter, or of the database's schema."""
    wide = [*ROW, member("w", "int32")]
    pairs = [
        (key(1), bare(CREATE)),
        (key(2), wrapped(event("c", None, image(2, "b"), 2))),
        (key(3), wrapped(event("c", None, {**image(3, "c"), "w": 7}, 3), wide)),
        (key(4), wrapped(event("c", None, {"id": 4}, 4), ROW[:1])),
        (key(5), bare({"schema": None, "payload": event("c", None, image(5, "e"), 5)})),
        (key(6), json.dumps({"schema": schema_of(ROW), "payload": CREATE}, indent=2).encode()),
    ]
    path = tmp_path / "t"
    write(path, records(pairs), **OPTIONS)
    assert [row["v"] for row in rows_of(path)] == ["a", "b", "c", None, "e"]


BROKEN: dict[str, tuple[bytes, str]] = {
    "garbage": (b"\x00\x01garbage", "the value is undecodable: not JSON"),
    "nothing": (b"", "the value is undecodable"),
    "cut off": (bare(UPDATE)[:-40], "the value is undecodable: not JSON"),
    "not UTF-8": (bare(UPDATE).replace(b'"b"', b'"\xff"'), "not UTF-8"),
    "null": (b"null", "the value is undecodable: expected a JSON object, found null"),
    "wrapped null": (bare({"schema": None, "payload": None}), "the event has no 'op'"),
    "a value of another type": (
        bare(event("u", None, {"id": 1, "v": 7}, 2)),
        "'after.v' is declared string, found number",
    ),
    "a schema that is none": (b'{"schema":{"type":1,"payload":{}}', "is not JSON"),
    "a schema of something else": (
        bare({"schema": {"type": "string"}, "payload": "x"}),
        "expected the schema of an object",
    ),
    "a row that was flattened": (bare(image(1, "b")), "the event has no 'op'"),
}


@pytest.mark.parametrize(("payload", "reason"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.sweep(6)
def test_what_is_broken_fails_or_is_kept_apart_and_never_deletes(
    tmp_path: Path, payload: bytes, reason: str
) -> None:
    path = tmp_path / "fail"
    write(path, records([(key(1), bare(CREATE))]), **OPTIONS)
    create = bare(event("c", None, image(2, "b"), 3))
    with pytest.raises(DataError) as caught:
        write(path, records([(key(2), create), (key(1), payload)]), **OPTIONS)
    assert reason in str(caught.value)
    assert rows_of(path) == [image(1, "a")]

    path = tmp_path / "quarantine"
    write(path, records([(key(1), bare(CREATE))]), **QUARANTINE)
    commit = write(path, records([(key(1), payload)]), **OPTIONS)
    assert counters_of(commit).quarantined == 1
    assert counters_of(commit).deletes == 0
    [error] = quarantine_of(path)
    assert reason in error["_reason"]
    assert error["_raw_value"] == payload
    assert (error["id"], error["_raw_key"]) == (1, None)
    assert rows_of(path) == []
    assert_sound(path)


def test_the_key_of_a_record_is_not_asked_where_the_row_has_it(tmp_path: Path) -> None:
    """Keys may be written by another converter, as `Struct{id=1}`."""
    write(
        tmp_path / "t", records([(b"Struct{id=1}", bare(CREATE)), (None, bare(UPDATE))]), **OPTIONS
    )
    assert rows_of(tmp_path / "t") == [image(1, "b")]


@pytest.mark.parametrize(
    ("options", "raw"),
    [
        ({"keySchema": "id BIGINT"}, b'{"id":1}'),
        ({"keySchema": "BIGINT"}, b"1"),
        ({"keySchema": "id BIGINT, region STRING"}, b'{"id":1,"region":"x"}'),
        ({"keyFormat": "json-confluent"}, b'\0\0\0\0\x07{"id":1}'),
    ],
    ids=["declared", "a plain value", "with more", "behind a header"],
)
def test_keys_are_read_as_declared(tmp_path: Path, options: dict[str, str], raw: bytes) -> None:
    pairs = [(raw, bare(CREATE)), (raw, bare(event("d", None, None, 2)))]
    commit = write(tmp_path / "t", records(pairs), **OPTIONS, **options)
    assert rows_of(tmp_path / "t") == []
    assert counters_of(commit).rows == 2


def test_ordered_by_offsets_a_record_without_a_value_deletes(tmp_path: Path) -> None:
    """A broker that compacts a topic may leave nothing else of a delete."""
    options = {name: text for name, text in OPTIONS.items() if name != "sequenceBy"}
    path = tmp_path / "t"
    write(path, records([(key(1), bare(CREATE)), (key(2), None), (None, None)]), **options)
    assert rows_of(path) == [image(1, "a")]
    write(path, records([(key(1), None)], offsets=[3]), **options)
    assert rows_of(path) == []
    with pytest.raises(DataError, match="the key is undecodable"):
        write(path, records([(b"?", None)], offsets=[4]), **options)


def test_an_order_may_have_several_parts(tmp_path: Path) -> None:
    """MySQL: the rows of one statement share a position."""

    def change(text: str, file: str, pos: int, row: int) -> bytes:
        source = {"connector": "mysql", "file": file, "pos": pos, "row": row, "server_id": 1}
        return bare({**event("u", None, image(1, text), None), "source": source})

    pairs = [
        (key(1), change("c", "binlog.000002", 4, 1)),
        (key(1), change("b", "binlog.000002", 4, 0)),
        (key(1), change("a", "binlog.000001", 900, 3)),
    ]
    options = {**OPTIONS, "sequenceBy": "source.file,source.pos,source.row"}
    write(tmp_path / "t", records(pairs), **options)
    assert rows_of(tmp_path / "t") == [image(1, "c")]


def test_a_row_that_lacks_a_value_declared_not_null_is_an_error(tmp_path: Path) -> None:
    options = {**OPTIONS, "valueSchema": "id BIGINT, v STRING NOT NULL"}
    with pytest.raises(DataError, match=r"'after\.v' is null, and declared NOT NULL"):
        write(tmp_path / "t", records([(key(1), bare(event("c", None, KEY, 2)))]), **options)


def test_a_large_value_that_was_not_sent_is_not_the_value(tmp_path: Path) -> None:
    """PostgreSQL leaves values out that an update did not touch and that lie apart (TOAST)."""
    update = bare(event("u", None, {**image(1, "__debezium_unavailable_value"), "n": "x"}, 2))
    options = {**OPTIONS, "valueSchema": "id BIGINT, v STRING, n STRING"}
    create = bare(event("c", None, {**image(1, "long"), "n": "y"}, 1))
    pairs = [(key(1), create), (key(1), update)]
    with pytest.raises(DataError, match=r"never sent(?s:.*)REPLICA IDENTITY"):
        write(tmp_path / "t", records(pairs[1:]), **options)
    write(tmp_path / "t", records(pairs), exceptColumnList="v", **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "n": "x"}]

    write(tmp_path / "whole", records(pairs), **options)
    assert rows_of(tmp_path / "whole") == [{"id": 1, "v": "long", "n": "x"}]


# -- options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"valueSchema": ""}, OptionError, "'valueSchema' is required"),
        ({"valueSchema": "BIGINT"}, OptionError, "the columns of a row"),
        ({"valueFormat": "raw"}, OptionError, "one of json, avro, json-confluent, avro-confluent"),
        ({"valueFormat": ""}, OptionError, "'valueSchema' says how Kafka's records are written"),
        ({"valueSchemaId": "7"}, OptionError, "use valueFormat=json-confluent"),
        ({"timeUnit": "seconds"}, OptionError, "one of millis, micros, nanos"),
        ({"timeUnit.ad": "millis"}, SchemaError, "'ad' is not among"),
        ({"timeUnit.v": "millis"}, SchemaError, "the unit of a column that is string"),
        ({"valueSchema": "id BIGINT, m MAP<STRING, INT>"}, SchemaError, "'after.m' is declared"),
        ({"keys": "id,offset", "columnList": "id,offset"}, SchemaError, "key column 'offset'"),
        ({"decimalHandling": "exact"}, OptionError, "one of precise, string, double"),
        ({"onTruncate": "replace"}, OptionError, "one of error, overwrite, ignore"),
        ({"envelope": "kafka", "onTruncate": "ignore"}, OptionError, "has no meaning with the env"),
        ({"columnList": "id,source.txid,nope"}, SchemaError, "'nope' is not among"),
        ({**AVRO, "timeUnit": "micros"}, OptionError, "whose schema says what values mean"),
        ({**AVRO, "valueSchema": json.dumps(AVRO_ROW)}, SchemaError, "'before' is not among"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, options: dict[str, str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        plan(tmp_path / "t", KAFKA, **{**OPTIONS, **options})
    assert text in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_an_envelope_travels(tmp_path: Path) -> None:
    pair = (AVRO_KEY, avro_event("c", None, avro_row(1), 1)), (key(1), bare(CREATE))
    for record, options in zip(pair, (AVRO, OPTIONS), strict=True):
        envelope = plan(tmp_path / options["valueFormat"], KAFKA, **options).write.envelope
        batch = records([record]).combine_chunks().to_batches()[0]
        commands = envelope.commands(batch)
        assert pickle.loads(pickle.dumps(envelope)).commands(batch) == commands
        assert pickle.loads(pickle.dumps(envelope)).commands(batch).num_rows == 1


# -- errors of unknown order -------------------------------------------------------------


def test_garbage_is_kept_apart_also_where_deletes_were_forgotten(tmp_path: Path) -> None:
    """It has no order that a forgotten delete could be newer than."""
    path = tmp_path / "t"
    options = {**OPTIONS, "onError": "quarantine", "tombstoneRetention": "0 epochs"}
    deleted = event("d", image(2, None), None, 9)
    write(path, records([(key(1), bare(CREATE)), (key(2), bare(deleted))]), **options)
    Table.open(str(path)).compact(full=True)
    assert Table.open(str(path)).log.head().low_water is not None
    commit = write(path, records([(key(1), b"?"), (key(2), b"?"), (None, b"?")]), **options)
    assert counters_of(commit).quarantined == 3
    commit = write(path, records([(key(3), None)]), **options)
    assert (counters_of(commit).absent, counters_of(commit).rejected) == (1, 0)
    listed = [(row["id"], row["_raw_key"]) for row in quarantine_of(path)]
    assert listed == [(1, None), (2, None), (None, None)]
    # Nor is it a word on whether its key was deleted: what is late is late.
    late = records([(key(2), bare(event("c", None, image(2, "b"), 9)))])
    commit = write(path, late, lateRows="reject", **options)
    assert counters_of(commit).rejected == 1
    write(path, records([(key(2), bare(event("c", None, image(2, "c"), 10)))]), **options)
    assert rows_of(path) == [image(2, "c")]
    assert_sound(path)
