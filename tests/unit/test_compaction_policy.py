"""Which runs are merged: a pure choice over manifests that are only described."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.table.compaction import policy
from spark_upsert.table.compaction.policy import (
    FANOUT,
    FILES_PER_RUN,
    JOB_BYTES,
    Job,
    choose,
    choose_all,
)
from spark_upsert.table.compaction.worker import FILE_BYTES, VERSION_JOBS_MAX, compact_runs
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Slice, apply
from spark_upsert.table.run.file import RunFile
from tests.support.model import Command
from tests.support.seeds import rest_slow, seeds
from tests.support.stores import MemoryStore
from tests.support.tables import append, make_table, rows_at, schema_of

SMALL = 1000
SCHEMA = TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"])


def run(epoch: int, size: int, *, upper: int | None = None, **how: Any) -> Slice:
    file = RunFile(
        path=f"data/{epoch}.arrow",
        rows=max(1, size // 40),
        tombstones=how.pop("tombstones", 0),
        bytes=size,
        body_bytes=size,
        tail_crc=0,
        hash_range=ALL_HASHES,
    )
    epochs = Interval(lower=Epoch(epoch), upper=Epoch(upper or epoch + 1))
    return Slice(file=file, epochs=epochs, **how)


def manifest(*slices: Slice) -> Manifest:
    return Manifest(version=1000, timestamp_ms=0, schema=SCHEMA, slices=slices)


def merged(jobs: list[Job]) -> list[list[int]]:
    return [[part.epochs.lower for part in job.slices] for job in jobs]


LARGE = 10**7
CASES = {
    "one too few are left alone": ([SMALL] * (FANOUT - 1), []),
    "enough of a size are merged": ([SMALL] * FANOUT, [list(range(FANOUT))]),
    "a large run does not count for small ones": ([LARGE] + [SMALL] * (FANOUT - 1), []),
    "small runs are merged beside a large one": (
        [LARGE] + [SMALL] * FANOUT,
        [list(range(1, FANOUT + 1))],
    ),
    "small runs between large ones are merged along": (
        [LARGE] * (FANOUT - 1) + [SMALL] * 3 + [LARGE],
        [list(range(FANOUT + 3))],
    ),
    "runs that are no neighbours are not merged": ([SMALL] * 4 + [LARGE] + [SMALL] * 4, []),
}


@pytest.mark.parametrize(("sizes", "expected"), CASES.values(), ids=CASES.keys())
def test_neighbours_of_a_tier_are_merged(sizes: list[int], expected: list[list[int]]) -> None:
    table = manifest(*(run(epoch, size) for epoch, size in enumerate(sizes)))
    assert merged(choose(table)) == expected


def test_a_large_merge_is_cut_into_bounded_jobs() -> None:
    table = manifest(*(run(epoch, JOB_BYTES) for epoch in range(FANOUT)))
    jobs = choose(table)
    assert len(jobs) >= FANOUT
    assert all(job.bytes <= JOB_BYTES for job in jobs)
    bounds = sorted((job.hash_range.first, job.hash_range.end) for job in jobs)
    assert [low for low, _ in bounds[1:]] == [high for _, high in bounds[:-1]]
    assert (bounds[0][0], bounds[-1][1]) == (0, HASH_END)


def test_a_merge_that_is_half_done_goes_on_where_it_stopped() -> None:
    below, above = ALL_HASHES.split_at(HASH_END // 2)
    old = [replace(run(e, JOB_BYTES), live=above) for e in range(FANOUT)]
    done = replace(run(0, 4 * JOB_BYTES, upper=FANOUT), live=below)
    jobs = choose(manifest(done, *old))
    assert jobs
    assert all(above.covers(job.hash_range) for job in jobs)
    assert all(len(job.slices) == FANOUT for job in jobs)


def test_a_full_compaction_leaves_single_runs_alone() -> None:
    assert choose_all(manifest(run(0, SMALL))) == []
    assert merged(choose_all(manifest(run(0, 10**6), run(1, SMALL)))) == [[0, 1]]


def test_an_old_run_full_of_deletes_is_written_again() -> None:
    table = manifest(run(1, 4000, tombstones=60))
    assert choose(table, forget_before=1) == []
    jobs = choose(table, forget_before=2)
    assert merged(jobs) == [[1]]
    assert jobs[0].is_oldest
    assert jobs[0].forget_before == 2


def test_runs_of_one_large_value_are_merged_although_no_cut_makes_the_job_smaller() -> None:
    """Eight epochs of one key with a value of 20 MB: all bytes are at one hash."""
    slices = []
    for epoch in range(1, FANOUT + 1):
        part = run(epoch, 20 << 20)
        slices.append(replace(part, file=replace(part.file, hash_range=HashRange(5, 6))))
    assert merged(choose(manifest(*slices))) == [list(range(1, FANOUT + 1))]


class Described:
    """A table whose files are only described, if asked with the entries of epochs and tasks."""

    def __init__(self, *, has_entries: bool = False) -> None:
        self.has_entries = has_entries
        self.contents: dict[str, list[tuple[int, int, HashRange]]] = {}
        self.head = manifest()
        self.written = 0
        self._paths = (f"data/{number:032x}.arrow" for number in count())

    def file(
        self, contents: Sequence[tuple[int, int, HashRange]], size: int, hash_range: HashRange
    ) -> RunFile:
        path = next(self._paths)
        if self.has_entries:
            self.contents[path] = list(contents)
        return replace(run(0, size).file, path=path, hash_range=hash_range)

    def commit(self, kind: Kind, **draft: Any) -> None:
        version = self.head.version + 1
        self.head = apply(
            self.head,
            Commit(kind=kind, version=version, timestamp_ms=0, token="", previous="", **draft),
        )

    def append(self, sizes: Sequence[int], ranges: Sequence[HashRange] = ()) -> None:
        """Add an epoch with a file per task, by default each over all hashes."""
        epoch = self.head.upper
        each = zip(sizes, ranges or [ALL_HASHES] * len(sizes), strict=True)
        files = [self.file([(epoch, i, r)], size, r) for i, (size, r) in enumerate(each)]
        self.commit(Kind.APPEND, added=tuple(files))

    def merge(self, jobs: Sequence[Job]) -> None:
        """Run jobs, all in one version: the new files have every entry of the taken ones."""
        added: list[Slice] = []
        for job in jobs:
            entries = [
                (epoch, task, part)
                for slice_ in job.slices
                for epoch, task, each in self.contents.get(slice_.file.path, ())
                if not (part := each.intersect(slice_.live).intersect(job.hash_range)).is_empty
            ]
            pieces = job.hash_range.cut(max(1, -(-job.bytes // FILE_BYTES)))
            self.written += job.bytes
            for at, piece in enumerate(pieces):
                hull, inside = piece, []
                if self.has_entries:
                    inside = [
                        (e, t, r.intersect(piece)) for e, t, r in entries if r.overlaps(piece)
                    ]
                    hull = HashRange(
                        min((r.first for *_, r in inside), default=0),
                        max((r.end for *_, r in inside), default=0),
                    )
                if not hull.is_empty:
                    file = self.file(inside, max(1, job.bytes // len(pieces)), hull)
                    index = at if job.index is None else job.index
                    added.append(Slice(file=file, epochs=job.epochs, index=index))
        taken = tuple(taken for job in jobs for taken in job.taken)
        self.commit(Kind.COMPACT, compacted=tuple(added), taken=taken)

    def entries_at(self, hash_: int) -> list[tuple[int, int]]:
        """Return the epochs and tasks of the entries at a hash, in manifest order."""
        return [
            (epoch, task)
            for slice_ in self.head.slices
            if hash_ in slice_.occupied
            for epoch, task, part in self.contents[slice_.file.path]
            if hash_ in part
        ]

    @property
    def depth(self) -> int:
        """The greatest number of files at one hash."""
        return self.head.columns.depth(np.arange(len(self.head.slices)))


@seeds(6, quick={2, 3})
def test_any_plan_done_in_any_part_keeps_every_entry_once_and_in_order(seed: int) -> None:
    dice = random.Random(seed)
    table, expected = Described(has_entries=True), []
    with (
        patch.object(policy, "JOB_BYTES", dice.choice([3000, 20_000, 1 << 30])),
        patch.object(policy, "FILES_PER_RUN", dice.choice([2, 8])),
        patch.object(policy, "JOB_FILES_MAX", dice.choice([3, 8, 128])),
        patch.object(policy, "_TIER_BYTES", dice.choice([64, 64 << 10])),
    ):
        for _ in range(dice.randrange(4, 16)):
            tasks = dice.choice([1, 1, 2, 5, 20])
            bounds = [sorted(dice.choices([0, *_BOUNDS, HASH_END], k=2)) for _ in range(tasks)]
            ranges = [HashRange(*each) for each in bounds if each[0] < each[1]]
            expected += [(table.head.upper, task, each) for task, each in enumerate(ranges)]
            table.append([dice.choice([100, 1000, 10_000]) for _ in ranges], ranges)
            is_full = dice.random() < 0.1
            fanout = dice.choice([2, 3, 8])
            jobs = choose_all(table.head) if is_full else choose(table.head, fanout=fanout)
            if jobs and dice.random() < 0.6:
                jobs = dice.sample(jobs, dice.randrange(1, len(jobs) + 1))
            table.merge(jobs)
            for hash_ in [dice.randrange(HASH_END) for _ in range(20)]:
                here = [(epoch, task) for epoch, task, part in expected if hash_ in part]
                assert table.entries_at(hash_) == here
            for job in jobs:
                if job.is_oldest:
                    left = [s for s in table.head.slices if s.epochs.upper <= job.epochs.lower]
                    assert not any(s.overlaps(job.hash_range) for s in left)


_BOUNDS = [HASH_END // 8, HASH_END // 3, HASH_END // 2, HASH_END // 2 + 1, HASH_END // 7 * 6]


@pytest.mark.parametrize("tasks", rest_slow([400, 1000]))
def test_an_epoch_of_many_overlapping_files_is_written_once_and_settles(tasks: int) -> None:
    table = Described()
    table.append([12 << 20] * tasks)
    assert table.head.run_count == tasks
    jobs = choose(table.head)
    assert all(job.bytes <= JOB_BYTES and len(job.slices) <= 128 for job in jobs)
    table.merge(jobs)
    assert choose(table.head) == []
    assert table.head.run_count == table.depth == -(-tasks // policy.JOB_FILES_MAX)
    assert table.written <= 1.01 * tasks * (12 << 20)


def test_disjoint_files_of_one_epoch_are_one_run_and_settled() -> None:
    table = Described()
    table.append([100 << 20] * 300, ALL_HASHES.cut(300))
    assert table.head.run_count == 1
    assert choose(table.head) == choose_all(table.head) == []


LOADS = {
    "10 MB by 8 tasks": (10 << 20, 8, 300, 2.0),
    "1 GB by 100 tasks": (1 << 30, 100, 6, 1.2),
    "2 GB by 16 tasks": (2 << 30, 16, 5, 0.9),
    "1500 of 10 MB by 8 tasks": (10 << 20, 8, 1500, 2.7),
    "100 of 1 GB by 100 tasks": (1 << 30, 100, 100, 2.6),
    "100 of 10 GB by 16 tasks": (10 << 30, 16, 100, 1.8),
}
"""Bytes per epoch, tasks, epochs, and at most how often a byte is written."""


@pytest.mark.parametrize(
    ("size", "tasks", "epochs", "written"),
    [
        pytest.param(*load, id=name, marks=pytest.mark.slow if " of " in name else ())
        for name, load in LOADS.items()
    ],
)
def test_a_share_of_four_times_each_batch_bounds_the_waiting_jobs(
    size: int, tasks: int, epochs: int, written: float
) -> None:
    table, deepest = Described(), 0
    share = max(4 * size, JOB_BYTES)
    for _ in range(epochs):
        jobs = choose(table.head, bytes_max=share)
        assert sum(job.bytes for job in jobs) <= share + JOB_BYTES
        table.append([size // tasks] * tasks)
        table.merge(jobs)
        deepest = max(deepest, table.depth)
    assert table.written <= written * epochs * size
    # One epoch as it came, and in each tier fewer runs than merge.
    assert deepest <= max(tasks, FANOUT * FILES_PER_RUN) + 4 * FANOUT


def test_a_plan_of_a_settled_table_looks_once_at_its_arrays() -> None:
    recent = [run(epoch, SMALL) for epoch in range(1, FANOUT)]
    for files in (200, 2000):
        bottom = [replace(run(0, JOB_BYTES), file=_file(r)) for r in ALL_HASHES.cut(files)]
        with patch.object(heapq, "heappush", side_effect=heapq.heappush) as push:
            assert choose(manifest(*bottom, *recent)) == []
        assert push.call_count == 1


def _file(hash_range: HashRange) -> RunFile:
    return replace(run(0, JOB_BYTES).file, hash_range=hash_range, path=f"data/{hash_range}.arrow")


def test_compactions_of_a_list_share_versions_and_each_range_is_taken_once() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    for epoch in range(FANOUT):
        append(table, [Command(key, epoch, epoch) for key in range(200)])
    before = rows_at(table)
    with patch.object(policy, "JOB_BYTES", 2_000):
        jobs = table.compaction_jobs()
    assert len(jobs) > VERSION_JOBS_MAX
    head = table.log.head()
    assert all(job.hash_range.first % (HASH_END // 64) == 0 for job in jobs)
    twice = [compact_runs(table.store, head, job) for job in (*jobs, *jobs[:3])]
    assert table.commit_compactions(twice) == len(jobs)
    assert table.log.head().version == head.version + -(-len(jobs) // VERSION_JOBS_MAX)
    assert rows_at(table) == before
    files = {slice_.file.path for slice_ in twice[-1].added}
    assert not files & {info.path for info in table.store.list("data")}
