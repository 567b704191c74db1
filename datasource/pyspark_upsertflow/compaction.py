"""Compaction as a Spark job: the driver chooses and commits, the tasks compact.

The policy and the loop are the table's own (`Table.compact`); only the place of the work differs. A
task is sent the number of its job, by ``spark.range``, so that a session of Spark Connect will
do, which has no ``SparkContext``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_upsert.store.resolve import open_store
from spark_upsert.table.compaction import Compacted, Job, compact_runs
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPACTED = pa.schema([pa.field("compacted", pa.binary())])


def compact(spark: SparkSession, path: str, *, full: bool, storage: Mapping[str, str]) -> int:
    """Compact the runs of a table in Spark's tasks; returns the number of compactions.

    See `pyspark_upsertflow.compact`.
    """
    table = Table.open(path, storage=storage)
    return table.compact(full=full, run=partial(_run, spark, path, storage))


def _run(
    spark: SparkSession,
    path: str,
    storage: Mapping[str, str],
    base: Manifest,
    jobs: Sequence[Job],
) -> list[Compacted]:
    """Run one task per job; returns what they made durable."""
    numbers = spark.range(0, len(jobs), 1, len(jobs))
    work = _worker(path, storage, base.without_writers(), jobs)
    return [
        pickle.loads(row.compacted)
        for row in numbers.mapInArrow(work, "compacted binary").collect()
    ]


def _worker(
    path: str, storage: Mapping[str, str], base: Manifest, jobs: Sequence[Job]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that does jobs by their numbers."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(path, storage)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                compacted = pickle.dumps(compact_runs(store, base, jobs[number]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([compacted], pa.binary())], schema=_COMPACTED
                )

    return work
