"""A table as a scan reads it: its changes as pairs, its rows by key or whole, at any version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from spark_upsert.errors import SchemaError
from spark_upsert.model.arrays import Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.hashing import hash_keys
from spark_upsert.model.names import has_column
from spark_upsert.model.types import type_text
from spark_upsert.model.words import Words
from spark_upsert.plan.kernels.equal_keys import NOWHERE
from spark_upsert.plan.kernels.taking import no_rows
from spark_upsert.plan.nodes import Scan
from spark_upsert.table.changes.changes import Changes
from spark_upsert.table.changes.read import changes_by_piece
from spark_upsert.table.changes.stretches import cut_into_stretches
from spark_upsert.table.entries.found import ABSENT
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.kept_position import keeps_rows
from spark_upsert.table.table import Table
from spark_upsert.views.pairs import Pairs, RelationRows, concat, taken
from spark_upsert.views.relation import Looked


class TableBase:
    """A table as a plan reads it (`Base`).

    Parameters
    ----------
    scan : Scan
        A scan of the plan: its columns and key must still be those of the table, of the same types.
    table : Table
    """

    def __init__(self, scan: Scan, table: Table) -> None:
        head = table.log.head()
        require_columns(scan, head.schema.columns, head.schema.keys)
        self.may_lack_key = keeps_rows(head.properties)
        # In the newest schema, like changes: rows older than a column have NULL in it.
        self._own = head.schema
        self._schema = scan.schema
        self._names = self._schema.names
        self._table = table
        self._newest = Table(table.store)
        """The table with a log that never rests: an index may show what came after a reader began.
        """

    def hashes(self, keys: Sequence[pa.Array]) -> Words:
        """Return the hashes of keys (`Base.hashes`)."""
        return hash_keys(keys, seed=self._own.hash_seed, prefix=self._own.hash_prefix)

    def is_indexed(self, column: str) -> bool:
        """Return whether there is an index on a column (`Base.is_indexed`)."""
        return any(index.column == column for index in self._newest.indexes())

    def index(self, column: str) -> Index | None:
        """Return the index on a column (`Base.index`)."""
        return self._newest.index_of(column)

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        """Cut a range of hashes (`Base.chunks`)."""
        return [hash_range] if version is None else self._at(version).chunks(hash_range)

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        """Return what changed between two versions, and when (`Base.changes`)."""
        seen = self._table.log.head().version
        log = self._table.log if after <= seen else self._newest.log
        found = [(Pairs.none(self._schema), np.empty(0, dtype=np.int64))]
        for stretch in cut_into_stretches(log, before + 1, after + 1, self._own, net=net):
            found += changes_by_piece(
                self._table.store, stretch, self._as_pairs, net=net, hash_range=hash_range
            )
        pairs = Pairs.concat([each for each, _ in found])
        versions = np.concatenate([each for _, each in found])
        if len(self._names) == len(self._own.columns):
            return pairs, versions
        # What changed in other columns alone is nothing to the plan: it need not look it up.
        differs = pairs.differs_by_bits()
        return pairs.where(differs), versions[differs]

    def look_up(self, keys: RelationRows, version: int | None) -> Looked:
        """Return the rows of keys (`Base.look_up`)."""
        if version is None or not keys.num_rows:
            return self._none_of(keys.num_rows)
        columns = [keys.column(name) for name in self._own.keys]
        found = self._at(version).look_up(columns, self._names)
        rows = pa.RecordBatch.from_arrays(found.rows.columns, schema=self._schema)
        return Looked(taken(rows, found.at), found.at != ABSENT)

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Base.scan`)."""
        if version is None:
            return no_rows(self._schema)
        batches = self._at(version).read(self._names, hash_range=hash_range)
        given = (pa.RecordBatch.from_arrays(b.columns, schema=self._schema) for b in batches)
        return concat([no_rows(self._schema), *given])

    def _at(self, version: int) -> Snapshot:
        manifest = self._table.log.at(version)
        return Snapshot(self._table.store, replace(manifest, schema=self._own))

    def _as_pairs(self, changes: Changes) -> tuple[Pairs, Positions]:
        old, new = (self._rows(changes.rows.take, side) for side in (changes.old, changes.new))
        pairs = Pairs(old, new, changes.old != ABSENT, changes.new != ABSENT)
        return pairs, changes.epochs

    def _rows(
        self, take: Callable[[Sequence[str], Positions], list[pa.Array]], places: Positions
    ) -> RelationRows:
        """Return the rows at some places, of NULLs for `ABSENT`."""
        hit = places != ABSENT
        if not bool(hit.any()):
            return self._none_of(len(places)).rows
        rows = pa.RecordBatch.from_arrays(take(self._names, places[hit]), schema=self._schema)
        if bool(hit.all()):
            return rows
        beside = np.where(hit, np.cumsum(hit) - 1, NOWHERE)
        return rows.take(pa.array(beside, mask=~hit))

    def _none_of(self, count: int) -> Looked:
        arrays = [pa.nulls(count, field.type) for field in self._schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return Looked(rows, np.zeros(count, dtype=np.bool_))


def require_columns(scan: Scan, columns: pa.Schema, keys: tuple[str, ...]) -> None:
    """Raise if the table has not the columns that the plan froze."""
    remedy = "make the plan anew, and give the query a new checkpointLocation."
    if scan.key != keys:
        raise SchemaError(
            f"the plan reads '{scan.path}' by the key {scan.key}, and it is {keys} there.",
            hint=remedy,
        )
    for column in scan.columns:
        found = columns.field(column.name).type if has_column(columns, column.name) else None
        if found is None or type_text(found) != column.type:
            raise SchemaError(
                f"the plan reads '{column.name}' of '{scan.path}' as {column.type}, and it is "
                f"{'gone' if found is None else type_text(found)} there.",
                hint=remedy,
                column=column.name,
            )
