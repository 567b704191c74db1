"""P4 and P5 for change events: a key is what its newest word says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from spark_upsert.table import Table
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
    for batches in ([events], [[event] for event in events]):
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
            _apply(path, history, *([event] for event in history[start:]), ties="fail")
            assert standing(path) == ({1: 2}, [2])
