"""Runs: immutable Arrow files, sorted by key hash, checked page by page.

A run file is a plain Arrow IPC file with two record batches. The first holds the rows,
sorted by (hash, key), one entry per key. The second is empty; its metadata carries the
CRC-32 of every 4 KiB page of all bytes before it. The log holds the length of the file and
the CRC-32 of the *tail*, everything from the second batch on. So

    log  ->  tail (page table, footer)  ->  pages  ->  rows

is a chain of checks in which a reader verifies only the pages that it touches, once per
process. A search needs no check of its probes: its answer is right if the two entries on
both sides of it are, because a run is sorted.

Rejected: one checksum per file (a lookup would have to read the whole file), and a file of
checksums beside it (two objects to write, lose and clean up).
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.errors import CorruptionError
from spark_upsert.hashing import row_range
from spark_upsert.schema import DIFF, ERROR, HASH
from spark_upsert.store import ObjectSink, Store, resident_bytes
from spark_upsert.words import is_text

PAGE_BYTES = 4096
_PAGES_KEY = b"upsertflow.pages"

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What the log knows of a run file."""

    path: str
    rows: int
    tombstones: int
    bytes: int
    body_bytes: int
    """Where the tail begins."""
    tail_crc: int
    hash_min: int
    hash_max: int
    errors: int = 0
    """Error entries of a quarantine; a file without them need not be searched for any."""

    def __repr__(self) -> str:
        return f"RunFile({self.path}, rows={self.rows:_}, bytes={self.bytes:_})"

    def to_json(self) -> dict[str, Any]:
        """Return the form that stands in the log."""
        record = {
            "path": self.path,
            "rows": self.rows,
            "tombstones": self.tombstones,
            "bytes": self.bytes,
            "body_bytes": self.body_bytes,
            "tail_crc": self.tail_crc,
            "hash_min": f"{self.hash_min:016x}",
            "hash_max": f"{self.hash_max:016x}",
        }
        return {**record, "errors": self.errors} if self.errors else record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RunFile:
        """Rebuild a run file from its form in the log."""
        return cls(
            path=record["path"],
            rows=record["rows"],
            tombstones=record["tombstones"],
            bytes=record["bytes"],
            body_bytes=record["body_bytes"],
            tail_crc=record["tail_crc"],
            hash_min=int(record["hash_min"], 16),
            hash_max=int(record["hash_max"], 16),
            errors=record.get("errors", 0),
        )


def write_run(store: Store, path: str, rows: pa.RecordBatch) -> RunFile:
    """Write sorted entries as a run file, durably.

    Parameters
    ----------
    store : Store
    path : str
        A name that nobody has used before.
    rows : pyarrow.RecordBatch, shape (n,), n > 0
        Sorted by (hash, key), one entry per key; columns as `TableSchema.run`.
    """
    if rows.num_rows == 0:
        raise ValueError("a run is never empty")
    with store.create(path) as sink:
        pages = _PageSink(sink)
        with pa.ipc.new_file(pa.PythonFile(pages, mode="w"), rows.schema) as writer:
            writer.write_batch(rows)
            table = pages.close_body()
            writer.write_batch(rows.slice(0, 0), {_PAGES_KEY: table.tobytes().hex().encode()})
    hashes = rows.column(HASH)
    diffs = rows.column(DIFF).to_numpy()
    return RunFile(
        path=path,
        rows=rows.num_rows,
        tombstones=int((diffs < 0).sum()),
        errors=int((diffs == ERROR).sum()),
        bytes=pages.bytes,
        body_bytes=pages.body_bytes,
        tail_crc=pages.tail_crc,
        hash_min=hashes[0].as_py(),
        hash_max=hashes[-1].as_py(),
    )


