"""Whatever bytes come: right, or bad with a reason; never a crash, never without bounds.

The differential tests run in processes of their own: bytes that kill the interpreter are a
failure of one test, not the end of all.
"""

from __future__ import annotations

import random
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.payloads import json_text
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.json_exact import read_exactly
from spark_upsert.payloads.json_text import JsonDecoder

ROOT = Path(__file__).parents[2]


def assert_agrees_with_python(format_: str, first: int, seeds: int, count: int) -> None:
    arguments = map(str, (first, seeds, count))
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.payload_fuzz", format_, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"exit code {run.returncode}: {run.stdout}{run.stderr}"


@pytest.mark.parametrize("format_", ["json", "avro"])
def test_payloads_are_what_python_reads(format_: str) -> None:
    assert_agrees_with_python(format_, 0, 32, 100)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["json", "avro"])
@pytest.mark.parametrize("first", range(0, 192, 64))
def test_many_payloads_are_what_python_reads(format_: str, first: int) -> None:
    assert_agrees_with_python(format_, 1000 + first, 32, 2000)


DECIMALS = [
    "DECIMAL(5, 2)",
    "DECIMAL(15, 0)",
    "DECIMAL(15, 14)",
    "DECIMAL(38, 2)",
    "DECIMAL(38, 10)",
]


@pytest.mark.parametrize("type_", DECIMALS)
@pytest.mark.parametrize("other", ["0", "1e1", "null"], ids=["short", "long", "null"])
def test_decimals_are_the_numbers_that_are_written(type_: str, other: str) -> None:
    """A block of short numbers is read by floats, any other one as text."""
    draw = random.Random(type_)
    fields, _ = parse_schema("s", f"v {type_}", bare_name="v")
    scale, digits = fields.types[0].scale, min(fields.types[0].precision, 15)
    numbers = [10**digits - 1, 1 - 10**digits, 1, -1, 0]
    numbers += [draw.randrange(-(10**digits), 10**digits) for _ in range(20_000)]
    written = [Decimal(number).scaleb(-scale) for number in numbers]
    payloads = [f'{{"v": {number:f}}}'.encode() for number in written]
    [column] = (
        JsonDecoder(fields).decode(pa.array([*payloads, f'{{"v":{other}}}'.encode()])).columns
    )
    assert column.to_pylist()[:-1] == written


PLAIN = "id BIGINT, d DECIMAL(9, 2), f FLOAT, s STRING, at TIMESTAMP"


def plain(number: int) -> bytes:
    return (
        f'{{"id": {number}, "d": {number}.50, "f": 0.0, "s": "a", "at": "2024-02-29T00:00:00Z"}}'
    ).encode()


def test_good_payloads_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def watched(text: str, fields: pa.Schema, *, is_bare: bool) -> dict[str, Any]:
        read.append(text)
        return read_exactly(text, fields, is_bare=is_bare)

    monkeypatch.setattr(json_text, "read_exactly", watched)
    payloads = [plain(number) for number in range(3000)]
    payloads[1000] = b'{"id": "1"}'
    payloads[2000] = b'{"d": 1e-9999999}'
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    reasons = decoder.decode(pa.array(payloads)).reasons
    assert reasons is not None
    assert reasons.null_count == 2998
    assert sorted(read) == ['{"d": 1e-9999999}', '{"id": "1"}']


@pytest.mark.parametrize("at", [0, 1, 40, 70])
def test_behind_a_bad_payload_all_are_read_however_many_there_are(at: int) -> None:
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    for count in range(at + 1, 200):
        payloads = [plain(number) for number in range(count)]
        payloads[at] = b'{"id": "1"}'
        found = decoder.decode(pa.array(payloads))
        expected = [None if number == at else number for number in range(count)]
        assert found.columns[0].to_pylist() == expected


def test_a_bad_payload_costs_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    parsed = json_text._parsed

    def watched(lines: pa.Array, type_: pa.DataType) -> pa.Array:
        attempts.append(len(lines))
        return parsed(lines, type_)

    monkeypatch.setattr(json_text, "_parsed", watched)
    payloads = [b'{"id": "1"}' if i % 50 == 0 else plain(i) for i in range(10_000)]
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    reasons = decoder.decode(pa.array(payloads)).reasons
    assert reasons is not None
    assert reasons.null_count == 9_800
    assert len(attempts) < 2 * 200 + 10
    assert sum(attempts) < 5 * len(payloads)
