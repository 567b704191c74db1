"""Compaction: fewer runs, the same answers. A policy chooses, a worker does, a commit shows it."""

from spark_upsert.table.compaction.policy import Job, choose, due_jobs
from spark_upsert.table.compaction.worker import CompactionResult, commit_compactions, compact_runs

__all__ = [
    "CompactionResult",
    "Job",
    "choose",
    "commit_compactions",
    "compact_runs",
    "due_jobs",
]
