"""P2, P4, P5 for change events: a key is what its newest word says, and each row in is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.table.state.reduce import STALE_MIN
from spark_upsert.table.table import Table
from tests.laws.test_source_orders import CONNECTORS, require_equal
from tests.support.debezium import bare, event, member, wrapped
from tests.support.envelopes import Record, assert_sound, counters_of, records, rows_of, write
from tests.support.unchanged import decode
from tests.unit.test_debezium_words import (
    OPTIONS,
    Standing,
    create,
    delete,
    gone,
    key,
    standing,
    update,
)
from tests.unit.test_positions import OPTIONS as BY_BINLOG
from tests.unit.test_positions import at

GARBAGE: Record = (key(1), b"?")


@contextmanager
def _new() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder) / "t"


def _apply(path: Path, *batches: Sequence[Record], **options: str) -> None:
    for batch in batches:
        commit = write(path, records(batch), onError="quarantine", **OPTIONS, **options)
        assert counters_of(commit).tied == 0


def _assert_said(expected: Standing, *events: Record) -> None:
    """Check what is left of events, in one batch and in one of each."""
    for batches in ([events], [[each] for each in events]):
        with _new() as path:
            _apply(path, *batches)
            assert standing(path) == expected
            assert_sound(path)


def test_p5_a_key_whose_newest_event_is_bad_is_listed() -> None:
    _assert_said(({}, [1]), create(1, 1, 1), update(1, 1, "infinity", 2))
    _assert_said(({}, [1]), create(1, 1, 1), GARBAGE)
    _assert_said(({}, [1]), create(1, 1, 5), GARBAGE, update(1, 1, 2, 4))


def test_p5_a_good_event_clears_what_was_bad() -> None:
    _assert_said(({1: 3}, []), create(1, "infinity", 1), update(1, "infinity", 3, 2))
    _assert_said(({1: 5}, []), create(1, 5, 5), update(1, 1, "infinity", 3))
    _assert_said(({1: 3}, []), create(1, 1, 1), GARBAGE, update(1, 1, 3, 2))
    _assert_said(({}, []), create(1, "infinity", 1), delete(1, "infinity", 2), gone(1))
    _assert_said(({}, []), create(1, 1, 1), GARBAGE, gone(1))
    _assert_said(({1: 1}, []), create(1, 1, 1), gone(1))


def test_p5_what_has_no_order_says_nothing_of_forgotten_deletes() -> None:
    with _new() as path:
        _apply(path, [create(1, 1, 1), delete(1, 1, 9)], tombstoneRetention="0 epochs")
        Table.open(str(path)).compact(full=True)
        _apply(path, [GARBAGE])
        late = write(path, records([create(1, 1, 1)]), lateRows="reject", **OPTIONS)
        assert counters_of(late).rejected == 1
        assert standing(path) == ({}, [1])


def test_p4_events_that_are_read_again_leave_no_trace() -> None:
    history = [create(1, 1, 1), GARBAGE, update(1, 1, 2, 2), create(2, 1, 3), (key(2), b"?")]
    for start in range(len(history)):
        with _new() as path:
            _apply(path, history, *([each] for each in history[start:]), ties="fail")
            assert standing(path) == ({1: 2}, [2])


KAFKA_RECORDS: list[Record] = [
    (key(1), b'{"n":1}'),
    (key(2), b'{"n":2}'),
    (key(1), b'{"n":3}'),
    (key(2), None),
    (key(3), None),
    (None, None),
]

EVENTS: list[Record] = [
    create(1, 1, 1),
    create(2, 1, 2),
    update(1, 1, 2, 3),
    delete(2, 1, 4),
    gone(2),
    gone(7),
    (None, None),
    (None, bare(event("t", None, None, 5))),
]

CHANGES = pa.table(
    {
        "_change_type": ["insert", "update_preimage", "update_postimage", "delete"],
        "_commit_version": pa.array([1, 2, 2, 3]),
        "_diff": pa.array([1, -1, 1, -1], pa.int32()),
        "id": pa.array([1, 1, 1, 1]),
        "n": pa.array([1, 1, 2, 2]),
    }
)


def test_p2_a_copy_with_another_key_is_its_source() -> None:
    """Its pairs may come apart, in batches and in epochs."""
    changed = CHANGES.set_column(3, "id", pa.array([1, 1, 3, 3])).slice(0, 3)
    for cuts in ([3], [1, 2], [2, 1], [1, 1, 1]):
        with _new() as path:
            for rows in np.split(np.arange(3), np.cumsum(cuts)[:-1]):
                write(path, changed.take(pa.array(rows)), envelope="changelog", keys="id")
            assert rows_of(path) == [{"id": 3, "n": 2}]


PLAIN = pa.table(
    {
        "id": pa.array([1, 1, 2, 3]),
        "n": pa.array([1, 2, 3, None]),
        "at": pa.array([2, 1, 3, 4]),
        "is_deleted": pa.array([False, False, False, True]),
    }
)

BROKEN: list[Record] = [GARBAGE, (key("x"), b"?"), (None, b"?"), (key("x"), None)]

KAFKA_OPTIONS = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "n INT",
}

BY_OFFSET = {name: text for name, text in OPTIONS.items() if name != "sequenceBy"}
IGNORING = {"onTruncate": "ignore"}

WRITES: dict[str, tuple[pa.Table, dict[str, str]]] = {
    "upsert": (PLAIN, {"keys": "id", "sequenceBy": "at", "applyAsDeletes": "is_deleted"}),
    "kafka": (records(KAFKA_RECORDS), KAFKA_OPTIONS),
    "kafka, broken": (
        records([*KAFKA_RECORDS, *BROKEN]),
        {**KAFKA_OPTIONS, "onError": "quarantine"},
    ),
    "debezium": (records(EVENTS), {**OPTIONS, **IGNORING}),
    "debezium by offsets": (records(EVENTS), {**BY_OFFSET, **IGNORING}),
    "debezium, emptied": (records(EVENTS), {**OPTIONS, "onTruncate": "overwrite"}),
    "debezium, inline": (records(EVENTS), {**OPTIONS, **IGNORING, "onError": "inline"}),
    "debezium, broken": (
        records([*EVENTS, *BROKEN]),
        {**OPTIONS, **IGNORING, "onError": "quarantine"},
    ),
    "changelog": (CHANGES, {"envelope": "changelog", "keys": "id"}),
}
"""Rows of all envelopes, among them such as are no commands."""


def test_p4_each_documented_order_gives_the_rows_of_the_database() -> None:
    for order in CONNECTORS:
        for seed in range(4):
            with _new() as path:
                require_equal(seed, order, "fail", path)


def test_p4_rows_of_two_logs_that_do_not_compare_are_refused() -> None:
    """In one epoch, and in two."""
    older = at("mysql-bin.000007", "c", 1, "a")
    newer = at("binlog.000001", "u", 1, "b")
    for first, last in (([], [older, newer]), ([older], [newer])):
        with _new() as path:
            if first:
                write(path, records(first), **BY_BINLOG)
            with pytest.raises(DataError, match="binlog"):
                write(path, records(last), **BY_BINLOG)
            write(path, records([newer, older]), binlogNames="mysql-bin,binlog", **BY_BINLOG)
            assert rows_of(path) == [{"id": 1, "v": "b"}]


def test_p5_every_row_in_is_counted_in_all_envelopes() -> None:
    for name, (rows, options) in WRITES.items():
        with _new() as path:
            for _ in range(2):
                found = counters_of(write(path, rows, **options))
                reasons = (
                    *(found.superseded, found.stale, found.duplicates, found.rejected),
                    found.skipped,
                )
                assert rows.num_rows == found.eligible + sum(reasons), (name, found)


def test_p5_a_row_that_is_no_command_is_counted_where_it_is_alone() -> None:
    """As the tombstone that opens a micro-batch, or the batch of a truncate that is ignored."""
    for policy in ("fail", "quarantine"):
        with _new() as path:
            write(path, records([create(1, 1, 1)]), onError=policy, **OPTIONS)
            for alone in (gone(1), gone(7), (None, None), EVENTS[-1]):
                found = counters_of(write(path, records([alone]), **OPTIONS, **IGNORING))
                assert (found.rows, found.live_delta) == (1, 0), (policy, alone)


UNSENT = "__debezium_unavailable_value"
MIXED = {**OPTIONS, "valueSchema": "id BIGINT, a STRING, l ARRAY<STRING>, s STRUCT<x: STRING>"}


def _row(lsn: int, a: object, items: object, s: object) -> Record:
    return key(1), bare(event("u", None, {"id": 1, "a": a, "l": items, "s": s}, lsn))


def test_p4_a_value_that_was_not_sent_is_never_a_value() -> None:
    """In a text, an array, and a struct, whose members are not those of the placeholder."""
    sent = _row(1, "a", ["a"], {"x": "a"})
    unsent = (UNSENT, [UNSENT], {UNSENT: UNSENT})
    for place in range(3):
        values: list[object] = ["b", ["b"], {"x": "b"}]
        values[place] = unsent[place]
        expected: list[object] = ["b", ["b"], {"x": "b"}]
        expected[place] = ["a", ["a"], {"x": "a"}][place]
        for engine in ("deduplicate", "partial-update"):
            with _new() as path:
                write(path, records([sent, _row(2, *values)]), mergeEngine=engine, **MIXED)
                [row] = Table.open(str(path)).snapshot().to_pylist()
                assert [row["a"], row["l"], row["s"]] == expected


def test_p4_an_array_that_was_not_sent_is_never_a_value() -> None:
    options = {**OPTIONS, "valueSchema": "id BIGINT, l ARRAY<BIGINT>"}
    event_of = bare(event("u", None, {"id": 1, "l": list(UNSENT.encode())}, 1))
    with _new() as path, pytest.raises(DataError, match="never sent"):
        write(path, records([(key(1), event_of)]), **options)


def test_p4_a_key_that_was_not_sent_is_the_old_one() -> None:
    options = {**OPTIONS, "valueSchema": "k STRING, n INT", "keys": "k"}
    with _new() as path:
        for lsn, before, after in (
            (1, None, {"k": "a", "n": 1}),
            (2, {"k": "a"}, {"k": UNSENT, "n": 2}),
        ):
            write(path, records([(None, bare(event("u", before, after, lsn)))]), **options)
        assert Table.open(str(path)).snapshot().to_pylist() == [{"k": "a", "n": 2}]


def _unchanged(
    op: str, before: dict[str, Any] | None, x: str | None
) -> tuple[list[bool] | None, list[bool] | None]:
    """Return which rows leave x unchanged, and which of these do not have an older row's x."""
    options = {**OPTIONS, "valueSchema": "id BIGINT, x STRING"}
    decoded = decode(records([(key(1), bare(event(op, before, {"id": 1, "x": x}, 1)))]), **options)
    return decoded.unchanged.get("x"), decoded.resets


