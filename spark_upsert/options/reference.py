"""The options of reads and writes: their names and what each one means."""

from __future__ import annotations

from collections.abc import Mapping

STORAGE_PREFIX = "storage."

COLUMN = "<column>"
"""Stands for a column in the name of an option that there is one of per column."""

WRITE_OPTIONS: Mapping[str, str] = {
    "path": "Where the table lies: a local path or an object store's URL. Required.",
    "keys": "Comma-separated columns that identify a row. Required for the first write.",
    "hashPrefix": "How many of the `keys`, from the first one, keep rows with the same values "
    "together, so that all rows that begin with them are read without the rest of the table. Fewer "
    "than all keys. Fixed by the first write. Default `0`.",
    "sequenceBy": "Comma-separated columns that order the commands of a key: the greatest wins. "
    "With an envelope, dots lead into structs (`source.lsn`, `value.updated_at`). Default: none; "
    "with `envelope=kafka`, `partition,offset`; with `envelope=changelog`, `_commit_version`.",
    "sequenceBy.<column>": "With `mergeEngine=partial-update`: the column that orders the values "
    "of this one, of the type of the `sequenceBy` column.",
    "sequenceScope": "`table`: order keys compare across epochs, a late older row is stale. "
    "`epoch`: the later epoch wins. Default `table`; with the default order of `envelope=kafka` "
    "or `changelog`, `epoch`.",
    "envelope": "What the rows are. `upsert`: plain columns. `debezium`: change events with "
    "`before`, `after` and `op`. `kafka`: records with bytes in `key` and `value`. `changelog`: "
    "rows of a change feed with `_change_type`. Default `upsert`.",
    "keyFormat": "With `envelope=kafka` or `debezium`: how keys are written: `json`, `avro`, `raw` "
    "(the bytes are the value), or `json-confluent` and `avro-confluent` (behind Confluent's "
    "header of five bytes).",
    "keySchema": "What keys hold. For `json`: columns as in `id BIGINT`, a "
    "type alone for a plain value, or the JSON of a StructType. For `avro`: the writer's schema. "
    "For `raw`: `BINARY` (the default) or `STRING`, with a name before it or not. `inline`: what "
    'the messages say, as Connect writes them (`{"schema": ..., "payload": ...}`). '
    "`registry`: what the schema registry says; the default of the Confluent formats with "
    "`schemaRegistry.url`. With `envelope=debezium`, the default is as for the values.",
    "keySchemaId": "With a Confluent format: the only schema id that keys may have. Default: any.",
    "valueFormat": "The same as `keyFormat`, for values. With `envelope=debezium` not `raw`, and "
    "the default of `keyFormat`; without it, the rows are events that are structs already.",
    "valueSchema": "The same as `keySchema`, for values. With `envelope=debezium`: for `json`, the "
    "columns of a row, as in `id BIGINT, name STRING`; for `avro`, the writer's schema of the "
    "whole event.",
    "valueSchemaId": "The same as `keySchemaId`, for values.",
    "valueSubject": "With a schema registry and a path without columns of the rows, where a write "
    "is planned before a row is read: the subject whose newest schema says the columns, usually "
    "`<topic>-value`.",
    "keySubject": "The same for keys, usually `<topic>-key`.",
    "schemaRegistry.url": "The address of a schema registry with Confluent's REST interface, or "
    "several of one, comma-separated.",
    "schemaRegistry.user": "Who asks it, by basic authentication.",
    "schemaRegistry.password": "The password of that user. Never shown.",
    "schemaRegistry.token": "Instead: a bearer token. Never shown.",
    "schemaRegistry.headers": "Further headers of each request: `Name: value`, one a line. Never "
    "shown.",
    "schemaRegistry.caFile": "A file of the certificates that sign that of the registry, on each "
    "machine. Default: those of the system.",
    "timeUnit": "With `envelope=debezium` and JSON without schemas: the unit of numbers in "
    "TIMESTAMP_NTZ columns: `millis`, `micros` or `nanos`. Default: they are ISO 8601 texts.",
    "timeUnit.<column>": "The same for one column, TIMESTAMP or TIMESTAMP_NTZ.",
    "decimalHandling": "With `envelope=debezium` and JSON without schemas: how DECIMAL columns are "
    "written, as Debezium's `decimal.handling.mode`: `precise` (Base64 of the unscaled number), "
    "`string` or `double`. Required if there are any.",
    "onTruncate": "With `envelope=debezium`: what becomes of a truncate (`op` = `t`). `error`: "
    "`onError` decides. `overwrite`: rows that are not younger go, in the version of the batch; "
    "needs a `sequenceBy` that reaches across epochs. `ignore`: a warning in the log; the rows "
    "stay. Default `error`.",
    "onError": "What becomes of a row that cannot be applied. `fail`: the write fails. `inline`: a "
    "value that cannot be decoded is a row with an error. `quarantine`: the row is kept apart "
    "until a later row of its key clears it. Fixed by the first write, but that `fail` may "
    "become `quarantine`. Default `fail`.",
    "errorColumn": "With `onError=inline`: the name of the column of errors. Default `error`.",
    "applyAsDeletes": "Boolean column that marks deletes. Not stored unless `columnList` names it.",
    "nullsAsDeletes": "Whether a row whose values are all null, keys and order apart, is a delete "
    "and not a row of nulls. Default `false`.",
    "columnList": "Comma-separated columns to store. Default: all but `applyAsDeletes`.",
    "exceptColumnList": "Comma-separated columns not to store.",
    "mergeSchema": "Whether the table may gain columns and widen types. Default `false`.",
    "mergeEngine": "What several rows of a key become: `deduplicate` (the greatest order wins), "
    "`first-row`, `partial-update` or `aggregation`. Fixed by the first write. "
    "Default `deduplicate`.",
    "aggregate.<column>": "With `mergeEngine=aggregation`: `sum`, `max`, `min`, `last_non_null` or "
    "`collect`. Default `last_non_null`.",
    "tombstoneRetention": "How long deletes are remembered against late older rows, for example "
    "`7 days`, `1000 epochs` or `forever`. A property of the table. Default `7 days`; with "
    "`mergeEngine=partial-update` and `sequenceBy` it is always `forever`.",
    "maxBacklogEpochs": "How many epochs a table may hold that its slowest live consumer "
    "(`consumerId`) has not read. A property of the table, like the two below. Default `0`: any "
    "number.",
    "maxBacklogBytes": "The same in bytes, as files have them. A batch that is larger alone is "
    "refused for good. Default `0`: any number.",
    "onFull": "What becomes of a write for which there is no room. `wait`: it waits for consumers, "
    "as long as `onFullTimeout`; then it is refused. `reject`: it is refused at once. Default "
    "`wait`.",
    "onFullTimeout": "How long this write waits where a table is full and waits, or where an "
    "overloaded consumer holds it up (`backpressure`). Default `60 seconds`.",
    "backpressure": "Whether consumers (`consumerId`) that cannot keep up hold up the writers of "
    "this table. A property of the table. Default `false`.",
    "disableBackpressure": "Whether this write goes on although consumers cannot keep up. Caps "
    "hold all the same. Default `false`.",
    "indexBy": "Comma-separated columns by whose values rows are to be found: for each, a table of "
    "keys below `_index`, kept up behind each commit. A property of the table. Default: none.",
    "priority": "How urgent the table is to streams over several inputs that limit their batches, "
    "from -1000 to 1000: `input.<name>.priority` of a read overrules it. In a write into many "
    "tables also when it is compacted, beside the others. A property of the table. "
    "Default: none, which counts as 0.",
    "ties": "What becomes of two rows of a key with equal order keys and other values. `last`: the "
    "later one wins (the later row of a task, the later epoch; between tasks of one epoch, where "
    "nothing is later, the greater values). `first`: the earlier one stays. `fail`: the write "
    "fails. They are counted as `tied` and warned of; two that a third row of the same write beats "
    "by a greater order key decide nothing, and are looked for only by chance. Default `last`; "
    "with `mergeEngine=first-row`, `first`.",
    "lateRows": "What becomes of a row whose key the table does not know and that is so old that "
    "its delete may be forgotten (`tombstoneRetention`). `reject`: it is left out, counted and "
    "warned of. `apply`: it is a row, as in a backfill. `fail`: the write fails. A delete that is "
    "so old is left out and counted; with `apply` it is remembered. Default: `fail` "
    "for a batch write, `reject` for a stream and with `onTruncate=overwrite`.",
    "allowUnordered": "Without `sequenceBy`: accept different values of one key from several "
    "tasks of one epoch, whichever wins. Default `false`.",
    "allowMissingBatches": "Streams: go on although the table lacks earlier batches of the query, "
    "for example with a checkpoint that wrote to another table before. Default `false`.",
    "txnAppId": "With `txnVersion`: makes a batch write idempotent under this name.",
    "txnVersion": "A number that grows with each batch write of `txnAppId`.",
    "checkpointLocation": "Spark's own: where a streaming query keeps its progress.",
    "deferred": "Streams: the options of a read of a view, as JSON, whose splits come in the place "
    "of rows and are read by the tasks that write them. Set by `keep`.",
}

