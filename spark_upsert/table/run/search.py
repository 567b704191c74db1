"""Hash search in a run, by a sample and a filter that earlier searches built (docs/adr/0013).

Both may contain unverified hashes; the caller verifies the results.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_upsert.core.keys import Positions

Hashes = npt.NDArray[np.uint64]

STRIDE = 16
"""Hashes for one in the sample."""

_FEW = 32
"""With at most one probe for so many hashes, a search by the sample is faster than one without."""

_SAMPLE_PAYS = 64
"""Hashes per probe before the sample is built; building it reads all hashes."""

_FILTER_PAYS = 4
"""The filter is made when one probe for so many hashes was sought."""

_SPREAD = 8
"""Minimum filter ranges per hash: one probe in this many is a false positive."""

_MOST_RANGES = 26
"""Binary logarithm of the maximum number of filter ranges: 8 MiB."""

_ONES = np.uint64(0x0101_0101_0101_0101)


class HashSearch:
    """Ascending hashes for repeated searches.

    Parameters
    ----------
    hashes : numpy.ndarray of uint64, ascending

    Notes
    -----
    If two threads build a structure concurrently, both build the same one.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._sought = 0
        self._sample: Hashes | None = None
        self._filter: _Filter | None = None

    def places(self, probes: Hashes) -> Positions:
        """Return each probe's leftmost insertion position, as `numpy.searchsorted` does."""
        count = len(self._hashes)
        is_few = count >= max(len(probes) * _FEW, STRIDE)
        if not (self._has_paid(len(probes), _SAMPLE_PAYS) and is_few):
            return np.searchsorted(self._hashes, probes)
        if self._sample is None:
            self._sample = self._hashes[: count - count % STRIDE : STRIDE].copy()
        border = len(self._sample) * STRIDE
        inner = len(probes)
        if border < count:
            inner = int(np.searchsorted(probes, self._hashes[border], side="right"))
        ends = np.searchsorted(self._hashes[border:], probes[inner:]) + border
        return np.concatenate([self._within(self._sample, probes[:inner]), ends])

    def _within(self, sample: Hashes, probes: Hashes) -> Positions:
        """Return the probes' positions; no probe may follow the last sample's stride."""
        stretch = np.maximum(np.searchsorted(sample, probes) - 1, 0)
        hashes = self._hashes[: len(sample) * STRIDE].reshape(-1, STRIDE).take(stretch, axis=0)
        # Eight bytes of 0 or 1 are a word, and the upper byte of this product is their sum.
        is_lower = (hashes < probes[:, None]).view(np.uint64)
        counts = ((is_lower * _ONES) >> np.uint64(56)).view(np.int64)
        return stretch * STRIDE + counts.sum(axis=1)

    def likely(self, probes: Hashes) -> Positions:
        """Return probe indices that may be among the hashes: no misses, few false positives."""
        if not self._has_paid(len(probes), _FILTER_PAYS):
            return np.arange(len(probes))
        if self._filter is None:
            self._filter = _Filter(self._hashes)
        return self._filter.passing(probes)

    def _has_paid(self, probes: int, price: int) -> bool:
        """Count probes; return whether one for so many hashes was sought."""
        self._sought = min(self._sought + probes, len(self._hashes))
        return self._sought * price >= len(self._hashes) > 0


class _Filter:
    """Bitmap with one bit per equal hash range: set if the range holds any hash."""

    def __init__(self, hashes: Hashes) -> None:
        self._first = hashes[0]
        ranges = min((_SPREAD * len(hashes)).bit_length(), _MOST_RANGES)
        self._shift = np.uint64(max(0, int(hashes[-1] - hashes[0]).bit_length() - ranges))
        holds = np.zeros(1 << ranges, dtype=np.bool_)
        holds[((hashes - self._first) >> self._shift).view(np.int64)] = True
        self._bits = np.packbits(holds, bitorder="little")

    def passing(self, probes: Hashes) -> Positions:
        numbers = (probes - self._first) >> self._shift
        eight = self._bits.take((numbers >> np.uint64(3)).view(np.int64))
        return np.flatnonzero((eight >> (numbers.astype(np.uint8) & np.uint8(7))) & np.uint8(1))
