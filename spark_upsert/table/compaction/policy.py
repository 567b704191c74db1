"""Compaction policy: size-tiered, by hash range; pure, it returns jobs (docs/adr/0005).

Only neighbours in time are merged, so a run's epochs are an interval and the later run wins. Write
amplification is at most ``1 + log_FANOUT(table / epoch)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.precedence import Interval
from spark_upsert.table.log.manifest import Manifest, RemovedRange, Slice
from spark_upsert.table.log.properties import DEFAULT, PROPERTY, TombstoneRetention
from spark_upsert.table.log.snapshot import Versions

FANOUT = 8
"""Run count triggering a compaction: eight searches and one write per tier."""

JOB_BYTES = 128 << 20
"""Maximum input bytes per job."""

_TOMBSTONE_SHARE = 4
"""An oldest file is rewritten when a quarter of it is tombstones past their retention."""

_TIER_BYTES = 64 << 10
"""Maximum size for tier zero: below it a run's overhead outweighs its bytes."""


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


def choose(manifest: Manifest, *, forget_before: int = 0, fanout: int = FANOUT) -> list[Job]:
    """Return the due jobs, the smallest first; no two touch the same entries.

    A run's tier is the logarithm, to the base `FANOUT`, of its bytes per hash. `FANOUT` adjacent
    runs in one tier without a larger run between them are one job, halved by hash until it has at
    most `JOB_BYTES`.

    Source: O'Neil et al., "The log-structured merge-tree" (1996), and Cassandra's size tiers; here
    only runs adjacent in time are merged.

    Parameters
    ----------
    manifest : Manifest
    forget_before : int
        Tombstones from smaller epochs are past their retention (`table.log.properties`).
    fanout : int
        Number of adjacent runs per job, at least 2. With 2, any two runs in one tier suffice.
    """
    jobs: list[Job] = []
    _add_jobs(list(manifest.slices), ALL_HASHES, fanout, jobs)
    jobs += _tombstone_jobs(manifest, jobs, forget_before)
    return sorted((replace(j, forget_before=forget_before) for j in jobs), key=lambda j: j.bytes)


def _tombstone_jobs(manifest: Manifest, jobs: list[Job], forget_before: int) -> list[Job]:
    """Return jobs rewriting the oldest files with many removable tombstones.

    A file is rewritten at most once: the remaining tombstones are then held (`Slice.is_held`).
    """
    busy = {slice_.file.path for job in jobs for slice_ in job.slices}
    first = min((slice_.epochs.lower for slice_ in manifest.slices), default=0)
    return [
        Job(
            hash_range=slice_.live,
            slices=(slice_,),
            is_oldest=True,
        )
        for slice_ in manifest.slices
        if slice_.epochs.lower == first
        and slice_.epochs.upper <= forget_before
        and slice_.index == 0
        and not slice_.is_held
        and slice_.file.path not in busy
        and slice_.file.tombstones * _TOMBSTONE_SHARE > slice_.file.rows
        and not any(
            s.epochs.lower == first and s is not slice_ and s.overlaps(slice_.live)
            for s in manifest.slices
        )
    ]


