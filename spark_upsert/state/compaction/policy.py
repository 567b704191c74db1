"""Which runs to merge: size-tiered, range by range of the hash. Pure: it looks and returns jobs.

Runs stand in the order of their epochs. The *tier* of a run is the logarithm, to the base
`FANOUT`, of the bytes it has per hash: so it is the same in every range. Where `FANOUT`
of a tier stand with none larger between them, they are merged into one of the next tier. A
range then holds fewer than ``FANOUT`` runs per tier, and a row is written once per tier:

    write amplification <= 1 + log_FANOUT(table / epoch).

Small runs are merged over all hashes at once. Where that would be more than `JOB_BYTES`, the
range is halved until it is not, so that one step of work is bounded whatever the size of the
table, and a merge of large runs goes bucket after bucket. Only the values of one single hash
are never parted.

Only neighbours are merged: the epochs of a run are always an interval, and "the later run
wins" stays true.

Source: size-tiered compaction as in O'Neil et al., "The log-structured merge-tree" (1996),
and Cassandra. We merge neighbours in time instead of any runs of like size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_upsert.model.epochs import Interval
from spark_upsert.model.hashing import HASH_END, even_cuts
from spark_upsert.state.log.manifest import Manifest, Slice, Taken

FANOUT = 8
"""Runs that are merged at once: eight searches per tier, and one write per tier."""

JOB_BYTES = 128 << 20
"""Upper bound of what one step of work reads."""

_TOMBSTONE_SHARE = 4
"""An oldest file is written again when a quarter of it is tombstones that may go."""

_TIER_BYTES = 64 << 10
"""Runs up to this size are of tier zero: below it the cost of a run is its being a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Merge some neighbouring runs in a range of hashes."""

    hash_lower: int
    hash_upper: int
    slices: tuple[Slice, ...]
    """In the order of their epochs."""
    is_oldest: bool
    """Whether nothing older is left in the range, so that tombstones hide nothing."""
    forget_before: int = 0
    """Tombstones of smaller epochs are past their retention."""

    @property
    def epochs(self) -> Interval:
        """The epochs that the merged run covers."""
        return Interval(
            lower=self.slices[0].epochs.lower, upper=max(s.epochs.upper for s in self.slices)
        )

    @property
    def taken(self) -> tuple[Taken, ...]:
        """The ranges that the merged run replaces."""
        return tuple(
            Taken(
                path=part.file.path,
                hash_lower=max(part.hash_lower, self.hash_lower),
                hash_upper=min(part.hash_upper, self.hash_upper),
            )
            for part in self.slices
        )

    @property
    def bytes(self) -> int:
        """About how many bytes are read."""
        return sum(_bytes_within(s, self.hash_lower, self.hash_upper) for s in self.slices)

    def __repr__(self) -> str:
        return (
            f"Job({self.epochs}, hashes={self.hash_lower:016x}..{self.hash_upper:016x}, "
            f"slices={len(self.slices)}, bytes={self.bytes:_})"
        )


def choose(manifest: Manifest, *, forget_before: int = 0, fanout: int = FANOUT) -> list[Job]:
    """Return the jobs that are due, the smallest first; no two touch the same entries.

    Parameters
    ----------
    manifest : Manifest
    forget_before : int
        Tombstones of smaller epochs are past their retention (`state.tombstones`).
    fanout : int
        How many neighbours make a job, at least 2. With 2, any two runs of like size do.
    """
    jobs: list[Job] = []
    _visit(list(manifest.slices), 0, HASH_END, fanout, jobs)
    jobs += _forgetting(manifest, jobs, forget_before)
    return sorted((replace(j, forget_before=forget_before) for j in jobs), key=lambda j: j.bytes)


def _forgetting(manifest: Manifest, jobs: list[Job], forget_before: int) -> list[Job]:
    """Return jobs that write the oldest files again where many of their tombstones may go.

    A file is written again once at most: what is left then is held (`Slice.is_held`).
    """
    busy = {part.file.path for job in jobs for part in job.slices}
    first = min((part.epochs.lower for part in manifest.slices), default=0)
    return [
        Job(
            hash_lower=part.hash_lower,
            hash_upper=part.hash_upper,
            slices=(part,),
            is_oldest=True,
        )
        for part in manifest.slices
        if part.epochs.lower == first
        and part.epochs.upper <= forget_before
        and part.index == 0
        and not part.is_held
        and part.file.path not in busy
        and part.file.tombstones * _TOMBSTONE_SHARE > part.file.rows
        and not any(
            s.epochs.lower == first
            and s is not part
            and s.overlaps(part.hash_lower, part.hash_upper)
            for s in manifest.slices
        )
    ]


def _visit(slices: list[Slice], lower: int, upper: int, fanout: int, jobs: list[Job]) -> None:
    """Add the jobs of a range, or those of its halves if one job would be too large."""
    runs = _runs(slices)
    sizes = [sum(_bytes_within(s, lower, upper) for s in run) for run in runs]
    scale = HASH_END / (upper - lower)
    found = _neighbours([_tier(size * scale, fanout) for size in sizes], fanout)
    first, last = _occupied(slices, lower, upper)
    is_one_hash = last - first <= 1
    if found is not None and (is_one_hash or sum(sizes[found[0] : found[1]]) <= JOB_BYTES):
        jobs.append(_job(runs, found[0], found[1], lower, upper))
    elif (
        sum(sizes) > JOB_BYTES
        and not is_one_hash
        and (found is not None or not _is_uniform(slices, lower, upper))
    ):
        middle = (first + last) // 2
        for low, high in ((lower, middle), (middle, upper)):
            _visit([s for s in slices if s.overlaps(low, high)], low, high, fanout, jobs)


def _occupied(slices: list[Slice], lower: int, upper: int) -> tuple[int, int]:
    """Return the part of a range in which hashes can be, the end exclusive."""
    first = max(lower, min((s.file.hash_min for s in slices), default=upper))
    last = min(upper, max((s.file.hash_max + 1 for s in slices), default=lower))
    return first, last


def _is_uniform(slices: list[Slice], lower: int, upper: int) -> bool:
    """Return whether no compaction has treated some part of a range apart."""
    return all(s.hash_lower <= lower and upper <= s.hash_upper for s in slices)


def choose_all(manifest: Manifest, *, forget_before: int = 0) -> list[Job]:
    """Return the jobs that leave one run everywhere, whatever the sizes."""
    live = sum(_bytes_within(part, 0, HASH_END) for part in manifest.slices)
    jobs = []
    for lower, upper in even_cuts(max(1, -(-live // JOB_BYTES))):
        runs = _runs(s for s in manifest.slices if s.overlaps(lower, upper))
        forgettable = any(
            s.epochs.upper <= forget_before and s.file.tombstones and not s.is_held
            for run in runs
            for s in run
        )
        if len(runs) > 1 or any(len(run) > 1 for run in runs) or forgettable:
            job = _job(runs, 0, len(runs), lower, upper)
            jobs.append(replace(job, forget_before=forget_before))
    return jobs


def _job(runs: list[list[Slice]], first: int, last: int, lower: int, upper: int) -> Job:
    return Job(
        hash_lower=lower,
        hash_upper=upper,
        slices=tuple(part for run in runs[first:last] for part in run),
        is_oldest=first == 0,
    )


def _runs(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Group slices by their epochs; their order is that of the manifest."""
    runs: dict[Interval, list[Slice]] = {}
    for part in slices:
        runs.setdefault(part.epochs, []).append(part)
    return list(runs.values())


def _bytes_within(part: Slice, lower: int, upper: int) -> int:
    """Estimate the bytes of a slice in a range of hashes; hashes are uniform."""
    span = part.file.hash_max + 1 - part.file.hash_min
    low = max(lower, part.hash_lower, part.file.hash_min)
    high = min(upper, part.hash_upper, part.file.hash_max + 1)
    return part.file.bytes * max(0, high - low) // span


def _tier(size: float, fanout: int) -> int:
    return 0 if size <= _TIER_BYTES else math.ceil(math.log(size / _TIER_BYTES, fanout))


def _neighbours(tiers: list[int], fanout: int) -> tuple[int, int] | None:
    """Return the first and last (exclusive) run to merge: ``fanout`` of one tier, or None.

    Smaller runs between them are merged along; they do not count, or one large run would
    be written again with every few small ones.
    """
    for tier in sorted(set(tiers)):
        first = 0
        for index in range(len(tiers) + 1):
            if index == len(tiers) or tiers[index] > tier:
                if tiers[first:index].count(tier) >= fanout:
                    return first, index
                first = index + 1
    return None
