"""Hash join: holds the complete right side until the barrier; neither side must be sorted.

A right side beyond the memory limit is an error; nothing spills.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import Positions
from spark_upsert.errors import MemoryLimitError, about
from spark_upsert.plan.join_keys import NOWHERE, KeyIndex
from spark_upsert.plan.nodes import Join
from spark_upsert.task.join_output import (
    SHOWS_RIGHT_ALONE,
    JoinOutput,
    Matches,
    Shape,
    Side,
    Widths,
)
from spark_upsert.task.operator import BatchSource, Signal

MEMORY_BYTES_MAX = 256 << 20
"""Default memory limit in bytes for the right side."""


class _BuildSide:
    """The complete right side between two barriers, indexed by key.

    A *group* is the set of rows with one key, numbered by the index.
    """

    def __init__(self, side: Side, batches: Sequence[pa.RecordBatch]) -> None:
        self.rows = pa.concat_batches(batches) if batches else side.empty_rows
        self.widths = Widths(self.rows)
        has_key = side.has_key(self.rows)
        keyed = np.arange(self.rows.num_rows) if has_key is None else np.flatnonzero(has_key)
        keys = side.keys_of(self.rows)
        if has_key is not None:
            keys = [key.filter(pa.array(has_key)) for key in keys]
        self.index = KeyIndex(keys)
        self.order = keyed[self.index.order]
        """The row for each index position."""
        self._is_matched = np.zeros(len(self.index.starts), dtype=np.bool_)

    def mark_matched(self, groups: Positions) -> None:
        """Record that left rows matched these groups."""
        self._is_matched[groups] = True

    def unmatched(self) -> Positions:
        """Return the rows without a match."""
        alone = np.ones(self.rows.num_rows, dtype=np.bool_)
        alone[self.order[np.repeat(self._is_matched, self.index.counts)]] = False
        return np.flatnonzero(alone)


class HashJoinRows:
    """A hash join, in its left side's chain.

    The output is ordered by left row, then by right row; right rows
    without a match come last, in their own order.
    """

    def __init__(self, node: Join, left: pa.Schema, right: BatchSource) -> None:
        self._node = node
        with about("node", node.id):
            self._shape = Shape.of(node, left, right.schema)
        self.schema = self._shape.schema
        self._source = right
        self._memory_bytes_max = (
            MEMORY_BYTES_MAX if node.memory_bytes_max is None else node.memory_bytes_max
        )
        self._joined: deque[JoinOutput] = deque()
        self._is_at_end = False
        self._reset()

    def _reset(self) -> None:
        """Forget everything: a barrier is over."""
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._build_side: _BuildSide | None = None
        self._left_is_over = False
        self._is_done = False
        """Whether all input was joined: `_joined` holds the remainder."""

    def needs_input(self) -> bool:
        return self._build_side is not None and not self._joined and not self._left_is_over

    def add_input(self, batch: pa.RecordBatch) -> None:
        """Look up left rows in the right side and queue the joined rows (`needs_input`)."""
        right = self._build_side
        assert right is not None, "it takes no input before the right side is built"
        groups = self._probe(right, batch)
        is_match = groups != NOWHERE
        starts, counts = np.zeros_like(groups), np.zeros_like(groups)
        starts[is_match] = right.index.starts[groups[is_match]]
        counts[is_match] = right.index.counts[groups[is_match]]
        right.mark_matched(groups[is_match])
        self._emit(Matches.of(self._node.how, starts, counts), batch, right, right.order)

    def output(self) -> pa.RecordBatch | None:
        if self._build_side is None and not self._is_done:
            self._build_side = self._build()
        while True:
            while self._joined:
                batch = self._joined[0].next(self._node.batch_rows)
                if batch is not None:
                    return self._shape.project(batch)
                self._joined.popleft()
            if not self._left_is_over or self._build_side is None:
                return None
            self._emit_unmatched_right(self._build_side)

    def start_drain(self) -> bool:
        self._left_is_over = True
        return True

    def is_drained(self) -> bool:
        if self._is_done and not self._joined:
            self._reset()
        return not self._left_is_over

    def no_more_input(self) -> None:
        self._left_is_over = self._is_at_end = True

    def is_finished(self) -> bool:
        return self._is_at_end and self._is_done and not self._joined

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._reset()
        self._joined.clear()
        self._is_done = True
        self._source.close()

    def _build(self) -> _BuildSide | None:
        """Read and index the right side; None if its input is not complete yet."""
        while True:
            item = self._source.poll()
            if item is Signal.WAIT:
                return None
            if isinstance(item, Signal):
                batches, self._batches, self._bytes = self._batches, [], 0
                return _BuildSide(self._shape.right, batches)
            self._batches.append(item)
            self._bytes += item.nbytes
            self._fail_if_over_memory_limit()

    def _fail_if_over_memory_limit(self) -> None:
        """Raise `MemoryLimitError` if the right side exceeds the node's limit: it never spills."""
        if self._bytes > self._memory_bytes_max:
            with about("node", self._node.id):
                raise MemoryLimitError(
                    f"the right side has {self._bytes} bytes or more, but only "
                    f"{self._memory_bytes_max} are allowed, and it is not spilled.",
                    hint="raise the node's 'memory_bytes_max', put the smaller side on the right, "
                    "or sort both sides and use a merge join.",
                    needed=self._bytes,
                    limit=self._memory_bytes_max,
                )

    def _probe(self, right: _BuildSide, batch: pa.RecordBatch) -> Positions:
        """Return each left row's group on the right side; `NOWHERE` without a match."""
        has_key = self._shape.left.has_key(batch)
        keys = self._shape.left.keys_of(batch)
        if has_key is None:
            return right.index.find(keys)
        groups = np.full(batch.num_rows, NOWHERE)
        groups[has_key] = right.index.find([key.filter(pa.array(has_key)) for key in keys])
        return groups

    def _emit_unmatched_right(self, right: _BuildSide) -> None:
        """Queue the right rows without a match, for joins that output them.

        Called once after the last left row; the right side is dropped.
        """
        self._build_side, self._is_done = None, True
        if self._node.how in SHOWS_RIGHT_ALONE:
            matches = Matches.unmatched_right(right.unmatched())
            self._emit(matches, self._shape.left.empty_rows, right)

    def _emit(
        self,
        matches: Matches,
        left: pa.RecordBatch,
        right: _BuildSide,
        order: Positions | None = None,
    ) -> None:
        """Queue matches for `output`; ``order`` maps their right positions to rows."""
        if len(matches.left):
            self._joined.append(
                JoinOutput(self._shape.pairs, matches, left, right.rows, order, right.widths)
            )
