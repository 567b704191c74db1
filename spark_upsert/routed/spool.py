"""The spool: the rows of one task, by the table that they go to, in bounded memory.

Tables are staged one after the other, so that memory is that of one table, however many there are.
Until then rows wait here: up to `MEMORY_BYTES` as they came, and what exceeds that in a local file,
cut by table. Of each table they come back in the order in which they arrived, as often as asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_upsert.routed.routes import Route, Router
from spark_upsert.store.spills import SpillFolder
from spark_upsert.store.system_errors import translated

RoutingValues = tuple[str | None, ...]
"""Values that tell the rows of a table from those of others."""

MEMORY_BYTES = 32 << 20
"""Rows beyond this go to disk. They are held twice while they are cut by table."""

_FILE = "rows.arrow"


class Spool:
    """Rows of one schema, by table. A context manager: it may own a file on disk.

    Parameters
    ----------
    router : Router
        Finds the table of each row.
    memory_bytes : int
        How much waits in memory.
    """

    def __init__(self, router: Router, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._router = router
        self._memory_bytes = memory_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._counts: dict[RoutingValues, int] = {}
        self._routes: dict[RoutingValues, Route] = {}
        self._spilled: dict[RoutingValues, list[int]] = {}
        """Numbers of the batches in the file."""
        self._spilled_count = 0
        self._kept: dict[RoutingValues, list[pa.RecordBatch]] = {}
        self._folder: SpillFolder | None = None
        self._sink: pa.NativeFile | None = None
        self._writer: Any = None
        self._reader: Any = None
        self.bytes = 0
        """Bytes of all rows that came."""

    def __repr__(self) -> str:
        rows = sum(self._counts.values())
        return f"Spool(rows={rows:_}, bytes={self.bytes:_}, spilled={self._spilled_count})"

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader = self._writer = None
        if self._sink is not None:
            self._sink.close()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.bytes += batch.nbytes
        if self._waiting_bytes >= self._memory_bytes:
            self._spill()

    def seal(self) -> dict[Route, int]:
        """Return how many rows each table has, in the order of their folders; nothing may follow.

        What has no folder comes first.
        """
        if self._writer is not None and self._waiting:
            self._spill()
        for route, rows in self._cut():
            self._kept.setdefault(route.values, []).append(rows)
        if self._writer is not None:
            self._writer.close()
            assert self._sink is not None
            assert self._folder is not None
            self._sink.close()
            mapped = pa.memory_map(str(self._folder.path / _FILE))
            self._reader = pa.ipc.open_file(mapped)
        ordered = sorted(self._routes.values(), key=lambda route: (route.folder or "", route.name))
        return {route: self._counts[route.values] for route in ordered}

    def rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table in the order in which they came. After `seal` only."""
        for index in self._spilled.get(route.values, ()):
            yield self._reader.get_batch(index)
        yield from self._kept.get(route.values, ())

    def _cut(self) -> Iterator[tuple[Route, pa.RecordBatch]]:
        """Yield the waiting rows, table by table; nothing waits any more."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        batches = pa.Table.from_batches(waiting).combine_chunks().to_batches() if waiting else ()
        for batch in batches:
            for route, rows in self._router.route(batch).split():
                self._routes.setdefault(route.values, route)
                self._counts[route.values] = self._counts.get(route.values, 0) + rows.num_rows
                yield route, rows

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = SpillFolder()
        with translated("write to a file in", self._folder.path):
            if self._writer is None:
                self._sink = pa.OSFile(str(self._folder.path / _FILE), "wb")
                self._writer = pa.ipc.new_file(self._sink, self._waiting[0].schema)
            for route, rows in self._cut():
                self._writer.write_batch(rows)
                self._spilled.setdefault(route.values, []).append(self._spilled_count)
                self._spilled_count += 1
