"""The options of reads and writes: their names and what each one means."""

from __future__ import annotations

from collections.abc import Mapping

READ_OPTIONS: Mapping[str, str] = {
    "path": "Where the table lies. Required.",
    "plan": "Instead of `path`: the plan of a view over one or several tables, as `to_json()` of "
    "`pyspark_upsertflow.view(...)` gives it. Times, `latest` and `earliest` mean what they mean "
    "of a table; numbers of versions are for plans that follow one table (others may be pinned).",
    "columns": "Comma-separated columns to read; `_change_type` and its like always come along. "
    "Default: all.",
    "versionAsOf": "Batch: read the table as of this version.",
    "timestampAsOf": "Batch: read the table as of this time (ISO 8601, UTC if it names no zone, "
    "or ms since 1970).",
    "readChangeFeed": "Read changes, old values and deletes included, with the columns "
    "`_change_type`, `_commit_version`, `_commit_timestamp` and `_diff`. Without it a batch reads "
    "the rows, and a stream their new values. Default `false`.",
    "ignoreDeletes": "Stream of new values: leave deletes out. What is made of such a stream keeps "
    "rows that the table has no more. Without it the query stops at a delete. Default `false`.",
    "startingVersion": "First version whose changes are read: a number, `earliest` or `latest` "
    "(only what comes). A stream without it begins with the whole table as inserts.",
    "startingTimestamp": "The same by time: the first version committed at or after it.",
    "startingPosition": "Stream of a `plan`: where it goes on, as a table that keeps the view has "
    "recorded it. Set by `keep`; a checkpoint stands above it.",
    "deferred": "Stream of a `plan`: hand on what each split would read, a row for each, to a sink "
    "of ours that is told of this read, and reads it there: rows do not go through Spark. Set by "
    "`keep`. Default `false`.",
    "onError": "Read of a `plan`: what becomes of a row of which a formula has no value (a "
    "division by zero, an overflow, a cast that fails). `fail`: the batch stops, as long as the "
    "row is so in the newest version of its table. `null`: the formula is NULL there, and a "
    "warning counts it. Default `fail`.",
    "endingVersion": "Batch change feed: the last version, inclusive. Default: the newest.",
    "endingTimestamp": "Batch change feed: the last version committed at or before this time.",
    "startingBoundInclusive": "Whether the starting version itself is read. Default `true`.",
    "endingBoundInclusive": "Whether the ending version itself is read. Default `true`.",
    "deduplicationMode": "`none`: every change. `dropCarryovers`: no update that leaves all values "
    "as they were. `netChanges`: at most one change per key over the epochs of one read or "
    "micro-batch. Default `dropCarryovers`.",
    "emitUnchanged": "`true` is short for `deduplicationMode=none`. Default `false`.",
    "computeUpdates": "With `readChangeFeed`: whether a changed row is shown as an update pair; "
    "otherwise as a delete and an insert. Default `true`.",
    "maxRowsPerTrigger": "Stream: soft bound of change rows per micro-batch; an epoch is never "
    "cut.",
    "maxBytesPerTrigger": "Stream: soft bound of bytes read per micro-batch.",
    "maxEpochsPerTrigger": "Stream: bound of epochs per micro-batch.",
    "minRowsPerTrigger": "Stream: no batch is made before so many change rows wait, as the log "
    "counts them, or the oldest has waited for `maxTriggerDelay`. The first batch does not wait, "
    "nor does one that an input joins. Without effect on `availableNow`. Default: none.",
    "maxTriggerDelay": "Stream: how long a change waits at most for `minRowsPerTrigger`. Default "
    "`15 minutes`.",
    "latencyTarget": "Stream: the time from a commit until its micro-batch is planned that counts "
    "as full pressure; longer than the trigger's interval. Default `1 minute`.",
    "splits": "Number of read tasks. Default: by the amount of data, at most the parallelism.",
    "parallelism": "Tasks that the cluster runs at once. `pyspark_upsertflow.register(spark)` "
    "fills in what the session knows then: its `defaultParallelism`, or the cores that its "
    "configuration asks for (Spark Connect tells neither). Default: the processors of the driver.",
    "failOnDataLoss": "Whether changes that are expired stop a read. `false`: it goes on behind "
    "them with a warning in the log, and sums over the changes are wrong from there on. Default "
    "`true`.",
    "consumerId": "Stream: the name of a lease, one per query, that keeps what the query still has "
    "to read from being expired. Without it, only the ages given to `upsertflow expire` do.",
    "consumerTtl": "Stream: how long the lease outlasts a query that stopped. Default `7 days`.",
    "tableTimeout": "How long a read waits for a table that is not there yet: a streaming query "
    "makes it with its first batch. Default: not at all.",
    "raw": "Of a table that keeps a grouped view: read its entries, which are sums, and not the "
    "groups that they make. Default `false`.",
    "metadata": "Batch: read about the table instead of its rows: `epochs`, `files`, `history`, "
    "`consumers` or `pressure` (how far each consumer is behind, against the caps, and whether it "
    "holds up writers), `indexes` (`indexBy`); or the rows that could not be applied "
    "(`onError=quarantine`): `quarantine`. `group`: `path` is a root that a query with a template "
    "writes below; a row for each of its tables, with the version that its last batch made, and "
    "one with an empty `folder` for that batch.",
}

