"""Bugs in the expiry of rows: what it deletes, when, and how often."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.table import row_ttl
from spark_upsert.table.retention import expiry
from spark_upsert.table.row_ttl import RowTtl
from spark_upsert.table.write.guards import UnchangedRowsGuard
from tests.laws import test_row_ttl as laws
from tests.planted.bug import Patch, bug, wrapped


def test_p1_old_rows_go_once() -> None:
    laws.test_rows_that_are_too_old_go_once_and_no_others()


def test_p1_rows_age_from_their_commits() -> None:
    laws.test_by_the_time_of_commits_rows_go_that_were_not_written_since()


def test_p1_fresh_rows_stay() -> None:
    laws.test_a_row_that_is_refreshed_meanwhile_stays()


def test_p2_an_expiry_is_repeated() -> None:
    laws.test_what_expired_follows_from_the_log_alone()


@bug("an expiry is put behind rows that came since it looked", test_p1_fresh_rows_stay)
def _() -> Patch:
    return patch.object(UnchangedRowsGuard, "__call__", lambda *_: None)


@bug("an expiry deletes what it saw first, without another look", test_p1_fresh_rows_stay)
def _() -> Patch:
    def all_of(original: Any, self: RowTtl, rows: pa.RecordBatch, cutoff_ms: int) -> pa.RecordBatch:
        return rows

    return wrapped(RowTtl, "expired", all_of)


@bug("an expiry goes by a cutoff that is a second too late", test_p1_old_rows_go_once)
def _() -> Patch:
    def later(original: Any, self: RowTtl, rows: pa.RecordBatch, cutoff_ms: int) -> pa.RecordBatch:
        expired: pa.RecordBatch = original(self, rows, cutoff_ms + 1_000)
        return expired

    return wrapped(RowTtl, "expired", later)


@bug("the epoch of an expiry does not record its cutoff", test_p2_an_expiry_is_repeated)
def _() -> Patch:
    def unnamed(original: Any, cutoff_ms: int) -> Any:
        return None

    return wrapped(row_ttl, "_transaction", unnamed)


@bug("by commits, rows go that were written since", test_p1_rows_age_from_their_commits)
def _() -> Patch:
    return patch.object(row_ttl, "_drop_written", lambda _, keys, *given: keys)


@bug("no version is kept for the ages of rows", test_p1_rows_age_from_their_commits)
def _() -> Patch:
    return patch.object(expiry, "ages_ms", lambda _: None)
