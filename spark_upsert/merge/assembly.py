"""From an order and the rows of the inputs to batches: what the exact orders have in common.

Rows are put together from slices, by one concatenation and at most one ``take``; none is touched
by itself. Where there are many inputs, each of which gives a few rows to a batch, several batches
are put together at once, so that a slice has more than a row or two. Of each input one batch is
held, the one that its next row lies in; what is put together is bounded in bytes, too, by the rows
of these batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.model.orders import Picks, rows_of_inputs
from spark_upsert.model.portions import BATCH_BYTES, HAND_OFF_ROWS, portions, rows_within

_INPUTS_PER_BATCH = 64
"""Slices of a batch that cost little; for more inputs, more batches are joined at once."""

_BATCHES_AT_ONCE = 32
"""The most: 65 536 rows by default. 1 000 inputs in turns come 10 times as fast as singly."""

_BYTES_AT_ONCE = 4 * BATCH_BYTES
"""Bytes of rows that are put together; they are held twice for a moment."""

_UINT16_END = 1 << 16


def arrange(
    inputs: Sequence[Iterator[pa.RecordBatch]],
    order: Picks | Iterable[Picks],
    *,
    rows: int = HAND_OFF_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some inputs in an order.

    Parameters
    ----------
    inputs : sequence of iterators of pyarrow.RecordBatch
        All of one schema; batches of any size. No more is asked of them than the order needs:
        rows behind it stay where they are.
    order : array of int64, or an iterable of such arrays
        The index of the input that gives the next row (`orders.advance`, `orders.iter_picks`).
    rows : int
        Of an output batch at most; it has no more than `BATCH_BYTES` either, unless it is one row.

    Yields
    ------
    pyarrow.RecordBatch
        Never an empty one. A batch ends where an array of the order does.

    Raises
    ------
    ValueError
        An input ends before it has given what the order wants of it.
    """
    if rows < 1:
        raise ValueError(f"a batch holds at least one row, found {rows}")
    heads = [_Head(index, batches) for index, batches in enumerate(inputs)]
    at_once = rows * min(_BATCHES_AT_ONCE, 1 + len(heads) // _INPUTS_PER_BATCH)
    for picks in [order] if isinstance(order, np.ndarray) else order:
        start = 0
        while start < len(picks):
            batch = _assemble(heads, _within(heads, picks[start : start + at_once]))
            start += batch.num_rows
            yield from portions(batch, rows_max=rows)


def _within(heads: Sequence[_Head], picks: Picks) -> Picks:
    """Return the first of some picks, so many that their rows have about `_BYTES_AT_ONCE`."""
    counts = rows_of_inputs(picks, len(heads))
    size = sum(int(counts[i]) * heads[i].row_bytes() for i in np.flatnonzero(counts).tolist())
    return picks[: rows_within(_BYTES_AT_ONCE, int(size), len(picks), rows_max=len(picks))]


def _assemble(heads: Sequence[_Head], picks: Picks) -> pa.RecordBatch:
    counts = rows_of_inputs(picks, len(heads))
    parts = [
        part for i in np.flatnonzero(counts).tolist() for part in heads[i].take(int(counts[i]))
    ]
    batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    if (picks[1:] >= picks[:-1]).all():
        return batch
    return batch.take(pa.array(_places(picks)))


def _places(picks: Picks) -> Picks:
    """Return where each row of the order lies among the rows of all inputs, one after the other."""
    # Numbers of 16 bits are sorted by counting.
    small = picks.astype(np.uint16) if int(picks.max(initial=0)) < _UINT16_END else picks
    places = np.empty(len(picks), dtype=np.int64)
    places[np.argsort(small, kind="stable")] = np.arange(len(picks))
    return places


class _Head:
    """The rows of an input that come next."""

    def __init__(self, index: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._index = index
        self._batches = batches
        self._batch: pa.RecordBatch | None = None
        self._start = 0
        self._given = 0

    def row_bytes(self) -> float:
        """Return how many bytes a row of the next batch has on average; 0 behind the last one."""
        batch = self._next()
        return 0.0 if batch is None else batch.nbytes / batch.num_rows

    def _next(self) -> pa.RecordBatch | None:
        """Return the batch that the next row lies in."""
        while self._batch is None or self._start == self._batch.num_rows:
            self._batch, self._start = next(self._batches, None), 0
            if self._batch is None:
                break
        return self._batch

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield slices that hold the next so many rows together."""
        while rows > 0:
            batch = self._next()
            if batch is None:
                raise ValueError(
                    f"input {self._index} ended behind {self._given} rows, but the order wants "
                    f"{rows} more of it"
                )
            part = batch.slice(self._start, rows)
            self._start += part.num_rows
            self._given += part.num_rows
            rows -= part.num_rows
            yield part
