"""Materialized views: tables with a grouped view's sums (`MaterializedView`), or a view's rows.

Each step is one epoch and applied once (`table.write.moves`; docs/adr/0037). `KeptBase` reads a
materialized table in a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, prefix_ends
from spark_upsert.core.keys import Positions, Words
from spark_upsert.envelopes.write_plan import Create, plan_write
from spark_upsert.errors import PlanError
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.join_keys import no_rows
from spark_upsert.plan.nodes import Scan
from spark_upsert.table.changelog.epoch_ranges import cut_into_stretches
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.view_position import VIEW_PLAN
from spark_upsert.table.observers import ObservedTable
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import recorded_position
from spark_upsert.views.group_rows import PLAN, RESULT, ShownGroups, grouping_of, whole_groups
from spark_upsert.views.grouping import Grouping, marker
from spark_upsert.views.pairs import Pairs, RelationRows, concat
from spark_upsert.views.relation import LookedUpRows, aligned
from spark_upsert.views.scan import require_columns


@dataclass(frozen=True, slots=True)
class MaterializedView:
    """A table of contributions, with the grouping that interprets them."""

    table: Table
    grouping: Grouping

    @classmethod
    def made(cls, table: Table, grouping: Grouping, plan: str) -> MaterializedView:
        """Return the table that keeps a view; it is made if there is none."""
        text = grouping.to_json()
        properties = {PLAN: plan, RESULT: text}
        head = table.ensure(grouping.kept, internal=properties)
        recorded = {name: head.properties.get(name) for name in properties}
        if recorded != properties:
            raise PlanError(
                f"the table at '{table.store.url}' keeps another view: expected {plan:.300}, found "
                f"{recorded[PLAN]!s:.300}.",
                hint="keep this view in another path.",
            )
        return cls(table, grouping)

    @classmethod
    def opened(cls, table: Table) -> MaterializedView:
        """Return a table as a materialized view, by its properties."""
        return cls(table, grouping_kept(table))

    # -- steps -----------------------------------------------------------------------

    def position(self) -> str:
        """Return the table's position in its view; initially `moves.NOTHING`."""
        return recorded_position(self.table.at())

    def take(
        self,
        contributions: RelationRows,
        *,
        lower: str,
        upper: str,
        transaction: Transaction | None = None,
    ) -> bool:
        """Apply one step's contributions, if the table does not have it yet."""
        entries = [contributions, marker(self.grouping, lower=lower, upper=upper)]
        step = pa.Table.from_batches(entries)
        return self.table.upsert(step, transaction=transaction) is not None

    # -- the result ------------------------------------------------------------------

    def rows(self, version: int | None = None) -> RelationRows:
        """Return the result at a version, by default the newest."""
        manifest = self.table.at(version).manifest
        return concat([no_rows(self.grouping.result), *self._shown.rows(manifest)])

    def look_up(self, groups: RelationRows, version: int) -> RelationRows:
        """Return the rows for groups at a version; groups without rows are omitted."""
        return self._shown.look_up(groups, self.table.at(version).manifest)

    def changes(self, lower: int, upper: int) -> Iterator[tuple[int, Pairs]]:
        """Yield the result's changes for the epochs ``lower <= e < upper``, one by one."""
        yield from group_changes(self.table.log, self._shown, lower, upper)

    @property
    def _shown(self) -> ShownGroups:
        return ShownGroups(self.grouping, self.table.store)


def grouping_kept(table: ObservedTable) -> Grouping:
    """Return the grouping of a table that keeps a view; raise if it keeps none."""
    grouping = grouping_of(table.log.head().properties)
    if grouping is None:
        raise PlanError(
            f"the table at '{table.store.url}' keeps no view.",
            hint="read it as any table, or keep a view in another path.",
        )
    return grouping


def group_changes(
    log: Log, groups: ShownGroups, lower: int, upper: int
) -> Iterator[tuple[int, Pairs]]:
    """Yield what the epochs ``lower <= e < upper`` changed in the groups of a table, one by one."""
    for stretch in cut_into_stretches(log, lower, upper, log.head().schema):
        yield from groups.changes(stretch)


class KeptBase:
    """A table of contributions as a plan reads it: a row per group (`Base`).

    A group's hash is the first in its entries' range.

    Parameters
    ----------
    scan : Scan
        The plan's scan, with the result columns.
    table : Table
    grouping : Grouping
        Interprets its entries.
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
        """Return the groups' hashes (`Base.hashes`)."""
        return prefix_ends(keys, seed=self._schema.hash_seed)[0]

    def is_indexed(self, column: str) -> bool:
        """Return False: groups are found by their columns (`Base.is_indexed`)."""
        return False

    def index(self, column: str) -> Index | None:
        """Return None (`Base.index`)."""
        return None

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        """Cut a hash range (`Base.chunks`)."""
        if version is None:
            return [hash_range]
        return Snapshot(self._table.store, self._table.log.at(version)).chunks(hash_range)

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        """Return the changes between two versions, with their times (`Base.changes`)."""
        group_range, log = whole_groups(self._grouping, hash_range), self._table.log
        changes, versions = [Pairs.none(self._grouping.result)], [np.empty(0, dtype=np.int64)]
        for stretch in cut_into_stretches(log, before + 1, after + 1, self._schema, net=net):
            for version, pairs in self._shown.changes(stretch, group_range, net=net):
                changes.append(pairs)
                versions.append(np.full(len(pairs), version))
        every = Pairs.concat(changes).select(self._names)
        differs = every.differs_by_bits()
        return every.where(differs), np.concatenate(versions)[differs]

    def look_up(self, keys: RelationRows, version: int | None) -> LookedUpRows:
        """Return the rows for groups (`Base.look_up`)."""
        rows = no_rows(self._grouping.result)
        if version is not None and keys.num_rows:
            rows = self._shown.look_up(keys, self._table.log.at(version))
        rows = rows.select(self._names)
        if not rows.num_rows:
            arrays = [pa.nulls(keys.num_rows, field.type) for field in rows.schema]
            absent = pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
            return LookedUpRows(absent, np.zeros(keys.num_rows, dtype=np.bool_))
        return aligned(rows, keys)

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all groups with hashes in a range (`Base.scan`)."""
        rows = [no_rows(self._grouping.result)]
        group_range = whole_groups(self._grouping, hash_range)
        if version is not None and not group_range.is_empty:
            rows += self._shown.rows(self._table.log.at(version), group_range)
        return concat(rows).select(self._names)


def made_for_rows(table: Table, plan: str, options: WriteOptions, incoming: pa.Schema) -> Manifest:
    """Return the table that materializes a view's rows; create it if it does not exist.

    Rows are ordered by their step's version, so only one query may write: another query may process
    epochs in another order (`table.write.guards`).
    """
    head = table.log.try_head()
    if head is None:
        step = plan_write(None, options, incoming)
        assert isinstance(step, Create)
        head = table.ensure(step.schema, step.properties, internal={VIEW_PLAN: plan})
    recorded = head.properties.get(VIEW_PLAN)
    if recorded not in (None, plan):
        raise PlanError(
            f"the table at '{table.store.url}' keeps another view: expected {plan:.300}, found "
            f"{recorded:.300}.",
            hint="keep this view in another path.",
        )
    return head
