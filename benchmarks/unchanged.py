"""Cost of updates that leave a large column unchanged, against updates that send it; no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import spread
from spark_upsert.table.table import Table

VALUE_BYTES = 1_000
SHARES = (0.0, 0.01, 0.1, 1.0)
_COLUMNS = pa.schema({"id": pa.int64(), "n": pa.int64(), "x": pa.string(), "seq": pa.int64()})
_GETS = 1_000


def measure(folder: Path, rows: int, *, rounds: int) -> dict[str, Any]:
    """Update shares of a table's rows, with a large column sent and unchanged.

    Returns
    -------
    dict
        ``rows``, ``value_bytes``; below ``shares`` for each updated share and each of ``sent`` and
        ``unchanged`` the written ``bytes`` and the spreads of ``cpu_s`` by step.
    """
    found = {}
    for share in SHARES:
        both = {}
        for how in ("sent", "unchanged"):
            turns = [
                _steps(folder / f"{share} {how} {turn}", rows, share, how, turn)
                for turn in range(rounds)
            ]
            steps = {
                step: {"cpu_s": spread([cpu[step] for _, cpu in turns])} for step in turns[0][1]
            }
            both[how] = {"bytes": turns[0][0], **steps}
        found[str(share)] = both
    return {"rows": rows, "value_bytes": VALUE_BYTES, "shares": found}


def _steps(
    path: Path, rows: int, share: float, how: str, turn: int
) -> tuple[int, dict[str, float]]:
    """Return the bytes that the update wrote, and each step's processor time in seconds."""
    dice = np.random.default_rng(turn)
    table = Table.create(str(path), _COLUMNS, keys=["id"], sequence_by=["seq"])
    table.upsert(_rows(np.arange(rows), 1))
    ids = np.sort(dice.choice(rows, int(share * rows), replace=False))
    update = _rows(ids, 2)
    masks = {}
    if how == "unchanged":
        update = update.set_column(2, "x", pa.nulls(len(ids), pa.string()))
        masks = {"x": np.ones(len(ids), dtype=np.bool_)}
    before = table.log.head().bytes
    took = {"upsert": _cpu_s(lambda: table.upsert(update, unchanged=masks))}
    written = table.log.head().bytes - before
    version = table.log.head().version
    keys = dice.choice(rows, min(_GETS, rows), replace=False)
    steps: dict[str, Callable[[], object]] = {
        "read of its changes": lambda: table.changes(version),
        "scan": lambda: sum(batch.num_rows for batch in table.scan()),
        "get of 1 000 keys": lambda: table.get(keys),
        "compact": lambda: table.compact(full=True),
        "scan, compacted": lambda: sum(batch.num_rows for batch in table.scan()),
    }
    took |= {name: _cpu_s(step) for name, step in steps.items()}
    return written, took


def _rows(ids: np.ndarray[Any, np.dtype[np.int64]], seq: int) -> pa.Table:
    texts = pc.utf8_lpad(pa.array(ids).cast(pa.string()), 10, "0")
    wide = pc.binary_repeat(texts, VALUE_BYTES // 10)
    columns = [pa.array(ids), pa.array(ids * 2 + seq), wide, pa.array(np.full(len(ids), seq))]
    return pa.Table.from_arrays(columns, schema=_COLUMNS)


def _cpu_s(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before
