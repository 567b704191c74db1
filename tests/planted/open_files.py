"""Bugs in what a process keeps open: runs that compaction has replaced, for hours."""

from __future__ import annotations

from unittest.mock import patch

from spark_upsert.state.run.file import RunCache
from tests.planted.bug import Patch, bug
from tests.unit import test_run as runs


def test_p7_runs_that_nobody_asks_for_are_closed() -> None:
    runs.test_beyond_some_runs_those_are_closed_that_nobody_asks_for()


def test_p7_a_run_that_is_asked_for_stays_open() -> None:
    runs.test_few_runs_stay_open_however_long_nobody_asks_for_them()


@bug("a run stays open for as long as its process", test_p7_runs_that_nobody_asks_for_are_closed)
def _() -> Patch:
    return patch.object(RunCache, "_has_rested", lambda self: False)


@bug("each run is closed for the next one", test_p7_a_run_that_is_asked_for_stays_open)
def _() -> Patch:
    return patch.object(RunCache, "_has_rested", lambda self: len(self._runs) > 1)
