"""Payloads of JSON and raw bytes, with Confluent's header and without."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.payloads import decoder as decoder_module
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Bad, Decoder, RawDecoder
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.schema_registry import ConfluentDecoder
from tests.support.envelopes import value
from tests.support.payloads import decoded, json_decoder, record_of, refusal_of

UTC = dt.UTC


FIELD = {"nullable": True, "metadata": {}}
ARRAY = {"type": "array", "elementType": "decimal(5,2)", "containsNull": True}
STRUCT = {"type": "struct", "fields": [{"name": "x", "type": "string", **FIELD}]}
FIELDS = {"id": "long", "l": ARRAY, "s": STRUCT}
STRUCT_TYPE = {
    "type": "struct",
    "fields": [{"name": n, "type": t, **FIELD} for n, t in FIELDS.items()],
}
"""As ``StructType.jsonValue()`` gives it."""

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
FLOATS = [pa.float32(), pa.float64()]
DATES = pa.list_(pa.date32())
DDL: dict[str, tuple[str, dict[str, pa.DataType]]] = {
    "columns": ("id BIGINT, name STRING", {"id": pa.int64(), "name": pa.string()}),
    "colons": ("id: bigint, name: string", {"id": pa.int64(), "name": pa.string()}),
    "comments and nulls": (
        "id INT NOT NULL COMMENT 'a, b', v DATE COMMENT \"x\"",
        {"id": pa.int32(), "v": pa.date32()},
    ),
    "quoted names": ("`a b` INT, `c``d` INT", {"a b": pa.int32(), "c`d": pa.int32()}),
    "numbers": (
        "a TINYINT, b SMALLINT, c INT, d LONG, e FLOAT, f DOUBLE",
        dict(zip("abcdef", INTEGERS + FLOATS, strict=True)),
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
        {"a": pa.list_(pa.struct({"x": pa.int32(), "y": pa.map_(pa.string(), DATES)}))},
    ),
    "one struct": ("struct<id:bigint,name:string>", {"id": pa.int64(), "name": pa.string()}),
    "one type": ("bigint", {"value": pa.int64()}),
    "the JSON of a StructType": (
        json.dumps(STRUCT_TYPE),
        {"id": pa.int64(), "l": pa.list_(pa.decimal128(5, 2)), "s": pa.struct({"x": pa.string()})},
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
        ("", "it ends too early"),
        ("id BIGINT name STRING", "'name STRING' was not expected"),
        ("id DECIMAL(1, 2, 3)", "a precision and a scale"),
        ("id DECIMAL(2, 3)", "0 <= scale <= precision <= 38"),
        ("id ARRAY<INT", "'>' was expected, found 'the end'"),
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


NOON = dt.datetime(2024, 1, 31, 12, tzinfo=UTC)
GOOD_JSON: dict[str, tuple[str, str, Any]] = {
    "a whole number": ("v BIGINT", "-9223372036854775808", -(2**63)),
    "minus zero": ("v DOUBLE", "-0.0", -0.0),
    "a decimal as a number": ("v DECIMAL(10, 2)", "1.5", Decimal("1.50")),
    "a decimal as a text": ("v DECIMAL(10, 2)", '"-0.25"', Decimal("-0.25")),
    "an escaped text": ("v STRING", r'"\ud83d\ude00\u0000\""', '\U0001f600\0"'),
    "a truth value": ("v BOOLEAN", "true", True),
    "a date": ("v DATE", '"2024-02-29"', dt.date(2024, 2, 29)),
    "a time in UTC": (
        "v TIMESTAMP",
        '"2024-03-31T02:30:00.123456Z"',
        dt.datetime(2024, 3, 31, 2, 30, 0, 123456, UTC),
    ),
    "a time of no zone is of UTC": ("v TIMESTAMP", '"2024-01-31 12:00:00"', NOON),
    "a list of structs": (
        "v ARRAY<STRUCT<x: FLOAT>>",
        '[{"x": 1, "y": 2}, null, {}]',
        [{"x": 1.0}, None, {"x": None}],
    ),
    "a decimal with an exponent": ("v DECIMAL(5, 2)", "15E-1", Decimal("1.50")),
    "a null": ("v BIGINT", "null", None),
}


@pytest.mark.parametrize("case", GOOD_JSON.values(), ids=GOOD_JSON.keys())
def test_json_is_decoded(case: tuple[str, str, Any]) -> None:
    schema, text, expected = case
    assert decoded(json_decoder(schema), f'{{"v": {text}}}'.encode()) == ({"v": expected}, None)


BAD_JSON: dict[str, tuple[str, bytes, str]] = {
    "no payload at all": ("v INT", b"", "not JSON"),
    "no object": ("v INT", b"[1]", "expected a JSON object, found array"),
    "cut off": ("v INT", b'{"v": 1', "not JSON"),
    "two objects": ("v INT", b'{"v": 1}{"v": 2}', "not JSON"),
    "the same member twice": ("v INT", b'{"v": 1, "v": 2}', "specified twice"),
    "no UTF-8": ("v STRING", b'{"v": "\xff"}', "not UTF-8"),
    "half a surrogate pair": ("v STRING", rb'{"v": "\ud800"}', "surrogate"),
    "a number that is too large": ("v TINYINT", b'{"v": 128}', "128 is no TINYINT"),
    "an infinite number": ("v DOUBLE", b'{"v": 1e999}', "too large for DOUBLE"),
    "a text for a number": ("v INT", b'{"v": "1"}', "'v' is declared number, found string"),
    "a wrong type deep down": (
        "v STRUCT<x: ARRAY<STRUCT<y: INT>>>",
        b'{"v": {"x": [{"y": "1"}]}}',
        "'v.x.y' is declared number, found string",
    ),
    "no such day": ("v DATE", b'{"v": "2023-02-29"}', "2023-02-29"),
    "a time that is too fine": ("v TIMESTAMP", b'{"v": "2024-01-01T00:00:00.123456789Z"}', "finer"),
    "nothing where something must be": ("v INT NOT NULL", b"{}", "'v' is missing or null"),
    "a text for a decimal": ("v DECIMAL(5, 2)", b'{"v": "abc"}', "'abc' is no decimal number"),
    "a decimal that is too large": ("v DECIMAL(5, 2)", b'{"v": 99999}', "a greater precision"),
    "an infinite float": ("v FLOAT", b'{"v": 1e99}', "too large for FLOAT"),
    "an infinity that Python does not know": ("v DOUBLE", b'{"v": -Inf}', "no DOUBLE"),
    "a decimal that would wrap": (
        "v DECIMAL(38, 2)",
        b'{"v": 48151415102163378576555277819065061780}',
        "a greater precision",
    ),
    "a hidden exponent": ("v DECIMAL(38, 2)", rb'{"\u0076": "1\u0065-9999999"}', "a finer scale"),
    "no time": ("v TIMESTAMP", b'{"v": "noon"}', "noon"),
    "a float that would be zero": ("v DOUBLE", b'{"v": 1e-999}', "too small for DOUBLE"),
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
    found = refusal_of(json_decoder(schema), payload)
    assert reason in found
    assert " row " not in found, "a reason must not depend on the place of the payload"


def test_missing_members_are_null_and_others_are_skipped() -> None:
    found = decoded(json_decoder("a INT, b STRING"), b'{"c": {"a": [1]}, "a": 1, "A": 2}')
    assert found == ({"a": 1, "b": None}, None)


@pytest.mark.parametrize("depth", [100, 100_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"x":', b"}")], ids=["lists", "objects"])
def test_deep_json_is_skipped_without_recursion(depth: int, brackets: tuple[bytes, bytes]) -> None:
    opening, closing = brackets
    payload = b'{"w": ' + opening * depth + b"1" + closing * depth + b', "v": 1}'
    [column] = json_decoder("v INT").decode(pa.array([payload], pa.binary())).columns
    assert column.to_pylist() == [1]


BARE_JSON: dict[str, tuple[str, bytes, Any]] = {
    "a number": ("BIGINT", b"42", 42),
    "a text": ("STRING", b'"a"', "a"),
}


@pytest.mark.parametrize("case", BARE_JSON.values(), ids=BARE_JSON.keys())
def test_a_bare_value_is_one_column(case: tuple[str, bytes, Any]) -> None:
    type_, payload, expected = case
    assert decoded(json_decoder(type_), payload) == ({"value": expected}, None)


@pytest.mark.parametrize(
    "payload", [b"", b"1,2", b"[1]", b'{"value": 1}', b'1],"v":[2', b'1]}\n{"v":[2']
)
def test_anything_else_than_one_bare_value_is_bad(payload: bytes) -> None:
    assert refusal_of(json_decoder("BIGINT"), payload)


@pytest.mark.parametrize("schema", ["v MAP<STRING, INT>", "v BINARY", "v ARRAY<MAP<STRING, INT>>"])
def test_types_that_json_cannot_carry_exactly_are_refused(schema: str) -> None:
    with pytest.raises(SchemaError, match="from_json"):
        json_decoder(schema)


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


def test_raw_text_must_be_text_and_raw_bytes_may_be_any() -> None:
    decoder = RawDecoder(pa.schema({"v": pa.string()}))
    assert decoded(decoder, "Zo\u00eb".encode()) == ({"v": "Zo\u00eb"}, None)
    assert decoded(decoder, b"") == ({"v": ""}, None)
    assert decoded(decoder, b"\xff") == (None, "not UTF-8")
    assert decoded(RawDecoder(pa.schema({"v": pa.binary()})), b"\xff\0") == ({"v": b"\xff\0"}, None)


@pytest.mark.parametrize("schema", ["a STRING, b STRING", "BIGINT"])
def test_raw_is_one_column_of_text_or_bytes(schema: str) -> None:
    fields, _ = parse_schema("keySchema", schema, bare_name="key")
    with pytest.raises(SchemaError, match="one column of type STRING or BINARY"):
        RawDecoder(fields)


@pytest.mark.parametrize(
    ("schema_id", "header", "reason"),
    [
        (7, b"\0\0\0\x01\x07", "schema id 263, expected 7"),
        (None, b"\x01\0\0\0\x07", "lacks the header"),
        (7, b"", "lacks the header"),
    ],
)
def test_a_payload_of_another_header_is_bad(
    schema_id: int | None, header: bytes, reason: str
) -> None:
    assert reason in refusal_of(
        ConfluentDecoder(json_decoder("v INT"), schema_id), header + b'{"v": 1}'
    )
    for own, good in ((None, b"\0\0\0\0\x07"), (7, b"\0\0\0\0\x07"), (2**31, b"\0\x80\0\0\0")):
        decoder = ConfluentDecoder(json_decoder("v INT"), own)
        assert decoded(decoder, good + b'{"v": 1}') == ({"v": 1}, None)


@pytest.mark.parametrize("payload", [b"\0", b"\0\0\0\0", b"\0\0\0\0\x07"])
def test_a_payload_that_ends_in_its_header_is_bad(payload: bytes) -> None:
    assert decoded(ConfluentDecoder(json_decoder("v INT")), payload)[1] is not None


def test_behind_a_header_the_empty_payload_of_an_empty_avro_value_is_a_value() -> None:
    decoder = ConfluentDecoder(
        parse_avro("valueSchema", json.dumps(record_of("null")), bare_name="v")
    )
    assert decoded(decoder, b"\0\0\0\0\x07") == ({"v": None}, None)
