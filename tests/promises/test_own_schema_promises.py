"""Payloads that name their own schema: each is the row that the schema makes of it, or bad (P5)."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import SchemaError, StorageError
from spark_upsert.payloads.embedded_schema import (
    ByRegistry,
    Inline,
    WriterSchemaDecoder,
    infer_fields,
)
from spark_upsert.payloads.schema_registry import RegistrySettings, forget_schemas, latest_schema
from tests.support.envelopes import records, rows_of, write_found
from tests.support.own_schemas import INLINE, avro, inline, member, record, struct
from tests.support.registry import running_registry

KEY = struct(member("id", "int64"))
ONE = struct(member("x", "float"), member("s", "string", default="}"))
OTHER = struct(member("y", "int32"), member("x", "double"))


def found_in(schemas: Inline | ByRegistry, payloads: list[bytes]) -> tuple[list[Any], list[bool]]:
    """Return what payloads hold, and which are bad."""
    given = pa.array(payloads)
    fields = infer_fields(schemas, [given]).fields
    assert fields is not None
    found = WriterSchemaDecoder(schemas, fields).decode(given)
    names = fields.names
    values = zip(*(column.to_pylist() for column in found.columns), strict=True)
    reasons = [None] * len(payloads) if found.reasons is None else found.reasons.to_pylist()
    rows = [dict(zip(names, row, strict=True)) for row in values]
    return rows, [reason is not None for reason in reasons]


def test_p5_each_message_is_read_by_the_schema_in_front_of_it() -> None:
    trap = struct(member("x", "float"), member("s", "string", default={"a": {}, "payload": 1}))
    payloads = [
        inline(ONE, {"x": 0.1, "s": '"payload":'}),
        inline(OTHER, {"x": 0.1, "y": 2}),
        inline(trap, {"x": 0.1, "s": "t"}),
        inline(ONE, None),
        b'{"x": 0.1}',
    ]
    rows, bad = found_in(Inline("value"), payloads)
    assert bad == [False, False, False, True, True]
    assert rows[:3] == [
        {"x": 0.10000000149011612, "s": '"payload":', "y": None},
        {"x": 0.1, "s": None, "y": 2},
        {"x": 0.10000000149011612, "s": "t", "y": None},
    ]


def test_p5_a_table_of_messages_is_what_they_say() -> None:
    with TemporaryDirectory() as folder:
        pairs = [
            (inline(KEY, {"id": 1}), inline(ONE, {"x": 0.5, "s": "a"})),
            (inline(KEY, {"id": 2}), inline(OTHER, {"x": 0.1, "y": 2})),
        ]
        write_found(Path(folder) / "t", records(pairs), **INLINE)
        assert rows_of(Path(folder) / "t") == [
            {"id": 1, "x": 0.5, "s": "a", "y": None},
            {"id": 2, "x": 0.1, "s": None, "y": 2},
        ]


def test_p5_each_payload_is_read_by_the_schema_of_its_id() -> None:
    one, other = record("R", a="int", b="int"), record("R", b="int", a="long")
    with running_registry() as registry:
        forget_schemas()
        first, second = registry.register("t", one), registry.register("t", other)
        settings = RegistrySettings(urls=(registry.url,), backoff_s=0)
        schemas = ByRegistry(settings, "AVRO", "value", is_connect=False)
        good = [avro(first, one, {"a": 1, "b": 2}), avro(second, other, {"a": 3, "b": 4})]
        rows, bad = found_in(schemas, [*good, avro(99, one, {"a": 5, "b": 6})])
        assert bad == [False, False, True]
        assert rows == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": None, "b": None}]
        # A registry that is away says nothing of payloads.
        forget_schemas()
        registry.refuse_next[:] = [503] * 50
        with pytest.raises(StorageError):
            found_in(schemas, good)


def test_p5_fields_that_came_behind_the_plan_are_not_lost() -> None:
    planned, later = record("R", a="int"), record("R", a="int", b="int")
    with running_registry() as registry:
        forget_schemas()
        registry.register("t", planned)
        settings = RegistrySettings(urls=(registry.url,), backoff_s=0)
        newest = latest_schema(settings, "t")
        assert json.loads(newest.text) == planned
        number = registry.register("t", later)
        schemas = ByRegistry(settings, "AVRO", "value", is_connect=False, newest=newest)
        decoder = WriterSchemaDecoder(schemas, pa.schema({"a": pa.int32()}))
        with pytest.raises(SchemaError):
            decoder.decode(pa.array([avro(number, later, {"a": 1, "b": 2})]))
