"""pypaimon: a primary-key table, written by its own writer. Its changelog is not read here."""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pypaimon import CatalogFactory, Schema

from benchmarks.canonical import digest_of_table
from benchmarks.workload import Workload

BUCKETS = 2
"""A fixed number, as its Python writer asks for; one for each core of a small machine."""


class PyPaimon:
    """A Paimon table that keeps the row with the greatest ``seq``."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._catalog = CatalogFactory.create({"warehouse": str(folder / "table")})
        self._workload = workload
        self._table: Any = None

    def load(self, files: list[Path]) -> None:
        workload = self._workload
        self._catalog.create_database("b", ignore_if_exists=True)
        # A primary key may not be null in Paimon.
        fields = [
            field.with_nullable(field.name not in workload.key_names) for field in workload.columns
        ]
        schema = Schema.from_pyarrow_schema(
            pa.schema(fields),
            primary_keys=workload.key_names,
            options={"bucket": str(BUCKETS), "sequence.field": "seq"},
        )
        self._catalog.create_table("b.t", schema, ignore_if_exists=False)
        self.open()
        for file in files:
            self._write(pq.read_table(file))

    def open(self) -> None:
        self._table = self._catalog.get_table("b.t")

    def apply(self, batch: Path) -> dict[str, float]:
        if self._workload.deletes:
            raise NotImplementedError("the Python writer does not delete rows")
        rows = pq.read_table(batch)
        before = time.perf_counter()
        self._write(rows)
        return {"upsert_s": time.perf_counter() - before, "ingested_bytes": rows.nbytes}

    def _write(self, rows: pa.Table) -> None:
        builder = self._table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        schema = pa.schema(
            field.with_nullable(field.name not in self._workload.key_names) for field in rows.schema
        )
        write.write_arrow(rows.cast(schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def contents(self) -> dict[str, Any]:
        builder = self._table.new_read_builder()
        splits = builder.new_scan().plan().splits()
        return digest_of_table(builder.new_read().to_arrow(splits), self._workload)

    def changes(self) -> None:
        return None

    def versions(self) -> dict[str, str]:
        return {"pypaimon": metadata.version("pypaimon"), "pyarrow": pa.__version__}

    def close(self) -> None:
        self._table = None
