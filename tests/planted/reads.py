"""Bugs in what readers see of a version and of the changes between two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.core import key_hash
from spark_upsert.core.key_hash import HashRange
from spark_upsert.table import table_reader
from spark_upsert.table.changelog import changes
from spark_upsert.table.changelog import changes as changes_module
from spark_upsert.table.changelog import read as change_reads
from spark_upsert.table.log import snapshot
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Slice
from spark_upsert.table.log.slices import SliceList
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.run import file as run
from spark_upsert.table.state import reduce
from tests.planted.bug import Patch, applied_by, bug, wrapped
from tests.promises import test_promises as promises


@bug(
    "a time in the future is that of the newest version",
    promises.test_p2_a_read_of_a_version_that_does_not_exist_shows_no_other_one,
)
def _() -> Patch:
    return patch.object(LogSnapshot, "require_past", lambda self, timestamp_ms: None)


@bug(
    "changes that begin after the next version are none",
    promises.test_p2_a_read_of_a_version_that_does_not_exist_shows_no_other_one,
)
def _() -> Patch:
    return patch.object(snapshot, "require_bound", lambda version, head, *, name: None)


@bug(
    "changes that end before they begin are none",
    promises.test_p2_a_read_of_a_version_that_does_not_exist_shows_no_other_one,
)
def _() -> Patch:
    return patch.object(table_reader, "require_ordered", lambda lower, upper, *, name: None)


@bug(
    "a commit that overwrites leaves the old runs",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def kept(original: Any, before: Any, commit: Commit) -> Manifest:
        after: Manifest = original(before, commit)
        if commit.kind is Kind.OVERWRITE:
            return replace(after, slices=(*before.slices, *after.slices))
        return after

    return applied_by(kept)


@bug(
    "a merge leaves the runs that it replaces cut in the wrong place",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def cut(original: Any, part: Slice, gone: Any) -> list[Slice]:
        return []

    def taken(original: Any, slices: Any, gone: Any) -> Any:
        return original(SliceList.of(slices[1:]), gone)

    return wrapped(SliceList, "without", taken)


@bug("the last hash of a range is left out", promises.test_p2_however_the_hashes_are_cut)
def _() -> Patch:
    def rows_of(original: Any, self: HashRange, hashes: Any) -> tuple[int, int]:
        start, stop = original(HashRange(self.first, max(self.first, self.last)), hashes)
        return start, stop

    return wrapped(HashRange, "rows_of", rows_of)


@bug("both neighbours read the hash at their border", promises.test_p2_however_the_hashes_are_cut)
def _() -> Patch:
    def rows_of(original: Any, self: HashRange, hashes: Any) -> tuple[int, int]:
        result: tuple[int, int] = original(
            HashRange(self.first, min(self.end + 1, key_hash.HASH_END)), hashes
        )
        return result

    return wrapped(HashRange, "rows_of", rows_of)


@bug(
    "a read shows every entry of a key", promises.test_p2_folding_the_changelog_gives_every_snapshot
)
def _() -> Patch:
    return patch.object(
        reduce, "are_winners", lambda rows, epochs: np.ones(len(rows), dtype=np.bool_)
    )


@bug(
    "the changelog shows commands that had no effect",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def effective(original: Any, rows: Any, chosen: Any, *rest: Any) -> Any:
        return np.ones(len(chosen), dtype=np.bool_)

    return wrapped(reduce, "_effective", effective)


@bug(
    "what stands behind an overwrite is compared along with it",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def grouped(original: Any, epochs: Any) -> Any:
        groups: list[Any] = []
        for cut, commits in original(epochs):
            if cut is changes_module.RangeBoundary.AFTER_OVERWRITE:
                groups[-1][1].extend(commits)
            else:
                groups.append((cut, commits))
        return groups

    return wrapped(changes_module, "grouped", grouped)


@bug(
    "net changes retract the row before the last one",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def net(original: Any, found: Any, begins: Any) -> Any:
        lasts = np.roll(begins, -1)
        return replace(original(found, begins), old=found.old[lasts])

    return wrapped(changes, "_net_pairs", net)


@bug(
    "an unchanged value is shown as an update",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    return patch.object(
        change_reads, "_changed", lambda rows, old, new: np.ones(len(old), dtype=np.bool_)
    )


@bug(
    "a time-travelling read gets the version before",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def at(original: Any, self: Log, version: int) -> Manifest:
        found: Manifest = original(self, max(0, version - 1))
        return found

    return wrapped(Log, "at", at)


@bug("blocks are not verified", promises.test_p5_a_damaged_run_is_an_error_and_not_a_smaller_table)
def _() -> Patch:
    return patch.object(run.Run, "_verify", lambda self, blocks: None)


@bug(
    "every block of a run is read for a look-up",
    promises.test_p7_a_small_upsert_costs_the_same_in_a_large_table,
)
def _() -> Patch:
    def verify(original: Any, self: Any, blocks: Any) -> None:
        original(self, np.arange(len(self._blocks)))

    return wrapped(run.Run, "_verify", verify)
