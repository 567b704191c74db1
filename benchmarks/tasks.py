"""What it costs to read a split through a task, against calling what the task calls.

Both ways run in one process and in turn, on the same split; what is counted is processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.reads import read_split as serving
from spark_upsert.streams.reads.splits import ChangesSplit, Split, changes_splits, rows_splits
from spark_upsert.table.table import Table

EPOCHS = 4
"""The first one has all keys, each other one in twenty of them."""

_COLUMNS = pa.schema({"id": pa.int64(), "value": pa.int64(), "name": pa.string()})


def measure(folder: Path, counts: tuple[int, ...], *, rounds: int) -> dict[str, Any]:
    """Time both ways over tables of some numbers of keys.

    Parameters
    ----------
    counts : tuple of int
        Keys of each table.
    rounds : int
        How often each way is run of each table; of a small one many runs make a round.

    Returns
    -------
    dict
        For each number of keys below what is read the spreads of ``direct_s`` and
        ``task_s``, processor time of one split, and ``ratio``, the median of each round's ratio.
    """
    found: dict[str, Any] = {}
    for count in counts:
        table = _made(str(folder / f"table-{count}"), count)
        base = {"path": table.store.url, "splits": "1"}
        as_rows = ReadOptions.parse(base)
        as_changes = ReadOptions.parse({**base, "readChangeFeed": "true"})
        head = table.log.head()
        [rows] = rows_splits(head, as_rows)
        [changes] = changes_splits(table.log, as_changes, 0, head.upper)
        repeats = max(1, 100_000 // count)
        found[str(count)] = {
            "rows of a version": _both(table, rows, as_rows, rounds=rounds, repeats=repeats),
            "a changelog": _both(table, changes, as_changes, rounds=rounds, repeats=repeats),
        }
    return found


def _made(path: str, count: int) -> Table:
    table = Table.create(path, _COLUMNS, keys=["id"])
    random = np.random.default_rng(7)
    for epoch in range(EPOCHS):
        ids = random.integers(0, count, max(1, count // 20)) if epoch else np.arange(count)
        names = pa.array(ids).cast(pa.string())
        values = random.integers(0, 1 << 40, len(ids))
        table.upsert(pa.table({"id": ids, "value": values, "name": names}))
    return table


def _both(
    table: Table, split: Split, options: ReadOptions, *, rounds: int, repeats: int
) -> dict[str, Any]:
    columns = tuple(_COLUMNS.names)

    def direct() -> int:
        stretches = split.stretches if isinstance(split, ChangesSplit) else (None,)
        passes = (
            serving._ScanStep(table.store, split, each, options, columns) for each in stretches
        )
        return sum(batch.num_rows for each in passes for batch in serving._read(each))

    def task() -> int:
        batches = serving.read_split(table.store, split, options, columns)
        return sum(batch.num_rows for batch in batches)

    assert direct() == task()
    taken: dict[str, list[float]] = {"direct_s": [], "task_s": []}
    for number in range(rounds):
        ways = [("direct_s", direct), ("task_s", task)]
        # Neither is always the first, which finds other caches.
        for name, way in ways if number % 2 else reversed(ways):
            taken[name].append(_processor_s(way, repeats))
    ratios = [b / a for a, b in zip(taken["direct_s"], taken["task_s"], strict=True)]
    return {
        **{name: spread(samples) for name, samples in taken.items()},
        "ratio": statistics.median(ratios),
    }


def _processor_s(way: Callable[[], int], repeats: int) -> float:
    before = time.process_time()
    for _ in range(repeats):
        way()
    return (time.process_time() - before) / repeats
