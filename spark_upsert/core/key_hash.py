"""The 64-bit key hash (`hash_keys`), part of the file format, and hash ranges (`HashRange`).

The hash must never change; test vectors are in docs/format.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import (
    Positions,
    Text,
    Words,
    fixed_words,
    is_text,
    keep_low_bytes,
    text_of,
    validity,
)

HASH_VERSION = 1
PREFIXED_VERSION = 2
"""Hash version with the leading key columns' hash as its upper half."""
HASH_BITS = 64
HASH_END = 1 << HASH_BITS
"""Exclusive upper bound for all hashes."""

RAW_KEY_SEED = 0xA5A5A5A5A5A5A5A5
"""XORed with the table's seed to hash undecodable keys."""

_GOLDEN = 0x9E3779B97F4A7C15
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_MASK = HASH_END - 1

_HALF = np.uint64(32)
_LOWER = np.uint64((1 << 32) - 1)

_BLOCK_ROWS = 1 << 14
"""Rows hashed per block: 128 KiB per word column, so that all passes stay in the cache."""

_SHORT_WORDS = 8
"""Maximum words in a text that is hashed column-wise, one pass per word."""

_FLAT_WORDS = 1 << 20
"""Words expanded per pass for long texts: 8 MiB, whatever a text's length."""


_MERGED_PIECES = 64
"""Number of sorted pieces below which a merge is faster than a sort."""


def mix(words: Words) -> Words:
    """Apply the splitmix64 finaliser to each word."""
    z = words ^ (words >> np.uint64(30))
    z *= _M1
    z ^= z >> np.uint64(27)
    z *= _M2
    z ^= z >> np.uint64(31)
    return z


def _mix_one(value: int) -> int:
    return int(mix(np.array([value & _MASK], dtype=np.uint64))[0])


def _word_key(column_key: int, index: int) -> int:
    return _mix_one(column_key + (index + 1) * _GOLDEN)


def hash_keys(columns: Sequence[pa.Array], *, seed: int, prefix: int = 0) -> Words:
    """Return a 64-bit hash for each composite key.

    Version 1, modulo 2**64, with ``G = 0x9E3779B97F4A7C15`` and splitmix64's finaliser ``mix``::

        s(j)    = mix(seed + (j + 1) * G)                       one constant per key column
        k(j, i) = mix(s(j) + (i + 1) * G)                       one constant per word
        part(j) = s(j) + L * G + sum_i mix(w(i) XOR k(j, i))    L = length in bytes, w = words
        hash    = mix(sum_j part(j))

    Words are little-endian, the last one padded with zeros. Version 2 takes the upper 32 bits from
    ``mix(sum_{j < n} part(j))``, so that keys with equal first columns share a range
    (`prefix_ends`).

    ==========================  =============================================================
    type                        words and length
    ==========================  =============================================================
    integers, dates, times      the value sign-extended to 64 bits; L = 8
    timestamps                  microseconds since 1970 as 64 bits; L = 8
    boolean                     0 or 1; L = 8
    float32, float64            float64 bits; -0.0 becomes 0.0, every NaN the same; L = 8
    decimal                     low half, then high half of the 128-bit integer; L = 16
    string, binary              the bytes, eight to a word; L = their number
    null                        part(j) = mix(NOT s(j))
    ==========================  =============================================================

    Undecodable keys are hashed as one binary column with the seed XOR `RAW_KEY_SEED`. A widened
    integer or float keeps its hash. Different keys may share a hash; callers compare keys.
    """
    count = len(columns[0])
    hashes = np.empty(count, dtype=np.uint64)
    for begin in range(0, count, _BLOCK_ROWS):
        block = [column.slice(begin, _BLOCK_ROWS) for column in columns]
        hashes[begin : begin + _BLOCK_ROWS] = _hash_block(block, seed, prefix)
    return hashes


def order_of(hashes: Words) -> Positions:
    """Return row positions in ascending hash order; equal hashes keep their order.

    Hashes are uniform, so that sorting first by the upper 16 bits takes a third of a plain sort's
    time. A few sorted pieces in sequence are merged instead.
    """
    if np.count_nonzero(hashes[1:] < hashes[:-1]) < _MERGED_PIECES:
        return np.argsort(hashes, kind="stable")
    order = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    return order[np.argsort(hashes[order], kind="stable")]


def prefix_ends(columns: Sequence[pa.Array], *, seed: int) -> tuple[Words, Words]:
    """Return the lowest and highest possible hash for each key prefix."""
    upper = hash_keys(columns, seed=seed) & ~_LOWER
    return upper, upper | _LOWER


def is_injective(types: Sequence[pa.DataType]) -> bool:
    """Return whether non-null keys with these types never share a hash.

    True for a single column with one word: each step in the formula is then a bijection.
    """
    return len(types) == 1 and not is_text(types[0]) and not pa.types.is_decimal(types[0])


def _hash_block(columns: Sequence[pa.Array], seed: int, prefix: int) -> Words:
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    upper: Words | None = None
    for index, column in enumerate(columns):
        if prefix and index == prefix:
            upper = mix(total)
        column_key = _mix_one(seed + (index + 1) * _GOLDEN)
        parts = _text_part if is_text(column.type) else _fixed_part
        part = parts(column, column_key)
        valid = validity(column)
        if valid is not None:
            part = np.where(valid, part, np.uint64(_mix_one(~column_key)))
        total += part
    mixed = mix(total)
    return mixed if upper is None else (upper & ~_LOWER) | (mixed & _LOWER)


def _fixed_part(column: pa.Array, column_key: int) -> Words:
    words = fixed_words(column)[::-1]
    length = 8 * len(words)
    part = np.full(len(column), (column_key + length * _GOLDEN) & _MASK, dtype=np.uint64)
    for index, word in enumerate(words):
        part += mix(word ^ np.uint64(_word_key(column_key, index)))
    return part


