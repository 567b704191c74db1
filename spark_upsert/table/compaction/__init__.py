"""Compaction: fewer runs with unchanged results.

`policy` chooses the jobs, `worker` merges runs and commits the result.
"""

from spark_upsert.table.compaction.policy import SHARE, Job, choose, due_jobs
from spark_upsert.table.compaction.worker import CompactionResult, commit_compactions, compact_runs

__all__ = [
    "SHARE",
    "CompactionResult",
    "Job",
    "choose",
    "commit_compactions",
    "compact_runs",
    "due_jobs",
]
