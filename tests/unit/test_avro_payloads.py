"""Payloads of Avro: what they hold, and which are bad."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.payloads.avro import parse_avro
from tests.support.own_schemas import record
from tests.support.payloads import avro, decoded, record_of, refusal_of

UTC = dt.UTC

ENUM = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
ARRAY, MAYBE_INTS = ({"type": "array", "items": items} for items in ("long", ["null", "int"]))
LONGS = {"type": "map", "values": "long"}
DATE, LEAP_DAY = {"type": "int", "logicalType": "date"}, dt.date(2024, 2, 29)
POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}]}

GOOD_AVRO: dict[str, tuple[Any, Any, Any, pa.DataType]] = {
    "long": ("long", 2**63 - 1, 2**63 - 1, pa.int64()),
    "float": ("float", 1.5, 1.5, pa.float32()),
    "double": ("double", -0.0, -0.0, pa.float64()),
    "something in a union": (["string", "null"], "a", "a", pa.string()),
    "enum": (ENUM, "BLUE", "BLUE", pa.string()),
    "array": (MAYBE_INTS, [1, None], [1, None], pa.list_(pa.int32())),
    "map": (LONGS, {"a": 1}, [("a", 1)], pa.map_(pa.string(), pa.int64())),
    "record": (POINT, {"x": 1}, {"x": 1}, pa.struct({"x": pa.int32()})),
    "date": (DATE, LEAP_DAY, LEAP_DAY, pa.date32()),
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
    "an unknown logical type": ({"type": "int", "logicalType": "time-millis"}, 5, 5, pa.int32()),
}


@pytest.mark.parametrize("case", GOOD_AVRO.values(), ids=GOOD_AVRO.keys())
def test_avro_is_decoded(case: tuple[Any, Any, Any, pa.DataType]) -> None:
    schema, datum, expected, type_ = case
    plain = re.sub('"logicalType": "(local-|time-)', r'"was": "\1', json.dumps(schema))
    payload = avro(record_of(json.loads(plain)), {"v": datum})
    decoder = parse_avro("valueSchema", json.dumps(record_of(schema)), bare_name="value")
    assert decoder.fields == pa.schema({"v": storage_type(type_)})
    assert decoded(decoder, payload) == ({"v": expected}, None)


def test_avro_names_are_found_in_their_namespace() -> None:
    points = {"type": "array", "items": "point"}
    schema = record("shop.order", a=POINT, b=["null", "shop.point"], c=points)
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
)
def test_avro_that_is_not_of_the_schema_is_bad(cut: Any, reason: str) -> None:
    schema = record_of(["null", "string"])
    decoder = parse_avro("valueSchema", json.dumps(schema), bare_name="value")
    assert reason in refusal_of(decoder, cut(avro(schema, {"v": "text"})))


HOSTILE_AVRO: dict[str, tuple[Any, bytes, str]] = {
    "symbol -1": (ENUM, b"\x01", "no symbol -1 of 2"),
    "branch -1": (["null", "long"], b"\x01", "no branch -1 of 2"),
    "truth 7": ("boolean", b"\x07", "7 is no boolean"),
    "needless bytes": ("long", b"\x80\x00", "more bytes than it takes"),
    "eleven bytes": ("long", b"\xff" * 11 + b"\x01", "more than 64 bits"),
    "65 bits": ("long", b"\xff" * 9 + b"\x03", "more bytes than it takes"),
    "a length of -1": ("bytes", b"\x01", "a length of -1"),
    "a count beyond all": (ARRAY, b"\xfe" + b"\xff" * 8 + b"\x01", "ends too early"),
    "a longer block than it says": (ARRAY, b"\x03\x02\x02\x02\x00", "not as long as it says"),
    "a key twice": ({"type": "map", "values": "null"}, b"\x04\x02a\x02a\x00", "a key twice"),
    "an int of 2**40": ("int", avro("long", 2**40), "1099511627776 is no int"),
    "a decimal of a megabyte": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38},
        b"\x80\x80\x80\x01" + b"\x7f" * (1 << 20),
        "a greater precision",
    ),
    "a time before 1": (
        {"type": "long", "logicalType": "timestamp-millis"},
        b"\xff" * 9 + b"\x01",
        "outside the years 1 to 9999",
    ),
    "a day after 9999": (DATE, b"\xfe\xff\xff\xff\x0f", "outside the years 1 to 9999"),
}


@pytest.mark.parametrize("case", HOSTILE_AVRO.values(), ids=HOSTILE_AVRO.keys())
def test_avro_that_no_writer_writes_is_bad(case: tuple[Any, bytes, str]) -> None:
    type_, payload, reason = case
    decoder = parse_avro("valueSchema", json.dumps(record_of(type_)), bare_name="value")
    assert reason in refusal_of(decoder, payload)


def test_a_block_may_say_how_long_it_is() -> None:
    decoder = parse_avro("valueSchema", json.dumps(record_of(ARRAY)), bare_name="value")
    assert decoded(decoder, b"\x03\x04\x02\x04\x02\x06\x00") == ({"v": [1, 2, 3]}, None)


def array_of(items: Any) -> dict[str, Any]:
    return record_of({"type": "array", "items": items})


@pytest.mark.parametrize(
    ("schema", "error", "text"),
    [
        ("nope", OptionError, "an Avro schema in JSON"),
        ('{"type": "rec"}', OptionError, "an Avro schema in JSON"),
        ('{"type": "record", "name": "r"}', OptionError, "an Avro schema in JSON"),
        (json.dumps(record_of(["int", "string"])), SchemaError, "union of several types"),
        (json.dumps(array_of("null")), SchemaError, "take no bytes"),
        (json.dumps(array_of({"type": "fixed", "name": "f", "size": 0})), SchemaError, "no bytes"),
        (json.dumps(array_of({**record_of("null"), "name": "e"})), SchemaError, "no bytes"),
        (json.dumps(record_of(["null", "r"])), SchemaError, "refers to 'r' from inside itself"),
        ('{"type": "record", "name": "r", "fields": []}', SchemaError, "has no fields"),
    ],
)
def test_an_avro_schema_that_no_table_can_hold_is_refused(
    schema: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        parse_avro("valueSchema", schema, bare_name="value")
    assert text in str(caught.value)