def test_p4_null_is_a_value_and_not_an_unchanged_one() -> None:
    assert _unchanged("u", None, None) == (None, None)
    assert _unchanged("u", None, UNSENT) == ([True], None)


def test_p4_a_create_has_no_value_of_an_older_row() -> None:
    assert _unchanged("c", None, UNSENT) == ([True], [True])


def test_p4_a_null_in_the_old_row_is_no_value() -> None:
    assert _unchanged("u", {"id": 1, "x": None}, UNSENT) == ([True], None)
    assert _unchanged("u", {"id": 1, "x": "a"}, UNSENT) == (None, None)


def test_p4_a_field_that_is_missing_is_no_null() -> None:
    options = {**OPTIONS, "valueSchema": "id BIGINT, x STRING", "missingFields": "unchanged"}
    with _new() as path:
        for lsn, after in enumerate(({"x": "a"}, {})):
            change = bare(event("u", None, {"id": 1, **after}, lsn))
            write(path, records([(key(1), change)]), **options)
        assert rows_of(path) == [{"id": 1, "x": "a"}]


def test_p4_a_null_that_is_listed_is_a_value() -> None:
    options = {"keys": "id", "columnsToUpdate": "to"}
    type_ = {"id": pa.int64(), "x": pa.string(), "to": pa.list_(pa.string())}
    with _new() as path:
        for x in ("a", None):
            rows = pa.table({"id": [1], "x": [x], "to": [["x"]]}, pa.schema(type_))
            write(path, rows, **options)
        assert rows_of(path) == [{"id": 1, "x": None}]


