"""Whatever messages come to a routed query: rows, or bad with a reason, in bounded time and memory.

Messages of Connect, of a registry (Avro, JSON) and of Debezium, with schemas that are right, odd,
damaged or against the table, and payloads that are damaged, empty or made to be large. With
`onError=quarantine` every good row beside them is there, each bad one is listed, and no error
leaves a batch but one of the table, which is ours and says what it takes two payloads to see.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_upsert.errors import SchemaError
from spark_upsert.payloads.schema_registry import forget_schemas
from spark_upsert.routed.plan import table_below
from tests.support.fuzz import FUZZ_TIMES
from tests.support.own_schemas import (
    INLINE,
    avro,
    change,
    change_schema,
    inline,
    member,
    record,
    struct,
)
from tests.support.payload_fuzz import damaged, doubling_json
from tests.support.registry import RegistryDouble, framed, running_registry
from tests.support.stores import MemoryStore
from tests.unit.test_routed_schemas import rows_of, write

KEY, ROW = struct(member("id", "int64")), struct(member("id", "int64"), member("n", "int64"))
AVRO_KEY, AVRO_ROW = record("K", id="long"), record("R", id="long", n="long")
BATCH_S, BATCH_BYTES = 2.0, 256 << 20
"""Of processor, and of memory: of a batch of some messages of 50 kB at most."""

OF_TWO_PAYLOADS = ("no column can hold together", "fields between them", "does not", "in the rows")
"""What errors of a table say: contradictions, and columns that `mergeSchema` does not give."""

Make = Callable[[random.Random, int], tuple[bytes | None, bytes | None]]


def cut(draw: random.Random, payload: bytes) -> bytes:
    """Return a payload with some bytes changed."""
    for _ in range(draw.choice([0, 1, 1, 3])):
        at = draw.randrange(len(payload) + 1)
        more = draw.choice([b"", b"\0", b"\xff", b"{", b'"', b"1e400", b"[" * 300, b"\\ud800"])
        payload = payload[:at] + more + payload[at + draw.randrange(4) :]
    return payload


def large(draw: random.Random) -> tuple[Any, Any]:
    """Return a schema and a value that mean far more than they say."""
    item = struct(*(member(f"c{n}", "int64") for n in range(draw.choice([30, 120, 3000]))))
    array = {"type": "array", "items": item, "optional": True, "field": "n"}
    return struct(member("id", "int64"), array), {"id": 1, "n": [{}] * 10_000}


def connect(draw: random.Random, number: int) -> tuple[bytes | None, bytes | None]:
    schema: Any = ROW
    value: Any = {"id": number, "n": number}
    kind = draw.randrange(4)
    if kind == 0:
        schema = damaged(draw, ROW)
    elif kind == 1:
        schema, value = large(draw)
    message = inline(schema, value)
    return inline(KEY, {"id": number}), cut(draw, message) if kind > 1 else message


def debezium(draw: random.Random, number: int) -> tuple[bytes | None, bytes | None]:
    row = damaged(draw, ROW) if draw.random() < 0.4 else ROW
    event = change(draw.choice("crudtmx"), None, {"id": number, "n": 1}, draw.randrange(9))
    schema = change_schema(row if isinstance(row, dict) else ROW)
    schema = damaged(draw, schema) if draw.random() < 0.3 else schema
    return inline(KEY, {"id": number}), cut(draw, inline(schema, event))


def good_connect(number: int) -> tuple[bytes, bytes]:
    return inline(KEY, {"id": number}), inline(ROW, {"id": number, "n": number})


def good_event(number: int) -> tuple[bytes, bytes]:
    event = change("c", None, {"id": number, "n": number}, number)
    return inline(KEY, {"id": number}), inline(change_schema(ROW), event)


EVENTS = {
    "envelope": "debezium",
    "keyFormat": "json",
    "valueFormat": "json",
    "keySchema": "inline",
    "valueSchema": "inline",
    "sequenceBy": "source.lsn",
}


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryDouble]:
    with running_registry() as double:
        yield double


def of_registry(registry: RegistryDouble, kind: str) -> tuple[Make, Callable[[int], Any], Any]:
    """Return what makes messages of a registry, what makes good ones, and their options."""
    is_avro = kind == "avro"
    document = {"type": "object", "properties": {n: {"type": "integer"} for n in ("id", "n")}}
    kind_of = "AVRO" if is_avro else "JSON"
    key = registry.register("k", AVRO_KEY if is_avro else {"type": "integer"}, kind_of)
    row = registry.register("r", AVRO_ROW if is_avro else document, kind_of)

    def keyed(number: int) -> bytes:
        return avro(key, AVRO_KEY, {"id": number}) if is_avro else framed(key, b"%d" % number)

    def good(number: int) -> tuple[bytes, bytes]:
        value = {"id": number, "n": number}
        body = avro(row, AVRO_ROW, value) if is_avro else framed(row, json.dumps(value).encode())
        return keyed(number), body

    def make(draw: random.Random, number: int) -> tuple[bytes | None, bytes | None]:
        value, kind_ = good(number)[1], draw.randrange(4)
        if kind_ == 0:
            odd = damaged(draw, AVRO_ROW if is_avro else document)
            own = registry.register("odd", odd, kind_of)
            return keyed(number), framed(own, value[5:])
        if kind_ == 1:
            return keyed(number), framed(draw.getrandbits(32), value[5:])
        if kind_ == 2 and not is_avro:
            own = registry.register("large", doubling_json(draw.choice([3, 30])), kind_of)
            return keyed(number), framed(own, value[5:])
        return keyed(number), cut(draw, value)

    format_ = f"{kind}-confluent"
    options = {"envelope": "kafka", "keyFormat": format_, "valueFormat": format_}
    return make, good, {**options, "schemaRegistry.url": registry.url}


def refusal(root: Any, batch: int, sent: list[Any], given: Any) -> SchemaError | None:
    """Write a batch; return the error of a table."""
    try:
        write(root, batch, sent, **given)
    except SchemaError as error:
        return error
    return None


def check(make: Make, good: Callable[[int], Any], options: Any, seed: int) -> None:
    """Write some batches of drawn messages between good ones."""
    draw, root = random.Random(seed), MemoryStore()
    given = {**options, "onError": "quarantine", "mergeSchema": "true"}
    write(root, 0, [("a", *good(1))], **given)
    for batch in range(1, 4):
        first = 100 * batch
        sent = [("a", *make(draw, first + n)) for n in range(draw.randrange(1, 6))]
        beside = [("a", *good(first + 50)), ("b", *good(first + 51))]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        refused = refusal(root, batch, [*sent, *beside], given)
        if refused is not None:
            assert any(text in refused.message for text in OF_TWO_PAYLOADS), (seed, sent, refused)
            write(root, batch, beside, **given)
        took = time.process_time() - began
        assert took < BATCH_S, (seed, took, sent)
        held = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        assert held < BATCH_BYTES, (seed, held, sent)
        assert first + 50 in {row.get("id", row.get("key")) for row in rows_of(root, "a")}, seed
        assert first + 51 in {row.get("id", row.get("key")) for row in rows_of(root, "b")}, seed
    for listed in table_below(root, "a").quarantine():
        assert all(len(row["_reason"]) < 300 for row in listed.to_pylist())


SEEDS = 12 * FUZZ_TIMES


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages_with_odd_schemas_stop_no_routed_query(seed: int) -> None:
    check(connect, good_connect, INLINE, seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_odd_events_stop_no_routed_query(seed: int) -> None:
    check(debezium, good_event, EVENTS, seed)


@pytest.mark.parametrize("kind", ["avro", "json"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_odd_schemas_of_a_registry_stop_no_routed_query(
    registry: RegistryDouble, kind: str, seed: int
) -> None:
    forget_schemas()
    check(*of_registry(registry, kind), seed)
