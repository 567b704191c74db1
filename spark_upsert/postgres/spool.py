"""A batch's rows by table (`RowsByTable`), in memory up to a limit, then in one local file."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from spark_upsert.store.local import translated
from spark_upsert.store.spill import SpillFolder

MEMORY_BYTES = 32 << 20
"""Rows held in memory."""

_FILE = "rows.arrow"


class RowsByTable:
    """Collects record batches by table name; the batches of one table may differ in columns.

    A context manager: removes its file on exit.

    Parameters
    ----------
    memory_bytes : int
        Spill threshold.
    """

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._held_bytes = 0
        self._parts: dict[str, list[pa.RecordBatch | tuple[int, int]]] = {}
        """A batch, or its first byte and length in the file."""
        self._schemas: dict[str, pa.Schema] = {}
        self._folder: SpillFolder | None = None
        self._file_bytes = 0
        self.counts: dict[str, int] = {}
        """Rows by table."""
        self.bytes = 0
        """Total bytes added."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        """Add a table's rows, possibly none; spills above the memory limit."""
        schema = self._schemas.get(table, batch.schema)
        self._schemas[table] = pa.unify_schemas([schema, batch.schema])
        self.counts[table] = self.counts.get(table, 0) + batch.num_rows
        self._parts.setdefault(table, []).append(batch)
        self._held_bytes += batch.nbytes
        self.bytes += batch.nbytes
        if self._held_bytes >= self._memory_bytes:
            self._spill()

    def remove(self, table: str) -> None:
        """Remove a table's rows."""
        removed = self._parts.pop(table)
        self._held_bytes -= sum(b.nbytes for b in removed if isinstance(b, pa.RecordBatch))
        del self._schemas[table], self.counts[table]

    def schema(self, table: str) -> pa.Schema:
        """Return the columns of all of a table's batches."""
        return self._schemas[table]

    def rows(self, table: str) -> Iterator[pa.RecordBatch]:
        """Yield a table's batches in the order added; missing columns are null."""
        schema = self._schemas[table]
        for part in self._parts[table]:
            batch = part if isinstance(part, pa.RecordBatch) else self._read(*part)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            arrays = [
                columns.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _read(self, first: int, length: int) -> pa.RecordBatch:
        assert self._folder is not None
        with pa.memory_map(str(self._folder.path / _FILE)) as file:
            file.seek(first)
            with pa.ipc.open_stream(file.read_buffer(length)) as reader:
                return reader.read_next_batch()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = SpillFolder()
        path = self._folder.path / _FILE
        with translated("write to a file in", self._folder.path), path.open("ab") as file:
            for parts in self._parts.values():
                for index, part in enumerate(parts):
                    if isinstance(part, pa.RecordBatch):
                        with pa.ipc.new_stream(file, part.schema) as writer:
                            writer.write_batch(part)
                        end = file.tell()
                        parts[index] = (self._file_bytes, end - self._file_bytes)
                        self._file_bytes = end
        self._held_bytes = 0
