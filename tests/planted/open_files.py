"""Bugs in which files a process opens, and which it keeps open: replaced runs, for hours."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.core.lru import LruMap
from spark_upsert.errors import CorruptionError
from spark_upsert.store import LocalStore, local
from spark_upsert.table.run.file import RunCache
from tests.planted.bug import Patch, bug
from tests.unit import test_run as runs


def test_p7_runs_that_nobody_asks_for_are_closed() -> None:
    runs.test_beyond_some_runs_those_are_closed_that_nobody_asks_for()


def test_p7_a_run_that_is_asked_for_stays_open() -> None:
    runs.test_few_runs_stay_open_however_long_nobody_asks_for_them()


@bug("a run stays open for as long as its process", test_p7_runs_that_nobody_asks_for_are_closed)
def _() -> Patch:
    return patch.object(LruMap, "_has_rested", lambda self: False)


@bug("each run is closed for the next one", test_p7_a_run_that_is_asked_for_stays_open)
def _() -> Patch:
    return patch.object(LruMap, "_is_over", lambda self: len(self) > 1)


def test_p2_what_is_written_into_a_run_is_not_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs.test_what_is_written_into_a_run_that_was_read_is_damage(runs._in_place, Path(folder))


@bug("a run of the right length is as it was", test_p2_what_is_written_into_a_run_is_not_read)
def _() -> Patch:
    def by_length(self: RunCache, known: Any, seen: Any) -> bool:
        return seen is None or seen.length == known.run.file.bytes

    return patch.object(RunCache, "_is_as_verified", by_length)


def test_p7_a_device_is_not_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").symlink_to("/dev/zero")
        with pytest.raises(CorruptionError, match="a link to a device"):
            LocalStore(folder).read("a")


@bug("what is no regular file is read", test_p7_a_device_is_not_read)
def _() -> Patch:
    return patch(f"{local.__name__}.stat.S_ISREG", lambda mode: True)
