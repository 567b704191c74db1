"""The rows of a version in pieces, each of which any process can read by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_upsert.model.hash_range import HashRange
from spark_upsert.table.entries.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_upsert.table.where import Where


@dataclass(frozen=True)
class ScanPiece:
    """Some rows of a version: all pieces of a scan have each row once. Travels by pickle.

    It gives Arrow (``__arrow_c_stream__``), so that frames and engines take it as it is.

    Parameters
    ----------
    snapshot : Snapshot
    names : tuple of str
        The columns, in their order.
    hash_range : HashRange
        Of the keys of its rows.
    where : Where, optional
        Which of the rows are wanted; by default all.
    """

    snapshot: Snapshot
    names: tuple[str, ...]
    hash_range: HashRange
    where: Where | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns, as they come."""
        own = self.snapshot.manifest.schema.columns
        return pa.schema([own.field(name) for name in self.names])

    def scan(self) -> pa.RecordBatchReader:
        """Return a reader of its rows, in no particular order; memory stays bounded."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return its rows as a stream of Arrow."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self.where is None:
            return self.snapshot.read(self.names, hash_range=self.hash_range)
        return self.where.read(self.snapshot, self.names, hash_range=self.hash_range)
