"""The bytes of a run file: parsing, block checksums, and column layout; input is untrusted.

Arrow trusts its input: an offset outside a buffer ends the process. So contents are examined when
they are first touched. Layout: docs/format.md, reasons: docs/adr/0003.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.arrow_types import find_unstorable_part, storage_type, walk_type
from spark_upsert.core.key_hash import mix
from spark_upsert.core.keys import is_text
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import DIFF, HASH
from spark_upsert.core.threads import is_plain, require_sound
from spark_upsert.store import ObjectSink

MAGIC_BYTES = 8
"""``ARROW1`` and padding, at the file's start."""

PREFIX_BYTES = 8
"""Mark and length, before each message."""

_ALIGNMENT = 8
_COMPRESSION_FIELD = 3
_HEADER_FIELD = 2
"""Field numbers in the tables ``RecordBatch`` and ``Message`` of Arrow's ``Message.fbs``."""


class ParsedRun(NamedTuple):
    """A file's batch."""

    batch: pa.RecordBatch
    unreadable: Mapping[str, pa.DataType]
    """Columns missing from the batch, with types stored only by earlier releases."""


def parse(body: pa.Buffer, *, rows: int) -> ParsedRun:
    """Return a file's batch without copying it.

    Reads the messages at the start and never the footer, which could point elsewhere. Compressed
    batches and types never stored by our writers are refused, and buffer lengths are compared with
    the row count in the log.
    """
    reader = pa.BufferReader(body.slice(MAGIC_BYTES))
    schema = pa.ipc.read_schema(pa.ipc.read_message(reader))
    unreadable = {field.name: field.type for field in schema if not _is_readable(field)}
    if len(set(schema.names)) != len(schema):
        raise ValueError("columns of the same name")
    message = pa.ipc.read_message(reader)
    if _is_compressed(message.metadata):
        raise ValueError("a compressed batch")
    if unreadable:
        batch = _batch_without(unreadable, schema, body)
    else:
        batch = pa.ipc.read_record_batch(message, schema)
    batch.validate()
    if batch.num_rows != rows:
        raise ValueError(f"{batch.num_rows} rows")
    for name, type_ in ((HASH, pa.uint64()), (DIFF, pa.int8())):
        if not has_column(schema, name) or schema.field(name).type != type_:
            raise ValueError(f"no column '{name}' of {type_}")
        if batch.column(name).null_count:
            raise ValueError(f"nulls in column '{name}'")
    _require_within(batch, body)
    return ParsedRun(batch, unreadable)


def _is_readable(field: pa.Field) -> bool:
    """Return whether a column is read, in its own type or as that type's storage type.

    Raises ValueError for a type stored by no release.
    """
    if find_unstorable_part(field.name, field.type) is None:
        return True
    if not any(_is_earlier_type(part.type) for part, _ in walk_type(field.name, field.type)):
        raise ValueError(f"column '{field.name}' of type {field.type}, which is never stored")
    return find_unstorable_part(field.name, storage_type(field.type)) is None


def _is_earlier_type(type_: pa.DataType) -> bool:
    """Return whether a type was stored by earlier releases only."""
    types = pa.types
    return bool(
        types.is_fixed_size_list(type_)
        or types.is_list_view(type_)
        or types.is_large_list_view(type_)
        or types.is_union(type_)
        or types.is_decimal256(type_)
        or types.is_null(type_)
        or isinstance(type_, pa.BaseExtensionType)
    )


def _batch_without(names: Iterable[str], schema: pa.Schema, body: pa.Buffer) -> pa.RecordBatch:
    """Return a file's batch without the named columns, whose buffers are skipped."""
    indices = [index for index, name in enumerate(schema.names) if name not in names]
    options = pa.ipc.IpcReadOptions(included_fields=indices)
    with pa.ipc.open_stream(body.slice(MAGIC_BYTES), options=options) as reader:
        return reader.read_next_batch()


