"""Bugs in runs that stay far away: what is fetched, where it is looked for, what is believed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from spark_upsert.errors import StorageError
from spark_upsert.table.run.format import Blocks
from spark_upsert.table.run.remote import RemoteBytes, RemoteHashSearch, RemoteRun
from tests.laws import test_far_runs as laws
from tests.planted.bug import Patch, bug


def test_p1_a_far_search_finds_what_is_there() -> None:
    laws.test_a_search_finds_what_numpy_finds("crowded")


def test_p1_rows_far_away_are_those_of_a_copy() -> None:
    with pytest.MonkeyPatch.context() as patched:
        laws.stay_far(patched)
        laws.test_rows_by_key_are_those_of_a_copy(["k"])


def test_p5_damage_far_away_is_told() -> None:
    with pytest.MonkeyPatch.context() as patched:
        laws.stay_far(patched)
        laws.test_damage_far_away_is_found_and_told_and_not_remembered()


def test_p6_a_reader_far_away_goes_on_behind_faults() -> None:
    with pytest.MonkeyPatch.context() as patched:
        laws.stay_far(patched)
        laws.test_a_reader_far_away_sees_what_others_do_through_faults_and_restarts(0)


def test_p1_steps_far_away_are_those_of_a_copy() -> None:
    with pytest.MonkeyPatch.context() as patched:
        laws.stay_far(patched)
        laws.test_reads_writes_and_merges_are_those_of_a_copy(1)


@bug(
    "hashes with prefixes are searched before they are fetched",
    test_p1_steps_far_away_are_those_of_a_copy,
)
def _() -> Patch:
    return patch.object(RemoteRun, "load_hashes", lambda self: None)


@bug("a far search believes its first window", test_p1_a_far_search_finds_what_is_there)
def _() -> Patch:
    def first(self: RemoteHashSearch, probes: Any) -> Any:
        count = np.full(len(probes), len(self._hashes))
        first, last = (np.full(len(probes), end) for end in self._ends)
        low, high = self._windows(probes, np.zeros_like(count), count, first, last, 1)
        self._verify(low, high)
        return self._bisected(probes, low, high)

    return patch.object(RemoteHashSearch, "insertion_points", first)


@bug(
    "of neighbours far away the last one is not fetched", test_p1_rows_far_away_are_those_of_a_copy
)
def _() -> Patch:
    original = RemoteBytes.fetch_body

    def fetch(self: RemoteBytes, blocks: Any) -> None:
        original(self, blocks[: max(1, len(blocks) - 1)])
        self._is_here[blocks] = True

    return patch.object(RemoteBytes, "fetch_body", fetch)


@bug("blocks far away are believed", test_p5_damage_far_away_is_told)
def _() -> Patch:
    original = Blocks.verify

    def verify(self: Blocks, blocks: Any) -> Any:
        if self._fetch is None:
            return original(self, blocks)
        self._fetch(np.unique(blocks))
        return None

    return patch.object(Blocks, "verify", verify)


@bug(
    "blocks whose fetch has failed count as fetched",
    test_p6_a_reader_far_away_goes_on_behind_faults,
)
def _() -> Patch:
    original = RemoteBytes.fetch_body

    def fetch(self: RemoteBytes, blocks: Any) -> None:
        try:
            original(self, blocks)
        except StorageError:
            self._is_here[blocks] = True
            raise

    return patch.object(RemoteBytes, "fetch_body", fetch)
