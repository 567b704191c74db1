"""Plans of views as plans of tasks: a name for each node, and a reader for each scan of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import count
from typing import Any

import pyarrow as pa

from spark_upsert.plan.nodes import IndexLookupJoin, Node, Scan, scans_of
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.task import Lookup, Task
from spark_upsert.task.sources import SplitReader, VersionSplit, version_reader
from spark_upsert.views.intervals import RelationRows
from tests.support.view_tables import RealWorld


def with_ids(plan: Node) -> Node:
    """Return a plan in which each node has a name of its own."""
    numbers = count()

    def named(node: Node) -> Node:
        inputs: dict[str, Any] = {
            each.name: named(value)
            for each in fields(node)
            if isinstance(value := getattr(node, each.name), Node)
        }
        return replace(node, id=f"{node.kind}_{next(numbers)}", **inputs)

    return named(plan)


def rows_by_task(
    plan: Node,
    world: RealWorld,
    at: Mapping[str, int],
    *,
    cuts: int,
    drivers: int = 1,
    looked_up: Lookup | None = None,
) -> list[pa.RecordBatch]:
    """Return what a task gives of a plan, over the splits of its tables at a position.

    Parameters
    ----------
    looked_up : Lookup, optional
        Where the look-up joins of the plan look keys up.
    """
    named = with_ids(plan)
    joins = [node.id for node in named.walk() if isinstance(node, IndexLookupJoin)]
    lookups = dict.fromkeys(joins, looked_up) if looked_up is not None else {}
    scans = [scan for scan in scans_of(named) if isinstance(scan, Scan)]
    readers = {scan.id: _reader(scan, world) for scan in scans}
    with Task(named, readers=readers, lookups=lookups, drivers=drivers) as task:
        for scan in scans:
            table = world.tables[scan.path]
            version = at[scan.path] if scan.version is None else scan.version
            # In the newest schema: rows older than a column have NULL in it.
            manifest = replace(table.log.at(version), schema=table.schema)
            for part in Snapshot(table.store, manifest).chunks(at_least=cuts):
                task.add_split(scan.id, VersionSplit(manifest, part))
        task.request_barrier()
        return list(task.iter_batches())


def _reader(scan: Scan, world: RealWorld) -> SplitReader:
    """Return what reads a table; of one that keeps groups these, and not its entries."""
    if scan.path not in world.kept:
        names = [column.name for column in scan.columns]
        return version_reader(world.tables[scan.path].store, names)
    base = world.open(scan)

    def groups(split: VersionSplit) -> list[RelationRows]:
        return [base.scan(split.manifest.version, split.hash_range)]

    return groups
