"""Hostile payloads, and what they are according to Python's own readers.

Run as a program, in a process of its own: ``python -m tests.support.payload_fuzz json 7 2000``
decodes 2000 payloads of seed 7 and says how the decoder and Python differ. What kills the
interpreter kills this process, and is seen by its exit code.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
import random
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from spark_upsert.errors import UpsertFlowError
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.connect import natural_type, parse_connect_json_schema
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Decoder, Unreadable
from spark_upsert.payloads.embedded_schema import Inline, WriterSchemaDecoder
from spark_upsert.payloads.json import JsonDecoder

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

WRITTEN = """
0 -0 1 -1 7 127 128 -128 -129 32767 32768 -32769 2147483647 2147483648 -2147483649 16777217
9007199254740993 9223372036854775807 9223372036854775808 -9223372036854775808
-9223372036854775809 18446744073709551616 48151415102163378576555277819065061780 99999 999.99
999.995 1000 -999.99 0.5 1.50 1.500 1.255 0.1 -0.0 0.00 00 01 1. .5 -.5 + - +1 1e0 1E+2 1e-2
1e-3 150e-2 15e-1 0e0 0e99 0e-999 0E-8 0e9999999 0e-9999999 1e-41 1e38 1e39 1e-45 1e-46 1e-50
7e-46 3.4028234e38 3.4028236e38 1e-320 1e-323 1e-324 2.4e-324 1e-999 -1e-999 1e308 1e309
1.7976931348623157e308 1.7976931348623159e308 1e999 1e400 1e-9999999 1e9999999
1e99999999999999999999 1e-99999999999999999999 1e 1e+ 1.e1 1ee1 1.1.1 --1 0x10 1_0 NaN -NaN
Infinity -Infinity Inf -Inf nan inf 123abc 1-1 1/2
"""
NUMBERS = [
    *WRITTEN.split(),
    "1" * 38,
    "9" * 39,
    "9" * 400,
    "0." + "0" * 50 + "1",
    "0." + "0" * 400 + "1e401",
    "1" + "0" * 400 + "e-400",
    "0." + "3" * 60,
    "1e" + "0" * 50 + "1",
]
TEXTS = [
    "",
    "a",
    "\\u0000",
    "\\ud800",
    "\\udc00\\ud800",
    "\\ud83d\\ude00",
    '\\n\\"\\\\\\/',
    "\\x",
    "\\u12",
    "\u00eb\U0001f600",
    "\n",
    "\t",
    "\x7f",
    "}{",
    "}, ",
    '\\"v\\":1e-9999999',
    "x" * 3000,
    "Inf",
    "-NaN",
    "\ufeff",
    "1\\u0065-9999999",
    "\\u0031",
    " 1",
    "1 ",
    "\u0661",
]
TIMES = [
    "2024-02-29",
    "2023-02-29",
    "1900-02-29",
    "2000-02-29",
    "0000-01-01",
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "2024-13-01",
    "2024-00-10",
    "2024-04-31",
    "2024-1-1",
    "20240101",
    "-2024-01-01",
    "2024-01-01T",
    "2024-01-01T12",
    "2024-01-01T12:30",
    "2024-01-01 12:30:59",
    "2024-01-01t12:30:59z",
    "2024-01-01T12:30:60Z",
    "2024-01-01T24:00:00Z",
    "2024-01-01T12:30:59.1",
    "2024-01-01T12:30:59.123456Z",
    "2024-01-01T12:30:59.1234560Z",
    "2024-01-01T12:30:59.1234567Z",
    "2024-01-01T12:30:59.",
    "2024-01-01T12:30:59,5Z",
    "2024-01-01T12:30:59+02",
    "2024-01-01T12:30:59-0230",
    "2024-01-01T12:30:59+02:30",
    "2024-01-01T12:30+23:59",
    "2024-01-01T12:30+24:00",
    "2024-01-01T12:30+02:60",
    "2024-01-01T12:30 +02:00",
    "2024-01-01T12:30:59 Z",
    "2024-01-01Z",
    "2024-01-01  12:30",
    "0001-01-01T00:00+00:01",
    "0001-01-01T00:00-00:01",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59.999999-00:01",
    "noon",
    "\u0662024-01-01",
]
AROUND = [
    ("", ',"w":{}'),
    ("", "}"),
    ('1}{"v":', ""),
    ("", '],"w":[{}'),
    ("\ufeff", ""),
    ("", "\0"),
]
STRUCTURES = [
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[1]",
    '{"x":1}',
    "[null]",
    "[[]]",
    "nul",
    "True",
]

SCHEMAS = [
    "a TINYINT, b SMALLINT, c INT, d BIGINT",
    "a FLOAT, b DOUBLE",
    "a DECIMAL(5,2), b DECIMAL(38,2)",
    "a DECIMAL(38,0), b DECIMAL(38,38), c DECIMAL(1,1)",
    "a DATE, b TIMESTAMP, c TIMESTAMP_NTZ",
    "a STRING, b BOOLEAN, c DECIMAL(12,3) NOT NULL",
    "a ARRAY<DECIMAL(5,2)>, b ARRAY<BIGINT>",
    "a ARRAY<STRUCT<b: DECIMAL(5,2), c: ARRAY<FLOAT>>>, s STRING",
    "a STRUCT<a: DECIMAL(5,2), t: TIMESTAMP>, b STRUCT<x: BIGINT>, d DECIMAL(5,2)",
    "a STRUCT<a: BIGINT, v: DECIMAL(5,2)>, v DOUBLE",
    'v DECIMAL(38,2), `a b` DECIMAL(3,1), `\u00eb` DECIMAL(3,1), `"` BIGINT',
    "BIGINT",
    "DOUBLE",
    "DECIMAL(38,2)",
    "STRING",
    "TIMESTAMP",
]

Payload = bytes


class Bad(Exception):
    """Python's own readers do not take a payload for what is declared."""