def test_p4_what_is_sent_wins_over_what_a_move_takes_along() -> None:
    """Also if the delete of the old key has a greater order than the create."""
    options = {**OPTIONS, "valueSchema": "id BIGINT, n BIGINT", "sequenceBy": "source.lsn,ts_ms"}
    create = event("c", None, {"id": 1, "n": 0}, 1)
    delete = {**event("d", {"id": 1}, None, 2), "ts_ms": 2}
    moved = {**event("c", None, {"id": 2, "n": 5}, 2), "ts_ms": 1}
    rows = records([(None, bare(each)) for each in (create, delete, moved)])
    header = {"key": "__debezium.newkey", "value": bare({"id": 2})}
    with _new() as path:
        write(path, rows.append_column("headers", pa.array([[], [header], []])), **options)
        assert rows_of(path) == [{"id": 2, "n": 5}]


FLATTENED = {
    **KAFKA_OPTIONS,
    "valueSchema": "n INT, __deleted STRING",
    "applyAsDeletes": "__deleted",
}


def test_p4_a_mark_of_a_flattened_event_deletes_and_nothing_else_does() -> None:
    history = (("false", 1, 0), ("true", 0, 0), (None, 1, 0), ("yes", 0, 1), ("false", 1, 0))
    with _new() as path:
        for offset, (mark, *expected) in enumerate(history):
            row = key(1), bare({"n": offset, "__deleted": mark})
            rows = records([row], offsets=[offset])
            write(path, rows, onError="quarantine", **FLATTENED)
            table = Table.open(str(path))
            bad = sum(batch.num_rows for batch in table.quarantine())
            assert [table.snapshot().num_rows, bad] == expected, mark


