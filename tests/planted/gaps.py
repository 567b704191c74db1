"""Bugs where an object of a log is lost, or where a number is freed under a paused process."""

from __future__ import annotations

from bisect import bisect_right
from unittest.mock import patch

import pytest

from spark_upsert.delta.log import DeltaLog
from spark_upsert.delta.upkeep import Upkeep
from spark_upsert.envelopes import write_plan
from spark_upsert.table import schema_changes
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.log.storage import StoredLog
from tests.planted.bug import Patch, bug, together
from tests.promises import test_gap_promises as promises


@bug(
    "the first missing version is the end of the log",
    promises.test_p1_a_process_that_begins_names_a_lost_version,
)
def _() -> Patch:
    return patch.object(StoredLog, "newest_listed", lambda self, manifest: 0)


@bug(
    "a version is put into a gap",
    promises.test_p1_nothing_is_written_into_the_gap_of_a_lost_version,
)
def _() -> Patch:
    return patch.object(Log, "_has_later", lambda self, head: False)


@bug(
    "a version that was lost is as old as those that were cut off",
    promises.test_p2_a_time_is_not_looked_up_past_a_lost_version,
)
def _() -> Patch:
    def version_at(self: LogSnapshot, timestamp_ms: int) -> int:
        def time_ms(version: int) -> int:
            commit = self._commit(version)
            return 0 if commit is None else commit.timestamp_ms

        return bisect_right(range(self.head().upper), timestamp_ms, key=time_ms) - 1

    return patch.object(LogSnapshot, "version_at", version_at)


@bug(
    "a commit is published into a gap",
    promises.test_p1_nothing_is_published_into_the_gap_of_a_lost_commit,
)
def _() -> Patch:
    return patch.object(DeltaLog, "_has_later", lambda self: False)


@bug(
    "a publication counts in a number that a cleaning freed",
    promises.test_p1_a_publication_counts_where_readers_find_it,
)
def _() -> Patch:
    return patch.object(DeltaLog, "_is_continued", lambda self, version: True)


@bug(
    "a cleaning goes on after an object that it could not remove",
    promises.test_p1_a_cleaning_leaves_no_commit_before_one_that_it_removed,
)
def _() -> Patch:
    def remove(self: Upkeep) -> None:
        while self._waiting:
            self._store.delete(self._waiting.popleft())

    return patch.object(Upkeep, "_remove_some", remove)


def test_p2_another_commit_of_the_same_number_is_noticed() -> None:
    try:
        promises.test_p2_another_commit_of_the_same_number_is_not_the_one_that_is_remembered()
    except KeyError as error:  # The reader of the mirror removes a file that no commit added.
        pytest.fail(f"{error!r}")


@bug(
    "a mirror knows the commit that it remembers by its number",
    test_p2_another_commit_of_the_same_number_is_noticed,
)
def _() -> Patch:
    return patch.object(DeltaLog, "_is_as_seen", lambda self, version: True)


def test_p1_a_table_is_not_made_among_data_files() -> None:
    promises.test_p1_a_table_is_not_made_where_another_tool_removes_its_files("data/part-0.parquet")


@bug("a table is made among files of others", test_p1_a_table_is_not_made_among_data_files)
def _() -> Patch:
    return together(
        patch.object(schema_changes, "require_free", lambda store, **_: None),
        patch.object(write_plan, "require_free", lambda store, **_: None),
    )
