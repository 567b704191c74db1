"""Bugs in how bytes become durable, and a feedback loop that gives up too early."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from spark_upsert import feedback as operator
from spark_upsert.store import local
from spark_upsert.table.log.log import Log
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_durability_promises as durability_promises
from tests.promises import test_promises as promises


@bug(
    "a file is not synced before it is published",
    durability_promises.test_p6_what_was_reported_survives_a_power_loss,
)
def _() -> Patch:
    def leave(original: Any, self: Any, kind: Any, error: Any, trace: Any) -> None:
        self._file.close()
        if error is not None:
            self._target.unlink(missing_ok=True)
        elif self._sync_parent:
            local.sync_folder(self._target.parent)

    return wrapped(local.LocalSink, "__exit__", leave)


@bug(
    "a folder is not synced behind a commit",
    durability_promises.test_p6_what_was_reported_survives_a_power_loss,
)
def _() -> Patch:
    return patch.object(local, "sync_folder", lambda folder: None)


@bug(
    "a version that another left half-way is not synced",
    durability_promises.test_p6_what_a_retry_or_a_reader_finds_survives_a_power_loss,
)
def _() -> Patch:
    return patch.object(Log, "_make_durable", lambda self, version: None)


@bug(
    "a folder that exists is taken to be durable",
    durability_promises.test_p6_folders_of_a_killed_process_are_made_durable_by_the_next,
)
def _() -> Patch:
    def make(original: Any, self: Any, folder: Any) -> None:
        if not folder.is_dir():
            make(original, self, folder.parent)
            folder.mkdir(exist_ok=True)
            local.sync_folder(folder.parent)

    def sync(original: Any, self: Any, folder: Any) -> None:
        """Nothing: it exists."""

    store = local.LocalStore
    return together(wrapped(store, "_make_folder", make), wrapped(store, "_sync_once", sync))


@bug(
    "a folder is known to be durable by its path alone",
    durability_promises.test_p6_folders_that_another_process_made_again_are_made_durable,
)
def _() -> Patch:
    def is_durable(original: Any, self: Any, folder: Any, number: Any) -> bool:
        return folder in self._numbers

    return wrapped(local._Folders, "is_durable", is_durable)


@bug(
    "the rows of a timestamp are given up before its commit",
    promises.test_p1_a_source_that_retries_after_an_error_loses_nothing,
)
def _() -> Patch:
    def emit(original: Any, self: Any, ts: int) -> Any:
        try:
            return original(self, ts)
        except Exception:
            self._close_stash(ts)
            self._emitting = None
            raise

    return wrapped(operator.FeedbackUpsert, "_emit", emit)
