"""Changes as their reader sees them: the rows, their kinds, and which of them are left out.

A change is a pair of an old and a new row (`changes.Changes`). It becomes one row or two, with
the columns that the reader wants and `CHANGELOG_FIELDS` behind them, as the modes say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.schema import CHANGELOG_FIELDS
from spark_upsert.model.words import identical_rows
from spark_upsert.table.changes.changes import Changes
from spark_upsert.table.changes.modes import ChangeOptions, Deduplication
from spark_upsert.table.entries.found import ABSENT
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.run.rows import Rows

CHANGE_NAMES = ("insert", "update_preimage", "update_postimage", "delete")
INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)
_DIFFS = np.array([1, -1, 1, -1], dtype=np.int32)


def render(changes: Changes, times_ms: Mapping[int, int], options: ChangeOptions) -> pa.RecordBatch:
    """Turn pairs of entries into rows of the changelog.

    Parameters
    ----------
    changes : Changes
    times_ms : mapping of int to int
        The commit time of each epoch, in the order of the epochs.
    options : ChangeOptions

    Returns
    -------
    pyarrow.RecordBatch
        The chosen columns, then `CHANGELOG_FIELDS`. Sorted by epoch; the retraction of an update
        stands right before its insertion.
    """
    rows, old, new, epochs = changes.rows, changes.old, changes.new, changes.epochs
    if options.deduplication is not Deduplication.NONE:
        changed = _changed(rows, old, new)
        old, new, epochs = old[changed], new[changed], epochs[changed]
    by_epoch = np.argsort(epochs, kind="stable")
    old, new, epochs = old[by_epoch], new[by_epoch], epochs[by_epoch]
    versions = np.array(list(times_ms), dtype=np.int64)
    micros = 1000 * np.array(list(times_ms.values()), dtype=np.int64)
    sources, own = _rows_of_pairs(
        old, new, epochs, micros[np.searchsorted(versions, epochs)], options
    )
    fields = [rows.schema.columns.field(name) for name in options.columns]
    return pa.RecordBatch.from_arrays(
        [*rows.take(options.columns, sources), *own],
        schema=pa.schema([*fields, *CHANGELOG_FIELDS]),
    )


def render_sides(
    old: pa.RecordBatch,
    new: pa.RecordBatch,
    has_old: Mask,
    has_new: Mask,
    *,
    version: int | Positions,
    time_ms: int | Positions,
    options: ChangeOptions,
) -> pa.RecordBatch:
    """Turn pairs of rows into rows of the changelog, in their order; none is left out.

    Parameters
    ----------
    old, new : pyarrow.RecordBatch, shape (n,)
        Rows before and behind the changes, of the table's schema.
    has_old, has_new : numpy.ndarray of bool, shape (n,)
        Which rows there are.
    version, time_ms : int or numpy.ndarray of int64, shape (n,)
        Version and time of all changes, or of each.
    options : ChangeOptions
    """
    places = np.arange(old.num_rows)
    old_at, new_at = np.where(has_old, places, ABSENT), np.where(has_new, places, ABSENT)
    new_at[has_new] += old.num_rows
    versions, times_ms = (np.broadcast_to(each, len(places)) for each in (version, time_ms))
    sources, own = _rows_of_pairs(old_at, new_at, versions, 1000 * times_ms, options)
    both = pa.concat_batches([old.select(options.columns), new.select(options.columns)])
    taken = both.take(pa.array(sources))
    return pa.RecordBatch.from_arrays(
        [*taken.columns, *own], schema=pa.schema([*taken.schema, *CHANGELOG_FIELDS])
    )


def _rows_of_pairs(
    old: Positions, new: Positions, epochs: Positions, micros: Positions, options: ChangeOptions
) -> tuple[Positions, list[pa.Array]]:
    """Return the places of the rows that pairs become, and the columns behind those."""
    is_update = (old != ABSENT) & (new != ABSENT) & options.compute_updates
    # Two places per pair, the retraction first; absent ones are then left out.
    sources = np.column_stack([old, new]).reshape(-1)
    kinds = np.column_stack(
        [np.where(is_update, PREIMAGE, DELETE), np.where(is_update, POSTIMAGE, INSERT)]
    ).reshape(-1)
    shown = sources != ABSENT
    epochs, micros = np.repeat(epochs, 2)[shown], np.repeat(micros, 2)[shown]
    return sources[shown], _change_columns(kinds[shown], epochs, micros)


def as_inserts(batches: Iterator[pa.RecordBatch], manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Show the rows of a snapshot as insertions at its version."""
    for batch in batches:
        yield inserts(batch, version=manifest.version, time_ms=manifest.timestamp_ms)


def inserts(batch: pa.RecordBatch, *, version: int, time_ms: int) -> pa.RecordBatch:
    """Show rows as insertions at a version."""
    kinds = np.full(batch.num_rows, INSERT)
    epochs = np.full(batch.num_rows, version, dtype=np.int64)
    times = np.full(batch.num_rows, time_ms * 1000, dtype=np.int64)
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *_change_columns(kinds, epochs, times)],
        schema=pa.schema([*batch.schema, *CHANGELOG_FIELDS]),
    )


def _changed(rows: Rows, old: Positions, new: Positions) -> Mask:
    """Return which pairs are not an update to the values that are there already."""
    changed = np.ones(len(old), dtype=np.bool_)
    pairs = np.flatnonzero((old != ABSENT) & (new != ABSENT))
    if len(pairs):
        names = rows.schema.contents
        before, now = (rows.take(names, side[pairs]) for side in (old, new))
        changed[pairs] = ~identical_rows(before, now) if names else False
    return changed


def _change_columns(kinds: Positions, epochs: Positions, micros: Positions) -> list[pa.Array]:
    """Return the columns of `CHANGELOG_FIELDS`."""
    return [
        pa.array(CHANGE_NAMES).take(pa.array(kinds)),
        pa.array(epochs),
        pa.array(micros).cast(CHANGELOG_FIELDS[2].type),
        pa.array(_DIFFS[kinds]),
    ]
