"""Search the hashes of a run, by what was learned of them in earlier searches.

A search waits for memory, and is made again with each batch: a run never changes. Two things are
learned once it pays back, and kept as long as the run is open:

- *A sample*, one hash of sixteen, for few probes in many hashes. It stays in a processor's cache,
  and leads to sixteen neighbours that lie side by side, which are read for all probes at once.
- *A filter*, for many probes of which few are found: which ranges of hashes hold any. A look into
  it is a tenth of a search.

The sample is half a byte per row, the filter one or two. Both are of hashes that may not be
verified yet: the caller proves what was found.
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
"""The sample is taken when one probe for so many hashes was sought: it reads all of them."""

_FILTER_PAYS = 4
"""The filter is made when one probe for so many hashes was sought."""

_SPREAD = 8
"""At least so many ranges of the filter for a hash: one probe in so many passes without need."""

_MOST_RANGES = 26
"""The binary logarithm of the most ranges of a filter: 8 MiB."""

_ONES = np.uint64(0x0101_0101_0101_0101)


class HashSearch:
    """Ascending hashes that are searched again and again.

    Parameters
    ----------
    hashes : numpy.ndarray of uint64, ascending

    Notes
    -----
    Of two threads that learn at once, both learn the same.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._sought = 0
        self._sample: Hashes | None = None
        self._filter: _Filter | None = None

    def places(self, probes: Hashes) -> Positions:
        """Return where each probe stands first, or would stand, as `numpy.searchsorted` does."""
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
        """Return the places of probes, of which none is behind the stretch of the last sample."""
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
    """Which of equal ranges between the first hash and the last hold any, a bit each."""

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
