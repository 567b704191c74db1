"""Compaction policy: size-tiered, by hash range; pure, it returns jobs (docs/adr/0005).

Only neighbours in time are merged, so a run's epochs are an interval and the later run wins. Write
amplification is at most ``1 + log_FANOUT(table / epoch)``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.precedence import Interval
from spark_upsert.table.log.manifest import Manifest, RemovedRange, Slice
from spark_upsert.table.log.properties import DEFAULT, PROPERTY, TombstoneRetention
from spark_upsert.table.log.slices import widths
from spark_upsert.table.log.snapshot import Versions

FANOUT = 8
"""Run count triggering a compaction: eight searches and one write per tier."""

FILES_PER_RUN = 8
"""Number of files with equal epochs and common hashes counted like one run: as many files wait in
the smallest tier if each epoch has several tasks."""

JOB_BYTES = 128 << 20
"""Maximum input bytes per job."""

JOB_FILES_MAX = 128
"""Maximum files at one hash per job, so that a job reads large ranges. More files of one epoch are
several jobs."""

_TOMBSTONE_SHARE = 4
"""An oldest file is rewritten when a quarter of it is tombstones past their retention."""

_PIECES_MAX = 64
"""A range with less than this part of `JOB_BYTES` is not halved to leave out a run."""

_TIER_BYTES = 64 << 10
"""Maximum size for tier zero: below it a run's overhead outweighs its bytes."""

Sizes = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A merge of adjacent runs in one hash range."""

    hash_range: HashRange
    slices: tuple[Slice, ...]
    """In epoch order."""
    is_oldest: bool
    """Whether the range has nothing older, so tombstones hide nothing."""
    forget_before: int = 0
    """Tombstones from smaller epochs are past their retention."""

    @property
    def index(self) -> int | None:
        """The index of all new files if the merged ones have equal epochs, else None.

        Other files with these epochs may remain before and after them.
        """
        is_one_run = all(slice_.epochs == self.slices[0].epochs for slice_ in self.slices)
        return self.slices[0].index if is_one_run else None

    @property
    def epochs(self) -> Interval:
        """The new run's epochs."""
        return Interval(
            lower=self.slices[0].epochs.lower, upper=max(s.epochs.upper for s in self.slices)
        )

    @property
    def taken(self) -> tuple[RemovedRange, ...]:
        """The ranges replaced by the new run."""
        return tuple(
            RemovedRange(path=slice_.file.path, hash_range=slice_.live.intersect(self.hash_range))
            for slice_ in self.slices
        )

    @property
    def bytes(self) -> int:
        """Approximate bytes to read."""
        return sum(s.bytes_within(self.hash_range) for s in self.slices)

    def __repr__(self) -> str:
        return (
            f"Job({self.epochs}, hashes={self.hash_range}, "
            f"slices={len(self.slices)}, bytes={self.bytes:_})"
        )


def choose(
    manifest: Manifest,
    *,
    forget_before: int = 0,
    fanout: int = FANOUT,
    bytes_max: int | None = None,
) -> list[Job]:
    """Return the due jobs, the smallest first; no two touch the same entries.

    A run's tier is the logarithm, to the base `FANOUT`, of its bytes per hash. `FANOUT` adjacent
    runs in one tier without a larger run between them are one job, and so are fewer runs with
    ``FANOUT * FILES_PER_RUN`` files at one hash. A job is halved by hash until it has at most
    `JOB_BYTES`, and no remaining run in its range has epochs between the job's.

    Source: O'Neil et al., "The log-structured merge-tree" (1996), and Cassandra's size tiers; here
    only runs adjacent in time are merged.

    Parameters
    ----------
    manifest : Manifest
    forget_before : int
        Tombstones from smaller epochs are past their retention (`table.log.properties`).
    fanout : int
        Number of adjacent runs per job, at least 2. With 2, any two runs in one tier suffice.
    bytes_max : int, optional
        Stop planning after this many bytes; lower tiers come first.
    """
    planner = _Planner(manifest, fanout, math.inf if bytes_max is None else bytes_max)
    jobs = planner.jobs()
    jobs += _tombstone_jobs(manifest, jobs, forget_before)
    return [replace(job, forget_before=forget_before) for job in jobs]


