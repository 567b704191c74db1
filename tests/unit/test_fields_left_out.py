"""A field that no column can hold: left out by ``exceptColumnList``, or an error that names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import SchemaError
from spark_upsert.payloads.schema_registry import forget_schemas
from tests.support import own_schemas
from tests.support.debezium import bare
from tests.support.envelopes import plan, records, rows_of, write, write_found
from tests.support.own_schemas import DECIMAL, change, change_schema, inline, member, record, struct
from tests.support.registry import RegistryDouble, framed, running_registry

LARGE = {"scale": "0", "connect.decimal.precision": "39"}
INT_MAP = {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}
CONNECT: dict[str, tuple[dict[str, Any], Any]] = {
    "a map": (INT_MAP, {"a": 1}),
    "a decimal of no scale": ({"type": "bytes", "name": DECIMAL}, "AQ=="),
    "a large decimal": ({"type": "bytes", "name": DECIMAL, "parameters": LARGE}, "AQ=="),
    "an array of maps": ({"type": "array", "items": INT_MAP}, [{"a": 1}]),
    "a struct with a map": (struct(member("m", "map"), member("n", "int32")), {"m": {}, "n": 1}),
    "an empty object": (struct(), {}),
}
NODE = record("Node", n="int", more={"type": "array", "items": "Node"})
AVRO: dict[str, tuple[Any, Any]] = {
    "a union": (["null", "int", "string"], "a"),
    "an array of unions": ({"type": "array", "items": ["int", "string"]}, [1, "a", 2]),
    "a map of unions": ({"type": "map", "values": ["int", "string"]}, {"a": "b"}),
    "a record inside itself": (NODE, {"n": 1, "more": [{"n": 2, "more": []}]}),
    "a large decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 39}, b"\1"),
    "a record with a union": (record("Inner", u=["int", "string"], n="int"), {"u": "a", "n": 1}),
}
KEY, KEY_VALUE = struct(member("id", "int64")), {"id": 1}
AVRO_KEY = record("Key", id="long")


def connect_row(type_: dict[str, Any]) -> dict[str, Any]:
    return struct(member("id", "int64"), {**type_, "field": "x"}, member("v", "string"))


def avro_row(type_: Any) -> dict[str, Any]:
    return record("Row", id="long", x=type_, v="string")


def avro_event(type_: Any) -> dict[str, Any]:
    source = record("Source", lsn="long", table="string")
    images = {"before": ["null", avro_row(type_)], "after": ["null", "Row"]}
    return record("Event", **images, source=source, op="string", ts_ms="long")


def row(x: Any) -> dict[str, Any]:
    return {"id": 1, "x": x, "v": "a"}


Put = Callable[[Path, Any, Any, RegistryDouble, dict[str, str]], None]
JSON_KEYS = {"envelope": "kafka", "keyFormat": "json", "keySchema": "id BIGINT"}
EVENTS = {"envelope": "debezium", "sequenceBy": "source.lsn", "keys": "id"}


def rows_inline(path: Path, type_: Any, x: Any, _: RegistryDouble, more: dict[str, str]) -> None:
    pair = inline(KEY, KEY_VALUE), inline(connect_row(type_), row(x))
    write_found(path, records([pair]), **own_schemas.INLINE, **more)


def events_inline(path: Path, type_: Any, x: Any, _: RegistryDouble, more: dict[str, str]) -> None:
    message = inline(change_schema(connect_row(type_)), change("c", None, row(x), 1))
    options = {**EVENTS, "valueFormat": "json", "valueSchema": "inline", **more}
    write_found(path, records([(inline(KEY, KEY_VALUE), message)]), **options)


def declared(is_event: bool) -> Put:
    """Return a write of Avro whose schema is an option."""

    def put(path: Path, type_: Any, x: Any, _: RegistryDouble, more: dict[str, str]) -> None:
        schema = avro_event(type_) if is_event else avro_row(type_)
        value = change("c", None, row(x), 1) if is_event else row(x)
        options = {**(EVENTS if is_event else JSON_KEYS), **more}
        options |= {"valueFormat": "avro-confluent", "valueSchema": json.dumps(schema)}
        pair = None if is_event else bare(KEY_VALUE), own_schemas.avro(1, schema, value)
        write(path, records([pair]), **options)

    return put


def by_registry(is_event: bool, has_subject: bool) -> Put:
    """Return a write of Avro whose schemas a registry has, named by rows or by a subject."""

    def put(path: Path, type_: Any, x: Any, registry: RegistryDouble, more: dict[str, str]) -> None:
        schema = avro_event(type_) if is_event else avro_row(type_)
        value = change("c", None, row(x), 1) if is_event else row(x)
        key_id = registry.register("t-key", AVRO_KEY)
        value_id = registry.register("t-value", schema)
        key = own_schemas.avro(key_id, AVRO_KEY, KEY_VALUE)
        rows = records([(key, own_schemas.avro(value_id, schema, value))])
        options = {**(EVENTS if is_event else {"envelope": "kafka"}), **more}
        options |= {"keyFormat": "avro-confluent", "valueFormat": "avro-confluent"}
        options["schemaRegistry.url"] = registry.url
        if has_subject:
            write(path, rows, **options, keySubject="t-key", valueSubject="t-value")
        else:
            write_found(path, rows, **options)

    return put


ENTRIES: dict[str, tuple[dict[str, tuple[Any, Any]], Put]] = {
    "rows, inline": (CONNECT, rows_inline),
    "events, inline": (CONNECT, events_inline),
    "rows, declared": (AVRO, declared(is_event=False)),
    "events, declared": (AVRO, declared(is_event=True)),
    "rows, of a registry": (AVRO, by_registry(is_event=False, has_subject=False)),
    "events, of a registry": (AVRO, by_registry(is_event=True, has_subject=False)),
    "rows, of a subject": (AVRO, by_registry(is_event=False, has_subject=True)),
    "events, of a subject": (AVRO, by_registry(is_event=True, has_subject=True)),
}


@pytest.fixture
def registry() -> Iterator[RegistryDouble]:
    with running_registry() as double:
        yield double


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        pytest.param(entry, name, id=f"{entry}, {name}")
        for entry, (types, _) in ENTRIES.items()
        for name in types
    ],
)
@pytest.mark.sweep(16)
def test_a_field_that_no_column_holds_is_left_out_or_named(
    tmp_path: Path, registry: RegistryDouble, entry: str, name: str
) -> None:
    types, put = ENTRIES[entry]
    type_, x = types[name]
    forget_schemas()
    with pytest.raises(SchemaError, match=r"no column can hold(?s:.*)except_column_list=x\b"):
        put(tmp_path / "t", type_, x, registry, {})
    assert not (tmp_path / "t" / "_log").exists()
    for _ in range(2):
        put(tmp_path / "t", type_, x, registry, {"exceptColumnList": "X"})
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a"}]


def test_json_of_a_registry_leaves_a_field_out(tmp_path: Path, registry: RegistryDouble) -> None:
    forget_schemas()
    several = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    members = {"v": {"type": "string"}, "x": several, "y": {"type": ["integer", "string"]}}
    number = registry.register("j-value", {"type": "object", "properties": members}, kind="JSON")
    options = {**JSON_KEYS, "valueFormat": "json-confluent", "schemaRegistry.url": registry.url}
    pair = bare(KEY_VALUE), framed(number, bare({"v": "a", "x": 5, "y": "b"}))
    with pytest.raises(SchemaError, match=r"'value\.x' is of the type 'one of several'"):
        write_found(tmp_path / "t", records([pair]), **options)
    write_found(tmp_path / "t", records([pair]), **options, exceptColumnList="x,y")
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a"}]


def test_a_column_that_is_left_out_by_name_alone_is_not_lost(tmp_path: Path) -> None:
    """A table has it as a text; a schema that has it as a map does not make it null."""

    def put(type_: dict[str, Any], x: Any, **more: str) -> None:
        pair = inline(KEY, KEY_VALUE), inline(connect_row(type_), row(x))
        write_found(tmp_path / "t", records([pair]), **own_schemas.INLINE, **more)

    put({"type": "string"}, "b", onError="quarantine")
    put(*CONNECT["a map"])
    assert rows_of(tmp_path / "t") == []


def test_the_columns_to_store_leave_a_field_out(tmp_path: Path) -> None:
    schema = avro_row(AVRO["a union"][0])
    options = {**JSON_KEYS, "valueFormat": "avro", "valueSchema": json.dumps(schema)}
    fields = records([]).schema
    assert plan(tmp_path / "t", fields, **options, columnList="id,v").write.envelope is not None
    with pytest.raises(SchemaError, match="union of several types"):
        plan(tmp_path / "t", fields, **options, columnList="id,x")
