"""How fast the bare merge hands rows on: no table, no Spark, batches that lie in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.core.input_order import Concat, Order, RoundRobin, Seeded, iter_picks
from spark_upsert.merge.merged import arrange, live

BATCH_ROWS = 8_192
"""Of what the inputs give, about as much as a read of a table gives at once."""

COPY = "`pa.concat_tables` and one copy"
"""What the merges are held against: the same rows in one piece, in no order worth naming."""

Inputs = list[list[pa.RecordBatch]]


def measure(rows: int, *, inputs: tuple[int, ...] = (2, 16), rounds: int = 5) -> dict[str, Any]:
    """Time each order over so many rows, the orders in turn.

    Returns
    -------
    dict
        ``rows``, ``batch_rows``, and for each number of inputs and each order the spreads of
        ``seconds`` and of ``cpu_s``, the processor time of all threads.
    """
    found: dict[str, Any] = {"rows": rows, "batch_rows": BATCH_ROWS}
    for count in inputs:
        batches = [_batches(rows // count) for _ in range(count)]
        ways: dict[str, Callable[[Inputs], int]] = {
            COPY: _copied,
            "live": _live,
            "concat": partial(_arranged, Concat()),
            "roundrobin": partial(_arranged, RoundRobin()),
            "seeded": partial(_arranged, Seeded(state=7)),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                before, busy = time.perf_counter(), time.process_time()
                handed = way(batches)
                took[name].append((time.perf_counter() - before, time.process_time() - busy))
                assert handed == rows // count * count, name
        found[str(count)] = {
            name: {"seconds": spread([s for s, _ in each]), "cpu_s": spread([c for _, c in each])}
            for name, each in took.items()
        }
    return found


def _batches(rows: int) -> list[pa.RecordBatch]:
    """Return rows of a key, an order, a value and a text."""
    found = []
    for low in range(0, rows, BATCH_ROWS):
        numbers = np.arange(low, min(low + BATCH_ROWS, rows), dtype=np.int64)
        text = pa.array(numbers).cast(pa.string())
        found.append(pa.record_batch([numbers, numbers, numbers, text], names=["k", "q", "v", "s"]))
    return found


def _copied(inputs: Inputs) -> int:
    whole = pa.concat_tables(pa.Table.from_batches(batches) for batches in inputs)
    return len(whole.combine_chunks())


def _live(inputs: Inputs) -> int:
    given = {str(index): partial(iter, batches) for index, batches in enumerate(inputs)}
    return sum(item.num_rows for _, item in live(given))


def _arranged(order: Order, inputs: Inputs) -> int:
    counts = [sum(batch.num_rows for batch in batches) for batches in inputs]
    heads: list[Iterator[pa.RecordBatch]] = [iter(batches) for batches in inputs]
    picks = (picks for picks, _ in iter_picks(order, counts))
    return sum(batch.num_rows for batch in arrange(heads, picks))
