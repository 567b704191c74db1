"""Compaction as a Spark job: the driver chooses and commits, the tasks merge.

The policy is the sink's own (`state.compaction`); only the place of the work differs. A task
is sent the number of its job, by ``spark.range``, so that a session of Spark Connect will do,
which has no ``SparkContext``. Rounds are bounded, because the jobs of a round travel to each
of its tasks.

It is never on the path of correctness: a merge whose runs another compaction took meanwhile
is dropped, and what a killed job leaves behind goes with the next vacuum.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_upsert.state.compaction import Job, Merged, merge
from spark_upsert.state.log.manifest import Manifest
from spark_upsert.state.run.frugal import frugal
from spark_upsert.store import open_store
from spark_upsert.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS_MAX = 256
"""Merges of one round. Each reads up to 128 MiB: enough for the slots of a large cluster."""

_MERGED = pa.schema([pa.field("merged", pa.binary())])


def compact(spark: SparkSession, path: str, *, full: bool, storage: Mapping[str, str]) -> int:
    """Merge the runs of a table in Spark's tasks; returns the number of merges.

    See `pyspark_upsertflow.compact`.
    """
    table = Table.open(path, storage=storage)
    jobs = table.compaction_jobs(full=full)
    count = 0
    while jobs:
        now, later = jobs[:JOBS_MAX], jobs[JOBS_MAX:]
        base = table.log.head().without_writers()
        done = table.commit_merges(_merge_all(spark, path, storage, base, now))
        count += done
        if full:
            jobs = later
        else:
            # Merging makes larger runs, which may be due in turn. Nothing done means that
            # others compact, too, and are faster.
            jobs = table.compaction_jobs() if done else []
    return count


def _merge_all(
    spark: SparkSession,
    path: str,
    storage: Mapping[str, str],
    base: Manifest,
    jobs: list[Job],
) -> list[Merged]:
    """Run one task per job; returns what they made durable."""
    numbers = spark.range(0, len(jobs), 1, len(jobs))
    merges = numbers.mapInArrow(_worker(path, storage, base, jobs), "merged binary")
    return [pickle.loads(row.merged) for row in merges.collect()]


def _worker(
    path: str, storage: Mapping[str, str], base: Manifest, jobs: list[Job]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that does the jobs whose numbers it is given."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(path, storage)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with frugal():
                    merged = pickle.dumps(merge(store, base, jobs[number]))
                yield pa.RecordBatch.from_arrays([pa.array([merged], pa.binary())], schema=_MERGED)

    return work
