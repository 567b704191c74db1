"""Kafka Connect's and Debezium's types: what their JSON means in the types of a table."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.payloads import wrapped
from spark_upsert.payloads.connect import ConnectJsonDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.logical_types import (
    DecimalForm,
    SchemalessDefaults,
    TimeUnit,
    decode_base64,
)

UTC = dt.UTC
NOON = dt.datetime(2018, 6, 20, 12, 0, 0)
NOON_S = 1529496000

PRECISE = SchemalessDefaults(decimals=DecimalForm.PRECISE)
TEXTS = SchemalessDefaults(decimals=DecimalForm.STRING)
NUMBERS = SchemalessDefaults(decimals=DecimalForm.DOUBLE)
MILLIS = SchemalessDefaults(unit=TimeUnit.MILLIS)
NANOS = SchemalessDefaults(unit=TimeUnit.NANOS)


def b64(number: int) -> str:
    """Return a number as Java's ``BigInteger.toByteArray`` in Base64."""
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()


def decoded(
    ddl: str,
    sent: Any,
    said: dict[str, Any] | None = None,
    unsaid: SchemalessDefaults | None = None,
) -> tuple[Any, str | None]:
    """Decode the member ``v`` of one object among others; returns it, or why it is bad."""
    fields, _ = parse_schema("valueSchema", f"v {ddl}", bare_name="v")
    decoder = ConnectJsonDecoder(fields, unsaid or SchemalessDefaults())
    message: Any = {"v": sent}
    if said is not None:
        schema = {"type": "struct", "fields": [{"optional": True, "field": "v", **said}]}
        message = {"schema": schema, "payload": message}
    payload = json.dumps(message).encode()
    found = decoder.decode(pa.array([payload, None, b"?", payload, b'{"v":null}'], pa.binary()))
    assert found.columns[0].type == fields.types[0]
    values = found.columns[0].to_pylist()
    reasons = [None] * 5 if found.reasons is None else found.reasons.to_pylist()
    assert (values[0], reasons[0]) == (values[3], reasons[3])
    assert (values[1], reasons[1]) == (None, None)
    assert reasons[2] is not None
    assert reasons[0] is None or values[0] is None
    return values[0], reasons[0]


def number(name: str, type_: str = "int64") -> dict[str, Any]:
    return {"type": type_, "name": name, "version": 1}


def decimal(scale: int | str) -> dict[str, Any]:
    name = "org.apache.kafka.connect.data.Decimal"
    parameters = {"scale": str(scale), "connect.decimal.precision": "10"}
    return {"type": "bytes", "name": name, "version": 1, "parameters": parameters}


VARIABLE = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}],
}