# -- JSON ----------------------------------------------------------------------------------


def json_value(draw: random.Random, type_: pa.DataType | None, depth: int = 0) -> str:
    """Return the text of a value, mostly of a type."""
    if draw.random() < 0.06:
        type_ = None
    if type_ is None:
        pool = draw.choice([NUMBERS, STRUCTURES, [f'"{t}"' for t in TEXTS]])
        return draw.choice(pool)
    if pa.types.is_struct(type_):
        return json_object(draw, list(type_.fields), depth + 1)
    if pa.types.is_list(type_):
        values = [json_value(draw, type_.value_type, depth + 1) for _ in range(draw.randrange(4))]
        return f"[{', '.join(values)}]"
    if draw.random() < 0.1:
        return "null"
    if pa.types.is_boolean(type_):
        return draw.choice(["true", "false"])
    if pa.types.is_string(type_):
        return f'"{draw.choice(TEXTS)}"'
    if pa.types.is_date32(type_) or pa.types.is_timestamp(type_):
        return f'"{draw.choice(TIMES)}"'
    if draw.random() < 0.5:
        number = draw.choice(NUMBERS)
    elif pa.types.is_integer(type_):
        number = str(draw.randrange(-100, 100))
    else:
        number = f"{draw.randrange(-1000, 1000)}.{draw.randrange(100):02}"
    is_text = pa.types.is_decimal128(type_) and draw.random() < 0.4
    return f'"{number}"' if is_text else number


def json_object(draw: random.Random, fields: list[pa.Field], depth: int = 0) -> str:
    members = []
    for field in fields:
        if draw.random() < 0.1:
            continue
        name = json.dumps(field.name, ensure_ascii=draw.random() < 0.3)
        if draw.random() < 0.03 and field.name.isalpha() and field.name.isascii():
            name = f'"\\u{ord(field.name):04x}"'
        space = draw.choice(["", " ", "\n", "\t "])
        members.append(f"{name}{space}:{space}{json_value(draw, field.type, depth)}")
        if draw.random() < 0.02:
            members.append(members[-1])
    if draw.random() < 0.2:
        members.append(f'"z{draw.choice(TEXTS)}": {json_value(draw, None)}')
    draw.shuffle(members)
    return f"{{{draw.choice([', ', ',', ' , '])[:3].join(members)}}}"


