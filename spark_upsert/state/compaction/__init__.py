"""Compaction: fewer runs, the same answers. A policy chooses, a worker does it."""

from spark_upsert.state.compaction.policy import Job, choose, choose_all
from spark_upsert.state.compaction.worker import Compacted, compact_runs

__all__ = ["Compacted", "Job", "choose", "choose_all", "compact_runs"]
