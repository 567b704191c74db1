"""Hash range partitioning into pieces with similar entry counts, also for hash prefixes.

Hashes with a prefix are clustered, so equal widths hold unequal counts; cuts follow a sample of the
hashes. The same files give the same cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.table.log.manifest import Slice

_SAMPLES_PER_PIECE = 16
"""A piece exceeds its share by at most a sixteenth, or by one hash's entries."""


def cut_evenly(
    hash_range: HashRange, runs: Sequence[tuple[npt.NDArray[np.uint64], float]], count: int
) -> list[HashRange]:
    """Cut a range into at most ``count >= 1`` neighbours with about the same weight each."""
    hashes, weights = [], []
    for run_range, weight in runs:
        step = max(1, len(run_range) // (_SAMPLES_PER_PIECE * count))
        sample = run_range[step // 2 :: step]
        hashes.append(sample)
        weights.append(np.full(len(sample), len(run_range) * weight / max(1, len(sample))))
    if count == 1 or not hashes:
        return [hash_range]
    drawn = np.concatenate(hashes)
    order = np.argsort(drawn, kind="stable")
    reached = np.cumsum(np.concatenate(weights)[order])
    if not len(reached):
        return [hash_range]
    shares = reached[-1] * np.arange(1, count) / count
    indices = np.minimum(np.searchsorted(reached, shares), len(order) - 1)
    return _between(hash_range, drawn[order][indices].tolist())


class Spread:
    """Entry distribution over a range, estimated from the log without opening files.

    The log records each file's row count, its bounds, and its crowded prefixes
    (`RunFile.crowds`). Elsewhere entries are assumed to be uniform.

    Parameters
    ----------
    hash_range : HashRange
    slices : iterable of Slice
    """

    def __init__(self, hash_range: HashRange, slices: Iterable[Slice]) -> None:
        self._range = hash_range
        # In whole numbers: beside a narrow file, a wide one would be lost in a float.
        change: dict[int, int] = {}
        for slice_ in slices:
            for part, rows in slice_.file.spread():
                part_range = part.intersect(slice_.live).intersect(hash_range)
                if not part_range.is_empty:
                    rows_per_hash = rows * HASH_END // part.width
                    change[part_range.first] = change.get(part_range.first, 0) + rows_per_hash
                    change[part_range.end] = change.get(part_range.end, 0) - rows_per_hash
        self._bounds = sorted(change)
        density = accumulate(change[bound] for bound in self._bounds)
        widths = (end - first for first, end in pairwise(self._bounds))
        held = [rate * width for rate, width in zip(density, widths, strict=False)]
        self._reached = list(accumulate(held, initial=0))

    @property
    def rows(self) -> int:
        """About how many entries there are."""
        return -(-self._reached[-1] // HASH_END)

    def hash_at(self, number: int, count: int) -> int:
        """Return the hash that bounds the first ``number`` of ``count`` equal entry shares."""
        share, reached, bounds = self._reached[-1] * number // count, self._reached, self._bounds
        if not reached[-1]:
            return self._range.first + self._range.width * number // count
        if share == reached[-1]:
            return self._range.end
        at = bisect_right(reached, share) - 1
        held = reached[at + 1] - reached[at]
        return bounds[at] + (share - reached[at]) * (bounds[at + 1] - bounds[at]) // held


def cut_by_files(
    hash_range: HashRange, slices: Iterable[Slice], count: int, *, is_uniform: bool
) -> list[HashRange]:
    """Cut a range into pieces with similar entry counts, by the log alone (`Spread`)."""
    if is_uniform or count == 1:
        return hash_range.cut(count)
    spread = Spread(hash_range, slices)
    if not spread.rows:
        return hash_range.cut(count)
    return _between(hash_range, [spread.hash_at(number, count) for number in range(1, count)])


def common(hash_range: HashRange, cuts: Iterable[Sequence[HashRange]]) -> list[HashRange]:
    """Return the common refinement of several cuts: each piece is within one piece of every cut."""
    return _between(hash_range, [piece.first for pieces in cuts for piece in pieces])


def _between(hash_range: HashRange, bounds: Iterable[int]) -> list[HashRange]:
    inner = {int(bound) for bound in bounds if hash_range.first < bound < hash_range.end}
    ends = [hash_range.first, *sorted(inner), hash_range.end]
    return [HashRange(first, end) for first, end in pairwise(ends)]
