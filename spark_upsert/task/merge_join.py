"""Merge join: both sides sorted by key; holds one key's right rows and one batch per side.

Order and batch bounds of the output depend on the rows only, and restart at a barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import Mask, Positions, Words
from spark_upsert.errors import DataError, MemoryLimitError, about
from spark_upsert.plan.join_keys import first_descent, ranks_of
from spark_upsert.plan.nodes import JoinType, MergeJoin
from spark_upsert.task.join_output import (
    SHOWS_LEFT_ALONE,
    SHOWS_LEFT_ONLY,
    SHOWS_RIGHT_ALONE,
    BatchCoalescer,
    JoinOutput,
    Matches,
    Shape,
    Side,
)
from spark_upsert.task.operator import BatchSource, Signal

MEMORY_BYTES_MAX = 256 << 20
"""Default memory limit in bytes for one key's right rows."""

_STEP_ROWS = 1 << 10
"""Minimum rows gathered per step from a side, or the other side's row count if larger. So one
side's small batches do not make the join scan the other side's rows repeatedly.
"""

_DROPS_RIGHT = frozenset({JoinType.INNER, JoinType.LEFT, JoinType.ANTI})
_DROPS_LEFT = frozenset({JoinType.INNER, JoinType.RIGHT})


def side_to_drop(kind: JoinType, *, left_is_over: bool, right_is_over: bool) -> str | None:
    """Return the side without use for the rest of the barrier, "left" or "right".

    Notes
    -----
    Source: Velox, ``MergeJoin.cpp``. A semi join could drop its sides as an inner join does;
    like the original, it does not.
    """
    if left_is_over and not right_is_over and kind in _DROPS_RIGHT:
        return "right"
    if right_is_over and not left_is_over and kind in _DROPS_LEFT:
        return "left"
    return None


class _SideBuffer:
    """A side's received rows, while needed: *gathered* in `rows`, or queued in batches.

    Gathered rows are one batch, ready to be joined.

    Parameters
    ----------
    emits_null_keys : bool
        Whether the join outputs this side's rows with a null in a key column. They match nothing;
        if the join does not output them, they are skipped immediately.
    """

    def __init__(self, name: str, side: Side, *, emits_null_keys: bool) -> None:
        self.side = side
        self._name = name
        self._emits_null_keys = emits_null_keys
        self.reset()

    def reset(self) -> None:
        """Drop all rows, at a barrier."""
        self.rows = self.side.empty_rows
        self.is_ended = False
        self._queued: deque[pa.RecordBatch] = deque()
        self._queued_rows = 0
        self._last: pa.RecordBatch | None = None

    @property
    def available(self) -> int:
        """Number of received rows still needed."""
        return int(self.rows.num_rows) + self._queued_rows

    @property
    def is_complete(self) -> bool:
        """Whether no rows follow the gathered ones."""
        return self.is_ended and not self._queued_rows

    @property
    def is_over(self) -> bool:
        """Whether no rows are left and no input follows."""
        return self.is_ended and not self.available

    def add(self, batch: pa.RecordBatch) -> None:
        """Queue a batch; raises `DataError` if its keys do not ascend."""
        keyed, _ = self.side.split(batch)
        if keyed.num_rows:
            self._require_order(keyed)
            self._last = keyed.slice(keyed.num_rows - 1)
        needed = batch if self._emits_null_keys else keyed
        if needed.num_rows:
            self._queued.append(needed)
            self._queued_rows += needed.num_rows

    def leading_null_key_count(self) -> int:
        """Return how many rows at the start of `rows` have a null in a key column."""
        has_key = self.side.has_key(self.rows)
        if has_key is None:
            return 0
        return int(np.argmax(has_key)) if has_key.any() else len(has_key)

    def keys(self) -> tuple[list[pa.Array], Mask | None]:
        """Return each row's key, ascending, and a mask of the rows without null keys.

        A row with a null key gets the preceding row's key. The first row must have a key without
        nulls. The mask is None if all rows have one.
        """
        keys, has_key = self.side.keys_of(self.rows), self.side.has_key(self.rows)
        if has_key is None:
            return keys, None
        row_indices = np.maximum.accumulate(np.where(has_key, np.arange(len(has_key)), 0))
        return [key.take(pa.array(row_indices)) for key in keys], has_key

    def gather(self, count: int) -> bool:
        """Append up to ``count`` queued rows to `rows`; return whether there was progress.

        More than ``count`` if `rows` is larger: it then doubles, so each row is rarely copied even
        if the batches are small.
        """
        held = self.rows.num_rows
        if not self._queued_rows or (self._queued_rows < held and not self.is_ended):
            return False
        missing_rows = max(count, held)
        taken = [self.rows] if held else []
        while self._queued and missing_rows:
            batch = self._queued.popleft()
            taken.append(batch.slice(0, missing_rows))
            if batch.num_rows > missing_rows:
                self._queued.appendleft(batch.slice(missing_rows))
            missing_rows -= taken[-1].num_rows
            self._queued_rows -= taken[-1].num_rows
        self.rows = pa.concat_batches(taken)
        return True

    def drop(self, count: int) -> None:
        """Drop the first gathered rows."""
        self.rows = self.rows.slice(count)

    def _require_order(self, keyed: pa.RecordBatch) -> None:
        """Raise `DataError` unless the keys ascend, also after the previous batch's last row."""
        rows = keyed if self._last is None else pa.concat_batches([self._last, keyed])
        keys = self.side.keys_of(rows)
        row = first_descent(keys)
        if row is not None:
            before, after = (
                ", ".join(str(key[at].as_py()) for key in keys) for at in (row - 1, row)
            )
            raise DataError(
                f"the {self._name} side must ascend by {', '.join(self.side.keys)}, but {after} "
                f"comes behind {before}.",
                hint="sort its splits by the keys, give it one split for each barrier, or use a "
                "hash join.",
                side=self._name,
            )


