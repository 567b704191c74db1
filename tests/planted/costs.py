"""Bugs that make a machine fetch more than its share, or keep more than its bound."""

from __future__ import annotations

import atexit
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.store.cache import LocalCopies
from spark_upsert.table.run.remote import Access, RemoteRunCache
from spark_upsert.table.write import write_set
from tests.laws import test_local_copies as copies
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_cost_promises as costs
from tests.support.counted_s3 import counted_s3


@cache
def cluster() -> costs.Cluster:
    """Make the tables of the promises once."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return costs.Cluster(stack.enter_context(counted_s3(Path(folder) / "s3")))


def test_p7_a_change_fetches_its_share() -> None:
    for action in costs.ACTIONS.values():
        costs.test_p7_a_cold_machine_fetches_what_the_change_needs(cluster(), action)


def test_p7_a_commit_fetches_nothing_of_disjoint_tasks() -> None:
    costs.test_p7_a_commit_reads_hashes_of_overlapping_tasks_only(cluster(), "by hash", 0.0)


def test_p7_a_column_costs_a_column() -> None:
    costs.test_p7_a_read_of_one_column_fetches_one_column(cluster())


def test_p7_copies_are_bounded() -> None:
    with tempfile.TemporaryDirectory() as folder:
        costs.test_p7_local_copies_keep_within_their_bound(cluster(), Path(folder))


def test_p6_damaged_copies_are_fetched_again() -> None:
    for seed in range(8):
        with (
            tempfile.TemporaryDirectory() as folder,
            pytest.MonkeyPatch.context() as patched,
            counted_s3(Path(folder) / "s3") as gateway,
        ):
            copies.test_readers_find_their_rows_whatever_happens_to_the_copies(
                gateway, seed, patched
            )


@bug("a step copies each run that it opens", test_p7_a_change_fetches_its_share)
def _() -> Patch:
    return patch.object(RemoteRunCache, "_may_stay_remote", lambda *_: False)


@bug("a look-up opens every run between its keys", test_p7_a_change_fetches_its_share)
def _() -> Patch:
    def everywhere(original: Any, self: Access, hash_range: Any) -> int:
        return max(1, original(self, hash_range)) * 1_000

    return wrapped(Access, "count_probes", everywhere)


@bug(
    "a commit compares all staged rows of tasks with hash ranges of their own",
    test_p7_a_commit_fetches_nothing_of_disjoint_tasks,
)
def _() -> Patch:
    def everything(ranges: Any, _: Any) -> Any:
        return [(ALL_HASHES, range(len(ranges)))]

    return patch.object(write_set, "overlaps", everything)


@bug("local copies are never removed", test_p7_copies_are_bounded)
def _() -> Patch:
    return together(
        patch.object(LocalCopies, "reserve", lambda *_: True),
        patch.object(LocalCopies, "_evict", lambda *_, **__: None),
    )


@bug("a damaged copy is not forgotten", test_p6_damaged_copies_are_fetched_again)
def _() -> Patch:
    return patch.object(LocalCopies, "forget", lambda *_: None)
