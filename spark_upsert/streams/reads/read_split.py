"""Reading one split in a task (`read_split`), for every split type.

Each part computed in one pass is a split of the task and ends with a barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, assert_never

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.options.read import QueryOptions, ReadOptions
from spark_upsert.plan.nodes import ChangeScan, Node, TableScan
from spark_upsert.store import Store
from spark_upsert.streams.reads.ordered import Passage, read_passage
from spark_upsert.streams.reads.packing import InputReaders, Pack, read_pack
from spark_upsert.streams.reads.splits import ChangesSplit, QuarantineSplit, RowsSplit, Split
from spark_upsert.streams.reads.views import ViewSplit
from spark_upsert.table.changelog import history
from spark_upsert.table.changelog.changes import EpochRange
from spark_upsert.table.changelog.read import (
    VALID_NAMES,
    ChangeOptions,
    Deduplication,
    as_inserts,
    new_values,
    read_changes,
    render_sides,
)
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.expiry import translate_expired_files
from spark_upsert.table.state.snapshot import Snapshot, read_quarantine
from spark_upsert.task.task import Task, TaskPool
from spark_upsert.views.group_rows import ShownGroups

READ = "read"
"""The plans' single node."""

ROWS = TableScan(id=READ)
CHANGES = ChangeScan(id=READ)


def read_split(
    store: Store, split: Split, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows."""
    with TASKS.lend(_plan_of(split)) as task:
        for stretch in _scan_steps(split):
            yield from task.read(READ, _ScanStep(store, split, stretch, options, columns))


def _scan_steps(split: Split) -> tuple[EpochRange | None, ...]:
    """Return the passes over a split: one per epoch range for changes, else one."""
    return split.stretches if isinstance(split, ChangesSplit) and not split.history else (None,)


def _plan_of(split: Split) -> TableScan | ChangeScan:
    """Return the task's plan for a split type."""
    return CHANGES if isinstance(split, ChangesSplit) else ROWS


class _ScanStep(NamedTuple):
    """One pass over a split; the task processes it as one unit."""

    store: Store
    split: Split
    stretch: EpochRange | None
    options: ReadOptions
    columns: Sequence[str]


def _read(scan_step: _ScanStep) -> Iterator[pa.RecordBatch]:
    store, split, stretch, options, columns = scan_step
    match split:
        case RowsSplit():
            rows = _rows(store, split, columns)
            if options.change_feed:
                rows = as_inserts(rows, split.manifest)
            with translate_expired_files(store, split.manifest.version):
                yield from rows
        case QuarantineSplit():
            snapshot = Snapshot(store, split.manifest)
            with translate_expired_files(store, split.manifest.version):
                yield from read_quarantine(snapshot, hash_range=split.hash_range)
        case ChangesSplit() if split.history is not None:
            shown = [*split.history.columns, *VALID_NAMES]
            with translate_expired_files(store, min(split.stretches[0].times_ms)):
                for rows in history.read_history(
                    store, split.stretches, split.history, hash_range=split.hash_range
                ):
                    yield rows.select(shown)
        case ChangesSplit():
            assert stretch is not None, "changes are read stretch by stretch"
            with translate_expired_files(store, stretch.before.version):
                yield from _changes(store, split, stretch, options, columns)
        case _:
            assert_never(split)


def _rows(store: Store, split: RowsSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a version's rows: the table's own, or the materialized view's."""
    snapshot, where = Snapshot(store, split.manifest), split.where
    if split.grouping is not None:
        for rows in ShownGroups(split.grouping, store).rows(split.manifest, split.hash_range):
            yield (rows if where is None else where.filter(rows)).select(columns)
    elif where is None:
        yield from snapshot.read(columns, hash_range=split.hash_range)
    else:
        yield from where.read(snapshot, columns, hash_range=split.hash_range)


def _changes_of_groups(
    shown: ShownGroups, split: ChangesSplit, stretch: EpochRange, wanted: ChangeOptions
) -> Iterator[pa.RecordBatch]:
    net = wanted.deduplication is Deduplication.NET_CHANGES
    for version, pairs in shown.changes(stretch, split.hash_range, net=net):
        if len(pairs):
            yield render_sides(
                pairs.old,
                pairs.new,
                pairs.has_old,
                pairs.has_new,
                version=version,
                time_ms=stretch.times_ms[version],
                options=wanted,
            )


def _changes(
    store: Store,
    split: ChangesSplit,
    stretch: EpochRange,
    options: ReadOptions,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    change_options = ChangeOptions(
        columns=tuple(columns),
        deduplication=options.deduplication,
        compute_updates=options.compute_updates,
    )
    keys = stretch.schema.keys
    if split.grouping is None:
        batches = read_changes(store, stretch, change_options, hash_range=split.hash_range)
    else:
        keys = split.grouping.keys
        batches = _changes_of_groups(
            ShownGroups(split.grouping, store), split, stretch, change_options
        )
    if options.change_feed:
        return batches
    return new_values(batches, options, keys=keys)


TASKS: TaskPool[Node] = TaskPool(lambda plan: Task(plan, readers={READ: _read}))
"""A worker's task pool; Spark mostly reuses the worker for the query's next batch."""


TaskRead = Pack | Passage
"""One task's splits, or a passage in an exact order; pickled into the task."""


def read_work(
    readers: InputReaders, work: TaskRead, query: QueryOptions, columns: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows, with the requested merge columns."""
    if isinstance(work, Passage):
        return read_passage(readers, work, query.merge_columns, columns)
    return read_pack(readers, work, query.merge_columns, columns)


def splits_of(work: TaskRead) -> Iterator[Any]:
    """Yield all splits read by a task."""
    if isinstance(work, Passage):
        for share in work.shares:
            yield from share.splits
    else:
        for item in work:
            yield item.split


def refuse_own_epochs(splits: Iterable[Any], query_id: str | None) -> None:
    """Refuse versions written by the reading query itself; raises `OptionError`."""
    writer = None if query_id is None else Transaction.writer_of_query(query_id)
    for split in splits:
        is_table = isinstance(split, RowsSplit | ChangesSplit | ViewSplit)
        if is_table and writer in split.queries:
            raise OptionError(
                "the query reads what it writes: a table that is among its inputs is its sink, "
                f"too, and {_versions(split)} is its own. Each batch would make the next one.",
                hint="write into another table, which 'inputsPattern' does not find, and with a "
                "new checkpointLocation. Who keeps a table clean by itself does it in batch "
                "writes, or reads another table that it was made from.",
            )


def _versions(split: RowsSplit | ChangesSplit | ViewSplit) -> str:
    if isinstance(split, ViewSplit):
        return "what a table of the plan gained"
    if isinstance(split, RowsSplit):
        return f"version {split.manifest.version} or one before it"
    versions = sorted(version for stretch in split.stretches for version in stretch.times_ms)
    return f"version {versions[0]} or one up to {versions[-1]}"
