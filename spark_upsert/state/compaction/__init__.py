"""Compaction: fewer runs, the same answers. A policy chooses, a worker merges."""

from spark_upsert.state.compaction.policy import Job, choose, choose_all
from spark_upsert.state.compaction.worker import Merged, merge

__all__ = ["Job", "Merged", "choose", "choose_all", "merge"]