def _require_within(batch: pa.RecordBatch, body: pa.Buffer) -> None:
    """Raise if Arrow has copied a misaligned buffer: a copy could not be verified in place."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                low = buffer.address - body.address
                if low % _ALIGNMENT or not 0 <= low <= low + buffer.size <= body.size:
                    raise ValueError(f"a buffer of {buffer.size} bytes at {low}")


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Return whether a message holds a compressed batch; Arrow has verified its flatbuffer."""
    data = memoryview(metadata)
    try:
        message = _number("<I", data, 0)
        header = _field(data, message, _HEADER_FIELD)
        if header is None:
            raise ValueError("a message without a header")
        batch = header + _number("<I", data, header)
        return _field(data, batch, _COMPRESSION_FIELD) is not None
    except struct.error as error:
        raise ValueError(f"a message that ends early: {error}") from error


def _field(data: memoryview, table: int, field: int) -> int | None:
    """Return a flatbuffer field's offset, or None if it is absent."""
    vtable = table - _number("<i", data, table)
    slot = 4 + 2 * field
    if slot >= _number("<H", data, vtable):
        return None
    offset = _number("<H", data, vtable + slot)
    return table + offset if offset else None


def _number(form: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise ValueError("a message whose parts lie outside of it")
    number: int = struct.unpack_from(form, data, at)[0]
    return number


BLOCK_BYTES = 1024
SUM_BYTES = 4
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Arrow's mark after the last message."""

_WORD_BYTES = 8
_WORDS = BLOCK_BYTES // _WORD_BYTES
_WEIGHTS = mix(np.arange(1, _WORDS + 1, dtype=np.uint64)) | np.uint64(1)

_GATHERED_BLOCKS = 1 << 9
"""Maximum scattered blocks copied in one step: 512 KiB."""

Sums = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


def block_count(size: int) -> int:
    """Return the number of blocks for a byte count."""
    return -(-size // BLOCK_BYTES)


def blocks_of(low: Numbers, high: Numbers) -> Numbers:
    """Return the block numbers in several non-empty ranges ``low <= i < high``."""
    counts = high - low
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(low, counts) + np.arange(int(counts.sum())) - firsts


def checksums(words: npt.NDArray[np.uint64]) -> Sums:
    """Return each block's checksum.

    With a block's 128 little-endian 64-bit words ``a[i]``, padded with zeros, and ``w[i] = mix(i +
    1) | 1`` (`core.key_hash.mix`), it is the upper half of ``sum(w[i] * a[i])`` modulo 2**64: a
    multilinear hash (Lemire and Kaser, "Strongly universal string hashing is fast", 2014).
    """
    sums = np.einsum("ij,j->i", words, _WEIGHTS)
    return (sums >> np.uint64(32)).astype("<u4")


def _as_words(data: Any) -> npt.NDArray[np.uint64]:
    """Return bytes, a multiple of the block size, as blocks of words."""
    return np.frombuffer(data, dtype="<u8").reshape(-1, _WORDS)


def _padded_block(data: Any) -> npt.NDArray[np.uint64]:
    """Return less than a block's bytes as a zero-padded block."""
    return _as_words(bytes(data).ljust(BLOCK_BYTES, b"\0"))


class Blocks:
    """A body's blocks and their expected checksums, verified when touched.

    Parameters
    ----------
    body : memoryview
    sums : numpy.ndarray of uint32, shape (ceil(len(body) / 1024),)
    fetch : callable, optional
        Called with the blocks, ascending, before their verification.
    """

    def __init__(
        self, body: memoryview, sums: Sums, fetch: Callable[[Numbers], None] | None = None
    ) -> None:
        self._fetch = fetch
        block_bytes = len(body) // BLOCK_BYTES * BLOCK_BYTES
        self._whole = _as_words(body[:block_bytes])
        self._rest = body[block_bytes:]
        self._sums = sums
        self._verified = np.zeros(len(sums), dtype=np.bool_)
        self.are_verified = not len(sums)
        """Whether all blocks are verified."""

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def verified_count(self) -> int:
        """Number of verified blocks."""
        return int(self._verified.sum())

    def has_verified(self, low: int, high: int) -> bool:
        """Return whether the blocks for the bytes ``low <= i < high`` are verified."""
        return low >= high or bool(self._verified[low // BLOCK_BYTES : block_count(high)].all())

    def verify(self, blocks: Numbers) -> tuple[int, int, int] | None:
        """Verify blocks not verified yet, in any order.

        Returns the first damaged block's number, expected and actual checksum; None without damage.
        """
        fresh = self._distinct(blocks[~self._verified[blocks]])
        if not len(fresh):
            return None
        if self._fetch is not None:
            self._fetch(fresh)
        actual_sums = self._checksums(fresh)
        wrong = np.flatnonzero(actual_sums != self._sums[fresh])
        if len(wrong):
            first = wrong[0]
            return int(fresh[first]), int(self._sums[fresh[first]]), int(actual_sums[first])
        self._verified[fresh] = True
        self.are_verified = bool(self._verified.all())
        return None

    def _distinct(self, blocks: Numbers) -> Numbers:
        """Return the distinct block numbers, ascending."""
        if len(blocks) * 16 > len(self._sums):
            is_distinct = np.zeros(len(self._sums), dtype=np.bool_)
            is_distinct[blocks] = True
            return np.flatnonzero(is_distinct)
        ordered = np.sort(blocks)
        is_new = np.ones(len(ordered), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
        return ordered[is_new]

    def _checksums(self, blocks: Numbers) -> Sums:
        """Compute the checksums for ascending, distinct blocks."""
        sums = np.empty(len(blocks), dtype="<u4")
        count = len(blocks)
        if blocks[-1] == len(self._whole):
            count -= 1
            sums[count:] = checksums(_padded_block(self._rest))
        if count and blocks[count - 1] - blocks[0] == count - 1:
            sums[:count] = checksums(self._whole[blocks[0] : blocks[0] + count])
            return sums
        for low in range(0, count, _GATHERED_BLOCKS):
            high = min(low + _GATHERED_BLOCKS, count)
            sums[low:high] = checksums(self._whole[blocks[low:high]])
        return sums


class BlockSink:
    """Writes an Arrow file; adds its body's checksums to the tail.

    The body ends with the last record batch. The tail is the end-of-stream mark, the checksums and
    the footer: Arrow readers ignore a gap before the footer.
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
                self._sums.append(checksums(_as_words(self._pending)))
                self._pending = bytearray()
        block_bytes = len(view) // BLOCK_BYTES * BLOCK_BYTES
        if block_bytes:
            self._sums.append(checksums(_as_words(view[:block_bytes])))
        self._pending += view[block_bytes:]

    def end_body(self) -> None:
        """End the body: all further bytes belong to the tail."""
        if self._pending:
            self._sums.append(checksums(_padded_block(self._pending)))
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


Range = tuple[int, int]
"""File bytes ``low <= i < high``."""

NO_BLOCKS = np.empty(0, dtype=np.int64)

_GROUP_ROWS = 1024
"""Rows validated together, tracked by one byte."""


def is_read_by_rows(type_: pa.DataType) -> bool:
    """Return whether single rows of a column are read; of other types always the whole column.

    These are lists and maps, and the extension types of earlier releases.
    """
    if pa.types.is_struct(type_):
        return all(is_read_by_rows(field.type) for field in type_)
    return not (pa.types.is_nested(type_) or isinstance(type_, pa.BaseExtensionType))


class Layout:
    """A stored column's buffer offsets in the file, and the byte ranges for its values.

    String offsets are used only once their blocks are verified and they stay within the buffer.
    """

    def __init__(self, array: pa.Array, base: int) -> None:
        self.array = array
        self.is_read_by_rows = is_read_by_rows(array.type)
        self.is_text = is_text(array.type)
        self.is_struct = self.is_read_by_rows and pa.types.is_struct(array.type)
        self.fields: list[Layout] = []
        """The layouts of a struct's fields."""
        if self.is_struct:
            self.fields = [Layout(array.field(i), base) for i in range(array.type.num_fields)]
        self.texts: list[Layout] = [text for field in self.fields for text in field.texts]
        """The columns of strings: this one, or the fields of a struct."""
        if self.is_text:
            self.texts.append(self)
        plain_fields = [field.is_plain for field in self.fields]
        self.is_plain: bool = all(plain_fields) if self.is_struct else is_plain(array.type)
        """Whether every bit pattern is valid, so values need no validation."""
        buffers = [b for b in array.buffers() if b is not None and b.size]
        self.extents = [(b.address - base, b.address - base + b.size) for b in buffers]
        self.block_count = sum(block_count(high - low) for low, high in self.extents)
        self.is_known = False
        """Whether the complete column is verified and, unless plain, validated."""
        self._examined = np.zeros(-(-len(array) // _GROUP_ROWS), dtype=np.bool_)
        if not self.is_read_by_rows:
            return
        valid, *other_buffers = array.buffers()
        self.valid = None if valid is None else valid.address - base
        if self.is_struct:
            return
        values, *other_buffers = other_buffers
        self.values = values.address - base
        if self.is_text:
            # Offsets are never negative: as unsigned numbers, negative ones are too large.
            self.offsets = np.frombuffer(values, dtype=np.uint32, count=len(array) + 1)
            self.data_bytes = 0 if other_buffers[0] is None else other_buffers[0].size
            # Without any text, the buffer may be one outside the file.
            data = other_buffers[0] if self.data_bytes else None
            self.data = None if data is None else data.address - base
        else:
            self.bits = array.type.bit_width

    def unexamined(self, start: int, stop: int) -> Range | None:
        """Return the row range to validate before rows ``start <= i < stop`` are used, or None."""
        if not self.is_read_by_rows:
            return None if self.is_known else (0, len(self.array))
        first = start // _GROUP_ROWS
        left = np.flatnonzero(~self._examined[first : -(-stop // _GROUP_ROWS)])
        if not len(left):
            return None
        low, high = (first + int(left[0])) * _GROUP_ROWS, (first + int(left[-1]) + 1) * _GROUP_ROWS
        return low, min(high, len(self.array))

    def examine(self, start: int, stop: int) -> None:
        """Validate verified rows in a range from `unexamined`."""
        if self.is_struct:
            for field in self.fields:
                field.examine(start, stop)
        else:
            require_sound(self.array.slice(start, stop - start))
        self._examined[start // _GROUP_ROWS : -(-stop // _GROUP_ROWS)] = True
        self.is_known = bool(self._examined.all())

    def blocks_at(self, positions: Numbers) -> Iterator[Numbers]:
        """Yield the blocks for rows at the given positions, except string bytes."""
        if not self.is_read_by_rows:
            for low, high in self.extents:
                yield np.arange(low // BLOCK_BYTES, block_count(high))
            return
        if self.valid is not None:
            yield (self.valid + positions // 8) // BLOCK_BYTES
        if self.is_struct:
            for field in self.fields:
                yield from field.blocks_at(positions)
            return
        if self.is_text:
            # A string ends where the next one begins.
            yield (self.values + 4 * positions) // BLOCK_BYTES
            yield (self.values + 4 * positions + 4) // BLOCK_BYTES
            return
        yield (self.values + positions * self.bits // 8) // BLOCK_BYTES
        if self.bits > 64:
            # Buffers begin at multiples of 8: a long value may reach into the next block.
            yield (self.values + ((positions + 1) * self.bits - 1) // 8) // BLOCK_BYTES

    def text_blocks_at(self, positions: Numbers) -> Numbers:
        """Return the blocks with the bytes of a string column, whose offsets are verified."""
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
        """Yield the byte ranges for rows ``start <= i < stop``, except string bytes."""
        if not self.is_read_by_rows:
            yield from self.extents
            return
        if self.valid is not None:
            yield self.valid + start // 8, self.valid + (stop - 1) // 8 + 1
        if self.is_struct:
            for field in self.fields:
                yield from field.ranges_of(start, stop)
        elif self.is_text:
            yield self.values + 4 * start, self.values + 4 * (stop + 1)
        else:
            yield self.values + start * self.bits // 8, self.values + (stop * self.bits + 7) // 8

    def text_ranges_of(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the byte range of a string column, whose offsets are verified."""
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        if low > high or high > self.data_bytes:
            raise pa.ArrowInvalid("offsets of texts that are not in order")
        if self.data is not None:
            yield self.data + low, self.data + high
