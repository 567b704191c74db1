"""delta-rs: MERGE of the newest command of each key, then the change feed of that version."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.canonical import digest_of_changes, digest_of_table
from benchmarks.workload import Workload, latest


class DeltaRs:
    """A Delta table with change data feed."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._path = str(folder / "table")
        self._workload = workload
        self._table: DeltaTable | None = None
        self._first = 0

    def load(self, files: list[Path]) -> None:
        # In one write: it may choose the size of its files.
        rows = pa.RecordBatchReader.from_batches(
            self._workload.columns,
            (batch for file in files for batch in pq.ParquetFile(file).iter_batches()),
        )
        write_deltalake(self._path, rows, configuration={"delta.enableChangeDataFeed": "true"})

    def open(self) -> None:
        self._table = DeltaTable(self._path)
        self._first = self._table.version() + 1

    def apply(self, batch: Path) -> dict[str, float]:
        assert self._table is not None
        workload = self._workload
        rows = pq.read_table(batch)
        values = {name: f"s.{name}" for name in workload.columns.names}
        before = time.perf_counter()
        merge = self._table.merge(
            latest(rows, workload.key_names),
            " AND ".join(f"t.{name} = s.{name}" for name in workload.key_names),
            source_alias="s",
            target_alias="t",
        )
        if workload.deletes:
            merge = merge.when_matched_delete("s.seq > t.seq AND s.gone")
        merge = merge.when_matched_update(values, "s.seq > t.seq")
        merge.when_not_matched_insert(values, "NOT s.gone" if workload.deletes else None).execute()
        merged = time.perf_counter()
        version = self._table.version()
        changes = pa.table(self._table.load_cdf(version, version))
        read = time.perf_counter()
        return {
            "upsert_s": merged - before,
            "changes_s": read - merged,
            "change_rows": len(changes),
            "ingested_bytes": rows.nbytes,
        }

    def read_anew(self) -> dict[str, float]:
        """Open the table and read all of it."""
        before = time.perf_counter()
        rows = DeltaTable(self._path).to_pyarrow_table()
        return {"read_s": time.perf_counter() - before, "rows": len(rows)}

    def contents(self) -> dict[str, Any]:
        assert self._table is not None
        return digest_of_table(self._table.to_pyarrow_table(), self._workload)

    def changes(self) -> dict[str, Any]:
        assert self._table is not None
        return digest_of_changes(pa.table(self._table.load_cdf(self._first)), self._workload)

    def versions(self) -> dict[str, str]:
        return {"deltalake": deltalake.__version__, "pyarrow": pa.__version__}

    def close(self) -> None:
        self._table = None