def json_payload(draw: random.Random, fields: pa.Schema, is_bare: bool) -> Payload:
    """Return a payload: good, of wrong values, or of a damaged text."""
    text = json_value(draw, fields[0].type) if is_bare else json_object(draw, list(fields))
    if draw.random() < 0.05:
        text = draw.choice(["", " ", "null", "[1]", "1", text + text, text + "\n" + text])
    if draw.random() < 0.03:
        before, after = draw.choice(AROUND)
        text = before + text + after
    if draw.random() < 0.03 and text.startswith('{"'):
        deep = draw.choice([150, 199, 200, 201, 250, 5000])
        text = f'{{"deep": {"[" * deep}{"]" * deep}, {text[1:]}'
    payload = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.15:
        at = draw.randrange(len(payload) + 1)
        put = draw.choice(
            [b"", b",", b"}", b"{", b'"', b"\\", b"\xff", b"\xed\xa0\x80", b"0", b"e", b"-"]
        )
        payload = payload[:at] + put + payload[at + draw.randrange(3) :]
    return payload


def json_expected(payload: Payload, fields: pa.Schema, is_bare: bool) -> dict[str, Any]:
    """Return what a payload holds according to Python's `json` and `decimal`; or raise `Bad`."""
    found = json_read(payload)
    if is_bare:
        return {fields[0].name: declared(found, fields[0].type)}
    if not isinstance(found, Pairs):
        raise Bad("no object")
    values = members_of(found, list(fields))
    for field in fields:
        if not field.nullable and values[field.name] is None:
            raise Bad("null")
    return values


MISSPELT = re.compile(r'("(?:[^"\\]|\\.)*")|-NaN|-?Inf(?!inity)', re.DOTALL)
"""Numbers to Arrow, which no declared column may hold; elsewhere they are stepped over."""


def json_read(payload: Payload) -> Any:
    """Return what Python's reader makes of a payload; numbers stay as they are written."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise Bad("no text") from error
    plain = MISSPELT.sub(lambda match: match[1] or "NaN", text)
    for given, constant in ((text, PayloadFormat), (plain, lambda _: PayloadFormat("misspelt"))):
        try:
            return json.loads(
                given,
                parse_int=PayloadFormat,
                parse_float=PayloadFormat,
                parse_constant=constant,
                object_pairs_hook=Pairs,
            )
        except ValueError:
            continue
    raise Bad("no JSON")


class PayloadFormat(str):
    """A number as it is written."""


class Pairs(list[Any]):
    """An object's members."""


def members_of(found: Pairs, fields: list[pa.Field]) -> dict[str, Any]:
    names = [name for name, _ in found]
    if any(names.count(field.name) > 1 for field in fields):
        raise Bad("twice")
    given = dict(found)
    return {field.name: declared(given.get(field.name), field.type) for field in fields}


def declared(found: Any, type_: pa.DataType) -> Any:
    """Return a JSON value as a type, by the obvious means."""
    if found is None:
        return None
    if pa.types.is_struct(type_):
        return members_of(only(found, Pairs), list(type_.fields))
    if pa.types.is_list(type_):
        if isinstance(found, Pairs):
            raise Bad("kind")
        return [declared(value, type_.value_type) for value in only(found, list)]
    if pa.types.is_boolean(type_):
        return only(found, bool)
    if pa.types.is_decimal128(type_):
        return decimal_of(only(found, str), type_)
    is_number = isinstance(found, PayloadFormat)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        if not is_number:
            raise Bad("kind")
        return integer_of(found, type_) if pa.types.is_integer(type_) else float_of(found, type_)
    if is_number:
        raise Bad("kind")
    text = only(found, str)
    if pa.types.is_string(type_):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Bad("surrogate") from error
        return text
    return time_of(text, type_)


