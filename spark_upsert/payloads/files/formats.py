"""The common part of the file formats, and the two that hold Arrow's types: Parquet and Arrow.

A file is read by parts: all of it, or ranges of it that begin and end where the format says so
(row groups, record batches, lines). All parts, in order, give the rows of the file in order. What a
file says of itself is not trusted: columns are held against those that were planned, and arrays are
checked before anybody computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from spark_upsert.conversions import convert
from spark_upsert.model.portions import portions
from spark_upsert.model.schema import storage_type, widens
from spark_upsert.payloads.files.parquet_rows import iter_rows, opened_for_rows

PART_BYTES = 64 << 20
"""A file that is larger is cut into parts of about this size, where its format allows it."""

_MAGIC = b"ARROW1"


class BadFile(Exception):
    """A file cannot be read; never leaves the package. Its text is a sentence without the file."""

    def __init__(self, message: str, *, column: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.column = column
        self.hint = hint


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file, in what its format counts by; ``end`` is exclusive, None for the end."""

    first: int = 0
    end: int | None = None
    bytes: int = 0
    """About how much of the file it is."""


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """The columns that are wanted of each file."""

    fields: pa.Schema
    """In storage types."""
    is_chosen: bool
    """Whether a file may have others."""
    is_merged: bool
    """Whether a file may lack some, or have them in narrower types."""


OpenFile = Callable[[], pa.NativeFile]