GEOMETRY = {
    "type": "struct",
    "name": "io.debezium.data.geometry.Geometry",
    "fields": [
        {"type": "bytes", "optional": False, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ],
}

WITH_SCHEMA: dict[str, tuple[str, Any, dict[str, Any], Any]] = {
    "adaptive, up to 3 digits": (
        "TIMESTAMP_NTZ",
        NOON_S * 1000 + 123,
        number("io.debezium.time.Timestamp"),
        NOON.replace(microsecond=123000),
    ),
    "adaptive, up to 6 digits": (
        "TIMESTAMP_NTZ",
        NOON_S * 10**6 + 123456,
        number("io.debezium.time.MicroTimestamp"),
        NOON.replace(microsecond=123456),
    ),
    "nanoseconds": (
        "TIMESTAMP_NTZ",
        NOON_S * 10**9 + 123456000,
        number("io.debezium.time.NanoTimestamp"),
        NOON.replace(microsecond=123456),
    ),
    "connect": (
        "TIMESTAMP_NTZ",
        -1,
        number("org.apache.kafka.connect.data.Timestamp"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999000),
    ),
    "a timestamp taken as UTC": (
        "TIMESTAMP",
        NOON_S * 10**6,
        number("io.debezium.time.MicroTimestamp"),
        NOON.replace(tzinfo=UTC),
    ),
    "a zoned timestamp": (
        "TIMESTAMP",
        "2018-06-20T12:00:00.123456Z",
        number("io.debezium.time.ZonedTimestamp", "string"),
        NOON.replace(microsecond=123456, tzinfo=UTC),
    ),
    "a timestamp that is to stay a number": (
        "BIGINT",
        NOON_S,
        number("io.debezium.time.MicroTimestamp"),
        NOON_S,
    ),
    "a date": ("DATE", 17702, number("io.debezium.time.Date", "int32"), dt.date(2018, 6, 20)),
    "a date of connect": (
        "DATE",
        -1,
        number("org.apache.kafka.connect.data.Date", "int32"),
        dt.date(1969, 12, 31),
    ),
    "a date in ISO 8601": (
        "DATE",
        "2018-06-20",
        number("io.debezium.time.IsoDate", "string"),
        dt.date(2018, 6, 20),
    ),
    "a time of day": ("BIGINT", 43200000000, number("io.debezium.time.MicroTime"), 43200000000),
    "a zoned time": (
        "STRING",
        "12:00:00Z",
        number("io.debezium.time.ZonedTime", "string"),
        "12:00:00Z",
    ),
    "precise": ("DECIMAL(10, 2)", b64(-12345), decimal(2), Decimal("-123.45")),
    "precise, zero": ("DECIMAL(10, 2)", "AA==", decimal(2), Decimal("0.00")),
    "precise, of a smaller scale": ("DECIMAL(10, 2)", b64(12345), decimal(0), Decimal("12345.00")),
    "precise, 38 digits": (
        "DECIMAL(38, 0)",
        b64(-(10**38) + 1),
        decimal(0),
        Decimal(-(10**38) + 1),
    ),
    "precise, of a finer scale": ("DECIMAL(10, 2)", b64(15000), decimal(4), Decimal("1.50")),
    "precise, rounded to hundreds": ("DECIMAL(10, 2)", b64(-15), decimal(-2), Decimal("-1500.00")),
    "precise, zero of any scale": ("DECIMAL(10, 2)", "AA==", decimal(9999999), Decimal("0.00")),
    "precise, of many digits": ("DECIMAL(5, 0)", b64(10**60), decimal(58), Decimal(100)),
    "precise, as a number": ("DECIMAL(38, 2)", 12.5, decimal(2), Decimal("12.50")),
    "precise, as a number of an object": (
        "STRUCT<a: DECIMAL(10, 2), b: STRING>",
        {"b": "#1", "a": -3},
        {
            "type": "struct",
            "fields": [{"field": "a", **decimal(1)}, {"field": "b", "type": "string"}],
        },
        {"a": Decimal("-3.00"), "b": "#1"},
    ),
    "an infinite float": ("FLOAT", "-Infinity", {"type": "float"}, -math.inf),
    "infinite floats of an array": (
        "ARRAY<DOUBLE>",
        ["Infinity", 1.5, None],
        {"type": "array", "items": {"type": "double"}},
        [math.inf, 1.5, None],
    ),
    "a text like a float": ("STRING", "NaN", {"type": "string"}, "NaN"),
    "string": ("DECIMAL(10, 2)", "-0012.500", {"type": "string"}, Decimal("-12.50")),
    "double": ("DECIMAL(10, 2)", 12.5, {"type": "double"}, Decimal("12.50")),
    "variable scale": (
        "DECIMAL(10, 2)",
        {"scale": 1, "value": b64(125)},
        VARIABLE,
        Decimal("12.50"),
    ),
    "variable scale that is finer": (
        "DECIMAL(10, 2)",
        {"scale": 4, "value": b64(-125000)},
        VARIABLE,
        Decimal("-12.50"),
    ),
    "variable scale below zero": (
        "DECIMAL(10, 2)",
        {"scale": -3, "value": b64(12)},
        VARIABLE,
        Decimal("12000.00"),
    ),
    "bytes": ("BINARY", "AQID", {"type": "bytes"}, b"\1\2\3"),
    "no bytes": ("BINARY", "", {"type": "bytes"}, b""),
    "geometry": (
        "STRUCT<wkb: BINARY, srid: INT>",
        {"wkb": "AQEAAAA=", "srid": 4326},
        GEOMETRY,
        {"wkb": b"\1\1\0\0\0", "srid": 4326},
    ),
    "a part of a geometry that is not there": (
        "STRUCT<wkb: BINARY, z: DATE>",
        {"wkb": "AQEAAAA=", "srid": 4326},
        GEOMETRY,
        {"wkb": b"\1\1\0\0\0", "z": None},
    ),
    "an array": (
        "ARRAY<DATE>",
        [0, None, 1],
        {"type": "array", "items": number("io.debezium.time.Date", "int32")},
        [dt.date(1970, 1, 1), None, dt.date(1970, 1, 2)],
    ),
    "json": ("STRING", '{"a": 1}', number("io.debezium.data.Json", "string"), '{"a": 1}'),
}


@pytest.mark.parametrize("case", WITH_SCHEMA.values(), ids=WITH_SCHEMA.keys())
def test_the_schema_of_a_message_says_what_its_values_mean(
    case: tuple[str, Any, dict[str, Any], Any],
) -> None:
    ddl, sent, said, expected = case
    assert decoded(ddl, sent, said) == (expected, None)
    # What options say of messages without a schema is not asked.
    other = SchemalessDefaults(
        unit=TimeUnit.NANOS, units={"v": TimeUnit.NANOS}, decimals=DecimalForm.DOUBLE
    )
    assert decoded(ddl, sent, said, other) == (expected, None)
    assert decoded(ddl, None, said) == (None, None)


BAD_WITH_SCHEMA: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "a date that is a time": (
        "DATE",
        1,
        number("io.debezium.time.MicroTimestamp"),
        "'v' is declared date32[day], and the message's schema says io.debezium.time.MicroTim",
    ),
    "a number of no unit": ("TIMESTAMP", 1, {"type": "int64"}, "the message's schema says int64"),
    "a time of day": ("TIMESTAMP", 1, number("io.debezium.time.MicroTime"), "says io.debezium"),
    "a decimal as a text": ("STRING", "AQ==", decimal(2), "declared string, and the message's"),
    "a finer scale": ("DECIMAL(10, 2)", "AQ==", decimal(3), "type or range"),
    "a scale that is none": ("DECIMAL(10, 2)", "AQ==", decimal("x"), "says org.apache.kafka"),
    "a scale beyond all digits": ("DECIMAL(38, 0)", "AQ==", decimal(-9999999), "type or range"),
    "a long number of many digits": (
        "DECIMAL(38, 0)",
        b64(10**40 + 1),
        decimal(3),
        "type or range",
    ),
    "a number that is finer": ("DECIMAL(10, 2)", 1.234, decimal(2), "type or range"),
    "numbers of an array": (
        "ARRAY<DECIMAL(10, 2)>",
        [1.5],
        {"type": "array", "items": decimal(2)},
        "decimal.format=BASE64",
    ),
    "a float in other words": ("DOUBLE", "nan", {"type": "double"}, "found string"),
    "a number in quotes": ("DOUBLE", "1.5", {"type": "double"}, "found string"),
    "bytes as a decimal": ("DECIMAL(10, 2)", "AQ==", {"type": "bytes"}, "schema says bytes"),
    "a text as bytes": ("BINARY", "AQ==", {"type": "string"}, "schema says string"),
    "too many digits": ("DECIMAL(3, 2)", b64(1000), decimal(2), "not of this type or range"),
    "too many digits below": ("DECIMAL(3, 2)", b64(-1000), decimal(2), "type or range"),
    "too many bytes": ("DECIMAL(38, 0)", b64(2**127), decimal(0), "type or range"),
    "no digits": ("DECIMAL(38, 0)", "", decimal(0), "type or range"),
    "no Base64": ("DECIMAL(38, 0)", "A===", decimal(0), "type or range"),
    "a variable scale that is finer": (
        "DECIMAL(10, 2)",
        {"scale": 3, "value": "AQ=="},
        VARIABLE,
        "type or range",
    ),
    "PostgreSQL's infinity": (
        "TIMESTAMP_NTZ",
        9223372036825200000,
        number("io.debezium.time.MicroTimestamp"),
        "type or range",
    ),
    "a date beyond the calendar": (
        "DATE",
        2**31 - 1,
        number("io.debezium.time.Date", "int32"),
        "type or range",
    ),
    "nanoseconds that are no microseconds": (
        "TIMESTAMP_NTZ",
        1001,
        number("io.debezium.time.NanoTimestamp"),
        "set the connector's time.precision.mode=microseconds",
    ),
    "one of an array": (
        "ARRAY<DATE>",
        [0, 2**31 - 1],
        {"type": "array", "items": number("io.debezium.time.Date", "int32")},
        "type or range",
    ),
    "one of a struct": (
        "STRUCT<wkb: BINARY>",
        {"wkb": "="},
        GEOMETRY,
        "'v.wkb' is declared binary",
    ),
}