def only(found: Any, type_: type) -> Any:
    if not isinstance(found, type_):
        raise Bad("kind")
    return found


def integer_of(text: str, type_: pa.DataType) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise Bad("no integer") from error
    if not -(2 ** (type_.bit_width - 1)) <= value < 2 ** (type_.bit_width - 1):
        raise Bad("range")
    return value


def float_of(text: str, type_: pa.DataType) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise Bad("no float") from error
    if pa.types.is_float32(type_):
        with np.errstate(all="ignore"):
            value = float(np.float32(value))
    if math.isinf(value) and "Inf" not in text:
        raise Bad("too large")
    if value == 0 and set(re.split("[eE]", text)[0]) & set("123456789"):
        raise Bad("too small")
    return value


EXACT = decimal.Context(
    prec=1000,
    Emin=-(10**9),
    Emax=10**9,
    traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow, decimal.Rounded],
)


def decimal_of(text: str, type_: pa.DataType) -> decimal.Decimal:
    if re.search(r"[^-+.0-9eE]", text):
        raise Bad("no number")
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation as error:
        raise Bad("no number") from error
    if value == 0:
        return decimal.Decimal(0)
    if value.adjusted() > 50 or value.adjusted() < -50:
        raise Bad("range")
    try:
        unscaled = EXACT.normalize(value).scaleb(type_.scale, EXACT)
        if unscaled != EXACT.to_integral_value(unscaled):
            raise Bad("scale")
    except decimal.DecimalException as error:
        raise Bad("scale") from error
    if abs(unscaled) >= 10**type_.precision:
        raise Bad("precision")
    return value


TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?[0-5]\d)?)?)?", re.ASCII
)


def time_of(text: str, type_: pa.DataType) -> Any:
    if not TIME.fullmatch(text):
        raise Bad("no time")
    try:
        if pa.types.is_date32(type_):
            return dt.date.fromisoformat(text)
        short = re.sub(r"(\.\d{6})0+(?!\d)", r"\1", text)
        if re.search(r"\.\d{7}", short):
            raise Bad("fine")
        value = dt.datetime.fromisoformat(re.sub(r"(\.\d+)", lambda m: m[1].ljust(7, "0"), short))
        if type_.tz is None and value.tzinfo is not None:
            raise Bad("zone")
        return (
            value
            if type_.tz is None
            else value.replace(tzinfo=value.tzinfo or dt.UTC).astimezone(dt.UTC)
        )
    except (ValueError, OverflowError) as error:
        raise Bad("no time") from error


def check_json(seed: int, count: int) -> str | None:
    """Return how the decoder differs from Python, if it does."""
    draw = random.Random(seed)
    schema = SCHEMAS[seed % len(SCHEMAS)]
    fields, is_bare = parse_schema("s", schema, bare_name="v")
    payloads = [json_payload(draw, fields, is_bare) for _ in range(count)]

    def expected(payload: Payload) -> dict[str, Any]:
        return json_expected(payload, fields, is_bare)

    decoder = JsonDecoder(fields, is_bare)
    # One by one, too: how a block is read depends on all that is in it.
    blocks = [payloads, *([payload] for payload in payloads[:ALONE])]
    found = (compared(decoder, block, expected, schema) for block in blocks)
    return next((difference for difference in found if difference), None)


