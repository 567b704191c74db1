"""The layout of a column in a run file: which blocks hold its values.

Arrow stores a column as buffers: validity bits, values or the offsets of texts, and the bytes
of texts. Texts are found in two steps: offsets say where the bytes are, and are only used once
the blocks that hold them are verified, and once they are known to stay within the buffer:
Arrow reads whatever offsets say, and right checksums do not make an offset right.

So the contents of a column are *examined* when they are touched first: texts must be UTF-8 and
their offsets in order, decimals must fit their precision, nested values must be sound as
Arrow's full validation says. Numbers are what they are; any bits will do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_upsert.conversions.soundness import is_plain, require_sound
from spark_upsert.model.words import is_text
from spark_upsert.table.run.blocks import BLOCK_BYTES, Numbers, block_count, blocks_of

Range = tuple[int, int]
"""Bytes ``low <= i < high`` of the file."""

NO_BLOCKS = np.empty(0, dtype=np.int64)

_GROUP_ROWS = 1024
"""Rows that are examined together, and remembered by one byte."""


class Layout:
    """The offsets of a stored column's buffers in the file, and how values are found there."""

    def __init__(self, array: pa.Array, base: int) -> None:
        self.array = array
        # Values in an extension type come from an earlier release, in a storage of any layout.
        self.is_nested = pa.types.is_nested(array.type) or isinstance(array, pa.ExtensionArray)
        self.is_text = is_text(array.type)
        self.is_plain = is_plain(array.type)
        """Whether no bits could be wrong, so that nothing is examined."""
        buffers = [b for b in array.buffers() if b is not None and b.size]
        self.extents = [(b.address - base, b.address - base + b.size) for b in buffers]
        self.block_count = sum(block_count(high - low) for low, high in self.extents)
        self.is_known = False
        """Whether all of the column is known to be verified and, unless plain, examined."""
        self._examined = np.zeros(-(-len(array) // _GROUP_ROWS), dtype=np.bool_)
        if self.is_nested:
            return
        valid, values, *rest = array.buffers()
        self.valid = None if valid is None else valid.address - base
        self.values = values.address - base
        if self.is_text:
            # As they are never negative, a sign would make them too large.
            self.offsets = np.frombuffer(values, dtype=np.uint32, count=len(array) + 1)
            self.data = None if rest[0] is None else rest[0].address - base
            self.data_bytes = 0 if rest[0] is None else rest[0].size
        else:
            self.bits = array.type.bit_width

    def unexamined(self, start: int, stop: int) -> Range | None:
        """Return rows that must be examined before the rows ``start <= i < stop`` are used."""
        if self.is_nested:
            return None if self.is_known else (0, len(self.array))
        first = start // _GROUP_ROWS
        left = np.flatnonzero(~self._examined[first : -(-stop // _GROUP_ROWS)])
        if not len(left):
            return None
        low, high = (first + int(left[0])) * _GROUP_ROWS, (first + int(left[-1]) + 1) * _GROUP_ROWS
        return low, min(high, len(self.array))

    def examine(self, start: int, stop: int) -> None:
        """Examine verified rows, from one of `unexamined` to another.

        Raises
        ------
        pyarrow.ArrowInvalid
            They are not sound.
        """
        require_sound(self.array.slice(start, stop - start))
        self._examined[start // _GROUP_ROWS : -(-stop // _GROUP_ROWS)] = True
        self.is_known = bool(self._examined.all())

    def blocks_at(self, positions: Numbers) -> Iterator[Numbers]:
        """Yield the blocks that hold the rows at some positions, but for the bytes of texts."""
        if self.is_nested:
            for low, high in self.extents:
                yield np.arange(low // BLOCK_BYTES, block_count(high))
            return
        if self.valid is not None:
            yield (self.valid + positions // 8) // BLOCK_BYTES
        if self.is_text:
            # A text ends where the next one begins.
            yield (self.values + 4 * positions) // BLOCK_BYTES
            yield (self.values + 4 * positions + 4) // BLOCK_BYTES
            return
        yield (self.values + positions * self.bits // 8) // BLOCK_BYTES
        if self.bits > 64:
            # Buffers begin at multiples of 8: a long value may reach into the next block.
            yield (self.values + ((positions + 1) * self.bits - 1) // 8) // BLOCK_BYTES

    def text_blocks_at(self, positions: Numbers) -> Numbers:
        """Return the blocks of the bytes of texts; their offsets are verified already.

        Raises
        ------
        pyarrow.ArrowInvalid
            The offsets lead elsewhere.
        """
        if not self.is_text:
            return NO_BLOCKS
        begins, ends = self.offsets[positions], self.offsets[positions + 1]
        if bool(((begins > ends) | (ends > self.data_bytes)).any()):
            raise pa.ArrowInvalid("offsets of texts that are not in order")
        if self.data is None:
            return NO_BLOCKS
        filled = ends > begins
        low = (self.data + begins[filled].astype(np.int64)) // BLOCK_BYTES
        high = (self.data + ends[filled].astype(np.int64) - 1) // BLOCK_BYTES
        if bool((low == high).all()):
            return low
        return blocks_of(low, high + 1)

    def ranges_of(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the ranges of rows ``start <= i < stop``, but for the bytes of texts."""
        if self.is_nested:
            yield from self.extents
            return
        if self.valid is not None:
            yield self.valid + start // 8, self.valid + (stop - 1) // 8 + 1
        if self.is_text:
            yield self.values + 4 * start, self.values + 4 * (stop + 1)
        else:
            yield self.values + start * self.bits // 8, self.values + (stop * self.bits + 7) // 8

    def text_ranges_of(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the range of the bytes of texts; their offsets are verified already.

        Raises
        ------
        pyarrow.ArrowInvalid
            The offsets lead elsewhere.
        """
        if not self.is_text:
            return
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        if low > high or high > self.data_bytes:
            raise pa.ArrowInvalid("offsets of texts that are not in order")
        if self.data is not None:
            yield self.data + low, self.data + high
