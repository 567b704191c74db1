"""A bounded map: which entry goes, when, and what is handed back."""

from __future__ import annotations

import pytest

from spark_upsert.core.lru import LruMap


def test_the_least_recently_used_entry_goes_first() -> None:
    bounded: LruMap[str, int] = LruMap(2)
    assert [bounded.put("a", 1), bounded.put("b", 2)] == [[], []]
    assert bounded.get("a") == 1
    assert bounded.peek("b") == 2  # A peek is no use.
    assert bounded.put("c", 3) == [2], "what goes is handed back"
    assert list(bounded) == ["a", "c"]


def test_a_value_that_is_replaced_is_handed_back() -> None:
    bounded: LruMap[str, str] = LruMap(2)
    bounded.put("a", "old")
    assert bounded.put("a", "new") == ["old"]
    assert bounded.put("a", "new") == []
    assert bounded.values() == ["new"]


def test_bytes_are_bounded() -> None:
    bounded: LruMap[str, bytes] = LruMap(bytes_max=10, weigh=lambda _, value: len(value))
    for key, length in (("a", 4), ("b", 4), ("c", 5)):
        bounded.put(key, bytes(length))
    assert (list(bounded), bounded.bytes_used) == (["b", "c"], 9)
    assert bounded.put("d", bytes(11)) == [bytes(11)], "it would leave no room for others"
    assert bounded.put("b", bytes(5)) == [bytes(4)]
    assert (list(bounded), bounded.bytes_used) == (["c", "b"], 10)
    assert bounded.pop("c") == bytes(5)
    assert bounded.bytes_used == 5
    bounded.clear()
    assert (len(bounded), bounded.bytes_used) == (0, 0)


def test_entries_that_rest_go_when_another_one_is_put() -> None:
    now = [0.0]
    bounded: LruMap[str, str] = LruMap(rest_s=60.0, rested_max=2, clock=lambda: now[0])
    for key in "abcd":
        bounded.put(key, key)
    now[0] = 61.0
    assert bounded.get("b") == "b", "a look-up drops nothing"
    assert bounded.put("e", "e") == ["a", "c", "d"]
    now[0] = 200.0
    bounded.put("b", "b")
    assert list(bounded) == ["e", "b"], "so many stay however long they rest"


def test_what_could_not_be_made_is_not_kept() -> None:
    bounded: LruMap[str, int] = LruMap(2)
    with pytest.raises(ZeroDivisionError):
        bounded.get_or_create("a", lambda: 1 // 0)
    assert [bounded.get_or_create("a", lambda: 1), bounded.get_or_create("a", lambda: 2)] == [1, 1]
