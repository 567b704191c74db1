"""Cuts of a range of hashes into pieces of like many entries, where hashes are not uniform.

Hashes of whole keys are uniform: equal widths hold about the same. Where the upper half of a hash
is made of the first key columns (`TableSchema.hash_prefix`), a common value is a range 2**32 wide
with as many entries as rows have it. Whoever bounds memory by a piece asks here.

What is looked at need not be verified: any bounds make a valid cut, and the same files the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from spark_upsert.model.hash_range import HashRange
from spark_upsert.model.hashing import HASH_END
from spark_upsert.state.log.manifest import Slice

_SAMPLES_PER_PIECE = 16
"""A piece is larger than its share by a sixteenth at most, or by what one hash has."""


def cut_evenly(
    hash_range: HashRange, runs: Sequence[tuple[npt.NDArray[np.uint64], float]], count: int
) -> list[HashRange]:
    """Cut a range into at most ``count >= 1`` neighbours with about the same weight each.

    Parameters
    ----------
    hash_range : HashRange
    runs : sequence of (numpy.ndarray of uint64, float)
        Ascending hashes within the range, and what one of them weighs.
    """
    hashes, weights = [], []
    for own, weight in runs:
        step = max(1, len(own) // (_SAMPLES_PER_PIECE * count))
        sample = own[step // 2 :: step]
        hashes.append(sample)
        weights.append(np.full(len(sample), len(own) * weight / max(1, len(sample))))
    if count == 1 or not hashes:
        return [hash_range]
    drawn = np.concatenate(hashes)
    order = np.argsort(drawn, kind="stable")
    reached = np.cumsum(np.concatenate(weights)[order])
    if not len(reached):
        return [hash_range]
    shares = reached[-1] * np.arange(1, count) / count
    places = np.minimum(np.searchsorted(reached, shares), len(order) - 1)
    return _between(hash_range, drawn[order][places].tolist())


def cut_by_files(
    hash_range: HashRange, slices: Iterable[Slice], count: int, *, is_uniform: bool
) -> list[HashRange]:
    """Cut a range as well as the log alone can tell; no file is opened.

    Of a file it knows the rows and the bounds: a compaction has cut large files where their
    entries lie.
    """
    if is_uniform or count == 1:
        return hash_range.cut(count)
    # In whole numbers: beside a narrow file, a wide one would be lost in a float.
    change: dict[int, int] = {}
    for slice_ in slices:
        own = slice_.occupied.intersect(hash_range)
        if not own.is_empty:
            rows_per_hash = slice_.file.rows * HASH_END // slice_.file.hash_range.width
            change[own.first] = change.get(own.first, 0) + rows_per_hash
            change[own.end] = change.get(own.end, 0) - rows_per_hash
    bounds = sorted(change)
    density = accumulate(change[bound] for bound in bounds)
    rows = [d * (end - first) for d, (first, end) in zip(density, pairwise(bounds), strict=False)]
    reached = list(accumulate(rows, initial=0))
    cuts: list[int] = []
    for share in (reached[-1] * number // count for number in range(1, count)):
        at = bisect_right(reached, share) - 1
        if rows and at < len(rows):
            behind = (share - reached[at]) * (bounds[at + 1] - bounds[at])
            cuts.append(bounds[at] + behind // max(1, rows[at]))
    return _between(hash_range, cuts) if rows else hash_range.cut(count)


def common(hash_range: HashRange, cuts: Iterable[Sequence[HashRange]]) -> list[HashRange]:
    """Return the pieces of several cuts of a range, each within one piece of every cut."""
    return _between(hash_range, [piece.first for pieces in cuts for piece in pieces])


def _between(hash_range: HashRange, bounds: Iterable[int]) -> list[HashRange]:
    inner = {int(bound) for bound in bounds if hash_range.first < bound < hash_range.end}
    ends = [hash_range.first, *sorted(inner), hash_range.end]
    return [HashRange(first, end) for first, end in pairwise(ends)]
