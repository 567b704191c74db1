"""Run files: `write_run`, the open run (`Run`), its cache, and frugal work.

Log, file tail, block checksums and rows form a chain of checks; a reader verifies only touched
blocks (docs/adr/0003). *Frugal* work releases mapped memory between steps (docs/adr/0012).
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.arrow_types import unreadable_column_error
from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_number
from spark_upsert.core.keys import Positions
from spark_upsert.core.lru import LruMap
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import DIFF, ERROR, HASH, MOVED, at_column, kept_column, moved_column
from spark_upsert.core.threads import require_sound
from spark_upsert.errors import CorruptionError
from spark_upsert.store import Store, resident_bytes
from spark_upsert.store.protocol import MappedFile, new_token
from spark_upsert.store.records import text, whole
from spark_upsert.table.run.format import (
    BLOCK_BYTES,
    END_OF_STREAM,
    MAGIC_BYTES,
    NO_BLOCKS,
    PREFIX_BYTES,
    SUM_BYTES,
    Blocks,
    BlockSink,
    Layout,
    block_count,
    parse,
)

T = TypeVar("T")


Hashes = npt.NDArray[np.uint64]

STRIDE = 16
"""Number of hashes per sampled hash."""

_FEW = 32
"""Hashes per probe from which on a search with the sample is faster than one without."""

_SAMPLE_PAYS = 64
"""Minimum hashes per probe to justify the sample; building it reads all hashes."""

_FILTER_PAYS = 4
"""Minimum hashes per probe to justify the filter."""

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

    def insertion_points(self, probes: Hashes) -> Positions:
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
        block = np.maximum(np.searchsorted(sample, probes) - 1, 0)
        hashes = self._hashes[: len(sample) * STRIDE].reshape(-1, STRIDE).take(block, axis=0)
        # Eight bytes with 0 or 1 are a word; this product's upper byte is their sum.
        is_lower = (hashes < probes[:, None]).view(np.uint64)
        counts = ((is_lower * _ONES) >> np.uint64(56)).view(np.int64)
        return block * STRIDE + counts.sum(axis=1)

    def candidates(self, probes: Hashes) -> Positions:
        """Return probe indices possibly among the hashes: no misses, few false positives."""
        if not self._has_paid(len(probes), _FILTER_PAYS):
            return np.arange(len(probes))
        if self._filter is None:
            self._filter = _Filter(self._hashes)
        return self._filter.passing(probes)

    def _has_paid(self, probes: int, price: int) -> bool:
        """Count probes; return whether there was one per ``price`` hashes."""
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


_OWN_PATH = re.compile(r"data/[0-9a-f]{32}\.arrow")
_LOGGED_PATH = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


def is_run_path(path: str) -> bool:
    """Return whether our writers create such run names, so a vacuum may remove the file."""
    return _OWN_PATH.fullmatch(path) is not None


class HotPrefix(NamedTuple):
    """A hot hash prefix: many of a run's entries share these upper 32 bits."""

    upper: int
    """The upper 32 bits."""
    rows: int

    @property
    def hash_range(self) -> HashRange:
        """The hashes with this prefix."""
        return HashRange(self.upper << 32, (self.upper + 1) << 32)


_CROWDS_MAX = 256
"""Maximum hot prefixes per run, so the log stays small."""

