"""Whether two systems hold the same rows: sort, bring to one schema, and compare a digest."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.workload import Workload


def digest_of_table(rows: pa.Table, workload: Workload) -> dict[str, Any]:
    """Return count and digest of the rows of a table, in any order."""
    return _digest(rows, workload.columns, [(name, "ascending") for name in workload.key_names])


def digest_of_changes(rows: pa.Table, workload: Workload) -> dict[str, Any]:
    """Return count and digest of change rows, in any order; versions are numbered anew from 0."""
    versions = rows.column("_commit_version").to_numpy()
    numbered = np.unique(versions, return_inverse=True)[1].astype(np.int64)
    kinds = rows.column("_change_type")
    schema = pa.schema([*workload.columns, ("kind", pa.string()), ("batch", pa.int64())])
    rows = rows.select(workload.columns.names).append_column("kind", kinds.cast(pa.string()))
    rows = rows.append_column("batch", pa.array(numbered))
    order = [(name, "ascending") for name in ("batch", *workload.key_names, "kind")]
    counts = {
        count["values"]: count["counts"]
        for count in pc.value_counts(rows.column("kind").combine_chunks()).to_pylist()
    }
    return {**_digest(rows, schema, order), "kinds": dict(sorted(counts.items()))}


def _digest(rows: pa.Table, schema: pa.Schema, order: list[tuple[str, str]]) -> dict[str, Any]:
    rows = rows.select(schema.names).cast(schema)
    rows = rows.take(pc.sort_indices(rows, order)).combine_chunks()
    sink = _Hashing()
    # Parquet and not IPC: it depends on the values only, not on how nulls are kept in memory.
    with pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(rows)
    return {"rows": len(rows), "sha256": sink.hash.hexdigest()}


class _Hashing:
    """A file that remembers only the digest of what was written."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.position = 0

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.position += len(memoryview(data))
        return len(memoryview(data))

    def tell(self) -> int:
        return self.position

    def flush(self) -> None: ...

    def close(self) -> None: ...
