"""The rows of files, as splits: row groups of Parquet, record batches of Arrow.

Rows keep the types and the order that they have in their file; files come in the order of their
names. A file is the same one as long as its size and its time are: a checkpoint keeps both, and
they are looked at before and after each read. How many rows a split has is told by footers, which
are read once, and stands in the checkpoint from then on.
"""

from __future__ import annotations

import errno
import fnmatch
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from spark_upsert.errors import (
    DataError,
    DataLossError,
    OptionError,
    SchemaError,
    StorageError,
    UpsertFlowError,
    masked,
)
from spark_upsert.loader.splits import Record
from spark_upsert.model.bounded import LruMap
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.names import find_column
from spark_upsert.model.parallel import in_order
from spark_upsert.store.folder import FileStatus, Folder
from spark_upsert.store.folders import open_folder
from spark_upsert.store.records import text, whole
from spark_upsert.store.resolve import is_remote

FOOTERS_MAX = 64
"""Footers that are kept, so that each row group of a file does not read its footer again."""

COUNTED_AT_ONCE = 8
"""How many footers are read at once: one by one, a thousand in a bucket take a minute."""

_FORMATS = ("parquet", "arrow")

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CountedFile:
    """A state of a file, and how many rows its splits have."""

    status: FileStatus
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The rows of all files of a folder that are there when the loader plans.

    Parameters
    ----------
    path : str
        The folder: a local path or a URL, as of `Table.open`.
    format : str
        ``parquet`` or ``arrow`` (files of Arrow's IPC format; not its streams).
    pattern : str, optional
        Pattern of file names, as ``part-*.parquet``; by default all that do not begin with ``_`` or
        ``.``.
    is_recursive : bool
        Whether files in folders below it are meant, too.
    columns : sequence of str, optional
        In the order in which they are to come; by default those of the first file, and then other
        files may have no others.
    storage : mapping, optional
        Settings of an object store, as of `Table.open`.
    """

    path: str
    format: str = "parquet"
    pattern: str | None = None
    is_recursive: bool = False
    columns: Sequence[str] | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    kind: ClassVar[str] = "files"

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise OptionError.not_one_of("format", self.format, _FORMATS)

    def plan(self) -> FileSplits:
        """Return the splits of the files that are there (`Source.plan`).

        Raises
        ------
        OptionError
            There is no such folder, or no file in it.
        SchemaError
            Files differ in their columns, or lack one.
        DataError
            A file cannot be read.
        """
        reader = _Reader(self)
        listed = self._listed(reader.folder)
        if not listed:
            raise OptionError(
                f"there is no file{self._meant} in '{masked(reader.folder.url)}'.",
                hint="check the path, 'pattern' and 'is_recursive', or write the files first.",
                option="path",
            )
        counts = in_order(reader.counts, listed, COUNTED_AT_ONCE)
        return FileSplits(self, list(map(CountedFile, listed, counts)), reader)

    def plan_again(self, record: Record) -> FileSplits:
        """Return the splits that a checkpoint names (`Source.plan_again`).

        Files that came since are left out, and a warning says so.
        """
        files = [
            CountedFile(
                FileStatus(text(name), whole(size), whole(modified_us)),
                tuple(whole(rows) for rows in counts),
            )
            for name, size, modified_us, counts in record["files"]
        ]
        if text(record["format"]) != self.format or not files:
            raise OptionError(
                f"the loader reads {self.format} files, and its checkpoint is of "
                f"{record['format']} files.",
                hint="give the source that the checkpoint is of, or begin without it.",
                option="format",
            )
        reader = _Reader(self)
        listed = {status.name: status for status in self._listed(reader.folder)}
        for file in files:
            reader.require_same(file.status, listed.pop(file.status.name, None))
        if listed:
            _LOGGER.warning(
                "files that came behind the checkpoint are left out: %s",
                Fields(path=masked(reader.folder.url), files=len(listed), first=min(listed)),
            )
        return FileSplits(self, files, reader)

    @property
    def _meant(self) -> str:
        return "" if self.pattern is None else f" that matches '{self.pattern}'"

    def _listed(self, folder: Folder) -> list[FileStatus]:
        """Return the files that are there, by name."""
        try:
            found = list(folder.files(is_recursive=self.is_recursive))
        except (FileNotFoundError, StorageError) as error:
            if isinstance(error, StorageError) and error.fields.get("errno") != errno.ENOTDIR:
                raise
            raise OptionError(
                f"there is no folder '{masked(folder.url)}'.",
                hint="check the path; the folder of the files is meant, not a file.",
                option="path",
            ) from error
        pattern = self.pattern
        if pattern is not None:
            found = [f for f in found if fnmatch.fnmatchcase(f.name.rpartition("/")[2], pattern)]
        return sorted(found, key=lambda file: file.name)


class FileSplits:
    """Row groups, or record batches, of files (`Splits`)."""

    def __init__(
        self, source: FileRows, files: Sequence[CountedFile], reader: _Reader | None = None
    ) -> None:
        self._source = source
        self._files = tuple(files)
        self._reader = reader or _Reader(source)
        self._places = [(file.status, index) for file in files for index in range(len(file.rows))]
        self.counts = tuple(rows for file in files for rows in file.rows)
        self.schema = self._reader.schema(files[0].status)
        self.is_forkable = not is_remote(source.path)

    def __repr__(self) -> str:
        rows = sum(self.counts)
        return f"FileSplits(files={len(self._files)}, rows={rows:_}, splits={len(self.counts)})"

    def read(self, index: int) -> pa.Table:
        """Return the rows of a row group or of a record batch (`Splits.read`)."""
        status, part = self._places[index]
        table = self._reader.read(status, part, self.schema)
        if table.num_rows != self.counts[index]:
            raise self._reader.changed(status, f"has {table.num_rows} rows in part {part}")
        return table

    def record(self) -> Record:
        """Return the files with their sizes, times and counts (`Splits.record`)."""
        return {
            "format": self._source.format,
            "files": [
                [file.status.name, file.status.bytes, file.status.modified_us, list(file.rows)]
                for file in self._files
            ],
        }


class _Reader:
    """Opens the files of a folder, and says what is wrong with them; travels to other processes."""

    def __init__(self, source: FileRows) -> None:
        self._source = source
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._footers: LruMap[FileStatus, pq.FileMetaData] = LruMap(FOOTERS_MAX)
        self._folder: Folder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self._source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source = state["source"]
        self._forget()

    @property
    def folder(self) -> Folder:
        """The folder, opened once in each process."""
        with self._lock:
            if self._folder is None:
                self._folder = open_folder(self._source.path, self._source.storage)
            return self._folder

    def counts(self, status: FileStatus) -> tuple[int, ...]:
        """Return how many rows the splits of a file have."""
        with self._opened(status) as file:
            if self._source.format == "parquet":
                footer = self._parquet(status, file).metadata
                return tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
            batches = pa.ipc.open_file(file)
            numbers = range(batches.num_record_batches)
            return tuple(batches.get_batch(number).num_rows for number in numbers)

    def schema(self, status: FileStatus) -> pa.Schema:
        """Return the columns that are wanted, in the types of a file."""
        with self._opened(status) as file:
            if self._source.format == "parquet":
                own = self._parquet(status, file).schema_arrow
            else:
                own = pa.ipc.open_file(file).schema
        names = self._source.columns
        if names is not None:
            own = pa.schema([own.field(find_column(n, own.names, role="column")) for n in names])
        return own.remove_metadata()

    def read(self, status: FileStatus, part: int, schema: pa.Schema) -> pa.Table:
        """Return the rows of a split in these columns."""
        with self._opened(status) as file:
            if self._source.format == "parquet":
                opened = self._parquet(status, file)
                self._require_columns(status, opened.schema_arrow, schema)
                table = opened.read_row_group(part, schema.names, use_threads=False)
            else:
                batches = pa.ipc.open_file(file)
                self._require_columns(status, batches.schema, schema)
                table = pa.Table.from_batches([batches.get_batch(part)])
                table.validate(full=True)
        columns = [table.column(name) for name in schema.names]
        return pa.Table.from_arrays(columns, schema=schema)

    def _parquet(self, status: FileStatus, file: pa.NativeFile) -> pq.ParquetFile:
        with self._lock:
            footer = self._footers.get(status)
        opened = pq.ParquetFile(file, metadata=footer, page_checksum_verification=True)
        with self._lock:
            self._footers.put(status, opened.metadata)
        return opened

    def _require_columns(self, status: FileStatus, own: pa.Schema, schema: pa.Schema) -> None:
        for wanted in schema:
            found = own.field(wanted.name).type if wanted.name in own.names else None
            if found != wanted.type:
                has = (
                    f"no column '{wanted.name}'" if found is None else f"'{wanted.name}' as {found}"
                )
                raise SchemaError(
                    f"'{self._shown(status)}' has {has}, and other files have it as {wanted.type}.",
                    hint="write all files with the same columns, or choose among them by 'columns' "
                    "and 'pattern'.",
                    column=wanted.name,
                )
        others = [name for name in own.names if name not in schema.names]
        if others and self._source.columns is None:
            raise SchemaError(
                f"'{self._shown(status)}' has the column '{others[0]}', which other files lack.",
                hint="write all files with the same columns, or choose among them by 'columns'.",
                column=others[0],
            )

    @contextmanager
    def _opened(self, status: FileStatus) -> Iterator[pa.NativeFile]:
        """Open a file that is as it was when it was planned, before and after."""
        try:
            self.require_same(status, self.folder.status(status.name))
            with self.folder.open(status.name) as file:
                yield file
            self.require_same(status, self.folder.status(status.name))
        except UpsertFlowError:
            raise
        except FileNotFoundError as error:
            raise self.changed(status, "is gone") from error
        except (OSError, pa.ArrowException) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if isinstance(error, OSError) and error.errno is not None:
                raise StorageError(
                    f"could not read '{self._shown(status)}': {first}.",
                    hint="try again; if it persists, look at the storage.",
                    errno=error.errno,
                ) from error
            raise DataError(
                f"'{self._shown(status)}' is no {self._source.format} file, or damaged: {first}.",
                hint="take it out of the folder, or choose other files by 'pattern'; Arrow's "
                "streams are read once they are written as files.",
            ) from error

    def require_same(self, planned: FileStatus, found: FileStatus | None) -> None:
        """Check that a file is in the state that was planned."""
        if found is None:
            raise self.changed(planned, "is gone")
        if found != planned:
            raise self.changed(planned, f"has {found.bytes} bytes of {found.written}")

    def changed(self, planned: FileStatus, found: str) -> DataLossError:
        """Return the error of a file that is not what was planned."""
        return DataLossError(
            f"'{self._shown(planned)}' was planned with {planned.bytes} bytes of "
            f"{planned.written}, and {found}.",
            hint="put it back as it was, or begin with a new loader and without a checkpoint.",
            path=masked(self.folder.url),
        )

    def _shown(self, status: FileStatus) -> str:
        return f"{masked(self.folder.url)}/{status.name}"
