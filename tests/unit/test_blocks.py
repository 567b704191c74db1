"""Checksums of blocks: the documented formula, however the bytes come; no flipped bit is missed."""

from __future__ import annotations

import io
import zlib
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError
from spark_upsert.table.run.file import Run, write_run
from spark_upsert.table.run.format import (
    _WEIGHTS,
    BLOCK_BYTES,
    END_OF_STREAM,
    Blocks,
    BlockSink,
    block_count,
    checksums,
)
from tests.support.stores import MemoryStore

_MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """Compute the finaliser of splitmix64 with plain integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def checksum(block: bytes) -> int:
    """Compute the documented formula with plain integers."""
    block = block.ljust(BLOCK_BYTES, b"\0")
    words = [int.from_bytes(block[at : at + 8], "little") for at in range(0, BLOCK_BYTES, 8)]
    return (sum((mix(i + 1) | 1) * word for i, word in enumerate(words)) & _MASK) >> 32


VECTORS = {
    "zeros": (b"\0" * 1024, 0x00000000),
    "one": (b"\x01" + b"\0" * 1023, 0x5692161D),
    "the numbers 0 to 255, four times": (bytes(range(256)) * 4, 0xD3375937),
    "less than a block": (b"upsertflow", 0x021A9A2A),
}


@pytest.mark.parametrize(("data", "expected"), VECTORS.values(), ids=list(VECTORS))
def test_checksums_are_those_of_the_format(data: bytes, expected: int) -> None:
    words = np.frombuffer(data.ljust(BLOCK_BYTES, b"\0"), dtype="<u8").reshape(1, -1)
    assert checksums(words).tolist() == [checksum(data)] == [expected]


def test_a_flipped_bit_changes_the_checksum_whatever_the_rest() -> None:
    """It adds or subtracts ``w << bit``: that must reach the upper half, and with all carries."""
    for bit in range(64):
        moved = _WEIGHTS << np.uint64(bit)
        assert np.minimum(moved, ~moved + np.uint64(1)).min() >= np.uint64(1 << 32)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 10_240])
def test_the_same_bytes_have_the_same_checksums_however_they_are_cut(size: int) -> None:
    dice = np.random.default_rng(size)
    data = dice.bytes(size)
    expected = [checksum(data[at : at + BLOCK_BYTES]) for at in range(0, size, BLOCK_BYTES)]
    for longest in (1, 7, 100, 1024, 3000, 20_000):
        target = io.BytesIO()
        sink = BlockSink(target)
        at = 0
        while at < size:
            step = int(dice.integers(1, longest + 1))
            sink.write(data[at : at + step])
            at += step
        sink.end_body()
        sink.write(END_OF_STREAM[:3])
        sink.write(END_OF_STREAM[3:] + b"footer")
        sink.end()
        written = target.getvalue()
        tail = written[sink.body_bytes :]
        assert written[:size] == data
        assert tail.startswith(END_OF_STREAM)
        assert tail.endswith(b"footer")
        assert np.frombuffer(tail[8:-6], dtype="<u4").tolist() == expected
        assert sink.bytes == len(written)
        assert sink.tail_crc == zlib.crc32(tail)


def blocks_of(data: bytes) -> Blocks:
    sums = [checksum(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    return Blocks(memoryview(data), np.array(sums, dtype="<u4"))


@pytest.mark.parametrize("wanted", [[0, 5, 5, 2], [20, 0], range(21)], ids=str)
def test_blocks_are_verified_once_in_any_order(wanted: list[int]) -> None:
    blocks = blocks_of(np.random.default_rng(1).bytes(20 * BLOCK_BYTES + 16))
    assert len(blocks) == block_count(20 * BLOCK_BYTES + 16) == 21
    for _ in range(2):
        assert blocks.verify(np.array(wanted)) is None
        assert blocks.verified_count == len(set(wanted))
    assert blocks.are_verified == (len(set(wanted)) == 21)


@pytest.mark.parametrize("damaged", [0, 7, 19, 20])
def test_the_first_damaged_block_is_named_with_both_checksums(damaged: int) -> None:
    data = bytearray(np.random.default_rng(1).bytes(20 * BLOCK_BYTES + 16))
    place = slice(damaged * BLOCK_BYTES, (damaged + 1) * BLOCK_BYTES)
    good, blocks = checksum(bytes(data[place])), blocks_of(bytes(data))
    data[place.start + 5] ^= 0x40
    broken = Blocks(memoryview(bytes(data)), blocks._sums)
    assert broken.verify(np.arange(21)) == (damaged, good, checksum(bytes(data[place])))
    assert broken.verify(np.delete(np.arange(21), damaged)) is None
    assert not broken.has_verified(place.start, place.start + 1)


def test_the_second_half_of_a_long_value_is_verified_where_it_lies_in_the_next_block() -> None:
    """Buffers begin at multiples of 8, so that a decimal may lie across two blocks."""
    columns = pa.schema({"k": pa.int64(), "v": pa.int64(), "d": pa.decimal128(38, 0)})
    schema = TableSchema.of(columns, keys=["k"])
    tried = 0
    for count in (399, 400):
        numbers, store = list(range(count)), MemoryStore()
        decimals = pa.array(map(Decimal, numbers), pa.decimal128(38, 0))
        rows = [pa.array(numbers, pa.uint64()), pa.array(numbers), pa.array(numbers), decimals]
        rows.append(pa.array([1] * count, pa.int8()))
        batch = pa.RecordBatch.from_arrays(rows, schema=schema.run)
        file = write_run(store, "data/x.arrow", batch)
        intact = pa.py_buffer(store.read(file.path))
        values = pa.ipc.open_file(intact).get_batch(0).column("d").buffers()[1]
        begin = values.address - intact.address
        for position in numbers:
            if (begin + 16 * position) % BLOCK_BYTES == BLOCK_BYTES - 8:
                damaged = bytearray(intact)
                damaged[begin + 16 * position + 15] ^= 1
                run = Run(file, pa.py_buffer(bytes(damaged)))
                with pytest.raises(CorruptionError, match=r"x\.arrow"):
                    run.take(["d"], np.array([position]))
                tried += 1
    assert tried
