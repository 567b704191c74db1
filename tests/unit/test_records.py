"""Records with a right checksum and wrong contents: damage, by the name of the file, at once."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError
from spark_upsert.store import records
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import HINT_PATH, checkpoint_path, commit_path
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.properties import decode_mark, encode_mark
from spark_upsert.table.retention.leases import leases
from spark_upsert.table.table import Table
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import append, schema_of

CHECKPOINT = checkpoint_path(2)
LEASE = "_consumers/reports.json"
DEEP = b"[" * 200_000
DIGITS = b"9" * 5_000


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A table of three versions, with a checkpoint and a lease."""
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", 2)
    store = MemoryStore()
    table = Table(store)
    table.ensure(schema_of(Scope.TABLE))
    append(table, [Command(1, 1, 1)])
    append(table, [Command(2, 2, 2)])
    table.hold("reports", 1)
    return store


def whole_body(body: bytes) -> bytes:
    """Return a record of these bytes with the right checksum."""
    assert body.endswith(b"}")
    return body[:-1] + b',"crc":"%08x"}' % zlib.crc32(body)


def changed(store: MemoryStore, path: str, change: Callable[..., object]) -> None:
    """Change a record, and give it the right checksum."""
    record = json.loads(store.objects[path])
    del record["crc"]
    change(record)
    store.objects[path] = encode(record)


def read_all(store: MemoryStore) -> None:
    """Read all that a table has."""
    log = Log(store)
    log.head()
    log.at(1)
    log.stored.files_before(9)
    leases(store)


WRONG: dict[str, Any] = {
    "null": None,
    "a text": "x",
    "a list": [],
    "an object": {},
    "a fraction": 1.5,
    "a truth": True,
    "a negative number": -1,
    "a number beyond 64 bits": 2**64,
    "another depth": [[[[1]]]],
}

FIELDS = {
    commit_path(2): ("version", "kind", "timestamp_ms", "previous", "live_rows"),
    CHECKPOINT: ("version", "timestamp_ms", "schema", "live_rows", "token"),
    LEASE: ("consumer", "version", "renewed_ms", "ttl_ms"),
}
POSSIBLE = {("live_rows", "a negative number"), ("token", "a text"), ("previous", "a text")}
RUN_FIELDS = ("rows", "tombstones", "bytes", "body_bytes", "tail_crc", "hash_min")


def refuses(store: MemoryStore, path: str, change: Callable[..., object]) -> None:
    """Change a record, require that it is named as damaged, and put it back."""
    intact = store.objects[path]
    changed(store, path, change)
    with pytest.raises(CorruptionError, match=path):
        read_all(store)
    store.objects[path] = intact


@pytest.mark.parametrize("path", FIELDS, ids=["a commit", "a checkpoint", "a lease"])
def test_field_that_is_missing_or_not_what_it_must_be_is_damage_in(
    store: MemoryStore, path: str
) -> None:
    for field in FIELDS[path]:
        refuses(store, path, lambda record, f=field: record.pop(f))
        for name, value in WRONG.items():
            if (field, name) not in POSSIBLE:
                refuses(store, path, lambda record, f=field, v=value: record.update({f: v}))


def test_field_of_a_run_that_is_not_what_it_must_be_is_damage(store: MemoryStore) -> None:
    wrong = [(field, value) for field in RUN_FIELDS for value in WRONG.values()]
    leading = ["/etc/passwd", "../x.arrow", "data/../../x", "", "data/\0"]
    for field, value in [*wrong, *(("path", path) for path in leading)]:
        refuses(
            store,
            commit_path(2),
            lambda record, f=field, v=value: record["added"][0].update({f: v}),
        )


BODIES = {
    "brackets without end": b'{"a":' + DEEP + b"}",
    "nested deeply": b'{"a":' + DEEP + b"]" * len(DEEP) + b"}",
    "a number of many digits": b'{"version":' + DIGITS + b"}",
    "a number that is infinite": b'{"version":1e999}',
    "no text": b'{"version":"\xff"}',
    "nothing": b"{}",
}


@pytest.mark.parametrize("path", [commit_path(0), commit_path(2), CHECKPOINT, LEASE])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_json_that_is_none_or_too_much_is_damage(
    store: MemoryStore, path: str, body: bytes
) -> None:
    store.objects[path] = whole_body(body)
    with pytest.raises(CorruptionError, match=path):
        read_all(store)


@pytest.mark.parametrize(
    "hint",
    [
        *(encode({"version": version}) for version in (10**18, 2**70, -1, "2", None, 1.5)),
        *map(whole_body, BODIES.values()),
    ],
    ids=lambda hint: f"{hint[:30]!r}",
)
def test_hint_is_never_believed(store: MemoryStore, hint: bytes) -> None:
    """A hint of 10**18 made a reader look for that many checkpoints."""
    head = Log(store).head()
    store.objects[HINT_PATH] = hint
    assert Log(store).head() == head


@pytest.mark.parametrize("path", [commit_path(2), CHECKPOINT, LEASE])
def test_record_that_is_too_large_is_not_read(
    store: MemoryStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(store, path, lambda record: record.update({"more": "x" * 20_000}))
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 20_000)
    with pytest.raises(CorruptionError, match="at most 20000 bytes"):
        read_all(store)


def test_checkpoint_of_another_version_is_damage(store: MemoryStore) -> None:
    refuses(store, CHECKPOINT, lambda record: record.update({"version": 1}))


def test_low_water_mark_is_read_as_it_was_written_or_damage() -> None:
    schema = schema_of(Scope.TABLE)
    order = [pa.array([7], field.type) for field in schema.order_fields]
    assert decode_mark(encode_mark(order, schema), schema) == order
    marks = [base64.b64encode(data).decode() for data in (b"", b"\x00" * 40, b"\xff" * 400)]
    for mark in (*marks, "no base64!"):
        with pytest.raises(CorruptionError, match="low-water mark"):
            decode_mark(mark, schema)
