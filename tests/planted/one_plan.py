"""Bugs by which a task and a view mean different rows by one plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.plan.join_keys import joinable
from spark_upsert.plan.nodes import JoinType
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.task import join_output
from spark_upsert.task.aggregation import GroupComputation
from spark_upsert.task.join_output import Shape
from tests.laws import test_one_plan as laws
from tests.planted.bug import Patch, bug, wrapped


def test_p2_a_task_gives_the_rows_of_a_view() -> None:
    for seed in range(20):
        laws.play(seed)


def test_p2_a_task_groups_as_a_kept_view() -> None:
    for seed in range(20):
        laws.play_groups(seed)


ROWS = test_p2_a_task_gives_the_rows_of_a_view


@bug("a key that only the right side of a full join has is NULL in a task", ROWS)
def _() -> Patch:
    def as_left(original: Any, self: Shape, rows: pa.RecordBatch) -> pa.RecordBatch:
        return original(replace(self, kind=JoinType.LEFT), rows)

    return wrapped(Shape, "project", as_left)


@bug("NULL joins NULL in a task, and not in a view", ROWS)
def _() -> Patch:
    return patch.object(join_output, "joinable", lambda columns: None)


@bug("a split of a table is read whole by a task", ROWS)
def _() -> Patch:
    def whole(original: Any, self: Snapshot, columns: Any = None, **_: Any) -> Any:
        return original(self, columns)

    return wrapped(Snapshot, "read", whole)


@bug("a task keeps NULLs out of groups", test_p2_a_task_groups_as_a_kept_view)
def _() -> Patch:
    def keyed(original: Any, self: GroupComputation, batch: pa.RecordBatch, first: int) -> Any:
        columns = batch.select(self.schema.names[: len(self._keys)]).columns
        can = joinable(columns)
        return original(self, batch if can is None else batch.filter(pa.array(can)), first)

    return wrapped(GroupComputation, "states", keyed)