@pytest.mark.parametrize("case", BAD_WITH_SCHEMA.values(), ids=BAD_WITH_SCHEMA.keys())
def test_what_the_declared_type_cannot_hold_is_bad(
    case: tuple[str, Any, dict[str, Any], str],
) -> None:
    ddl, sent, said, reason = case
    value, found = decoded(ddl, sent, said)
    assert value is None
    assert found is not None
    assert reason in found


WITHOUT_SCHEMA: dict[str, tuple[str, Any, SchemalessDefaults, Any]] = {
    "a date": ("DATE", 17702, SchemalessDefaults(), dt.date(2018, 6, 20)),
    "milliseconds": ("TIMESTAMP_NTZ", NOON_S * 1000, MILLIS, NOON),
    "the unit of the column": (
        "TIMESTAMP_NTZ",
        NOON_S * 10**6,
        SchemalessDefaults(unit=TimeUnit.MILLIS, units={"v": TimeUnit.MICROS}),
        NOON,
    ),
    "a zoned timestamp is a text": (
        "TIMESTAMP",
        "2018-06-20T12:00:00Z",
        MILLIS,
        NOON.replace(tzinfo=UTC),
    ),
    "but for a column that has a unit": (
        "TIMESTAMP",
        NOON_S * 1000,
        SchemalessDefaults(units={"v": TimeUnit.MILLIS}),
        NOON.replace(tzinfo=UTC),
    ),
    "a text without a unit": ("TIMESTAMP_NTZ", "2018-06-20T12:00:00", SchemalessDefaults(), NOON),
    "precise": ("DECIMAL(10, 2)", b64(1234), PRECISE, Decimal("12.34")),
    "string": ("DECIMAL(10, 2)", "1234", TEXTS, Decimal("1234.00")),
    "double": ("DECIMAL(10, 2)", 0.1, NUMBERS, Decimal("0.10")),
    "bytes": ("BINARY", "AQID", SchemalessDefaults(), b"\1\2\3"),
    "geometry": (
        "STRUCT<wkb: BINARY>",
        {"wkb": "AQID", "srid": 1},
        SchemalessDefaults(),
        {"wkb": b"\1\2\3"},
    ),
}


