"""A source and a sink that do nothing but move Arrow batches: Spark's own Python transport.

What runs between them is the floor of any connector written in Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

SCHEMA = "k bigint, seq bigint, v bigint, s string"
_ODD = 0x9E3779B1
_BATCH_ROWS = 65_536


class Rows(DataSource):
    """``batches`` micro-batches of ``rows`` commands over ``space`` keys, in ``splits`` splits.

    ``shift`` is the first ``seq``. A batch read yields one micro-batch.
    """

    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _RowsReader({name: int(value) for name, value in self.options.items()})

    def reader(self, schema: StructType) -> DataSourceReader:
        return _OneBatch(_RowsReader({name: int(value) for name, value in self.options.items()}))


class Fed(Rows):
    """A micro-batch of `Rows` for each folder ``batch-*`` that there is in a folder, ``feed``."""

    @classmethod
    def name(cls) -> str:
        return "bench_fed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = {name: int(value) for name, value in self.options.items() if name != "feed"}
        return _FedReader(options, Path(self.options["feed"]))


class _Range(InputPartition):
    def __init__(self, lower: int, upper: int) -> None:
        self.lower = lower
        self.upper = upper


class _RowsReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, int]) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, self._options["batches"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        rows, splits = self._options["rows"], self._options["splits"]
        first = self._options["shift"] + start["batch"] * rows
        last = self._options["shift"] + end["batch"] * rows
        step = max(1, -(-(last - first) // splits))
        return [_Range(low, min(low + step, last)) for low in range(first, last, step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Range):
            return
        text = pa.array(np.arange(_BATCH_ROWS)).cast(pa.string())
        for low in range(partition.lower, partition.upper, _BATCH_ROWS):
            seq = np.arange(low, min(low + _BATCH_ROWS, partition.upper), dtype=np.int64)
            keys = seq * _ODD % self._options["space"]
            yield pa.record_batch(
                [keys, seq, seq, text.slice(0, len(seq))], names=["k", "seq", "v", "s"]
            )

    def commit(self, end: dict[str, int]) -> None: ...

    def stop(self) -> None: ...


class _FedReader(_RowsReader):
    def __init__(self, options: dict[str, int], feed: Path) -> None:
        super().__init__(options)
        self._feed = feed

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": sum(1 for _ in self._feed.glob("batch-*"))}


class _OneBatch(DataSourceReader):
    def __init__(self, rows: _RowsReader) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return self._rows.partitions({"batch": 0}, {"batch": 1})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class Nowhere(DataSource):
    """Takes Arrow batches and drops them; ``rows_per_s`` says how fast at most, in each task."""

    @classmethod
    def name(cls) -> str:
        return "bench_nowhere"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _NowhereWriter(float(self.options.get("rows_per_s", "inf")))


class _NowhereWriter(DataSourceStreamArrowWriter):
    def __init__(self, rows_per_s: float) -> None:
        self._rows_per_s = rows_per_s

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            time.sleep(batch.num_rows / self._rows_per_s)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None: ...

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None: ...
