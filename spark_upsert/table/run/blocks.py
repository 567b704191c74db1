"""Checksums of a file, a block at a time, all blocks at once.

A file is cut into blocks of 1 KiB. With the little-endian words ``a[i]`` of a block, the last
one filled up with zeros, and fixed odd words ``w[i]``, its checksum is the upper half of

    sum_i w[i] * a[i]    modulo 2**64,    w[i] = mix(i + 1) OR 1, 0 <= i < 128

with ``mix`` of `hashing`. It is a multilinear hash (Lemire and Kaser, "Strongly universal
string hashing is fast", 2014): any other content is overlooked once in 2**32, and one flipped
bit never. numpy computes it for many blocks in one call, without the interpreter's lock, at
about the speed of memory.

Rejected: CRC-32, which Python offers for one piece at a time only, so that small blocks cost a call
each, and large ones the reading of bytes that are not wanted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_upsert.model.hashing import mix
from spark_upsert.store import ObjectSink

BLOCK_BYTES = 1024
SUM_BYTES = 4
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The mark that Arrow writes behind the last message."""

_WORD_BYTES = 8
_WORDS = BLOCK_BYTES // _WORD_BYTES
_WEIGHTS = mix(np.arange(1, _WORDS + 1, dtype=np.uint64)) | np.uint64(1)

_GATHERED_BLOCKS = 1 << 9
"""Scattered blocks that are copied together at once: 512 KiB."""

Sums = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


def block_count(size: int) -> int:
    """Return the number of blocks that hold a number of bytes."""
    return -(-size // BLOCK_BYTES)


def blocks_of(low: Numbers, high: Numbers) -> Numbers:
    """Return the blocks ``low <= i < high`` of several ranges, none of them empty."""
    counts = high - low
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(low, counts) + np.arange(int(counts.sum())) - firsts


def checksums(words: npt.NDArray[np.uint64]) -> Sums:
    """Return the checksum of each block.

    Parameters
    ----------
    words : numpy.ndarray of uint64, shape (n, 128)
    """
    sums = np.einsum("ij,j->i", words, _WEIGHTS)
    return (sums >> np.uint64(32)).astype("<u4")


def _words_of(data: Any) -> npt.NDArray[np.uint64]:
    """Return bytes, a whole number of blocks of them, as blocks of words."""
    return np.frombuffer(data, dtype="<u8").reshape(-1, _WORDS)


def _filled_up(data: Any) -> npt.NDArray[np.uint64]:
    """Return less than a block of bytes as a block."""
    return _words_of(bytes(data).ljust(BLOCK_BYTES, b"\0"))


class Blocks:
    """The blocks of a body and the checksums that they should have, verified when touched.

    Parameters
    ----------
    body : memoryview
    sums : numpy.ndarray of uint32, shape (ceil(len(body) / 1024),)
    bring : callable, optional
        Called with the blocks, ascending, that are about to be verified.
    """

    def __init__(
        self, body: memoryview, sums: Sums, bring: Callable[[Numbers], None] | None = None
    ) -> None:
        self._bring = bring
        whole = len(body) // BLOCK_BYTES * BLOCK_BYTES
        self._whole = _words_of(body[:whole])
        self._rest = body[whole:]
        self._sums = sums
        self._verified = np.zeros(len(sums), dtype=np.bool_)
        self.are_verified = not len(sums)
        """Whether nothing is left to verify."""

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def verified_count(self) -> int:
        """How many blocks were verified so far."""
        return int(self._verified.sum())

    def has_verified(self, low: int, high: int) -> bool:
        """Return whether the blocks of the bytes ``low <= i < high`` are verified."""
        return low >= high or bool(self._verified[low // BLOCK_BYTES : block_count(high)].all())

    def verify(self, blocks: Numbers) -> tuple[int, int, int] | None:
        """Verify blocks that were not verified before, whatever their order.

        Returns
        -------
        (int, int, int) or None
            The first damaged block, the checksum that it should have and the one it has.
        """
        fresh = self._distinct(blocks[~self._verified[blocks]])
        if not len(fresh):
            return None
        if self._bring is not None:
            self._bring(fresh)
        found = self._checksums(fresh)
        wrong = np.flatnonzero(found != self._sums[fresh])
        if len(wrong):
            first = wrong[0]
            return int(fresh[first]), int(self._sums[fresh[first]]), int(found[first])
        self._verified[fresh] = True
        self.are_verified = bool(self._verified.all())
        return None

    def _distinct(self, blocks: Numbers) -> Numbers:
        """Return the different ones, ascending."""
        if len(blocks) * 16 > len(self._sums):
            wanted = np.zeros(len(self._sums), dtype=np.bool_)
            wanted[blocks] = True
            return np.flatnonzero(wanted)
        ordered = np.sort(blocks)
        is_new = np.ones(len(ordered), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
        return ordered[is_new]

    def _checksums(self, blocks: Numbers) -> Sums:
        """Compute the checksums of ascending, different blocks."""
        sums = np.empty(len(blocks), dtype="<u4")
        count = len(blocks)
        if blocks[-1] == len(self._whole):
            count -= 1
            sums[count:] = checksums(_filled_up(self._rest))
        if count and blocks[count - 1] - blocks[0] == count - 1:
            sums[:count] = checksums(self._whole[blocks[0] : blocks[0] + count])
            return sums
        for low in range(0, count, _GATHERED_BLOCKS):
            high = min(low + _GATHERED_BLOCKS, count)
            sums[low:high] = checksums(self._whole[blocks[low:high]])
        return sums


class BlockSink:
    """Passes the bytes of an Arrow file on; puts the checksums of its body into its tail.

    The body ends with the last record batch. The tail is the end of the stream, the checksums
    and the footer: a gap before the footer is nothing that a reader of Arrow files sees.
    """

    def __init__(self, sink: ObjectSink) -> None:
        self._sink = sink
        self._pending = bytearray()
        self._sums: list[Sums] = []
        self._tail: bytearray | None = None
        self.bytes = 0
        self.body_bytes = 0
        self.tail_crc = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._tail is not None:
            self._tail += view
            return len(view)
        self._sink.write(view)  # type: ignore[arg-type]  # any bytes-like object
        self.bytes += len(view)
        self._add(view)
        return len(view)

    def _add(self, view: memoryview) -> None:
        if self._pending:
            step = min(BLOCK_BYTES - len(self._pending), len(view))
            self._pending += view[:step]
            view = view[step:]
            if len(self._pending) == BLOCK_BYTES:
                self._sums.append(checksums(_words_of(self._pending)))
                self._pending = bytearray()
        whole = len(view) // BLOCK_BYTES * BLOCK_BYTES
        if whole:
            self._sums.append(checksums(_words_of(view[:whole])))
        self._pending += view[whole:]

    def end_body(self) -> None:
        """Learn that everything written from here on belongs to the tail."""
        if self._pending:
            self._sums.append(checksums(_filled_up(self._pending)))
        self.body_bytes = self.bytes
        self._tail = bytearray()

    def end(self) -> None:
        """Write the tail."""
        assert self._tail is not None
        assert self._tail.startswith(END_OF_STREAM)
        footer = self._tail[len(END_OF_STREAM) :]
        for piece in (END_OF_STREAM, np.concatenate(self._sums).tobytes(), bytes(footer)):
            self.tail_crc = zlib.crc32(piece, self.tail_crc)
            self._sink.write(piece)
            self.bytes += len(piece)

    def flush(self) -> None:
        """Do nothing: the sink below is unbuffered and made durable when it closes."""

    def close(self) -> None:
        self.closed = True
