"""Compaction: fewer runs, the same answers. A policy chooses, a worker does, a commit shows it."""

from spark_upsert.table.compaction.commit import commit_compactions
from spark_upsert.table.compaction.due import due_jobs
from spark_upsert.table.compaction.policy import Job, choose
from spark_upsert.table.compaction.worker import Compacted, compact_runs

__all__ = [
    "Compacted",
    "Job",
    "choose",
    "commit_compactions",
    "compact_runs",
    "due_jobs",
]
