"""Aggregations that end at a barrier: a row for each group of the rows since the last one.

Behind a barrier nothing is left, so that a key of the rows behind it gives another row: answers are
those of a set of splits, and never mix two. A table that sums can add them up across barriers.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from spark_upsert.errors import MemoryLimitError, about
from spark_upsert.plan.nodes import Group
from spark_upsert.task.operators.grouping import GroupComputation

MEMORY_BYTES_MAX = 256 << 20
"""Bytes that the groups of one barrier may take, if the plan does not say."""

_FEW_ROWS = 1 << 18
"""Rows that wait before they are folded into the groups: a fold costs some fixed time."""

_FEW_BYTES = 64 << 20
"""Bytes that do not wait, however few rows they are."""

_OPEN_ROWS = 1 << 10
"""Rows of small batches that wait before groups are looked for in clustered rows."""


def aggregation(node: Group, schema: pa.Schema) -> HashAggregation | StreamingAggregation:
    """Return the operator of a node.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the incoming rows.

    Raises
    ------
    PlanError
        A column is missing, or is of a type that cannot be grouped by or aggregated so.
    """
    with about("node", node.id):
        grouping = GroupComputation(schema, node.keys, node.aggregates)
    # Of rows without a key there is one group, and nothing could be given before the barrier.
    if node.is_clustered and node.keys:
        return StreamingAggregation(node, grouping)
    return HashAggregation(node, grouping)


class _Waiting:
    """Rows that wait to be grouped, and how many came before them."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._before = 0
        self.rows = 0
        self.nbytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes

    def take(self) -> tuple[pa.RecordBatch, int]:
        """Return the rows in one batch, and how many came before them; they wait no more."""
        taken = pa.concat_batches(self._batches), self._before
        self._before += self.rows
        self._batches, self.rows, self.nbytes = [], 0, 0
        return taken


class HashAggregation:
    """Groups of rows in any order, all held until the barrier.

    Groups come out in the order in which they first appeared. Without keys there is one row for
    each barrier, with or without rows before it, and one more at the end of all input: that of the
    rows behind the last barrier, of none as a rule.

    Rows wait until they are as many as the groups that are known, so that no group is folded much
    more often than a row comes. The held groups have a bound in bytes; more is an error and does
    not spill.
    """

    def __init__(self, node: Group, grouping: GroupComputation) -> None:
        self._node = node
        self._grouping = grouping
        self.schema = grouping.schema
        self._memory_bytes_max = (
            MEMORY_BYTES_MAX if node.memory_bytes_max is None else node.memory_bytes_max
        )
        self._groups: pa.Table | None = None
        self._waiting = _Waiting()
        self._given: deque[pa.RecordBatch] | None = None
        self._is_ended = False
        self._begin()

    def needs_input(self) -> bool:
        return self._given is None and not self._is_ended

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._waiting.add(self._grouping.needed(batch))
        if self._is_time_to_fold():
            self._fold()
            with about("node", self._node.id):
                self._require_memory()

    def output(self) -> pa.RecordBatch | None:
        return self._given.popleft() if self._given else None

    def start_drain(self) -> bool:
        self._give()
        return bool(self._given)

    def is_drained(self) -> bool:
        if self._given:
            return False
        self._given = None
        return True

    def no_more_input(self) -> None:
        self._is_ended = True
        self._give()

    def is_finished(self) -> bool:
        return self._is_ended and not self._given

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._groups, self._waiting, self._given = None, _Waiting(), None

    def _begin(self) -> None:
        self._groups = None if self._node.keys else self._grouping.nothing()
        self._group_bytes = 0

    def _is_time_to_fold(self) -> bool:
        rows, size = self._waiting.rows, self._waiting.nbytes
        known = 0 if self._groups is None else self._groups.num_rows
        return (
            rows >= max(known, _FEW_ROWS)
            or size >= _FEW_BYTES
            or size + self._group_bytes > self._memory_bytes_max
        )

    def _fold(self) -> None:
        """Fold what waits into the groups."""
        if self._waiting.rows:
            held = [] if self._groups is None else [self._groups]
            states = self._grouping.states(*self._waiting.take())
            groups = self._grouping.fold(pa.concat_tables([*held, states]))
            self._groups, self._group_bytes = groups, groups.nbytes

    def _give(self) -> None:
        """Make answers of the groups, and forget them."""
        self._fold()
        groups, self._given = self._groups, None
        self._begin()
        if groups is not None:
            with about("node", self._node.id):
                answers = self._grouping.answers(groups)
            rows = self._node.batch_rows
            self._given = deque(
                answers.slice(begin, rows) for begin in range(0, answers.num_rows, rows)
            )

    def _require_memory(self) -> None:
        needed = self._group_bytes
        if needed > self._memory_bytes_max:
            assert self._groups is not None
            raise MemoryLimitError(
                f"{self._groups.num_rows} groups have {needed} bytes, but only "
                f"{self._memory_bytes_max} are allowed, and groups are not spilled.",
                hint="raise the node's 'memory_bytes_max', ask for barriers more often, or "
                "partition its input by its keys among more drivers.",
                needed=needed,
                limit=self._memory_bytes_max,
            )


