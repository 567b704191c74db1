"""Remote runs: a step fetches only the blocks that it reads from a large object.

The bytes are a zero-filled mapping, filled before blocks are verified. A step declares what it reads
(`Access`), and `RemoteRunCache.open_all` chooses between ranges and a local copy by cost.
`share_limits` divides memory bounds among the readers of one thread.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Positions
from spark_upsert.core.lru import LruMap
from spark_upsert.core.schema import HASH
from spark_upsert.core.threads import ROWS_PER_THREAD, map_in_order, run_in_background
from spark_upsert.errors import CorruptionError
from spark_upsert.store import Store
from spark_upsert.table.run.file import RUNS, HashSearch, Run, RunFile
from spark_upsert.table.run.format import (
    BLOCK_BYTES,
    END_OF_STREAM,
    SUM_BYTES,
    block_count,
    blocks_of,
    is_read_by_rows,
)
from spark_upsert.table.run.rows import Part, RunPart

Hashes = npt.NDArray[np.uint64]

HEAD_BYTES = 16 << 10
"""Leading bytes fetched by the first request; they include the schema of up to 50 columns."""

REQUEST_BYTES = 64 << 10
"""A request costs as much as this many bytes."""

_JOINED_BLOCKS = 16
"""Maximum unrequested blocks fetched between two requested ones, which are requested together."""

_JOINED_SUM_BLOCKS = 4
"""The same for blocks of checksums: each one has those of 256 blocks, mostly not requested ones."""

_DEVIATIONS = 3
"""A hash deviates this many standard deviations from its expected position once in 400."""

_REACH_MIN = 8
"""Minimum rows to inspect on both sides of an expected position; near the ends the spread is 0."""

_HASH_BYTES = 8

_SPENT_KEPT = 4096

_REOPENED_BYTES = 16 << 20
"""Fetched bytes after which a run is opened again, so that a scan keeps only its last blocks."""

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


class RemoteBytes:
    """A run file's bytes, zero until a block is requested and filled in."""

    def __init__(self, store: Store, file: RunFile) -> None:
        self._store = store
        self._path = file.path
        self._size = size = file.bytes
        self._sums_begin = file.body_bytes + len(END_OF_STREAM)
        # Unwritten pages take no memory, even when read.
        self._memory = mmap.mmap(-1, size, flags=_PRIVATE)
        self._is_here = np.zeros(block_count(size), dtype=np.bool_)
        self.filled = 0
        """Number of fetched bytes."""
        self.buffer: pa.Buffer = pa.py_buffer(self._memory)
        self.requests = 0
        """Number of requested ranges."""

    def fetch(self, *groups: tuple[Positions, int]) -> None:
        """Fetch the missing ones among ascending blocks, with one call to the store.

        Parameters
        ----------
        *groups : tuple of numpy.ndarray and int
            Ascending blocks, and the maximum count of other blocks to fetch between two of them.
        """
        ranges = [each for blocks, gap in groups for each in self._missing_ranges(blocks, gap)]
        if not ranges:
            return
        self.requests += len(ranges)
        try:
            contents = self._store.read_ranges(self._path, ranges, self._size)
        except FileNotFoundError as error:
            raise CorruptionError.in_file(
                f"{self._store.url}/{self._path}", f"{self._size} bytes", "no such file"
            ) from error
        for (low, high), data in zip(ranges, contents, strict=True):
            self._memory[low:high] = data
            self.filled += self.missing_bytes(low, high)
            self._is_here[low // BLOCK_BYTES : block_count(high)] = True

    def fetch_body(self, blocks: Positions) -> None:
        """Fetch ascending blocks of the body, and their checksums."""
        sums = np.unique((self._sums_begin + blocks * SUM_BYTES) // BLOCK_BYTES)
        self.fetch((blocks, _JOINED_BLOCKS), (sums, _JOINED_SUM_BLOCKS))

    def missing_bytes(self, low: int, high: int) -> int:
        """Return how many of the bytes ``low <= i < high`` are not fetched yet, in whole blocks."""
        here = self._is_here[low // BLOCK_BYTES : block_count(high)]
        return (len(here) - int(np.count_nonzero(here))) * BLOCK_BYTES

    def _missing_ranges(self, blocks: Positions, gap: int) -> list[tuple[int, int]]:
        """Return the byte ranges with the missing ones among ascending blocks."""
        missing = blocks[~self._is_here[blocks]]
        if not len(missing):
            return []
        parted = np.flatnonzero(np.diff(missing) > gap)
        lows = missing[np.concatenate([[0], parted + 1])]
        highs = missing[np.concatenate([parted, [len(missing) - 1]])] + 1
        return [
            (low * BLOCK_BYTES, min(high * BLOCK_BYTES, self._size))
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        ]


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
        self.is_complete = False
        """Whether all hashes are verified, and a search fetches nothing."""

    def candidates(self, probes: Hashes) -> Positions:
        """Return the positions of all probes: none can be excluded without a read."""
        return super().candidates(probes) if self.is_complete else np.arange(len(probes))

    def insertion_points(self, probes: Hashes) -> Positions:
        """Return each probe's leftmost insertion position, as `numpy.searchsorted` does."""
        if self.is_complete:
            return super().insertion_points(probes)
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
        # The rows below a hash have a binomial distribution; at the ends it is narrower.
        spread = np.sqrt(rows * share * (1 - share))
        reach = np.ceil(wider * (_DEVIATIONS * spread + _REACH_MIN)).astype(np.int64)
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


@dataclass(frozen=True, slots=True)
class Access:
    """What a step reads of a version's runs."""

    columns: Sequence[str] | None = None
    """The columns; None: all of them."""
    probes: Hashes | None = None
    """The ascending key hashes looked up; None: all rows in the hash range."""
    probe_ends: Hashes | None = None
    """The last hash looked up per probe, for a look-up of hash ranges."""
    hash_range: HashRange = ALL_HASHES
    """The hashes read in all, possibly in several pieces."""
    has_hot_prefixes: bool = False
    """Whether the hashes have common prefixes (`TableSchema.hash_prefix`), so that a hash's
    position cannot be estimated."""

    def reads(self, name: str) -> bool:
        """Return whether a column is read; hashes always are."""
        return self.columns is None or name == HASH or name in self.columns

    def count_probes(self, hash_range: HashRange) -> int:
        """Return how many probes may match hashes in a non-empty range."""
        assert self.probes is not None
        ends = self.probes if self.probe_ends is None else self.probe_ends
        low = np.searchsorted(ends, np.uint64(hash_range.first), side="left")
        return int(np.searchsorted(self.probes, np.uint64(hash_range.last), side="right") - low)


class RemoteRun(Run):
    """A run whose blocks and their checksums are fetched as they are verified."""

    def __init__(
        self, store: Store, file: RunFile, on_damage: Callable[[], None], *, spent: int = 0
    ) -> None:
        self._spent = spent
        self.place = store.url, file.path
        self.bytes = RemoteBytes(store, file)
        tail_bytes = len(END_OF_STREAM) + block_count(file.body_bytes) * SUM_BYTES
        if file.body_bytes + tail_bytes <= file.bytes:
            self.bytes.fetch_body(np.arange(block_count(min(HEAD_BYTES, file.body_bytes))))
        super().__init__(file, self.bytes.buffer, on_damage=on_damage, fetch=self.bytes.fetch_body)
        ends = file.hash_range.first, file.hash_range.last
        # By a weak reference: in a cycle, the fetched bytes would wait for the garbage collector.
        this = weakref.ref(self)

        def verify_windows(low: Positions, high: Positions) -> None:
            run = this()
            assert run is not None, "a search is used through its run"
            run._verify_windows(low, high)

        self.search: RemoteHashSearch = RemoteHashSearch(self.hashes, *ends, verify_windows)

    @property
    def spent(self) -> int:
        """The cost of all reads, as in `cost`, including earlier openings."""
        return self._spent + self.bytes.filled + self.bytes.requests * REQUEST_BYTES

    def load_hashes(self) -> None:
        """Fetch and verify all hashes, so that searches fetch nothing."""
        if not self.search.is_complete:
            self.slice([HASH], 0, self.file.rows)

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        self.fetch_rows(names, start, stop)
        columns = super().slice(names, start, stop)
        if not self.search.is_complete:
            self.search.is_complete = self._layout(HASH).is_known
        return columns

    def fetch_rows(self, names: Sequence[str], start: int, stop: int) -> None:
        """Fetch the columns' rows ``start <= i < stop``, with one call to the store.

        Two calls if there are strings, whose offsets come first.
        """
        layouts = [self._layout(name) for name in names] if start < stop else []
        layouts = [layout for layout in layouts if not layout.is_known]
        if not layouts:
            return
        self._fetch_ranges(each for layout in layouts for each in layout.ranges_of(start, stop))
        texts = [text for layout in layouts for text in layout.texts]
        for layout in texts:
            self._verify_range(layout.values + 4 * start, layout.values + 4 * start + 4)
            self._verify_range(layout.values + 4 * stop, layout.values + 4 * stop + 4)
        try:
            self._fetch_ranges(
                each for layout in texts for each in layout.text_ranges_of(start, stop)
            )
        except pa.ArrowException as error:
            raise self._invalid_contents(error) from error

    def _fetch_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch the blocks with several byte ranges in the body."""
        blocks = [np.arange(low // BLOCK_BYTES, block_count(high)) for low, high in ranges]
        if blocks:
            self.bytes.fetch_body(np.unique(np.concatenate(blocks)))

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

    def cost(self, access: Access) -> int:
        """Estimate an access's cost: its missing bytes, and `REQUEST_BYTES` per request."""
        count = None if access.probes is None else access.count_probes(self.file.hash_range)
        cost = 0
        for name in self._batch.schema.names:
            if access.reads(name):
                layout = self._layout(name)
                missing = sum(self.bytes.missing_bytes(*extent) for extent in layout.extents)
                cost += column_cost(self.file, layout.array.type, name, missing, access, count)
        return cost


def column_cost(
    file: RunFile, type_: pa.DataType, name: str, size: int, access: Access, probes: int | None
) -> int:
    """Estimate the cost of an access to a column with ``size`` bytes not fetched yet.

    ``probes``: the number of keys looked up in the file; None for a scan.
    """
    if not is_read_by_rows(type_) or (name == HASH and access.has_hot_prefixes):
        return size
    if probes is None:
        return int(_share_of(file, access.hash_range) * size)
    window = int(_DEVIATIONS * file.rows**0.5) * _HASH_BYTES if name == HASH else 0
    return min(probes * (REQUEST_BYTES + BLOCK_BYTES + window), size)


def estimate_cost(file: RunFile, schema: pa.Schema, access: Access, probes: int | None) -> int:
    """Estimate an access's cost from the log alone, for a file of which nothing is kept locally.

    The bytes of columns without a fixed width are divided evenly.
    """
    widths = {field.name: _fixed_bits(field.type) * file.rows // 8 for field in schema}
    others = [name for name, size in widths.items() if not size]
    rest = max(0, file.body_bytes - sum(widths.values())) // max(1, len(others))
    return sum(
        column_cost(file, field.type, field.name, widths[field.name] or rest, access, probes)
        for field in schema
        if access.reads(field.name)
    )


def _fixed_bits(type_: pa.DataType) -> int:
    """Return a type's bits per value; 0 if values differ in length."""
    try:
        return type_.bit_width
    except ValueError:
        return 0


def _share_of(file: RunFile, hash_range: HashRange) -> float:
    """Return which share of a file's hashes lies in a range."""
    return file.hash_range.intersect(hash_range).width / file.hash_range.width


@dataclass
class RemoteRunCache:
    """Least-recently-used cache for remote runs.

    A run is copied once its reads have cost about as much as a copy: in all, less than twice the
    cost of the better choice.
    """

    bytes_min: int = 8 << 20
    """Minimum size for a remote run; a smaller run is fetched completely in one request."""
    copy_share: float = 0.75
    """The share of a run's bytes that its reads must cost before it is copied; 0: never."""
    count_max: int = 1024
    fetched_bytes_max: int = 128 << 20
    """Maximum fetched bytes in the idle runs."""
    at_once: int = 16
    """Number of runs read in parallel."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._runs: LruMap[tuple[str, str], RemoteRun] = LruMap(self.count_max)
        self._spent: LruMap[tuple[str, str], int] = LruMap(_SPENT_KEPT)
        """The cost of reads of evicted runs, so a repeatedly returning run is eventually copied."""

    def __len__(self) -> int:
        return len(self._runs)

    def open_all(
        self, store: Store, files: Sequence[RunFile], access: Access | None = None
    ) -> list[Run]:
        """Return the files' open runs, for a step with the given access; by default, to all."""
        access = access or Access()
        remote_runs: dict[str, Run] = {}
        files_to_try = [file for file in files if self._may_stay_remote(store, file, access)]
        if not files_to_try:
            return RUNS.open_all(store, files)
        paths = {file.path for file in files_to_try}
        others = [file for file in files if file.path not in paths]
        opened = partial(self._open_or_reject, store, access)
        with run_in_background(
            lambda: RUNS.open_all(store, others), rows=ROWS_PER_THREAD
        ) as local_runs:
            threads = min(len(files_to_try), self.at_once)
            for run in map_in_order(opened, files_to_try, threads):
                if run is not None:
                    remote_runs[run.file.path] = run
            self._evict()
        to_copy = [file for file in files_to_try if file.path not in remote_runs]
        runs = {file.path: run for file, run in zip(others, local_runs(), strict=True)}
        runs |= zip((file.path for file in to_copy), RUNS.open_all(store, to_copy), strict=True)
        runs |= remote_runs
        return [runs[file.path] for file in files]

    def _may_stay_remote(self, store: Store, file: RunFile, access: Access) -> bool:
        """Return whether a run is large, has no local copy, and is not to be read completely."""
        if file.bytes < self.bytes_min or RUNS.has(store, file) or not store.needs_fetch(file.path):
            return False
        if access.columns is not None or access.probes is not None:
            return True
        return not access.hash_range.covers(file.hash_range) or not store.reserve(file.bytes)

    def _open_or_reject(self, store: Store, access: Access, file: RunFile) -> RemoteRun | None:
        """Return the open remote run; None if a copy is cheaper, and there is room for it."""
        run = self._open(store, file, access)
        if self._is_dear(run, access) and store.reserve(file.bytes):
            with self._lock:
                self._runs.pop(run.place)
            return None
        if access.has_hot_prefixes:
            run.load_hashes()
        return run

    def _is_dear(self, run: RemoteRun, access: Access) -> bool:
        """Return whether a copy is cheaper than this access, or than the earlier ones together.

        Scans of several hash ranges read a run once in all, so they count only beyond its size.
        """
        cost = run.cost(access)
        if access.probes is None:
            return self.is_copied(run.file, max(cost, run.spent - run.file.bytes))
        return self.is_copied(run.file, cost + run.spent)

    def is_copied(self, file: RunFile, cost: int) -> bool:
        """Return whether a file is copied for reads of a cost."""
        return file.bytes < self.bytes_min or 0 < file.bytes * self.copy_share <= cost

    def _open(self, store: Store, file: RunFile, access: Access) -> RemoteRun:
        key = (store.url, file.path)
        with self._lock:
            opened = self._runs.get(key)
            spent = (self._spent.get(key) or 0) if opened is None else opened.spent
        is_scan = access.probes is None and not access.has_hot_prefixes
        if opened is not None and not (is_scan and opened.bytes.filled > _REOPENED_BYTES):
            return opened

        def on_damage() -> None:
            # The damage may be in the blocks kept locally: the next attempt fetches them again.
            store.forget(file.path)
            with self._lock:
                self._runs.pop(key)

        run = RemoteRun(store, file, on_damage, spent=spent)
        with self._lock:
            for gone in self._runs.put(key, run):
                if gone.place != key:
                    self._spent.put(gone.place, gone.spent)
        return run

    def _evict(self) -> None:
        """Drop the least recently used runs beyond the bound on bytes; readers keep theirs."""
        with self._lock:
            fetched = sum(run.bytes.filled for run in self._runs.values())
            for run in self._runs.values():
                if fetched <= self.fetched_bytes_max:
                    return
                fetched -= run.bytes.filled
                self._runs.pop(run.place)
                self._spent.put(run.place, run.spent)

    def prefetch(self, parts: Sequence[Part], hashes: Hashes, names: Sequence[str]) -> None:
        """Fetch a look-up's blocks in remote parts, in parallel."""
        self._on_remote(partial(_fetch_matches, hashes=hashes, names=names), parts)

    def prefetch_rows(self, parts: Sequence[Part], names: Sequence[str]) -> None:
        """Fetch all rows of remote parts, in parallel."""
        self._on_remote(partial(_fetch_rows, names=names), parts)

    def _on_remote(self, touch: Callable[[RunPart], None], parts: Sequence[Part]) -> None:
        remote_parts = [part for part in parts if is_remote_part(part)]
        for _ in map_in_order(touch, remote_parts, min(len(remote_parts), self.at_once)):
            pass


REMOTE_RUNS = RemoteRunCache()
"""This process's remote runs."""


def is_remote_part(part: Part) -> TypeGuard[RunPart]:
    """Return whether a part's rows are in a remote run."""
    return isinstance(part, RunPart) and isinstance(part.run, RemoteRun)


def _fetch_matches(part: RunPart, hashes: Hashes, names: Sequence[str]) -> None:
    """Read the blocks needed by a look-up from a part."""
    first, last = part.first_and_last_hash
    low = np.searchsorted(hashes, np.uint64(first), side="left")
    probes = hashes[low : np.searchsorted(hashes, np.uint64(last), side="right")]
    if not len(probes):
        return
    indices = part.insertion_points(probes)
    matches = indices[part.hashes_at(np.minimum(indices, len(part) - 1)) == probes]
    part.run.verify_at([name for name in names if part.has(name)], part.in_run(matches))


def _fetch_rows(part: RunPart, names: Sequence[str]) -> None:
    run = part.run
    assert isinstance(run, RemoteRun)
    start = int(part.in_run(np.zeros(1, np.int64))[0])
    run.fetch_rows([name for name in names if part.has(name)], start, start + len(part))


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
