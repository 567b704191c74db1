"""Find the entry that the table holds for each of many keys.

The keys come sorted by hash. Each run is searched once for all of them; among the runs that hold a
key, `model.precedence` decides. The cost is O(keys * runs * log rows), with values untouched: a
caller that needs a column gathers it by position afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.errors import CorruptionError
from spark_upsert.model.arrays import Positions
from spark_upsert.model.schema import TableSchema
from spark_upsert.model.words import equal_rows
from spark_upsert.table.entries.found import Found
from spark_upsert.table.entries.mechanism import Hits, mechanism_of
from spark_upsert.table.run.blocks import BLOCK_BYTES
from spark_upsert.table.run.file import RUNS
from spark_upsert.table.run.rows import Part, Rows

HASHES_PER_BLOCK = BLOCK_BYTES // 8

_RARE = 0.3
"""The share of the probes that are found, below which it pays to leave others out first."""


def find(
    schema: TableSchema,
    state: Sequence[tuple[Part, int]],
    hashes: npt.NDArray[np.uint64],
    keys: Sequence[pa.Array],
) -> Found:
    """Look keys up in a state.

    Parameters
    ----------
    schema : TableSchema
    state : sequence of (Part, epoch)
        Parts sorted by hash with one entry per key each, in the order of their epochs.
    hashes : numpy.ndarray of uint64, shape (n,), ascending
    keys : sequence of pyarrow.Array, each of length n
        The columns of `TableSchema.identity`.

    Raises
    ------
    CorruptionError
        A run is damaged where it was searched.
    """
    rows = Rows(schema, [part for part, _ in state])
    epochs = [epoch for _, epoch in state]
    return mechanism_of(schema).gather(rows, epochs, hits_of(rows, hashes, keys), len(hashes))


def hits_of(rows: Rows, hashes: npt.NDArray[np.uint64], keys: Sequence[pa.Array]) -> Iterator[Hits]:
    """Yield what each part holds of some keys, losers too; keys and hashes as of `find`."""
    for index, part in enumerate(rows.parts):
        probes, positions = _search(rows, index, part, hashes, keys)
        RUNS.settle(len(hashes))
        if len(probes):
            yield Hits(index, probes, positions + rows.starts[index])


def _search(
    rows: Rows,
    index: int,
    part: Part,
    hashes: npt.NDArray[np.uint64],
    keys: Sequence[pa.Array],
) -> tuple[Positions, Positions]:
    """Return which keys a part holds, and where."""
    candidates, positions = _same_hashes(part, hashes)
    if rows.schema.hash_is_identity:
        return candidates, positions
    own = part.unverified_hashes
    found_keys, found_positions = [], []
    names = rows.schema.identity
    while len(candidates):
        stored = rows.take_from(index, names, positions)
        wanted = pa.array(candidates)
        equal = equal_rows(stored, [key.take(wanted) for key in keys])
        found_keys.append(candidates[equal])
        found_positions.append(positions[equal])
        # Another key may share the hash: it lies right behind.
        candidates, positions = candidates[~equal], positions[~equal] + 1
        inside = positions < len(own)
        candidates, positions = candidates[inside], positions[inside]
        if len(candidates):
            shared = part.hashes_at(positions) == hashes[candidates]
            candidates, positions = candidates[shared], positions[shared]
    empty = np.empty(0, dtype=np.int64)
    return np.concatenate([empty, *found_keys]), np.concatenate([empty, *found_positions])


def is_sparse(probes: int, entries: int) -> bool:
    """Return whether so few hashes are sought among entries that most blocks stay unread."""
    return probes * HASHES_PER_BLOCK < entries


def _same_hashes(part: Part, hashes: npt.NDArray[np.uint64]) -> tuple[Positions, Positions]:
    """Return which hashes a part holds, and where the first entry with each of them is."""
    own = part.unverified_hashes
    if not len(own) or not len(hashes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, last = part.hash_ends
    low = int(np.searchsorted(hashes, np.uint64(first), side="left"))
    high = int(np.searchsorted(hashes, np.uint64(last), side="right"))
    probes = hashes[low:high]
    if is_sparse(len(probes), len(own)):
        hit, places = _search_few(part, probes)
        return hit + low, places
    # Nearly every block would be touched: all are verified, once, and nothing is left to prove.
    own = part.hashes
    likely = None
    if _share_found(probes[:: 1 + len(probes) // 64], own) < _RARE:
        likely = part.likely(probes)
        probes = probes[likely]
    places = part.places(probes)
    hit = np.flatnonzero(own[np.minimum(places, len(own) - 1)] == probes)
    return low + (hit if likely is None else likely[hit]), places[hit]


def _share_found(probes: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64]) -> float:
    """Return which part of some probes stands in a sequence."""
    places = np.minimum(np.searchsorted(own, probes), len(own) - 1)
    return float((own[places] == probes).mean())


def _search_few(part: Part, probes: npt.NDArray[np.uint64]) -> tuple[Positions, Positions]:
    """Return which probes stand in a part, and where, by entries that prove it.

    For each probe it verifies both neighbours of the found place. As the run is sorted, they say
    whether the search went right, whatever it met on its way.
    """
    if not len(probes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    places = part.places(probes)
    count = len(part)
    around = np.concatenate([np.maximum(places - 1, 0), np.minimum(places, count - 1)])
    found = part.hashes_at(around)
    below, above = found[: len(probes)], found[len(probes) :]
    inside = places < count
    misled = ((places > 0) & (below >= probes)) | (inside & (above < probes))
    if bool(misled.any()):
        raise CorruptionError.in_file(part.path, "hashes in ascending order", "others")
    hit = np.flatnonzero(inside & (above == probes))
    return hit, places[hit]
