"""The upkeep of a table and its indexes: compactions in rounds, expiry, holds, vacuum and check.

An index is a table below its table, so that each of these is done to it as well. None is on the
path of correctness: a table that nothing keeps up is slower and larger, and says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_upsert.table.compaction import CompactionResult, Job, compact_runs
from spark_upsert.table.index.index import Index, check_index
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.published import vacuum_mirrors
from spark_upsert.table.repair import Repairs
from spark_upsert.table.repair import repair as repair_log
from spark_upsert.table.retention import expiry
from spark_upsert.table.retention.expiry import Expiry, VacuumResult, despite_expiry
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.state.check import Report
from spark_upsert.table.state.check import check as check_entries

if TYPE_CHECKING:
    from spark_upsert.table.table import Runner, Table


ROUND_JOBS_MAX = 256
"""Compactions of one round. Each reads up to 128 MiB: enough for the slots of a large cluster."""


def compact(table: Table, *, full: bool, run: Runner | None) -> int:
    """Compact runs until nothing is due (`Table.compact`)."""

    def here(base: Manifest, jobs: Sequence[Job]) -> Iterator[CompactionResult]:
        return (compact_runs(table.store, base, job) for job in jobs)

    run = run or here
    jobs = table.compaction_jobs(full=full)
    count = 0
    while jobs:
        now, later = jobs[:ROUND_JOBS_MAX], jobs[ROUND_JOBS_MAX:]
        done = table.commit_compactions(run(table.log.head(), now))
        count += done
        if full:
            jobs = later
        else:
            # What came out may be due in turn. Nothing done: others compact, and are faster.
            jobs = table.compaction_jobs() if done else []
    return count


def compact_once(table: Table) -> None:
    """Do one compaction that is due in a table below another one."""
    for job in table.compaction_jobs()[:1]:
        table.commit_compactions([compact_runs(table.store, table.log.head(), job)])


def compacted(table: Table, indexes: Iterable[Index]) -> list[Index]:
    """Compact the tables that some indexes are; return the indexes."""
    compacted_runs = []
    for index in indexes:
        table.of_index(index).compact()
        compacted_runs.append(index)
    return compacted_runs


def expire(
    table: Table,
    *,
    retain_versions: int | None,
    retain_ms: int | None,
    safety_ms: int,
    writers_ms: int,
) -> Expiry:
    """Give up versions of a table and the past of its indexes; delete old rows (`Table.expire`)."""
    done = expiry.expire(
        table.store,
        table.log,
        retain_versions=retain_versions,
        retain_ms=retain_ms,
        safety_ms=safety_ms,
        writers_ms=writers_ms,
    )
    for _ in table.below(
        # The past of an index is never read.
        lambda index: index.expire(retain_versions=0, safety_ms=safety_ms)
    ):
        continue
    rows = table.expire_rows()
    return done if rows is None else replace(done, rows_deleted=rows.deletes)


def hold_all(table: Table, consumer: str, ttl_ms: int) -> Lease:
    """Keep all that can be read readable (`Table.hold_all`)."""
    return despite_expiry(
        lambda: table.hold(consumer, table.log.head().since, ttl_ms=ttl_ms), table.store.url
    )


def repair(table: Table) -> Repairs:
    """Make a table readable (`Table.repair`)."""
    return repair_log(table.store, table.log)


def vacuum(table: Table, *, grace_ms: int, dry_run: bool) -> VacuumResult:
    """Remove the files of expired versions of a table, its indexes and mirrors."""
    done = expiry.vacuum(table.store, table.log, grace_ms=grace_ms, dry_run=dry_run)
    for folder, vacuumed in table.below(
        lambda index: index.vacuum(grace_ms=grace_ms, dry_run=dry_run)
    ):
        done = done.with_those_below(vacuumed, folder)
    return vacuum_mirrors(table, done)


def check(table: Table, told: Callable[[int, int], object] | None) -> Report:
    """Verify a table and its indexes (`Table.check`)."""
    report = check_entries(table.store, table.log, told)
    index_findings = [finding for index in table.indexes() for finding in check_index(index)]
    return replace(report, findings=(*report.findings, *index_findings))
