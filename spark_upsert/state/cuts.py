"""Cuts of a range of hashes into pieces of like many entries, where hashes are not uniform.

Hashes of whole keys are uniform: equal widths hold about the same. Where the upper half of a hash
is made of the first key columns (`TableSchema.hash_prefix`), a common value is a range 2**32 wide
with as many entries as rows have it. Whoever bounds memory by a piece asks here.

What is looked at need not be verified: any bounds make a valid cut, and the same files the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spark_upsert.model.hash_range import HashRange
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
    own = [(s, s.occupied.intersect(hash_range)) for s in slices if s.overlaps(hash_range)]
    bounds = sorted({bound for _, each in own for bound in (each.first, each.end)})
    pieces = [HashRange(first, end) for first, end in pairwise(bounds)]
    rows = [sum(s.rows_within(piece) for s, each in own if each.covers(piece)) for piece in pieces]
    total, reached = sum(rows), 0
    cuts: list[int] = []
    for piece, share in zip(pieces, rows, strict=True):
        while len(cuts) < count - 1 and total * (len(cuts) + 1) <= (reached + share) * count:
            behind = total * (len(cuts) + 1) - reached * count
            cuts.append(piece.first + piece.width * behind // max(1, share * count))
        reached += share
    return _between(hash_range, cuts)


def common(hash_range: HashRange, cuts: Iterable[Sequence[HashRange]]) -> list[HashRange]:
    """Return the pieces of several cuts of a range, each within one piece of every cut."""
    return _between(hash_range, [piece.first for pieces in cuts for piece in pieces])


def _between(hash_range: HashRange, bounds: Iterable[int]) -> list[HashRange]:
    inner = {int(bound) for bound in bounds if hash_range.first < bound < hash_range.end}
    ends = [hash_range.first, *sorted(inner), hash_range.end]
    return [HashRange(first, end) for first, end in pairwise(ends)]
