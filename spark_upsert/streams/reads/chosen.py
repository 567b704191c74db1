"""Planning the splits of a read that wants some of the rows of a version (`table.where`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.options.read import ReadOptions
from spark_upsert.plan.pins import Pins
from spark_upsert.streams.reads.columns import shown_columns, shown_grouping
from spark_upsert.streams.reads.splits import (
    SPLIT_ROWS,
    RowsSplit,
    cut,
    queries_of,
    rows_splits,
    within,
)
from spark_upsert.table.entries.prefixes import Prefixes
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.where import IndexOf, Where, hashes_of

_PREFIXES_MAX = 64
"""Prefixes that have splits of their own; one task searches more of them in one pass."""


def wanted_rows(manifest: Manifest, options: ReadOptions, pushed: Pins) -> Where | None:
    """Return which rows of a version a read wants; None: all.

    Parameters
    ----------
    manifest : Manifest
    options : ReadOptions
    pushed : mapping of str to pyarrow.Array
        Values that columns have in all rows that the caller wants.

    Raises
    ------
    PlanError
        The option `filter` is no SQL that is known, or not of the table's columns.
    """
    own = shown_columns(manifest, options)
    where = Where(own) if options.filter is None else Where.of(options.filter, own)
    where = where.pinned(pushed)
    return where if where.condition or where.pins else None


def chosen_splits(
    snapshot: Snapshot, options: ReadOptions, where: Where, index_of: IndexOf
) -> list[RowsSplit]:
    """Cut the wanted rows of a version into splits; none if there can be none."""
    if where.is_never:
        return []
    manifest = snapshot.manifest
    if shown_grouping(manifest, options) is not None:
        # Its entries are sums of groups: the pins are of what they mean, not of their keys.
        return [replace(each, where=where) for each in rows_splits(manifest, options)]
    where, queries = where.by_index(snapshot, index_of), queries_of(manifest.transactions)
    return [
        RowsSplit(within(manifest, piece), piece, queries, where=where)
        for piece in _ranges_wanted(manifest, options, where)
    ]


def _ranges_wanted(manifest: Manifest, options: ReadOptions, where: Where) -> Iterable[HashRange]:
    """Return the ranges of hashes in which all rows lie that are wanted."""
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
        return cut(manifest, options, ALL_HASHES)
    wanted = Prefixes.of(schema, prefixes.columns)
    if len(wanted.firsts) > _PREFIXES_MAX:
        return [ALL_HASHES]
    ranges = map(HashRange.spanning, wanted.firsts, wanted.lasts)
    return chain.from_iterable(cut(manifest, options, each) for each in ranges)
