"""Schemas are read within budgets, and no error of others leaves a decoder.

Time is told by steps: parts that were looked at, messages that were compared and read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_upsert.core.lru import SharedLruMap
from spark_upsert.errors import DataError, OptionError, SchemaError, StorageError
from spark_upsert.payloads import avro, connect
from spark_upsert.payloads import decoder as budgets
from spark_upsert.payloads import json as json_sparse
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.connect import parse_connect_json_schema
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import (
    DEPTH_MAX,
    PARTS_MAX,
    SCHEMA_BYTES_MAX,
    Payloads,
    Unreadable,
    decode_safely,
)
from spark_upsert.payloads.embedded_schema import Inline, infer_fields
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.logical_types import ConnectSchema
from spark_upsert.routed.plan import table_below
from tests.support.envelopes import reasons, records, rows_of, write, write_found
from tests.support.own_schemas import INLINE, inline, member, record, struct
from tests.support.payload_fuzz import doubling_avro, doubling_json
from tests.support.stores import MemoryStore
from tests.unit.test_routed_schemas import message
from tests.unit.test_routed_schemas import write as write_many


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The depth of each part that was looked at."""
    found: list[int] = []
    require = budgets.require_limits

    def counted(*, parts: int = 0, depth: int = 0) -> None:
        found.append(depth)
        require(parts=parts, depth=depth)

    monkeypatch.setattr(budgets, "require_limits", counted)
    monkeypatch.setattr(avro, "require_limits", counted)
    return found


def nested_avro(depth: int) -> Any:
    return "int" if not depth else {"type": "array", "items": nested_avro(depth - 1)}


FIXED = {"type": "fixed", "name": "f"}
A = {"name": "a", "type": "int"}
DECIMAL = {"type": "bytes", "logicalType": "decimal"}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        pytest.param(doubling_avro(20), "more than 10000 parts", id="each twice the one below"),
        pytest.param(nested_avro(200), "nested more than 64 deep", id="deep"),
        pytest.param("[" * 5000 + "]" * 5000, "nested more than 64 deep", id="deeper than Python"),
        pytest.param({"type": "string", "doc": "x" * SCHEMA_BYTES_MAX}, "longer than", id="long"),
        pytest.param({"type": "array", "items": {**FIXED, "size": -1}}, "size of -1", id="size -1"),
        pytest.param({**FIXED, "size": 2**40}, "size of 1099511627776", id="a large size"),
        pytest.param({**FIXED, "size": 1.5}, r"size of 1\.5", id="a broken size"),
        pytest.param({**DECIMAL, "precision": 10**12}, "1000000000000 digits", id="precision"),
        pytest.param({**DECIMAL, "precision": 5, "scale": 9}, "scale of 9", id="scale"),
        pytest.param({"type": "enum", "name": "e", "symbols": [1]}, "no names", id="symbols"),
        pytest.param({**record("R"), "fields": [A, A]}, "twice", id="twice"),
        pytest.param({**record("R"), "fields": [5]}, "TypeError", id="a field that is none"),
        pytest.param([["int"]] * 20_000, "more than 10000 parts", id="a union of very many"),
    ],
)
def test_an_avro_schema_beyond_its_budget_is_refused(
    schema: Any, why: str, steps: list[int]
) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises((OptionError, SchemaError), match=why):
        parse_avro("valueSchema", text, bare_name="value")
    assert len(steps) <= len(text)


def test_parts_are_counted_as_often_as_they_are_named() -> None:
    within = parse_avro("s", json.dumps(doubling_avro(12)), bare_name="v")
    assert budgets.count_parts(pa.struct(list(within.fields))) == 2**13 - 1 <= PARTS_MAX
    with pytest.raises(OptionError, match="more than 10000 parts"):
        parse_avro("s", json.dumps(doubling_avro(13)), bare_name="v")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        pytest.param(doubling_json(20), "more than 10000 parts", id="each twice the one below"),
        pytest.param({"$ref": "#"}, "refers to itself", id="itself"),
        pytest.param({"properties": {"a": {"$ref": "#"}}}, "64 deep", id="within itself"),
        pytest.param({"properties": {"a": {"connect.index": 1e400}}}, "OverflowError", id="index"),
    ],
)
def test_a_json_schema_beyond_its_budget_is_unreadable(
    schema: Any, why: str, steps: list[int]
) -> None:
    with pytest.raises(Unreadable, match=why):
        parse_connect_json_schema(schema)
    assert len(steps) <= PARTS_MAX + 1


def test_a_schema_of_connect_beyond_its_budget_is_unreadable() -> None:
    deep: Any = {"type": "int32"}
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(Unreadable, match="64 deep"):
        ConnectSchema.parse(deep)
    with pytest.raises(Unreadable, match="10000 parts"):
        ConnectSchema.parse(struct(*(member(f"c{n}", "int8") for n in range(PARTS_MAX))))


