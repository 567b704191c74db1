"""Leaves: the queue of splits of a scan, the source that reads them, and rows in the plan.

A leaf hands a barrier to each of its drivers once, when no split is left before it. Only the reader
of a leaf knows what a split is (`SplitReader`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from spark_upsert.errors import PlanError
from spark_upsert.task.operators.operator import Signal
from spark_upsert.task.progress import Monitor
from spark_upsert.task.statistics import SplitCounts

SplitReader = Callable[[Any], Iterable[pa.RecordBatch]]
"""Reads a split; an iterator that has a ``close`` is closed when no more of it is needed."""


class SplitQueue:
    """The splits of a leaf, in the order in which they were added, for all its drivers."""

    def __init__(self, progress: Monitor) -> None:
        self._lock = progress.lock
        self._waiting: deque[Any] = deque()
        self._total = 0
        self._finished = 0
        self._is_ended = False
        self._barriers = 0

    def add(self, split: Any, *, with_barrier: bool = False) -> None:
        """Put a split behind the others, and perhaps a barrier behind it."""
        with self._lock:
            self._waiting.append(split)
            self._total += 1
            self._barriers += with_barrier

    def add_barrier(self) -> None:
        """Put a barrier behind all splits."""
        with self._lock:
            self._barriers += 1

    def end(self) -> None:
        """Learn that no more splits come."""
        with self._lock:
            self._is_ended = True

    def take(self, barriers: int) -> tuple[Any] | Signal:
        """Return the next split, in a tuple, or why there is none.

        Parameters
        ----------
        barriers : int
            How many barriers the driver has taken.
        """
        with self._lock:
            if self._waiting:
                return (self._waiting.popleft(),)
            if barriers < self._barriers:
                return Signal.DRAINED
            return Signal.ENDED if self._is_ended else Signal.WAIT

    def finish(self) -> None:
        """Count a split as finished."""
        with self._lock:
            self._finished += 1

    def counts(self) -> SplitCounts:
        """Return how many splits there are."""
        with self._lock:
            return SplitCounts(
                total=self._total, queued=len(self._waiting), finished=self._finished
            )


class ScanFeed:
    """The feed of one driver of a leaf: one split after the other, to its end or until a drop.

    Parameters
    ----------
    schema : pyarrow.Schema or None
        What batches must have; None: whatever they have.
    """

    def __init__(self, queue: SplitQueue, reader: SplitReader, schema: pa.Schema | None) -> None:
        self.schema = schema
        self._queue = queue
        self._reader = reader
        self._open: Iterator[pa.RecordBatch] | None = None
        self._barriers = 0
        self._is_dropped = False

    def poll(self) -> pa.RecordBatch | Signal:
        while True:
            if self._open is None:
                taken = self._queue.take(self._barriers)
                if isinstance(taken, Signal):
                    self._barriers += taken is Signal.DRAINED
                    return taken
                if not self._is_dropped:
                    self._open = iter(self._reader(taken[0]))
            batch = None if self._is_dropped or self._open is None else next(self._open, None)
            if batch is None:
                self._close_split()
                self._queue.finish()
            elif batch.num_rows:
                return self._checked(batch)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.schema is not None and not batch.schema.equals(self.schema):
            raise PlanError(
                f"a split has the columns {_columns(batch.schema)}, its scan has "
                f"{_columns(self.schema)}.",
                hint="give the scan the schema that its splits have.",
            )
        return batch

    def _close_split(self) -> None:
        opened, self._open = self._open, None
        close = getattr(opened, "close", None)
        if close is not None:
            close()

    def drop(self) -> None:
        self._is_dropped = True

    def pass_barrier(self) -> None:
        self._is_dropped = False

    def close(self) -> None:
        self._close_split()


class ValuesFeed:
    """Rows that stand in the plan: given once before each barrier.

    At the end of all input they are given again only if something may be joined with them: if there
    was no barrier at all, or splits came behind the last one.

    Parameters
    ----------
    has_tail : callable
        Says so, when the end has come.
    phase : callable
        Says what stands next: a barrier, the end, or neither (`Signal`).
    """

    def __init__(
        self, rows: pa.Table, phase: Callable[[], Signal], has_tail: Callable[[], bool]
    ) -> None:
        self.schema = rows.schema
        self._rows = rows.to_batches()
        self._phase = phase
        self._has_tail = has_tail
        self._left: deque[pa.RecordBatch] | None = None

    def poll(self) -> pa.RecordBatch | Signal:
        phase = self._phase()
        if phase is Signal.WAIT:
            return phase
        if self._left is None:
            is_given = phase is Signal.DRAINED or self._has_tail()
            self._left = deque(self._rows if is_given else ())
        while self._left:
            batch = self._left.popleft()
            if batch.num_rows:
                return batch
        return phase

    def drop(self) -> None:
        self._left = deque()

    def pass_barrier(self) -> None:
        self._left = None

    def close(self) -> None:
        self._left = deque()


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
