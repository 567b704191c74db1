"""A sink that stops pulling stops the readers of a merge, through a real query: counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema

from integration.queries import END_SECONDS, end, wait_until
from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from spark_upsert.merge import CHANNEL_EVENTS
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.protocol import Backlog, Input, ReadPiece
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.stream import Stream

pytestmark = pytest.mark.spark

NAMES = ("a", "b", "c", "d")
BATCH = 256
BATCHES = 100
ROW_BYTES = 1_000
COLUMNS = pa.schema({"row": pa.string()})
SPARK_ROWS = 1_000
"""Of a batch of Spark's: one is being filled while the sink holds another."""

SPARK_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"

UNDER_WAY_BYTES_MAX = 6 << 20
"""In sockets and in that batch. On Unix sockets (`conf/`) 0.5 to 3 MB, on TCP sockets 8 to 17."""


class Counting(Input):
    """An input whose reader notes each batch that is taken of it, in a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._notes = folder / f"taken-{name}"

    def head(self) -> Position:
        return Position.of({"at": 1})

    def identity(self) -> str:
        return self._name

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        end_ = self.head()
        start = position or Position.of({"at": 0})
        pieces = [] if start == end_ else [ReadPiece(steps=1, rows=1, after=lambda _: end_)]
        return Backlog(start=start, pieces=pieces, reach=lambda: end_, end=lambda: end_)

    def splits(self, start: Position | None, end: Position) -> list[int]:
        return [0]

    def read(self, split: int) -> Iterator[pa.RecordBatch]:
        batch = pa.record_batch([pa.array(["x" * ROW_BYTES] * BATCH)], schema=COLUMNS)
        for _ in range(BATCHES):
            note(self._notes)
            yield batch

    def split_bytes(self, split: int) -> int:
        return 1

    def commit(self, position: Position) -> None:
        pass


def note(path: Path, count: int = 1) -> None:
    """Append so many bytes to a file, whichever process looks at it."""
    with path.open("ab", buffering=0) as file:
        file.write(b"." * count)


def noted(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class CountingReader(LimitedStreamReader):
    """Our reader, over inputs that count."""

    @cached_property
    def _stream(self) -> Stream:
        folder = Path(self._options["folder"])
        inputs = {name: Counting(folder, name) for name in NAMES}
        return Stream(NamedInputs(inputs), self._plan.query)

    @cached_property
    def _plan(self) -> ReadPlan:
        return ReadPlan.parse({"inputs": ",".join(NAMES), "parallelism": "1"})

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            note(Path(self._options["folder"]) / "yielded", batch.num_rows)
            yield batch


class CountingSource(DataSource):
    """Registered by hand; what it makes is imported where it is used."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> Any:
        return from_arrow_schema(COLUMNS)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CountingReader(self.options, schema)


def stopping_sink(folder: str) -> Any:
    """Return what takes a batch, says so, and waits until it is let go."""

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index, batch in enumerate(batches):
            if index == 0:
                note(Path(folder) / "sunk", batch.num_rows)
                note(Path(folder) / "stopped")
                with Path(folder, "gate").open("rb") as gate:  # Blocks until somebody writes.
                    gate.read()
            yield batch

    return take


def is_still(count: Any, *, seconds: float = 1.5) -> bool:
    """Return whether a count stays as it is for a while."""
    before = count()
    time.sleep(seconds)
    return bool(count() == before)


def test_a_sink_that_stops_stops_the_readers(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(CountingSource)
    before = spark.conf.get(SPARK_ROWS_KEY)
    spark.conf.set(SPARK_ROWS_KEY, str(SPARK_ROWS))
    os.mkfifo(tmp_path / "gate")
    rows: DataFrame = (
        spark.readStream.format("counting")
        .option("folder", str(tmp_path))
        .load()
        .mapInArrow(stopping_sink(str(tmp_path)), "row string")
    )
    done: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        done.append(batch.count())

    writer = rows.writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    running = query.start()

    def taken() -> Mapping[str, int]:
        return {name: noted(tmp_path / f"taken-{name}") for name in NAMES}

    try:
        wait_until(lambda: noted(tmp_path / "stopped"), "the sink has a batch")
        # What a reader holds back: a full channel, and the batch that does not fit.
        held = len(NAMES) * (CHANNEL_EVENTS // BATCH + 1) * BATCH

        def counts() -> tuple[int, int]:
            return sum(taken().values()) * BATCH, noted(tmp_path / "yielded")

        def stand_still() -> bool:
            # On a busy machine they may seem to, before all of them hold back what they can.
            produced, yielded = counts()
            return produced - yielded >= held and is_still(counts)

        wait_until(stand_still, "the readers stand still")
        produced, yielded = counts()
        assert produced - yielded == held
        ahead = yielded - noted(tmp_path / "sunk")
        assert ahead * ROW_BYTES < UNDER_WAY_BYTES_MAX
        assert produced < len(NAMES) * BATCHES * BATCH // 2
    finally:
        opener = threading.Thread(target=open_gate, args=(tmp_path / "gate",), daemon=True)
        opener.start()
        opener.join(END_SECONDS)
        spark.conf.set(SPARK_ROWS_KEY, str(before))
    end(running)
    assert done == [len(NAMES) * BATCHES * BATCH]


def open_gate(gate: Path) -> None:
    with gate.open("wb"):
        pass
