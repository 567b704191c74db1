"""Folders of files that others write: in memory, with faults, and streams over them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.options.files import FileFormat, FileOptions
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.query import QueryOptions
from spark_upsert.store.folder import FileStatus, Folder, is_hidden
from spark_upsert.streams.inputs.files.input import FileInput, file_columns
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.stores import Steps
from tests.support.streams import Query

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


@dataclass
class MemoryFolder:
    """A folder that is shared by all who know it."""

    content: dict[str, bytes] = field(default_factory=dict)
    modified_us: dict[str, int] = field(default_factory=dict)
    url: str = "/landing"

    def put(self, name: str, data: bytes, modified_us: int) -> None:
        self.content[name], self.modified_us[name] = data, modified_us

    def remove(self, name: str) -> None:
        del self.content[name], self.modified_us[name]

    def files(self, *, is_recursive: bool) -> Iterator[FileStatus]:
        for name in list(self.content):
            parts = name.split("/")
            if not any(map(is_hidden, parts)) and (is_recursive or len(parts) == 1):
                yield self.status(name)

    def status(self, name: str) -> FileStatus:
        if name not in self.content:
            raise FileNotFoundError(name)
        return FileStatus(name, len(self.content[name]), self.modified_us[name])

    def open(self, name: str) -> pa.NativeFile:
        self.status(name)
        return pa.PythonFile(io.BytesIO(self.content[name]), mode="r")


class FaultyFolder:
    """A folder whose steps may fail, reads of bytes among them."""

    def __init__(self, folder: Folder, steps: Steps) -> None:
        self._folder = folder
        self._steps = steps

    @property
    def url(self) -> str:
        return self._folder.url

    def files(self, *, is_recursive: bool) -> Iterator[FileStatus]:
        with self._steps.step("list"):
            found = list(self._folder.files(is_recursive=is_recursive))
        for file in found:
            with self._steps.step(f"list {file.name}"):
                yield file

    def status(self, name: str) -> FileStatus:
        with self._steps.step(f"look at {name}"):
            return self._folder.status(name)

    def open(self, name: str) -> pa.NativeFile:
        with self._steps.step(f"open {name}"):
            opened = self._folder.open(name)
        return pa.PythonFile(_FaultyFile(opened, name, self._steps), mode="r")


class _FaultyFile:
    def __init__(self, file: pa.NativeFile, name: str, steps: Steps) -> None:
        self._file = file
        self._name = name
        self._steps = steps

    def read(self, *size: int) -> bytes:
        with self._steps.step(f"read {self._name}"):
            data: bytes = self._file.read(*size)
            return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def file_options(format_: str = "csv", **given: Any) -> FileOptions:
    """Return the options of a set of files."""
    texts = {name: str(value) for name, value in given.items()}
    rows = texts.pop("maxRowsPerTrigger", None)
    return FileOptions.parse(
        FileFormat(format_), {"path": "/landing", **texts}, counts_rows=rows is not None
    )


def file_input(folder: Folder, format_: str = "csv", **given: Any) -> FileInput:
    """Return the input that options mean."""
    options = file_options(format_, **given)
    columns = file_columns(options, folder)
    return FileInput(options, columns, folder=folder)


def file_query(
    folder: Folder, format_: str = "csv", *, limits: QueryOptions | None = None, **given: Any
) -> Query:
    """Return a query each of whose processes knows nothing of the folder."""
    return Query(
        lambda: Stream(
            NamedInputs({UNNAMED: file_input(folder, format_, **given)}),
            limits or QueryOptions(),
            clock=Now(),
        )
    )


def csv(*values: object) -> bytes:
    """Return a file with one column of texts, ``v``."""
    return "".join(f"{line}\n" for line in ("v", *values)).encode()


def parquet(rows: pa.Table, **how: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **how)
    return sink.getvalue().to_pybytes()


def arrow(rows: pa.Table, *, is_stream: bool = False, chunk: int | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with new(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=chunk)
    return sink.getvalue().to_pybytes()


def values(query: Query) -> list[str]:
    """Return what a query over files of `csv` has delivered, in order."""
    return [row["v"] for batch in query.batches for row in batch]
