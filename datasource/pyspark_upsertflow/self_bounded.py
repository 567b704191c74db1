"""The stream reader of PySpark 4.1, which asks for the end of a batch and says nothing else.

So the reader remembers where the last batch ended, and its options alone bound the next one. The
process that plans lives as long as the query. Behind a restart Spark asks for the partitions of the
last batch in the checkpoint, from its end to its end, before it asks for a new one
(`PythonMicroBatchStream.setLatestSeenOffset`): PySpark's own simple readers go by the same.

Of the trigger nothing is said. With ``availableNow`` and ``once`` this release makes one batch of
what the reader answers: without limits all there is, with limits as much as they allow.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_upsertflow.stream import ChangeStreamReader
from spark_upsert.options.hints import called_by_spark


@called_by_spark
class SelfBoundedStreamReader(ChangeStreamReader):
    """A reader that remembers where it stands, and goes as far as its options allow."""

    _stands: dict[str, Any] | None = None
    """Where the last batch that was planned ends; None: nothing was planned."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        start = self.initialOffset() if self._stands is None else self._stands
        self._stands = dict(self._stream.latest(start))
        return self._stands

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._stands = end
        return super().partitions(start, end)