def _tombstone_jobs(manifest: Manifest, jobs: list[Job], forget_before: int) -> list[Job]:
    """Return jobs rewriting the oldest files with many removable tombstones.

    A file is rewritten at most once: the remaining tombstones are then held (`Slice.is_held`).
    """
    columns = manifest.columns
    first = columns.lower.min(initial=np.iinfo(np.int64).max)
    oldest = np.flatnonzero(columns.lower == first)
    has_many = columns.tombstones[oldest] * _TOMBSTONE_SHARE > columns.rows[oldest]
    busy = {slice_.file.path for job in jobs for slice_ in job.slices}
    return [
        Job(hash_range=slice_.live, slices=(slice_,), is_oldest=True)
        for slice_ in manifest.slice_list.at(
            oldest[has_many & (columns.upper[oldest] <= forget_before)]
        )
        if not slice_.is_held
        and not slice_.live.is_empty
        and slice_.file.path not in busy
        and np.count_nonzero(columns.overlaps(oldest, slice_.live)) == 1
    ]


class _Planner:
    """Searches the hash ranges of one manifest for due jobs, the lowest tiers first."""

    def __init__(self, manifest: Manifest, fanout: int, bytes_max: float) -> None:
        self._slices = manifest.slice_list
        self._columns = manifest.columns
        self._fanout = fanout
        self._files_max = fanout * FILES_PER_RUN
        self._bytes_left = bytes_max
        self._jobs: list[tuple[float, HashRange, Positions, bool]] = []
        self._pending: list[_Pending] = []

    def jobs(self) -> list[Job]:
        """Return the due jobs without tombstone jobs, the smallest first."""
        everything = np.arange(len(self._slices))
        self._add(0, ALL_HASHES, everything, np.zeros(len(everything), dtype=np.bool_))
        while self._pending and self._bytes_left > 0:
            self._visit(heapq.heappop(self._pending))
        positions = [positions for _, _, positions, _ in self._jobs]
        used = np.unique(np.concatenate([everything[:0], *positions]))
        slices = dict(zip(used.tolist(), self._slices.at(used), strict=True))
        return [
            Job(
                hash_range=hash_range,
                slices=tuple(slices[at] for at in positions.tolist()),
                is_oldest=is_oldest,
            )
            for _, hash_range, positions, is_oldest in sorted(self._jobs, key=itemgetter(0))
        ]

    def _add(self, tier: int, hash_range: HashRange, members: Positions, is_taken: Mask) -> None:
        """Let a range be visited; ``members`` are slices that may overlap it."""
        inside = self._columns.overlaps(members, hash_range)
        is_taken = is_taken[inside]
        if not is_taken.all():
            pending = _Pending(tier, hash_range.first, hash_range, members[inside], is_taken)
            heapq.heappush(self._pending, pending)

    def _visit(self, visit: _Pending) -> None:
        """Add a range's jobs in a tier; then continue with the next tier, or with the halves."""
        tier_now, _, hash_range, members, is_taken = visit
        columns = self._columns
        sizes = columns.bytes_within(members, hash_range)
        occupied = HashRange.spanning(
            columns.first[members].min(), columns.last[members].max()
        ).intersect(hash_range)
        is_one_hash, total = occupied.width <= 1, float(sizes.sum())
        scale = ALL_HASHES.width / hash_range.width
        is_split = False
        for tier, window in self._windows(members, sizes, is_taken, scale):
            if tier > tier_now and not is_split:
                heapq.heappush(self._pending, visit._replace(tier=tier))
                return
            if is_split:
                break
            is_large = total > JOB_BYTES // _PIECES_MAX
            chosen, is_separable = self._close(members, window, occupied, is_large)
            size = float(sizes[chosen].sum())
            if is_taken[chosen].any():
                continue
            if is_separable or (size > JOB_BYTES and not is_one_hash):
                is_split = True
                continue
            end = columns.upper[members[chosen]].max()
            is_oldest = not (np.delete(columns.lower[members], chosen) < end).any()
            self._jobs.append((size, hash_range, members[chosen], is_oldest))
            self._bytes_left -= size
            is_taken[chosen] = True
        is_cut = total > JOB_BYTES and bool(columns.is_cut[members].any())
        if (is_split or is_cut) and not is_one_hash:
            # At the first bit that differs: always the same bounds, whatever hashes the files have.
            bits = (occupied.first ^ occupied.last).bit_length() - 1
            for half in hash_range.split_at(occupied.last >> bits << bits):
                self._add(tier_now, half, members, is_taken)

    def _close(
        self, members: Positions, window: Positions, occupied: HashRange, is_large: bool
    ) -> tuple[Positions, bool]:
        """Add slices to a window until every other one is older or newer than all in it.

        A new run's epochs would otherwise hide the order of its entries and theirs. Also returns
        whether a large range must be halved instead, because most of it has no such slice.
        """
        columns = self._columns
        lower, upper, run = columns.lower[members], columns.upper[members], columns.run[members]
        chosen = np.zeros(len(members), dtype=np.bool_)
        chosen[window] = True
        while True:
            crosses = (lower < upper[chosen].max()) & (upper > lower[chosen].min()) & ~chosen
            own = run[chosen]
            if (own == own[0]).all():
                crosses &= run != own[0]  # Their order is their index.
            crossing = members[crosses]
            if not len(crossing):
                return np.flatnonzero(chosen), False
            first = np.maximum(columns.first[crossing], np.uint64(occupied.first))
            last = np.minimum(columns.last[crossing], np.uint64(occupied.last))
            covered = np.bincount(run[crosses], widths(first, last))
            if is_large and covered[covered > 0].min(initial=math.inf) < occupied.width / 2:
                return np.flatnonzero(chosen), True
            chosen |= np.isin(run, run[crosses])

    def _windows(
        self, members: Positions, sizes: Sizes, is_taken: Mask, scale: float
    ) -> Iterator[tuple[int, Positions]]:
        """Yield due groups of slices: the tier, and positions among the members, ascending."""
        columns = self._columns
        numbers, run_of = np.unique(columns.run[members], return_inverse=True)
        order, counts = np.argsort(run_of, kind="stable"), np.bincount(run_of)
        by_run = np.split(order, counts.cumsum()[:-1])
        depths = [1] * len(by_run)
        for at in np.flatnonzero(columns.is_layered[numbers] & (counts > 1)).tolist():
            depths[at] = columns.depth(members[by_run[at]])
        taken = [bool(is_taken[at].any()) for at in by_run]
        for at, depth in enumerate(depths):
            if depth >= self._files_max and not taken[at]:
                for tier, batches in self._batches(members, by_run[at], sizes * scale):
                    taken[at] = True
                    for batch in batches:
                        yield tier, batch
        tiers = self._tiers(np.bincount(run_of, sizes).astype(np.float64) * scale)
        weights = [max(1.0, depth / FILES_PER_RUN) for depth in depths]
        for tier, first, end in _neighbours(tiers, taken, weights, self._fanout):
            yield tier, np.sort(np.concatenate(by_run[first:end]))

    def _batches(
        self, members: Positions, run: Positions, sizes: Sizes
    ) -> Iterator[tuple[int, list[Positions]]]:
        """Yield due groups of one run's files, each in batches of at most `JOB_FILES_MAX`.

        Slices with one index stay together: the new files take the first index.
        """
        depth_of = self._columns.depth
        indices, at = np.unique(self._columns.index[members[run]], return_inverse=True)
        tiers, count = self._tiers(np.bincount(at, sizes[run]).astype(np.float64)), len(indices)
        for tier, first, end in _neighbours(
            tiers, [False] * count, [1.0] * count, self._files_max, count
        ):
            depth = depth_of(members[run[(at >= first) & (at < end)]])
            if depth >= self._files_max:
                parts = np.array_split(np.arange(first, end), -(-depth // JOB_FILES_MAX))
                yield tier, [run[np.isin(at, part)] for part in parts]

    def _tiers(self, sizes: Sizes) -> list[int]:
        """Return the tiers for bytes per all hashes."""
        steps = np.log(np.maximum(sizes / _TIER_BYTES, 1.0)) / math.log(self._fanout)
        return [int(tier) for tier in np.ceil(steps)]


class _Pending(NamedTuple):
    """A hash range to be searched for jobs."""

    tier: int
    """The tier to be searched next."""
    first: int
    hash_range: HashRange
    members: Positions
    """Overlapping slices, ascending."""
    is_taken: Mask
    """Which members are in a job already."""

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return self[:2] < other[:2]


def choose_all(manifest: Manifest, *, forget_before: int = 0) -> list[Job]:
    """Return the jobs leaving one run per range, regardless of size."""
    columns, slices = manifest.columns, list(manifest.slices)
    count = max(1, -(-int(columns.bytes.sum()) // JOB_BYTES))
    ranges = ALL_HASHES.cut(1 << (count - 1).bit_length())
    live = np.flatnonzero(columns.first <= columns.last)
    firsts = np.array([each.first for each in ranges], dtype=np.uint64)
    begins = np.searchsorted(firsts, columns.first[live], side="right") - 1
    counts = np.searchsorted(firsts, columns.last[live], side="right") - begins
    owners = np.repeat(np.arange(len(live)), counts)
    numbers = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(len(owners))
    order = np.argsort(numbers, kind="stable")
    borders = np.searchsorted(numbers[order], np.arange(len(ranges) + 1))
    jobs = []
    for number, hash_range in enumerate(ranges):
        members = live[owners[order[borders[number] : borders[number + 1]]]]
        chosen = tuple(slices[at] for at in members)
        is_single = len(np.unique(columns.run[members])) < 2 and columns.depth(members) < 2
        if not is_single or any(
            s.epochs.upper <= forget_before and s.file.tombstones and not s.is_held for s in chosen
        ):
            jobs.append(
                Job(
                    hash_range=hash_range,
                    slices=chosen,
                    is_oldest=True,
                    forget_before=forget_before,
                )
            )
    return jobs


def _neighbours(
    tiers: list[int], is_taken: list[bool], weights: Sequence[float], due: float, most: int = 1
) -> Iterator[tuple[int, int, int]]:
    """Yield tier and bounds (end exclusive) of compactable runs: together ``due`` in one tier.

    Smaller runs between them are included but not counted; otherwise every few small runs would
    rewrite a large one. Runs already taken separate their neighbours. A group ends as soon as it
    is due, so that ranges compacted at different times have equal runs; with ``most``, it has up
    to so many times ``due``.
    """
    is_taken = list(is_taken)
    for tier in sorted(set(tiers)):
        counted: list[int] = []
        weight = 0.0
        for index in range(len(tiers) + 1):
            is_border = index == len(tiers) or is_taken[index] or tiers[index] > tier
            if not is_border and tiers[index] == tier:
                counted.append(index)
                weight += weights[index]
            if weight >= due * most or (is_border and weight >= due):
                begin, end = counted[0], counted[-1] + 1
                yield tier, begin, end
                is_taken[begin:end] = [True] * (end - begin)
                is_border = True
            if is_border:
                counted, weight = [], 0.0


SHARE = 4
"""A batch compacts at most so many times its own bytes: a byte is written once per tier, and tables
with more tiers need `compact` as a separate job."""


def batch_share(head: Manifest) -> int:
    """Return the bytes to plan for the next batch, by the newest epoch: at least one job."""
    columns = head.columns
    newest = columns.bytes[columns.lower == head.changed]
    return max(SHARE * int(newest.sum()), JOB_BYTES)


def due_jobs(
    log: Versions, now_ms: int, *, full: bool = False, is_share: bool = False
) -> list[Job]:
    """Return the due compactions, the smallest first.

    Parameters
    ----------
    log : Versions
    now_ms : int
        By the log's clock.
    full : bool
        Whether to leave one run per range, regardless of size.
    is_share : bool
        Whether to return only so many as the next batch may do (`batch_share`).
    """
    head = log.head()
    forget_before = _forget_before(log, head, now_ms)
    if full:
        return choose_all(head, forget_before=forget_before)
    bytes_max = batch_share(head) if is_share else None
    return choose(head, forget_before=forget_before, bytes_max=bytes_max)


def _forget_before(log: Versions, head: Manifest, now_ms: int) -> int:
    """Return the epoch before which tombstones are past their retention.

    Zero where entries are folded by an order: a delete also removes older column values, which a
    later row does not contain.
    """
    if head.schema.keeps_deletes:
        return 0
    retention = TombstoneRetention.parse(head.properties.get(PROPERTY, DEFAULT))
    if retention.is_for_ever or not head.slice_list.has_tombstones:
        return 0
    before: int = head.upper
    if retention.epochs is not None:
        before = min(before, head.upper - retention.epochs)
    if retention.milliseconds is not None:
        limit_ms = now_ms - retention.milliseconds
        before = min(before, log.version_at(limit_ms) + 1)
    return max(0, before)
