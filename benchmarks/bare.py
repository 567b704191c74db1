"""What numpy and Arrow take for the least that an upsert and its changes ask of them.

The same rows, the same runs, the same files: hashes sorted, each run searched once by
`numpy.searchsorted`, the old rows taken once by `pyarrow.RecordBatch.take`, one file written and
synced. Nothing is decided, checked, logged or merged, and what was not found is not looked for
again: a program of Python that does the job takes more.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.schema import HASH

Positions = npt.NDArray[np.int64]


class Bare:
    """The runs of a table, mapped, and what their bare use takes."""

    def __init__(self, files: Sequence[Path], *, keys: Sequence[str], seed: int) -> None:
        self._keys, self._seed = list(keys), seed
        self._runs = [pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0) for file in files]
        self._hashes = [run.column(HASH).to_numpy() for run in self._runs]

    def upsert(self, rows: pa.Table, target: Path) -> float:
        """Find the keys of rows in all runs, write the rows in the order of their hashes; return
        the seconds of the processor.
        """
        before = time.process_time()
        batch, hashes = self._sorted(rows)
        self._found(hashes)
        with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        with target.open("rb") as file:
            os.fsync(file.fileno())
        return time.process_time() - before

    def changes(self, rows: pa.Table) -> float:
        """Find the keys of rows in all runs and take what stands there, and the rows; return the
        seconds of the processor.
        """
        before = time.process_time()
        batch, hashes = self._sorted(rows)
        taken = [batch]
        for run, found in zip(self._runs, self._found(hashes), strict=True):
            taken.append(run.select(batch.schema.names).take(pa.array(found)))
        pa.Table.from_batches([each.cast(batch.schema) for each in taken]).combine_chunks()
        return time.process_time() - before

    def _sorted(self, rows: pa.Table) -> tuple[pa.RecordBatch, npt.NDArray[np.uint64]]:
        """Return rows in the order of their hashes, and the hashes."""
        [batch] = rows.combine_chunks().to_batches()
        hashes = hash_keys([batch.column(name) for name in self._keys], seed=self._seed)
        order = np.argsort(hashes)
        return batch.take(pa.array(order)), hashes[order]

    def _found(self, hashes: npt.NDArray[np.uint64]) -> list[Positions]:
        """Return where in each run hashes stand, each in the first run that has it."""
        found: list[Positions] = []
        is_left = np.ones(len(hashes), dtype=bool)
        for run in self._hashes:
            first = int(np.searchsorted(hashes, run[0]))
            end = int(np.searchsorted(hashes, run[-1], side="right"))
            wanted = first + np.flatnonzero(is_left[first:end])
            at = np.searchsorted(run, hashes[wanted])
            is_there = run[at] == hashes[wanted]
            found.append(at[is_there])
            is_left[wanted[is_there]] = False
        return found


def bare_read(files: Sequence[Path], names: Sequence[str]) -> float:
    """Return the median seconds in which all hashes of some runs are sorted, to find one entry of
    each, and the columns of these entries are copied. It is not asked which entry counts.
    """
    runs = [pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0) for file in files]
    took = []
    for _ in range(5):
        before = time.perf_counter()
        hashes = np.concatenate([run.column(HASH).to_numpy() for run in runs])
        order = np.argsort(hashes)
        ascending = hashes[order]
        wins = np.zeros(len(hashes), dtype=bool)
        wins[order[np.append(ascending[1:] != ascending[:-1], True)]] = True
        start = 0
        for run in runs:
            run.select(names).filter(pa.array(wins[start : start + len(run)]))
            start += len(run)
        took.append(time.perf_counter() - before)
    return statistics.median(took)


def bare(
    files: Sequence[Path], batches: Sequence[pa.Table], *, keys: Sequence[str], seed: int
) -> dict[str, float]:
    """Return the median seconds of ``upsert`` and ``changelog`` over some batches of rows."""
    least = Bare(files, keys=keys, seed=seed)
    target = files[0].parent / "bare.arrow"
    try:
        upserts = [least.upsert(rows, target) for rows in batches]
        changes = [least.changes(rows) for rows in batches]
        return {"upsert": statistics.median(upserts), "changelog": statistics.median(changes)}
    finally:
        target.unlink(missing_ok=True)
