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


FREE, NEXT, REFUSED = Life(Change.FREE), Life(Change.NEXT), Life(Change.REFUSED)
BEGINNING, BATCH = Life(Change.BEGINNING), Life(Change.BATCH)
COUNTED = Life(Change.NEXT, exact=Change.REFUSED)
"""It decides how many rows an epoch has, and an exact order counts them."""

FIXED = Life(Change.REFUSED, "fixed by the first write; left out, it stays")
PROPERTY = Life(Change.NEXT, "left out, the table's stays")

READ_LIVES: Mapping[str, Life] = {
    "path": Life(Change.REFUSED, "the same table may be reached by another path"),
    "plan": Life(Change.REFUSED, "another view is another stream"),
    "columns": NEXT,
    "versionAsOf": BATCH,
    "timestampAsOf": BATCH,
    "readChangeFeed": COUNTED,
    "ignoreDeletes": COUNTED,
    "startingVersion": Life(Change.BEGINNING, "while a first batch waits to be delivered, refused"),
    "startingTimestamp": BEGINNING,
    "startingPosition": BEGINNING,
    "deferred": Life(Change.NEXT, "set by `keep`"),
    "onError": Life(Change.FREE, "it decides whether a batch stops, and no row"),
    "endingVersion": BATCH,
    "endingTimestamp": BATCH,
    "startingBoundInclusive": BEGINNING,
    "endingBoundInclusive": BATCH,
    "deduplicationMode": COUNTED,
    "emitUnchanged": COUNTED,
    "computeUpdates": NEXT,
    "maxRowsPerTrigger": FREE,
    "maxBytesPerTrigger": FREE,
    "maxEpochsPerTrigger": FREE,
    "minRowsPerTrigger": FREE,
    "maxTriggerDelay": FREE,
    "latencyTarget": FREE,
    "splits": FREE,
    "parallelism": FREE,
    "failOnDataLoss": Life(Change.FREE, "where nothing is lost"),
    "consumerId": Life(Change.FREE, "the lease of the old name stays until `consumerTtl`"),
    "consumerTtl": FREE,
    "tableTimeout": FREE,
    "raw": Life(
        Change.NEXT,
        "sums over rows of both kinds mean nothing: let the sink begin anew",
        exact=Change.REFUSED,
    ),
    "metadata": BATCH,
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
    "asOfBatch": BATCH,
    "input.<name>.<option>": Life(Change.NEXT, "as that option, for this input alone"),
    "input.<name>.format": Life(
        Change.REFUSED, "from a table to files and back; between formats of files, of files to come"
    ),
    "input.<name>.priority": FREE,
    "autoPriority": FREE,
    "merge": REFUSED,
    "interleaveSeed": REFUSED,
    "mergeSchema": NEXT,
    "allowInputRemoval": FREE,
    "mergeColumns": Life(Change.NEXT, "`_merge_seq` is refused where rows were not counted so far"),
    "discoveryInterval": FREE,
    "discoveryRequests": FREE,
    "offsetsPath": Life(Change.FREE, "where positions lie there, refused: they are not found"),
}
