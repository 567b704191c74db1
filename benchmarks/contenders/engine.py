"""upsertflow without Spark: the steps of the sink and of the source, in one process."""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bare import bare, bare_read
from benchmarks.canonical import digest_of_changes, digest_of_table
from benchmarks.phases import Phases
from benchmarks.workload import Workload
from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.table import Table


class Engine:
    """Does per batch what a micro-batch of one task does."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._path = str(folder / "table")
        self._workload = workload
        self._table: Table | None = None
        self._first = 0

    def load(self, files: list[Path]) -> None:
        workload = self._workload
        self._table = Table.create(
            self._path, workload.columns, keys=workload.key_names, sequence_by=["seq"]
        )
        for file in files:
            self._table.upsert(pq.read_table(file))
            self._table.compact()

    def open(self) -> None:
        # As its rivals do, it takes all cores there are.
        self._table = Table.open(self._path, threads=os.cpu_count() or 1)
        self._first = self._table.log.head().upper

    def apply(self, batch: Path) -> dict[str, float]:
        assert self._table is not None
        table = self._table
        rows = pq.read_table(batch)
        deletes = "gone" if self._workload.deletes else None
        before = time.perf_counter()
        merges = [
            compact_runs(table.store, table.log.head(), job) for job in table.compaction_jobs()[:1]
        ]
        merged = time.perf_counter()
        commit = table.upsert(rows, deletes=deletes)
        assert commit is not None
        appended = time.perf_counter()
        changes = table.changes(commit.version, commit.version + 1)
        read = time.perf_counter()
        table.commit_compactions(merges)
        done = time.perf_counter()
        return {
            "upsert_s": appended - before + done - read,
            "changes_s": read - appended,
            "merge_s": merged - before,
            "append_s": appended - merged,
            "change_rows": len(changes),
            "ingested_bytes": rows.nbytes,
            "runs": len(table.log.head().slices),
            "depth": self._depth(),
        }

    def _depth(self) -> float:
        """Return how many runs a key may stand in, on average over the hashes."""
        assert self._table is not None
        slices = self._table.log.head().slices
        return sum(part.file.hash_range.width for part in slices) / ALL_HASHES.width

    def contents(self) -> dict[str, Any]:
        assert self._table is not None
        return digest_of_table(self._table.snapshot(), self._workload)

    def changes(self) -> dict[str, Any]:
        assert self._table is not None
        return digest_of_changes(self._table.changes(self._first), self._workload)

    def snapshot(self) -> dict[str, float]:
        """Read the whole table, batch by batch."""
        assert self._table is not None
        before = time.perf_counter()
        rows = sum(len(batch) for batch in self._table.at().read())
        return {"snapshot_s": time.perf_counter() - before, "rows": rows}

    def read_anew(self) -> dict[str, float]:
        """Open the table and read all of it."""
        before = time.perf_counter()
        rows = Table.open(self._path).snapshot()
        return {"read_s": time.perf_counter() - before, "rows": len(rows)}

    def profile(self, batches: list[Path]) -> dict[str, Any]:
        """Apply batches in one thread, every other one with a profiler.

        Returns
        -------
        dict
            ``upsert`` and ``changelog``: as `Phases.found` says. ``row_bytes``: of a command.
            ``bare_s``: as `bare` says, of the same batches in the table as it is behind them. What a
            first batch does once is not in it.
        """
        table = self._table = Table.open(self._path)
        self.apply(batches[0])
        parts = {"upsert": Phases(), "changelog": Phases()}
        size = count = 0
        read = [pq.read_table(batch) for batch in batches[1:]]
        for number, rows in enumerate(read):
            size, count = size + rows.nbytes, count + len(rows)

            def upsert(rows: pa.Table = rows) -> Any:
                jobs = table.compaction_jobs()[:1]
                merges = [compact_runs(table.store, table.log.head(), job) for job in jobs]
                commit = table.upsert(rows)
                table.commit_compactions(merges)
                return commit

            profiled = bool(number % 2)
            version = parts["upsert"].run(upsert, profiled=profiled).version
            parts["changelog"].run(partial(table.changes, version, version + 1), profiled=profiled)
        schema = table.schema
        return {
            **{name: part.found() for name, part in parts.items()},
            "row_bytes": size / count,
            "bare_s": bare(_run_files(table), read, keys=schema.keys, seed=schema.hash_seed),
        }

    def age(self, batches: list[Path], fresh: str) -> dict[str, float]:
        """Apply batches as an epoch each, then write the rows there are to another table at once."""
        table = Table.create(
            self._path, self._workload.columns, keys=self._workload.key_names, sequence_by=["seq"]
        )
        for batch in batches:
            merges = [
                compact_runs(table.store, table.log.head(), job)
                for job in table.compaction_jobs()[:1]
            ]
            table.upsert(pq.read_table(batch))
            table.commit_compactions(merges)
        rows = table.snapshot()
        once = Table.create(
            fresh, self._workload.columns, keys=self._workload.key_names, sequence_by=["seq"]
        )
        once.upsert(rows)
        return {
            "rows": len(rows),
            "runs": table.log.head().run_count,
            "engine_table_s": _seconds_to_read(table),
            "engine_fresh_s": _seconds_to_read(once),
            "bare_s": bare_read(_run_files(table), self._workload.columns.names),
        }

    def versions(self) -> dict[str, str]:
        from spark_upsert import __version__

        return {"upsertflow": __version__, "pyarrow": pa.__version__}

    def close(self) -> None:
        self._table = None


def _run_files(table: Table) -> list[Path]:
    """Return the files of a table's runs, each once."""
    folder = Path(table.store.url.removeprefix("file://"))
    return sorted({folder / part.file.path for part in table.log.head().slices})


def _seconds_to_read(table: Table) -> float:
    """Read a whole table several times, and return the median."""
    took = []
    for _ in range(5):
        before = time.perf_counter()
        for _ in table.at().read():
            pass
        took.append(time.perf_counter() - before)
    return statistics.median(took)
