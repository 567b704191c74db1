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

from spark_upsert.payloads import connect as connect_module
from spark_upsert.payloads.connect import ConnectJsonDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.logical_types import DecimalForm, SchemalessDefaults, TimeUnit

UTC = dt.UTC
NOON = dt.datetime(2018, 6, 20, 12, 0, 0)
NOON_MILLIS = NOON.replace(microsecond=123000)
NOON_MICROS = NOON.replace(microsecond=123456)
NOON_S = 1529496000

PRECISE = SchemalessDefaults(decimals=DecimalForm.PRECISE)
TEXTS = SchemalessDefaults(decimals=DecimalForm.STRING)
NUMBERS = SchemalessDefaults(decimals=DecimalForm.DOUBLE)
MILLIS = SchemalessDefaults(unit=TimeUnit.MILLIS)
NANOS = SchemalessDefaults(unit=TimeUnit.NANOS, units={"v": TimeUnit.NANOS})


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
    values = [math.nan if repr(value) == "nan" else value for value in found.columns[0].to_pylist()]
    reasons = [None] * 5 if found.reasons is None else found.reasons.to_pylist()
    assert (values[0], reasons[0]) == (values[3], reasons[3])
    assert (values[1], reasons[1]) == (None, None)
    assert reasons[2] is not None
    assert reasons[0] is None or values[0] is None
    return values[0], reasons[0]


def connect(name: str, type_: str = "int64") -> dict[str, Any]:
    return {"type": type_, "name": f"org.apache.kafka.connect.data.{name}", "version": 1}


def debezium(name: str, type_: str = "int64") -> dict[str, Any]:
    return {"type": type_, "name": f"io.debezium.time.{name}", "version": 1}


def decimal(scale: int | str) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": "10"}
    return {**connect("Decimal", "bytes"), "parameters": parameters}


def struct(*members: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{**type_, "field": n} for n, type_ in members], **more}


INT32, BYTES, TEXT = {"type": "int32"}, {"type": "bytes"}, {"type": "string"}
VARIABLE = struct(("scale", INT32), ("value", BYTES), name="io.debezium.data.VariableScaleDecimal")
GEOMETRY = struct(("wkb", BYTES), ("srid", INT32), name="io.debezium.data.geometry.Geometry")
DATE = debezium("Date", "int32")
DATES = {"type": "array", "items": DATE}
MICROS = debezium("MicroTimestamp")
MONEY = "DECIMAL(10, 2)"
POINT = {"wkb": "AQEAAAA=", "srid": 4326}

WITH_SCHEMA: dict[str, tuple[str, Any, dict[str, Any], Any]] = {
    "milliseconds": ("TIMESTAMP_NTZ", NOON_S * 1000 + 123, debezium("Timestamp"), NOON_MILLIS),
    "nanoseconds": (
        "TIMESTAMP_NTZ",
        NOON_S * 10**9 + 123456000,
        debezium("NanoTimestamp"),
        NOON_MICROS,
    ),
    "before 1970": (
        "TIMESTAMP_NTZ",
        -1,
        connect("Timestamp"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999000),
    ),
    "taken as UTC": ("TIMESTAMP", NOON_S * 10**6, MICROS, NOON.replace(tzinfo=UTC)),
    "a zoned timestamp": (
        "TIMESTAMP",
        "2018-06-20T12:00:00.123456Z",
        debezium("ZonedTimestamp", "string"),
        NOON_MICROS.replace(tzinfo=UTC),
    ),
    "a timestamp that stays a number": ("BIGINT", NOON_S, MICROS, NOON_S),
    "an ISO date": ("DATE", "2018-06-20", debezium("IsoDate", "string"), dt.date(2018, 6, 20)),
    "precise": (MONEY, b64(-12345), decimal(2), Decimal("-123.45")),
    "zero of any scale": (MONEY, "AA==", decimal(9999999), Decimal("0.00")),
    "precise, as a number of an object": (
        "STRUCT<a: DECIMAL(10, 2), b: STRING>",
        {"b": "#1", "a": -3},
        struct(("a", decimal(1)), ("b", TEXT)),
        {"a": Decimal("-3.00"), "b": "#1"},
    ),
    "an infinite float": ("FLOAT", "-Infinity", {"type": "float"}, -math.inf),
    "a float that is no number": ("FLOAT", "NaN", {"type": "float"}, math.nan),
    "a double that is no number": ("DOUBLE", "NaN", {"type": "double"}, math.nan),
    "infinite floats of an array": (
        "ARRAY<DOUBLE>",
        ["Infinity", 1.5, None],
        {"type": "array", "items": {"type": "double"}},
        [math.inf, 1.5, None],
    ),
    "a text like a float": ("STRING", "NaN", TEXT, "NaN"),
    "a decimal as a text": (MONEY, "-0012.500", TEXT, Decimal("-12.50")),
    "a decimal as a double": (MONEY, 12.5, {"type": "double"}, Decimal("12.50")),
    "variable scale": (MONEY, {"scale": 4, "value": b64(-125000)}, VARIABLE, Decimal("-12.50")),
    "a geometry and a part that is not there": (
        "STRUCT<wkb: BINARY, srid: INT, z: DATE>",
        POINT,
        GEOMETRY,
        {"wkb": b"\1\1\0\0\0", "srid": 4326, "z": None},
    ),
}


@pytest.mark.parametrize("case", WITH_SCHEMA.values(), ids=WITH_SCHEMA.keys())
def test_the_schema_of_a_message_says_what_its_values_mean(
    case: tuple[str, Any, dict[str, Any], Any],
) -> None:
    ddl, sent, said, expected = case
    assert decoded(ddl, sent, said) == (expected, None)
    # What options say of messages without a schema is not asked.
    assert decoded(ddl, sent, said, NANOS) == (expected, None)
    assert decoded(ddl, None, said) == (None, None)


