"""Streaming queries of the tests: where their rows come from, and how they run to an end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.tables import Row

END_SECONDS = 240
"""A query that has not ended by then hangs. A bound for the failing case, not an expectation."""


@dataclass
class Feed:
    """A folder of Parquet files; a stream takes one file per micro-batch, in the order of `add`."""

    folder: Path
    schema: pa.Schema
    count: int = 0

    def add(self, *batches: list[Row]) -> None:
        """Append one file per batch, to be read after all that is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for rows in batches:
            hidden = self.folder / f"_{self.count}"
            pq.write_table(pa.Table.from_pylist(rows, schema=self.schema), hidden)
            # Spark sorts files by their time of change, in milliseconds.
            seconds = 1_700_000_000 + self.count
            os.utime(hidden, (seconds, seconds))
            hidden.rename(self.folder / f"{self.count:06d}.parquet")
            self.count += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """Read the folder as a stream."""
        reader = spark.readStream.schema(from_arrow_schema(self.schema))
        return reader.option("maxFilesPerTrigger", 1).parquet(str(self.folder))


def upserts(
    rows: DataFrame,
    path: Path | str,
    checkpoint: Path,
    *,
    source: str = "upsertflow",
    **options: Any,
) -> DataStreamWriter:
    """Return a query that writes a stream into a table."""
    writer = rows.writeStream.format(source).option("path", str(path))
    return writer.option("checkpointLocation", str(checkpoint)).options(**options)


def drain(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query until it has read all that is there; raises what it failed with."""
    return end(writer.trigger(availableNow=True).start())


def end(query: StreamingQuery, *, seconds: int = END_SECONDS) -> StreamingQuery:
    """Wait until a query ends by itself; raises what it failed with."""
    try:
        assert query.awaitTermination(seconds), f"{query.name} still runs: {query.lastProgress}"
    finally:
        query.stop()
    return query


def wait_until(condition: Any, what: str, *, every: float = 0.05) -> None:
    """Wait for something that another process does; look at it again after so many seconds."""
    deadline = time.monotonic() + END_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(every)


@dataclass
class Batches:
    """What a stream delivered, one entry per run of a micro-batch; replays are entries, too."""

    runs: list[tuple[int, list[Row]]] = field(default_factory=list)

    def collect(self, changes: DataFrame, checkpoint: Path) -> DataStreamWriter:
        """Return a query that keeps here what it reads."""

        def keep(batch: DataFrame, number: int) -> None:
            self.runs.append((number, batch.toArrow().to_pylist()))

        return changes.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))

    @property
    def numbers(self) -> list[int]:
        """Numbers of the micro-batches, in the order in which they ran."""
        return [number for number, _ in self.runs]

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for _, rows in self.runs for row in rows]

    @property
    def versions(self) -> list[list[int]]:
        """The versions whose changes each micro-batch delivered, ascending."""
        return [sorted({row["_commit_version"] for row in rows}) for _, rows in self.runs]


def forget_last_commit(checkpoint: Path) -> int:
    """Make Spark believe that it fell just before it noted its last batch; returns its number."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(last)).unlink()
    # The checksum of a file that is gone must not judge the one to come.
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last
