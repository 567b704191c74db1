"""DuckLake: MERGE of the newest command of each key into a catalog of DuckDB, then `table_changes`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
import pyarrow.parquet as pq

from benchmarks.canonical import digest_of_changes, digest_of_table
from benchmarks.workload import Workload, latest

CHANGES = (
    "SELECT * RENAME (snapshot_id AS _commit_version, change_type AS _change_type) "
    "FROM lake.table_changes('t', {0}, {1})"
)


class DuckLake:
    """A table of a lake whose catalog is a file of DuckDB; small commits stay in it, as its default is."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        (folder / "table").mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._workload = workload
        self._db: Any = None
        self._first = 0

    def load(self, files: list[Path]) -> None:
        self._connect()
        found = ", ".join(f"'{file}'" for file in files)
        columns = ", ".join(self._workload.columns.names)
        self._db.execute(f"CREATE TABLE lake.t AS SELECT {columns} FROM read_parquet([{found}])")

    def open(self) -> None:
        self._connect()
        self._first = self._snapshot() + 1

    def _connect(self) -> None:
        self.close()
        self._db = duckdb.connect()
        duckdb_extensions.import_extension("ducklake", con=self._db)
        self._db.execute(
            f"ATTACH 'ducklake:{self._folder}/table/catalog.ducklake' AS lake "
            f"(DATA_PATH '{self._folder}/table/data')"
        )

    def _snapshot(self) -> int:
        return int(self._db.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()[0])

    def apply(self, batch: Path) -> dict[str, float]:
        if self._workload.deletes:
            raise NotImplementedError("a MERGE of DuckLake takes one action besides the insertion")
        names = self._workload.columns.names
        rows = pq.read_table(batch)
        before = time.perf_counter()
        self._db.register("updates", latest(rows, self._workload.key_names))
        same = " AND ".join(f"t.{name} = s.{name}" for name in self._workload.key_names)
        self._db.execute(
            f"MERGE INTO lake.t t USING updates s ON {same} "
            f"WHEN MATCHED AND s.seq > t.seq "
            f"THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)})"
        )
        merged = time.perf_counter()
        version = self._snapshot()
        changes = self._db.execute(CHANGES.format(version, version)).to_arrow_table()
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
        self._connect()
        rows = self._db.execute("FROM lake.t").to_arrow_table()
        return {"read_s": time.perf_counter() - before, "rows": len(rows)}

    def contents(self) -> dict[str, Any]:
        return digest_of_table(self._db.execute("FROM lake.t").to_arrow_table(), self._workload)

    def changes(self) -> dict[str, Any]:
        found = self._db.execute(CHANGES.format(self._first, self._snapshot())).to_arrow_table()
        return digest_of_changes(found, self._workload)

    def versions(self) -> dict[str, str]:
        found = self._db.execute(
            "SELECT extension_version FROM duckdb_extensions() WHERE extension_name = 'ducklake'"
        )
        return {"duckdb": duckdb.__version__, "ducklake": found.fetchone()[0]}

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
