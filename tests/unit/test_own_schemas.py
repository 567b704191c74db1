"""Payloads that name their own schema: what is found in them, merged of them, and wrong in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.envelopes.inferred_schema import infer_options
from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.options.write import WriteOptions
from spark_upsert.payloads.connect import by_schema, natural_type, parse_connect_json_schema
from spark_upsert.payloads.decoder import Unreadable
from spark_upsert.payloads.embedded_schema import (
    Inline,
    WriterSchemaDecoder,
    infer_fields,
    merge_schemas,
)
from spark_upsert.payloads.logical_types import ConnectSchema
from tests.support.envelopes import KAFKA, plan, reasons, records, rows_of, write_found
from tests.support.own_schemas import DECIMAL, INLINE, change, change_schema, inline, member, struct

MICROS, UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")

KEY = struct(member("id", "int64"))
ROW = struct(member("id", "int64"), member("name", "string"), member("n", "int32"))
WIDER = struct(member("id", "int64"), member("n", "int64"), member("extra", "boolean"))
DEBEZIUM = {
    "envelope": "debezium",
    "sequenceBy": "source.lsn",
    "valueFormat": "json",
    "valueSchema": "inline",
}


def decimal(scale: int | None = None, precision: int | None = None) -> dict[str, Any]:
    sizes = {"scale": scale, "connect.decimal.precision": precision}
    parameters = {name: str(size) for name, size in sizes.items() if size is not None}
    return {"type": "bytes", "name": DECIMAL, "parameters": parameters}


@pytest.mark.parametrize(
    ("message", "schema"),
    [
        pytest.param(b'{"id": 1}', None, id="a bare message has none"),
        pytest.param(b'{"schema":null,"payload":1}', b"null", id="null is none"),
        pytest.param(
            b'{"schema":{"doc":"}, \\"payload\\":{"},"payload":1}',
            b'{"doc":"}, \\"payload\\":{"}',
            id="a text that looks like the payload",
        ),
        pytest.param(
            b'{"schema":{"default":{"a":{},"payload":1}},"payload":1}',
            b'{"default":{"a":{},"payload":1}}',
            id="a default with a member of that name",
        ),
        pytest.param(b'{"schema":{"a":1', b"", id="cut within the schema"),
        pytest.param(b'{"schema":{"a":1},"other":1}', b"", id="something else follows"),
        pytest.param(b'{"schema":5,"payload":1}', b"", id="a number is no schema"),
        pytest.param(b'{"schema":' + b'{"a":' * 9999, b"", id="nested too deep"),
    ],
)
def test_a_schema_ends_where_json_says(message: bytes, schema: bytes | None) -> None:
    payloads = pa.array([message, b'{"schema":{"z":1},"payload":2}', message, None], pa.binary())
    found = {row: alike.schema for alike in by_schema(payloads) for row in alike.rows.tolist()}
    assert found == {0: schema, 1: b'{"z":1}', 2: schema, 3: None}


def test_messages_are_cut_behind_their_schema() -> None:
    payloads = pa.array([b'{"schema":{},"payload": {"a":1}}', b"{}", b'{"schema":{},"payload":2}'])
    bodies = [alike.bodies(payloads).to_pylist() for alike in by_schema(payloads)]
    assert bodies == [[b"{}"], [b'{"payload": {"a":1}}', b'{"payload":2}']]


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "int8"}, pa.int8()),
        ({"type": "float"}, pa.float32()),
        ({"type": "bytes"}, pa.binary()),
        ({"type": "int32", "name": "io.debezium.time.Date"}, pa.date32()),
        ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, MICROS),
        ({"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, MICROS),
        ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, UTC),
        (decimal(2), pa.decimal128(38, 2)),
        (decimal(2, 9), pa.decimal128(9, 2)),
        ({"type": "array", "items": {"type": "int32"}}, pa.list_(pa.field("element", pa.int32()))),
        (struct(member("a", "int8")), pa.struct({"a": pa.int8()})),
    ],
    ids=lambda value: value.get("name", value["type"]) if isinstance(value, dict) else None,
)
def test_a_type_of_connect_is_the_table_s(schema: dict[str, Any], type_: pa.DataType) -> None:
    assert natural_type(ConnectSchema.parse(schema), "v") == (type_, ())


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "map", "keys": {"type": "string"}}, "is of the type 'map'"),
        ({"type": "struct", "fields": []}, "without members"),
        (decimal(), "no scale"),
        (decimal(-2, 37), "more than 38 digits"),
        (decimal(2, 65), "more than 38 digits"),
        ({"type": "nonsense"}, "is of the type 'nonsense'"),
    ],
)
def test_a_type_that_no_column_holds_is_named(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaError, match=why) as caught:
        natural_type(ConnectSchema.parse(struct({**schema, "field": "w"})), "v")
    assert caught.value.fields["column"] == "v.w"


INDEXED = {"b": {"type": "string", "connect.index": 1}, "a": {"type": "string", "connect.index": 0}}
TIME = {"type": "integer", "connect.type": "int64", "title": "io.debezium.time.MicroTimestamp"}
MONEY = {"type": "number", "title": DECIMAL, "connect.parameters": {"scale": "3"}}
JSON_SCHEMAS: dict[str, tuple[Any, pa.DataType]] = {
    "integer": ({"type": "integer"}, pa.int64()),
    "number": ({"type": "number"}, pa.float64()),
    "a nullable text": ({"type": ["null", "string"]}, pa.string()),
    "null or a text": ({"oneOf": [{"type": "null"}, {"type": "string"}]}, pa.string()),
    "Connect's int16": ({"type": "integer", "connect.type": "int16"}, pa.int16()),
    "Connect's bytes": ({"type": "string", "connect.type": "bytes"}, pa.binary()),
    "Debezium's time": (TIME, MICROS),
    "a decimal": (MONEY, pa.decimal128(38, 3)),
    "an enum": ({"enum": ["a", "b"]}, pa.string()),
    "an array": ({"type": "array", "items": {"type": "boolean"}}, pa.list_(pa.bool_())),
    "a reference": ({"$ref": "#/definitions/x"}, pa.int64()),
    "members by index": ({"properties": INDEXED}, pa.struct({"a": pa.string(), "b": pa.string()})),
}


@pytest.mark.parametrize(("schema", "type_"), JSON_SCHEMAS.values(), ids=JSON_SCHEMAS)
def test_a_json_schema_says_the_type(schema: Any, type_: pa.DataType) -> None:
    document = {"properties": {"v": schema}, "definitions": {"x": {"type": "integer"}}}
    assert natural_type(parse_connect_json_schema(document), "")[0].field("v").type == type_


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "#/definitions/loop"}, id="a reference to itself"),
        pytest.param({"$ref": "#/definitions/tree"}, id="an object that holds itself"),
        pytest.param({"$ref": "elsewhere"}, id="a reference to nowhere"),
        pytest.param(5, id="no schema"),
    ],
)
def test_a_json_schema_of_no_one_type_is_unreadable(schema: Any) -> None:
    definitions = {
        "loop": {"$ref": "#/definitions/loop"},
        "tree": {"properties": {"inside": {"$ref": "#/definitions/tree"}}},
    }
    with pytest.raises(Unreadable):
        parse_connect_json_schema({"properties": {"v": schema}, "definitions": definitions})


def test_a_member_of_several_types_is_no_column() -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "number"}]}
    for schema, type_ in (
        ({"type": ["string", "integer"]}, "string or integer"),
        (either, "one of"),
    ):
        said = parse_connect_json_schema({"properties": {"v": schema, "w": {"type": "string"}}})
        found, (refused,) = natural_type(said, "value")
        assert found == pa.struct({"w": pa.string()})
        assert refused.path == ("v",)
        assert f"at 'value.v' is of the type '{type_}" in refused.error.message


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": pa.int32()}, {"a": pa.int64()}, {"a": pa.int64()}),
        ({"a": pa.int64()}, {"a": pa.int8()}, {"a": pa.int64()}),
        ({"a": pa.float32()}, {"b": pa.string()}, {"a": pa.float32(), "b": pa.string()}),
        (
            {"r": pa.struct({"a": pa.int8()})},
            {"r": pa.struct({"b": pa.int8(), "a": pa.int16()})},
            {"r": pa.struct({"a": pa.int16(), "b": pa.int8()})},
        ),
        ({"a": pa.int32()}, {"a": pa.string()}, "'a' as int32 and as string"),
        ({"a": pa.int64()}, {"a": pa.float64()}, "'a' as int64 and as double"),
        ({"a": pa.int32()}, {"A": pa.int32()}, "differ in case only"),
        ({"r": pa.struct({"a": pa.int8()})}, {"r": pa.struct({"a": MICROS})}, "'r.a' as"),
    ],
)
def test_schemas_are_joined(one: Any, other: Any, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(SchemaError, match=expected):
            merge_schemas(pa.schema(one), pa.schema(other))
    else:
        assert merge_schemas(pa.schema(one), pa.schema(other)) == pa.schema(expected)


def test_what_a_payload_decodes_to_depends_on_it_alone() -> None:
    """A FLOAT beside a DOUBLE is the float that it is alone."""
    one, other = struct(member("x", "float")), struct(member("x", "double"))
    payloads = [inline(one, {"x": 0.1}), inline(other, {"x": 0.1}), inline(ROW, {"id": 1}), b"{}"]
    schemas = Inline("value")
    together = pa.array([*payloads, None], pa.binary())
    found = infer_fields(schemas, [together]).fields
    assert found is not None
    whole = WriterSchemaDecoder(schemas, found).decode(together)
    for place, payload in enumerate(payloads):
        alone = WriterSchemaDecoder(schemas, found).decode(pa.array([payload]))
        assert [c[place] for c in whole.columns] == [c[0] for c in alone.columns]
    assert whole.columns[0].to_pylist()[:2] == [0.10000000149011612, 0.1]
    assert whole.reasons is not None
    assert [reason is None for reason in whole.reasons.to_pylist()] == [True] * 3 + [False, True]


def test_a_table_gets_the_columns_of_its_payloads_and_changes_only_where_it_may(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    write_found(path, records([(inline(KEY, {"id": 1}), inline(ROW, {"n": 5}))]), **INLINE)
    wider = records(
        [
            (inline(KEY, {"id": 2}), inline(WIDER, {"id": 2, "n": 2**40, "extra": True})),
            (inline(KEY, {"id": 3}), None),
        ]
    )
    with pytest.raises(SchemaError, match="merge_schema=true"):
        write_found(path, wider, **INLINE)
    write_found(path, wider, **INLINE, mergeSchema=True)
    assert rows_of(path) == [
        {"id": 1, "name": None, "n": 5, "extra": None},
        {"id": 2, "name": None, "n": 2**40, "extra": True},
    ]
    # Rows that say nothing are those of the table.
    write_found(path, records([(inline(KEY, {"id": n}), None) for n in (1, 2)]), **INLINE)
    assert rows_of(path) == []


def test_payloads_without_a_schema_make_no_table(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="none of 1 payloads in 'value' says its schema"):
        write_found(tmp_path / "t", records([(b'{"id":1}', b'{"n":1}')]), **INLINE)
    rows = records([(inline(struct(), {}), inline(struct(), {}))] * 2)
    with pytest.raises(SchemaError, match=r"none of 2 payloads .*first: its schema cannot be held"):
        write_found(tmp_path / "t", rows, **INLINE, onError="quarantine")


def test_a_payload_without_its_schema_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "t"
    good = inline(ROW, {"n": 5})
    hostile = [b'{"n": 5}', b"?", good[:-2], good[:40], inline(ROW, None), inline(ROW, {"n": "x"})]
    pairs = [(inline(KEY, {"id": n}), payload) for n, payload in enumerate([good, *hostile])]
    with pytest.raises(DataError, match="undecodable"):
        write_found(path, records(pairs), **INLINE)
    write_found(path, records(pairs), **INLINE, onError="quarantine")
    assert [row["id"] for row in rows_of(path)] == [0]
    assert len(reasons(path)) == len(hostile)
    assert sum("does not hold its schema" in reason for reason in reasons(path)) == 2


HELD_BY_NO_TABLE: dict[str, Any] = {
    "a map": struct(member("n", "int32"), member("w", "map")),
    "no members": struct(),
    "names that differ in case": struct(member("w", "int32"), member("W", "int32")),
    "a reserved name": struct(member("n", "int32"), member("_diff", "int32")),
}


@pytest.mark.parametrize("schema", HELD_BY_NO_TABLE.values(), ids=HELD_BY_NO_TABLE)
@pytest.mark.parametrize("is_known", [False, True], ids=["a new table", "a known one"])
def test_a_schema_that_no_table_can_hold_is_said_of_its_row(
    tmp_path: Path, schema: Any, is_known: bool
) -> None:
    path, good = tmp_path / "t", inline(ROW, {"n": 5})
    if is_known:
        write_found(path, records([(inline(KEY, {"id": 1}), good)]), **INLINE, onError="quarantine")
    pairs = [(inline(KEY, {"id": 2}), inline(schema, {})), (inline(KEY, {"id": 3}), good)]
    rows = records(pairs, offsets=[8, 9])
    with pytest.raises(SchemaError):
        write_found(tmp_path / "strict", rows, **INLINE)
    write_found(path, rows, **INLINE, onError="quarantine")
    assert [row["id"] for row in rows_of(path)] == ([1, 3] if is_known else [3])
    [why] = reasons(path)
    assert "the value is undecodable: its schema cannot be held: " in why


@pytest.mark.parametrize("side", [DEBEZIUM, INLINE], ids=["events", "rows"])
def test_a_schema_that_spells_a_name_otherwise_loses_no_value(
    tmp_path: Path, side: dict[str, Any]
) -> None:
    path, other = tmp_path / "t", struct(member("id", "int64"), member("N", "int32"))

    def message(schema: Any, values: dict[str, Any], lsn: int) -> bytes:
        if side is INLINE:
            return inline(schema, values)
        return inline(change_schema(schema), change("c", None, values, lsn))

    pairs = [
        (inline(KEY, {"id": 1}), message(ROW, {"id": 1, "n": 5}, 5)),
        (inline(KEY, {"id": 2}), message(other, {"id": 2, "N": 6}, 6)),
    ]
    write_found(path, records(pairs[:1]), **side, onError="quarantine")
    write_found(path, records(pairs[1:], offsets=[9]), **side)
    assert [row["id"] for row in rows_of(path)] == [1]
    assert "a schema of the payloads has " in reasons(path)[0]


def test_events_say_columns_and_key(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old, new = change_schema(ROW), change_schema(WIDER)
    one, two = {"id": 1, "name": "a", "n": 1}, {"id": 2, "n": 2, "extra": False}
    history = [
        (inline(KEY, {"id": 1}), inline(old, change("c", None, one, 5))),
        (inline(KEY, {"id": 2}), inline(new, change("c", None, two, 6))),
        (inline(KEY, {"id": 1}), inline(old, change("d", None, None, 7))),
        (inline(KEY, {"id": 1}), None),
    ]
    # A tombstone without its delete changes nothing.
    for rows in (history, [(inline(KEY, {"id": 2}), None)]):
        write_found(path, records(rows), **DEBEZIUM)
        assert rows_of(path) == [{"id": 2, "name": None, "n": 2, "extra": False}]


def test_rows_that_are_no_events_are_told(tmp_path: Path) -> None:
    rows = records([(inline(KEY, {"id": 1}), inline(ROW, {"id": 1}))])
    with pytest.raises(SchemaError, match="not those of Debezium's change events"):
        write_found(tmp_path / "t", rows, **DEBEZIUM)


def test_inferred_options_are_pickled(tmp_path: Path) -> None:
    options = WriteOptions.parse({"path": str(tmp_path), **INLINE})
    rows = records([(inline(KEY, {"id": 1}), inline(ROW, {"n": 5}))])
    found = infer_options(options, rows.to_batches(), None)
    assert found.envelope.found["value"].names == ["id", "name", "n"]
    assert pickle.loads(pickle.dumps(found)) == found
    decoder = WriterSchemaDecoder(Inline("value"), found.envelope.found["value"])
    assert pickle.loads(pickle.dumps(decoder)) == decoder


URL = {"schemaRegistry.url": "http://registry:8081"}
FRAMED = {"envelope": "kafka", "keyFormat": "avro-confluent", "valueFormat": "avro-confluent"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({**INLINE, "valueFormat": "avro"}, "means JSON that begins with its schema"),
        ({**FRAMED, "valueSchema": "registry", "keySchema": "x"}, "'schemaRegistry.url' is req"),
        ({**INLINE, "valueSchema": "registry"}, "has no ids of schemas"),
        ({**INLINE, **URL}, "no schema is to be asked for"),
        ({**FRAMED, **URL, "valueSchemaId": "7"}, "each payload is read by its own"),
        ({**INLINE, "valueSubject": "s"}, "names a schema of a registry"),
        ({**DEBEZIUM, "timeUnit": "micros"}, "whose schema says"),
        ({**DEBEZIUM, "timeUnit.at": "micros"}, "whose schema says"),
        ({**FRAMED, "schemaRegistry.user": "me"}, "'schemaRegistry.url' is missing"),
        ({**FRAMED, "schemaRegistry.url": "http://me:pw@host"}, "which logs would show"),
        ({**FRAMED, "schemaRegistry.url": "registry:8081"}, "an address such as"),
        ({**FRAMED, **URL, "schemaRegistry.password": "pw"}, "schemaRegistry.user"),
        ({**FRAMED, **URL, "schemaRegistry.headers": "a: b\nsecret"}, "line 2 is none"),
    ],
)
def test_options_that_do_not_fit_are_told(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why) as caught:
        WriteOptions.parse({"path": "/t", **options})
    assert "pw" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    secrets = {"schemaRegistry.user": "me", "schemaRegistry.password": "hunter2"}
    secrets["schemaRegistry.headers"] = "X-Key: hunter2"
    options = WriteOptions.parse({"path": "/t", **FRAMED, **URL, **secrets})
    assert options.envelope.registry is not None
    assert options.envelope.registry.headers == (("X-Key", "hunter2"),)
    assert "hunter2" not in repr(options)


def test_a_plan_before_the_rows_says_what_to_do(tmp_path: Path) -> None:
    for options in (INLINE, {**FRAMED, **URL}):
        with pytest.raises(OptionError, match=r"planned before it has any(?s:.*)/lake/{topic}"):
            plan(tmp_path / "t", KAFKA, **options)


def test_more_schemas_than_are_kept_are_all_found() -> None:
    count = 1100
    payloads = [inline(struct(member(f"c{n}", "int8")), {f"c{n}": 1}) for n in range(count)]
    found = infer_fields(Inline("value"), [pa.array(payloads)]).fields
    assert found is not None
    assert found.names == [f"c{n}" for n in range(count)]
