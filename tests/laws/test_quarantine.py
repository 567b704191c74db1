"""A quarantine is state like any other: it depends on what was written, not on how.

Records of three good keys, two undecodable ones and the null key, with good, bad, empty and null
values, each with its own order key.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.envelopes.kafka import KafkaEnvelope, KafkaForm
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.table.compaction import choose
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from tests.support.envelopes import KAFKA, Record, key, records, value
from tests.support.stores import MemoryStore
from tests.support.tables import hashes_of_few_values, make_table

KEYS = [key(1), key(2), key(3), b"?", key(None), None]
VALUES = [value("a"), value("b"), b"", b"{", b"[]", None]

HISTORIES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=12
)
SEEDS = st.randoms(use_true_random=False)


def json_decoder(text: str) -> JsonDecoder:
    return JsonDecoder(*parse_schema("schema", text, bare_name="x"))


FORM = KafkaForm(KAFKA, json_decoder("k BIGINT"), json_decoder("v STRING"))


@dataclass(frozen=True)
class Entry:
    """A record and its order key."""

    record: Record
    offset: int


def entries_of(history: list[Record]) -> list[Entry]:
    return [Entry(record, offset) for offset, record in enumerate(history)]


def make(scope: Scope = Scope.TABLE) -> Table:
    schema = TableSchema.of(
        FORM.columns,
        keys=["k"],
        order=[pa.field("offset", pa.int64())],
        scope=scope,
        hash_seed=7,
        on_error=ErrorPolicy.QUARANTINE,
    )
    return make_table(MemoryStore(), schema)


def append(table: Table, entries: list[Entry]) -> None:
    schema = table.log.head().schema
    envelope = FORM.envelope(schema, FORM.columns)
    assert isinstance(envelope, KafkaEnvelope)
    rows = records([e.record for e in entries], offsets=[e.offset for e in entries])
    table.upsert(rows, envelope=envelope)


State = tuple[list[Any], list[Any]]


def state_of(table: Table, version: int | None = None) -> State:
    """Return the rows and the errors, without the epochs in which they came."""
    errors = [
        (row["k"], row["_raw_key"], row["_raw_value"], row["_reason"])
        for batch in table.quarantine(version)
        for row in batch.to_pylist()
    ]
    assert len({e[:2] for e in errors}) == len(errors), "two errors of one identity"
    return sorted(table.snapshot(version).to_pylist(), key=repr), sorted(errors, key=repr)


def expected_state(entries: list[Entry]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the rows and the raw values of errors, as a dictionary would have them."""
    last: dict[bytes | None, Entry] = {}
    for entry in sorted(entries, key=lambda e: e.offset):
        last[entry.record[0]] = entry
    rows, errors = {}, {}
    for name, entry in last.items():
        payload = entry.record[1]
        if payload is None:
            continue
        if name in KEYS[:3] and payload in VALUES[:2]:
            rows[KEYS.index(name) + 1] = "ab"[VALUES.index(payload)]
        else:
            errors[name] = payload
    return rows, errors


@given(history=HISTORIES)
def test_a_quarantine_is_a_dictionary(history: list[Record]) -> None:
    table = make()
    append(table, entries_of(history))
    rows, errors = expected_state(entries_of(history))
    found_rows, found_errors = state_of(table)
    assert {row["k"]: row["v"] for row in found_rows} == rows
    places = {k if raw is None else raw: payload for k, raw, payload, _ in found_errors}
    good = {KEYS.index(name) + 1 if name in KEYS[:3] else name: p for name, p in errors.items()}
    assert places == good


@given(history=HISTORIES, dice=SEEDS, hash_count=st.sampled_from([None, 1, 2]))
def test_batches_their_order_replays_and_compactions_leave_no_trace(
    history: list[Record], dice: random.Random, hash_count: int | None
) -> None:
    entries = entries_of(history)
    with hashes_of_few_values(hash_count):
        once = make()
        append(once, entries)
        shuffled = [*entries, *dice.choices(entries, k=3)]
        dice.shuffle(shuffled)
        table = make()
        while shuffled:
            count = dice.randint(1, len(shuffled))
            append(table, shuffled[:count])
            del shuffled[:count]
            if dice.random() < 0.4:
                before = state_of(table)
                table.compact(full=dice.random() < 0.5)
                assert state_of(table) == before
        assert state_of(table) == state_of(once)


@given(history=HISTORIES, dice=SEEDS, scope=st.sampled_from([Scope.TABLE, Scope.EPOCH]))
def test_the_changes_fold_to_the_rows_and_every_record_is_counted(
    history: list[Record], dice: random.Random, scope: Scope
) -> None:
    table = make(scope)
    left = entries_of(history)
    dice.shuffle(left)
    while left:
        count = dice.randint(1, len(left))
        append(table, left[:count])
        del left[:count]
    rows: dict[Any, Any] = {}
    for version in range(1, table.log.head().upper):
        changes = table.changes(version, version + 1, emit_unchanged=True).to_pylist()
        for change in changes:
            if change["_change_type"] in ("delete", "update_preimage"):
                assert rows.pop(change["k"], "no row") == change["v"]
            else:
                assert change["k"] not in rows
                rows[change["k"]] = change["v"]
        found, _ = state_of(table, version)
        assert {row["k"]: row["v"] for row in found} == rows
        commit = table.log.commit(version)
        counters = Counters.from_json(commit.counters)
        assert counters.is_balanced
        assert counters.output_count == len(changes)
        assert commit.live_rows == len(rows)


@given(history=HISTORIES)
def test_compaction_of_any_two_runs_keeps_each_errors_epoch(history: list[Record]) -> None:
    table = make(Scope.EPOCH)
    for entry in entries_of(history):
        append(table, [entry])

    def epochs() -> dict[Any, int]:
        batches = [row for batch in table.quarantine() for row in batch.to_pylist()]
        return {(row["k"], row["_raw_key"]): row["_epoch"] for row in batches}

    before = epochs()
    from spark_upsert.table.compaction import compact_runs

    for job in choose(table.log.head(), fanout=2):
        table.commit_compactions([compact_runs(table.store, table.log.head(), job)])
        assert epochs() == before
