"""What a process learns of an open run is small, whatever the run holds."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.table.run.file import Run, RunCache, RunFile
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"k": pa.int64(), "number": pa.int64(), "text": pa.string()})
RUNS = 12


def runs_of(folder: Path, rows: int) -> tuple[Table, list[RunFile]]:
    table = Table.create(str(folder), COLUMNS, keys=["k"])
    keys = np.arange(rows)
    for _ in range(RUNS):
        table.upsert(pa.table([keys, keys, keys.astype(str)], schema=COLUMNS))
    return table, [each.file for each in table.log.head().slices]


def touch(run: Run) -> None:
    """Use all of a run, so that all is learned of it that can be."""
    run.verify()
    run.take(run.names, np.arange(0, run.file.rows, 7))


@pytest.mark.parametrize("rows", [1_000, 20_000])
@pytest.mark.slow
def test_an_open_run_takes_kilobytes_beside_its_file(tmp_path: Path, rows: int) -> None:
    table, files = runs_of(tmp_path / "table", rows)
    cache = RunCache()
    touch(cache.open(table.store, files[0]))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for file in files[1:]:
            touch(cache.open(table.store, file))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 8.5 KiB were measured; the file of 20 000 rows has 650.
    assert (after - before) / (len(files) - 1) < 12 << 10
