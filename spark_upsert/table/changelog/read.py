"""Change reads (`read_changes`): options, one hash range at a time, and rendered rows.

Memory is bounded by the hash ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Mask, Positions, identical_rows
from spark_upsert.core.names import has_column, names_of
from spark_upsert.core.schema import CHANGE_DIFF, CHANGE_TYPE, CHANGELOG_FIELDS, COMMIT_VERSION
from spark_upsert.core.threads import map_in_order, useful_threads
from spark_upsert.errors import OptionError, setting
from spark_upsert.store import Store
from spark_upsert.table.changelog.changes import (
    Changes,
    EpochRange,
    changes_of_commands,
    changes_of_overwrite,
)
from spark_upsert.table.log.manifest import Manifest, Slice
from spark_upsert.table.run.remote import Access
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.state.snapshot import Snapshot, common

T = TypeVar("T")


class Deduplication(Enum):
    """Rule for omitted changes; the modes in Spark's change data capture (SPARK-55668)."""

    NONE = "none"
    """Return every change, including updates without a changed value."""
    DROP_CARRYOVERS = "dropCarryovers"
    """Omit updates without a changed value."""
    NET_CHANGES = "netChanges"
    """Return at most one change per key for all epochs in one read, at the key's last epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Options for change reads."""

    columns: tuple[str, ...]
    deduplication: Deduplication = Deduplication.DROP_CARRYOVERS
    compute_updates: bool = True
    """Whether a key's retraction and insertion are reported as an update."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", names_of(self.columns, "columns"))


VALID_NAMES = ("valid_from", "valid_to", "is_current")
"""A history's additional columns, which follow the table's."""


class ValidBy(Enum):
    """Axis for row validity."""

    TIME = "time"
    """Commit time."""
    VERSION = "version"
    """Commit version."""
    ORDER = "order"
    """Order key: the row's, and its ending delete's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Options for histories."""

    columns: tuple[str, ...]
    """Table columns."""
    by: ValidBy = ValidBy.TIME
    tracked: tuple[str, ...] = ()
    """Columns whose changes open a row; empty: all in ``columns``."""
    untracked: tuple[str, ...] = ()
    """Columns whose changes open no row, unlike all others; exclusive with ``tracked``."""


CHANGE_NAMES = ("insert", "update_preimage", "update_postimage", "delete")
INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)
_DIFFS = np.array([1, -1, 1, -1], dtype=np.int32)


def render(changes: Changes, times_ms: Mapping[int, int], options: ChangeOptions) -> pa.RecordBatch:
    """Convert entry pairs to changelog rows, in epoch order."""
    rows, old, new, epochs = changes.rows, changes.old, changes.new, changes.epochs
    if options.deduplication is not Deduplication.NONE:
        changed = _changed(rows, old, new)
        old, new, epochs = old[changed], new[changed], epochs[changed]
    by_epoch = np.argsort(epochs, kind="stable")
    old, new, epochs = old[by_epoch], new[by_epoch], epochs[by_epoch]
    versions = np.array(list(times_ms), dtype=np.int64)
    micros = 1000 * np.array(list(times_ms.values()), dtype=np.int64)
    sources, computed = _rows_of_pairs(
        old, new, epochs, micros[np.searchsorted(versions, epochs)], options
    )
    fields = [rows.schema.columns.field(name) for name in options.columns]
    return pa.RecordBatch.from_arrays(
        [*rows.take(options.columns, sources), *computed],
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
    """Convert row pairs to changelog rows, in pair order; no pair is omitted."""
    row_indices = np.arange(old.num_rows)
    old_at, new_at = np.where(has_old, row_indices, ABSENT), np.where(has_new, row_indices, ABSENT)
    new_at[has_new] += old.num_rows
    versions, times_ms = (
        np.broadcast_to(scalar, len(row_indices)) for scalar in (version, time_ms)
    )
    sources, computed = _rows_of_pairs(old_at, new_at, versions, 1000 * times_ms, options)
    both = pa.concat_batches([old.select(options.columns), new.select(options.columns)])
    taken = both.take(pa.array(sources))
    return pa.RecordBatch.from_arrays(
        [*taken.columns, *computed], schema=pa.schema([*taken.schema, *CHANGELOG_FIELDS])
    )


def _rows_of_pairs(
    old: Positions, new: Positions, epochs: Positions, micros: Positions, options: ChangeOptions
) -> tuple[Positions, list[pa.Array]]:
    """Return the source position for each changelog row, and the columns `CHANGELOG_FIELDS`."""
    is_update = (old != ABSENT) & (new != ABSENT) & options.compute_updates
    # Two positions per pair, the retraction first; absent ones are then dropped.
    sources = np.column_stack([old, new]).reshape(-1)
    kinds = np.column_stack(
        [np.where(is_update, PREIMAGE, DELETE), np.where(is_update, POSTIMAGE, INSERT)]
    ).reshape(-1)
    shown = sources != ABSENT
    epochs, micros = np.repeat(epochs, 2)[shown], np.repeat(micros, 2)[shown]
    return sources[shown], _change_columns(kinds[shown], epochs, micros)


def as_inserts(batches: Iterator[pa.RecordBatch], manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Convert a snapshot's rows to insertions at its version."""
    for batch in batches:
        yield inserts(batch, version=manifest.version, time_ms=manifest.timestamp_ms)