def _text_part(column: pa.Array, column_key: int) -> Words:
    text = text_of(column)
    part = text.lengths.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(column_key)
    longest = int(text.lengths.max(initial=0))
    for index in range(min(-(-longest // 8), _SHORT_WORDS)):
        key = np.uint64(_word_key(column_key, index))
        left = text.lengths - 8 * index
        if bool((left > 0).all()):
            part += mix(keep_low_bytes(text.loads[text.starts + 8 * index], left) ^ key)
        else:
            rows = np.flatnonzero(left > 0)
            words = keep_low_bytes(text.loads[text.starts[rows] + 8 * index], left[rows])
            part[rows] += mix(words ^ key)
    if longest > 8 * _SHORT_WORDS:
        _add_long_words(part, text, column_key)
    return part


def _add_long_words(part: Words, text: Text, column_key: int) -> None:
    """Hash the words after the first `_SHORT_WORDS`, in blocks across all texts."""
    rows = np.flatnonzero(text.lengths > 8 * _SHORT_WORDS)
    counts = -(-text.lengths[rows] // 8) - _SHORT_WORDS
    ends = np.cumsum(counts)
    total = int(ends[-1])
    for begin in range(0, total, _FLAT_WORDS):
        flat = np.arange(begin, min(begin + _FLAT_WORDS, total))
        owner = np.searchsorted(ends, flat, side="right")
        index = flat - (ends[owner] - counts[owner]) + _SHORT_WORDS
        row = rows[owner]
        words = keep_low_bytes(
            text.loads[text.starts[row] + 8 * index], text.lengths[row] - 8 * index
        )
        keys = mix((index + 1).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(column_key))
        firsts = np.flatnonzero(np.diff(owner, prepend=-1))
        part[row[firsts]] += np.add.reduceat(mix(words ^ keys), firsts)


_DIGITS_MAX = len(f"{HASH_END:x}")


@dataclass(frozen=True, slots=True)
class HashRange:
    """Hashes ``first <= h < end``; all hashes by default.

    ``0 <= first <= end <= 2**64``. Every range covers an empty one; none overlaps it.
    """

    first: int = 0
    end: int = HASH_END

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.end <= HASH_END:
            raise ValueError(f"no range of hashes goes from {self.first} to {self.end}")

    @classmethod
    def spanning(cls, first: int, last: int) -> HashRange:
        """Return the smallest range with two hashes, ``first <= last``."""
        return cls(int(first), int(last) + 1)

    @classmethod
    def from_json(cls, record: Sequence[Any]) -> HashRange:
        """Rebuild a range from its hexadecimal digits."""
        first, end = record
        return cls(hash_number(first), hash_number(end))

    def to_json(self) -> list[str]:
        """Return both bounds as 16 hexadecimal digits; ``2**64`` has 17."""
        return [f"{self.first:016x}", f"{self.end:016x}"]

    def __repr__(self) -> str:
        return f"[{self.first:016x}, {self.end:016x})"

    def __contains__(self, hash_: int) -> bool:
        return self.first <= hash_ < self.end

    @property
    def last(self) -> int:
        """Greatest hash in a non-empty range."""
        return self.end - 1

    @property
    def width(self) -> int:
        """Number of hashes in the range."""
        return self.end - self.first

    @property
    def is_empty(self) -> bool:
        return self.first == self.end

    def covers(self, other: HashRange) -> bool:
        """Return whether this range contains every hash in another range."""
        return other.is_empty or (self.first <= other.first and other.end <= self.end)

    def overlaps(self, other: HashRange) -> bool:
        """Return whether two ranges share a hash."""
        return max(self.first, other.first) < min(self.end, other.end)

    def intersect(self, other: HashRange) -> HashRange:
        """Return the hashes common to both ranges."""
        first = max(self.first, other.first)
        return HashRange(first, max(first, min(self.end, other.end)))

    def without(self, other: HashRange) -> tuple[HashRange, ...]:
        """Return the parts outside another range: up to two pieces, none empty."""
        if not self.overlaps(other):
            return () if self.is_empty else (self,)
        lower_part = HashRange(self.first, max(self.first, other.first))
        above = HashRange(min(self.end, other.end), self.end)
        return tuple(piece for piece in (lower_part, above) if not piece.is_empty)

    def split_at(self, hash_: int) -> tuple[HashRange, HashRange]:
        """Split into the hashes below ``hash_`` and the rest; ``first <= hash_ <= end``."""
        return HashRange(self.first, hash_), HashRange(hash_, self.end)

    def cut(self, count: int) -> list[HashRange]:
        """Cut the range into ``count >= 1`` neighbours; their widths differ by at most one."""
        bounds = [self.first + self.width * index // count for index in range(count + 1)]
        return [HashRange(first, end) for first, end in pairwise(bounds)]

    def rows_of(self, hashes: npt.NDArray[np.uint64]) -> tuple[int, int]:
        """Return the positions ``[start, stop)`` of ascending hashes in the range."""
        if self.is_empty:
            return 0, 0
        # By the last hash: the end of all hashes does not fit into 64 bits.
        start = np.searchsorted(hashes, np.uint64(self.first), side="left")
        stop = np.searchsorted(hashes, np.uint64(self.last), side="right")
        return int(start), int(stop)


ALL_HASHES = HashRange()


def hash_number(digits: Any) -> int:
    """Parse a hash bound from its hexadecimal digits; raise `ValueError` if it is invalid."""
    if type(digits) is not str or len(digits) > _DIGITS_MAX:
        raise ValueError(f"{digits!r:.80} is no bound of hashes")
    return int(digits, 16)
