"""The messages from a write task to the commit."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from spark_upsert.table.compaction import Compacted
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.write.write_set import Staged


@dataclass
class StagedMessage(WriterCommitMessage):
    """The durable, not yet visible work of one task.

    The commit of a stream is not told its query; the task is. So each message names its query.
    """

    staged: Staged
    unborn: Manifest | None
    """The table that this epoch is to make: it was planned on the driver, with its hash seed."""
    compacted: tuple[Compacted, ...]
    task_index: int
    query_id: str | None
