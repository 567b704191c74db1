"""Verify an index: as the table that it is, and against the version that it says it shows.

Both sides are summed up as the number of their entries and the sum of the hashes of those, range by
range, so that memory is bounded and the order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from spark_upsert.errors import CorruptionError, DataLossError
from spark_upsert.model.hashing import HASH_END, hash_keys
from spark_upsert.table.entries.check import Finding, check
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.index.index import Index


class _Sum(NamedTuple):
    """The sums of a set of entries."""

    entries: int
    hashes: int


def check_index(index: Index) -> Iterator[Finding]:
    """Yield what is wrong with an index; one that is not built, or of no use, has no rows to be."""
    folder = index.folder
    try:
        own = index.try_head()
    except CorruptionError as error:
        yield Finding(place=folder, expected="a sound log", found=error.message)
        return
    if own is None:
        return
    for finding in check(index.store, index.log).findings:
        yield replace(finding, place=f"{folder}/{finding.place}")
    place = index.usable(own)
    if place is None:
        return
    names = own.schema.keys
    try:
        table = Snapshot(index.table_store, index.table_log.at(place.version))
        expected, found = (_sum(each, names) for each in (table, Snapshot(index.store, own)))
    except (CorruptionError, DataLossError):
        return  # Of the table, or found above; or expired meanwhile.
    if expected != found:
        yield Finding(
            place=f"{folder}, version {own.version}",
            expected=f"the {expected.entries} keys of version {place.version} of the table",
            found=f"{found.entries} keys, or others (build it anew: 'upsertflow index --rebuild')",
        )


def _sum(snapshot: Snapshot, names: tuple[str, ...]) -> _Sum:
    count = hashes = 0
    for batch in snapshot.read(names):
        rows = batch.filter(pc.is_valid(batch.column(names[0])))
        count += rows.num_rows
        if rows.num_rows:
            hashes += int(np.sum(hash_keys(rows.columns, seed=0), dtype=np.uint64))
    return _Sum(count, hashes % HASH_END)
