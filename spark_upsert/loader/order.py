"""The order of the rows of an epoch: a pure function of counts, a seed and a number.

Rows lie in *splits* (a row group, a record batch, a range of hashes), of which only the numbers of
rows are known. Without a seed an epoch is one split after the other. With one:

1. The splits are permuted.
2. Consecutive ones form *windows*, each as short as it can be with ``window_rows`` rows or more.
3. The rows of each window are permuted.

So a row is found without reading what lies before it, and no more than windows are in memory. The
rows of a window come from splits that lie anywhere, and stay among themselves.

Where each permutation comes from, exactly, so that every machine and version draws the same:

    mixed(w0, w1, ...)    s = w0; for each other word: s = the first raw number of state s XOR w
    splits of an epoch    permutation(mixed(seed, epoch, 0))
    rows of window i      permutation(mixed(seed, epoch, 1 + i))
    permutation(state)    of 0 .. n - 1: the n raw numbers of that state with their b lowest bits
                          replaced by their index, sorted; b is the bit length of n - 1

Raw numbers are those of `model.wyrand`. Splits without rows are left out beforehand. Rejected:
numpy's generators, because their permutations may change between its versions (NEP 19), and a
buffer from which rows are drawn one by one, because its state would be all the rows in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spark_upsert.model.arrays import Positions
from spark_upsert.model.wyrand import raw_numbers


def mixed(first: int, *words: int) -> int:
    """Return a number below 2**64 that follows from others, in their order."""
    for word in words:
        numbers, _ = raw_numbers(first ^ word, 1)
        first = int(numbers[0])
    return first


def permutation(state: int, count: int) -> Positions:
    """Return the numbers below ``count`` in an order that a state draws."""
    bits = np.uint64(max(count - 1, 0).bit_length())
    numbers, _ = raw_numbers(state, count)
    # With the index within, no two are equal: every way to sort them gives the same.
    numbers >>= bits
    numbers <<= bits
    numbers |= np.arange(count, dtype=np.uint64)
    numbers.sort()
    numbers &= (np.uint64(1) << bits) - np.uint64(1)
    return numbers.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that are in memory together."""

    splits: tuple[int, ...]
    """The splits that hold the rows, in the order in which they are read."""
    first: int
    """How many rows of the epoch lie before them."""
    rows: int
    state: int | None
    """State of the generator that permutes the rows; None if they are not permuted."""

    def permutation(self) -> Positions | None:
        """Return which of the rows read comes first, second, ...; None for as they were read."""
        return None if self.state is None else permutation(self.state, self.rows)


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Consecutive rows of one window."""

    window: int
    """Its index."""
    first: int
    """Counted from the window's first row."""
    rows: int


class EpochOrder:
    """The rows of one epoch in their order.

    Parameters
    ----------
    counts : sequence of int
        Rows of each split.
    seed : int, optional
        From 0 up to 2**64 - 1; None for one split after the other.
    epoch : int
        From 0 up to 2**64 - 1.
    window_rows : int
        Least number of rows of a window, but of the last one; only with a seed.
    """

    def __init__(
        self, counts: Sequence[int], *, seed: int | None, epoch: int, window_rows: int
    ) -> None:
        splits = [index for index, rows in enumerate(counts) if rows]
        if seed is not None:
            drawn = permutation(mixed(seed, epoch, 0), len(splits))
            splits = [splits[index] for index in drawn.tolist()]
        windows: list[Window] = []
        held: list[int] = []
        first = rows = 0
        for split in splits:
            held.append(split)
            rows += counts[split]
            if seed is None or rows >= window_rows or split == splits[-1]:
                state = None if seed is None else mixed(seed, epoch, 1 + len(windows))
                windows.append(Window(tuple(held), first, rows, state))
                first, rows = first + rows, 0
                held.clear()
        self.windows = tuple(windows)
        self.rows = first
        """Rows of the epoch."""
        self._firsts = [window.first for window in windows]

    def spans(self, first: int, end: int) -> Iterator[WindowSpan]:
        """Yield where the rows ``first <= position < end`` lie.

        Positions behind the last row are those of the first ones again.
        """
        while first < end:
            assert self.rows, "an epoch without rows has no positions"
            position = first % self.rows
            index = bisect_right(self._firsts, position) - 1
            window = self.windows[index]
            start = position - window.first
            rows = min(end - first, window.rows - start)
            yield WindowSpan(index, start, rows)
            first += rows