@pytest.mark.parametrize(
    "text", ['{"type":' * 5000, "a " + "ARRAY<" * 5000, "a DECIMAL(1000000000000,2)"]
)
def test_a_declared_schema_beyond_its_budget_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="expects columns"):
        parse_schema("valueSchema", text, bare_name="value")


def test_a_schema_in_each_message_costs_what_its_bytes_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, compared, read = 400, [0], [0]
    starts_with, head = pc.starts_with, connect._head

    def comparing(messages: pa.Array, pattern: bytes) -> pa.Array:
        compared[0] += len(messages)
        return starts_with(messages, pattern)

    def reading(message: bytes) -> Any:
        read[0] += 1
        return head(message)

    monkeypatch.setattr(pc, "starts_with", comparing)
    monkeypatch.setattr(connect, "_head", reading)
    payloads = [inline(struct(member(f"c{n}", "int64")), {f"c{n}": n}) for n in range(count)]
    rows = [alike.rows.tolist() for alike in connect.by_schema(pa.array(payloads))]
    assert rows == [[n] for n in range(count)]
    assert compared[0] <= connect._LOOKED_FOR * count
    assert read[0] <= count


def test_fields_of_all_schemas_have_one_budget() -> None:
    half = PARTS_MAX // 2 + 1
    wide = [struct(*(member(f"{side}{n}", "int8") for n in range(half))) for side in "ab"]
    with pytest.raises(SchemaError, match="more than 10000 fields between them"):
        infer_fields(Inline("value"), [pa.array([inline(schema, {}) for schema in wide])])


def test_what_is_kept_of_schemas_is_bounded_in_bytes() -> None:
    recent: SharedLruMap[int, bytes] = SharedLruMap(
        bytes_max=100, weigh=lambda _, value: len(value)
    )
    made: list[int] = []

    def make(number: int, length: int) -> Callable[[], bytes]:
        def of() -> bytes:
            made.append(number)
            return bytes(length)

        return of

    for number in (1, 2, 1, 3, 1, 2):
        recent.get_or_create(number, make(number, 45))
    assert made == [1, 2, 3, 2]
    recent.get_or_create(9, make(9, 101))
    assert recent.bytes_used == 90
    assert len(recent) == 2


WIDE_ITEM = pa.list_(pa.field("element", pa.struct({f"c{n}": pa.int64() for n in range(1000)})))


def test_items_that_say_nothing_are_bounded_by_their_bytes() -> None:
    decoder = JsonDecoder(pa.schema({"id": pa.int64(), "a": WIDE_ITEM, "s": pa.string()}))
    hostile = b'{"id": 1, "a": [' + b",".join([b"{}"] * 1000) + b"]}"
    few = b'{"id": 2, "a": [{}, {"c7": 7}]}'
    text = b'{"id": 3, "s": "' + b"," * 5000 + b'", "a": [{}]}'
    honest = {"id": 4, "a": [{f"c{n}": n for n in range(1000)}] * 50}
    payloads = pa.array([hostile, few, text, json.dumps(honest).encode(), None], pa.binary())
    found = decoder.decode(payloads)
    assert found.columns[0].to_pylist() == [None, 2, 3, 4, None]
    assert found.reasons is not None
    assert found.reasons.to_pylist() == [budgets.TOO_SPARSE, None, None, None, None]
    assert found.columns[1][3].as_py() == honest["a"]


@pytest.mark.parametrize("count", [60, 127, 1000])
def test_items_of_fewer_members_are_bounded_too(count: int) -> None:
    item = pa.struct({f"c{n}": pa.int64() for n in range(count)})
    inner = pa.list_(pa.field("element", item))
    fields = pa.schema({"a": inner, "b": pa.list_(pa.field("element", pa.struct({"a": inner})))})
    hostile = b'{"a": [' + b",".join([b"{}"] * 5000) + b"]}"
    within = b'{"b": [{}, ' + hostile + b"]}"
    found = JsonDecoder(fields).decode(pa.array([hostile, within, b'{"a": [{}]}']))
    assert found.reasons is not None
    assert found.reasons.to_pylist() == [budgets.TOO_SPARSE, budgets.TOO_SPARSE, None]


