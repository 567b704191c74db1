"""Bugs in the look-up of rows by their keys, which joins of tasks, views and indexes ask alike."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.core.key_hash import HashRange
from spark_upsert.table.run import file
from spark_upsert.table.run.remote import Access
from spark_upsert.table.state import snapshot
from spark_upsert.table.state.reduce import RowsByKey
from spark_upsert.table.state.snapshot import Snapshot
from tests.laws import test_look_ups as laws
from tests.planted.bug import Patch, bug, wrapped
from tests.unit import test_search


def test_p2_rows_are_found_by_their_keys() -> None:
    for kind in ("arrival", "prefix", "ordered sums"):
        laws.test_rows_by_key_are_those_of_a_dictionary(kind, None)


def test_p2_a_row_is_found_once() -> None:
    laws.test_rows_come_in_the_order_of_their_hashes_with_all_columns()


def test_p2_a_search_learns_nothing_wrong(seed: int) -> None:
    for space in test_search.SPACES:
        test_search.test_a_search_finds_the_same_places_whatever_it_learned(seed, space)
        test_search.test_no_hash_that_is_there_is_left_out(seed, space)


FOUND = test_p2_rows_are_found_by_their_keys


def with_what_is_gone() -> Patch:
    """Take tombstones and errors for rows, where keys are looked up and nowhere else."""

    def found(original: Any, self: Snapshot, *asked: Any) -> RowsByKey:
        def all_live(original: Any, rows: Any, chosen: Any, *given: Any) -> Any:
            return np.ones(len(chosen), dtype=np.bool_)

        with wrapped(snapshot, "are_rows", all_live):
            rows: RowsByKey = original(self, *asked)
        return rows

    return wrapped(Snapshot, "look_up", found)


@bug("a look-up passes over a run with its key", FOUND)
def _() -> Patch:
    def one_less(original: Any, self: Access, hash_range: HashRange) -> int:
        return max(0, original(self, hash_range) - 1)

    return wrapped(Access, "count_probes", one_less)


@bug("a tombstone is found as a row by its key", FOUND)
def _() -> Patch:
    return with_what_is_gone()


@bug("a key that is asked for twice is sought twice, and folded with itself", FOUND)
def _() -> Patch:
    def all_different(original: Any, keys: Any) -> Any:
        return [np.arange(len(keys[0]))]

    return wrapped(snapshot, "codes", all_different)


@bug(
    "rows that are looked up stand beside the keys as they are sorted", test_p2_a_row_is_found_once
)
def _() -> Patch:
    def as_sorted(original: Any, self: Snapshot, *asked: Any) -> RowsByKey:
        rows, at = original(self, *asked)
        return RowsByKey(rows, np.sort(at))

    return wrapped(Snapshot, "look_up", as_sorted)


@bug(
    "a filter leaves out what a run holds",
    test_p2_a_search_learns_nothing_wrong,
)
def _() -> Patch:
    def passing(original: Any, *args: Any) -> Any:
        return original(*args)[1:]

    return wrapped(file._Filter, "passing", passing)


@bug(
    "a search by a sample takes the end of a stretch for its beginning",
    test_p2_a_search_learns_nothing_wrong,
)
def _() -> Patch:
    def within(self: Any, sample: Any, probes: Any) -> Any:
        return np.maximum(np.searchsorted(sample, probes) - 1, 0) * file.STRIDE

    return patch.object(file.HashSearch, "_within", within)
