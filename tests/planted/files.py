"""Bugs in inputs that are files of others."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.errors import CorruptionError
from spark_upsert.store import LocalStore, regular
from spark_upsert.streams.inputs.files import input as file_input
from spark_upsert.streams.inputs.files.position import Delivered
from spark_upsert.streams.planner import exact
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_file_promises as file_promises


@bug(
    "a new process takes what it finds behind the window for delivered",
    file_promises.test_p5_a_file_that_came_late_is_not_passed_over_in_silence,
)
def _() -> Patch:
    return patch.object(Delivered, "require_proven", lambda self, folder: None)


@bug(
    "files behind the window are forgotten",
    file_promises.test_p5_a_running_query_reads_late_files_and_each_once,
)
def _() -> Patch:
    def forget(original: Any, self: Any, files: Any, listed: Any) -> Any:
        return replace(original(self, files, listed), behind={})

    return wrapped(Delivered, "plus", forget)


@bug(
    "a replaced file is a new one",
    file_promises.test_p5_a_file_that_is_replaced_is_not_read_in_silence,
)
def _() -> Patch:
    def mix(original: Any, self: Any, listed: Any) -> Any:
        fresh, replaced = original(self, listed)
        return [*fresh, *replaced], []

    return wrapped(Delivered, "pending", mix)


@bug(
    "a file is read as it is, not as it was planned",
    file_promises.test_p5_a_file_that_is_written_to_behind_the_plan_is_not_read_in_silence,
)
def _() -> Patch:
    return patch.object(file_input._Files, "require_same", lambda self, file: None)


@bug(
    "a file that came late is taken for the one that is begun",
    file_promises.test_p4_a_file_that_is_begun_is_finished_first_whatever_comes,
)
def _() -> Patch:
    def forget(original: Any, *args: Any) -> Any:
        with patch.object(exact.OrderProgress, "begun", lambda self, name: None):
            return original(*args)

    return wrapped(exact.ExactOrder, "_front", forget)


def test_p7_a_device_is_not_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").symlink_to("/dev/zero")
        with pytest.raises(CorruptionError, match="a link to a device"):
            LocalStore(folder).read("a")


@bug("what is no regular file is read", test_p7_a_device_is_not_read)
def _() -> Patch:
    return patch(f"{regular.__name__}.stat.S_ISREG", lambda mode: True)