def test_items_are_looked_at_no_further_than_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand members of each of many items were looked for, for minutes."""
    looked = [0]

    class Counted(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            looked[0] += 1
            return super().__contains__(name)

    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: loads(text, object_hook=Counted))
    hostile = b'{"a": [' + b",".join([b"{}"] * 50_000) + b"]}"
    found = json_sparse.are_sparse(pa.array([hostile]), pa.schema({"a": WIDE_ITEM}))
    assert found is not None
    assert found.tolist() == [True]
    assert looked[0] < 10


def test_items_of_avro_that_say_nothing_are_bounded_by_their_bytes() -> None:
    fields = [{"name": f"c{n}", "type": "long"} for n in range(1000)]
    item = ["null", {"type": "record", "name": "Item", "fields": fields}]
    decoder = parse_avro("s", json.dumps({"type": "array", "items": item}), bare_name="v")
    nulls = [b"\x02" + b"\0" * n for n in (1, 5)]
    few = b"\x04\0\0\0"
    many = b"\xd0\x0f" + b"\0" * 1000 + b"\0"
    found = decoder.decode(pa.array([few, many, *nulls, few], pa.binary()))
    assert found.reasons is not None
    bad = found.reasons.to_pylist()
    assert (bad[0], bad[4]) == (None, None)
    assert budgets.TOO_SPARSE in bad[1]
    assert found.columns[0][4].as_py() == [None, None]


FOREIGN = [
    RecursionError("too deep"),
    MemoryError("3 TB"),
    OverflowError("int too large"),
    KeyError("name"),
    pa.ArrowInvalid("offset overflow"),
    AssertionError("never"),
]


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The last error is the one by which the decoder of JSON breaks where a payload says so."""
    errors: list[Exception] = [RecursionError("maximum recursion depth exceeded")]
    decode = JsonDecoder.decode

    def breaking(self: JsonDecoder, payloads: pa.Array) -> Payloads:
        if pc.any(pc.match_substring(payloads, "break"), min_count=0).as_py():
            raise errors[-1]
        return decode(self, payloads)

    monkeypatch.setattr(JsonDecoder, "decode", breaking)
    return errors


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
def test_an_error_of_others_is_that_of_its_payload(
    error: Exception, errors: list[Exception]
) -> None:
    errors.append(error)
    fields, _ = parse_schema("s", "v BIGINT, s STRING", bare_name="v")
    texts = [b'{"v": %d}' % n for n in range(20)]
    texts[3] = texts[17] = b'{"v": 1, "s": "break"}'
    texts[5] = b"?"
    found = decode_safely(JsonDecoder(fields), pa.array([*texts, None], pa.binary()))
    assert found.reasons is not None
    bad = {n: text for n, text in enumerate(found.reasons.to_pylist()) if text is not None}
    assert sorted(bad) == [3, 5, 17]
    assert bad[3].startswith(f"{type(error).__name__}: ")
    assert found.columns[0].to_pylist() == [None if n in (3, 5, 17, 20) else n for n in range(21)]


def test_an_outage_is_no_error_of_others(errors: list[Exception]) -> None:
    errors.append(StorageError("away.", hint="wait."))
    fields, _ = parse_schema("s", "s STRING", bare_name="v")
    with pytest.raises(StorageError):
        decode_safely(JsonDecoder(fields), pa.array([b'"break"']))


DECLARED = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "s STRING",
}
PAIRS = [(b'{"id": 1}', b'{"s": "a"}'), (b'{"id": 2}', b'{"s": "break"}')]


@pytest.mark.usefixtures("errors")
def test_an_error_of_others_is_under_the_policy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="RecursionError: maximum recursion depth"):
        write(tmp_path / "f", records(PAIRS), **DECLARED)
    write(tmp_path / "q", records(PAIRS), **DECLARED, onError="quarantine")
    assert rows_of(tmp_path / "q") == [{"id": 1, "s": "a"}]
    assert reasons(tmp_path / "q") == [
        "the value is undecodable: RecursionError: maximum recursion depth exceeded"
    ]
    write(tmp_path / "i", records(PAIRS), **DECLARED, onError="inline")
    assert [row["s"] for row in rows_of(tmp_path / "i")] == ["a", None]


HOSTILE: list[Any] = [
    struct(*(member(f"c{n}", "int8") for n in range(PARTS_MAX))),
    {"type": "struct", "fields": [{"field": "a", "type": "array", "items": 5}]},
    {"type": "struct", "fields": 7},
    struct(member("\ud800", "int8")),
    struct(member("a", "int8"), doc="x" * SCHEMA_BYTES_MAX),
]


@pytest.mark.parametrize("schema", HOSTILE, ids=["wide", "item", "fields", "surrogate", "long"])
def test_a_hostile_schema_in_a_message_is_under_the_policy(schema: Any, tmp_path: Path) -> None:
    key = inline(struct(member("id", "int64")), {"id": 1})
    other = inline(struct(member("id", "int64")), {"id": 2})
    good = inline(struct(member("n", "int64")), {"n": 5})
    rows = records([(key, good), (other, inline(schema, {}))])
    write_found(tmp_path / "t", rows, **INLINE, onError="quarantine")
    assert rows_of(tmp_path / "t") == [{"id": 1, "n": 5}]
    [reason] = reasons(tmp_path / "t")
    assert "its schema cannot be read" in reason


@pytest.mark.usefixtures("errors")
def test_an_error_of_others_stops_no_routed_query() -> None:
    root = MemoryStore()
    sent = [
        message("a", 1, n=("int64", 5)),
        message("a", 2, n=("int64", 6), s=("string", "break")),
        message("b", 1, n=("int64", 7)),
    ]
    write_many(root, 0, sent, **INLINE, onError="quarantine")
    rows = {folder: table_below(root, folder).snapshot()["n"].to_pylist() for folder in "ab"}
    assert rows == {"a": [5], "b": [7]}
    [bad] = table_below(root, "a").quarantine()
    assert "RecursionError" in str(bad.to_pylist())
