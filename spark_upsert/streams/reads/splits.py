"""Table read splits: small values with manifests reduced to a hash range.

Their number depends on options, data and machine; their rows together do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.plan.expressions import Pins
from spark_upsert.streams.reads.columns import shown_columns, shown_grouping
from spark_upsert.table.changelog import history
from spark_upsert.table.changelog.changes import EpochRange, cut_into_ranges, fully_scanned_slices
from spark_upsert.table.changelog.read import Deduplication, HistoryOptions
from spark_upsert.table.log.manifest import QUERY, Manifest, Slice
from spark_upsert.table.log.slices import SliceList
from spark_upsert.table.log.snapshot import Versions
from spark_upsert.table.scan import IndexOf, RowFilter, hashes_of
from spark_upsert.table.state.lookup import Prefixes
from spark_upsert.table.state.snapshot import Snapshot, cut_by_files
from spark_upsert.views.group_rows import align_to_groups
from spark_upsert.views.grouping import Grouping

SPLIT_ROWS = 50_000
"""Fewer rows than this are not worth a separate task."""


@dataclass(frozen=True, slots=True)
class RowsSplit:
    """A version's rows in a hash range."""

    manifest: Manifest
    hash_range: HashRange
    queries: frozenset[str] = frozenset()
    """Streaming queries that wrote any part, by their transactions' writers."""
    grouping: Grouping | None = None
    """Grouping for a shown materialized view; the range then covers complete groups."""
    where: RowFilter | None = None
    """Filter for the wanted rows; None: all."""


@dataclass(frozen=True, slots=True)
class QuarantineSplit:
    """A version's error entries in a hash range."""

    manifest: Manifest
    hash_range: HashRange


@dataclass(frozen=True, slots=True)
class ChangesSplit:
    """Changes in consecutive epochs, in a hash range."""

    stretches: tuple[EpochRange, ...]
    hash_range: HashRange
    queries: frozenset[str] = frozenset()
    """Streaming queries that wrote these epochs, by their transactions' writers."""
    grouping: Grouping | None = None
    """As in `RowsSplit`."""
    history: HistoryOptions | None = None
    """Options for a history read; None: the changes themselves."""


Split = RowsSplit | QuarantineSplit | ChangesSplit


def rows_splits(
    manifest: Manifest, options: ReadOptions, hash_range: HashRange = ALL_HASHES
) -> list[RowsSplit]:
    """Cut a version's rows in a hash range into splits."""
    queries, grouping = queries_of(manifest.transactions), shown_grouping(manifest, options)
    return [
        RowsSplit(restrict_manifest(manifest, piece), piece, queries, grouping)
        for piece in _of_groups(grouping, cut_rows(manifest, options, hash_range))
    ]


def quarantine_splits(manifest: Manifest, options: ReadOptions) -> list[QuarantineSplit]:
    """Cut a version's error entries into splits."""
    return [
        QuarantineSplit(restrict_manifest(manifest, piece), piece)
        for piece in cut_rows(manifest, options, ALL_HASHES)
    ]


def changes_splits(
    log: Versions, options: ReadOptions, lower: int, upper: int
) -> list[ChangesSplit]:
    """Cut the changes in the versions ``lower <= v < upper`` into splits; empty without changes.

    They are shown in the table's newest schema.
    """
    net = options.deduplication is Deduplication.NET_CHANGES
    head = log.head()
    grouping = shown_grouping(head, options)
    if grouping is not None and options.deduplication is Deduplication.NONE:
        raise OptionError.invalid(
            "deduplicationMode", "none", "another mode: rows of a view that stay are no changes"
        )
    stretches = cut_into_ranges(log, lower, upper, head.schema, net=net)
    if not stretches:
        return []
    queries = queries_of(
        transaction.writer
        for commit in log.commits(max(lower, 0), upper)
        for transaction in commit.transactions
    )
    return [
        ChangesSplit(tuple(_stretch_within(s, piece) for s in stretches), piece, queries, grouping)
        for piece in _of_groups(grouping, _cut_changes(stretches, options))
    ]


def history_splits(
    log: Versions, options: ReadOptions, wanted: HistoryOptions, lower: int, upper: int
) -> list[ChangesSplit]:
    """Cut the history for ``lower <= v < upper`` into splits, each with complete keys."""
    stretches = history.history_ranges(log, lower, upper, log.head().schema, wanted)
    return [
        ChangesSplit(tuple(_stretch_within(s, piece) for s in stretches), piece, history=wanted)
        for piece in _cut_changes(stretches, options)
    ]


def _cut_changes(stretches: Sequence[EpochRange], options: ReadOptions) -> list[HashRange]:
    """Cut the hash space into split ranges, by the rows from which the changes are computed."""
    read = fully_scanned_slices(stretches)
    count = _split_count(options, sum(slice_.file.rows for slice_ in read))
    is_uniform = not stretches[0].schema.hash_prefix
    return cut_by_files(ALL_HASHES, read, count, is_uniform=is_uniform)