ROUTED_OPTIONS: Mapping[str, str] = {
    "path": "The root, and below it a folder for each table with columns of the rows in braces: "
    "`/lake/{topic}`, `s3://b/lake/{source.db}/{source.table}`. Dots lead into structs. Columns "
    "are texts, whole numbers, truth values or dates. A brace that is meant as such is doubled. "
    "Required.",
    "table.<pattern>.<option>": "An option of the tables whose name the pattern matches: "
    "`table.shop.orders.keys`, `table.shop.*.mergeSchema`. A name is the path below the root with "
    "the values as they are. `*` is any text, `?` a character, `[ab]` one of some; case makes no "
    "difference. What follows the pattern is an option of writes above, but for those of the whole "
    "write. Of several patterns the one with more characters that are no wildcards holds; two "
    "that are alike and say different things are an error. What is given without a pattern is of "
    "all tables; an empty text takes it back.",
    "createTables": "Whether a value that is new makes a table. `false`: where nobody has made it "
    "before, it is an error that names the value. Default `true`.",
    "tablesMax": "How many tables there may be below the root. One more is an error that names the "
    "value. Default `2000`.",
    "onTableError": "What becomes of a table that cannot take its rows (schema, rows, damage, "
    "identity). `fail`: the write fails. `park`: its rows are kept below the root until "
    "`upsertflow unpark`, and the other tables go on; an option that fits no table stops the write "
    "all the same. Default `fail`.",
    "takeOver": "Streams: whether the query may take the root from the one that writes there, and "
    "which is refused from then on. Default `false`.",
    "groupRetention": "For how long it stays known at which versions all tables had a batch "
    "(`asOfBatch`, the past of `metadata=group`): older records are removed by the query itself, "
    "each 100 batches, as far as no consumer that follows the group needs them. So is what was "
    "parked, once it is applied or dropped; never what waits. Default `7 days`.",
    "commitThreads": "How many tables are committed side by side. Default `32` in an object "
    "store; on a file system `1`, which is faster there.",
}
"""Of writes into many tables; the other options of writes are those of each table."""

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
