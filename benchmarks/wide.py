"""Processor time of a table with very many columns and few rows; without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.table.table import Table

ROWS = 3


def measure(folder: Path, widths: tuple[int, ...], *, rounds: int) -> dict[str, Any]:
    """Time each step of a table's life by the number of its columns.

    Returns
    -------
    dict
        ``rows``; below ``widths`` for each number of columns the spread of ``cpu_s``, the processor
        time of all threads, for each step and for ``all`` of them.
    """
    found = {}
    for width in widths:
        turns = [_steps(folder / f"{width} {turn}", width, turn) for turn in range(rounds)]
        found[str(width)] = {step: {"cpu_s": spread([t[step] for t in turns])} for step in turns[0]}
    return {"rows": ROWS, "widths": found}


def _steps(path: Path, width: int, turn: int) -> dict[str, float]:
    names = [f"column_{index}" for index in range(width)]
    schema = pa.schema({"id": pa.int64(), **dict.fromkeys(names, pa.int64())})
    table = Table.create(str(path), schema, keys=["id"])

    def rows(value: int) -> pa.Table:
        ids, values = pa.array(range(ROWS)), pa.array([value] * ROWS)
        return pa.Table.from_arrays([ids, *(values for _ in names)], schema=schema)

    wider = rows(3).append_column("more", pa.array([turn] * ROWS))
    steps: dict[str, Callable[[], object]] = {
        "append to an empty table": lambda: table.upsert(rows(1)),
        "append of updates": lambda: table.upsert(rows(2)),
        "changes": lambda: table.changes(1),
        "get": lambda: table.get([0, 1]),
        "snapshot": table.snapshot,
        "snapshot with a filter": lambda: table.snapshot(filter=f"{names[-1]} = 2"),
        "compact": lambda: table.compact(full=True),
        "append of one more column": lambda: table.upsert(wider, merge_schema=True),
        "delete": lambda: table.delete(0),
        "open and read in a new object": lambda: Table.open(str(path)).snapshot(),
    }
    took = {name: _cpu_s(step) for name, step in steps.items()}
    return {**took, "all": sum(took.values())}


def _cpu_s(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before