# -- Avro ----------------------------------------------------------------------------------

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
WIDE = {"type": "fixed", "name": "w", "size": 17, "logicalType": "decimal", "precision": 38}
POINT = {"type": "record", "name": "p", "fields": [{"name": "x", "type": ["null", "int"]}]}
AVRO_SCHEMAS: list[list[Any]] = [
    ["int", "long", "boolean", "string", "bytes"],
    [["null", "int"], ["string", "null"], ["null", "long"], ["null"]],
    [
        {"type": "enum", "name": "e", "symbols": ["A", "B"]},
        {"type": "fixed", "name": "f", "size": 3},
    ],
    [DECIMAL, WIDE, ["null", DECIMAL]],
    [
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
    ],
    [{"type": "array", "items": "long"}, {"type": "array", "items": POINT}],
    [
        {"type": "map", "values": "boolean"},
        {"type": "map", "values": {"type": "array", "items": "int"}},
    ],
    [POINT, "string"],
    ["float", "double", {"type": "array", "items": "float"}],
]
LONGS = [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)]
HOSTILE = [
    b"\x01",  # -1, as an index, a count or a length
    b"\x07",
    b"\x80\x00",
    b"\x80" * 9 + b"\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x02",
    b"\xff" * 12,
    b"\xfe\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x00",
    b"\x03\x04",
    b"\xff\xff",
    b"",
]


def avro_value(draw: random.Random, schema: Any) -> Any:
    """Return a value of a schema without logical types."""
    match schema:
        case list():
            return avro_value(draw, draw.choice(schema))
        case "null":
            return None
        case "boolean":
            return draw.random() < 0.5
        case "int":
            return draw.choice([v for v in LONGS if -(2**31) <= v < 2**31] + [19_000, 3_000_000])
        case "long":
            return draw.choice(
                [*LONGS, draw.randrange(10**15), -62_135_596_800_000, 253_402_300_800_000]
            )
        case "float" | "double":
            return draw.choice([0.0, -0.0, 1.5, -2.25, math.inf])
        case "string":
            return draw.choice(["", "a", "\u00eb" * 70, "\0"])
        case "bytes":
            return draw.choice(
                [
                    b"",
                    b"\0",
                    b"\x7f",
                    b"\x01\x86\x9f",
                    b"\x01\x86\xa0",
                    b"\xff" * 40,
                    b"\x01" + b"\0" * 40,
                ]
            )
        case {"type": "enum"}:
            return draw.choice(schema["symbols"])
        case {"type": "fixed"}:
            return draw.choice([b"\0", b"\xff", b"\x4b"]) + bytes(schema["size"] - 1)
        case {"type": "array"}:
            return [avro_value(draw, schema["items"]) for _ in range(draw.randrange(4))]
        case {"type": "map"}:
            return {
                draw.choice("abc"): avro_value(draw, schema["values"])
                for _ in range(draw.randrange(3))
            }
        case {"type": "record"}:
            return {f["name"]: avro_value(draw, f["type"]) for f in schema["fields"]}
    raise AssertionError(schema)