class FormatReader(Protocol):
    """Reads the files of one format; raises `BadFile` and what pyarrow raises."""

    def columns(self, open_: OpenFile) -> pa.Schema:
        """Return the columns that a file has, in storage types."""
        ...

    def parts(self, open_: OpenFile, size: int) -> list[FileRange]:
        """Cut a file of so many bytes; a function of its bytes alone."""
        ...

    def count(self, open_: OpenFile) -> int | None:
        """Return how many rows a file has, None if only reading it would tell."""
        ...

    def behind(self, open_: OpenFile, part: FileRange, rows: int) -> tuple[FileRange, int]:
        """Return a part that begins later, and how many of its first rows are among so many.

        Rows are passed by without reading them where the format allows it.
        """
        ...

    def read(
        self, open_: OpenFile, part: FileRange, columns: WantedColumns
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, in the columns that are wanted."""
        ...


class ParquetReader:
    """Parquet, cut by row groups."""

    def columns(self, open_: OpenFile) -> pa.Schema:
        with open_() as file:
            return _stored(pq.ParquetFile(file).schema_arrow)

    def parts(self, open_: OpenFile, size: int) -> list[FileRange]:
        if size <= PART_BYTES:
            return [FileRange(bytes=size)]
        with open_() as file:
            footer = pq.ParquetFile(file).metadata
        sizes = [footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)]
        return _grouped(sizes, size)

    def count(self, open_: OpenFile) -> int | None:
        with open_() as file:
            rows: int = pq.ParquetFile(file).metadata.num_rows
            return rows

    def behind(self, open_: OpenFile, part: FileRange, rows: int) -> tuple[FileRange, int]:
        """Pass row groups by, of which the footer says how many rows they have."""
        with open_() as file:
            footer = pq.ParquetFile(file).metadata
        first, end = part.first, footer.num_row_groups if part.end is None else part.end
        while first < end and 0 <= (held := footer.row_group(first).num_rows) <= rows:
            first, rows = first + 1, rows - held
        return replace(part, first=first), rows

    def read(
        self, open_: OpenFile, part: FileRange, columns: WantedColumns
    ) -> Iterator[pa.RecordBatch]:
        with open_() as file:
            opened = opened_for_rows(file)
            own = opened.schema_arrow
            require_fits(_stored(own), columns)
            names = [name for name in columns.fields.names if name in own.names]
            groups = range(part.first, opened.num_row_groups if part.end is None else part.end)
            for batch in iter_rows(opened, groups, names):
                yield fitted(batch, columns)


class ArrowReader:
    """Arrow's IPC format: files, cut by record batches, and streams, which are not cut."""

    def columns(self, open_: OpenFile) -> pa.Schema:
        with open_() as file:
            return _stored(_opened(file).schema)

    def parts(self, open_: OpenFile, size: int) -> list[FileRange]:
        if size <= PART_BYTES:
            return [FileRange(bytes=size)]
        with open_() as file:
            opened = _opened(file)
            if not isinstance(opened, pa.ipc.RecordBatchFileReader):
                return [FileRange(bytes=size)]
            number = opened.num_record_batches
        return _grouped([1] * number, size)

    def count(self, open_: OpenFile) -> int | None:
        return None

    def behind(self, open_: OpenFile, part: FileRange, rows: int) -> tuple[FileRange, int]:
        """Return the part: only a record batch itself says how many rows it has."""
        return part, rows

    def read(
        self, open_: OpenFile, part: FileRange, columns: WantedColumns
    ) -> Iterator[pa.RecordBatch]:
        with open_() as file:
            opened = _opened(file)
            require_fits(_stored(opened.schema), columns)
            if isinstance(opened, pa.ipc.RecordBatchFileReader):
                end = opened.num_record_batches if part.end is None else part.end
                batches: Iterator[pa.RecordBatch] = map(opened.get_batch, range(part.first, end))
            else:
                batches = iter(opened)
            for batch in batches:
                batch.validate(full=True)
                for part in portions(batch):
                    yield fitted(part, columns)


def require_fits(own: pa.Schema, columns: WantedColumns) -> None:
    """Check that a file has the columns that are wanted.

    Raises
    ------
    BadFile
        It lacks one, has one in another type, has one twice, or has one that would not be read.
    """
    for name in own.names:
        if own.names.count(name) > 1:
            raise BadFile(f"it has the column '{name}' twice", column=name)
    for field in columns.fields:
        if field.name not in own.names:
            if not columns.is_merged:
                raise BadFile(
                    f"it has no column '{field.name}', but {_listed(own.names)}",
                    column=field.name,
                    hint="with mergeSchema=true it would be null.",
                )
            continue
        found = own.field(field.name).type
        is_same = found == field.type or pa.types.is_null(found)
        if not is_same and not (columns.is_merged and widens(found, field.type)):
            narrower = widens(found, field.type)
            raise BadFile(
                f"its column '{field.name}' is {found}, and {field.type} in the query",
                column=field.name,
                hint="with mergeSchema=true it would be widened." if narrower else "",
            )
    others = [name for name in own.names if name not in columns.fields.names]
    if others and not columns.is_chosen:
        raise BadFile(
            f"it has the column '{others[0]}', which the query was planned without",
            column=others[0],
            hint="restart the query with mergeSchema=true to take it in, or choose the columns by "
            "'schema'.",
        )


def fitted(batch: pa.RecordBatch, columns: WantedColumns) -> pa.RecordBatch:
    """Return rows in the columns that are wanted; what a file lacks is null."""
    found = []
    for field in columns.fields:
        if field.name not in batch.schema.names:
            array = pa.nulls(batch.num_rows, field.type)
        else:
            array = _cast(batch.column(field.name), field)
        if not field.nullable and array.null_count:
            raise BadFile(
                f"its column '{field.name}' has nulls, and is declared NOT NULL", column=field.name
            )
        found.append(array)
    return pa.RecordBatch.from_arrays(found, schema=columns.fields)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        return convert(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadFile(
            f"its column '{field.name}' holds what no {field.type} can: {first_line(error)}",
            column=field.name,
        ) from error


def first_line(error: BaseException) -> str:
    """Return what an error of a library says, in short."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def _stored(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in schema])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:20]) or "none"


def _grouped(sizes: Sequence[int], file_bytes: int) -> list[FileRange]:
    """Cut what has these sizes into parts of about `PART_BYTES` of the file."""
    whole = max(1, sum(sizes))
    parts: list[FileRange] = []
    first = held = 0
    for index, size in enumerate(sizes):
        held += size * file_bytes // whole
        if held >= PART_BYTES:
            parts.append(FileRange(first, index + 1, held))
            first, held = index + 1, 0
    if first < len(sizes) or not parts:
        parts.append(FileRange(first, len(sizes), held))
    return parts


def _opened(file: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    is_file = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
