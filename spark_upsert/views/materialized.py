"""Materialized views: tables with a grouped view's sums (`MaterializedView`), or a view's rows.

Each step is one epoch and applied once (`table.write.outcomes`; docs/adr/0037). `MaterializedBase` reads a
materialized table in a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, prefix_ends
from spark_upsert.core.keys import Positions, Words, equal_rows
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.envelopes.write_plan import Create, plan_write
from spark_upsert.errors import CorruptionError, DataLossError, PlanError
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.join_keys import empty_batch
from spark_upsert.plan.nodes import Scan
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.changelog.changes import cut_into_ranges
from spark_upsert.table.compaction.worker import compact_runs
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import VIEW_PLAN, VIEW_RESULT, Manifest, Transaction
from spark_upsert.table.observers import ObservedTable
from spark_upsert.table.state.check import Finding
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import DecodedRows, to_commands
from spark_upsert.table.write.outcomes import recorded_position
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views.group_rows import PLAN, RESULT, ShownGroups, align_to_groups, grouping_of
from spark_upsert.views.grouping import Grouping, marker_entry
from spark_upsert.views.intervals import Pairs, RelationRows, concat
from spark_upsert.views.relation import LookedUpRows, align_rows
from spark_upsert.views.scan import require_columns


@dataclass(frozen=True, slots=True)
class MaterializedView:
    """A table of contributions, with the grouping for interpreting them."""

    table: Table
    grouping: Grouping

    @classmethod
    def create(cls, table: Table, grouping: Grouping, plan: str) -> MaterializedView:
        """Return the table materializing a view; create it if it does not exist."""
        text = grouping.to_json()
        properties = {PLAN: plan, RESULT: text}
        head = table.ensure(grouping.stored_schema, internal=properties)
        recorded = {name: head.properties.get(name) for name in properties}
        if recorded != properties:
            raise PlanError(
                f"the table at '{table.store.url}' keeps another view: expected {plan:.300}, found "
                f"{recorded[PLAN]!s:.300}.",
                hint="keep this view in another path.",
            )
        return cls(table, grouping)

    @classmethod
    def open(cls, table: Table) -> MaterializedView:
        """Return a table as a materialized view, by its properties."""
        return cls(table, require_grouping(table))

    # -- steps -----------------------------------------------------------------------

    def position(self) -> str:
        """Return the table's position in its view; initially `moves.NOTHING`."""
        return recorded_position(self.table.at())

    def apply(
        self,
        contributions: RelationRows,
        *,
        lower: str,
        upper: str,
        transaction: Transaction | None = None,
    ) -> bool:
        """Apply one step's contributions, if the table does not have it yet."""
        entries = [contributions, marker_entry(self.grouping, lower=lower, upper=upper)]
        step = pa.Table.from_batches(entries)
        return self.table.upsert(step, transaction=transaction) is not None

    # -- the result ------------------------------------------------------------------

    def rows(self, version: int | None = None) -> RelationRows:
        """Return the result at a version, by default the newest."""
        manifest = self.table.at(version).manifest
        return concat([empty_batch(self.grouping.result_schema), *self._shown.rows(manifest)])

    def look_up(self, groups: RelationRows, version: int) -> RelationRows:
        """Return the rows for groups at a version; groups without rows are omitted."""
        return self._shown.look_up(groups, self.table.at(version).manifest)

    def changes(self, lower: int, upper: int) -> Iterator[tuple[int, Pairs]]:
        """Yield the result's changes for the epochs ``lower <= e < upper``, one by one."""
        yield from group_changes(self.table.log, self._shown, lower, upper)

    @property
    def _shown(self) -> ShownGroups:
        return ShownGroups(self.grouping, self.table.store)


def require_grouping(table: ObservedTable) -> Grouping:
    """Return a materialized view's grouping; raise if the table materializes none."""
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
    """Yield a table's group changes for the epochs ``lower <= e < upper``, one by one."""
    for stretch in cut_into_ranges(log, lower, upper, log.head().schema):
        yield from groups.changes(stretch)


