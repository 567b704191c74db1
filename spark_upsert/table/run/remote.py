"""Remote runs: a look-up in a large object fetches only the touched blocks.

The bytes are a zero-filled mapping, filled before blocks are verified. `share_limits` divides memory
bounds among the readers of one thread.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.keys import Positions
from spark_upsert.core.lru import LruMap
from spark_upsert.core.schema import HASH
from spark_upsert.core.threads import ROWS_PER_THREAD, map_in_order, run_in_background
from spark_upsert.errors import CorruptionError
from spark_upsert.store import Store
from spark_upsert.table.run.file import RUNS, HashSearch, Run, RunFile
from spark_upsert.table.run.format import BLOCK_BYTES, block_count, blocks_of
from spark_upsert.table.run.rows import Part, RunPart

Hashes = npt.NDArray[np.uint64]

HEAD_BYTES = 64 << 10
"""Leading bytes fetched by the first request; they include the schema."""

_JOINED_BLOCKS = 64
"""Maximum unrequested blocks fetched between two requested ones: cheaper than another request."""

_DEVIATIONS = 4
"""A hash deviates this many standard deviations from its expected position once in 30 000."""

_HASH_BYTES = 8
_ROW_BYTES = 16 * BLOCK_BYTES
"""Approximate bytes fetched per row."""

_SPENT_KEPT = 4096

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


class RemoteBytes:
    """An object's bytes, zero until a block is requested and filled in."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        # Unwritten pages take no memory, even when read.
        self._memory = mmap.mmap(-1, size, flags=_PRIVATE)
        self._is_here = np.zeros(block_count(size), dtype=np.bool_)
        self.buffer: pa.Buffer = pa.py_buffer(self._memory)

    @property
    def filled(self) -> int:
        """Number of fetched bytes."""
        return int(self._is_here.sum()) * BLOCK_BYTES

    def fetch(self, blocks: Positions) -> None:
        """Fetch the missing ones among ascending blocks, with one store request."""
        missing_blocks = blocks[~self._is_here[blocks]]
        if not len(missing_blocks):
            return
        parted = np.flatnonzero(np.diff(missing_blocks) > _JOINED_BLOCKS)
        lows = missing_blocks[np.concatenate([[0], parted + 1])]
        highs = missing_blocks[np.concatenate([parted, [len(missing_blocks) - 1]])] + 1
        ranges = [
            (low * BLOCK_BYTES, min(high * BLOCK_BYTES, self._size))
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        ]
        try:
            contents = self._store.read_ranges(self._path, ranges)
        except FileNotFoundError as error:
            raise CorruptionError.in_file(
                f"{self._store.url}/{self._path}", f"{self._size} bytes", "no such file"
            ) from error
        for (low, high), data in zip(ranges, contents, strict=True):
            self._memory[low:high] = data
            self._is_here[low // BLOCK_BYTES : block_count(high)] = True


class RemoteHashSearch(HashSearch):
    """Search hashes in a remote run and verify them window by window.

    Parameters
    ----------
    hashes : numpy.ndarray of uint64, ascending
        The run's hashes; unverified values carry no information.
    first, last : int
        The least and the greatest hash, from the log.
    verify : callable
        Verifies the hashes of rows ``low <= i < high`` of several windows, given as two arrays.
    """

    def __init__(
        self,
        hashes: Hashes,
        first: int,
        last: int,
        verify: Callable[[Positions, Positions], None],
    ) -> None:
        super().__init__(hashes)
        self._ends = float(first), float(last)
        self._verify = verify

    def candidates(self, probes: Hashes) -> Positions:
        """Return the positions of all probes: none can be excluded without a read."""
        return np.arange(len(probes))

    def insertion_points(self, probes: Hashes) -> Positions:
        """Return each probe's leftmost insertion position, as `numpy.searchsorted` does."""
        count = len(self._hashes)
        low, high = np.zeros(len(probes), np.int64), np.full(len(probes), count, np.int64)
        lower, above = np.full(len(probes), self._ends[0]), np.full(len(probes), self._ends[1])
        left = np.arange(len(probes))
        wider = 1
        while len(left):
            begin, end = self._windows(
                probes[left], low[left], high[left], lower[left], above[left], wider
            )
            self._verify(begin, end)
            at_begin, at_last = self._hashes[begin], self._hashes[end - 1]
            is_before, is_behind = at_begin >= probes[left], at_last < probes[left]
            high[left[is_before]], above[left[is_before]] = begin[is_before], at_begin[is_before]
            low[left[is_behind]], lower[left[is_behind]] = end[is_behind], at_last[is_behind]
            within = ~(is_before | is_behind)
            low[left[within]], high[left[within]] = begin[within], end[within]
            left = left[~within & (low[left] < high[left])]
            wider *= 4
        return self._bisected(probes, low, high)

    def _windows(
        self,
        probes: Hashes,
        low: Positions,
        high: Positions,
        below: npt.NDArray[np.float64],
        above: npt.NDArray[np.float64],
        wider: int,
    ) -> tuple[Positions, Positions]:
        """Return rows among which each probe is expected, never none."""
        rows = high - low
        share = np.clip((probes.astype(np.float64) - below) / np.maximum(above - below, 1.0), 0, 1)
        reach = np.ceil(wider * _DEVIATIONS / 2 * np.sqrt(rows)).astype(np.int64) + 1
        middle = low + (share * rows).astype(np.int64)
        begin = np.clip(middle - reach, low, high - 1)
        return begin, np.clip(middle + reach, begin + 1, high)

    def _bisected(self, probes: Hashes, low: Positions, high: Positions) -> Positions:
        """Return the probes' positions within verified rows."""
        while bool((low < high).any()):
            middle = (low + high) // 2
            is_open = low < high
            is_behind = is_open & (self._hashes[np.minimum(middle, len(self._hashes) - 1)] < probes)
            low = np.where(is_behind, middle + 1, low)
            high = np.where(is_open & ~is_behind, middle, high)
        return low


class RemoteRun(Run):
    """A run whose blocks are fetched as they are verified; head and tail are fetched on opening."""

    def __init__(
        self, store: Store, file: RunFile, on_damage: Callable[[], None], *, spent: int = 0
    ) -> None:
        self._spent = spent
        self.place = store.url, file.path
        self.bytes = RemoteBytes(store, file.path, file.bytes)
        head = np.arange(block_count(min(HEAD_BYTES, file.body_bytes)))
        tail = np.arange(file.body_bytes // BLOCK_BYTES, block_count(file.bytes))
        self.bytes.fetch(np.union1d(head, tail))
        super().__init__(file, self.bytes.buffer, on_damage=on_damage, fetch=self.bytes.fetch)
        ends = file.hash_range.first, file.hash_range.last
        self.search = RemoteHashSearch(self.hashes, *ends, self._verify_windows)

    @property
    def spent(self) -> int:
        """Bytes fetched for the run, including earlier openings."""
        return self._spent + self.bytes.filled

    def _verify_windows(self, low: Positions, high: Positions) -> None:
        """Verify the hashes in several non-empty row ranges."""
        begin = self._layout(HASH).values
        first, end = begin + low * _HASH_BYTES, begin + high * _HASH_BYTES
        self._verify(blocks_of(first // BLOCK_BYTES, -(-end // BLOCK_BYTES)))

    def rows_of(self, hash_range: HashRange) -> tuple[int, int]:
        if hash_range.is_empty:
            return 0, 0
        if hash_range.last >= self.file.hash_range.last:
            [start] = self.search.insertion_points(np.array([hash_range.first], dtype=np.uint64))
            return int(start), self.file.rows
        bounds = np.array([hash_range.first, hash_range.end], dtype=np.uint64)
        start, stop = self.search.insertion_points(bounds)
        return int(start), int(stop)


@dataclass
class RemoteRunCache:
    """Least-recently-used cache for remote runs.

    Once look-ups have cost as much as a copy, the run moves to `RUNS`.
    """

    bytes_min: int = 8 << 20
    """Minimum size for a remote run; a smaller run is fetched completely in one request."""
    share: int = 32
    """At most one in this many bytes is fetched from a remote run."""
    count_max: int = 32
    at_once: int = 8
    """Number of runs read in parallel."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._runs: LruMap[tuple[str, str], RemoteRun] = LruMap(self.count_max)
        self._spent: LruMap[tuple[str, str], int] = LruMap(_SPENT_KEPT)
        """Bytes fetched for evicted runs, so a repeatedly returning run is eventually copied."""

    def __len__(self) -> int:
        return len(self._runs)

    def open_all(self, store: Store, files: Sequence[RunFile], *, sought: int) -> list[Run]:
        """Return the files' open runs, for a look-up reading only the given key count."""
        far = [file for file in files if self._stays_far(store, file, sought)]
        if not far:
            return RUNS.open_all(store, files)
        paths = {file.path for file in far}
        near = [file for file in files if file.path not in paths]
        with run_in_background(lambda: RUNS.open_all(store, near), rows=ROWS_PER_THREAD) as opened:
            runs = map_in_order(
                lambda file: self._open(store, file), far, min(len(far), self.at_once)
            )
            run_by_path: dict[str, Run] = {
                file.path: run for file, run in zip(far, runs, strict=True)
            }
        run_by_path |= {file.path: run for file, run in zip(near, opened(), strict=True)}
        return [run_by_path[file.path] for file in files]

    def _stays_far(self, store: Store, file: RunFile, sought: int) -> bool:
        """Return whether a look-up reads so little from a run that a copy would not pay off."""
        if file.bytes < self.bytes_min or RUNS.has(store, file):
            return False
        key = (store.url, file.path)
        with self._lock:
            opened = self._runs.get(key)
            spent = (self._spent.get(key) or 0) if opened is None else opened.spent
        spent += sought * (_window(file.rows) * _HASH_BYTES + _ROW_BYTES)
        return spent * self.share < file.bytes and store.needs_fetch(file.path)

    def _open(self, store: Store, file: RunFile) -> RemoteRun:
        key = (store.url, file.path)
        with self._lock:
            opened = self._runs.get(key)
            spent = self._spent.get(key) or 0
        if opened is not None:
            return opened

        def on_damage() -> None:
            with self._lock:
                self._runs.pop(key)

        run = RemoteRun(store, file, on_damage, spent=spent)
        with self._lock:
            for gone in self._runs.put(key, run):
                self._spent.put(gone.place, gone.spent)
        return run

    def prefetch(self, parts: Sequence[Part], hashes: Hashes, names: Sequence[str]) -> None:
        """Fetch a look-up's blocks in remote parts, in parallel."""
        far = [
            part for part in parts if isinstance(part, RunPart) and isinstance(part.run, RemoteRun)
        ]
        touch = partial(_fetch_matches, hashes=hashes, names=names)
        for _ in map_in_order(touch, far, min(len(far), self.at_once)):
            pass


REMOTE_RUNS = RemoteRunCache()
"""This process's remote runs."""


def _fetch_matches(part: RunPart, hashes: Hashes, names: Sequence[str]) -> None:
    """Read the blocks needed by a look-up from a part."""
    first, last = part.first_and_last_hash
    probes = hashes[(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]
    indices = part.insertion_points(probes)
    matches = indices[part.hashes_at(np.minimum(indices, len(part) - 1)) == probes]
    part.run.verify_at([name for name in names if part.has(name)], part.in_run(matches))


def _window(rows: int) -> int:
    """Return the row count to inspect for finding one among ``rows`` rows."""
    return int(_DEVIATIONS * rows**0.5)


_SHARES: ContextVar[int] = ContextVar("shares", default=1)


def share_of_limit(size: int) -> int:
    """Return the current reader's share of a byte limit."""
    return max(1, size // _SHARES.get())


@contextmanager
def share_limits(count: int) -> Iterator[None]:
    """Run the context as one of several readers; generator steps outside use the caller's share."""
    token = _SHARES.set(count)
    try:
        yield
    finally:
        _SHARES.reset(token)
