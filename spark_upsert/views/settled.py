"""The settled table: the group rows of a materialized table as a plain table, for its mirror.

Invariant: its rows are the result at the version in its last transaction. It keeps only the history
that the mirror needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import equal_rows
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import CorruptionError, DataLossError
from spark_upsert.store.open import StoreBelow
from spark_upsert.table.compaction.worker import compact_runs
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.view_position import VIEW_RESULT
from spark_upsert.table.observers import ObservedTable
from spark_upsert.table.state.check import Finding
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import DecodedRows, to_commands
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views.group_rows import ShownGroups, grouping_of
from spark_upsert.views.grouping import Grouping
from spark_upsert.views.materialized import group_changes, grouping_kept
from spark_upsert.views.pairs import Pairs

SETTLED_FOLDER = "_mirror/rows"
"""Its folder below the materialized table."""

_VERSIONS_MAX = 64
"""Versions that it keeps, besides those that its mirror needs, before they are expired."""

_SAFETY_MS = 3_600_000
"""Expiry margin: its only reader, the mirror's publisher, has advanced by then."""

_GONE = "__gone"


def keeps_groups(manifest: Manifest) -> bool:
    """Return whether a table materializes a view's groups."""
    return VIEW_RESULT in manifest.properties


def settled_below(table: ObservedTable) -> Table:
    """Return a materialized table's settled table, whether or not it exists."""
    return Table(StoreBelow(table.store, SETTLED_FOLDER), clock=lambda: table.log.now_ms() / 1000)


def settled_at(table: ObservedTable, head: Manifest) -> int | None:
    """Return the materialized table's version in its settled table; None if there is none."""
    own_head = settled_below(table).log.try_head()
    return None if own_head is None else own_head.transactions.get(head.table_id)


def settle(table: ObservedTable) -> Table:
    """Return a materialized table's settled table, updated to its newest version."""
    head, result_table = table.log.head(), settled_below(table)
    groups = ShownGroups(grouping_kept(table), table.store)
    result_table.ensure(_schema(groups.grouping), allow_non_empty_path=True)
    at = result_table.log.head().transactions.get(head.table_id)
    if at is not None and at > head.version:
        raise CorruptionError.in_file(
            result_table.store.url,
            f"the groups at a version up to {head.version}",
            f"those of version {at}",
        )
    if at is None or not _by_change(table.log, groups, result_table, at, head):
        _whole(groups, result_table, head)
    _keep_up(result_table)
    return result_table


def check_settled(table: ObservedTable) -> Iterator[Finding]:
    """Yield the differences between a materialized table's groups and its settled table."""
    head, result_table = table.log.head(), settled_below(table)
    grouping, at = grouping_of(head.properties), settled_at(table, head)
    if grouping is None or at is None:
        return
    try:
        manifest = table.log.at(at)
    except DataLossError:
        return  # What it shows is expired.
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
    return TableSchema.of(grouping.result, keys=grouping.keys, scope=Scope.ARRIVAL, hash_seed=0)


def _by_change(log: Log, groups: ShownGroups, own: Table, at: int, head: Manifest) -> bool:
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
        side.filter(pa.array(chosen)).append_column(_GONE, pa.repeat(is_gone, int(chosen.sum())))
        for side, chosen, is_gone in ((pairs.new, pairs.has_new, False), (pairs.old, gone, True))
    ]
    return pa.Table.from_batches(parts)


def _whole(groups: ShownGroups, own: Table, head: Manifest) -> None:
    """Settle all groups, range by range."""
    base = own.at()
    envelope = _Rows(schema=base.manifest.schema)
    commands = (
        envelope.commands(row.append_column(_GONE, pa.repeat(False, row.num_rows)))
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


def _keep_up(own: Table) -> None:
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
        gone = np.asarray(batch.column(_GONE).to_numpy(zero_copy_only=False), dtype=np.bool_)
        decoded = DecodedRows(
            columns={name: batch.column(name) for name in names},
            order=(),
            tombstones=gone,
            raw_values=lambda rows: pa.nulls(len(rows), pa.binary()),
            takes_null_keys=True,
        )
        return to_commands(self.schema, decoded)
