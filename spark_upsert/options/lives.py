"""What becomes of an option that is another one in the next life of a streaming query.

A query that starts again from its checkpoint may be given other options. Each option has one
meaning of that, said here and nowhere else: a test goes over all options, fails for one that is
missing, tries what is refused, and proves of what is free that the rows are the same. A batch that
was planned and not delivered belongs to the next life.

Whatever would make rows come twice or never is refused, and stands in the checkpoint for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Change(Enum):
    """When a change takes effect."""

    FREE = "at once; the same rows"
    NEXT = "next batch"
    BEGINNING = "inputs that have not begun"
    REFUSED = "refused"
    BATCH = "-"
    """It means nothing to a stream."""


@dataclass(frozen=True, slots=True)
class Life:
    """What a change of an option means.

    Parameters
    ----------
    change : Change
    note : str
        What else is to be said of it.
    exact : Change, optional
        What it means under an exact order (`merge`, `interleaveSeed`), where that differs.
    """

    change: Change
    note: str = ""
    exact: Change | None = None

    def __str__(self) -> str:
        told = [self.change.value]
        if self.exact is not None:
            told.append(f"in an exact order {self.exact.value}")
        if self.note:
            told.append(self.note)
        return "; ".join(told)


_FREE, _NEXT, _REFUSED = Life(Change.FREE), Life(Change.NEXT), Life(Change.REFUSED)
_BEGINNING, _BATCH = Life(Change.BEGINNING), Life(Change.BATCH)
_COUNTED = Life(Change.NEXT, exact=Change.REFUSED)
"""It decides how many rows an epoch has, and an exact order counts them."""

_FIXED = Life(Change.REFUSED, "fixed by the first write; left out, it stays")
_PROPERTY = Life(Change.NEXT, "left out, the table's stays")

READ_LIVES: Mapping[str, Life] = {
    "path": Life(Change.REFUSED, "the same table may be reached by another path"),
    "plan": Life(Change.REFUSED, "another view is another stream"),
    "columns": _NEXT,
    "versionAsOf": _BATCH,
    "timestampAsOf": _BATCH,
    "readChangeFeed": _COUNTED,
    "ignoreDeletes": _COUNTED,
    "startingVersion": Life(Change.BEGINNING, "while a first batch waits to be delivered, refused"),
    "startingTimestamp": _BEGINNING,
    "startingPosition": _BEGINNING,
    "deferred": Life(Change.NEXT, "set by `keep`"),
    "onError": Life(Change.FREE, "it decides whether a batch stops, and no row"),
    "endingVersion": _BATCH,
    "endingTimestamp": _BATCH,
    "startingBoundInclusive": _BEGINNING,
    "endingBoundInclusive": _BATCH,
    "deduplicationMode": _COUNTED,
    "emitUnchanged": _COUNTED,
    "computeUpdates": _NEXT,
    "maxRowsPerTrigger": _FREE,
    "maxBytesPerTrigger": _FREE,
    "maxEpochsPerTrigger": _FREE,
    "minRowsPerTrigger": _FREE,
    "maxTriggerDelay": _FREE,
    "latencyTarget": _FREE,
    "splits": _FREE,
    "parallelism": _FREE,
    "failOnDataLoss": Life(Change.FREE, "where nothing is lost"),
    "consumerId": Life(Change.FREE, "the lease of the old name stays until `consumerTtl`"),
    "consumerTtl": _FREE,
    "tableTimeout": _FREE,
    "raw": Life(
        Change.NEXT,
        "sums over rows of both kinds mean nothing: let the sink begin anew",
        exact=Change.REFUSED,
    ),
    "metadata": _BATCH,
}

INPUT_LIVES: Mapping[str, Life] = {
    "inputs": Life(
        Change.REFUSED,
        "where one is missing (`allowInputRemoval`); one that is new begins; their order means "
        "nothing, but in an exact order another one is refused",
    ),
    "inputsPattern": Life(
        Change.REFUSED, "where it finds a table no more (`failOnDataLoss`); one that is new begins"
    ),
    "consistent": Life(Change.NEXT, "which may wait until all tables have it"),
    "asOfBatch": _BATCH,
    "input.<name>.<option>": Life(Change.NEXT, "as that option, for this input alone"),
    "input.<name>.format": Life(
        Change.REFUSED, "from a table to files and back; between formats of files, of files to come"
    ),
    "input.<name>.priority": _FREE,
    "autoPriority": _FREE,
    "merge": _REFUSED,
    "interleaveSeed": _REFUSED,
    "mergeSchema": _NEXT,
    "allowInputRemoval": _FREE,
    "mergeColumns": Life(Change.NEXT, "`_merge_seq` is refused where rows were not counted so far"),
    "discoveryInterval": _FREE,
    "discoveryRequests": _FREE,
    "offsetsPath": Life(Change.FREE, "where positions lie there, refused: they are not found"),
}

_TEXTS = Life(Change.NEXT, "of files to come", exact=Change.REFUSED)
"""It decides how many rows a file of text has."""

FILE_LIVES: Mapping[str, Life] = {
    "path": Life(Change.NEXT, "another folder has other files; a copy of this one goes on"),
    "schema": _NEXT,
    "mergeSchema": _NEXT,
    "pathGlobFilter": Life(
        Change.NEXT, "files that match only now are refused if they are older than those delivered"
    ),
    "recursiveFileLookup": Life(Change.NEXT, "as `pathGlobFilter`"),
    "failOnDataLoss": Life(Change.FREE, "where nothing is lost"),
    "header": _TEXTS,
    "sep": _TEXTS,
    "quote": _TEXTS,
    "escape": _TEXTS,
    "nullValue": _NEXT,
}

WRITE_LIVES: Mapping[str, Life] = {
    "path": Life(Change.REFUSED, "batches are missing there (`allowMissingBatches`)"),
    "keys": _FIXED,
    "hashPrefix": _FIXED,
    "sequenceBy": _FIXED,
    "sequenceBy.<column>": _FIXED,
    "sequenceScope": _FIXED,
    "envelope": Life(Change.NEXT, "for the same keys, order and columns"),
    "keyFormat": _NEXT,
    "keySchema": _NEXT,
    "keySchemaId": _NEXT,
    "valueFormat": _NEXT,
    "valueSchema": _NEXT,
    "valueSchemaId": _NEXT,
    "valueSubject": _NEXT,
    "keySubject": _NEXT,
    "schemaRegistry.url": _NEXT,
    "schemaRegistry.user": _NEXT,
    "schemaRegistry.password": _NEXT,
    "schemaRegistry.token": _NEXT,
    "schemaRegistry.headers": _NEXT,
    "schemaRegistry.caFile": _NEXT,
    "timeUnit": _NEXT,
    "timeUnit.<column>": _NEXT,
    "decimalHandling": _NEXT,
    "onTruncate": _NEXT,
    "onError": Life(Change.REFUSED, "but that `fail` may become `quarantine`"),
    "errorColumn": _FIXED,
    "applyAsDeletes": _NEXT,
    "nullsAsDeletes": _NEXT,
    "columnList": Life(
        Change.REFUSED, "where a column of the table is left out; one more comes by `mergeSchema`"
    ),
    "exceptColumnList": Life(Change.REFUSED, "as `columnList`"),
    "mergeSchema": _NEXT,
    "mergeEngine": _FIXED,
    "aggregate.<column>": _FIXED,
    "tombstoneRetention": _PROPERTY,
    "maxBacklogEpochs": _PROPERTY,
    "maxBacklogBytes": _PROPERTY,
    "onFull": _PROPERTY,
    "onFullTimeout": _FREE,
    "backpressure": _PROPERTY,
    "disableBackpressure": _FREE,
    "indexBy": _PROPERTY,
    "priority": _PROPERTY,
    "ties": Life(Change.REFUSED, "but that `last` and `fail` may become each other"),
    "lateRows": _NEXT,
    "allowUnordered": _NEXT,
    "allowMissingBatches": _NEXT,
    "txnAppId": _BATCH,
    "txnVersion": _BATCH,
    "checkpointLocation": Life(
        Change.NEXT, "another one is another query, whose first batch is the first of all"
    ),
    "deferred": Life(Change.NEXT, "set by `keep`"),
}

ROUTED_LIVES: Mapping[str, Life] = {
    "path": Life(Change.REFUSED, "the root and the braces; another root is another query's"),
    "table.<pattern>.<option>": Life(Change.NEXT, "as that option, for these tables alone"),
    "createTables": _NEXT,
    "tablesMax": _NEXT,
    "onTableError": _NEXT,
    "takeOver": _NEXT,
    "groupRetention": _NEXT,
    "commitThreads": _FREE,
}
