"""Error codes: their meaning and remedy, for ``upsertflow explain-error`` and docs/errors.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """An error code's meaning and remedy."""

    means: str
    do: str


ENTRIES = {
    "UPSERTFLOW": Entry(
        "A general error outside the table and its storage: another package's Python source "
        "failed, or a process was forked after it had used object storage.",
        "Follow the hint.",
    ),
    "OPTION": Entry(
        "An option is unknown, malformed, missing, or conflicts with another one. Nothing was "
        "written.",
        "Follow the hint.",
    ),
    "SCHEMA": Entry(
        "A column does not fit the table. Nothing was written.",
        "Follow the hint. Usually you fix the column, or set `mergeSchema` to change the table.",
    ),
    "DATA": Entry(
        "A row is invalid: its key or order is null, its order is ambiguous, or a value cannot be "
        "processed. Nothing was committed.",
        "Fix the rows, or set `onError`.",
    ),
    "PLAN": Entry(
        "A plan has an invalid node or expression. Nothing was read.",
        "Follow the hint; the text names the node.",
    ),
    "GRAPH": Entry(
        "An operator graph is invalid: a name, a stream, a region or a placement. Nothing was read.",
        "Follow the hint; the text names the operators.",
    ),
    "PLACEMENT": Entry(
        "Placements conflict: two replicas in a graph must share a processing element, and must "
        "not.",
        "Remove one of the two placements named in the text.",
    ),
    "WIDTH": Entry(
        "A region cannot have this width: it is out of range, the graph has no such region, an "
        "operator has stored its state at a different width, or channels must be kept apart.",
        "Follow the hint: keep the width, or start with a new checkpoint.",
    ),
    "TASK": Entry(
        "A task does not accept this call in its current state: the call is out of order, or the "
        "task has failed or ended.",
        "Follow the hint. The future of a barrier also completes if the task fails, so check the "
        "task.",
    ),
    "TABLE_NOT_FOUND": Entry(
        "There is no table at the path.",
        "Check the path. The first write creates a table; a streaming query creates it with its "
        "first batch. To let a read wait for the table, set `tableTimeout`.",
    ),
    "TABLE_EXISTS": Entry(
        "A table already exists at the path.",
        "Open it, or choose another path.",
    ),
    "VERSION_NOT_FOUND": Entry(
        "The requested version, time or batch does not exist yet, or has expired. Nothing is lost, "
        "and checkpoints are not affected.",
        "Request an existing version: the text contains the oldest and newest readable one, and "
        "`upsertflow history` lists all. To read the newest, omit the option. For a future time, "
        "read again later. To read older versions, retain more.",
    ),
    "DATA_LOSS": Entry(
        "Changes expired before the reader read them.",
        "Start with a new checkpoint, which reads the complete table first, or accept the gap with "
        "`failOnDataLoss=false`. Then set a `consumerId` for the query, or retain more.",
    ),
    "CONTENTION": Entry(
        "Other writers won every race for a version; or a batch took longer than the retention or "
        "grace period, so the version it was planned on is gone. Nothing was committed, unless the "
        "text says that this is unknown.",
        "Run it again; a restarted query does so. If batches take that long, retain more. If the "
        "text says that the result is unknown, check the table first, and set `txnAppId` and "
        "`txnVersion` for future writes.",
    ),
    "TABLE_FULL": Entry(
        "The slowest consumer's backlog exceeds the table's limits. Nothing was written.",
        "See why the consumer is slow or stopped, then write again. If it no longer exists, run "
        "`upsertflow consumers --release`.",
    ),
    "BATCH_TOO_LARGE": Entry(
        "A single batch is larger than the maximum backlog in bytes. Nothing was written.",
        "Write smaller batches, or raise `maxBacklogBytes`.",
    ),
    "THROTTLED": Entry(
        "A consumer is overloaded, and the table has `backpressure`. Nothing was written.",
        "Write the same rows again after `retry_after_ms`.",
    ),
    "CORRUPTION": Entry(
        "A file, named in the text, is missing, short or altered.",
        "Restore the file from a copy. If it is a run file, older versions that do not use it "
        "remain readable. For a record with a valid checksum and a number that no reader accepts, "
        "run `upsertflow repair`, which corrects records from an earlier release. For a lease, "
        "restart its consumer, or delete the file if there is none. A damaged local copy of a "
        "remote file is downloaded again automatically.",
    ),
    "NEWER_FORMAT": Entry(
        "A newer upsertflow version wrote the table, a lease or a checkpoint's offset. Nothing is "
        "damaged.",
        "Upgrade the package for all readers and writers.",
    ),
    "EARLIER_FORMAT": Entry(
        "An earlier development version wrote the table.",
        "Rebuild the table from its source, or from a read with that version.",
    ),
    "OTHER_TABLE": Entry(
        "The path does not contain the table that the program, the query or its checkpoint "
        "expects: the table was removed, recreated, or restored from an older copy. Or the table "
        "lacks earlier batches of the writing query. Nothing was committed.",
        "If this was a mistake, restore the table. Otherwise restart the program; a query needs a "
        "new checkpoint.",
    ),
    "CLOCK": Entry(
        "This machine's clock, or a version's commit time, is more than an hour ahead of the "
        "storage clock.",
        "Set the clock (NTP). For a version, run `upsertflow repair-clock`.",
    ),
    "MEMORY_LIMIT": Entry(
        "Inputs that must be buffered completely exceed the memory limit, and spilling is disabled.",
        "Raise the limit, or enable spilling.",
    ),
    "STORAGE": Entry(
        "The storage did not respond, or the file system returned an error: no permission, no "
        "space, no hard links, or a broken disk.",
        "Follow the hint. It is safe to run again.",
    ),
    "MIRRORED_TYPE": Entry(
        "A column has a type or a name that Delta does not support. The table continues without a "
        "mirror.",
        "Follow the hint: convert or rename the column, or disable the mirror.",
    ),
    "MIRROR_CHANGED": Entry(
        "Another program wrote to the Delta mirror, so it is no longer a copy. The table is not "
        "affected.",
        "Rebuild the mirror with `upsertflow publish PATH --rebuild`. Write to the table only, "
        "never to its mirror.",
    ),
    "NOT_MIRRORED": Entry(
        "The table stores the partial results of a view instead of rows, so it cannot have a Delta "
        "mirror.",
        "Write the view's changes to a table, and publish that table.",
    ),
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": Entry(
        "From Spark: the driver was killed while it wrote its first offset. Nothing was applied "
        "yet.",
        "Set `spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart=false`, as in "
        "`conf/spark-defaults.conf`.",
    ),
}
"""Entries by code; the last is Spark's, which a query may encounter."""