class _PageSink:
    """Passes bytes on and takes the checksum of each page, then of the tail."""

    def __init__(self, sink: ObjectSink) -> None:
        self._sink = sink
        self._crcs: list[int] = []
        self._crc = 0
        self._filled = 0
        self._in_body = True
        self.bytes = 0
        self.body_bytes = 0
        self.tail_crc = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._in_body:
            self._add_pages(view)
        else:
            self.tail_crc = zlib.crc32(view, self.tail_crc)
        self._sink.write(view)  # type: ignore[arg-type]  # any bytes-like object
        self.bytes += len(view)
        return len(view)

    def _add_pages(self, view: memoryview) -> None:
        position = 0
        while position < len(view):
            step = min(PAGE_BYTES - self._filled, len(view) - position)
            self._crc = zlib.crc32(view[position : position + step], self._crc)
            self._filled += step
            position += step
            if self._filled == PAGE_BYTES:
                self._end_page()

    def _end_page(self) -> None:
        self._crcs.append(self._crc)
        self._crc = self._filled = 0

    def close_body(self) -> npt.NDArray[np.uint32]:
        """End the last page; everything written from here on belongs to the tail."""
        if self._filled:
            self._end_page()
        self._in_body = False
        self.body_bytes = self.bytes
        return np.array(self._crcs, dtype="<u4")

    def flush(self) -> None:
        """Do nothing: the sink below is unbuffered and made durable when it closes."""

    def close(self) -> None:
        self.closed = True


