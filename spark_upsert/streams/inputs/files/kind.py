"""Sets of files as a kind of input: options, columns, streams and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from spark_upsert.options.files import FILE_OPTIONS, FileFormat, FileOptions
from spark_upsert.options.inputs import Family, InputOptions
from spark_upsert.options.parse import STORAGE_PREFIX, Options, fold, one_of
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.store.folder import Folder
from spark_upsert.store.folders import open_folder
from spark_upsert.streams.inputs.agreement import Described
from spark_upsert.streams.inputs.files.input import (
    FileInput,
    FileSplit,
    file_columns,
    file_identity,
)
from spark_upsert.streams.reads.columns import chosen
from spark_upsert.streams.reads.explain_words import columns_field, counted, field
from spark_upsert.streams.reads.steps import CountedStep

FILE_FORMATS = tuple(each.value for each in FileFormat)


class FileKind:
    """Growing sets of files; a batch reads those that are there."""

    def describe(self, options: InputOptions) -> Described:
        """Return the columns that a read has of the files (`Kind.describe`)."""
        own, names = _parsed(options)
        folder = open_folder(own.path, own.storage)
        columns = chosen(file_columns(own, folder), names)
        return Described(columns, file_identity(own, folder.url))

    def stream(self, options: InputOptions, columns: pa.Schema) -> FileInput:
        """Return the files as the input of a stream (`Kind.stream`)."""
        return FileInput(_projected(options), columns)

    def batch(self, options: InputOptions, columns: pa.Schema) -> FileBatch:
        """Return what a batch reads of the files (`Kind.batch`)."""
        return FileBatch(_projected(options), columns)


class FileBatch:
    """All files that are there when the batch is planned; parameters as of `FileInput`."""

    def __init__(
        self, options: FileOptions, columns: pa.Schema, *, folder: Folder | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._input = FileInput(options, columns, folder=folder)

    def splits(self) -> Sequence[FileSplit]:
        """Return the work for the tasks."""
        return self._input.splits(None, self._input.backlog(None).end())

    def steps(self) -> Sequence[CountedStep]:
        """Return the files, each of which is read as a whole."""
        return [*self._input.steps(None, self._input.backlog(None).end())]

    def identity(self) -> str:
        """Return which files they are."""
        return self._input.identity()

    def explain(self, splits: Sequence[FileSplit]) -> str:
        """Return what reading these splits does, as text."""
        files = counted(len({split.file.name for split in splits}), "file")
        size = sum(map(self.split_bytes, splits))
        matching = f" that match '{self._options.glob}'" if self._options.glob else ""
        lines = [
            f"{self._options.format.value} files{matching}",
            *columns_field(self._columns.names),
            *field("files", f"{files}, {size:,} bytes"),
            counted(len(splits), "split"),
        ]
        return "\n".join(lines)

    def split_bytes(self, split: FileSplit) -> int:
        """Estimate the bytes that a split reads."""
        return self._input.split_bytes(split)

    def read(self, split: FileSplit) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, in a task."""
        return self._input.read(split)


def _parsed(options: InputOptions) -> tuple[FileOptions, tuple[str, ...]]:
    """Return the options of the files, and the columns that the query chooses."""
    format_ = FileFormat(one_of("format", options.format, FILE_FORMATS))
    options.require_of(Family.FILES)
    said = {fold(name) for name in options.own}
    known = {fold(name) for name in FILE_OPTIONS}
    shared = {
        name: text
        for name, text in options.shared.items()
        if fold(name) not in said
        and (fold(name) in known or name.lower().startswith(STORAGE_PREFIX))
    }
    of_query = Options(options.shared, READ_OPTIONS)
    bounds = ("minRowsPerTrigger", "maxRowsPerTrigger")
    counts_rows = any(of_query.text(name) is not None for name in bounds)
    own = FileOptions.parse(format_, {**shared, **options.own}, counts_rows=counts_rows)
    return own, of_query.names("columns")


def _projected(options: InputOptions) -> FileOptions:
    """Return the options of files of which other columns may be passed by if some are chosen."""
    own, names = _parsed(options)
    return replace(own, is_projected=bool(names))
