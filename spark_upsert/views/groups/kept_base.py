"""A kept table as a scan reads it: the groups that it shows, at any version."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.model.arrays import Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.hashing import prefix_ends
from spark_upsert.model.words import Words
from spark_upsert.plan.kernels.taking import no_rows
from spark_upsert.plan.nodes import Scan
from spark_upsert.table.changes.stretches import cut_into_stretches
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.index.index import Index
from spark_upsert.table.table import Table
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.groups.shown import ShownGroups, whole_groups
from spark_upsert.views.pairs import Pairs, RelationRows, concat
from spark_upsert.views.relation import Looked, aligned
from spark_upsert.views.table_base import require_columns


class KeptBase:
    """A table of contributions as a plan reads it: a row per group (`Base`).

    The hash of a group is the first of the range in which its entries lie.

    Parameters
    ----------
    scan : Scan
        The plan's scan, with the columns of the result.
    table : Table
    grouping : Grouping
        What its entries mean.
    """

    def __init__(self, scan: Scan, table: Table, grouping: Grouping) -> None:
        require_columns(scan, grouping.result, grouping.keys)
        self.may_lack_key = True  # NULL is a group.
        self._names = scan.schema.names
        self._table = table
        self._grouping = grouping
        self._shown = ShownGroups(grouping, table.store)
        self._schema = table.log.head().schema

    def hashes(self, keys: Sequence[pa.Array]) -> Words:
        """Return the hashes of groups (`Base.hashes`)."""
        return prefix_ends(keys, seed=self._schema.hash_seed)[0]

    def is_indexed(self, column: str) -> bool:
        """Return False: groups are found by their columns (`Base.is_indexed`)."""
        return False

    def index(self, column: str) -> Index | None:
        """Return None (`Base.index`)."""
        return None

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        """Cut a range of hashes (`Base.chunks`)."""
        if version is None:
            return [hash_range]
        return Snapshot(self._table.store, self._table.log.at(version)).chunks(hash_range)

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        """Return what changed between two versions, and when (`Base.changes`)."""
        whole, log = whole_groups(self._grouping, hash_range), self._table.log
        found, versions = [Pairs.none(self._grouping.result)], [np.empty(0, dtype=np.int64)]
        for stretch in cut_into_stretches(log, before + 1, after + 1, self._schema, net=net):
            for version, pairs in self._shown.changes(stretch, whole, net=net):
                found.append(pairs)
                versions.append(np.full(len(pairs), version))
        every = Pairs.concat(found).select(self._names)
        differs = every.differs_by_bits()
        return every.where(differs), np.concatenate(versions)[differs]

    def look_up(self, keys: RelationRows, version: int | None) -> Looked:
        """Return the rows of groups (`Base.look_up`)."""
        rows = no_rows(self._grouping.result)
        if version is not None and keys.num_rows:
            rows = self._shown.look_up(keys, self._table.log.at(version))
        rows = rows.select(self._names)
        if not rows.num_rows:
            arrays = [pa.nulls(keys.num_rows, field.type) for field in rows.schema]
            absent = pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
            return Looked(absent, np.zeros(keys.num_rows, dtype=np.bool_))
        return aligned(rows, keys)

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all groups with hashes in a range (`Base.scan`)."""
        rows = [no_rows(self._grouping.result)]
        whole = whole_groups(self._grouping, hash_range)
        if version is not None and not whole.is_empty:
            rows += self._shown.rows(self._table.log.at(version), whole)
        return concat(rows).select(self._names)