def _add_jobs(slices: list[Slice], hash_range: HashRange, fanout: int, jobs: list[Job]) -> None:
    """Add a range's jobs, or those for its halves if one job would be too large."""
    runs = _runs(slices)
    sizes = [sum(s.bytes_within(hash_range) for s in run) for run in runs]
    scale = ALL_HASHES.width / hash_range.width
    neighbors = _neighbours([_tier(size * scale, fanout) for size in sizes], fanout)
    occupied = _occupied_range(slices, hash_range)
    is_one_hash = occupied.width <= 1
    if neighbors is not None and (
        is_one_hash or sum(sizes[neighbors[0] : neighbors[1]]) <= JOB_BYTES
    ):
        jobs.append(
            _job(runs[neighbors[0] : neighbors[1]], hash_range, is_oldest=neighbors[0] == 0)
        )
    elif (
        sum(sizes) > JOB_BYTES
        and not is_one_hash
        and (neighbors is not None or not _is_uniform(slices, hash_range))
    ):
        for half in hash_range.split_at((occupied.first + occupied.end) // 2):
            _add_jobs([s for s in slices if s.overlaps(half)], half, fanout, jobs)


def _occupied_range(slices: list[Slice], hash_range: HashRange) -> HashRange:
    """Return the part of a range in which hashes can be."""
    stored = [s.file.hash_range for s in slices]
    first = min((slice_range.first for slice_range in stored), default=0)
    return HashRange(first, max((slice_range.end for slice_range in stored), default=0)).intersect(
        hash_range
    )


def _is_uniform(slices: list[Slice], hash_range: HashRange) -> bool:
    """Return whether no compaction has removed a part of a range from any slice."""
    return all(s.live.covers(hash_range) for s in slices)


def choose_all(manifest: Manifest, *, forget_before: int = 0) -> list[Job]:
    """Return the jobs leaving one run per range, regardless of size."""
    live = sum(slice_.bytes_within(ALL_HASHES) for slice_ in manifest.slices)
    jobs = []
    for hash_range in ALL_HASHES.cut(max(1, -(-live // JOB_BYTES))):
        runs = _runs(s for s in manifest.slices if s.overlaps(hash_range))
        forgettable = any(
            s.epochs.upper <= forget_before and s.file.tombstones and not s.is_held
            for run in runs
            for s in run
        )
        if len(runs) > 1 or any(map(_are_overlapping, runs)) or forgettable:
            job = _job(runs, hash_range, is_oldest=True)
            jobs.append(replace(job, forget_before=forget_before))
    return jobs


def _job(runs: list[list[Slice]], hash_range: HashRange, *, is_oldest: bool) -> Job:
    slices = tuple(slice_ for run in runs for slice_ in run)
    return Job(hash_range=hash_range, slices=slices, is_oldest=is_oldest)


def _runs(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Group slices by their epochs, in manifest order."""
    runs: dict[Interval, list[Slice]] = {}
    for slice_ in slices:
        runs.setdefault(slice_.epochs, []).append(slice_)
    return list(runs.values())


def _are_overlapping(run: list[Slice]) -> bool:
    """Return whether two files of a run share a hash; those of a bulk load do not."""
    ranges = sorted((slice_.occupied for slice_ in run), key=lambda range_: range_.first)
    return any(left.overlaps(right) for left, right in pairwise(ranges))


def _tier(size: float, fanout: int) -> int:
    return 0 if size <= _TIER_BYTES else math.ceil(math.log(size / _TIER_BYTES, fanout))


def _neighbours(tiers: list[int], fanout: int) -> tuple[int, int] | None:
    """Return the bounds (end exclusive) for ``fanout`` compactable runs in one tier, or None.

    Smaller runs between them are included but not counted; otherwise every few small runs would
    rewrite a large one.
    """
    for tier in sorted(set(tiers)):
        first = 0
        for index in range(len(tiers) + 1):
            if index == len(tiers) or tiers[index] > tier:
                if tiers[first:index].count(tier) >= fanout:
                    return first, index
                first = index + 1
    return None


def due_jobs(log: Versions, now_ms: int, *, full: bool = False) -> list[Job]:
    """Return the due compactions, the smallest first.

    Parameters
    ----------
    log : Versions
    now_ms : int
        By the log's clock.
    full : bool
        Whether to leave one run per range, regardless of size.
    """
    head = log.head()
    chooser = choose_all if full else choose
    return chooser(head, forget_before=_forget_before(log, head, now_ms))


def _forget_before(log: Versions, head: Manifest, now_ms: int) -> int:
    """Return the epoch before which tombstones are past their retention.

    Zero where entries are folded by an order: a delete also removes older column values, which a
    later row does not contain.
    """
    if head.schema.keeps_deletes:
        return 0
    retention = TombstoneRetention.parse(head.properties.get(PROPERTY, DEFAULT))
    if retention.is_for_ever or not any(slice_.file.tombstones for slice_ in head.slices):
        return 0
    before: int = head.upper
    if retention.epochs is not None:
        before = min(before, head.upper - retention.epochs)
    if retention.milliseconds is not None:
        limit_ms = now_ms - retention.milliseconds
        before = min(before, log.version_at(limit_ms) + 1)
    return max(0, before)
