"""Messages of Kafka Connect say the same as a slow reader of Python's own finds in them."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from spark_upsert.payloads.connect import ConnectJsonDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.logical_types import (
    DecimalForm,
    SchemalessDefaults,
    TimeUnit,
    decode_base64,
)
from tests.support.fuzz import FUZZ_TIMES
from tests.support.seeds import seeds

EPOCH = dt.datetime(1970, 1, 1)
FIELDS, _ = parse_schema(
    "valueSchema",
    "n DECIMAL(20, 3), at TIMESTAMP_NTZ, d DATE, b BINARY, l ARRAY<DATE>, "
    "s STRUCT<n: DECIMAL(20, 3), b: BINARY>",
    bare_name="v",
)
UNSAID = SchemalessDefaults(unit=TimeUnit.MICROS, decimals=DecimalForm.PRECISE)
DECODER = ConnectJsonDecoder(FIELDS, UNSAID)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


DECIMALS = maybe(st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)))
DATES = maybe(st.dates())
BINARIES = maybe(st.binary(max_size=5))
ROWS = st.fixed_dictionaries(
    {
        "n": DECIMALS,
        "at": maybe(st.datetimes()),
        "d": DATES,
        "b": BINARIES,
        "l": maybe(st.lists(DATES, max_size=3)),
        "s": maybe(st.fixed_dictionaries({"n": DECIMALS, "b": BINARIES})),
    }
)


def written(value: Any) -> Any:
    """Return a value as Connect and Debezium write it."""
    match value:
        case Decimal():
            number = int(value.scaleb(3))
            length = (number if number >= 0 else ~number).bit_length() // 8 + 1
            return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()
        case dt.datetime():
            return (value - EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return value.toordinal() - EPOCH.toordinal()
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [written(one) for one in value]
        case dict():
            return {name: written(one) for name, one in value.items()}
    return value


def said(type_: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": type_, "optional": True, "name": name, **more}


DECIMAL = said("bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "3"})
DATE = said("int32", "io.debezium.time.Date")
SCHEMA = {
    "type": "struct",
    "fields": [
        {**DECIMAL, "field": "n"},
        said("int64", "io.debezium.time.MicroTimestamp", field="at"),
        {**DATE, "field": "d"},
        said("bytes", field="b"),
        said("array", items=DATE, field="l"),
        said("struct", fields=[{**DECIMAL, "field": "n"}, said("bytes", field="b")], field="s"),
    ],
}


@given(rows=st.lists(st.tuples(ROWS, st.booleans()), max_size=6))
def test_what_was_written_is_what_is_read(rows: list[tuple[dict[str, Any], bool]]) -> None:
    payloads = [
        json.dumps({"schema": SCHEMA, "payload": written(row)} if wrapped else written(row))
        for row, wrapped in rows
    ]
    # A neighbour that is bad must not matter.
    given_ = pa.array([*(text.encode() for text in payloads), b"?"], pa.binary())
    found = DECODER.decode(given_)
    assert found.reasons is not None
    assert found.reasons.to_pylist()[:-1] == [None] * len(rows)
    columns = dict(zip(FIELDS.names, found.columns, strict=True))
    for name, column in columns.items():
        assert column.to_pylist() == [*(row[name] for row, _ in rows), None]


WORDS = st.sampled_from(
    [
        *("struct", "array", "int64", "bytes", "n", "at", "type", "fields", "field", "name"),
        *("items", "parameters", "scale", "io.debezium.time.Date"),
        "org.apache.kafka.connect.data.Decimal",
    ]
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
SCHEMAS = st.fixed_dictionaries(
    {
        "type": st.just("struct"),
        "fields": st.lists(
            st.fixed_dictionaries(
                {"field": st.sampled_from(["n", "at", "s", "l"]) | JSONS, "type": WORDS | JSONS},
                optional={"name": JSONS, "parameters": JSONS, "fields": JSONS, "items": JSONS},
            ),
            max_size=4,
        ),
    }
)


@given(schema=SCHEMAS | JSONS, payload=JSONS)
@example(
    schema={"type": "struct", "fields": [said("int64", field="at") | {"name": ["x"]}]}, payload={}
)
def test_no_schema_stops_the_write(schema: Any, payload: Any) -> None:
    """It is read, or it is why the message is bad; the next message is what it is."""
    hostile = json.dumps({"schema": schema, "payload": payload}).encode()
    sound = json.dumps({"schema": SCHEMA, "payload": {"d": 0}}).encode()
    found = DECODER.decode(pa.array([hostile, sound], pa.binary()))
    reasons = [None, None] if found.reasons is None else found.reasons.to_pylist()
    assert reasons[1] is None
    assert found.columns[FIELDS.names.index("d")][1].as_py() == dt.date(1970, 1, 1)


TEXTS = st.binary(max_size=9).map(lambda value: base64.b64encode(value).decode())
PIECES = st.sampled_from(
    ["Zm9v", "Zg==", "Zh==", "Zm8=", "Zm9=", "+/", "A", "=", "-", "\n", "\u00e9"]
)
TEXTS |= st.lists(PIECES, max_size=3).map("".join)


def decoded(text: str | None) -> bytes | None:
    """Return the bytes of which an encoder makes a text, None if there are none."""
    try:
        value = binascii.a2b_base64(text or "", strict_mode=True)
    except ValueError:
        return None
    return value if text == base64.b64encode(value).decode() else None


@given(texts=st.lists(maybe(TEXTS), max_size=6), start=st.integers(0, 6))
def test_base64_is_what_an_encoder_writes(texts: list[str | None], start: int) -> None:
    found, bad = decode_base64(pa.array(texts, pa.string())[start:])
    expected = [decoded(text) for text in texts[start:]]
    assert found.to_pylist() == expected
    assert bad.tolist() == [
        text is not None and value is None
        for text, value in zip(texts[start:], expected, strict=True)
    ]


WRITERS = ("Base64", "a number", "a variable scale")


def as_exact(unscaled: int, scale: int, digits: int, places: int) -> Decimal | None:
    """Return ``unscaled * 10**-scale`` as a DECIMAL(digits, places), None if it does not fit."""
    whole, rest = divmod(unscaled * 10 ** max(places - scale, 0), 10 ** max(scale - places, 0))
    if rest or abs(whole) >= 10**digits:
        return None
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -places))


@seeds(4 * FUZZ_TIMES, quick=2)
def test_a_decimal_is_the_number_that_was_written_or_bad(seed: int) -> None:
    """Base64 of any scale, numbers (``decimal.format=NUMERIC``) and scales of their own."""
    dice = random.Random(seed)
    digits = dice.randint(1, 38)
    places = dice.randint(0, digits)
    fields, _ = parse_schema("v", f"n DECIMAL({digits}, {places}), m STRING", bare_name="v")
    for writer in WRITERS:
        scale = dice.choice([places, dice.randint(0, places), dice.randint(-45, 85)])
        payloads, expected = [], []
        for _ in range(60):
            number = dice.randrange(-(10 ** dice.randint(1, 42)), 10 ** dice.randint(1, 42))
            number *= dice.choice([1, 1, 10 ** max(scale - places, 0)])
            if writer == "a variable scale":
                scale = dice.choice([places, dice.randint(-45, 85)])
            length = (number if number >= 0 else ~number).bit_length() // 8 + 1
            base = base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()
            text = {
                "Base64": f'"{base}"',
                "a number": f"{number}e{-scale}" if scale else str(number),
                "a variable scale": f'{{"scale":{scale},"value":"{base}"}}',
            }[writer]
            payloads.append(f'{{"m":"#1","n":{text}}}')
            expected.append(as_exact(number, scale, digits, places))
        type_ = said("bytes", DECIMAL["name"], parameters={"scale": str(scale)})
        if writer == "a variable scale":
            parts = [{**said("int32"), "field": "scale"}, {**said("bytes"), "field": "value"}]
            type_ = said("struct", "io.debezium.data.VariableScaleDecimal", fields=parts)
        schema = {"type": "struct", "fields": [{**type_, "field": "n"}]}
        head = f'{{"schema":{json.dumps(schema)},"payload":'
        read = ConnectJsonDecoder(fields.remove(1), SchemalessDefaults()).decode(
            pa.array([f"{head}{each}}}".encode() for each in payloads])
        )
        assert read.columns[0].to_pylist() == expected, (writer, scale, digits, places)
        why = [None] * 60 if read.reasons is None else read.reasons.to_pylist()
        assert [each is not None for each in why] == [each is None for each in expected]