INPUT_OPTIONS: Mapping[str, str] = {
    "inputs": "Comma-separated names of the inputs, instead of `path`. The checkpoint and errors "
    "know an input by its name.",
    "inputsPattern": "Instead of `inputs`: a glob over the folders below `path`, such as `*` or "
    "`region=*/orders`. Each table that it matches is an input, named by its path below `path`; "
    "tables that come later join a running stream, with all that is in them. One that goes is an "
    "error, or with `failOnDataLoss=false` a warning.",
    "consistent": "With `inputsPattern`, or with `inputs` and the root as `path`, where one query "
    "writes all tables (its `path` has braces): all are read at the versions of the newest batch "
    "that is whole in all of them, and a stream is never ahead of it in any. Tables that are in no "
    "batch yet do not take part. Default `false`.",
    "asOfBatch": "Batch: the same at an earlier batch of that query, by its number.",
    "input.<name>.<option>": "An option of one input: `input.east.path`. Those of reads above may "
    "be given for an input; given without the prefix, they are those of every input that does not "
    "say otherwise. `columns`, `readChangeFeed`, `parallelism` and limits per trigger are of the "
    "query alone.",
    "input.<name>.format": "What the input is. `upsertflow`: a table. `parquet`, `arrow`, `json`, "
    "`csv`: a growing set of files, with options of its own (below). `python:name` or "
    "`python:module:Class`: another Python source, found as Spark finds it or by its class, which "
    "is handed all other options of the input. Default `upsertflow`.",
    "input.<name>.priority": "Stream with a limit per trigger: how urgent the input is, from -1000 "
    "to 1000. Who is more urgent is served first and has the larger share; nobody starves. "
    "Default: the property `priority` of the table, else 0.",
    "autoPriority": "Stream with a limit per trigger: whether a table that has no priority is the "
    "more urgent the later it was read, as far as leases tell (`consumerId`), those of this query "
    "apart: 500 at once, half of that after 30 seconds. Default `false`.",
    "merge": "How the rows of the inputs become one sequence. `interleave`: what is ready first, "
    "in several tasks; no order between inputs is promised. `concat`: an input has its turn when "
    "those before it have nothing left. `roundrobin`: one row of each input in turn. Exact orders "
    "are those of one task, and need all rows of a batch to be counted. Default `interleave`.",
    "interleaveSeed": "With `merge=interleave`: makes the order exact, and drawn from this number "
    "(0 to 18446744073709551615).",
    "mergeSchema": "Whether the inputs may differ in their columns: one that an input lacks is "
    "null, and the widest type holds. By the rules by which a table evolves. Default `false`.",
    "allowInputRemoval": "Stream: whether inputs that the checkpoint knows may be left out of "
    "`inputs`. What they still had is never read, and the checkpoint forgets them. Default "
    "`false`.",
    "mergeColumns": "Columns about the merge, behind all others: `_input`, the name of the input "
    "that a row is from; with an exact order `_merge_seq`, the number of a row in it, from 0 on "
    "over the whole life of a stream. Default: none.",
    "discoveryInterval": "Stream of more than 300 tables: how often one that does not change is "
    "looked at, at least; those that change are looked at more often. Default `30 seconds` in a "
    "bucket, `500 ms` on a file system. It is longer where requests or time do not suffice.",
    "discoveryRequests": "Stream of more than 300 tables: how many requests a second the looks for "
    "what came may take, on average; `0`: any number. Default `200` in a bucket, `0` on a file "
    "system.",
    "offsetsPath": "Stream of more than 300 inputs: the folder where the positions of the inputs "
    "are kept, which are too many for the checkpoint; keep it as long as that. Default: `_offsets` "
    "below `path` with `inputsPattern`; else all positions stand in the checkpoint.",
}
"""Of reads of several inputs; all but those per input are of the query."""