_CROWD_ROWS = 64
"""Minimum sampling step: a prefix with fewer entries has little effect on piece sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run file's record in the log."""

    path: str
    rows: int
    tombstones: int
    bytes: int
    body_bytes: int
    """The tail's offset."""
    tail_crc: int
    hash_range: HashRange
    """From the least hash to the greatest."""
    errors: int = 0
    """Number of error entries for the quarantine; a file without any is not searched for them."""
    crowds: tuple[HotPrefix, ...] = ()
    """Hot hash prefixes (`TableSchema.hash_prefix`), ascending; hints for range division."""

    def __repr__(self) -> str:
        return f"RunFile({self.path}, rows={self.rows:_}, bytes={self.bytes:_})"

    def to_json(self) -> dict[str, Any]:
        """Return the log representation."""
        record = {
            "path": self.path,
            "rows": self.rows,
            "tombstones": self.tombstones,
            "bytes": self.bytes,
            "body_bytes": self.body_bytes,
            "tail_crc": self.tail_crc,
            "hash_min": f"{self.hash_range.first:016x}",
            "hash_max": f"{self.hash_range.last:016x}",
        }
        if self.errors:
            record["errors"] = self.errors
        if self.crowds:
            record["crowds"] = [[f"{crowd.upper:08x}", crowd.rows] for crowd in self.crowds]
        return record

    def spread(self) -> Iterator[tuple[HashRange, int]]:
        """Yield hash ranges with approximate entry counts; hashes are uniform in each.

        The ranges cover `hash_range` and do not overlap.
        """
        if not self.crowds:
            yield self.hash_range, self.rows
            return
        crowded = [
            (crowd.hash_range.intersect(self.hash_range), crowd.rows) for crowd in self.crowds
        ]
        bounds = [
            self.hash_range.first,
            *(bound for part, _ in crowded for bound in (part.first, part.end)),
            self.hash_range.end,
        ]
        between = [HashRange(*bounds[at : at + 2]) for at in range(0, len(bounds), 2)]
        width = sum(part.width for part in between)
        rows = self.rows - sum(rows for _, rows in crowded)
        yield from crowded
        yield from ((part, rows * part.width // width) for part in between if not part.is_empty)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RunFile:
        """Parse the log representation."""
        path = text(record["path"])
        if _LOGGED_PATH.fullmatch(path) is None:
            raise CorruptionError.in_file("_log", "the path of a run in the table", repr(path))
        rows = whole(record["rows"], least=1)
        hash_range = HashRange.spanning(
            hash_number(record["hash_min"]), hash_number(record["hash_max"])
        )
        return cls(
            path=path,
            rows=rows,
            tombstones=whole(record["tombstones"], most=rows),
            bytes=whole(record["bytes"]),
            body_bytes=whole(record["body_bytes"], most=record["bytes"]),
            tail_crc=whole(record["tail_crc"], most=2**32 - 1),
            hash_range=hash_range,
            errors=whole(record.get("errors", 0), most=rows),
            crowds=_read_crowds(record.get("crowds", ()), hash_range, rows),
        )


def new_run_path() -> str:
    """Return a new unique run path."""
    return f"data/{new_token()}.arrow"


def write_run(store: Store, path: str, rows: pa.RecordBatch) -> RunFile:
    """Write sorted entries as a run file, durably.

    The file is an Arrow IPC file with one batch, sorted by (hash, key), one entry per key. Block
    checksums are between the end of the stream and the footer.
    """
    if rows.num_rows == 0:
        raise ValueError("a run is never empty")
    rows = _without_unused_marks(rows)
    with store.create(path) as sink:
        blocks = BlockSink(sink)
        with pa.ipc.new_file(pa.PythonFile(blocks, mode="w"), rows.schema) as writer:
            writer.write_batch(rows)
            blocks.end_body()
        blocks.end()
    hashes = rows.column(HASH).to_numpy()
    diffs = rows.column(DIFF).to_numpy()
    return RunFile(
        path=path,
        rows=rows.num_rows,
        tombstones=int((diffs < 0).sum()),
        errors=int((diffs == ERROR).sum()),
        bytes=blocks.bytes,
        body_bytes=blocks.body_bytes,
        tail_crc=blocks.tail_crc,
        hash_range=HashRange.spanning(hashes[0], hashes[-1]),
        crowds=_crowds(hashes),
    )


def _without_unused_marks(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out the marks of unchanged values that no entry uses (`core.schema.kept_column`).

    Also a column that no entry sets.
    """
    names = set(rows.schema.names)
    unused = []
    for column in rows.schema.names:
        kept, at = kept_column(column), at_column(column)
        if kept not in names:
            continue
        marks = [name for name in (kept, at, moved_column(column)) if name in names]
        unused += [name for name in marks if rows.column(name).null_count == rows.num_rows]
        is_never_set = rows.column(column).null_count == rows.num_rows
        if is_never_set and rows.column(kept).null_count == 0:
            unused.append(column)
    if MOVED in names and rows.column(MOVED).null_count == rows.num_rows:
        unused.append(MOVED)
    return rows.drop_columns(unused) if unused else rows


def _crowds(hashes: npt.NDArray[np.uint64]) -> tuple[HotPrefix, ...]:
    """Return the hot prefixes among ascending hashes.

    Every n-th hash is sampled, so a prefix with 2n entries is always found. Hashes over complete
    keys have no hot prefixes, which keeps their runs' log records small.
    """
    every = max(_CROWD_ROWS, -(-len(hashes) // _CROWDS_MAX))
    prefixes = hashes[::every] >> np.uint64(32)
    uppers = np.unique(prefixes[1:][prefixes[1:] == prefixes[:-1]])
    begins = np.searchsorted(hashes, uppers << np.uint64(32), side="left")
    lasts = (uppers << np.uint64(32)) | np.uint64(2**32 - 1)
    counts = np.searchsorted(hashes, lasts, side="right") - begins
    return tuple(map(HotPrefix, uppers.tolist(), counts.tolist()))


def _read_crowds(record: Any, hash_range: HashRange, rows: int) -> tuple[HotPrefix, ...]:
    """Parse and check the log representation for hot prefixes."""
    crowds = tuple(
        HotPrefix(hash_number(digits), whole(count, least=1, most=rows)) for digits, count in record
    )
    ranges = [crowd.hash_range.intersect(hash_range) for crowd in crowds]
    is_ascending = all(a.upper < b.upper for a, b in pairwise(crowds))
    if not is_ascending or any(hash_range.is_empty for hash_range in ranges):
        raise ValueError("crowds of a run are not ascending within its hashes")
    if sum(crowd.rows for crowd in crowds) > rows:
        raise ValueError("the crowds of a run have more entries than the run")
    return crowds


class Run:
    """An open run: its columns as views of the mapped file, verified when touched.

    Parameters
    ----------
    file : RunFile
    buffer : pyarrow.Buffer
        The complete file.
    release : callable, optional
        Releases the buffer's memory.
    on_damage : callable, optional
        Called before a damaged block is reported.
    fetch : callable, optional
        Fetches blocks and their checksums into the buffer before their verification
        (`table.run.remote`). The tail's checksum covers bytes not fetched, and is not verified.
    """

    def __init__(
        self,
        file: RunFile,
        buffer: pa.Buffer,
        *,
        release: Callable[[pa.Buffer], None] | None = None,
        on_damage: Callable[[], None] | None = None,
        fetch: Callable[[Positions], None] | None = None,
    ) -> None:
        self.file = file
        self._buffer = buffer
        self._release = release
        self._on_damage = on_damage
        if buffer.size != file.bytes:
            raise CorruptionError.in_file(file.path, f"{file.bytes} bytes", f"{buffer.size}")
        begin, count = file.body_bytes + len(END_OF_STREAM), block_count(file.body_bytes)
        if file.body_bytes < MAGIC_BYTES or begin + count * SUM_BYTES > file.bytes:
            raise CorruptionError.in_file(
                file.path,
                f"checksums of {count} blocks behind byte {begin}",
                f"{file.bytes} bytes",
            )
        view = memoryview(buffer)
        if fetch is None:
            self._require_tail(view[file.body_bytes :])
        sums = np.frombuffer(view, dtype="<u4", count=count, offset=begin)
        self._blocks = Blocks(view[: file.body_bytes], sums, fetch)
        self._verify_head()
        try:
            parsed = parse(buffer.slice(0, file.body_bytes), rows=file.rows)
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            raise self._invalid_contents(error) from error
        self._batch, self._unreadable = parsed
        self.names: tuple[str, ...] = (*self._batch.schema.names, *self._unreadable)
        """Stored column names."""
        self._layouts: dict[str, Layout] = {}
        self.hashes: npt.NDArray[np.uint64] = self._batch.column(HASH).to_numpy()
        self.search = HashSearch(self.hashes)
        """Search over unverified hashes."""

    def __repr__(self) -> str:
        checked = f"{self._blocks.verified_count}/{len(self._blocks)}"
        return f"Run({self.file.path}, rows={self.file.rows:_}, blocks={checked})"

    def release(self) -> None:
        """Release the mapped file's memory; pages are read again when touched."""
        if self._release is not None:
            self._release(self._buffer)

    def _require_tail(self, tail: memoryview) -> None:
        """Verify the tail's checksum."""
        tail_crc = zlib.crc32(tail)
        if tail_crc != self.file.tail_crc:
            raise CorruptionError.in_file(
                self.file.path, f"checksum {self.file.tail_crc:08x} of its tail", f"{tail_crc:08x}"
            )

    def _verify_head(self) -> None:
        """Verify the schema and the first batch's header before Arrow parses the header.

        Both are messages: a 4-byte mark, a 4-byte length, and the content. Each is read only after
        its blocks are verified.
        """
        begin, limit = MAGIC_BYTES, self.file.body_bytes
        for _ in range(2):
            content = begin + PREFIX_BYTES
            self._verify_range(begin, min(content, limit))
            length = memoryview(self._buffer)[begin + 4 : content]
            begin = content + int.from_bytes(length, "little")
            if begin > limit:
                raise CorruptionError.in_file(
                    self.file.path, f"two messages in {limit} bytes", f"one of them ends at {begin}"
                )
            self._verify_range(content, begin)

    def has(self, name: str) -> bool:
        """Return whether the run stores a column, readable or not."""
        return has_column(self._batch.schema, name) or name in self._unreadable

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        """Return verified views of the columns' rows ``start <= i < stop``."""
        layouts = [self._layout(name) for name in names]
        if start < stop:
            for layout in layouts:
                if layout is self._layouts.get(HASH):
                    self._require_order(layout, start, stop)
                elif layout.is_plain:
                    self._verify_rows(layout, start, stop)
                elif not layout.is_known and (rows := layout.unexamined(start, stop)) is not None:
                    self._examine_rows(layout, *rows)
        return [layout.array.slice(start, stop - start) for layout in layouts]

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        """Return verified copies of the columns' rows at the given positions."""
        self.verify_at(names, positions)
        indices = pa.array(positions)
        layouts = [self._layout(name) for name in names]
        taken = [layout.array.take(indices) for layout in layouts]
        try:
            for layout, column in zip(layouts, taken, strict=True):
                if not (layout.is_plain or layout.is_known):
                    require_sound(column)
        except pa.ArrowException as error:
            raise self._invalid_contents(error) from error
        return taken

    def verify(self) -> None:
        """Verify every block, and validate every column."""
        self._verify(np.arange(len(self._blocks)))
        for name in self._batch.schema.names:
            self.slice([name], 0, self.file.rows)

    def verify_at(self, names: Iterable[str], positions: Positions) -> None:
        """Verify the blocks for rows at the given positions, and that Arrow can take them."""
        if len(positions) == 0:
            return
        plain_verified = self._blocks.are_verified
        layouts = [layout for layout in map(self._layout, names) if not layout.is_known]
        unverified = [layout for layout in layouts if not (plain_verified and layout.is_plain)]
        if not unverified:
            return
        if not plain_verified:
            parts = [part for layout in unverified for part in layout.blocks_at(positions)]
            self._verify(np.concatenate([NO_BLOCKS, *parts]))
        for layout in unverified:
            if not layout.is_read_by_rows:
                self._examine_rows(layout, 0, self.file.rows)
        self._verify_texts([text for layout in unverified for text in layout.texts], positions)
        for layout in unverified:
            # This pays off only if a large part of the column was requested.
            if len(positions) * 8 >= layout.block_count and layout.is_read_by_rows:
                self._learn(layout)

    def _learn(self, layout: Layout) -> None:
        """Validate a column if all its blocks are verified, so later reads skip it."""
        if not all(self._blocks.has_verified(*extent) for extent in layout.extents):
            return
        if layout.is_plain:
            layout.is_known = True
        else:
            self._examine_rows(layout, 0, self.file.rows)

    def _verify_texts(self, layouts: Sequence[Layout], positions: Positions) -> None:
        """Verify the string bytes at the given positions; their offsets are already verified."""
        if not layouts:
            return
        try:
            blocks = [layout.text_blocks_at(positions) for layout in layouts]
        except pa.ArrowException as error:
            raise self._invalid_contents(error) from error
        if not self._blocks.are_verified:
            self._verify(np.concatenate(blocks))

    def rows_of(self, hash_range: HashRange) -> tuple[int, int]:
        """Return the rows ``[start, stop)`` with hashes in a range, by unverified hashes."""
        return hash_range.rows_of(self.hashes)

    def _verify_rows(self, layout: Layout, start: int, stop: int) -> None:
        """Verify consecutive rows."""
        if self._blocks.are_verified or layout.is_known:
            return
        for low, high in layout.ranges_of(start, stop):
            self._verify_range(low, high)
        for part in layout.texts:
            for low, high in part.text_ranges_of(start, stop):
                self._verify_range(low, high)

    def _require_order(self, layout: Layout, start: int, stop: int) -> None:
        """Verify consecutive hashes and their order, which compaction and look-ups need."""
        rows = layout.unexamined(start, stop)
        if rows is None:
            return
        low, high = rows
        # With the previous row, so the borders between checked ranges are checked, too.
        self._verify_rows(layout, max(low - 1, 0), high)
        hashes = self.hashes[max(low - 1, 0) : high]
        bounds = (self.file.hash_range.first, self.file.hash_range.last)
        if (
            bool((hashes[1:] < hashes[:-1]).any())
            or int(hashes[0]) < bounds[0]
            or int(hashes[-1]) > bounds[1]
        ):
            self._report_damage()
            raise CorruptionError.in_file(
                self.file.path,
                f"hashes in ascending order from {bounds[0]:016x} to {bounds[1]:016x}",
                f"others in rows {low} to {high}",
            )
        layout.examine(low, high)

    def _examine_rows(self, layout: Layout, start: int, stop: int) -> None:
        """Verify and validate consecutive rows."""
        try:
            self._verify_rows(layout, start, stop)
            layout.examine(start, stop)
        except pa.ArrowException as error:
            raise self._invalid_contents(error) from error

    def _invalid_contents(self, error: Exception) -> CorruptionError:
        """Return the error for invalid contents with correct checksums."""
        self._report_damage()
        return CorruptionError.in_file(
            self.file.path, f"{self.file.rows} sound rows", f"contents that are not: {error}"
        )

    def _layout(self, name: str) -> Layout:
        if name not in self._layouts:
            if name in self._unreadable:
                raise unreadable_column_error(name, self._unreadable[name], self.file.path)
            if not self.has(name):
                raise CorruptionError.in_file(self.file.path, f"a column '{name}'", "none")
            self._layouts[name] = Layout(self._batch.column(name), self._buffer.address)
        return self._layouts[name]

    def _verify_range(self, low: int, high: int) -> None:
        """Verify the bytes ``low <= i < high``."""
        if not self._blocks.has_verified(low, high):
            self._verify(np.arange(low // BLOCK_BYTES, block_count(high)))

    def _verify(self, blocks: Positions) -> None:
        damage = self._blocks.verify(blocks)
        if damage is None:
            return
        self._report_damage()
        block, expected, actual = damage
        begin = block * BLOCK_BYTES
        raise CorruptionError.in_file(
            self.file.path,
            f"checksum {expected:08x} of bytes {begin} to {begin + BLOCK_BYTES}",
            f"{actual:08x}",
        )

    def _report_damage(self) -> None:
        if self._on_damage is not None:
            self._on_damage()


_IS_FRUGAL: ContextVar[bool] = ContextVar("is_frugal", default=False)


def is_frugal() -> bool:
    """Return whether the current work must release mapped memory."""
    return _IS_FRUGAL.get()


@contextmanager
def frugal() -> Iterator[None]:
    """Enable frugal mode within the context; generator steps outside follow their caller's mode."""
    token = _IS_FRUGAL.set(True)
    try:
        yield
    finally:
        _IS_FRUGAL.reset(token)


def frugally(items: Iterator[T]) -> Iterator[T]:
    """Yield an iterator's items, each produced in frugal mode."""
    while True:
        with frugal():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


_RESIDENT_BYTES = 128 << 20
"""Resident bytes of mapped files in an idle worker, including some 60 MiB of libraries."""

_RESIDENT_BYTES_PER_ROW = 16 << 10
_RELEASED_BYTES_MIN = 16 << 20
"""Minimum release justifying a pass over all open runs, some microseconds per thousand."""


class _OpenRun(NamedTuple):
    """An open run, and its opening time by the cache's clock."""

    run: Run
    seen: MappedFile | None
    """The file's state before it was mapped; None if no local file is mapped."""
    opened_s: float


@dataclass
class RunCache:
    """Least-recently-used cache for this process's open runs.

    The cache is bounded by count: an open run is a mapping and one byte per block, not its
    contents, some 30 KiB in all. Tables written and compacted for hours have thousands of runs in
    turn, but use only the last. So beyond a count the cache closes runs without a recent use.
    Touched pages count as process memory until their release; `trim` bounds them. The keys are
    immutable files, so an entry never becomes stale.
    """

    count_max: int = 4096
    rested_max: int = 128
    """Number of idle runs kept open."""
    rest_s: float = 60.0
    """Time for which other idle runs stay open. A query opens its runs in each batch."""
    trusted_s: float = 3600.0
    """Time for which verified blocks are trusted; then the run is reopened and verified again. It
    covers silent faults: a disk may return other bytes on the next read.
    """
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._runs: LruMap[tuple[str, str], _OpenRun] = LruMap(
            self.count_max, rest_s=self.rest_s, rested_max=self.rested_max, clock=self.clock
        )
        self._others_bytes = 0
        """Resident bytes after a release, which belong to other files, such as libraries."""

    def open(self, store: Store, file: RunFile) -> Run:
        """Return a file's open run."""
        key = (store.url, file.path)
        with self._lock:
            opened = self._runs.get(key)
        # Read before the mapping, so a concurrent write changes the state.
        mapped_buffer = store.mapped_file(file.path)
        if opened is not None and self._is_as_verified(opened, mapped_buffer):
            return opened.run

        def on_damage() -> None:
            # It may be a remote object's local copy: the next attempt fetches it again.
            store.forget(file.path)
            with self._lock:
                self._runs.pop(key)

        def mapped() -> Run:
            buffer = store.map(file.path)
            return Run(file, buffer, release=store.release, on_damage=on_damage)

        try:
            run = mapped()
        except FileNotFoundError as error:
            raise CorruptionError.in_file(
                f"{store.url}/{file.path}", f"{file.bytes} bytes", "no such file"
            ) from error
        except CorruptionError:
            store.forget(file.path)
            run = mapped()
        with self._lock:
            # A local copy did not exist before the fetch.
            mapped_buffer = mapped_buffer or store.mapped_file(file.path)
            self._runs.put(key, _OpenRun(run, mapped_buffer, self.clock()))
        return run

    def open_all(self, store: Store, files: Sequence[RunFile]) -> list[Run]:
        """Return the files' open runs; missing local copies are fetched in parallel."""
        new = {file.path: file.bytes for file in files if not self.has(store, file)}
        if len(new) > 1:
            store.fetch(new)
        return [self.open(store, file) for file in files]

    def has(self, store: Store, file: RunFile) -> bool:
        """Return whether a file's run is open."""
        with self._lock:
            return self._runs.peek((store.url, file.path)) is not None

    def _is_as_verified(self, known: _OpenRun, seen: MappedFile | None) -> bool:
        """Return whether an open run's verified blocks are still valid.

        A file truncated after mapping must not be touched: the access raises SIGBUS. A modified
        file is damaged or repaired; a removed file stays as it was.
        """
        if seen is None:
            return True
        return seen == known.seen and self.clock() - known.opened_s < self.trusted_s

    def trim(self, rows: int) -> None:
        """Release mapped memory beyond the amount justified by the rows; called between steps.

        Only for frugal work (`frugal`): a worker's memory then follows its batches, not its table.
        Touching released memory again costs some microseconds per 64 KiB.
        """
        if not is_frugal():
            return
        resident = resident_bytes()
        self._others_bytes = min(self._others_bytes, resident)
        allowed = _RESIDENT_BYTES + rows * _RESIDENT_BYTES_PER_ROW
        if resident > max(allowed, self._others_bytes + _RELEASED_BYTES_MIN):
            with self._lock:
                runs = [opened.run for opened in self._runs.values()]
            for run in runs:
                run.release()
            self._others_bytes = resident_bytes()


RUNS = RunCache()
"""This process's open runs."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows ``start <= i < stop`` in an open run."""

    run: Run
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def within(cls, run: Run, hash_range: HashRange = ALL_HASHES) -> Span:
        """Return a run's rows with hashes in a range; the hashes at both ends are verified."""
        if hash_range.covers(run.file.hash_range):
            return cls(run, 0, len(run.hashes))
        start, stop = run.rows_of(hash_range)
        near = np.array([p for p in (start - 1, start, stop - 1, stop) if 0 <= p < len(run.hashes)])
        run.verify_at([HASH], near)
        return cls(run, start, stop)
