"""A payload is judged by itself: its neighbours, blocks and batches leave no trace."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_upsert.payloads import decoder as decoder_module
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Decoder
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.schema_registry import ConfluentDecoder

JSON = JsonDecoder(
    *parse_schema("s", "v BIGINT, w STRUCT<v: BIGINT>, x STRING, y ARRAY<BIGINT>", bare_name="s")
)

MEMBERS: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {},
    optional={
        "v": st.integers(-9, 9) | st.none(),
        "w": st.fixed_dictionaries({"v": st.integers(0, 9)}) | st.none(),
        "x": st.text('a"\\{}[],:\n', max_size=4) | st.none(),
        "y": st.lists(st.integers(0, 9) | st.none(), max_size=2),
        "z": st.lists(st.just({"w": {}}), max_size=2),
    },
)
FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\n",
    " ",
    "0",
    "1",
    "v",
    "null",
    '"v"',
    '"w":{}',
]


@st.composite
def almost_json(draw: st.DrawFn) -> bytes:
    """Return the text of an object, with a few pieces put in, taken out or doubled."""
    text = json.dumps(draw(MEMBERS), indent=draw(st.sampled_from([None, 1])))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(len(text), at + 3)))
        text = text[:at] + draw(st.sampled_from(["", *FRAGMENTS])) + text[end:]
    return text.encode()


Answer = tuple[str | None, list[Any]]


def answers(decoder: Decoder, payloads: list[bytes | None]) -> list[Answer]:
    found = decoder.decode(pa.array(payloads, pa.binary()))
    columns = [column.to_pylist() for column in found.columns]
    reasons = [None] * len(payloads) if found.reasons is None else found.reasons.to_pylist()
    return [(reasons[i], [column[i] for column in columns]) for i in range(len(payloads))]


def assert_each_by_itself(decoder: Decoder, payloads: list[bytes | None], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, "BLOCK_BYTES", block)
        together = answers(decoder, payloads)
    for payload, answer in zip(payloads, together, strict=True):
        assert answers(decoder, [payload]) == [answer]


@given(
    payloads=st.lists(almost_json() | st.none(), max_size=8), block=st.sampled_from([1, 30, 9999])
)
@example(payloads=[b'{"w":', b'{"v":1}}{}', b"{}"], block=9999)
@example(payloads=[b'{"w":', b'}{"v":1}{"v":2}'], block=9999)
@example(payloads=[b'{"v":1}}\n{"v":{"v":2}', b'{"v":3}'], block=9999)
@example(payloads=[b'{"x":"', b'"}'], block=9999)
def test_json_is_judged_by_itself(payloads: list[bytes | None], block: int) -> None:
    assert_each_by_itself(JSON, payloads, block)


@given(payload=almost_json())
@example(payload=b'{"v":1},"w":{}')
@example(payload=b'{"v":1} , "w":{"v":1}')
@example(payload=b'{"w":{"v":1}},"z":{}')
def test_what_is_taken_for_json_is_json(payload: bytes) -> None:
    """Python's own reader says whether it is JSON at all, and what it holds."""
    [(reason, fields)] = answers(JSON, [payload])
    try:
        expected = json.loads(payload)
    except ValueError:
        assert reason is not None
        return
    if not isinstance(expected, dict):
        assert reason is not None
    elif reason is None:
        assert fields[:2] == [expected.get("v"), _row_of(expected.get("w"))]
        assert fields[2:] == [expected.get("x"), expected.get("y")]


def _row_of(value: Any) -> Any:
    return value and {"v": value.get("v")} if value != {} else {"v": None}


AVRO_SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "l", "type": {"type": "array", "items": "long"}},
    ],
}
AVRO = parse_avro("s", json.dumps(AVRO_SCHEMA), bare_name="s")
RECORDS = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "s": st.none() | st.text(max_size=4),
        "l": st.lists(st.integers(-9, 9), max_size=3),
    }
)


@st.composite
def almost_avro(draw: st.DrawFn) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO_SCHEMA), draw(RECORDS))
    payload = bytearray(b"\0\0\0\0\x07" + stream.getvalue())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(payload)))
        payload[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(payload)


@given(payloads=st.lists(almost_avro() | st.none(), max_size=8), block=st.sampled_from([1, 9999]))
def test_avro_is_judged_by_itself(payloads: list[bytes | None], block: int) -> None:
    assert_each_by_itself(ConfluentDecoder(AVRO, 7), payloads, block)


@given(datum=RECORDS)
def test_avro_comes_back_as_it_was_written(datum: dict[str, Any]) -> None:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO_SCHEMA), datum)
    assert answers(AVRO, [stream.getvalue()]) == [(None, [datum["i"], datum["s"], datum["l"]])]
