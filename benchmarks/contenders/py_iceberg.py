"""PyIceberg: ``Table.upsert`` of the newest command of each key. It has no change feed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.canonical import digest_of_table
from benchmarks.workload import Workload, latest


class PyIceberg:
    """An Iceberg table in a catalog of SQLite."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        warehouse = folder / "table"
        warehouse.mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{warehouse}"
        )
        self._workload = workload
        self._table: Any = None

    def load(self, files: list[Path]) -> None:
        self._catalog.create_namespace_if_not_exists("b")
        table = self._catalog.create_table("b.t", schema=self._workload.columns)
        for file in files:
            table.append(pq.read_table(file).cast(self._workload.columns))

    def open(self) -> None:
        self._table = self._catalog.load_table("b.t")

    def apply(self, batch: Path) -> dict[str, float]:
        if self._workload.deletes or self._workload.late:
            raise NotImplementedError("Table.upsert neither deletes nor compares an order")
        rows = pq.read_table(batch)
        before = time.perf_counter()
        self._table.upsert(latest(rows, self._workload.key_names), self._workload.key_names)
        return {"upsert_s": time.perf_counter() - before, "ingested_bytes": rows.nbytes}

    def read_anew(self) -> dict[str, float]:
        """Open the table and read all of it."""
        before = time.perf_counter()
        rows = self._catalog.load_table("b.t").scan().to_arrow()
        return {"read_s": time.perf_counter() - before, "rows": len(rows)}

    def contents(self) -> dict[str, Any]:
        return digest_of_table(self._table.scan().to_arrow(), self._workload)

    def changes(self) -> None:
        return None

    def versions(self) -> dict[str, str]:
        return {"pyiceberg": pyiceberg.__version__, "pyarrow": pa.__version__}

    def close(self) -> None:
        self._table = None
