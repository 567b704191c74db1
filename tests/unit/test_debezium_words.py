"""A key that can be read is judged by its newest word, whatever else of an event is broken.

Events are those of `tests.support.debezium`, whose column ``n`` may hold what it cannot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import DataError
from spark_upsert.table.state.reduce import Counters
from tests.support.debezium import (
    AVRO,
    AVRO_KEY,
    avro_event,
    avro_row,
    bare,
    event,
    member,
    wrapped,
    wrapped_key,
)
from tests.support.envelopes import (
    Record,
    assert_sound,
    counters_of,
    quarantine_of,
    records,
    rows_of,
    write,
)

OPTIONS = {
    "envelope": "debezium",
    "keys": "id",
    "sequenceBy": "source.lsn",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, n INT",
}
BAD = "infinity"
ROW = [member("id", "int64"), member("n", "int32")]
NAMED = [member("id", "int64"), member("n", "string")]

Standing = tuple[dict[int, Any], list[Any]]
"""The rows by their keys, and the keys that are listed: a number, or the bytes of a key."""


def image(number: Any, n: Any) -> dict[str, Any]:
    return {"id": number, "n": n}


def key(number: Any) -> bytes:
    return bare({"id": number})


def record_of(op: str, number: Any, before: Any, after: Any, lsn: int | None) -> Record:
    return key(number), bare(event(op, before, after, lsn))


def create(number: Any, n: Any, lsn: int | None) -> Record:
    return record_of("c", number, None, image(number, n), lsn)


def update(number: Any, was: Any, n: Any, lsn: int | None) -> Record:
    return record_of("u", number, image(number, was), image(number, n), lsn)


def delete(number: Any, was: Any, lsn: int | None) -> Record:
    return record_of("d", number, image(number, was), None, lsn)


def gone(number: Any) -> Record:
    return key(number), None


NO_KEY: Record = None, bare(event("c", None, image(None, 1), 1))

HISTORIES: dict[str, tuple[list[Record], Standing]] = {
    "a bad after takes the row away": ([create(1, 1, 1), update(1, 1, BAD, 2)], ({}, [1])),
    "a delete behind a bad value": ([create(1, BAD, 1), delete(1, BAD, 2)], ({}, [])),
    "a bad value below what is there": ([create(1, 5, 5), update(1, 1, BAD, 3)], ({1: 5}, [])),
    "garbage and an old event again": (
        [create(1, 1, 5), (key(1), b"?"), (key(1), b"!"), update(1, 1, 2, 4)],
        ({}, [1]),
    ),
    "an event without an order": ([create(1, 1, 1), update(1, 1, 2, None)], ({}, [1])),
    "a key that cannot be read": ([create("x", 1, 1)], ({}, [key("x")])),
    "and its tombstone": ([create("x", 1, 1), gone("x")], ({}, [])),
    "a key that is null": ([NO_KEY], ({}, [None])),
    "and a record of nulls": ([NO_KEY, (None, None)], ({}, [])),
}
"""`tests/laws/test_newest_words.py` draws histories of all kinds."""


def standing(path: Path) -> Standing:
    """Return what is current, and what is listed."""
    rows = {row["id"]: row["n"] for row in rows_of(path)}
    listed = [e["_raw_key"] if e["id"] is None else e["id"] for e in quarantine_of(path)]
    return rows, listed


@pytest.mark.parametrize(("history", "expected"), HISTORIES.values(), ids=HISTORIES.keys())
@pytest.mark.parametrize("way", ["at once", "one by one"])
@pytest.mark.sweep(7)
def test_a_key_is_judged_by_its_newest_word(
    tmp_path: Path, way: str, history: list[Record], expected: Standing
) -> None:
    path = tmp_path / "t"
    parts = [history] if way == "at once" else [[record] for record in history]
    for start, part in enumerate(parts):
        commit = write(
            path, records(part, offsets=range(start, 99)), onError="quarantine", **OPTIONS
        )
        assert counters_of(commit).tied == 0
    assert standing(path) == expected
    assert_sound(path)


def test_errors_of_no_readable_key_are_never_tied(tmp_path: Path) -> None:
    """They have no order, so that there is no total one that could tell them apart."""
    several = [create("x", 1, 1), create("x", 2, 2), (None, b"?"), (None, b"!"), (b"?", b"?")]
    options = {**OPTIONS, "onError": "quarantine"}
    for rows, ties in ((several, "last"), (several, "fail"), (several[::-1], "fail")):
        commit = write(tmp_path / ties, records(rows), **options, ties=ties)
        assert counters_of(commit).tied == 0


def test_a_bad_value_is_inlined_at_its_key(tmp_path: Path) -> None:
    path = tmp_path / "t"
    history = [create(1, 1, 1), update(1, 1, BAD, 2)]
    write(path, records(history), onError="inline", **OPTIONS)
    [row] = rows_of(path)
    assert (row["id"], row["n"]) == (1, None)
    assert "'after.n'" in row["error"]["description"]
    with pytest.raises(DataError, match=r"'after\.n'"):
        write(tmp_path / "fail", records(history), **OPTIONS)


def test_a_message_whose_schema_contradicts_the_column_is_an_error_at_its_key(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    said = wrapped(event("u", None, {"id": 1, "n": "x"}, 2), NAMED)
    history = [(wrapped_key(1), wrapped(event("c", None, image(1, 1), 1), ROW))]
    write(path, records([*history, (wrapped_key(1), said)]), onError="quarantine", **OPTIONS)
    assert standing(path) == ({}, [1])


BEYOND: dict[str, dict[str, Any]] = {
    "a day": {"d": 10**9},
    "a time that Connect means": {"at": 2**62},
    "a time that Avro means": {"c": 2**60},
    "a decimal": {"n": b"\x7f" * 12},
}


@pytest.mark.parametrize("more", BEYOND.values(), ids=BEYOND.keys())
@pytest.mark.sweep(2)
def test_in_avro_a_bad_value_leaves_its_event_the_order_and_the_key(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    path, good, bad = tmp_path / "t", avro_row(1, v="a"), avro_row(1, **more)

    def put(op: str, before: Any, after: Any, lsn: int) -> Counters:
        rows = records([(AVRO_KEY, avro_event(op, before, after, lsn))])
        return counters_of(write(path, rows, onError="quarantine", **AVRO))

    put("c", None, good, 5)
    assert put("u", None, bad, 4).stale == 1
    put("u", good, bad, 6)
    assert ([e["id"] for e in quarantine_of(path)], rows_of(path)) == ([1], [])
    put("u", bad, good, 7)
    assert (quarantine_of(path), [row["v"] for row in rows_of(path)]) == ([], ["a"])
    assert put("d", bad, None, 8).deletes == 1
    assert_sound(path)
