"""Payloads that name their own schema, against Python's own decoders, one at a time.

Whatever schemas meet in a batch and however it is cut: each value is the one that `json` or
`fastavro` reads, in the column of its name, and what a schema lacks is null.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.errors import SchemaError
from spark_upsert.payloads import embedded_schema
from spark_upsert.payloads.embedded_schema import (
    ByRegistry,
    Inline,
    Schemas,
    WriterSchemaDecoder,
    infer_fields,
)
from spark_upsert.payloads.schema_registry import RegisteredSchema, RegistrySettings, UnknownSchema
from tests.support.own_schemas import DECIMAL, avro, inline, record

NAMES = ("a", "b", "c")

KINDS: dict[str, tuple[dict[str, Any], Any, st.SearchStrategy[Any]]] = {
    "text": (
        {"type": "string"},
        "string",
        st.sampled_from(["", "x", '}, "payload": {', "é\\", '{"schema":{}}']),
    ),
    "number": ({"type": "int64"}, "long", st.sampled_from([0, -1, 2**53 + 1, 2**63 - 1])),
    "money": (
        {
            "type": "bytes",
            "name": DECIMAL,
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.sampled_from([Decimal("0.00"), Decimal("-1.28"), Decimal("1234567.89")]),
    ),
    "flag": ({"type": "boolean"}, "boolean", st.booleans()),
    "bytes": ({"type": "bytes"}, "bytes", st.binary(max_size=3)),
}
"""By kind: the type in Connect's words, in Avro's, and values."""

Members = dict[str, str]
"""The kinds of a schema's members by their names; the same name is of the same kind in all."""


@st.composite
def schemas_of_batch(draw: st.DrawFn) -> list[Members]:
    kinds = {name: draw(st.sampled_from(sorted(KINDS))) for name in NAMES}
    chosen = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
    return [{name: kinds[name] for name in draw(chosen)} for _ in range(draw(st.integers(1, 3)))]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Members], list[tuple[int, dict[str, Any]] | None]]:
    """Return schemas, and for each payload which one it has and its value; None: none at all."""
    schemas = draw(schemas_of_batch())
    rows: list[tuple[int, dict[str, Any]] | None] = []
    for _ in range(draw(st.integers(0, 7))):
        number = draw(st.integers(-1, len(schemas) - 1))
        if number < 0:
            rows.append(None)
            continue
        values = {name: draw(st.none() | KINDS[kind][2]) for name, kind in schemas[number].items()}
        rows.append((number, values))
    return schemas, rows


def as_connect(members: Members) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"field": n, "optional": True, **KINDS[k][0]} for n, k in members.items()],
    }


def to_connect(values: dict[str, Any]) -> dict[str, Any]:
    def sent(value: Any) -> Any:
        if isinstance(value, Decimal):
            value = int(value * 100).to_bytes(8, "big", signed=True)
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    return {name: sent(value) for name, value in values.items()}


def read_connect(payload: bytes) -> dict[str, Any]:
    """Read a message with Python's own json, one value at a time."""
    message = json.loads(payload)
    found = {}
    for field in message["schema"]["fields"]:
        value = message["payload"][field["field"]]
        if value is not None and field["type"] == "bytes":
            value = base64.b64decode(value)
            if "name" in field:
                value = Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-2)
        found[field["field"]] = value
    return found


def as_avro(members: Members) -> dict[str, Any]:
    return record("R", **{name: ["null", KINDS[kind][1]] for name, kind in members.items()})


def check(
    schemas: Schemas, payloads: list[bytes | None], read: Callable[[bytes], dict[str, Any]]
) -> None:
    """Compare a batch, and its two halves, with what is read of each payload alone."""
    whole = pa.array(payloads, pa.binary())
    fields = infer_fields(schemas, [whole.slice(0, 3), whole.slice(3)]).fields
    if not any(payloads):
        assert fields is None
        return
    assert fields is not None
    expected = [None if payload is None else read(payload) for payload in payloads]
    assert set(fields.names) == {name for row in expected if row for name in row}
    for part, rows in ((whole, expected), (whole.slice(2), expected[2:])):
        found = WriterSchemaDecoder(schemas, fields).decode(part)
        assert found.reasons is None
        for name, column in zip(fields.names, found.columns, strict=True):
            assert column.to_pylist() == [(row or {}).get(name) for row in rows]


@given(batches())
def test_messages_with_their_schema_are_what_json_says(
    batch: tuple[list[Members], list[tuple[int, dict[str, Any]] | None]],
) -> None:
    schemas, rows = batch
    connect = [as_connect(members) for members in schemas]
    payloads = [
        None if row is None else inline(connect[row[0]], to_connect(row[1])) for row in rows
    ]
    check(Inline("value"), payloads, read_connect)


SETTINGS = RegistrySettings(urls=("http://registry",))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The schemas of a registry that is asked by a call."""
    found: dict[int, Any] = {}

    def ask(settings: RegistrySettings, number: int) -> RegisteredSchema:
        if number not in found:
            raise UnknownSchema
        return RegisteredSchema("AVRO", json.dumps(found[number]))

    monkeypatch.setattr(embedded_schema, "schema_of_id", ask)
    return found


def test_payloads_with_ids_are_what_fastavro_says(registered: dict[int, Any]) -> None:
    @given(batches())
    def run(batch: tuple[list[Members], list[tuple[int, dict[str, Any]] | None]]) -> None:
        schemas, rows = batch
        registered.clear()
        registered.update(enumerate(map(as_avro, schemas)))
        payloads = [
            None if row is None else avro(row[0], registered[row[0]], row[1]) for row in rows
        ]

        def read(payload: bytes) -> dict[str, Any]:
            (number,) = struct.unpack(">xI", payload[:5])
            found = fastavro.schemaless_reader(
                io.BytesIO(payload[5:]), fastavro.parse_schema(registered[number]), None
            )
            assert isinstance(found, dict)
            return found

        check(ByRegistry(SETTINGS, "AVRO", "value", is_connect=False), payloads, read)

    run()


GOOD = inline(as_connect({"a": "number", "b": "text"}), {"a": 1, "b": '"payload":{}'})


@given(
    st.integers(0, len(GOOD) - 1),
    st.sampled_from([b"", b"}", b"{", b'"', b'"payload":', b"\xff", b"\0", b",", b"null"]),
    st.integers(0, 2),
)
def test_damage_of_one_payload_is_its_own(place: int, instead: bytes, length: int) -> None:
    """Its neighbours are what they were, and it is what Python reads of it, or bad."""
    damaged = GOOD[:place] + instead + GOOD[place + length :]
    schemas, fields = Inline("value"), pa.schema({"a": pa.int64(), "b": pa.string()})
    try:
        found = WriterSchemaDecoder(schemas, fields).decode(pa.array([GOOD, damaged, GOOD]))
    except SchemaError:
        return  # The damage is in the schema, and what it says can be no column.
    columns = [column.to_pylist() for column in found.columns]
    assert [(column[0], column[2]) for column in columns] == [(1, 1), ('"payload":{}',) * 2]
    if found.reasons is None:
        payload = json.loads(damaged)["payload"]
        assert [column[1] for column in columns] == [payload.get("a"), payload.get("b")]
