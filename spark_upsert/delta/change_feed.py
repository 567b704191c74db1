"""The change feed of a mirror: one file per commit with the net changes since the shown version.

Over an expired past, changes are computed from the live rows before and after the step. A commit
without changed rows has no file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import Mask, Positions, identical_rows, sort_words
from spark_upsert.core.schema import CHANGE_TYPE, TableSchema
from spark_upsert.delta.actions import DeltaAction
from spark_upsert.delta.deletion_vectors import Vector
from spark_upsert.delta.parquet_files import in_columns, write_parquet
from spark_upsert.delta.upkeep import FEED_FOLDER
from spark_upsert.errors import DataLossError
from spark_upsert.store import Store
from spark_upsert.table.changelog.changes import cut_into_ranges
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication, read_changes
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state.snapshot import CHUNK_ROWS

ROWS_MAX = 1 << 20
"""Rows compared in one pass. With more, the files are read again for each share of the keys."""

Chosen: TypeAlias = Callable[[int, int], Mask]
"""Returns a selection mask over a file's rows ``start <= i < stop``."""


class WrittenFeed(NamedTuple):
    """A publication's change feed."""

    has_changes: bool
    """Whether any row changed."""
    action: DeltaAction | None
    """The file's action; None without changes."""


def write_feed(
    log: Log, table: Store, target: Store, before: int, head: Manifest
) -> WrittenFeed | None:
    """Write the changes after `before` up to `head`; None if they are expired."""
    try:
        changes = _changes(log, table, before, head)
        first = next(changes, None)
    except DataLossError:
        return None
    return _written(target, [] if first is None else chain([first], changes), before, head)


def write_feed_of_difference(
    target: Store,
    before: int,
    head: Manifest,
    removed_rows: Sequence[RowsOfFile],
    added_rows: Sequence[RowsOfFile],
) -> WrittenFeed:
    """Write the changes from rows live only before a publication to rows live only after it."""
    return _written(
        target, compare_rows(target, head.schema, removed_rows, added_rows), before, head
    )


def _written(
    target: Store, changes: Iterable[pa.RecordBatch], before: int, head: Manifest
) -> WrittenFeed:
    changes = iter(changes)
    first = next(changes, None)
    if first is None:
        return WrittenFeed(has_changes=False, action=None)
    path = f"{FEED_FOLDER}/cdc-{secrets.token_hex(16)}.parquet"
    metadata = {"upsertflow.versions": f"{before + 1} to {head.version}"}
    size, _ = write_parquet(target, path, first.schema, chain([first], changes), metadata)
    fields = {"path": path, "partitionValues": {}, "size": size, "dataChange": False}
    return WrittenFeed(has_changes=True, action={"cdc": fields})


def _changes(log: Log, table: Store, before: int, head: Manifest) -> Iterator[pa.RecordBatch]:
    names = tuple(head.schema.columns.names)
    options = ChangeOptions(columns=names, deduplication=Deduplication.NET_CHANGES)
    for stretch in cut_into_ranges(log, before + 1, head.upper, head.schema, net=True):
        for batch in read_changes(table, stretch, options):
            yield _without_nullability(batch.select([*names, CHANGE_TYPE]))


def _without_nullability(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with all columns nullable, as in Delta's schema."""
    fields = [field.with_nullable(True) for field in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


# -- by the files ---------------------------------------------------------------------------


class RowsOfFile(NamedTuple):
    """Selected rows in a Parquet copy."""

    path: str
    row_count: int
    chosen: Chosen

    @classmethod
    def live(cls, path: str, vector: Vector) -> RowsOfFile:
        """Select rows not marked as deleted by a vector."""
        return cls(path, vector.rows - vector.count, lambda a, b: ~vector.deleted_mask(a, b))

    @classmethod
    def newly_deleted(cls, path: str, one: Vector, other: Vector) -> RowsOfFile:
        """Select rows marked as deleted by the first vector but not by the second."""
        steps = range(0, one.rows, CHUNK_ROWS)

        def chosen(start: int, stop: int) -> Mask:
            return one.deleted_mask(start, stop) & ~other.deleted_mask(start, stop)

        counts = (np.count_nonzero(chosen(at, min(at + CHUNK_ROWS, one.rows))) for at in steps)
        return cls(path, sum(map(int, counts)), chosen)


def compare_rows(
    target: Store,
    schema: TableSchema,
    removed_rows: Sequence[RowsOfFile],
    added_rows: Sequence[RowsOfFile],
) -> Iterator[pa.RecordBatch]:
    """Yield the changes between two row sets with their types, at most one change per key."""
    shares = 1 + sum(file.row_count for file in (*removed_rows, *added_rows)) // ROWS_MAX
    for share in range(shares):
        old, new = (
            _read(target, schema, files, share=share, shares=shares)
            for files in (removed_rows, added_rows)
        )
        for batch in _difference(schema, old, new).to_batches(max_chunksize=CHUNK_ROWS):
            if batch.num_rows:
                yield batch


def _read(
    target: Store, schema: TableSchema, files: Sequence[RowsOfFile], *, share: int, shares: int
) -> pa.Table:
    """Return the selected rows whose key hash belongs to a share."""
    batches = []
    for file in files:
        at = 0
        twin = pq.ParquetFile(pa.BufferReader(target.map(file.path)))
        for batch in twin.iter_batches(batch_size=CHUNK_ROWS):
            chosen = file.chosen(at, at + batch.num_rows)
            at += batch.num_rows
            rows = in_columns(batch.filter(pa.array(chosen)), _nullable(schema.columns))
            if shares > 1 and rows.num_rows:
                keys = [rows.column(name) for name in schema.keys]
                is_in_share = hash_keys(keys, seed=schema.hash_seed) % np.uint64(shares) == share
                rows = rows.filter(pa.array(is_in_share))
            batches.append(rows)
    return pa.Table.from_batches(batches, schema=_nullable(schema.columns)).combine_chunks()


def _nullable(columns: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in columns])


def _difference(schema: TableSchema, old: pa.Table, new: pa.Table) -> pa.Table:
    before, after_images = _pairs(schema, old, new)
    columns = [
        [_combine_chunks(side.column(name)).take(pa.array(at)) for name in schema.columns.names]
        for side, at in ((old, before), (new, after_images))
    ]
    differ = ~identical_rows(*columns)
    parts = (
        ("delete", old, _unlisted_positions(before, old.num_rows)),
        ("update_preimage", old, before[differ]),
        ("update_postimage", new, after_images[differ]),
        ("insert", new, _unlisted_positions(after_images, new.num_rows)),
    )
    differences = []
    for kind, side, at in parts:
        rows = side.take(pa.array(at))
        differences.append(rows.append_column(CHANGE_TYPE, pa.repeat(kind, len(at))))
    return pa.concat_tables(differences)


def _pairs(schema: TableSchema, old: pa.Table, new: pa.Table) -> tuple[Positions, Positions]:
    """Return the old and new positions for keys on both sides."""
    words = sort_words(
        [
            pa.concat_arrays([_combine_chunks(side.column(key)) for side in (old, new)])
            for key in schema.keys
        ]
    )
    order = np.lexsort(words[::-1])  # Stable: of equal keys the old one is first.
    same = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for word in words:
        lined = word[order]
        same &= lined[1:] == lined[:-1]
    at = np.flatnonzero(same)
    return order[at], order[at + 1] - old.num_rows


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _unlisted_positions(positions: Positions, count: int) -> Positions:
    """Return the unlisted positions below a count, ascending."""
    is_other = np.ones(count, dtype=np.bool_)
    is_other[positions] = False
    return np.flatnonzero(is_other)
