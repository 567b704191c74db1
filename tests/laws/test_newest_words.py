"""Of each key the newest word counts: a row, nothing, or an error that is listed.

Histories are logs of change events, as a connector writes them, of which some are broken: a value
that its column cannot hold, an old row or a key that cannot be read, bytes that are no event, no
order. They are written in any batches, by a query that starts again from an earlier place, beside a
second one that reads the same log, and a compactor. The slow model reads the log once, event by
event, and knows nothing of orders.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.errors import DataError
from spark_upsert.table.table import Table
from tests.support.debezium import bare, event
from tests.support.envelopes import (
    Record,
    assert_sound,
    counters_of,
    quarantine_of,
    records,
    rows_of,
    write,
)
from tests.support.seeds import rest_slow

OPTIONS = {
    "envelope": "debezium",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, n INT",
    "keys": "id",
    "sequenceBy": "source.lsn",
}

KEYS = (1, 2, "x", None)
"""Two that can be read, one that cannot, and none."""

KINDS = (
    *("create", "update", "read", "delete", "gone", "moved", "moved in one"),
    *("bad value", "bad row", "bad before", "no before", "delete of bad before"),
    *("garbage", "no order", "bad op", "delete and more", "moved with a bad value"),
)

EXAMPLES = int(os.environ.get("UPSERTFLOW_HISTORIES", settings().max_examples * 3 // 2))
"""Histories that are drawn. More are for a long run, some 30 in a second."""

Key = int | str | None
Word = tuple[str, Any]
"""What an event says of a key: ``row`` and its value, ``gone``, ``error``, or ``no error``."""

State = dict[Key, Word]


def raw(key: Key) -> bytes | None:
    return None if key is None else bare({"id": key})


class Log:
    """Events of one partition, with what each of them says."""

    def __init__(self, told: list[tuple[str, Key]]) -> None:
        self.records: list[Record] = []
        self.words: list[list[tuple[Key, Word]]] = []
        self._lsn = 0
        for kind, key in told:
            self._tell(kind, key)

    def _add(self, key: Key, value: bytes | None, *words: tuple[Key, Word]) -> None:
        self.records.append((raw(key), value))
        self.words.append(list(words))

    def _event(
        self, key: Key, op: str | None, before: Any, after: Any, *words: tuple[Key, Word]
    ) -> None:
        self._lsn += 1
        self._add(key, bare(event(op, before, after, self._lsn)), *words)

    def _tell(self, kind: str, key: Key) -> None:
        n = self._lsn + 100
        old, new = {"id": key, "n": n - 1}, {"id": key, "n": n}
        row = (key, ("row", n) if isinstance(key, int) else ("error", None))
        gone = (key, ("gone", None) if isinstance(key, int) else ("error", None))
        error = (key, ("error", None))
        other = 3 - key if isinstance(key, int) else 1
        match kind:
            case "create":
                self._event(key, "c", None, new, row)
            case "read":
                self._event(key, "r", None, new, row)
            case "update":
                self._event(key, "u", old, new, row)
            case "delete":
                self._event(key, "d", old, None, gone)
                self._add(key, None, (key, ("no error", None)))
            case "gone":
                self._add(key, None, (key, ("no error", None)))
            case "moved":
                self._event(key, "d", old, None, gone)
                self._add(key, None, (key, ("no error", None)))
                self._event(other, "c", None, {"id": other, "n": n}, (other, ("row", n)))
            case "moved in one":
                went = [gone] if isinstance(key, int) else []
                self._event(other, "u", old, {"id": other, "n": n}, *went, (other, ("row", n)))
            case "moved with a bad value":
                went = [gone] if isinstance(key, int) else []
                bad = {"id": other, "n": "infinity"}
                self._event(other, "u", old, bad, *went, (other, ("error", None)))
            case "bad value":
                self._event(key, "u", old, {"id": key, "n": "infinity"}, error)
            case "bad row":
                self._event(key, "u", old, "?", error)
            case "bad before":
                self._event(key, "u", {"id": "?", "n": "infinity"}, new, row)
            case "no before":
                self._event(key, "u", 7, new, row)
            case "delete of bad before":
                self._event(key, "d", {"id": key, "n": "infinity"}, None, gone)
            case "garbage":
                self._add(key, b"?", error)
            case "no order":
                self._add(key, bare(event("u", None, new, None)), error)
            case "bad op":
                self._event(key, "m", None, new, error)
            case "delete and more":
                self._event(key, "d", old, new, error)

    def state(self) -> State:
        """Return the newest word on each key."""
        found: State = {}
        for words in self.words:
            for key, word in words:
                if word[0] == "gone" or (word[0] == "no error" and key in found):
                    if word[0] == "gone" or found[key][0] == "error":
                        found.pop(key, None)
                elif word[0] != "no error":
                    found[key] = word
        return found


HISTORIES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(KEYS)), min_size=1, max_size=14
)
SEEDS = st.randoms(use_true_random=False)


@contextmanager
def new_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "t"


def found_in(path: Path) -> State:
    """Return what a table says of each key."""
    state: State = {row["id"]: ("row", row["n"]) for row in rows_of(path)}
    for error in quarantine_of(path):
        key = error["id"]
        if error["_raw_key"] is not None:
            key = "x"
            assert error["_raw_key"] == raw(key)
        assert key not in state, "a key is current and listed, or listed twice"
        state[key] = ("error", None)
    return state


def lives(log: Log, dice: random.Random) -> Iterator[tuple[int, int]]:
    """Yield the batches of two queries, one of which starts again from an earlier place."""
    count = len(log.records)
    places = [0, dice.choice([0, count])]
    starts_left = dice.randint(0, 1)
    while min(places) < count:
        who = dice.choice([w for w, place in enumerate(places) if place < count])
        stop = dice.randint(places[who] + 1, count)
        yield places[who], stop
        places[who] = stop
        if starts_left and dice.random() < 0.3:
            starts_left -= 1
            places[who] = dice.randint(0, stop)


@settings(max_examples=EXAMPLES)
@given(history=HISTORIES, dice=SEEDS)
def test_each_key_is_what_its_newest_word_says(
    history: list[tuple[str, Key]], dice: random.Random
) -> None:
    log = Log(history)
    with new_path() as path:
        for start, stop in lives(log, dice):
            rows = records(log.records[start:stop], offsets=range(start, stop))
            commit = write(path, rows, onError="quarantine", **OPTIONS)
            assert counters_of(commit).rows >= stop - start
            assert counters_of(commit).tied == 0
            if dice.random() < 0.3:
                before = found_in(path)
                Table.open(str(path)).compact(full=dice.random() < 0.5)
                assert found_in(path) == before
        assert found_in(path) == log.state()
        assert_sound(path)


def test_the_model_is_not_the_code() -> None:
    """A short log, told in words."""
    log = Log([("create", 1), ("garbage", 1), ("gone", 1), ("bad value", 2), ("create", "x")])
    assert log.state() == {2: ("error", None), "x": ("error", None)}


def is_fatal(log: Log, kind: str, policy: str) -> bool:
    """Return whether a batch of some events fails under a policy."""
    errors = [key for words in log.words for key, word in words if word[0] == "error"]
    if policy == "fail" or kind in ("garbage", "no order"):
        return bool(errors)
    return any(not isinstance(key, int) for key in errors)


@pytest.mark.parametrize("policy", rest_slow(["inline", "fail"]))
@settings(max_examples=EXAMPLES // 2)
@given(history=HISTORIES, dice=SEEDS)
def test_without_a_quarantine_what_is_broken_stops_the_batch_or_is_a_row(
    policy: str, history: list[tuple[str, Key]], dice: random.Random
) -> None:
    """What cannot be applied is taken out of the log then, and the batch written again."""
    with new_path() as path:
        kept: list[tuple[str, Key]] = []
        for kind, key in history:
            one = Log([(kind, key)])
            if not is_fatal(one, kind, policy):
                kept.append((kind, key))
                continue
            version = _version(path)
            with pytest.raises(DataError):
                write(path, records(one.records), onError=policy, **OPTIONS)
            assert _version(path) == version
        log = Log(kept)
        for start, stop in lives(log, dice):
            rows = records(log.records[start:stop], offsets=range(start, stop))
            write(path, rows, onError=policy, **OPTIONS)
        if log.records:
            found = {
                row["id"]: ("error", None) if row.get("error") else ("row", row["n"])
                for row in rows_of(path)
            }
            assert found == log.state()
            assert_sound(path)


def _version(path: Path) -> int:
    return Table.open(str(path)).log.head().version if path.exists() else -1
