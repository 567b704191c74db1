"""How fast a training loop gets its rows, against plain reads of the same rows by pyarrow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.measure import spread
from spark_upsert.loader import FileRows, Loader, TableRows
from spark_upsert.loader.splits import RowSource
from spark_upsert.table.table import Table

FILES = 8

ROW_GROUP_ROWS = 1 << 16

BATCH_ROWS = 1024
"""Of a step of training, with a model that is small."""

FEATURES = 16

PLAIN = "`ParquetFile.iter_batches`, no order"
"""What the loader is held against: the same batches as they lie in the files."""

SHUFFLED = "all in memory, permuted by numpy"
"""What a loop does whose rows fit: read all, permute all, and take batches."""


def measure(folder: Path, rows: int, *, rounds: int) -> dict[str, Any]:
    """Time a pass over all rows, the ways in turn.

    Returns
    -------
    dict
        ``rows``, ``row_bytes``, ``batch_rows``; below ``ways`` for each the spreads of ``seconds``
        and of ``cpu_s``, the processor time of all threads; below ``resume`` those of the time
        until the first batch behind a checkpoint in the middle of an epoch.
    """
    files = folder / "files"
    files.mkdir(parents=True)
    for number in range(FILES):
        made = _rows(number * (rows // FILES), rows // FILES)
        pq.write_table(made, files / f"{number}.parquet", row_group_size=ROW_GROUP_ROWS)
    table = Table.create(str(folder / "table"), made.schema, keys=["id"])
    for file in sorted(files.iterdir()):
        table.append(pq.read_table(file))
    sources: dict[str, RowSource] = {
        "files": FileRows(path=str(files)),
        "a table": TableRows(path=str(folder / "table")),
    }
    ways: dict[str, Callable[[], int]] = {
        PLAIN: lambda: _plain(files),
        SHUFFLED: lambda: _all_at_once(files),
    }
    for name, source in sources.items():
        for order, settings in (("in order", {"seed": None}), ("shuffled", {"seed": 7})):
            loader = Loader(source, batch_rows=BATCH_ROWS, **settings)
            loader.plan()
            ways[f"loader of {name}, {order}"] = lambda loader=loader: _arrays(loader)  # type: ignore[misc]
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    resumed: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, way in ways.items():
            before, busy = time.perf_counter(), time.process_time()
            handed = way()
            took[name].append((time.perf_counter() - before, time.process_time() - busy))
            assert handed == rows // FILES * FILES, name
        for name, source in sources.items():
            resumed[name].append(_resumed(Loader(source, batch_rows=BATCH_ROWS, seed=7)))
    return {
        "rows": rows // FILES * FILES,
        "row_bytes": made.nbytes // len(made),
        "batch_rows": BATCH_ROWS,
        "ways": {
            name: {"seconds": spread([s for s, _ in each]), "cpu_s": spread([c for _, c in each])}
            for name, each in took.items()
        },
        "resume": {name: spread(each) for name, each in resumed.items()},
    }


def _rows(first: int, count: int) -> pa.Table:
    """Return rows of a key, some features and a label."""
    drawn = np.random.default_rng(first).random((FEATURES, count), dtype=np.float32)
    features = {f"x{number}": column for number, column in enumerate(drawn)}
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, **features, "label": (ids % 2).astype(np.int8)})


def _plain(files: Path) -> int:
    rows = 0
    for file in sorted(files.iterdir()):
        for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, use_threads=False):
            rows += [len(column.to_numpy()) for column in batch.columns].pop()
    return rows


def _all_at_once(files: Path) -> int:
    table = ds.dataset(files).to_table(use_threads=False)
    order = np.random.default_rng(7).permutation(len(table))
    columns = [column.to_numpy()[order] for column in table.columns]
    return sum(
        [len(column[first : first + BATCH_ROWS]) for column in columns].pop()
        for first in range(0, len(table), BATCH_ROWS)
    )


def _arrays(loader: Loader) -> int:
    return sum(len(batch["id"]) for batch in loader.numpy())


def _resumed(loader: Loader) -> float:
    loader.seek(0, len(loader) // 2)
    state = loader.state_dict()
    before = time.perf_counter()
    again = Loader(loader._source, batch_rows=BATCH_ROWS, seed=7)
    again.load_state_dict(state)
    with again:
        next(iter(again))
        return time.perf_counter() - before