class MaterializedBase:
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
        require_columns(scan, grouping.result_schema, grouping.keys)
        self.may_lack_key = True  # NULL is a group.
        self._names = scan.schema.names
        self._table = table
        self._grouping = grouping
        self._shown = ShownGroups(grouping, table.store)
        self._schema = table.log.head().schema

    def hashes(self, keys: Sequence[pa.Array]) -> Words:
        """Return the groups' hashes (`BaseTable.hashes`)."""
        return prefix_ends(keys, seed=self._schema.hash_seed)[0]

    def is_indexed(self, column: str) -> bool:
        """Return False: groups are found by their columns (`BaseTable.is_indexed`)."""
        return False

    def index(self, column: str) -> Index | None:
        """Return None (`BaseTable.index`)."""
        return None

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        """Cut a hash range (`BaseTable.chunks`)."""
        if version is None:
            return [hash_range]
        return Snapshot(self._table.store, self._table.log.at(version)).chunks(hash_range)

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        """Return the changes between two versions, with their times (`BaseTable.changes`)."""
        group_range, log = align_to_groups(self._grouping, hash_range), self._table.log
        changes, versions = (
            [Pairs.empty(self._grouping.result_schema)],
            [np.empty(0, dtype=np.int64)],
        )
        for stretch in cut_into_ranges(log, before + 1, after + 1, self._schema, net=net):
            for version, pairs in self._shown.changes(stretch, group_range, net=net):
                changes.append(pairs)
                versions.append(np.full(len(pairs), version))
        every = Pairs.concat(changes).select(self._names)
        differs = every.bitwise_difference_mask()
        return every.filter(differs), np.concatenate(versions)[differs]

    def look_up(self, keys: RelationRows, version: int | None) -> LookedUpRows:
        """Return the rows for groups (`BaseTable.look_up`)."""
        rows = empty_batch(self._grouping.result_schema)
        if version is not None and keys.num_rows:
            rows = self._shown.look_up(keys, self._table.log.at(version))
        rows = rows.select(self._names)
        if not rows.num_rows:
            arrays = [pa.nulls(keys.num_rows, field.type) for field in rows.schema]
            absent = pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
            return LookedUpRows(absent, np.zeros(keys.num_rows, dtype=np.bool_))
        return align_rows(rows, keys)

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all groups with hashes in a range (`BaseTable.scan`)."""
        rows = [empty_batch(self._grouping.result_schema)]
        group_range = align_to_groups(self._grouping, hash_range)
        if version is not None and not group_range.is_empty:
            rows += self._shown.rows(self._table.log.at(version), group_range)
        return concat(rows).select(self._names)


def create_rows_table(
    table: Table, plan: str, options: WriteOptions, incoming: pa.Schema, *, hash_seed: int = 0
) -> Manifest:
    """Return the table materializing a view's rows; create it if it does not exist.

    With the seed of the view's leftmost table, rows with its key have its hash: then tasks, which
    read by hash range, also write disjoint hash ranges.

    Rows are ordered by their step's version, so only one query may write: another query may process
    epochs in another order (`table.write.guards`).
    """
    head = table.log.try_head()
    if head is None:
        step = plan_write(None, options, incoming)
        assert isinstance(step, Create)
        schema = replace(step.schema, hash_seed=hash_seed)
        head = table.ensure(schema, step.properties, internal={VIEW_PLAN: plan})
    recorded = head.properties.get(VIEW_PLAN)
    if recorded not in (None, plan):
        raise PlanError(
            f"the table at '{table.store.url}' keeps another view: expected {plan:.300}, found "
            f"{recorded:.300}.",
            hint="keep this view in another path.",
        )
    return head


RESULT_FOLDER = "_mirror/rows"
"""Its folder below the materialized table."""

_VERSIONS_MAX = 64
"""Versions retained before expiry, besides those needed by its mirror."""

_SAFETY_MS = 3_600_000
"""Expiry margin: its only reader, the mirror's publisher, has advanced by then."""

_IS_DELETED = "__gone"


def is_grouped(manifest: Manifest) -> bool:
    """Return whether a table materializes a view's groups."""
    return VIEW_RESULT in manifest.properties


def open_result_table(table: ObservedTable) -> Table:
    """Return a materialized table's settled table, whether or not it exists."""
    return Table(PrefixStore(table.store, RESULT_FOLDER), clock=lambda: table.log.now_ms() / 1000)


def read_result_version(table: ObservedTable, head: Manifest) -> int | None:
    """Return the materialized table's version in its settled table; None if there is none."""
    own_head = open_result_table(table).log.try_head()
    return None if own_head is None else own_head.transactions.get(head.table_id)


