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

from spark_upsert.payloads import json as json_text
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.json_exact import read_exactly
from tests.support.fuzz import FUZZ_TIMES

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


@pytest.mark.parametrize("schemas", ["avro-schemas", "own-schemas"])
def test_schemas_are_what_fastavro_reads_or_errors_of_ours(schemas: str) -> None:
    """Right ones and odd ones, named again and damaged, with payloads of them."""
    assert_agrees_with_python(schemas, 0, 10, 60)


@pytest.mark.slow
@pytest.mark.parametrize("schemas", ["avro-schemas", "own-schemas"])
def test_many_schemas_are_what_fastavro_reads_or_errors_of_ours(schemas: str) -> None:
    assert_agrees_with_python(schemas, 1000, 100, 100 * FUZZ_TIMES)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["json", "avro"])
@pytest.mark.parametrize("first", range(0, 192, 64))
def test_many_payloads_are_what_python_reads(format_: str, first: int) -> None:
    assert_agrees_with_python(format_, 1000 + first, 32, 700 * FUZZ_TIMES)


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


def test_what_is_lost_with_two_bad_payloads_is_not_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrow names the second; the first is a number, and seen once the lost lines are read."""
    read: list[str] = []

    def watched(text: str, fields: pa.Schema, *, is_bare: bool) -> dict[str, Any]:
        read.append(text)
        return read_exactly(text, fields, is_bare=is_bare)

    monkeypatch.setattr(json_text, "read_exactly", watched)
    payloads = [plain(number) for number in range(100)]
    payloads[40], payloads[60] = b'{"id": 1.5}', b'{"id": "1"}'
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    found = decoder.decode(pa.array(payloads))
    assert found.columns[0].to_pylist() == [None if i in (40, 60) else i for i in range(100)]
    assert sorted(read) == ['{"id": "1"}', '{"id": 1.5}']


@pytest.mark.parametrize("at", [0, 1, 40, 70])
def test_behind_a_bad_payload_all_are_read_however_many_there_are(at: int) -> None:
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    for count in range(at + 1, 200):
        payloads = [plain(number) for number in range(count)]
        payloads[at] = b'{"id": "1"}'
        found = decoder.decode(pa.array(payloads))
        expected = [None if number == at else number for number in range(count)]
        assert found.columns[0].to_pylist() == expected


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lines Arrow was given, attempt by attempt."""
    counts: list[int] = []
    attempt = json_text._attempt

    def watched(lines: pa.Array, type_: pa.DataType) -> Any:
        counts.append(len(lines))
        return attempt(lines, type_)

    monkeypatch.setattr(json_text, "_attempt", watched)
    return counts


def test_a_bad_payload_costs_few_attempts(given: list[int]) -> None:
    payloads = [b'{"id": "1"}' if i % 50 == 0 else plain(i) for i in range(10_000)]
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    reasons = decoder.decode(pa.array(payloads)).reasons
    assert reasons is not None
    assert reasons.null_count == 9_800
    assert len(given) < 2 * 200 + 10
    assert sum(given) < 5 * len(payloads)