class StreamingAggregation:
    """Groups of rows that come clustered: rows of equal keys one after the other.

    The group that is open is held, and as many that are complete as make a batch. Whether the rows
    are clustered is not checked: a key that comes back has another row, as it has behind a barrier.
    """

    def __init__(self, node: Group, grouping: GroupComputation) -> None:
        self._node = node
        self._grouping = grouping
        self.schema = grouping.schema
        self._open: pa.Table | None = None
        self._closed: list[pa.Table] = []
        self._closed_rows = 0
        self._waiting = _Waiting()
        self._is_draining = False
        self._is_ended = False

    def needs_input(self) -> bool:
        return (
            self._closed_rows < self._node.batch_rows
            and not self._is_draining
            and not self._is_ended
        )

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._waiting.add(self._grouping.needed(batch))
        if self._waiting.rows >= min(_OPEN_ROWS, self._node.batch_rows):
            self._fold()

    def output(self) -> pa.RecordBatch | None:
        wanted = 1 if self._is_draining or self._is_ended else self._node.batch_rows
        if self._closed_rows < wanted:
            return None
        groups = pa.concat_tables(self._closed)
        self._closed, self._closed_rows = [], 0
        self._close(groups.slice(self._node.batch_rows))
        with about("node", self._node.id):
            return self._grouping.answers(groups.slice(0, self._node.batch_rows))

    def start_drain(self) -> bool:
        self._close_last()
        self._is_draining = self._closed_rows > 0
        return self._is_draining

    def is_drained(self) -> bool:
        self._is_draining = self._closed_rows > 0
        return not self._is_draining

    def no_more_input(self) -> None:
        self._is_ended = True
        self._close_last()

    def is_finished(self) -> bool:
        return self._is_ended and not self._closed_rows

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._open, self._closed, self._closed_rows = None, [], 0
        self._waiting = _Waiting()

    def _fold(self) -> None:
        """Look for groups in the rows that wait; the last one stays open."""
        if self._waiting.rows:
            held = [] if self._open is None else [self._open]
            states = self._grouping.states(*self._waiting.take())
            groups = self._grouping.fold_neighbours(pa.concat_tables([*held, states]))
            self._open = groups.slice(groups.num_rows - 1)
            self._close(groups.slice(0, groups.num_rows - 1))

    def _close(self, groups: pa.Table) -> None:
        if groups.num_rows:
            self._closed.append(groups)
            self._closed_rows += groups.num_rows

    def _close_last(self) -> None:
        self._fold()
        if self._open is not None:
            self._close(self._open)
            self._open = None
