"""Bugs in reads of all tables of a group at one batch."""

from __future__ import annotations

from typing import Any

from spark_upsert.source import kinds
from spark_upsert.source.group_inputs import GroupInputs
from spark_upsert.source.table_input import TableInput
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_routed_read_promises as routed_read_promises


@bug(
    "a consistent batch reads the newest version of each table",
    routed_read_promises.test_p3_a_consistent_read_is_that_of_one_batch_in_all_tables,
)
def _() -> Patch:
    return wrapped(kinds, "at_batch", lambda original, options, table, pin: options)


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

    return wrapped(GroupInputs, "_has", at_rest)