@pytest.mark.parametrize("case", WITHOUT_SCHEMA.values(), ids=WITHOUT_SCHEMA.keys())
def test_without_a_schema_the_declared_type_and_the_options_decide(
    case: tuple[str, Any, SchemalessDefaults, Any],
) -> None:
    ddl, sent, unsaid, expected = case
    assert decoded(ddl, sent, None, unsaid) == (expected, None)
    assert decoded(ddl, None, None, unsaid) == (None, None)


@pytest.mark.parametrize(
    ("ddl", "sent", "unsaid", "reason"),
    [
        ("DECIMAL(10, 2)", b64(1234), SchemalessDefaults(), "the option 'decimalHandling' does"),
        ("DECIMAL(10, 2)", 12.34, SchemalessDefaults(), "the option 'decimalHandling' does"),
        ("DECIMAL(10, 2)", "12.34", PRECISE, "type or range"),
        ("TIMESTAMP_NTZ", 1001, NANOS, "time.precision.mode=microseconds"),
        ("DECIMAL(10, 2)", "BNI=", TEXTS, "type or range"),
        ("DECIMAL(10, 2)", "1.234", TEXTS, "type or range"),
        ("DECIMAL(10, 2)", "NaN", TEXTS, "type or range"),
        ("DECIMAL(10, 2)", "-.", TEXTS, "type or range"),
        ("TIMESTAMP_NTZ", NOON_S, SchemalessDefaults(), "found number"),
        ("TIMESTAMP", NOON_S, MILLIS, "found number"),
        ("TIMESTAMP_NTZ", "2018-06-20T12:00:00", MILLIS, "found string"),
        ("DATE", "2018-06-20", SchemalessDefaults(), "found string"),
    ],
)
def test_what_could_mean_several_things_is_bad(
    ddl: str, sent: Any, unsaid: SchemalessDefaults, reason: str
) -> None:
    value, found = decoded(ddl, sent, None, unsaid)
    assert value is None
    assert found is not None
    assert reason in found


