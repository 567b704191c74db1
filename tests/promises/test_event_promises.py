"""P4 and P5 for change events: a key is what its newest word says, and each row in is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from spark_upsert.table.table import Table
from tests.support.debezium import bare, event
from tests.support.envelopes import Record, assert_sound, counters_of, records, write
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