def _of_groups(grouping: Grouping | None, pieces: list[HashRange]) -> list[HashRange]:
    """Align ranges with groups, if there is a grouping; drop empty ones."""
    if grouping is None:
        return pieces
    complete = (align_to_groups(grouping, piece) for piece in pieces)
    return [piece for piece in complete if not piece.is_empty]


def queries_of(writers: Iterable[str]) -> frozenset[str]:
    """Return the streaming queries among the writers."""
    return frozenset(writer for writer in writers if writer.startswith(QUERY))


def cut_rows(manifest: Manifest, options: ReadOptions, hash_range: HashRange) -> list[HashRange]:
    """Cut a hash range into split ranges, by its share in the row count."""
    share = hash_range.width / ALL_HASHES.width
    rows = int(share * manifest.slice_list.rows)
    is_uniform = not manifest.schema.hash_prefix
    count = _split_count(options, rows)
    return cut_by_files(hash_range, manifest.slices, count, is_uniform=is_uniform)


def _split_count(options: ReadOptions, rows: int) -> int:
    if options.splits is not None:
        return options.splits
    return max(1, min(options.query.slots, rows // SPLIT_ROWS))


def _stretch_within(stretch: EpochRange, hash_range: HashRange) -> EpochRange:
    return replace(
        stretch,
        before=restrict_manifest(stretch.before, hash_range),
        after=SliceList.of(stretch.after).within(hash_range),
    )


def restrict_manifest(manifest: Manifest, hash_range: HashRange) -> Manifest:
    """Return a manifest with only the slices in a range, to keep a pickled split small."""
    return manifest.without_writers().within(hash_range)


def slices_read(split: Split) -> Iterator[Sequence[Slice]]:
    """Yield the slices read completely by a split; it only searches others."""
    if isinstance(split, ChangesSplit):
        yield fully_scanned_slices(split.stretches)
    else:
        yield split.manifest.slices


def distinct_slices(several: Iterable[Iterable[Slice]]) -> tuple[Slice, ...]:
    """Return each slice once, in order."""
    return tuple(dict.fromkeys(chain.from_iterable(several)))


def split_bytes(split: Split) -> int:
    """Estimate the bytes that a split reads."""
    return sum(
        slice_.bytes_within(split.hash_range) for slice_ in distinct_slices(slices_read(split))
    )


_PREFIXES_MAX = 64
"""Maximum hash prefixes with separate splits; more are searched by one task in one pass."""


def row_filter(manifest: Manifest, options: ReadOptions, pushed: Pins) -> RowFilter | None:
    """Return a read's row filter; None: all rows."""
    columns = shown_columns(manifest, options)
    where = RowFilter(columns) if options.filter is None else RowFilter.of(options.filter, columns)
    where = where.pinned(pushed)
    return where if where.condition or where.pins else None


def filtered_splits(
    snapshot: Snapshot, options: ReadOptions, where: RowFilter, index_of: IndexOf
) -> list[RowsSplit]:
    """Cut a version's wanted rows into splits; an empty list if no row can match."""
    if where.is_never:
        return []
    manifest = snapshot.manifest
    if shown_grouping(manifest, options) is not None:
        # Entries are group sums: the pins apply to the decoded rows, not to the entry keys.
        return [replace(rows_split, where=where) for rows_split in rows_splits(manifest, options)]
    where, queries = where.by_index(snapshot, index_of), queries_of(manifest.transactions)
    return [
        RowsSplit(restrict_manifest(manifest, piece), piece, queries, where=where)
        for piece in _ranges_wanted(manifest, options, where)
    ]


def _ranges_wanted(
    manifest: Manifest, options: ReadOptions, where: RowFilter
) -> Iterable[HashRange]:
    """Return the hash ranges containing all wanted rows."""
    if where.indexed is not None:
        return [ALL_HASHES]
    schema = manifest.schema
    keys = where.keys(schema)
    if keys is not None:
        hashes = np.sort(hashes_of(schema, keys))
        ends = [*range(0, len(hashes), SPLIT_ROWS), len(hashes)]
        return [HashRange.spanning(hashes[a], hashes[b - 1]) for a, b in pairwise(ends)]
    prefixes = where.prefixes(schema)
    if prefixes is None:
        return cut_rows(manifest, options, ALL_HASHES)
    wanted_prefixes = Prefixes.of(schema, prefixes.columns)
    if len(wanted_prefixes.firsts) > _PREFIXES_MAX:
        return [ALL_HASHES]
    ranges = map(HashRange.spanning, wanted_prefixes.firsts, wanted_prefixes.lasts)
    return chain.from_iterable(cut_rows(manifest, options, hash_range) for hash_range in ranges)
