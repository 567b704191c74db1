"""The look-ups of an index lookup join: in a version of a table, or in Arrow rows in memory.

Found rows are shown without their key, because the probing rows have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.errors import PlanError
from spark_upsert.model.arrays import Positions
from spark_upsert.model.names import has_column, names_of
from spark_upsert.plan.kernels.equal_keys import NOWHERE
from spark_upsert.plan.kernels.key_index import KeyIndex
from spark_upsert.table.entries.found import ABSENT
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.task.operators.join_rows import Side


class LookupResult(NamedTuple):
    """The rows of some keys: of each, where they begin and how many there are."""

    rows: pa.RecordBatch
    starts: Positions
    counts: Positions
    order: Positions | None = None
    """The row at each place; if there is no order, the place itself."""


class Lookup(Protocol):
    """Finds rows by their keys; several threads may ask at once."""

    @property
    def keys(self) -> Sequence[pa.Field]:
        """By what rows are found."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        ...

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        """Return the rows of some keys, which have no nulls; there is at least one."""
        ...


class TableLookup:
    """The rows of a table at one version, found by its whole key.

    Parameters
    ----------
    snapshot : Snapshot
    columns : sequence of str, optional
        Which of them are given; by default all that are not of the key.
    """

    def __init__(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> None:
        self._snapshot = snapshot
        table = snapshot.manifest.schema
        self.keys = [table.columns.field(name) for name in table.keys]
        self.schema = _chosen(table.columns, table.keys, columns)

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        rows, at = self._snapshot.look_up(keys, self.schema.names)
        found = at != ABSENT
        return LookupResult(rows, np.where(found, at, 0), found.astype(np.int64))


class ArrowLookup:
    """Rows in memory, found by columns of which several rows may have the same values.

    Parameters
    ----------
    rows : pyarrow.Table
    keys : sequence of str
        The columns by which they are found; a row with a null in one of them never is.
    columns : sequence of str, optional
        Which of them are given; by default all that are not of the key.
    """

    def __init__(
        self, rows: pa.Table, keys: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        keys = names_of(keys, "keys")
        for name in keys:
            if not has_column(rows.schema, name):
                raise PlanError.missing_column(name, rows.schema.names)
        self.keys = [rows.schema.field(name) for name in keys]
        self.schema = _chosen(rows.schema, keys, columns)
        side = Side(rows.schema, tuple(keys))
        batches = rows.to_batches()
        keyed, _ = side.split(pa.concat_batches(batches) if batches else side.nothing)
        self._rows = keyed.select(self.schema.names)
        self._index = KeyIndex(side.keys_of(keyed))

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        groups = self._index.find(keys)
        found = groups != NOWHERE
        starts, counts = np.zeros_like(groups), np.zeros_like(groups)
        starts[found] = self._index.starts[groups[found]]
        counts[found] = self._index.counts[groups[found]]
        return LookupResult(self._rows, starts, counts, self._index.order)


def _chosen(schema: pa.Schema, keys: Sequence[str], columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        columns = [name for name in schema.names if name not in keys]
    columns = names_of(columns, "columns")
    for name in columns:
        if not has_column(schema, name):
            raise PlanError.missing_column(name, schema.names)
    return pa.schema([schema.field(name) for name in columns])
