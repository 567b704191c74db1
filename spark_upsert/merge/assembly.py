"""From an order and the rows of the inputs to batches: what the exact orders have in common.

An output batch is put together from slices, one concatenation and at most one ``take``; no row
is touched by itself. Of each input one batch is held, the one that its next row lies in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.merge.orders import Picks, rows_of_inputs

HAND_OFF_ROWS = 2048
"""Rows of an output batch: its overhead is small by then, and it still lies in the cache."""


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
        Of an output batch at most.

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
    for picks in [order] if isinstance(order, np.ndarray) else order:
        for start in range(0, len(picks), rows):
            yield _assemble(heads, picks[start : start + rows])


def _assemble(heads: Sequence[_Head], picks: Picks) -> pa.RecordBatch:
    counts = rows_of_inputs(picks, len(heads)).tolist()
    parts = [part for i in np.unique(picks).tolist() for part in heads[i].take(counts[i])]
    batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    if (picks[1:] >= picks[:-1]).all():
        return batch
    return batch.take(pa.array(_places(picks)))


def _places(picks: Picks) -> Picks:
    """Return where each row of the order lies among the rows of all inputs, one after the other."""
    places = np.empty(len(picks), dtype=np.int64)
    places[np.argsort(picks, kind="stable")] = np.arange(len(picks))
    return places


class _Head:
    """The rows of an input that come next."""

    def __init__(self, index: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._index = index
        self._batches = batches
        self._rest: pa.RecordBatch | None = None
        self._given = 0

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield slices that hold the next so many rows together."""
        while rows > 0:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
            if self._rest is None:
                raise ValueError(
                    f"input {self._index} ended behind {self._given} rows, but the order wants "
                    f"{rows} more of it"
                )
            part = self._rest.slice(0, rows)
            self._rest = self._rest.slice(part.num_rows)
            self._given += part.num_rows
            rows -= part.num_rows
            yield part