def test_a_member_that_the_schema_does_not_have_must_not_be_there() -> None:
    """Else a schema that is not that of the message would make nulls of it."""
    fields = pa.schema({"v": pa.int64(), "w": pa.string()})
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "v"}]}
    messages = [{"v": 1}, {"v": 1, "w": "a"}, {"v": 1, "w": 2}]
    payloads = [json.dumps({"schema": schema, "payload": m}).encode() for m in messages]
    found = ConnectJsonDecoder(fields, SchemalessDefaults()).decode(pa.array(payloads))
    assert found.columns[0].to_pylist() == [1, None, None]
    assert found.reasons is not None
    assert [reason is None for reason in found.reasons.to_pylist()] == [True, False, False]


def test_each_schema_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    head = wrapped._head

    def counted(message: bytes) -> tuple[bytes, int] | None:
        read.append(message)
        return head(message)

    monkeypatch.setattr(wrapped, "_head", counted)
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "v"}]}
    payloads = [json.dumps({"schema": schema, "payload": {"v": n}}).encode() for n in range(100)]
    found = ConnectJsonDecoder(pa.schema({"v": pa.int64()}), SchemalessDefaults()).decode(
        pa.array(payloads)
    )
    assert found.columns[0].to_pylist() == list(range(100))
    assert len(read) == 1


# -- Base64 ------------------------------------------------------------------------------


def test_base64_is_what_the_standard_library_says() -> None:
    values = [bytes(range(n, n + length)) for n in (0, 250 - 12, 120) for length in range(12)]
    texts = pa.array([base64.b64encode(value).decode() for value in values] + [None])
    for part in (texts, texts.slice(5, 9)):
        found, bad = decode_base64(part)
        assert not bad.any()
        expected = [None if t is None else base64.b64decode(t) for t in part.to_pylist()]
        assert found.to_pylist() == expected


@pytest.mark.parametrize(
    "text",
    [
        *("A", "AB", "ABC", "====", "A===", "AB=C", "AA=A", "=AAA", "AB==AB==", "A*==", "Zm9v\n"),
        # Bits are left over: another text means the same bytes.
        *("AB==", "AAB=", "Zm9vZh=="),
    ],
)
def test_what_no_encoder_writes_is_no_base64(text: str) -> None:
    found, bad = decode_base64(pa.array(["Zm9v", text, None, "Zg=="]))
    assert bad.tolist() == [False, True, False, False]
    assert found.to_pylist() == [b"foo", None, None, b"f"]


@pytest.mark.parametrize("texts", [[], [None], [""]])
def test_no_base64_is_no_bytes(texts: list[str | None]) -> None:
    found, bad = decode_base64(pa.array(texts, pa.string()))
    assert found.to_pylist() == [None if text is None else b"" for text in texts]
    assert not bad.any()
