"""Python stream sources as others write them: rows are the lines of a file, ``number,text``."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

SCHEMA = "n INT, text STRING"

Rows = Iterator[tuple[int, str]]


class Range(InputPartition):
    """Some lines."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end


class _Lines:
    def __init__(self, options: dict[str, str]) -> None:
        self.path = Path(options["path"])

    def count(self) -> int:
        return len(self.path.read_text().splitlines())

    def rows(self, first: int, end: int) -> Rows:
        lines = self.path.read_text().splitlines()[first:end]
        return iter([(int(n), text) for n, text in (line.split(",") for line in lines)])


class Reader(DataSourceReader):
    """All lines, in two partitions."""

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines

    def partitions(self) -> list[InputPartition]:
        half = self.lines.count() // 2
        return [Range(0, half), Range(half, self.lines.count())]

    def read(self, partition: Any) -> Rows:
        return self.lines.rows(partition.first, partition.end)


class StreamReader(DataSourceStreamReader):
    """A reader of today's kind: a batch has two partitions, each of one half."""

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines
        self.committed: list[Any] = []

    def initialOffset(self) -> dict[str, Any]:
        return {"line": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        assert isinstance(limit, ReadAllAvailable)
        return {"line": self.lines.count()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        half = (start["line"] + end["line"]) // 2
        return [Range(start["line"], half), Range(half, end["line"])]

    def read(self, partition: Any) -> Rows:
        return self.lines.rows(partition.first, partition.end)

    def commit(self, end: dict[str, Any]) -> None:
        self.committed.append(end)


class BoundedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """It gives one line a batch, and can end."""

    end: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self.end = self.lines.count()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = self.lines.count() if self.end is None else self.end
        return {"line": min(start["line"] + 1, end)}


class SimpleReader(SimpleDataSourceStreamReader):
    """A simple reader, which reads where batches are planned."""

    reads = 0

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines

    def initialOffset(self) -> dict[str, Any]:
        return {"line": 0}

    def read(self, start: dict[str, Any]) -> tuple[Rows, dict[str, Any]]:
        type(self).reads += 1
        end = self.lines.count()
        return self.lines.rows(start["line"], end), {"line": end}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Rows:
        return self.lines.rows(start["line"], end["line"])


class ForgetfulReader(StreamReader):
    """It counts calls, from 0 in each process, and is asked without arguments, as of old."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__(lines)
        self.calls = itertools.count(1)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"line": min(next(self.calls), self.lines.count())}


class BatchDelay(InputPartition):
    """Rows that were read already."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self.rows = rows


class HoldingReader(StreamReader):
    """It reads while it is asked, and holds that until a batch is done, whichever."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__(lines)
        self.held: list[tuple[int, str]] = []

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        self.held = list(self.lines.rows(start["line"], end["line"]))
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [BatchDelay(self.held)]

    def read(self, partition: Any) -> Rows:
        return iter(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self.held = []


class BrokenReader(StreamReader):
    """What it returns is of other types from the second batch on."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        good = pa.schema({"n": pa.int32(), "text": pa.string()})
        yield pa.RecordBatch.from_pydict({"n": [1], "text": ["a"]}, schema=good)
        yield pa.RecordBatch.from_pydict({"n": [2], "text": ["b"]})


class Lines(DataSource):
    """Lines of the file of the option ``path``."""

    reader_class: type[Any] = StreamReader

    @classmethod
    def name(cls) -> str:
        return "lines"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(_Lines(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader: DataSourceStreamReader = self.reader_class(_Lines(dict(self.options)))
        return reader


class BoundedLines(Lines):
    reader_class = BoundedStreamReader


class ForgetfulLines(Lines):
    reader_class = ForgetfulReader


class HeldLines(Lines):
    reader_class = HoldingReader


class BrokenLines(Lines):
    reader_class = BrokenReader


class SimpleLines(DataSource):
    """The same, by a simple reader."""

    @classmethod
    def name(cls) -> str:
        return "simple_lines"

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleReader(_Lines(dict(self.options)))


class Texts(Lines):
    """The same lines as a table of two columns, of which one is as in others: ``v``."""

    def schema(self) -> str:
        return "n INT, v STRING"


class SimpleTexts(SimpleLines):
    """The same, by a simple reader."""

    def schema(self) -> str:
        return "n INT, v STRING"


# -- sources that note what becomes of their readers -----------------------------------------


def note(path: Path, text: object) -> None:
    """Append a line to a file, whichever process reads it."""
    with path.open("a") as file:
        file.write(f"{text}\n")


class _Watched:
    """It notes the process in which a reading begins, and in which it ends.

    Option ``conduct``: how it reads. ``ends``: one row; ``flows``: rows without end; ``waits``: for
    whoever writes into the named pipe ``gate``; ``fails``: likewise, and raises then; ``tells``: a
    row of its process and of the threads that are in it.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self.folder = Path(options["folder"])
        self.conduct = options["conduct"]
        self.gate = Path(options.get("gate", ""))

    def read(self, partition: Any) -> Rows:
        note(self.folder / "begun", os.getpid())
        try:
            yield from self.rows()
        finally:
            note(self.folder / "ended", os.getpid())

    def rows(self) -> Rows:
        match self.conduct:
            case "ends":
                yield 1, "ends"
            case "flows":
                yield from itertools.repeat((1, "flows"), 5_000)
                note(self.folder / "flowing", os.getpid())
                yield from itertools.repeat((1, "flows"))
            case "tells":
                yield os.getpid(), ",".join(each.name for each in threading.enumerate())
            case _:
                self.gate.read_bytes()
                if self.conduct == "fails":
                    raise OSError("the line is dead")


class WatchedReader(_Watched, DataSourceReader):
    """In a batch, which has one partition."""


class WatchedStreamReader(_Watched, DataSourceStreamReader):
    """In a stream of one batch."""

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [Range(start["at"], end["at"])]


class Watched(Lines):
    """Rows of a source that is watched."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return WatchedReader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return WatchedStreamReader(dict(self.options))
