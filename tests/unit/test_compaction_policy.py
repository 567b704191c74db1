"""Which runs are merged: a pure choice over manifests that are only described."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.compaction.policy import FANOUT, JOB_BYTES, Job, choose, choose_all
from spark_upsert.table.log.manifest import Manifest, Slice
from spark_upsert.table.run.file import RunFile

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