@pytest.mark.parametrize(
    "bad",
    [b'{"id": "1"}', b'{"id": 1.5}', b'{"id": 1]}', b'{"id": 1}\0{"id": 2}'],
    ids=["other type", "no integer", "no JSON", "zero byte"],
)
@pytest.mark.parametrize("is_pretty", [False, True], ids=["compact", "pretty"])
def test_a_rare_bad_payload_costs_its_block_not_its_neighbours(
    bad: bytes, is_pretty: bool, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks before it are kept, and those behind it are read once."""
    monkeypatch.setattr(json_text, "_BLOCK_BYTES", 1000)
    payloads = [plain(number) for number in range(1000)]
    if is_pretty:
        payloads = [payload.replace(b", ", b",\r\n  ") for payload in payloads]
    payloads[600] = bad
    decoder = JsonDecoder(*parse_schema("s", PLAIN, bare_name="v"))
    expected = [None if number == 600 else number for number in range(1000)]
    assert decoder.decode(pa.array(payloads)).columns[0].to_pylist() == expected
    # The first attempt, the rest behind it, and the few lines before it in its block.
    assert sum(given[1:]) < 420
    assert len(given) < 4


FIELDS, _ = parse_schema("s", "id BIGINT, s STRING", bare_name="v")
GOOD = [
    lambda i: f'{{"id": {i}}}',
    lambda i: f'{{"id": {i}, "s": "}} {{"}}',
    lambda i: f'{{\n"id":\r\n{i}\n}}\n',
    lambda i: f'{{"id": {i}, "s": "{"x" * (i % 90)}"}}',
]
BAD = [
    lambda i: f'{{"id": {i}}}{{"id": {i}}}',
    lambda i: f'{{"id": {i}}}\n{{"id": {i}}}',
    lambda i: f'{{"id": {i}}}}}\n{{"v":{{"id": {i}}}',
    lambda i: f'{{"id": {i}}}}}\0{{"v":{{"id": {i}}}',
    lambda i: f'{{"id": {i}}},"w":{{}}',
    lambda i: f'{{"id": "{i}"}}',
    lambda i: f'{{"id": {i}.5}}',
    lambda i: f'{{"\\u0069d": {i}.5}}',
    lambda i: f'{{"id": {i}, "s": "\n"}}',
    lambda i: f'{{"id": {i}]}}',
]


@pytest.mark.parametrize("seed", range(40))
def test_each_row_is_that_of_its_payload_wherever_blocks_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad payloads, and two documents in one, before, at and behind each other and boundaries."""
    draw = random.Random(seed)
    for _ in range(10):
        monkeypatch.setattr(json_text, "_BLOCK_BYTES", draw.choice([1, 60, 100, 300]))
        monkeypatch.setattr(json_text, "_WINDOW", draw.choice([1, 3, 64]))
        rate = draw.choice([0.01, 0.1, 0.5])
        is_bad = [draw.random() < rate for _ in range(draw.randrange(1, 120))]
        texts = [draw.choice(BAD if bad else GOOD)(i) for i, bad in enumerate(is_bad)]
        found = JsonDecoder(FIELDS).decode(pa.array([text.encode() for text in texts]))
        expected = [None if bad else i for i, bad in enumerate(is_bad)]
        assert found.columns[0].to_pylist() == expected, texts


def test_of_a_bad_payload_nothing_is_kept() -> None:
    decoder = JsonDecoder(*parse_schema("s", "id BIGINT, t TINYINT", bare_name="v"))
    found = decoder.decode(pa.array([b'{"id": 1, "t": 128}', b'{"id": 2}']))
    assert found.columns[0].to_pylist() == [None, 2]


@pytest.mark.parametrize("line", ['{"v":{"id":7}}{"v":{"id":7}}\n', '{"v":{"id":7}}\n\n'])
@pytest.mark.parametrize("is_bad_behind", [False, True])
def test_lines_of_other_than_one_document_are_never_taken_for_their_neighbours(
    line: str, is_bad_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even those that no payload makes: the documents of each block are counted."""
    monkeypatch.setattr(json_text, "_BLOCK_BYTES", 64)
    type_ = pa.struct([("id", pa.int64())])
    for at in range(30):
        lines = [f'{{"v":{{"id":{i}}}}}\n' for i in range(30)]
        lines[at] = line
        if is_bad_behind:
            lines[29] = '{"v":{"id":"x"}}\n'
        is_read, rows = json_text._read_lines(pa.array(lines, pa.large_string()), type_, None)
        for i, (is_one, row) in enumerate(zip(is_read, rows.to_pylist(), strict=True)):
            if is_one and not (i == at and line.endswith("\n\n")):
                assert row == {"id": i}