class Run:
    """An open run: its columns as views of the mapped file, verified when touched.

    Parameters
    ----------
    file : RunFile
    buffer : pyarrow.Buffer
        The whole file.
    release : callable, optional
        Gives back the memory that the buffer takes.
    on_damage : callable, optional
        Called before a damaged page is reported.
    """

    def __init__(
        self,
        file: RunFile,
        buffer: pa.Buffer,
        *,
        release: Callable[[pa.Buffer], None] | None = None,
        on_damage: Callable[[], None] | None = None,
    ) -> None:
        self.file = file
        self._buffer = buffer
        self._release = release
        self._on_damage = on_damage
        if buffer.size != file.bytes:
            raise CorruptionError.in_file(file.path, f"{file.bytes} bytes", f"{buffer.size}")
        tail_crc = zlib.crc32(memoryview(buffer)[file.body_bytes :])
        if tail_crc != file.tail_crc:
            raise CorruptionError.in_file(
                file.path, f"checksum {file.tail_crc:08x} of its tail", f"{tail_crc:08x}"
            )
        reader = pa.ipc.open_file(buffer)
        metadata = reader.get_batch_with_custom_metadata(1).custom_metadata
        self._crcs = np.frombuffer(bytes.fromhex(metadata[_PAGES_KEY].decode()), dtype="<u4")
        self._verified = np.zeros(len(self._crcs), dtype=np.bool_)
        self._is_verified = False
        self._verify_head()
        self._batch = reader.get_batch(0)
        self.hashes: npt.NDArray[np.uint64] = self._batch.column(HASH).to_numpy()

    def __repr__(self) -> str:
        checked = int(self._verified.sum())
        return f"Run({self.file.path}, rows={self.file.rows:_}, pages={checked}/{len(self._crcs)})"

    def release(self) -> None:
        """Give back the memory that the mapped file takes; it is read anew where it is touched."""
        if self._release is not None:
            self._release(self._buffer)

    def _verify_head(self) -> None:
        """Verify the schema and the first batch's header before Arrow parses the header.

        Both are messages: four bytes of mark, four of length, and as many of content. Each
        is read only after its pages are verified.
        """
        begin = _MAGIC_BYTES
        for _ in range(2):
            content = begin + _PREFIX_BYTES
            self._verify_pages(_pages(begin, content))
            length = memoryview(self._buffer)[begin + 4 : content]
            begin = content + int.from_bytes(length, "little")
            self._verify_pages(_pages(content, begin))

    @property
    def names(self) -> list[str]:
        """Names of the stored columns."""
        return list(self._batch.schema.names)

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        """Return verified views of rows ``start <= i < stop`` of some columns."""
        arrays = [self._batch.column(name) for name in names]
        for array in arrays if not self._is_verified else ():
            for low, high in _ranges(array, start, stop):
                self._verify_pages(np.arange(self._page(low), self._page(high - 1) + 1))
        return [array.slice(start, stop - start) for array in arrays]

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        """Return verified copies of the rows at some positions of some columns."""
        arrays = [self._batch.column(name) for name in names]
        self.verify_at(names, positions)
        indices = pa.array(positions)
        return [array.take(indices) for array in arrays]

    def type_of(self, name: str) -> pa.DataType:
        """Return the type in which a column is stored here."""
        return self._batch.schema.field(name).type

    def verify(self) -> None:
        """Verify every page."""
        self._verify_pages(np.arange(len(self._crcs)))

    def verify_at(self, names: Iterable[str], positions: Positions) -> None:
        """Verify the pages that hold the rows at some positions."""
        if len(positions) == 0 or self._is_verified:
            return
        for name in names:
            array = self._batch.column(name)
            if pa.types.is_nested(array.type):
                self.slice([name], 0, len(array))
                continue
            for pages in self._pages_at(array, positions):
                self._verify_pages(pages)

    def _pages_at(self, array: pa.Array, positions: Positions) -> Iterable[npt.NDArray[np.int64]]:
        valid, values, *rest = array.buffers()
        base = self._buffer.address
        if valid is not None:
            yield (valid.address - base + positions // 8) // PAGE_BYTES
        if not is_text(array.type):
            bits = array.type.bit_width
            yield (values.address - base + positions * bits // 8) // PAGE_BYTES
            return
        for shift in (0, 1):
            yield (values.address - base + (positions + shift) * 4) // PAGE_BYTES
        if rest[0] is None:
            return
        offsets = np.frombuffer(values, dtype=np.int32)
        begins, ends = offsets[positions], offsets[positions + 1]
        filled = ends > begins
        low = (rest[0].address - base + begins[filled].astype(np.int64)) // PAGE_BYTES
        high = (rest[0].address - base + ends[filled].astype(np.int64) - 1) // PAGE_BYTES
        counts = high - low + 1
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        yield np.repeat(low, counts) + np.arange(int(counts.sum())) - firsts

    def _page(self, address: int) -> int:
        return (address - self._buffer.address) // PAGE_BYTES

    def _verify_pages(self, pages: npt.NDArray[np.int64]) -> None:
        fresh = pages[~self._verified[pages]]
        if not len(fresh):
            return
        wanted = np.zeros(len(self._crcs), dtype=np.bool_)
        wanted[fresh] = True
        pages = np.flatnonzero(wanted)
        lows = pages * PAGE_BYTES
        highs = np.minimum(lows + PAGE_BYTES, self.file.body_bytes)
        view, crc32 = memoryview(self._buffer), zlib.crc32
        crcs = [crc32(view[a:b]) for a, b in zip(lows.tolist(), highs.tolist(), strict=True)]
        wrong = np.flatnonzero(np.array(crcs, dtype=np.uint32) != self._crcs[pages])
        if len(wrong):
            if self._on_damage is not None:
                self._on_damage()
            first = wrong[0]
            raise CorruptionError.in_file(
                self.file.path,
                f"checksum {int(self._crcs[pages[first]]):08x} "
                f"of bytes {lows[first]} to {lows[first] + PAGE_BYTES}",
                f"{crcs[first]:08x}",
            )
        self._verified[pages] = True
        self._is_verified = bool(self._verified.all())


_MAGIC_BYTES = 8
"""``ARROW1`` and padding, at the beginning of a file."""

_PREFIX_BYTES = 8
"""Mark and length, before each message of a file."""


def _pages(start: int, stop: int) -> npt.NDArray[np.int64]:
    """Return the pages that hold the bytes ``start <= i < stop``, at least one."""
    return np.arange(start // PAGE_BYTES, (stop - 1) // PAGE_BYTES + 1)


def _ranges(array: pa.Array, start: int, stop: int) -> Iterable[tuple[int, int]]:
    """Yield the non-empty address ranges that rows ``start <= i < stop`` of a column occupy."""
    if stop <= start:
        return
    if pa.types.is_nested(array.type):
        for buffer in array.buffers():
            if buffer is not None and buffer.size:
                yield buffer.address, buffer.address + buffer.size
        return
    valid, values, *rest = array.buffers()
    if valid is not None:
        yield valid.address + start // 8, valid.address + (stop - 1) // 8 + 1
    if not is_text(array.type):
        bits = array.type.bit_width
        yield (
            values.address + start * bits // 8,
            values.address
            + ((stop - 1) * bits + bits) // 8
            + (1 if bits < 8 and ((stop - 1) * bits + bits) % 8 else 0),
        )
        return
    yield values.address + 4 * start, values.address + 4 * (stop + 1)
    offsets = np.frombuffer(values, dtype=np.int32, count=stop + 1)
    low, high = int(offsets[start]), int(offsets[stop])
    if rest[0] is not None and high > low:
        yield rest[0].address + low, rest[0].address + high


_RESIDENT_BYTES = 128 << 20
"""What mapped files may take of a worker at rest, some 60 MiB of libraries among them."""

_RESIDENT_BYTES_PER_ROW = 16 << 10


@dataclass
class RunCache:
    """Open runs of this process, the least recently used closed first.

    Bounded by number: an open run is a mapping and one byte per page, not its contents. What
    is touched of the contents counts as memory of the process until it is given back, and is
    bounded by `settle`. Keyed by immutable files, so that an entry is never out of date.
    """

    count_max: int = 4096
    is_frugal: bool = False
    """Whether mapped memory is given back. Workers of Spark do, who share a machine for hours."""
    _runs: OrderedDict[tuple[str, str], Run] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, store: Store, file: RunFile) -> Run:
        """Return the open run of a file.

        Raises
        ------
        CorruptionError
            The file is missing, has another length, or its tail is damaged.
        """
        key = (store.url, file.path)
        with self._lock:
            run = self._runs.get(key)
            if run is not None:
                self._runs.move_to_end(key)
                return run

        def on_damage() -> None:
            # It may be the local copy of a remote object: whoever tries again fetches another.
            store.forget(file.path)
            with self._lock:
                self._runs.pop(key, None)

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
            self._runs[key] = run
            while len(self._runs) > self.count_max:
                self._runs.popitem(last=False)
        return run

    def settle(self, rows: int) -> None:
        """Give mapped memory back if it is more than some rows call for; between steps of work.

        So the memory of a worker follows its batches and not its table. What is given back
        costs some microseconds per 64 KiB when it is touched again.

        Parameters
        ----------
        rows : int
            How many rows are worked upon.
        """
        if not self.is_frugal:
            return
        if resident_bytes() > _RESIDENT_BYTES + rows * _RESIDENT_BYTES_PER_ROW:
            with self._lock:
                runs = list(self._runs.values())
            for run in runs:
                run.release()


RUNS = RunCache()
"""The runs that this process has open."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows ``start <= i < stop`` of an open run."""

    run: Run
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def within(cls, run: Run, lower: int, upper: int) -> Span:
        """Return the rows of a run whose hashes are in ``[lower, upper)``."""
        if lower <= run.file.hash_min and run.file.hash_max < upper:
            return cls(run, 0, len(run.hashes))
        start, stop = row_range(run.hashes, lower, upper)
        near = np.array([p for p in (start - 1, start, stop - 1, stop) if 0 <= p < len(run.hashes)])
        run.verify_at([HASH], near)
        return cls(run, start, stop)
