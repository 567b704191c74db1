"""A change event that was damaged on its way never deletes anything.

Messages are those of Debezium's connectors for PostgreSQL and MySQL, bare and wrapped. A damage
is one edit: bytes that are replaced, taken out, put in, said twice, or cut off.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from spark_upsert.core.schema import ERROR, PUT, TOMBSTONE, ErrorPolicy, TableSchema
from spark_upsert.envelopes.debezium_records import record_form
from spark_upsert.options.write import EnvelopeKind, EnvelopeOptions
from spark_upsert.payloads.logical_types import DecimalForm, SchemalessDefaults, TimeUnit
from spark_upsert.table.write.commands import Envelope
from tests.support.envelopes import KAFKA, records

GIVEN = {
    "keyFormat": None,
    "keySchema": None,
    "valueFormat": "json",
    "valueSchema": "id BIGINT, n DECIMAL(10, 2), at TIMESTAMP_NTZ, v STRING",
}
OPTIONS = EnvelopeOptions(
    kind=EnvelopeKind.DEBEZIUM,
    payloads=GIVEN,
    schema_ids={"key": None, "value": None},
    schemaless_defaults=SchemalessDefaults(unit=TimeUnit.MICROS, decimals=DecimalForm.PRECISE),
)


def envelope() -> Envelope:
    form = record_form(KAFKA, OPTIONS, {})
    order = [form.orders.field("source.lsn")]
    schema = TableSchema.of(
        form.columns, keys=["id"], order=order, hash_seed=7, on_error=ErrorPolicy.QUARANTINE
    )
    return form.envelope(schema, form.columns)


ENVELOPE = envelope()

TEXT = """Zoë 'd', "op":"d"}, {"after":null"""
ROW = {"id": 1, "n": "BNI=", "at": 1717000000123456, "v": TEXT}
OTHER = {"id": 1, "n": "AA==", "at": 1717000000123457, "v": None}

MEMBERS = [
    {"type": "int64", "optional": False, "field": "id"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "field": "n",
    },
    {
        "type": "int64",
        "optional": True,
        "name": "io.debezium.time.MicroTimestamp",
        "version": 1,
        "field": "at",
    },
    {"type": "string", "optional": True, "field": "v"},
]


def message(op: str, before: Any, after: Any, *, is_wrapped: bool) -> bytes:
    source = {"connector": "postgresql", "ts_ms": 1717000000123, "lsn": 24023128, "txId": 755}
    event = {
        "before": before,
        "after": after,
        "source": source,
        "transaction": None,
        "op": op,
        "ts_ms": 1717000000456,
    }
    row = {"type": "struct", "fields": MEMBERS, "optional": True, "name": "Value"}
    lsn = {"type": "struct", "fields": [{"type": "int64", "field": "lsn"}], "field": "source"}
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        lsn,
        {"type": "string", "optional": False, "field": "op"},
    ]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "Envelope"}
    whole = {"schema": schema, "payload": event} if is_wrapped else event
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


PUTS = [
    message(op, before, ROW, is_wrapped=is_wrapped)
    for op, before in (("c", None), ("u", OTHER), ("u", None), ("r", None))
    for is_wrapped in (False, True)
]
DELETES = [message("d", ROW, None, is_wrapped=is_wrapped) for is_wrapped in (False, True)]

TOKENS = [b'"d"', b'"op":"d"', b'"after":null', b"null", b"}", b'{"', b",", b"d", b"\xff", b"\0"]


@st.composite
def damaged(draw: st.DrawFn, whole: list[bytes]) -> bytes:
    """Return a message after one edit."""
    sound = draw(st.sampled_from(whole))
    start = draw(st.integers(0, len(sound) - 1))
    stop = draw(st.integers(start, min(len(sound), start + draw(st.sampled_from([1, 9, 200])))))
    instead = draw(
        st.one_of(
            st.sampled_from(TOKENS),
            st.binary(max_size=4),
            st.just(b""),
            st.just(sound[start:stop] * 2),
        )
    )
    rest = b"" if draw(st.integers(0, 4)) == 0 else sound[stop:]
    return sound[:start] + instead + rest


def diffs(payloads: Sequence[bytes | None]) -> list[int]:
    """Return what the commands of some records do."""
    rows = records((b'{"id":1}', payload) for payload in payloads).combine_chunks()
    commands = ENVELOPE.commands(rows.to_batches()[0])
    return np.asarray(commands.column("__diff")).tolist()


def test_what_is_sound_is_as_it_says() -> None:
    assert diffs(PUTS) == [PUT] * len(PUTS)
    assert diffs(DELETES) == [TOMBSTONE] * len(DELETES)


@given(payload=damaged(PUTS))
@example(payload=PUTS[0].replace(b'"op":"c"', b'"op":"d"'))
@example(payload=PUTS[0].replace(b'"after"', b'"aftes"'))
@example(payload=PUTS[1].replace(b'"field":"after"', b'"field":"aftes"'))
@example(payload=PUTS[1].replace(b'"payload"', b'"paylaod"'))
@example(payload=b"")
@example(payload=b"null")
@example(payload=b'{"schema":null,"payload":null}')
def test_a_damaged_put_deletes_nothing(payload: bytes) -> None:
    """It is another put, or an error; and so are its neighbours what they were."""
    before, found, after = diffs([PUTS[1], payload, DELETES[0]])
    assert found in (PUT, ERROR)
    assert (before, after) == (PUT, TOMBSTONE)


@given(payload=damaged(DELETES))
def test_a_damaged_delete_is_a_delete_or_an_error(payload: bytes) -> None:
    [found] = diffs([payload])
    assert found in (TOMBSTONE, ERROR)


@given(payload=st.binary(max_size=40))
def test_noise_is_an_error(payload: bytes) -> None:
    assert diffs([payload]) == [ERROR]


def test_only_a_record_without_a_value_is_a_tombstone() -> None:
    planned = ENVELOPE.commands(records([(b'{"id":1}', None)]).combine_chunks().to_batches()[0])
    assert planned.column("id").to_pylist() == [1]
    assert planned.column("__diff").to_pylist() == [TOMBSTONE]
    assert planned.column("__order_known").to_pylist() == [False]
    assert isinstance(planned, pa.RecordBatch)
