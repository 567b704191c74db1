"""From windows to batches: read what a pass needs, ahead of it, and cut it exactly.

Windows are read in the order in which batches need them, each lane's by a thread of its own, and
at most `ahead` of them wait. A batch is a view of its window, and a copy only where it lies in
several.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import current_thread
from typing import TypeVar

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.loader.order import EpochOrder, Window, WindowSpan
from spark_upsert.loader.share import RankShare
from spark_upsert.loader.splits import Splits

In = TypeVar("In")
Out = TypeVar("Out")

THREAD_NAME = "upsertflow-loader"


def read_window(splits: Splits, window: Window) -> pa.RecordBatch:
    """Return the rows of a window in their order, as one batch."""
    table = pa.concat_tables([splits.read(index) for index in window.splits])
    assert len(table) == window.rows, f"{len(table)} rows in {window}"
    batch = _as_batch(table)
    del table
    order = window.permutation()
    return batch if order is None else batch.take(pa.array(order))


def batches(
    splits: Splits, order: EpochOrder, share: RankShare, indices: range, *, ahead: int
) -> Generator[pa.RecordBatch]:
    """Yield some of a share's batches, in their order.

    Parameters
    ----------
    indices : range
        Which batches, from 0.
    ahead : int
        Windows of each lane that may be read before they are needed; with 0 there is no thread.
    """

    def read(index: int) -> pa.RecordBatch:
        return read_window(splits, order.windows[index])

    lanes: dict[int, _Lane] = {}
    try:
        for index in indices:
            number = index % share.lanes
            if number not in lanes:
                needed = _needed(order, share, indices[indices.index(index) :], number)
                lanes[number] = _Lane(read_ahead(read, needed, ahead=ahead))
            yield _cut(lanes[number], order.spans(*share.batch(index)))
    finally:
        for lane in lanes.values():
            lane.close()


def _cut(lane: _Lane, spans: Iterable[WindowSpan]) -> pa.RecordBatch:
    """Return the rows of a batch."""
    pieces = [lane.window(span.window).slice(span.first, span.rows) for span in spans]
    return pieces[0] if len(pieces) == 1 else _as_batch(pa.Table.from_batches(pieces))


class _Lane:
    """One window after the other; one of them is at hand."""

    def __init__(self, windows: Generator[tuple[int, pa.RecordBatch]]) -> None:
        self._windows = windows
        self._at_hand: tuple[int, pa.RecordBatch] | None = None

    def window(self, index: int) -> pa.RecordBatch:
        if self._at_hand is None or self._at_hand[0] != index:
            self._at_hand = None  # Given up before the next one is waited for.
            self._at_hand = next(self._windows)
            assert self._at_hand[0] == index
        return self._at_hand[1]

    def close(self) -> None:
        self._windows.close()


def _needed(order: EpochOrder, share: RankShare, indices: range, lane: int) -> Iterator[int]:
    """Yield the windows that the batches of a lane lie in, one after the other."""
    last = None
    for index in indices:
        if index % share.lanes != lane:
            continue
        for span in order.spans(*share.batch(index)):
            if span.window != last:
                last = span.window
                yield last


def read_ahead(
    read: Callable[[In], Out], items: Iterable[In], *, ahead: int
) -> Generator[tuple[In, Out]]:
    """Yield items with what is read of them; a thread reads up to ``ahead`` of them beforehand.

    The thread ends with the generator, whatever ends that: what is being read then is read to its
    end, and nothing more is begun.
    """
    if ahead == 0:
        for item in items:
            yield item, read(item)
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)
    waiting: deque[tuple[In, Future[Out]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(read, item)))
            if len(waiting) > ahead:
                yield _done(waiting)
        while waiting:
            yield _done(waiting)
    finally:
        # Garbage is collected by any thread, and none can wait for itself.
        own = current_thread().name.startswith(THREAD_NAME)
        pool.shutdown(wait=not own, cancel_futures=True)


def _done(waiting: deque[tuple[In, Future[Out]]]) -> tuple[In, Out]:
    item, future = waiting.popleft()
    return item, future.result()


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table, of which there are some, in one piece."""
    found = table.combine_chunks().to_batches()
    if len(found) != 1:
        raise OptionError(
            f"a window of {table.num_rows} rows has more than 2 GiB of texts in one column.",
            hint="give a smaller 'window_rows', or write smaller row groups.",
            option="window_rows",
        )
    return found[0]