UNFIT = "not of this type or range"
BAD_WITH_SCHEMA: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "a date that is a time": (
        "DATE",
        1,
        MICROS,
        "'v' is declared date32[day], and the message's schema says io.debezium.time.MicroTim",
    ),
    "a number of no unit": ("TIMESTAMP", 1, {"type": "int64"}, "the message's schema says int64"),
    "a time of day": ("TIMESTAMP", 1, debezium("MicroTime"), "says io.debezium"),
    "a decimal as a text": ("STRING", "AQ==", decimal(2), "declared string, and the message's"),
    "a finer scale": (MONEY, "AQ==", decimal(3), UNFIT),
    "a scale that is none": (MONEY, "AQ==", decimal("x"), "says org.apache.kafka"),
    "a scale beyond all digits": ("DECIMAL(38, 0)", "AQ==", decimal(-9999999), UNFIT),
    "numbers of an array": (
        "ARRAY<DECIMAL(10, 2)>",
        [1.5],
        {"type": "array", "items": decimal(2)},
        "decimal.format=BASE64",
    ),
    "a float in other words": ("DOUBLE", "nan", {"type": "double"}, "found string"),
    "bytes as a decimal": (MONEY, "AQ==", BYTES, "schema says bytes"),
    "too many bytes": ("DECIMAL(38, 0)", b64(2**127), decimal(0), UNFIT),
    "no digits": ("DECIMAL(38, 0)", "", decimal(0), UNFIT),
    "no Base64": ("DECIMAL(38, 0)", "A===", decimal(0), UNFIT),
    "PostgreSQL's infinity": ("TIMESTAMP_NTZ", 9223372036825200000, MICROS, UNFIT),
    "nanoseconds that are no microseconds": (
        "TIMESTAMP_NTZ",
        1001,
        debezium("NanoTimestamp"),
        "set the connector's time.precision.mode=microseconds",
    ),
    "a date beyond the calendar": ("ARRAY<DATE>", [0, 2**31 - 1], DATES, UNFIT),
    "one of a struct": ("STRUCT<wkb: BINARY>", {"wkb": "="}, GEOMETRY, "'v.wkb' is declared"),
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


UNSAID = SchemalessDefaults()
OF_COLUMN = SchemalessDefaults(unit=TimeUnit.MILLIS, units={"v": TimeUnit.MICROS})
WITHOUT_SCHEMA: dict[str, tuple[str, Any, SchemalessDefaults, Any]] = {
    "a date": ("DATE", 17702, UNSAID, dt.date(2018, 6, 20)),
    "milliseconds": ("TIMESTAMP_NTZ", NOON_S * 1000, MILLIS, NOON),
    "the unit of the column": ("TIMESTAMP_NTZ", NOON_S * 10**6, OF_COLUMN, NOON),
    "a zoned text": ("TIMESTAMP", "2018-06-20T12:00:00Z", MILLIS, NOON.replace(tzinfo=UTC)),
    "a zoned number": ("TIMESTAMP", NOON_S * 10**6, OF_COLUMN, NOON.replace(tzinfo=UTC)),
    "a text without a unit": ("TIMESTAMP_NTZ", "2018-06-20T12:00:00", UNSAID, NOON),
    "precise": (MONEY, b64(1234), PRECISE, Decimal("12.34")),
    "string": (MONEY, "1234", TEXTS, Decimal("1234.00")),
    "double": (MONEY, 0.1, NUMBERS, Decimal("0.10")),
    "geometry": ("STRUCT<wkb: BINARY>", POINT, UNSAID, {"wkb": b"\1\1\0\0\0"}),
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
        (MONEY, b64(1234), UNSAID, "the option 'decimalHandling' does"),
        (MONEY, 12.34, UNSAID, "the option 'decimalHandling' does"),
        (MONEY, "12.34", PRECISE, UNFIT),
        ("TIMESTAMP_NTZ", 1001, NANOS, "time.precision.mode=microseconds"),
        (MONEY, "BNI=", TEXTS, UNFIT),
        (MONEY, "1.234", TEXTS, UNFIT),
        (MONEY, "-.", TEXTS, UNFIT),
        ("TIMESTAMP_NTZ", NOON_S, UNSAID, "found number"),
        ("TIMESTAMP", NOON_S, MILLIS, "found number"),
        ("TIMESTAMP_NTZ", "2018-06-20T12:00:00", MILLIS, "found string"),
        ("DATE", "2018-06-20", UNSAID, "found string"),
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
    schema = struct(("v", {"type": "int64"}))
    messages = [{"v": 1}, {"v": 1, "w": "a"}, {"v": 1, "w": 2}]
    payloads = [json.dumps({"schema": schema, "payload": m}).encode() for m in messages]
    found = ConnectJsonDecoder(fields, UNSAID).decode(pa.array(payloads))
    assert found.columns[0].to_pylist() == [1, None, None]
    assert found.reasons is not None
    assert [reason is None for reason in found.reasons.to_pylist()] == [True, False, False]


def test_each_schema_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    head = connect_module._head

    def counted(message: bytes) -> tuple[bytes, int] | None:
        read.append(message)
        return head(message)

    monkeypatch.setattr(connect_module, "_head", counted)
    schema = struct(("v", {"type": "int64"}))
    payloads = [json.dumps({"schema": schema, "payload": {"v": n}}).encode() for n in range(100)]
    decoder = ConnectJsonDecoder(pa.schema({"v": pa.int64()}), UNSAID)
    found = decoder.decode(pa.array(payloads))
    assert found.columns[0].to_pylist() == list(range(100))
    assert len(read) == 1
