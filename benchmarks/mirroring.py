"""What a mirror takes: processor time of a publication beside that of the upsert before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import spread
from spark_upsert.table.table import Table

DELETES = 0.1
"""Share of the rows of a batch that are deletes."""

LOAD_ROWS = 1_000_000
"""Rows of an append while the table is made."""


def measure(folder: Path, keys: int, batches: tuple[int, ...], *, rounds: int) -> dict[str, Any]:
    """Time upserts and publications, one behind the other.

    Returns
    -------
    dict
        ``keys``, ``first_copy_s``, ``runs_bytes``, ``twins_bytes``; below ``batches``, for each
        number of rows, the spreads of processor seconds: ``upsert_s``, ``publish_s``.
    """
    dice = np.random.default_rng(1)
    table = Table.create(str(folder / "table"), _rows(dice, np.arange(1)).schema, keys=["id"])
    for first in range(0, keys, LOAD_ROWS):
        table.append(_rows(dice, np.arange(first, min(keys, first + LOAD_ROWS))))
    table.compact()
    first_copy_s = _seconds(table.publish)
    twins = sum(path.stat().st_size for path in (folder / "table" / "_delta").glob("*.parquet"))
    found: dict[str, Any] = {
        "keys": keys,
        "first_copy_s": first_copy_s,
        "runs_bytes": table.log.head().bytes,
        "twins_bytes": twins,
        "batches": {},
    }
    for count in batches:
        took: dict[str, list[float]] = {"upsert_s": [], "publish_s": []}
        for turn in range(2 * rounds + 1):
            rows = _rows(dice, dice.choice(keys, min(count, keys), replace=False))
            gone = pa.array(dice.random(rows.num_rows) < DELETES)
            batch = rows.append_column("gone", gone)
            upsert_s = _seconds(partial(table.append, batch, deletes="gone"))
            publish_s = _seconds(table.publish)
            if turn:  # The first has what a process does once.
                took["upsert_s"].append(upsert_s)
                took["publish_s"].append(publish_s)
        found["batches"][str(count)] = {name: spread(each) for name, each in took.items()}
        table.compact()
        table.publish()
    return found


def _rows(dice: np.random.Generator, ids: Any) -> pa.Table:
    count = len(ids)
    return pa.table(
        {
            "id": ids,
            "n": dice.integers(0, 1_000, count),
            "text": pc.cast(pa.array(dice.integers(0, 100_000, count)), pa.string()),
            "amount": dice.random(count),
            "day": pa.array(dice.integers(0, 20_000, count).astype("int32")).cast(pa.date32()),
        }
    )


def _seconds(action: Callable[[], object]) -> float:
    """Return the processor seconds that this process takes for something."""
    before = time.process_time()
    action()
    return time.process_time() - before
