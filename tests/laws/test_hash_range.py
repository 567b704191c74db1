"""A range of hashes is the set of them: each operation agrees with that of sets."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange

SMALL = range(9)
"""Ranges of these alone are compared with sets."""


def ranges_of(bounds: st.SearchStrategy[int]) -> st.SearchStrategy[HashRange]:
    return st.tuples(bounds, bounds).map(sorted).map(lambda pair: HashRange(*pair))


BOUNDS = st.integers(0, HASH_END) | st.sampled_from([0, 1, HASH_END - 1, HASH_END])
RANGES = ranges_of(BOUNDS)
FEW = ranges_of(st.integers(0, len(SMALL)))


def hashes_of(*ranges: HashRange) -> set[int]:
    return {hash_ for each in ranges for hash_ in SMALL if hash_ in each}


@given(one=FEW, other=FEW)
def test_ranges_meet_as_sets_do(one: HashRange, other: HashRange) -> None:
    mine, theirs = hashes_of(one), hashes_of(other)
    assert one.width == len(mine)
    assert one.is_empty is (not mine)
    assert one.covers(other) is (theirs <= mine)
    assert one.overlaps(other) is bool(mine & theirs)
    assert hashes_of(one.intersect(other)) == mine & theirs
    assert hashes_of(*one.without(other)) == mine - theirs


@given(one=RANGES, other=RANGES)
def test_what_is_taken_away_and_what_is_left_make_the_whole(
    one: HashRange, other: HashRange
) -> None:
    pieces = [*one.without(other), one.intersect(other)]
    assert sum(piece.width for piece in pieces) == one.width
    assert all(one.covers(piece) for piece in pieces)
    assert not any(left.is_empty or left.overlaps(other) for left in one.without(other))


@given(one=RANGES, other=RANGES)
def test_an_intersection_does_not_ask_for_an_order(one: HashRange, other: HashRange) -> None:
    assert one.intersect(other).width == other.intersect(one).width
    assert one.overlaps(other) is other.overlaps(one) is not one.intersect(other).is_empty


@given(whole=RANGES, count=st.integers(1, 50))
def test_a_cut_covers_each_hash_once_and_evenly(whole: HashRange, count: int) -> None:
    pieces = whole.cut(count)
    assert len(pieces) == count
    assert (pieces[0].first, pieces[-1].end) == (whole.first, whole.end)
    assert all(one.end == other.first for one, other in pairwise(pieces))
    widths = [piece.width for piece in pieces]
    assert max(widths) - min(widths) <= 1


@given(whole=RANGES, place=BOUNDS)
def test_a_range_is_split_at_any_hash_of_it_and_nowhere_else(whole: HashRange, place: int) -> None:
    if whole.first <= place <= whole.end:
        below, above = whole.split_at(place)
        assert (below.first, below.end, above.end) == (whole.first, above.first, whole.end)
    else:
        with pytest.raises(ValueError, match="no range of hashes"):
            whole.split_at(place)


@given(
    hashes=st.lists(st.integers(0, HASH_END - 1) | st.sampled_from([0, 5, HASH_END - 1])),
    within=RANGES,
)
def test_the_rows_of_a_range_are_those_whose_hash_is_in_it(
    hashes: list[int], within: HashRange
) -> None:
    stored = np.array(sorted(hashes), dtype=np.uint64)
    start, stop = within.rows_of(stored)
    assert 0 <= start <= stop <= len(stored)
    assert stored[start:stop].tolist() == [h for h in sorted(hashes) if h in within]


@given(first=st.integers(0, HASH_END - 1), width=st.integers(0, HASH_END))
def test_two_hashes_span_both_and_all_between(first: int, width: int) -> None:
    last = min(HASH_END - 1, first + width)
    span = HashRange.spanning(first, last)
    assert first in span
    assert last in span
    assert span.last == last
    assert span.width == last - first + 1


@given(each=RANGES)
def test_a_range_survives_json_and_pickle(each: HashRange) -> None:
    assert HashRange.from_json(json.loads(json.dumps(each.to_json()))) == each
    assert pickle.loads(pickle.dumps(each)) == each


def test_the_whole_range_holds_every_hash() -> None:
    assert HashRange(0, 2**64) == ALL_HASHES
    assert ALL_HASHES.to_json() == ["0000000000000000", "10000000000000000"]
    assert repr(ALL_HASHES) == "[0000000000000000, 10000000000000000)"


@pytest.mark.parametrize(
    ("first", "end"),
    [
        pytest.param(-1, 5, id="one that begins before all hashes"),
        pytest.param(0, HASH_END + 1, id="one that ends behind all hashes"),
        pytest.param(6, 5, id="one that ends before it begins"),
    ],
)
def test_a_range_that_cannot_be_is_never_made(first: int, end: int) -> None:
    with pytest.raises(ValueError, match=f"no range of hashes goes from {first} to {end}"):
        HashRange(first, end)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(["0", 5], id="a number"),
        pytest.param(["0", "f" * 18], id="too many digits"),
        pytest.param(["0", "x"], id="no digits"),
        pytest.param(["5"], id="one bound"),
        pytest.param(["0", "1", "2"], id="three bounds"),
        pytest.param(["2", "1"], id="an end before the first"),
    ],
)
def test_a_record_that_is_no_range_is_refused(record: list[object]) -> None:
    with pytest.raises(ValueError, match=r"hashes|unpack|invalid literal"):
        HashRange.from_json(record)
