"""Envelopes: what rows of Kafka and of Debezium mean, and which of them cannot be applied."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.model.schema import Scope, storage_type
from spark_upsert.payloads import decoder as decoder_module
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.confluent import ConfluentDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Bad, Decoder
from spark_upsert.payloads.json_text import JsonDecoder
from spark_upsert.payloads.raw import RawDecoder
from tests.support.envelopes import (
    JSON,
    KAFKA,
    assert_sound,
    counters_of,
    key,
    plan,
    quarantine_of,
    reasons,
    records,
    rows_of,
    value,
    write,
)

UTC = dt.UTC


def decoded(decoder: Decoder, payload: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
    """Decode one payload; returns its fields and why it is bad, one of them or none."""
    # A decoder travels to the tasks; and its neighbours must not matter.
    travelled = pickle.loads(pickle.dumps(decoder))
    around = pa.array([payload, b"\xff{", payload, None], pa.binary())
    found = travelled.decode(around)
    fields = [
        {f.name: column[i].as_py() for f, column in zip(decoder.fields, found.columns, strict=True)}
        for i in (0, 2)
    ]
    assert fields[0] == fields[1]
    texts = [None] * 4 if found.reasons is None else found.reasons.to_pylist()
    assert texts[0] == texts[2]
    assert texts[3] is None
    if texts[0] is not None:
        assert set(fields[0].values()) == {None}
        return None, texts[0]
    return fields[0], None


# -- schemas -----------------------------------------------------------------------------

STRUCT_TYPE = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {
            "name": "l",
            "type": {"type": "array", "elementType": "decimal(5,2)", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
        {
            "name": "s",
            "type": {
                "type": "struct",
                "fields": [{"name": "x", "type": "string", "nullable": True, "metadata": {}}],
            },
            "nullable": True,
            "metadata": {},
        },
    ],
}
"""As ``StructType.jsonValue()`` gives it."""

DDL: dict[str, tuple[str, dict[str, pa.DataType]]] = {
    "columns": ("id BIGINT, name STRING", {"id": pa.int64(), "name": pa.string()}),
    "any case and space": (" id  bigint ,\n name String ", {"id": pa.int64(), "name": pa.string()}),
    "colons": ("id: bigint, name: string", {"id": pa.int64(), "name": pa.string()}),
    "comments and nulls": (
        "id INT NOT NULL COMMENT 'a, b', v DATE COMMENT \"x\"",
        {"id": pa.int32(), "v": pa.date32()},
    ),
    "quoted names": ("`a b` INT, `c``d` INT", {"a b": pa.int32(), "c`d": pa.int32()}),
    "numbers": (
        "a TINYINT, b SMALLINT, c INT, d LONG, e FLOAT, f DOUBLE",
        {
            "a": pa.int8(),
            "b": pa.int16(),
            "c": pa.int32(),
            "d": pa.int64(),
            "e": pa.float32(),
            "f": pa.float64(),
        },
    ),
    "decimals": (
        "a DECIMAL, b DECIMAL(5), c NUMERIC(12, 3)",
        {"a": pa.decimal128(10, 0), "b": pa.decimal128(5, 0), "c": pa.decimal128(12, 3)},
    ),
    "times": (
        "a TIMESTAMP, b TIMESTAMP_NTZ, c DATE",
        {"a": pa.timestamp("us", tz="UTC"), "b": pa.timestamp("us"), "c": pa.date32()},
    ),
    "bounded texts": ("a VARCHAR(10), b CHAR(3)", {"a": pa.string(), "b": pa.string()}),
    "nested": (
        "a ARRAY<STRUCT<x: INT, y: MAP<STRING, ARRAY<DATE>>>>",
        {
            "a": pa.list_(
                pa.struct({"x": pa.int32(), "y": pa.map_(pa.string(), pa.list_(pa.date32()))})
            )
        },
    ),
    "one struct": ("struct<id:bigint,name:string>", {"id": pa.int64(), "name": pa.string()}),
    "one type": ("bigint", {"value": pa.int64()}),
    "one decimal": ("decimal(10, 2)", {"value": pa.decimal128(10, 2)}),
    "the JSON of a StructType": (
        json.dumps(STRUCT_TYPE),
        {
            "id": pa.int64(),
            "l": pa.list_(pa.decimal128(5, 2)),
            "s": pa.struct({"x": pa.string()}),
        },
    ),
}


@pytest.mark.parametrize("case", DDL.values(), ids=DDL.keys())
def test_a_schema_is_read_without_a_session(case: tuple[str, dict[str, pa.DataType]]) -> None:
    text, expected = case
    fields, _ = parse_schema("valueSchema", text, bare_name="value")
    assert {field.name: field.type for field in fields} == {
        name: storage_type(type_) for name, type_ in expected.items()
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("id BIGIN", "Did you mean 'bigint'?"),
        ("id", "there is no type 'id'"),
        ("", "it ends too early"),
        ("id BIGINT,", "it ends too early"),
        ("id BIGINT name STRING", "'name STRING' was not expected"),
        ("a-b INT", "'-b INT' was not expected"),
        ("id DECIMAL(50, 2)", "0 <= scale <= precision <= 38"),
        ("id DECIMAL(2, 3)", "0 <= scale <= precision <= 38"),
        ("id DECIMAL(1, 2, 3)", "a precision and a scale"),
        ("id ARRAY<INT", "'>' was expected, found 'the end'"),
        ("id MAP<STRING>", "',' was expected, found '>'"),
        ("id INT NOT", "NOT must be followed by NULL"),
        ("id INT, ID BIGINT", "each column may stand once"),
        ("{}", "it lacks 'type'"),
        ('{"type": "array", "elementType": "long"}', "not that of a struct"),
        ('{"type": "struct", "fields": [', "Expecting value"),
        ("a " + "ARRAY<" * 100 + "INT" + ">" * 100, "nested more than 64 deep"),
    ],
)
def test_a_schema_that_is_none_is_refused(text: str, found: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_schema("valueSchema", text, bare_name="value")
    assert "valueSchema" in str(caught.value)
    assert found in str(caught.value)


# -- JSON --------------------------------------------------------------------------------


def json_decoder(text: str) -> JsonDecoder:
    return JsonDecoder(*parse_schema("valueSchema", text, bare_name="value"))


NAN = float("nan")

GOOD_JSON: dict[str, tuple[str, str, Any]] = {
    "a whole number": ("v BIGINT", "-9223372036854775808", -(2**63)),
    "a small number": ("v TINYINT", "127", 127),
    "a float": ("v FLOAT", "1.5", 1.5),
    "minus zero": ("v DOUBLE", "-0.0", -0.0),
    "a whole number as a float": ("v DOUBLE", "3", 3.0),
    "a decimal as a number": ("v DECIMAL(10, 2)", "1.5", Decimal("1.50")),
    "a decimal as a text": ("v DECIMAL(10, 2)", '"-0.25"', Decimal("-0.25")),
    "a text": ("v STRING", '"Zo\u00eb \U0001f600"', "Zo\u00eb \U0001f600"),
    "an escaped text": ("v STRING", r'"\ud83d\ude00\u0000\""', '\U0001f600\0"'),
    "an empty text": ("v STRING", '""', ""),
    "a truth value": ("v BOOLEAN", "true", True),
    "a date": ("v DATE", '"2024-02-29"', dt.date(2024, 2, 29)),
    "a time in UTC": (
        "v TIMESTAMP",
        '"2024-03-31T02:30:00.123456Z"',
        dt.datetime(2024, 3, 31, 2, 30, 0, 123456, UTC),
    ),
    "a time in a zone": (
        "v TIMESTAMP",
        '"2024-01-31T12:00:00+02:00"',
        dt.datetime(2024, 1, 31, 10, tzinfo=UTC),
    ),
    "a time of no zone is of UTC": (
        "v TIMESTAMP",
        '"2024-01-31 12:00:00"',
        dt.datetime(2024, 1, 31, 12, tzinfo=UTC),
    ),
    "a time without a zone": (
        "v TIMESTAMP_NTZ",
        '"2024-01-31 12:00:00"',
        dt.datetime(2024, 1, 31, 12),
    ),
    "a list": ("v ARRAY<DATE>", '["2024-01-01", null]', [dt.date(2024, 1, 1), None]),
    "a list of structs": (
        "v ARRAY<STRUCT<x: FLOAT>>",
        '[{"x": 1, "y": 2}, null, {}]',
        [{"x": 1.0}, None, {"x": None}],
    ),
    "a struct": ("v STRUCT<x: INT, y: DATE>", '{"y": null, "x": 1}', {"x": 1, "y": None}),
    "a decimal with an exponent": ("v DECIMAL(5, 2)", "15E-1", Decimal("1.50")),
    "a decimal with zeros beyond its scale": ("v DECIMAL(5, 2)", "1.5000", Decimal("1.50")),
    "the largest decimal": ("v DECIMAL(38, 0)", "9" * 38, Decimal("9" * 38)),
    "decimals in a list": ("v ARRAY<DECIMAL(3, 1)>", '[1, "2.5"]', [Decimal(1), Decimal("2.5")]),
    "the nearest float": ("v FLOAT", "16777217", 16777216.0),
    "the smallest float": ("v FLOAT", "1.4e-45", 1.401298464324817e-45),
    "a zero with an exponent": ("v DOUBLE", "0e-999", 0.0),
    "a null": ("v BIGINT", "null", None),
    "a null struct": ("v STRUCT<x: INT>", "null", None),
    "a null list": ("v ARRAY<DATE>", "null", None),
}


@pytest.mark.parametrize("case", GOOD_JSON.values(), ids=GOOD_JSON.keys())
def test_json_is_decoded(case: tuple[str, str, Any]) -> None:
    schema, text, expected = case
    assert decoded(json_decoder(schema), f'{{"v": {text}}}'.encode()) == ({"v": expected}, None)


BAD_JSON: dict[str, tuple[str, bytes, str]] = {
    "no payload at all": ("v INT", b"", "not JSON"),
    "only space": ("v INT", b"  ", "not JSON"),
    "no object": ("v INT", b"[1]", "expected a JSON object, found array"),
    "a null": ("v INT", b"null", "expected a JSON object, found null"),
    "a number": ("v INT", b"1", "expected a JSON object, found number"),
    "cut off": ("v INT", b'{"v": 1', "not JSON"),
    "cut off in a text": ("v STRING", b'{"v": "x', "not JSON"),
    "cut off behind a backslash": ("v STRING", b'{"v": "x\\', "not JSON"),
    "a comma too many": ("v INT", b'{"v": 1,}', "not JSON"),
    "a comment": ("v INT", b'{"v": 1 /* one */}', "not JSON"),
    "a byte order mark": ("v INT", b'\xef\xbb\xbf{"v": 1}', "not JSON"),
    "two objects": ("v INT", b'{"v": 1}{"v": 2}', "not JSON"),
    "two objects on two lines": ("v INT", b'{"v": 1}\n{"v": 2}', "not JSON"),
    "two objects that close what we opened": ("v INT", b'{"v":1}}\n{"v":{"v":2}', "not JSON"),
    "a second member": ("v INT", b'{"v": 1}, "w": {}', "Extra data"),
    "a second member behind a nested one": (
        "v STRUCT<x: INT>",
        b'{"v": {"x": 1}}, "w": {"v": 1}',
        "Extra data",
    ),
    "the same member twice": ("v INT", b'{"v": 1, "v": 2}', "specified twice"),
    "a NUL behind it": ("v INT", b'{"v": 1}\0', "not JSON"),
    "a NUL that ends the document": ("v INT", b'{"v": 1}}\0', "not JSON"),
    "no UTF-8": ("v STRING", b'{"v": "\xff"}', "not UTF-8"),
    "no UTF-8 where nothing is declared": ("v INT", b'{"v": 1, "w": "\xff"}', "not UTF-8"),
    "half a surrogate pair": ("v STRING", rb'{"v": "\ud800"}', "surrogate"),
    "a raw line feed in a text": ("v STRING", b'{"v": "x\ny"}', "not JSON"),
    "a number that is too large": ("v TINYINT", b'{"v": 128}', "128 is no TINYINT"),
    "a number beyond all": ("v BIGINT", b'{"v": 9223372036854775808}', "is no BIGINT"),
    "a fraction": ("v BIGINT", b'{"v": 1.0}', "1.0 is no BIGINT"),
    "an infinite number": ("v DOUBLE", b'{"v": 1e999}', "too large for DOUBLE"),
    "an infinite float": ("v FLOAT", b'{"v": 1e99}', "too large for FLOAT"),
    "a decimal with too many digits": ("v DECIMAL(5, 2)", b'{"v": 12345.67}', "precision"),
    "a decimal with too fine a scale": ("v DECIMAL(5, 2)", b'{"v": "1.255"}', "scale"),
    "a text for a number": ("v INT", b'{"v": "1"}', "'v' is declared number, found string"),
    "a number for a text": ("v STRING", b'{"v": 1}', "'v' is declared string, found number"),
    "a wrong type deep down": (
        "v STRUCT<x: ARRAY<STRUCT<y: INT>>>",
        b'{"v": {"x": [{"y": "1"}]}}',
        "'v.x.y' is declared number, found string",
    ),
    "an object for a list": ("v ARRAY<INT>", b'{"v": {}}', "'v' is declared array, found object"),
    "no such day": ("v DATE", b'{"v": "2023-02-29"}', "2023-02-29"),
    "no time": ("v TIMESTAMP", b'{"v": "noon"}', "noon"),
    "a time that is too fine": ("v TIMESTAMP", b'{"v": "2024-01-01T00:00:00.123456789Z"}', "finer"),
    "nothing where something must be": ("v INT NOT NULL", b"{}", "'v' is missing or null"),
    "a null where something must be": ("v INT NOT NULL", b'{"v": null}', "'v' is missing or null"),
    "a decimal that would be rounded away": ("v DECIMAL(38, 2)", b'{"v": 1e-41}', "a finer scale"),
    "a decimal that would wrap": (
        "v DECIMAL(38, 2)",
        b'{"v": 48151415102163378576555277819065061780}',
        "a greater precision",
    ),
    "a decimal that is too large": ("v DECIMAL(5, 2)", b'{"v": 99999}', "a greater precision"),
    "an exponent that is too small": ("v DECIMAL(38, 2)", b'{"v": 1e-9999999}', "a finer scale"),
    "an exponent in a text": ("v DECIMAL(38, 2)", b'{"v": "1e-9999999"}', "a finer scale"),
    "a hidden exponent": ("v DECIMAL(38, 2)", rb'{"\u0076": "1\u0065-9999999"}', "a finer scale"),
    "an exponent in a list": ("v ARRAY<DECIMAL(9, 2)>", b'{"v": [1e-9999999]}', "a finer scale"),
    "no number for a decimal": ("v DECIMAL(5, 2)", b'{"v": NaN}', "no decimal number"),
    "less than no number for a decimal": ("v DECIMAL(5, 2)", b'{"v": -NaN}', "no decimal number"),
    "infinity for a decimal": ("v DECIMAL(5, 2)", b'{"v": -Infinity}', "no decimal number"),
    "a text for a decimal": ("v DECIMAL(5, 2)", b'{"v": "abc"}', "'abc' is no decimal number"),
    "a number behind a text": ("v DECIMAL(5, 2)", b'{"v": 1"2"}', "not JSON"),
    "an octal number": ("v DECIMAL(5, 2)", b'{"v": 010}', "not JSON"),
    "a float that would be zero": ("v DOUBLE", b'{"v": 1e-999}', "too small for DOUBLE"),
    "a small float that would be zero": ("v FLOAT", b'{"v": 1e-46}', "too small for FLOAT"),
    "a long number that would be infinite": ("v DOUBLE", b'{"v": 1%s}' % (b"0" * 400), "too large"),
    "an infinity that Python does not know": ("v DOUBLE", b'{"v": -Inf}', "no DOUBLE"),
    "a year before 1": ("v DATE", b'{"v": "0000-01-01"}', "is no date"),
    "a time that a zone takes out of the calendar": (
        "v TIMESTAMP",
        b'{"v": "9999-12-31T23:59:59-00:01"}',
        "outside the years 1 to 9999",
    ),
    "a zone where there is none": ("v TIMESTAMP_NTZ", b'{"v": "2024-01-01T00:00Z"}', "has a zone"),
}


@pytest.mark.parametrize("case", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_json_that_is_not_as_declared_is_bad(case: tuple[str, bytes, str]) -> None:
    schema, payload, reason = case
    fields, found = decoded(json_decoder(schema), payload)
    assert fields is None
    assert found is not None
    assert reason in found
    assert " row " not in found, "a reason must not depend on the place of the payload"


def test_missing_members_are_null_and_others_are_skipped() -> None:
    found = decoded(json_decoder("a INT, b STRING"), b'{"c": {"a": [1]}, "a": 1, "A": 2}')
    assert found == ({"a": 1, "b": None}, None)


def test_pretty_json_is_json() -> None:
    pretty = json.dumps({"v": 1, "w": {"v": [2]}}, indent=2).encode()
    assert decoded(json_decoder("v INT"), b"\n" + pretty + b"\n\n") == ({"v": 1}, None)


def test_nan_is_a_number_although_json_has_none() -> None:
    fields, _ = json_decoder("v DOUBLE").fields, None
    [column] = json_decoder("v DOUBLE").decode(pa.array([b'{"v": NaN}'], pa.binary())).columns
    assert fields.names == ["v"]
    assert str(column[0]) == "nan"


@pytest.mark.parametrize("depth", [100, 100_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"x":', b"}")], ids=["lists", "objects"])
def test_deep_json_is_skipped_without_recursion(depth: int, brackets: tuple[bytes, bytes]) -> None:
    opening, closing = brackets
    payload = b'{"w": ' + opening * depth + b"1" + closing * depth + b', "v": 1}'
    [column] = json_decoder("v INT").decode(pa.array([payload], pa.binary())).columns
    assert column.to_pylist() == [1]


BARE_JSON: dict[str, tuple[str, bytes, Any]] = {
    "a number": ("BIGINT", b"42", 42),
    "a number and space": ("BIGINT", b" 42\n", 42),
    "a text": ("STRING", b'"a"', "a"),
    "a date": ("DATE", b'"2024-01-01"', dt.date(2024, 1, 1)),
    "a null": ("BIGINT", b"null", None),
}


@pytest.mark.parametrize("case", BARE_JSON.values(), ids=BARE_JSON.keys())
def test_a_bare_value_is_one_column(case: tuple[str, bytes, Any]) -> None:
    type_, payload, expected = case
    assert decoded(json_decoder(type_), payload) == ({"value": expected}, None)


@pytest.mark.parametrize(
    "payload",
    [b"", b"1,2", b"1 2", b"[1]", b'{"value": 1}', b'1],"v":[2', b'1],"w":[2', b'1]}\n{"v":[2'],
)
def test_anything_else_than_one_bare_value_is_bad(payload: bytes) -> None:
    fields, reason = decoded(json_decoder("BIGINT"), payload)
    assert fields is None
    assert reason


@pytest.mark.parametrize("schema", ["v MAP<STRING, INT>", "v BINARY", "v ARRAY<MAP<STRING, INT>>"])
def test_types_that_json_cannot_carry_exactly_are_refused(schema: str) -> None:
    with pytest.raises(SchemaError, match="from_json"):
        json_decoder(schema)


def test_each_bad_payload_is_told_from_its_neighbours() -> None:
    payloads = [b'{"v": %d}' % i if i % 7 else b"bad %d" % i for i in range(500)]
    found = json_decoder("v INT").decode(pa.array(payloads, pa.binary()))
    assert found.reasons is not None
    assert [r is None for r in found.reasons.to_pylist()] == [bool(i % 7) for i in range(500)]
    assert found.columns[0].to_pylist() == [i if i % 7 else None for i in range(500)]


def test_blocks_bound_what_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "BLOCK_BYTES", 64)
    seen: list[int] = []
    decoder = json_decoder("v STRING")
    decode_block = JsonDecoder._decode_block

    def watched(self: JsonDecoder, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        seen.append(sum(len(p) for p in payloads.to_pylist()))
        return decode_block(self, payloads)

    monkeypatch.setattr(JsonDecoder, "_decode_block", watched)
    texts = ["x" * (i % 30) for i in range(100)] + ["y" * 500]
    payloads = [value(text) for text in texts] + [None]
    [column] = decoder.decode(pa.array(payloads, pa.binary())).columns
    assert column.to_pylist() == [*texts, None]
    assert len(seen) > 30
    assert max(size for size in seen if size < 500) <= 64


@pytest.mark.parametrize(
    "decoder", [json_decoder("v INT"), RawDecoder(pa.schema({"v": pa.string()}))]
)
@pytest.mark.parametrize("payloads", [[], [None, None]], ids=["none", "only absent ones"])
def test_nothing_decodes_to_nothing(decoder: Decoder, payloads: list[None]) -> None:
    found = decoder.decode(pa.array(payloads, pa.binary()))
    assert found.reasons is None
    assert found.columns[0].to_pylist() == payloads


# -- raw ---------------------------------------------------------------------------------


def test_raw_bytes_are_what_they_are() -> None:
    decoder = RawDecoder(pa.schema({"v": pa.binary()}))
    assert decoded(decoder, b"\xff\0") == ({"v": b"\xff\0"}, None)
    assert decoded(decoder, b"") == ({"v": b""}, None)


def test_raw_text_must_be_text() -> None:
    decoder = RawDecoder(pa.schema({"v": pa.string()}))
    assert decoded(decoder, "Zo\u00eb".encode()) == ({"v": "Zo\u00eb"}, None)
    assert decoded(decoder, b"") == ({"v": ""}, None)
    assert decoded(decoder, b"\xff") == (None, "not UTF-8")


@pytest.mark.parametrize("schema", ["a STRING, b STRING", "BIGINT"])
def test_raw_is_one_column_of_text_or_bytes(schema: str) -> None:
    fields, _ = parse_schema("keySchema", schema, bare_name="key")
    with pytest.raises(SchemaError, match="one column of type STRING or BINARY"):
        RawDecoder(fields)


# -- Avro --------------------------------------------------------------------------------


def avro(schema: Any, datum: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), datum)
    return stream.getvalue()


def record_of(type_: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "v", "type": type_}]}


ENUM = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}]}

GOOD_AVRO: dict[str, tuple[Any, Any, Any, pa.DataType]] = {
    "int": ("int", -(2**31), -(2**31), pa.int32()),
    "long": ("long", 2**63 - 1, 2**63 - 1, pa.int64()),
    "float": ("float", 1.5, 1.5, pa.float32()),
    "double": ("double", -0.0, -0.0, pa.float64()),
    "boolean": ("boolean", True, True, pa.bool_()),
    "string": ("string", "Zo\u00eb", "Zo\u00eb", pa.string()),
    "bytes": ("bytes", b"\xff", b"\xff", pa.binary()),
    "nothing in a union": (["null", "long"], None, None, pa.int64()),
    "something in a union": (["string", "null"], "a", "a", pa.string()),
    "enum": (ENUM, "BLUE", "BLUE", pa.string()),
    "fixed": ({"type": "fixed", "name": "f", "size": 2}, b"ab", b"ab", pa.binary()),
    "array": (
        {"type": "array", "items": ["null", "int"]},
        [1, None],
        [1, None],
        pa.list_(pa.int32()),
    ),
    "map": (
        {"type": "map", "values": "long"},
        {"a": 1},
        [("a", 1)],
        pa.map_(pa.string(), pa.int64()),
    ),
    "record": (POINT, {"x": 1}, {"x": 1}, pa.struct({"x": pa.int32()})),
    "date": (
        {"type": "int", "logicalType": "date"},
        dt.date(2024, 2, 29),
        dt.date(2024, 2, 29),
        pa.date32(),
    ),
    "milliseconds": (
        {"type": "long", "logicalType": "timestamp-millis"},
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
        pa.timestamp("us", tz="UTC"),
    ),
    "microseconds in a list": (
        {"type": "array", "items": {"type": "long", "logicalType": "local-timestamp-micros"}},
        [1],
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1)],
        pa.list_(pa.timestamp("us")),
    ),
    "decimal of bytes": (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        Decimal("-1.25"),
        Decimal("-1.25"),
        pa.decimal128(10, 2),
    ),
    "decimal of fixed": (
        {"type": "fixed", "name": "d", "size": 8, "logicalType": "decimal", "precision": 12},
        Decimal("7"),
        Decimal("7"),
        pa.decimal128(12, 0),
    ),
    "uuid": (
        {"type": "string", "logicalType": "uuid"},
        "12345678-1234-5678-1234-567812345678",
        "12345678-1234-5678-1234-567812345678",
        pa.string(),
    ),
    "a logical type that we do not know": (
        {"type": "int", "logicalType": "time-millis"},
        5,
        5,
        pa.int32(),
    ),
}


@pytest.mark.parametrize("case", GOOD_AVRO.values(), ids=GOOD_AVRO.keys())
def test_avro_is_decoded(case: tuple[Any, Any, Any, pa.DataType]) -> None:
    schema, datum, expected, type_ = case
    plain = json.loads(json.dumps(schema).replace('"logicalType": "local-', '"was": "local-'))
    plain = json.loads(json.dumps(plain).replace('"logicalType": "time-', '"was": "time-'))
    payload = avro(record_of(plain), {"v": datum})
    decoder = parse_avro("valueSchema", json.dumps(record_of(schema)), bare_name="value")
    assert decoder.fields == pa.schema({"v": storage_type(type_)})
    assert decoded(decoder, payload) == ({"v": expected}, None)


def test_avro_names_are_found_in_their_namespace() -> None:
    schema = {
        "type": "record",
        "name": "shop.order",
        "fields": [
            {"name": "a", "type": POINT},
            {"name": "b", "type": ["null", "shop.point"]},
            {"name": "c", "type": {"type": "array", "items": "point"}},
        ],
    }
    datum = {"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}]}
    decoder = parse_avro("valueSchema", json.dumps(schema), bare_name="value")
    assert decoded(decoder, avro(schema, datum)) == (datum, None)


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (lambda payload: payload[:-1], "it ends too early"),
        (lambda payload: b"", "it ends too early"),
        (lambda payload: payload + b"\0", "1 bytes too many"),
        (lambda payload: b"\x06" + payload[1:], "not Avro of the schema"),
    ],
    ids=["cut off", "empty", "too long", "another branch of the union"],
)
def test_avro_that_is_not_of_the_schema_is_bad(cut: Any, reason: str) -> None:
    schema = record_of(["null", "string"])
    decoder = parse_avro("valueSchema", json.dumps(schema), bare_name="value")
    fields, found = decoded(decoder, cut(avro(schema, {"v": "text"})))
    assert fields is None
    assert found is not None
    assert reason in found


HOSTILE_AVRO: dict[str, tuple[Any, bytes, str]] = {
    "symbol -1": (ENUM, b"\x01", "no symbol -1 of 2"),
    "symbol 2": (ENUM, b"\x04", "no symbol 2 of 2"),
    "branch -1": (["null", "long"], b"\x01", "no branch -1 of 2"),
    "truth 7": ("boolean", b"\x07", "7 is no boolean"),
    "needless bytes": ("long", b"\x80\x00", "more bytes than it takes"),
    "eleven bytes": ("long", b"\xff" * 11 + b"\x01", "more than 64 bits"),
    "65 bits": ("long", b"\xff" * 9 + b"\x03", "more bytes than it takes"),
    "a length of -1": ("bytes", b"\x01", "a length of -1"),
    "a length beyond all": ("string", b"\xfe" + b"\xff" * 8 + b"\x01", "ends too early"),
    "a count beyond all": (
        {"type": "array", "items": "long"},
        b"\xfe" + b"\xff" * 8 + b"\x01",
        "ends too early",
    ),
    "a block that is longer than it says": (
        {"type": "array", "items": "long"},
        b"\x03\x02\x02\x02\x00",
        "not as long as it says",
    ),
    "a key twice": ({"type": "map", "values": "null"}, b"\x04\x02a\x02a\x00", "a key twice"),
    "a day after 9999": (
        {"type": "int", "logicalType": "date"},
        b"\xfe\xff\xff\xff\x0f",
        "outside the years 1 to 9999",
    ),
    "a time before 1": (
        {"type": "long", "logicalType": "timestamp-millis"},
        b"\xff" * 9 + b"\x01",
        "outside the years 1 to 9999",
    ),
    "a decimal of a megabyte": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38},
        b"\x80\x80\x80\x01" + b"\x7f" * (1 << 20),
        "a greater precision",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_AVRO.values(), ids=HOSTILE_AVRO.keys())
def test_avro_that_no_writer_writes_is_bad(case: tuple[Any, bytes, str]) -> None:
    type_, payload, reason = case
    decoder = parse_avro("valueSchema", json.dumps(record_of(type_)), bare_name="value")
    fields, found = decoded(decoder, payload)
    assert fields is None
    assert found is not None
    assert reason in found


def test_a_block_may_say_how_long_it_is() -> None:
    decoder = parse_avro(
        "valueSchema", json.dumps(record_of({"type": "array", "items": "long"})), bare_name="value"
    )
    assert decoded(decoder, b"\x03\x04\x02\x04\x02\x06\x00") == ({"v": [1, 2, 3]}, None)


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "fixed", "name": "f", "size": 0}, {**record_of("null"), "name": "e"}],
    ids=["null", "fixed", "record"],
)
def test_an_array_of_items_that_take_no_bytes_is_refused(items: Any) -> None:
    schema = record_of({"type": "array", "items": items})
    with pytest.raises(SchemaError, match="take no bytes"):
        parse_avro("valueSchema", json.dumps(schema), bare_name="value")


@pytest.mark.parametrize(
    ("type_", "written", "datum"),
    [
        ("int", "long", 2**40),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, "bytes", b"\x7f" * 9),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long", 2**62),
    ],
    ids=["int", "decimal", "time"],
)
def test_an_avro_value_that_does_not_fit_is_bad(type_: Any, written: str, datum: Any) -> None:
    decoder = parse_avro("valueSchema", json.dumps(record_of(type_)), bare_name="value")
    fields, found = decoded(decoder, avro(record_of(written), {"v": datum}))
    assert fields is None
    assert found is not None


def test_a_bare_avro_value_is_one_column() -> None:
    decoder = parse_avro("keySchema", '"long"', bare_name="key")
    assert decoded(decoder, avro("long", 42)) == ({"key": 42}, None)


@pytest.mark.parametrize(
    ("schema", "error", "text"),
    [
        ("nope", OptionError, "an Avro schema in JSON"),
        ('{"type": "rec"}', OptionError, "an Avro schema in JSON"),
        ('{"type": "record", "name": "r"}', OptionError, "an Avro schema in JSON"),
        (json.dumps(record_of(["int", "string"])), SchemaError, "union of several types"),
        (json.dumps(record_of(["null", "r"])), SchemaError, "refers to 'r' from inside itself"),
        ('{"type": "record", "name": "r", "fields": []}', SchemaError, "has no fields"),
    ],
    ids=["no JSON", "no type", "no fields", "a union", "a recursion", "an empty record"],
)
def test_an_avro_schema_that_no_table_can_hold_is_refused(
    schema: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        parse_avro("valueSchema", schema, bare_name="value")
    assert text in str(caught.value)


# -- Confluent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema_id", "header", "reason"),
    [
        (None, b"\0\0\0\0\x07", None),
        (7, b"\0\0\0\0\x07", None),
        (2**31, b"\0\x80\0\0\0", None),
        (7, b"\0\0\0\x01\x07", "schema id 263, expected 7"),
        (None, b"\x01\0\0\0\x07", "lacks the header"),
        (7, b"", "lacks the header"),
    ],
)
def test_the_header_of_confluent_is_checked(
    schema_id: int | None, header: bytes, reason: str | None
) -> None:
    decoder = ConfluentDecoder(json_decoder("v INT"), schema_id)
    fields, found = decoded(decoder, header + b'{"v": 1}')
    if reason is None:
        assert (fields, found) == ({"v": 1}, None)
    else:
        assert found is not None
        assert reason in found


@pytest.mark.parametrize("payload", [b"\0", b"\0\0\0\0", b"\0\0\0\0\x07"])
def test_a_payload_that_ends_in_its_header_is_bad(payload: bytes) -> None:
    assert decoded(ConfluentDecoder(json_decoder("v INT")), payload)[1] is not None


def test_behind_a_header_the_empty_payload_of_an_empty_avro_value_is_a_value() -> None:
    decoder = ConfluentDecoder(
        parse_avro("valueSchema", json.dumps(record_of("null")), bare_name="v")
    )
    assert decoded(decoder, b"\0\0\0\0\x07") == ({"v": None}, None)


# -- the kafka envelope ------------------------------------------------------------------


def test_the_table_has_the_fields_of_the_key_then_those_of_the_value(tmp_path: Path) -> None:
    options = {**JSON, "valueSchema": "K STRING, v STRING"}
    schema = plan(tmp_path / "t", KAFKA, **options).write.base.schema
    assert schema.columns == pa.schema({"k": pa.int64(), "v": pa.string()})
    assert schema.keys == ("k",)
    write(tmp_path / "t", records([(key(1), b'{"K": "other", "v": "a"}')]), **options)
    assert rows_of(tmp_path / "t") == [{"k": 1, "v": "a"}]


def test_columns_of_the_records_are_stored_if_they_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), value("a"))], offsets=[7]), columnList="k,v,offset,topic", **JSON)
    assert rows_of(path) == [{"k": 1, "v": "a", "offset": 7, "topic": "t"}]


def test_a_key_may_be_a_part_of_what_the_keys_hold(tmp_path: Path) -> None:
    options = {**JSON, "keySchema": "k BIGINT, region STRING", "keys": "k"}
    path = tmp_path / "t"
    write(path, records([(b'{"k": 1, "region": "x"}', value("a"))]), **options)
    write(path, records([(b'{"k": 1, "region": "y"}', value("b"))]), **options)
    assert rows_of(path) == [{"k": 1, "region": "y", "v": "b"}]


def test_a_field_of_the_value_can_be_no_key(tmp_path: Path) -> None:
    """A null value, which deletes, would not have it."""
    with pytest.raises(SchemaError, match="the key column 'v' is not among the columns"):
        plan(tmp_path / "t", KAFKA, keys="v", **JSON)
    assert not (tmp_path / "t").exists()


def test_20a_within_an_epoch_the_partition_decides_before_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = pa.concat_tables(
        [
            records([(key(1), value("b"))], offsets=[3], partition=1),
            records([(key(1), value("a"))], offsets=[99], partition=0),
        ]
    )
    write(path, rows, **JSON)
    assert rows_of(path) == [{"k": 1, "v": "b"}]


def test_a_key_may_move_to_a_partition_of_a_lower_number(tmp_path: Path) -> None:
    """Order keys of different partitions say nothing beyond one epoch, as in Materialize."""
    path = tmp_path / "t"
    write(path, records([(key(1), value("a"))], offsets=[99], partition=3), **JSON)
    write(path, records([(key(1), value("b"))], offsets=[0], partition=1), **JSON)
    assert rows_of(path) == [{"k": 1, "v": "b"}]
    assert plan(path, KAFKA, **JSON).write.base.schema.scope is Scope.EPOCH


def test_an_order_that_is_asked_for_reaches_across_epochs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {**JSON, "valueSchema": "v STRING, m STRUCT<at: BIGINT>", "sequenceBy": "value.m.at"}
    write(path, records([(key(1), b'{"v": "new", "m": {"at": 9}}')]), **options)
    commit = write(path, records([(key(1), b'{"v": "old", "m": {"at": 5}}')]), **options)
    assert counters_of(commit).stale == 1
    assert rows_of(path) == [{"k": 1, "m": {"at": 9}, "v": "new"}]


def test_a_delete_has_no_order_in_its_value(tmp_path: Path) -> None:
    options = {**JSON, "valueSchema": "v STRING, at BIGINT", "sequenceBy": "value.at"}
    with pytest.raises(DataError, match=r"the sequenceBy column 'value\.at' is null"):
        write(tmp_path / "t", records([(key(1), None)]), **options)


def test_without_partition_and_offset_the_order_is_arrival(tmp_path: Path) -> None:
    rows = records([(key(1), value("a")), (key(1), value("b"))]).select(["key", "value"])
    write(tmp_path / "t", rows, **JSON)
    assert rows_of(tmp_path / "t") == [{"k": 1, "v": "b"}]
    assert plan(tmp_path / "t", rows.schema, **JSON).write.base.schema.scope is Scope.ARRIVAL


def test_texts_are_taken_for_their_bytes(tmp_path: Path) -> None:
    rows = pa.table({"key": [key(1).decode()], "value": [value("a").decode()]})
    write(tmp_path / "t", rows, **JSON)
    assert rows_of(tmp_path / "t") == [{"k": 1, "v": "a"}]


def test_avro_behind_a_header_with_a_raw_key(tmp_path: Path) -> None:
    schema = record_of(["null", "string"])
    options = {
        "envelope": "kafka",
        "keyFormat": "raw",
        "keySchema": "id STRING",
        "valueFormat": "avro-confluent",
        "valueSchema": json.dumps(schema),
        "valueSchemaId": "7",
        "onError": "quarantine",
    }
    head, other = b"\0\0\0\0\x07", b"\0\0\0\0\x08"
    good = avro(schema, {"v": "a"})
    path = tmp_path / "t"
    write(
        path,
        records(
            [(b"1", head + good), (b"2", other + good), (b"3", good), (b"1", None), (b"4", b"")]
        ),
        **options,
    )
    assert rows_of(path) == []
    assert [row["id"] for row in quarantine_of(path)] == ["2", "3", "4"]
    assert any("schema id 8, expected 7" in reason for reason in reasons(path))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keyFormat": ""}, OptionError, "'keyFormat' is required"),
        ({"keyFormat": "xml"}, OptionError, "one of json, avro, raw"),
        ({"valueSchema": ""}, OptionError, "'valueSchema' is required"),
        ({"valueSchemaId": "7"}, OptionError, "use valueFormat=json-confluent"),
        ({"applyAsDeletes": "gone"}, OptionError, "marks deletes itself"),
        ({"sequenceBy": "value.w"}, SchemaError, "Did you mean 'value.v'?"),
        ({"sequenceBy": "ofset"}, SchemaError, "Did you mean 'offset'?"),
        ({"keys": "id"}, SchemaError, "the key column 'id'"),
        ({"columnList": "v"}, SchemaError, "the key column 'k'"),
        ({"envelope": "kafak"}, OptionError, "Did you mean 'kafka'?"),
        ({"envelope": "upsert"}, OptionError, "has no meaning with the envelope 'upsert'"),
        ({"onError": "ignore"}, OptionError, "one of fail, inline, quarantine"),
        ({"onError": "fail", "errorColumn": "e"}, OptionError, "use onError=inline"),
        ({"errorColumn": "e"}, OptionError, "'onError' is required"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused_before_the_table_is_made(
    tmp_path: Path, options: dict[str, str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        plan(tmp_path / "t", KAFKA, **{**JSON, **options})
    assert text in str(caught.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_a_value_of_100_mb(tmp_path: Path) -> None:
    path = tmp_path / "t"
    huge = "x" * 100_000_000
    write(
        path, records([(key(1), value("a")), (key(2), value(huge)), (key(3), value("c"))]), **JSON
    )
    found = rows_of(path)
    assert [len(row["v"]) for row in found] == [1, 100_000_000, 1]


def test_an_empty_batch_and_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit = write(path, records([]), onError="quarantine", **JSON)
    assert counters_of(commit).rows == 0
    planned = plan(path, KAFKA, **JSON)
    empty = pa.RecordBatch.from_pylist([], schema=KAFKA)
    assert planned.write.envelope.commands(empty).num_rows == 0
    assert planned.write.envelope.commands(empty).schema == planned.write.base.schema.run
    assert quarantine_of(path) == []


# -- the debezium envelope ---------------------------------------------------------------

ROW = pa.struct({"id": pa.int64(), "name": pa.string()})
EVENT = pa.schema(
    {
        "before": ROW,
        "after": ROW,
        "op": pa.string(),
        "source": pa.struct({"lsn": pa.int64(), "txId": pa.int64()}),
        "ts_ms": pa.int64(),
    }
)
DEBEZIUM = {"envelope": "debezium", "keys": "id", "sequenceBy": "source.lsn"}

Fields = tuple[int | None, str | None] | None


def event(op: str | None, before: Fields, after: Fields, lsn: int | None) -> dict[str, Any]:
    names = ("id", "name")
    return {
        "before": before and dict(zip(names, before, strict=True)),
        "after": after and dict(zip(names, after, strict=True)),
        "op": op,
        "source": None if lsn is None else {"lsn": lsn, "txId": 0},
        "ts_ms": 0,
    }


def events(*given: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(given), schema=EVENT)


CREATE = event("c", None, (1, "a"), 1)

DEBEZIUM_CASES: dict[str, tuple[list[dict[str, Any]], dict[int, str | None]]] = {
    "a create": ([CREATE], {1: "a"}),
    "a snapshot read": ([event("r", None, (1, "a"), 1)], {1: "a"}),
    "an update": ([CREATE, event("u", (1, "a"), (1, "b"), 2)], {1: "b"}),
    "an update without before": ([CREATE, event("u", None, (1, "b"), 2)], {1: "b"}),
    "a delete": ([CREATE, event("d", (1, "a"), None, 2)], {}),
    "a delete whose before is only the key": ([CREATE, event("d", (1, None), None, 2)], {}),
    "an update to another key": ([CREATE, event("u", (1, "a"), (2, "a"), 2)], {2: "a"}),
    "an update there and back": (
        [CREATE, event("u", (1, "a"), (2, "b"), 2), event("u", (2, "b"), (1, "c"), 3)],
        {1: "c"},
    ),
    "a late update": ([event("u", None, (1, "b"), 2), CREATE], {1: "b"}),
    "an update to all nulls": ([CREATE, event("u", None, (1, None), 2)], {1: None}),
}


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
@pytest.mark.parametrize("nested", [False, True], ids=["at the top", "below payload"])
@pytest.mark.parametrize("case", DEBEZIUM_CASES.values(), ids=DEBEZIUM_CASES.keys())
def test_change_events(
    tmp_path: Path,
    case: tuple[list[dict[str, Any]], dict[int, str | None]],
    nested: bool,
    policy: str,
) -> None:
    given, expected = case
    for way, path in (("at once", tmp_path / "once"), ("one by one", tmp_path / "each")):
        parts = [given] if way == "at once" else [[row] for row in given]
        for part in parts:
            rows = events(*part)
            if nested:
                payload = rows.to_struct_array().combine_chunks()
                rows = pa.table({"payload": payload, "schema": ["x"] * len(rows)})
            write(path, rows, onError=policy, **DEBEZIUM)
        assert {row["id"]: row["name"] for row in rows_of(path)} == expected
        assert quarantine_of(path) == []
        assert_sound(path)


def test_without_an_order_a_row_that_moves_there_and_back_stays_in_the_order_of_arrival(
    tmp_path: Path,
) -> None:
    rows = events(CREATE, event("u", (1, "a"), (2, "b"), 2), event("u", (2, "b"), (1, "c"), 3))
    commit = write(tmp_path / "t", rows, envelope="debezium", keys="id")
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "c"}]
    assert counters_of(commit).rows == 5, "a row that moves is two commands"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (event("t", None, None, 2), "op 't' (truncate) cannot be applied"),
        (event("m", None, None, 2), "op 'm' is not one of c, r, u, d"),
        (event("C", None, (1, "b"), 2), "op 'C' is not one of c, r, u, d"),
        (event(None, None, (1, "b"), 2), "the event has no 'op'"),
        (event(None, (1, "a"), None, 2), "the event has no 'op'"),
        (event(None, None, None, None), "the event has no 'op'"),
        (event("u", (1, "a"), None, 2), "op 'u' has no 'after'"),
        (event("d", (1, "a"), (1, "a"), 2), "op 'd' has an 'after'"),
        (event("d", None, None, 2), "op 'd' has no key in 'before'"),
        (event("c", None, (None, "b"), 2), "the key 'id' is null"),
        (event("u", None, (1, "b"), None), "the sequenceBy column 'source.lsn' is null"),
    ],
    ids=[
        "truncate",
        "message",
        "unknown",
        "no op",
        "no op, and no after",
        "what from_json makes of garbage",
        "an update without after",
        "a delete with after",
        "a delete without a key",
        "no key",
        "no order",
    ],
)
def test_events_that_cannot_be_applied(tmp_path: Path, bad: dict[str, Any], reason: str) -> None:
    write(tmp_path / "fail", events(CREATE), **DEBEZIUM)
    with pytest.raises(DataError) as caught:
        write(tmp_path / "fail", events(bad), **DEBEZIUM)
    assert reason in str(caught.value)
    assert rows_of(tmp_path / "fail") == [{"id": 1, "name": "a"}]

    path = tmp_path / "quarantine"
    write(path, events(CREATE), onError="quarantine", **DEBEZIUM)
    commit = write(path, events(bad), **DEBEZIUM)
    own = bad["after"] or bad["before"]
    has_key = bool(own and own["id"])
    # Without an order it is older than the row that its key has.
    stale = has_key and bad["source"] is None
    assert counters_of(commit).quarantined == (0 if stale else 1)
    assert counters_of(commit).deletes == 0
    if not stale:
        [error] = quarantine_of(path)
        assert reason in error["_reason"]
        assert json.loads(error["_raw_value"]) == bad
        assert rows_of(path) == ([] if has_key else [{"id": 1, "name": "a"}])
    write(path, events(event("u", None, (1, "z"), 9)), **DEBEZIUM)
    assert rows_of(path) == [{"id": 1, "name": "z"}]


def test_an_event_of_an_unknown_op_is_inlined_only_if_it_has_a_key(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, events(event("x", None, (1, "a"), 1)), onError="inline", **DEBEZIUM)
    [row] = rows_of(path)
    assert (row["id"], row["name"]) == (1, None)
    assert row["error"] == {"description": "op 'x' is not one of c, r, u, d"}
    with pytest.raises(DataError, match="truncate"):
        write(path, events(event("t", None, None, 2)), **DEBEZIUM)


@pytest.mark.parametrize("where", ["a column", "a struct"])
def test_a_delete_without_before_finds_its_key_beside_the_event(tmp_path: Path, where: str) -> None:
    rows = events(CREATE, event("d", None, None, 2))
    ids = pa.array([1, 1])
    if where == "a column":
        rows = rows.append_column("id", ids)
    else:
        rows = rows.append_column("key", pa.StructArray.from_arrays([ids], names=["id"]))
    write(tmp_path / "t", rows, **DEBEZIUM)
    assert rows_of(tmp_path / "t") == []


def test_before_may_be_left_out(tmp_path: Path) -> None:
    rows = events(CREATE).drop_columns(["before"])
    write(tmp_path / "t", rows, **DEBEZIUM)
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "a"}]


def test_events_may_be_ordered_by_what_kafka_says(tmp_path: Path) -> None:
    payload = events(event("c", None, (1, "b"), 1), CREATE).to_struct_array().combine_chunks()
    rows = pa.table({"payload": payload, "offset": [8, 7]})
    write(tmp_path / "t", rows, envelope="debezium", keys="id", sequenceBy="offset")
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "b"}]


def test_a_composite_key_with_a_null_is_whole_from_one_place(tmp_path: Path) -> None:
    row = pa.struct({"x": pa.int64(), "y": pa.int64()})
    schema = pa.schema({"before": row, "after": row, "op": pa.string()})
    change = {"before": {"x": 1, "y": 5}, "after": {"x": 1, "y": None}, "op": "u"}
    rows = pa.Table.from_pylist([change], schema=schema)
    write(tmp_path / "t", rows, envelope="debezium", keys="x,y")
    assert rows_of(tmp_path / "t") == [{"x": 1, "y": None}]


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (pa.schema({"id": pa.int64(), "op": pa.string()}), {}, "'after' is not among"),
        (pa.schema({"after": ROW}), {}, "'op' is not among"),
        (pa.schema({"after": pa.string(), "op": pa.string()}), {}, "must be a struct of the row"),
        (EVENT, {"keys": "ident"}, "Did you mean 'id'?"),
        (EVENT, {"sequenceBy": "source.lns"}, "Did you mean 'source.lsn'?"),
        (EVENT, {"columnList": "id,ts_ns"}, "Did you mean 'ts_ms'?"),
        (EVENT, {"columnList": "id,before.id"}, "'before.id' is not among"),
        (EVENT, {"keys": "id,op", "columnList": "id,op"}, "the key column 'op' is not among"),
    ],
    ids=[
        "no after",
        "no op",
        "an after that is text",
        "no such key",
        "no order",
        "beside",
        "before",
        "a key beside the row",
    ],
)
def test_rows_that_are_no_change_events_are_refused(
    tmp_path: Path, rows: pa.Schema, options: dict[str, str], text: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        plan(tmp_path / "t", rows, **{**DEBEZIUM, **options})
    assert text in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_a_part_of_the_row_may_be_stored(tmp_path: Path) -> None:
    write(tmp_path / "t", events(CREATE), exceptColumnList="name", **DEBEZIUM)
    assert rows_of(tmp_path / "t") == [{"id": 1}]


def test_what_stands_beside_the_row_is_stored_if_it_is_named(tmp_path: Path) -> None:
    rows = events(CREATE).append_column("offset", pa.array([7]))
    names = "id,op,ts_ms,source.lsn,offset"
    write(tmp_path / "t", rows, columnList=names, **DEBEZIUM)
    assert rows_of(tmp_path / "t") == [
        {"id": 1, "op": "c", "ts_ms": 0, "source.lsn": 1, "offset": 7}
    ]


def test_no_events_are_no_commands(tmp_path: Path) -> None:
    assert counters_of(write(tmp_path / "t", events(), **DEBEZIUM)).rows == 0
