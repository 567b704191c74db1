"""Error codes with meanings and remedies (``upsertflow explain-error``, docs/errors.md)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENTRIES", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The meaning of a code, and its remedy."""

    means: str
    do: str


ENTRIES = {
    "UPSERTFLOW": Entry(
        "Something failed that is neither the table's nor its storage's, and is named: a Python "
        "source of another package, or a process that was forked behind the back of a client.",
        "What the hint says.",
    ),
    "OPTION": Entry(
        "An option does not fit: unknown, malformed, missing, or against another one. Nothing was "
        "written.",
        "What the hint says.",
    ),
    "SCHEMA": Entry(
        "A column does not fit the table. Nothing was written.",
        "What the hint says: mostly fix the column, or let the table take it by `mergeSchema`.",
    ),
    "DATA": Entry(
        "A row cannot be a command: its key or its order is null, or its order is ambiguous. The "
        "batch was not committed.",
        "Fix the rows, or choose `onError`.",
    ),
    "PLAN": Entry(
        "A node of a plan, or an expression in it, is not what it may be. Nothing was read.",
        "What the hint says; the text names the node.",
    ),
    "GRAPH": Entry(
        "A graph of operators cannot be run as it is: a name, a stream, a region or a placement. "
        "Nothing was read.",
        "What the hint says; the text names the operators.",
    ),
    "PLACEMENT": Entry(
        "Two replicas of a graph must share a processing element, and must not.",
        "Take back one of the two placements that the text names.",
    ),
    "WIDTH": Entry(
        "A region cannot have the width: state of one of its operators is kept at another, or "
        "channels are kept apart.",
        "Keep the width, or begin with another checkpoint.",
    ),
    "TASK": Entry(
        "A task was called out of its order, or had failed or ended before.",
        "What the hint says; the future of a barrier completes for a task that fails, too, so ask "
        "the task.",
    ),
    "TABLE_NOT_FOUND": Entry(
        "There is no table at the path.",
        "Check the path; the first write makes the table, that of a streaming query its first "
        "batch. A read that is to wait for it has `tableTimeout`.",
    ),
    "TABLE_EXISTS": Entry(
        "A table was to be made where one lies.", "Open it, or choose another path."
    ),
    "VERSION_NOT_FOUND": Entry(
        "The version, the time or the batch that a read names does not exist yet, or was expired. "
        "Nothing is lost, and no checkpoint is affected.",
        "Name a version that exists: the text has the oldest and the newest readable one "
        "(`upsertflow history` lists them). Leave the option out to read the newest. For a time in "
        "the future, read again when it has passed. To read older versions, retain more.",
    ),
    "DATA_LOSS": Entry(
        "Changes that a reader has yet to read are expired.",
        "Begin anew with a new checkpoint (the whole table comes first), or accept the gap by "
        "`failOnDataLoss=false`; then give the query a `consumerId`, or retain more.",
    ),
    "CONTENTION": Entry(
        "Others won every race for a version; or a batch took longer than the retention or the "
        "grace, so that what it was planned on is given up. Nothing was committed, unless the text "
        "says that it cannot be told.",
        "Run it again, which a restarted query does. If single batches take so long, retain more. "
        "Where the text says that it cannot be told: look, and write with `txnAppId` and "
        "`txnVersion` in future.",
    ),
    "TABLE_FULL": Entry(
        "The slowest consumer has not read what the caps allow. Nothing was written.",
        "See why it does not go on; then write again. `upsertflow consumers --release` if it is no "
        "more.",
    ),
    "BATCH_TOO_LARGE": Entry(
        "One batch has more bytes than may ever lie behind a consumer.",
        "Write smaller batches, or raise `maxBacklogBytes`.",
    ),
    "THROTTLED": Entry(
        "A consumer is overloaded, and the table heeds it. Nothing was written.",
        "Write again after `retry_after_ms`, unchanged.",
    ),
    "CORRUPTION": Entry(
        "A file is missing, short or altered, and is named. Nothing was guessed.",
        "Restore that file from a copy. A run file: older versions that do not use it can still be "
        "read. A record with the right checksum and a number that no reader accepts: `upsertflow "
        "repair` corrects what an earlier release wrote. A lease: restart its consumer, or delete "
        "the file if there is none. A damaged local copy of a remote file is fetched again by "
        "itself.",
    ),
    "NEWER_FORMAT": Entry(
        "A newer version of upsertflow wrote the table, a lease or the offset in a checkpoint. "
        "Nothing is damaged.",
        "Upgrade the package wherever the table is read or written.",
    ),
    "EARLIER_FORMAT": Entry(
        "An earlier development version wrote the table.",
        "Make it anew from its source, or from what that version reads.",
    ),
    "OTHER_TABLE": Entry(
        "At the path lies not what the program, the query or its checkpoint knows: the table was "
        "removed, made anew, or restored from an older copy. Or the table lacks earlier batches of "
        "the query that writes. Nothing was committed.",
        "If that was a mistake, put back what was there. If not, restart the program; a query "
        "needs a new checkpoint.",
    ),
    "CLOCK": Entry(
        "This machine's clock, or the time of a version, is more than an hour ahead of the "
        "storage's.",
        "Set the clock (NTP); for a version: `upsertflow repair-clock`.",
    ),
    "MEMORY_LIMIT": Entry(
        "Inputs that must be kept whole need more memory than was allowed, and may not be spilled.",
        "Allow more, or allow to spill.",
    ),
    "STORAGE": Entry(
        "The storage did not answer, or the file system refused: no permission, no room, no hard "
        "links, a broken disk.",
        "What the hint says; it is safe to run again.",
    ),
    "MIRRORED_TYPE": Entry(
        "A column has a type, or a name, that Delta has not. The table goes on without a mirror.",
        "What the hint says: convert or rename the column, or do without the mirror.",
    ),
    "MIRROR_CHANGED": Entry(
        "Another program has written into the mirror, so that it is no copy any more. The table "
        "itself is unharmed.",
        "What the hint says; write into the table, and only read its mirror.",
    ),
    "NOT_MIRRORED": Entry(
        "A table of this kind has no mirror, or another thing lies at its place.",
        "What the hint says.",
    ),
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": Entry(
        "From Spark: the driver was killed while it noted its first offset. Nothing was applied "
        "yet.",
        "Set `spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart=false`, as "
        "`conf/spark-defaults.conf` does.",
    ),
}
"""Entries by code; the last is Spark's, which a query of ours may meet."""