def without_logic(schema: Any) -> Any:
    """Return a schema whose values are what is written."""
    if isinstance(schema, list):
        return [without_logic(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] in ("int", "long", "bytes"):
        return schema["type"]
    return {
        name: [{**field, "type": without_logic(field["type"])} for field in part]
        if name == "fields"
        else without_logic(part)
        if name in ("items", "values")
        else part
        for name, part in schema.items()
        if name not in ("logicalType", "precision", "scale")
    }


def avro_bytes(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def avro_payload(draw: random.Random, schema: Any) -> Payload:
    payload = avro_bytes(schema, avro_value(draw, schema))
    for _ in range(draw.choice([0, 0, 1, 1, 2])):
        at = draw.randrange(len(payload) + 1)
        payload = payload[:at] + draw.choice(HOSTILE) + payload[at + draw.randrange(4) :]
    return payload


def avro_expected(payload: Payload, schema: Any, plain: Any) -> dict[str, Any]:
    """Return what a payload holds according to fastavro, if it writes these very bytes."""
    stream = io.BytesIO(payload)
    try:
        value: Any = fastavro.schemaless_reader(stream, plain, None)
        again = avro_bytes(plain, value)
    except Exception as error:
        raise Bad(str(error)) from error
    if stream.tell() < len(payload):
        raise Bad("too long")
    row = {f["name"]: avro_meant(value[f["name"]], f["type"]) for f in schema["fields"]}
    if again != payload:
        raise Odd(row)
    return row


class Odd(Exception):
    """A payload in which fastavro finds a value that it would write otherwise."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(row)
        self.row = row


def avro_meant(value: Any, schema: Any) -> Any:
    """Return what a value means by its logical type."""
    if value is None:
        return None
    if isinstance(schema, list):
        return avro_meant(value, next(branch for branch in schema if branch != "null"))
    if schema == "int" and not -(2**31) <= value < 2**31:
        raise Bad("range")
    if not isinstance(schema, dict):
        return value
    kind, logical = schema["type"], schema.get("logicalType")
    try:
        if logical == "decimal":
            number = int.from_bytes(value, signed=True)
            if abs(number) >= 10 ** schema["precision"]:
                raise Bad("precision")
            return decimal.Decimal(number).scaleb(-schema.get("scale", 0), EXACT)
        if logical == "date":
            return dt.date(1970, 1, 1) + dt.timedelta(days=value)
        if logical is not None:
            unit = 1000 if logical.endswith("millis") else 1
            time = EPOCH + dt.timedelta(microseconds=value * unit)
            return time.replace(tzinfo=None) if logical.startswith("local") else time
    except OverflowError as error:
        raise Bad("range") from error
    if kind == "array":
        return [avro_meant(item, schema["items"]) for item in value]
    if kind == "map":
        return [(key, avro_meant(item, schema["values"])) for key, item in value.items()]
    if kind == "record":
        return {f["name"]: avro_meant(value[f["name"]], f["type"]) for f in schema["fields"]}
    return value


def check_avro(seed: int, count: int) -> str | None:
    """Return how the decoder differs from fastavro, if it does."""
    draw = random.Random(seed)
    types = AVRO_SCHEMAS[seed % len(AVRO_SCHEMAS)]
    fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
    schema = {"type": "record", "name": "r", "fields": fields}
    plain = fastavro.parse_schema(without_logic(schema))
    payloads = [avro_payload(draw, plain) for _ in range(count)]
    return compared(
        parse_avro("s", json.dumps(schema), bare_name="v"),
        payloads,
        lambda payload: avro_expected(payload, schema, plain),
        json.dumps(schema),
    )


def doubling_avro(levels: int) -> Any:
    """Return a schema whose types each name the one below twice: 2 ** (levels + 1) - 1 parts."""
    found: Any = "int"
    for level in range(levels):
        below = f"r{level - 1}" if level else "int"
        fields = [{"name": "a", "type": found}, {"name": "b", "type": below}]
        found = {"type": "record", "name": f"r{level}", "fields": fields}
    return found


def doubling_json(levels: int) -> Any:
    """Return the same as a JSON Schema, by references."""
    definitions: dict[str, Any] = {"r0": {"type": "integer"}}
    for level in range(1, levels + 1):
        below = {"$ref": f"#/definitions/r{level - 1}"}
        definitions[f"r{level}"] = {"properties": {"a": below, "b": below}}
    return {"$ref": f"#/definitions/r{levels}", "definitions": definitions}


# -- schemas -------------------------------------------------------------------------------

NAMES = ["a", "b", "R", "S", "ns.R", "int", "", "0", "\u00eb", "\ud800", None, 5]
ODD: list[Any] = [
    *(None, True, -1, 2**40, 1.5, 1e400, "", "int", "R", "nothing", [], {}, [[]], ["null"]),
    *({"type": None}, {"type": {}}, {"type": "array"}, {"type": "record", "name": "R"}),
    {"type": "fixed", "name": "f", "size": -1},
    {"type": "bytes", "logicalType": "decimal", "precision": 10**12},
    {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
    {"$ref": "#"},
    {"$ref": "#/definitions/nothing"},
    {"properties": {"a": {"connect.index": "x"}}},
]


def avro_schema(draw: random.Random, names: list[str], depth: int = 0) -> Any:
    """Return a schema that is right: a type, often of the types that were named before."""
    kind = draw.choice(["plain", "plain", "union", "array", "map", "record", "named", "logical"])
    if depth > 4 or kind == "plain":
        return draw.choice(["int", "long", "boolean", "string", "bytes", "double"])
    if kind == "named" and names:
        return draw.choice(names)
    if kind == "logical":
        return draw.choice([DECIMAL, {"type": "int", "logicalType": "date"}])
    if kind == "union":
        return ["null", draw.choice(["int", "string", {"type": "array", "items": "long"}])]
    if kind in ("array", "map"):
        inside = avro_schema(draw, names, depth + 1)
        return {"type": kind, "items" if kind == "array" else "values": inside}
    name = f"r{draw.getrandbits(48):x}"
    fields = [
        {"name": each, "type": avro_schema(draw, names, depth + 1)}
        for each in draw.sample("abcdef", draw.randrange(1, 5))
    ]
    names.append(name)
    return {"type": "record", "name": name, "fields": fields}


def damaged(draw: random.Random, schema: Any) -> Any:
    """Return a schema with something odd in it, somewhere."""
    if not isinstance(schema, dict | list) or not schema or draw.random() < 0.3:
        return draw.choice(ODD)
    if isinstance(schema, list):
        at = draw.randrange(len(schema))
        return [damaged(draw, each) if at == n else each for n, each in enumerate(schema)]
    member = draw.choice(sorted(schema))
    if draw.random() < 0.2:
        return {**schema, member: draw.choice([*NAMES, *ODD])}
    return {**schema, member: damaged(draw, schema[member])}


def check_avro_schemas(seed: int, count: int) -> str | None:
    """Return how a right schema is read otherwise than fastavro does, or an odd one breaks."""
    draw = random.Random(seed)
    for _ in range(count):
        fields = [{"name": n, "type": avro_schema(draw, [])} for n in draw.sample("xyz", 2)]
        schema = {"type": "record", "name": "top", "fields": fields}
        text = json.dumps(schema)
        plain = fastavro.parse_schema(without_logic(schema))
        payload = avro_bytes(plain, avro_value(draw, expanded(without_logic(schema))))
        decoder = parse_avro("s", text, bare_name="v")
        found = decoder.decode(pa.array([payload]))
        try:
            wanted = avro_expected(payload, expanded(schema), plain)
        except (Bad, Odd):
            wanted = None
        given = {f.name: c[0].as_py() for f, c in zip(decoder.fields, found.columns, strict=True)}
        if wanted is not None and not same(given, wanted):
            return f"{text}: {payload!r} is {wanted}, and was taken for {given}"
        odd = json.dumps(damaged(draw, schema))
        try:
            parse_avro("s", odd, bare_name="v").decode(pa.array([payload, b"", b"\x02" * 99]))
        except UpsertFlowError:
            continue
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return f"{odd} breaks by {type(error).__name__}: {error}"
    return None


def expanded(schema: Any) -> Any:
    """Return a schema whose names are replaced by what they name."""
    known: dict[str, Any] = {}

    def whole(part: Any) -> Any:
        if isinstance(part, str):
            return known.get(part, part)
        if isinstance(part, list):
            return [whole(each) for each in part]
        found = {k: whole(v) if k in ("items", "values") else v for k, v in part.items()}
        if "fields" in part:
            found["fields"] = [{**each, "type": whole(each["type"])} for each in part["fields"]]
            known[part["name"]] = found
        return found

    return whole(schema)


def check_own_schemas(seed: int, count: int) -> str | None:
    """Return how payloads break that bring odd schemas of Connect, or that a registry has."""
    draw = random.Random(seed)
    row = {"type": "struct", "fields": [{"field": "a", "type": "int64"}]}
    inner = {"type": "array", "items": {"type": "struct", "fields": [{"field": "b", **row}]}}
    whole = {"type": "struct", "fields": [{"field": "a", **inner}, {"field": "c", "type": "bytes"}]}
    document = {
        "properties": {"a": {"$ref": "#/definitions/d"}, "c": {"type": ["null", "string"]}},
        "definitions": {"d": {"type": "array", "items": {"type": "integer"}}},
    }
    good = json.dumps({"schema": row, "payload": {"a": 1}}).encode()
    for _ in range(count):
        odd = damaged(draw, whole)
        message = json.dumps({"schema": odd, "payload": {"a": None}}).encode()
        asked = pa.schema({"a": pa.int64(), "c": pa.binary()})
        try:
            found = WriterSchemaDecoder(Inline("v"), asked).decode(pa.array([good, message, good]))
            if [found.columns[0][at].as_py() for at in (0, 2)] != [1, 1]:
                return f"{message!r} changes its neighbours"
        except UpsertFlowError:
            pass
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return f"{message!r} breaks by {type(error).__name__}: {error}"
        text = json.dumps(damaged(draw, document))
        try:
            natural_type(parse_connect_json_schema(json.loads(text)), "v")
        except (Unreadable, UpsertFlowError):
            continue
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return f"{text} breaks by {type(error).__name__}: {error}"
    return None


# -- both ----------------------------------------------------------------------------------


def compared(
    decoder: Decoder,
    payloads: list[Payload],
    expected: Callable[[Payload], dict[str, Any]],
    schema: str,
) -> str | None:
    """Return the first payload that is decoded to something else than was expected."""
    found = decoder.decode(pa.array(payloads, pa.binary()))
    for column in found.columns:
        column.validate(full=True)
    reasons = [None] * len(payloads) if found.reasons is None else found.reasons.to_pylist()
    columns = [column.to_pylist() for column in found.columns]
    for row, (payload, reason) in enumerate(zip(payloads, reasons, strict=True)):
        given = {f.name: column[row] for f, column in zip(decoder.fields, columns, strict=True)}
        try:
            wanted: dict[str, Any] | None = expected(payload)
        except Bad:
            wanted = None
        except Odd as odd:
            # It may be refused; and blocks may be cut as one likes.
            wanted = odd.row if reason is None and re.search("array|map|float", schema) else None
        if wanted is None and reason is None:
            return f"{schema}: {payload!r:.500} is bad, and was taken for {given}"
        if wanted is not None and reason is not None and TOO_DEEP not in reason:
            return f"{schema}: {payload!r:.500} is {wanted}, and was refused: {reason}"
        if wanted is not None and reason is None and not same(given, wanted):
            return f"{schema}: {payload!r:.500} is {wanted}, and was taken for {given}"
    return None


def same(given: Any, wanted: Any) -> bool:
    """Return whether two values are one, down to the sign of a zero."""
    if isinstance(wanted, dict):
        return given is not None and all(same(given[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return given is not None and len(given) == len(wanted) and all(map(same, given, wanted))
    if isinstance(wanted, tuple):
        return given is not None and same(list(given), list(wanted))
    if isinstance(wanted, float) and given is not None:
        return struct.pack("<d", given) == struct.pack("<d", wanted) or (
            math.isnan(given) and math.isnan(wanted)
        )
    return bool(given == wanted)


ALONE = 50
"""Payloads that are decoded by themselves, too."""

TOO_DEEP = "nested more than 200 deep"
"""What of deep payloads is plainly good is taken, and nothing else."""

CHECKS: dict[str, Callable[[int, int], str | None]] = {
    "json": check_json,
    "avro": check_avro,
    "avro-schemas": check_avro_schemas,
    "own-schemas": check_own_schemas,
}


def main(format_: str, first: int, seeds: int, count: int) -> int:
    """Check some seeds; the exit code says whether all agree."""
    sys.setrecursionlimit(20_000)  # Of Python's reader, which is asked about deep payloads.
    for seed in range(first, first + seeds):
        difference = CHECKS[format_](seed, count)
        if difference:
            print(f"{format_} seed {seed}, {count} payloads: {difference}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