def inserts(batch: pa.RecordBatch, *, version: int, time_ms: int) -> pa.RecordBatch:
    """Convert rows to insertions at a version."""
    kinds = np.full(batch.num_rows, INSERT)
    epochs = np.full(batch.num_rows, version, dtype=np.int64)
    times = np.full(batch.num_rows, time_ms * 1000, dtype=np.int64)
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *_change_columns(kinds, epochs, times)],
        schema=pa.schema([*batch.schema, *CHANGELOG_FIELDS]),
    )


def _changed(rows: Rows, old: Positions, new: Positions) -> Mask:
    """Return which pairs are not updates with unchanged values."""
    changed = np.ones(len(old), dtype=np.bool_)
    pairs = np.flatnonzero((old != ABSENT) & (new != ABSENT))
    if len(pairs):
        names = rows.schema.contents
        before, now = (rows.take(names, side[pairs]) for side in (old, new))
        changed[pairs] = ~identical_rows(before, now) if names else False
    return changed


def _change_columns(kinds: Positions, epochs: Positions, micros: Positions) -> list[pa.Array]:
    """Return the columns `CHANGELOG_FIELDS`."""
    return [
        pa.array(CHANGE_NAMES).take(pa.array(kinds)),
        pa.array(epochs),
        pa.array(micros).cast(CHANGELOG_FIELDS[2].type),
        pa.array(_DIFFS[kinds]),
    ]


class WantedValues(Protocol):
    """Read options for consumers accepting new values only."""

    @property
    def ignore_deletes(self) -> bool:
        """Whether deletes are omitted."""
        ...


def new_values(
    changes: Iterable[pa.RecordBatch], wanted: WantedValues, *, keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Keep a table's gained rows.

    A delete is an error unless the reader ignores deletes: a consumer unable to retract a row would
    keep it. Rows removed by an overwrite or by a quarantined row are deletes, too.
    """
    for batch in changes:
        if not wanted.ignore_deletes:
            _refuse_deletes(batch, keys)
        yield batch.filter(pc.equal(batch.column(CHANGE_DIFF), 1))


def _refuse_deletes(batch: pa.RecordBatch, keys: Sequence[str]) -> None:
    delete_row = pc.index(batch.column(CHANGE_TYPE), CHANGE_NAMES[DELETE]).as_py()
    if delete_row < 0:
        return
    row = {
        name: batch.column(name)[delete_row].as_py()
        for name in (COMMIT_VERSION, *keys)
        if has_column(batch.schema, name)
    }
    version = row.pop(COMMIT_VERSION)
    key = ", ".join(f"{name}={value!r}" for name, value in row.items())
    raise OptionError(
        f"version {version} deletes a row{f' ({key})' if key else ''}, and this stream delivers "
        "new values only, which cannot say so.",
        hint=f"do one of two: (1) {setting('readChangeFeed', 'true')} delivers deletes and old "
        "values, too, with the columns '_change_type' and '_diff'; (2) "
        f"{setting('ignoreDeletes', 'true')} leaves deletes out, so that what you make of this "
        "stream keeps rows that the table has no more.",
        version=version,
    )


def read_changes(
    store: Store,
    epoch_range: EpochRange,
    options: ChangeOptions,
    *,
    hash_range: HashRange = ALL_HASHES,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes for keys in a hash range."""
    is_net = options.deduplication is Deduplication.NET_CHANGES

    def rendered(changes: Changes) -> pa.RecordBatch:
        return render(changes, epoch_range.times_ms, options)

    for batch in changes_by_piece(
        store, epoch_range, rendered, net=is_net, hash_range=hash_range, threads=threads
    ):
        if batch.num_rows:
            yield batch


def changes_by_piece(
    store: Store,
    epoch_range: EpochRange,
    made: Callable[[Changes], T],
    *,
    net: bool,
    hash_range: HashRange = ALL_HASHES,
    threads: int = 1,
) -> Iterator[T]:
    """Yield ``made``'s result for each piece in a hash range, in hash order.

    ``made`` may be called in several threads concurrently. With ``net`` a key has one change.
    """
    before = _snapshot(store, epoch_range, epoch_range.before.slices)
    after = _snapshot(store, epoch_range, epoch_range.after)

    access = Access(hash_range=hash_range)

    def changed(piece: HashRange) -> T:
        if epoch_range.is_comparison:
            return made(
                changes_of_overwrite(
                    before.parts(piece, access),
                    after.parts(piece, access),
                    schema=epoch_range.schema,
                    version=max(epoch_range.times_ms),
                )
            )
        return made(
            changes_of_commands(
                after.parts(piece, access), before.find, schema=epoch_range.schema, net=net
            )
        )

    main = before if epoch_range.is_comparison else after
    useful = useful_threads(sum(slice_.file.rows for slice_ in main.manifest.slices), threads)
    # Fine enough for one piece from either side to fit in memory.
    cuts = [side.chunks(hash_range, at_least=useful) for side in (main, after)]
    is_uniform = not epoch_range.schema.hash_prefix
    pieces = max(cuts, key=len) if is_uniform else common(hash_range, cuts)
    yield from map_in_order(changed, pieces, useful)


def _snapshot(store: Store, epoch_range: EpochRange, slices: Sequence[Slice]) -> Snapshot:
    """Return a snapshot with only the given slices, in the changes' schema."""
    return Snapshot(store, replace(epoch_range.before, slices=slices, schema=epoch_range.schema))