class MergeJoinRows:
    """A merge join, in its left side's chain.

    Left rows below the last right key have all their matches. An ended side acts as if its last key
    were above all others. The output is ordered by key, then by left row, then by right row; rows
    without a key follow those with the preceding key.
    """

    def __init__(
        self,
        node: MergeJoin,
        left: pa.Schema,
        right: BatchSource,
        drop_input: Callable[[str], None],
    ) -> None:
        self._node = node
        with about("node", node.id):
            self._shape = Shape.of(node, left, right.schema)
        self.schema = self._shape.schema
        self._source = right
        self._drop_node = drop_input
        self._memory_bytes_max = (
            MEMORY_BYTES_MAX if node.memory_bytes_max is None else node.memory_bytes_max
        )
        self._left = _SideBuffer(
            "left", self._shape.left, emits_null_keys=node.how in SHOWS_LEFT_ALONE
        )
        self._right = _SideBuffer(
            "right", self._shape.right, emits_null_keys=node.how in SHOWS_RIGHT_ALONE
        )
        self._joined: deque[JoinOutput] = deque()
        self._full = BatchCoalescer(node.batch_rows)
        self._is_at_end = False
        self._reset()

    def _reset(self) -> None:
        """Drop all rows, at a barrier."""
        self._left.reset()
        self._right.reset()
        self._joined.clear()
        self._full.clear()
        self._matched_rows = 0
        """Number of leading right rows with a match: those with the last left key."""
        self._is_draining = False
        self._was_dropped = False

    def needs_input(self) -> bool:
        return not self._left.is_ended and not self._left.available and not self._joined

    def add_input(self, batch: pa.RecordBatch) -> None:
        with about("node", self._node.id):
            self._left.add(batch)

    def output(self) -> pa.RecordBatch | None:
        while True:
            self._drop_input()
            while self._joined:
                batch = self._full.add(self._joined[0])
                if batch is not None:
                    return batch
                if not self._joined[0].rows_left:
                    self._joined.popleft()
            if not self._match() and not self._poll():
                return self._full.flush() if self._sides_are_over else None

    def start_drain(self) -> bool:
        self._left.is_ended = self._is_draining = True
        return True

    def is_drained(self) -> bool:
        if self._is_draining and self._is_over:
            self._reset()
        return not self._is_draining

    def no_more_input(self) -> None:
        self._left.is_ended = self._is_at_end = True

    def is_finished(self) -> bool:
        return self._is_at_end and self._is_over

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._reset()
        self._source.close()

    @property
    def _sides_are_over(self) -> bool:
        return self._left.is_over and self._right.is_over

    @property
    def _is_over(self) -> bool:
        return self._sides_are_over and not self._joined and not self._full.rows

    def _poll(self) -> bool:
        """Take the right side's input; return whether there is work to do."""
        if not (self._left.available or self._left.is_ended):
            return False
        while not self._right.is_ended:
            item = self._source.poll()
            if item is Signal.WAIT:
                return False
            if isinstance(item, Signal):
                self._right.is_ended = True
            elif self._is_needed(item):
                self._take_right(item)
            if self._gather_right() or self._right.is_ended or self._joined:
                return True
        return False

    def _gather_right(self) -> bool:
        return self._right.gather(max(_STEP_ROWS, self._left.available))

    def _take_right(self, batch: pa.RecordBatch) -> None:
        with about("node", self._node.id):
            self._right.add(batch)

    def _is_needed(self, batch: pa.RecordBatch) -> bool:
        """Return whether a right batch may still be output or matched; late batches may arrive."""
        return bool(batch.num_rows) and not (
            self._left.is_over and self._node.how not in SHOWS_RIGHT_ALONE
        )

    def _match(self) -> bool:
        """Join all joinable rows; return whether there were any."""
        left, right = self._left, self._right
        if not left.rows.num_rows:
            left.gather(max(_STEP_ROWS, right.available))
        if not right.rows.num_rows:
            self._gather_right()
        if self._emit_null_keys():
            return True
        counts = left.rows.num_rows, right.rows.num_rows
        if not all(
            count or side.is_complete for count, side in zip(counts, (left, right), strict=True)
        ):
            return False
        if not any(counts):
            return False
        if all(counts):
            return self._match_both()
        if counts[0]:
            nowhere = np.zeros(counts[0], dtype=np.int64)
            self._emit(Matches.of(self._node.how, nowhere, nowhere), left.rows, right.rows)
        elif self._node.how in SHOWS_RIGHT_ALONE:
            unmatched = np.arange(counts[1]) >= self._matched_rows
            has_key = right.side.has_key(right.rows)
            alone = unmatched if has_key is None else unmatched | ~has_key
            self._emit(Matches.unmatched_right(np.flatnonzero(alone)), left.rows, right.rows)
        self._drop_matched(*counts, matched_rows=0)
        return True

    def _emit_null_keys(self) -> bool:
        """Output one side's leading rows with null join keys; return whether there were any.

        The output order holds: all preceding rows on that side were output. The other side's rows
        with greater keys were not: they wait until this side has reached a greater key.
        """
        for side in (self._left, self._right):
            count = side.leading_null_key_count()
            if count:
                unmatched = (
                    Matches.unmatched_left if side is self._left else Matches.unmatched_right
                )
                self._emit(unmatched(np.arange(count)), self._left.rows, self._right.rows)
                side.drop(count)
                return True
        return False

    def _match_both(self) -> bool:
        """Join both sides' rows."""
        (left_keys, left_has_key), (right_keys, right_has_key) = (
            side.keys() for side in (self._left, self._right)
        )
        left, right = ranks_of(left_keys, right_keys)
        kind = self._node.how
        left_count, right_count = len(left), len(right)
        if not self._right.is_complete:
            # A semi join needs no second row of a key, the others all of them.
            is_found = kind in SHOWS_LEFT_ONLY
            side: Literal["left", "right"] = "right" if is_found else "left"
            left_count = int(np.searchsorted(left, right[-1], side=side))
        matched_rows = 0
        if left_count < len(left):
            right_count = int(np.searchsorted(right, left[left_count], side="left"))
        elif not self._left.is_complete:
            right_count = int(np.searchsorted(right, left[-1], side="left"))
            matched_rows = int(np.searchsorted(right, left[-1], side="right")) - right_count
            if kind in SHOWS_LEFT_ONLY and matched_rows > 1:
                right_count, matched_rows = right_count + matched_rows - 1, 1
        if not left_count and not right_count:
            self._fail_if_over_memory_limit()
            return self._gather_right()
        ready = left[:left_count]
        order = None if right_has_key is None else np.argsort(~right_has_key, kind="stable")
        keyed = right if right_has_key is None else right[right_has_key]
        starts = np.searchsorted(keyed, ready, side="left")
        counts = np.searchsorted(keyed, ready, side="right") - starts
        if left_has_key is not None:
            counts[~left_has_key[:left_count]] = 0
        matches = Matches.of(kind, starts, counts)
        if kind in SHOWS_RIGHT_ALONE:
            is_alone = ~_is_in(right[:right_count], left)
            is_alone[: self._matched_rows] = False
            if right_has_key is not None:
                is_alone |= ~right_has_key[:right_count]
            alone = np.flatnonzero(is_alone)
            row_indices = alone if order is None else np.argsort(order)[alone]
            matches = matches.merge(
                ready[matches.left], Matches.unmatched_right(row_indices), right[alone]
            )
        self._emit(matches, self._left.rows, self._right.rows, order)
        self._drop_matched(left_count, right_count, matched_rows=matched_rows)
        return True

    def _emit(
        self,
        matches: Matches,
        left: pa.RecordBatch,
        right: pa.RecordBatch,
        order: Positions | None = None,
    ) -> None:
        if len(matches.left):
            self._joined.append(JoinOutput(self.schema, matches, left, right, order))

    def _drop_matched(self, left_count: int, right_count: int, *, matched_rows: int) -> None:
        """Drop completely matched rows."""
        self._left.drop(left_count)
        self._right.drop(right_count)
        self._matched_rows = matched_rows

    def _drop_input(self) -> None:
        side = side_to_drop(
            self._node.how, left_is_over=self._left.is_over, right_is_over=self._right.is_over
        )
        if side is not None and not self._was_dropped:
            self._was_dropped = True
            self._drop_node(getattr(self._node, side).id)

    def _fail_if_over_memory_limit(self) -> None:
        """Raise `MemoryLimitError` if the held right rows, all with one key, exceed the limit."""
        needed = self._right.rows.nbytes
        if needed > self._memory_bytes_max:
            with about("node", self._node.id):
                raise MemoryLimitError(
                    f"the right rows of one key have {needed} bytes, but only "
                    f"{self._memory_bytes_max} are allowed, and rows are not spilled.",
                    hint="raise the node's 'memory_bytes_max', or put the side with fewer rows "
                    "of a key on the right.",
                    needed=needed,
                    limit=self._memory_bytes_max,
                )


def _is_in(some: Words, others: Words) -> Mask:
    """Return a mask: the numbers contained in an ascending array."""
    indices = np.minimum(np.searchsorted(others, some), len(others) - 1)
    is_match: Mask = others[indices] == some
    return is_match
