"""An index over rows that are all in memory: it finds the rows of a key.

Rows are put in the order of the hash of their key, so that those of one key are neighbours, a
*group*. The upper bits of a hash say in which bucket its group is, of about as many buckets as
there are groups; a bucket is searched from its begin. All probes of a batch make a step together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.hashing import HASH_BITS, hash_keys, is_injective, order_of
from spark_upsert.model.words import Words, equal_rows
from spark_upsert.plan.kernels.equal_keys import NOWHERE, codes

_SEED = 0


class KeyIndex:
    """The rows of each key.

    Parameters
    ----------
    keys : sequence of pyarrow.Array
        The columns of the key, without nulls, of types that can be keys.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self._is_injective = is_injective([key.type for key in keys])
        hashes = hash_keys(keys, seed=_SEED)
        order = order_of(hashes)
        same = self._has_same_key(keys, hashes, order)
        if not bool((same == _is_as_before(hashes[order])).all()):
            # Two keys share a hash: among such rows, those of one key must be brought together.
            order = np.lexsort((codes(keys)[0], hashes))
            same = self._has_same_key(keys, hashes, order)
        begins = np.flatnonzero(~same)
        self.order = order
        """The rows, those of a group side by side and in their own order."""
        self.starts = begins
        """The place in `order` at which each group begins."""
        self.counts = np.diff(begins, append=len(order))
        """How many rows each group has."""
        firsts = pa.array(order[begins])
        self._keys = [key.take(firsts) for key in keys]
        self._hashes = hashes[order[begins]]
        bits = max(1, len(begins).bit_length())
        self._shift = np.uint64(HASH_BITS - bits)
        sizes = np.bincount(self._bucket_of(self._hashes), minlength=1 << bits)
        self._buckets = np.concatenate([[0], np.cumsum(sizes)])

    def find(self, keys: Sequence[pa.Array]) -> Positions:
        """Return the group of each key, `NOWHERE` if there is none.

        Parameters
        ----------
        keys : sequence of pyarrow.Array
            Columns of the types of the index, without nulls.
        """
        hashes = hash_keys(keys, seed=_SEED)
        buckets = self._bucket_of(hashes)
        places, ends = self._buckets[buckets], self._buckets[buckets + 1]
        groups = np.full(len(hashes), NOWHERE)
        rows = np.flatnonzero(places < ends)
        while len(rows):
            at = places[rows]
            found = self._is_at(keys, rows, at, self._hashes[at] == hashes[rows])
            groups[rows[found]] = at[found]
            rows = rows[~found]
            places[rows] += 1
            rows = rows[places[rows] < ends[rows]]
        return groups

    def _bucket_of(self, hashes: Words) -> Positions:
        return (hashes >> self._shift).astype(np.int64)

    def _is_at(
        self, keys: Sequence[pa.Array], rows: Positions, at: Positions, same_hash: Mask
    ) -> Mask:
        """Return which keys are those of some groups, given which have the same hash."""
        if self._is_injective:
            return same_hash
        likely = np.flatnonzero(same_hash)
        sides = ((self._keys, at), (keys, rows))
        taken = [[key.take(pa.array(places[likely])) for key in side] for side, places in sides]
        found = same_hash.copy()
        found[likely] = equal_rows(*taken)
        return found

    def _has_same_key(self, keys: Sequence[pa.Array], hashes: Words, order: Positions) -> Mask:
        """Return which rows have the key of the one before them, in an order."""
        same = _is_as_before(hashes[order])
        likely = np.flatnonzero(same)
        if len(likely) and not self._is_injective:
            taken = [
                [key.take(pa.array(order[places])) for key in keys]
                for places in (likely, likely - 1)
            ]
            same[likely] = equal_rows(*taken)
        return same


def _is_as_before(hashes: Words) -> Mask:
    """Return which hashes are equal to the one before them."""
    same = np.zeros(len(hashes), dtype=np.bool_)
    same[1:] = hashes[1:] == hashes[:-1]
    return same
