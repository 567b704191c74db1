"""The change feed of a mirror: what its readers see as the changes of a commit.

One file for a commit that changed rows, with the table's own changes: those from the version that
was shown before to the one that is shown now, no key twice. A commit that changed no row has none,
and says so by its flags (`dataChange`), so that a compaction is no change to anyone who follows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from spark_upsert.errors import DataLossError
from spark_upsert.mirror.actions import DeltaAction
from spark_upsert.mirror.twins import write_parquet
from spark_upsert.mirror.upkeep import FEED_FOLDER
from spark_upsert.model.schema import CHANGE_TYPE
from spark_upsert.store import Store
from spark_upsert.table.changes.modes import ChangeOptions, Deduplication
from spark_upsert.table.changes.read import read_changes
from spark_upsert.table.changes.stretches import cut_into_stretches
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest


class WrittenFeed(NamedTuple):
    """The changes of a step."""

    has_changes: bool
    """Whether any row changed."""
    action: DeltaAction | None
    """What names the file, if there is one."""


def write_feed(
    log: Log, table: Store, target: Store, before: int, head: Manifest
) -> WrittenFeed | None:
    """Write the changes behind one version up to another one; None if they are expired."""
    try:
        changes = _changes(log, table, before, head)
        first = next(changes, None)
    except DataLossError:
        return None
    if first is None:
        return WrittenFeed(has_changes=False, action=None)
    path = f"{FEED_FOLDER}/cdc-{secrets.token_hex(16)}.parquet"
    told = {"upsertflow.versions": f"{before + 1} to {head.version}"}
    size, _ = write_parquet(target, path, first.schema, chain([first], changes), told)
    fields = {"path": path, "partitionValues": {}, "size": size, "dataChange": False}
    return WrittenFeed(has_changes=True, action={"cdc": fields})


def _changes(log: Log, table: Store, before: int, head: Manifest) -> Iterator[pa.RecordBatch]:
    names = tuple(head.schema.columns.names)
    options = ChangeOptions(columns=names, deduplication=Deduplication.NET_CHANGES)
    for stretch in cut_into_stretches(log, before + 1, head.upper, head.schema, net=True):
        for batch in read_changes(table, stretch, options):
            yield _without_nullability(batch.select([*names, CHANGE_TYPE]))


def _without_nullability(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of which each column may be null, as Delta's schema says."""
    fields = [field.with_nullable(True) for field in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))