def test_p5_rows_that_are_all_stale_are_reported() -> None:
    with _new() as path:
        for lsn in (9, 1):
            rows = records([create(number, 1, lsn) for number in range(STALE_MIN)])
            with _warnings("spark_upsert.table.write.ties") as warnings:
                write(path, rows, **OPTIONS)
        assert ["rows are stale" in each for each in warnings] == [True]


@contextmanager
def _warnings(name: str) -> Iterator[list[str]]:
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger(name), Handler()
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


DECIMALS = {**OPTIONS, "valueSchema": "id BIGINT, n DECIMAL(10, 2)", "decimalHandling": "precise"}


def test_p4_a_decimal_is_what_was_written_in_each_form() -> None:
    """Of a finer scale, a coarser one, and as a number."""
    name = "org.apache.kafka.connect.data.Decimal"
    for scale, sent, expected in ((4, "Opg=", "1.50"), (-2, "Dw==", "1500.00"), (2, 1.5, "1.50")):
        type_ = {"type": "bytes", "name": name, "parameters": {"scale": str(scale)}}
        row = [member("id", "int64"), {**type_, "optional": True, "field": "n"}]
        message = event("c", None, {"id": 1, "n": sent}, 1)
        with _new() as path:
            write(path, records([(key(1), wrapped(message, row))]), **DECIMALS)
            [found] = Table.open(str(path)).snapshot()["n"].to_pylist()
            assert str(found) == expected
