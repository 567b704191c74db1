"""A range of hashes: what a slice, a split, a job and a read are bounded by.

Half-open, within the hashes there are, and checked once, when it is made:

    0 <= first <= end <= 2**64.

An empty range holds nothing, is covered by every range and overlaps none. `lower` and `upper`
are words for epochs (`model.epochs`); a range of hashes has a `first` and an `end`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_upsert.model.hashing import HASH_END

_DIGITS_MAX = len(f"{HASH_END:x}")


@dataclass(frozen=True, slots=True)
class HashRange:
    """Hashes ``first <= h < end``; all of them by default."""

    first: int = 0
    end: int = HASH_END

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.end <= HASH_END:
            raise ValueError(f"no range of hashes goes from {self.first} to {self.end}")

    @classmethod
    def spanning(cls, first: int, last: int) -> HashRange:
        """Return the range of two hashes and all between them."""
        return cls(int(first), int(last) + 1)

    @classmethod
    def from_json(cls, record: Sequence[Any]) -> HashRange:
        """Rebuild a range from its hexadecimal digits."""
        first, end = record
        return cls(hash_number(first), hash_number(end))

    def to_json(self) -> list[str]:
        """Return both bounds as 16 hexadecimal digits; the end of all hashes has 17."""
        return [f"{self.first:016x}", f"{self.end:016x}"]

    def __repr__(self) -> str:
        return f"[{self.first:016x}, {self.end:016x})"

    def __contains__(self, hash_: int) -> bool:
        return self.first <= hash_ < self.end

    @property
    def last(self) -> int:
        """The greatest hash of a range that is not empty."""
        return self.end - 1

    @property
    def width(self) -> int:
        """How many hashes there are in the range."""
        return self.end - self.first

    @property
    def is_empty(self) -> bool:
        return self.first == self.end

    def covers(self, other: HashRange) -> bool:
        """Return whether every hash of another range is in this one."""
        return other.is_empty or (self.first <= other.first and other.end <= self.end)

    def overlaps(self, other: HashRange) -> bool:
        """Return whether some hash is in both ranges."""
        return max(self.first, other.first) < min(self.end, other.end)

    def intersect(self, other: HashRange) -> HashRange:
        """Return the hashes of both ranges."""
        first = max(self.first, other.first)
        return HashRange(first, max(first, min(self.end, other.end)))

    def without(self, other: HashRange) -> tuple[HashRange, ...]:
        """Return what is left when another range is taken away: up to two pieces, none empty."""
        if not self.overlaps(other):
            return () if self.is_empty else (self,)
        below = HashRange(self.first, max(self.first, other.first))
        above = HashRange(min(self.end, other.end), self.end)
        return tuple(piece for piece in (below, above) if not piece.is_empty)

    def split_at(self, hash_: int) -> tuple[HashRange, HashRange]:
        """Return the hashes below ``first <= hash_ <= end``, and those from there on."""
        return HashRange(self.first, hash_), HashRange(hash_, self.end)

    def cut(self, count: int) -> list[HashRange]:
        """Cut the range into ``count >= 1`` neighbours; their widths differ by one at most."""
        bounds = [self.first + self.width * index // count for index in range(count + 1)]
        return [HashRange(first, end) for first, end in pairwise(bounds)]

    def rows_of(self, hashes: npt.NDArray[np.uint64]) -> tuple[int, int]:
        """Return the positions ``[start, stop)`` of ascending hashes that are in the range."""
        if self.is_empty:
            return 0, 0
        # By the last hash: the end of all hashes does not fit into 64 bits.
        start = np.searchsorted(hashes, np.uint64(self.first), side="left")
        stop = np.searchsorted(hashes, np.uint64(self.last), side="right")
        return int(start), int(stop)


ALL_HASHES = HashRange()


def hash_number(digits: Any) -> int:
    """Return a bound of hashes from its hexadecimal digits."""
    if type(digits) is not str or len(digits) > _DIGITS_MAX:
        raise ValueError(f"{digits!r:.80} is no bound of hashes")
    return int(digits, 16)
