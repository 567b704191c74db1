"""Whether two systems hold the same rows: sort, bring to one schema, and compare a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workload import Workload

_PIECE_ROWS = 1 << 20


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
    rows = rows.take(pc.sort_indices(rows, order))
    digest = hashlib.sha256()
    for column in rows.columns:
        # The workloads have no nulls, so that values alone decide.
        assert not column.null_count
        for chunk in _pieces(column):
            if pa.types.is_string(chunk.type):
                digest.update(pc.binary_length(chunk).to_numpy())
                lower, upper = _offsets(chunk)
                digest.update(memoryview(chunk.buffers()[2])[lower:upper])
            else:
                digest.update(chunk.to_numpy())
    return {"rows": len(rows), "sha256": digest.hexdigest()}


def _pieces(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the column in pieces that do not depend on how it was cut."""
    for lower in range(0, len(column), _PIECE_ROWS):
        yield column.slice(lower, _PIECE_ROWS).combine_chunks()


def _offsets(text: pa.Array) -> tuple[int, int]:
    ends = np.frombuffer(text.buffers()[1], dtype=np.int32)
    return int(ends[text.offset]), int(ends[text.offset + len(text)])
