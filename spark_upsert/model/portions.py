"""How much a batch holds on its way into a merge: so many rows at most, and so many bytes.

Every producer that makes batches of something else (files, tuples of Python) keeps both bounds, and
a merge cuts what still exceeds them. A slice keeps the whole batch that it is of in memory, so that
a cut behind the producer bounds what is handed over, and only the producer what is held. A single
row that is larger goes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

HAND_OFF_ROWS = 2048
"""Rows of a batch: its overhead is small by then, and it still lies in the cache."""

BATCH_BYTES = 1 << 20
"""Bytes of a batch: some kilobytes a row before they bind rather than the rows."""


def portions(
    batch: Any, *, rows_max: int = HAND_OFF_ROWS, bytes_max: int = BATCH_BYTES
) -> Iterator[Any]:
    """Yield a batch in portions within both bounds, without a copy; an empty one has none.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Or what measures and is cut like one.
    rows_max, bytes_max : int
        Bounds of a portion; one of a single row may have more bytes.
    """
    rows, size = batch.num_rows, batch.nbytes
    most = rows_within(bytes_max, size, rows, rows_max=rows_max)
    if rows <= most:
        if rows:
            yield batch
        return
    for start in range(0, rows, most):
        part = batch.slice(start, most)
        if part.num_rows == 1 or part.nbytes <= bytes_max:
            yield part
        else:  # Some rows are larger than others.
            yield from portions(part, rows_max=-(-part.num_rows // 2), bytes_max=bytes_max)


def rows_within(bytes_max: int, size: int, rows: int, *, rows_max: int = HAND_OFF_ROWS) -> int:
    """Return how many rows fit into some bytes, if so many of them have a size: one at least."""
    if size <= bytes_max:
        return rows_max
    return max(1, min(rows_max, bytes_max * rows // size))
