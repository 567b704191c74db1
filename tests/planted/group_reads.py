"""Bugs in reads of all tables of a group at one batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.streams.inputs.group import GroupInputs
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner import formats
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.log.manifest import Commit, Manifest
from tests.planted.bug import Patch, applied_by, bug, wrapped
from tests.promises import test_routed_read_promises as routed_read_promises


@bug(
    "a consistent batch reads the newest version of each table",
    routed_read_promises.test_p3_a_consistent_read_is_that_of_one_batch_in_all_tables,
)
def _() -> Patch:
    return wrapped(formats, "at_batch", lambda original, options, table, pin: options)


@bug(
    "a limit cuts what a consistent stream takes within a batch",
    routed_read_promises.test_p3_a_consistent_stream_with_a_limit_ends_behind_whole_batches,
)
def _() -> Patch:
    return patch.object(
        Stream, "_limit_batches", lambda self, standing, seen, limits: (seen, limits)
    )


@bug(
    "the log does not remember when rows changed last",
    routed_read_promises.test_p3_a_table_at_rest_is_read_however_its_past_is_given_up,
)
def _() -> Patch:
    def forgetful(original: Any, before: Any, commit: Commit) -> Manifest:
        return replace(original(before, commit), changed=commit.version)

    return applied_by(forgetful)


@bug(
    "the rows of the newest version stand for those of an expired one",
    routed_read_promises.test_p3_a_table_at_rest_is_read_however_its_past_is_given_up,
)
def _() -> Patch:
    def any_row(original: Any, before: Any, commit: Commit) -> Manifest:
        return replace(original(before, commit), changed=0)

    return applied_by(any_row)


@bug(
    "a consistent stream reads on behind the whole batch",
    routed_read_promises.test_p3_a_consistent_read_is_that_of_one_batch_in_all_tables,
)
def _() -> Patch:
    def unbounded(original: Any, self: TableInput, position: Any, head: Any = None) -> Any:
        return original(self, position)

    return wrapped(TableInput, "backlog", unbounded)


@bug(
    "a consistent stream takes tables that have moved for tables at rest",
    routed_read_promises.test_p3_a_consistent_read_is_that_of_one_batch_in_all_tables,
)
def _() -> Patch:
    def at_rest(original: Any, self: Any, name: str, pin: Any) -> bool:
        return name in self._pins

    return wrapped(GroupInputs, "_is_unchanged", at_rest)
