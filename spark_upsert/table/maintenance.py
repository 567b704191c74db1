"""Table and index maintenance: compaction rounds, and the check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from spark_upsert.store import Store
from spark_upsert.table.compaction import CompactionResult, Job, compact_runs, due_jobs
from spark_upsert.table.index.index import Index, check_index
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state.check import Report
from spark_upsert.table.state.check import check as check_entries

Runner: TypeAlias = Callable[[Manifest, Sequence[Job]], Iterable[CompactionResult]]
"""Does compactions upon a version, wherever it likes."""

Commits: TypeAlias = Callable[[Iterable[CompactionResult]], int]
"""Makes compactions visible and returns how many (`Table.commit_compactions`)."""

ROUND_JOBS_MAX = 256
"""Compactions of one round. Each reads up to 128 MiB: enough for the slots of a large cluster."""


def compact(log: Log, store: Store, *, full: bool, run: Runner | None, commit: Commits) -> int:
    """Compact runs until nothing is due (`Table.compact`)."""

    def here(base: Manifest, jobs: Sequence[Job]) -> Iterator[CompactionResult]:
        return (compact_runs(store, base, job) for job in jobs)

    run = run or here
    jobs = due_jobs(log, log.now_ms(), full=full)
    count = 0
    while jobs:
        batch, later = jobs[:ROUND_JOBS_MAX], jobs[ROUND_JOBS_MAX:]
        done_count = commit(run(log.head(), batch))
        count += done_count
        if full:
            jobs = later
        else:
            # What came out may be due in turn. Nothing done: others compact, and are faster.
            jobs = due_jobs(log, log.now_ms()) if done_count else []
    return count


def compact_once(log: Log, store: Store, commit: Commits) -> None:
    """Do one compaction that is due in a table below another one."""
    for job in due_jobs(log, log.now_ms())[:1]:
        commit([compact_runs(store, log.head(), job)])


def check(
    log: Log,
    store: Store,
    indexes: Iterable[Index],
    progress: Callable[[int, int], object] | None,
) -> Report:
    """Verify a table and its indexes (`Table.check`)."""
    report = check_entries(store, log, progress)
    index_findings = [finding for index in indexes for finding in check_index(index)]
    return replace(report, findings=(*report.findings, *index_findings))