def update_result_table(table: ObservedTable) -> Table:
    """Return a materialized table's settled table, updated to its newest version."""
    head, result_table = table.log.head(), open_result_table(table)
    groups = ShownGroups(require_grouping(table), table.store)
    result_table.ensure(_schema(groups.grouping), allow_non_empty_path=True)
    at = result_table.log.head().transactions.get(head.table_id)
    if at is not None and at > head.version:
        raise CorruptionError.in_file(
            result_table.store.url,
            f"the groups at a version up to {head.version}",
            f"those of version {at}",
        )
    if at is None or not _apply_changes(table.log, groups, result_table, at, head):
        _replace_all(groups, result_table, head)
    _maintain(result_table)
    return result_table


def check_result_table(table: ObservedTable) -> Iterator[Finding]:
    """Yield the differences between a materialized table's groups and its settled table."""
    head, result_table = table.log.head(), open_result_table(table)
    grouping, at = grouping_of(head.properties), read_result_version(table, head)
    if grouping is None or at is None:
        return
    try:
        manifest = table.log.at(at)
    except DataLossError:
        return  # Its version is expired.
    snapshot, count = result_table.at(), 0
    for rows in ShownGroups(grouping, table.store).rows(manifest):
        stored_rows = snapshot.look_up([rows.column(name) for name in grouping.keys])
        is_there = stored_rows.at >= 0
        count += int(is_there.sum())
        if stored_rows.rows.num_rows:
            theirs = stored_rows.rows.take(pa.array(np.maximum(stored_rows.at, 0)))
            is_there &= equal_rows(rows.columns, theirs.columns)
        if not bool(is_there.all()):
            key = rows.slice(int(np.flatnonzero(~is_there)[0]), 1).to_pylist()[0]
            location = f"{result_table.store.url}, version {at} of its kept table"
            yield Finding(place=location, expected=f"the group {key}", found="another row, or none")
            return
    if count != snapshot.manifest.live_rows:
        found_count = str(snapshot.manifest.live_rows)
        yield Finding(place=result_table.store.url, expected=f"{count} groups", found=found_count)


def _schema(grouping: Grouping) -> TableSchema:
    return TableSchema.of(
        grouping.result_schema, keys=grouping.keys, scope=Scope.ARRIVAL, hash_seed=0
    )


def _apply_changes(log: Log, groups: ShownGroups, own: Table, at: int, head: Manifest) -> bool:
    """Settle the versions after one, each separately; return False if they are expired."""
    envelope = _Rows(schema=own.log.head().schema)
    try:
        for version, pairs in group_changes(log, groups, at + 1, head.upper):
            if len(pairs):
                own.upsert(
                    _rows(pairs),
                    envelope=envelope,
                    transaction=Transaction(writer=head.table_id, number=version),
                )
    except DataLossError:
        return False
    return True


def _rows(pairs: Pairs) -> pa.Table:
    """Return the new rows, and the old ones for removed groups."""
    gone = pairs.has_old & ~pairs.has_new
    parts = [
        side.filter(pa.array(chosen)).append_column(
            _IS_DELETED, pa.repeat(is_gone, int(chosen.sum()))
        )
        for side, chosen, is_gone in ((pairs.new, pairs.has_new, False), (pairs.old, gone, True))
    ]
    return pa.Table.from_batches(parts)


def _replace_all(groups: ShownGroups, own: Table, head: Manifest) -> None:
    """Settle all groups, range by range."""
    base = own.at()
    envelope = _Rows(schema=base.manifest.schema)
    commands = (
        envelope.commands(row.append_column(_IS_DELETED, pa.repeat(False, row.num_rows)))
        for row in groups.rows(head)
    )
    staged = stage(Snapshot(own.store, base.manifest), commands, overwrite=True)
    own.commit(
        WriteSet(
            base=base,
            staged=(staged,),
            transactions=(Transaction(writer=head.table_id, number=head.version),),
            overwrite=True,
        )
    )


def _maintain(own: Table) -> None:
    for job in own.compaction_jobs()[:1]:
        own.commit_compactions([compact_runs(own.store, own.log.head(), job)])
    head = own.log.head()
    if head.version - head.since > _VERSIONS_MAX:
        own.expire(retain_versions=1, safety_ms=_SAFETY_MS)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Converts group rows to commands; NULL is a group like others."""

    schema: TableSchema

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands (`Envelope.commands`)."""
        names = self.schema.columns.names
        gone = np.asarray(batch.column(_IS_DELETED).to_numpy(zero_copy_only=False), dtype=np.bool_)
        decoded = DecodedRows(
            columns={name: batch.column(name) for name in names},
            order=(),
            tombstones=gone,
            raw_values=lambda rows: pa.nulls(len(rows), pa.binary()),
            takes_null_keys=True,
        )
        return to_commands(self.schema, decoded)
