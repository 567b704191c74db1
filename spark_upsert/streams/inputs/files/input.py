"""A growing set of files as an input: Parquet, Arrow, JSON or CSV below one folder.

A file is one step: a batch holds whole files, ordered by time and then by name among those that
were found together; only an exact order (`exact`) ends a batch within a file. `file_position` is
the position of a stream. The end of a batch alone names its files, so that a replay reads the very
files that were planned, and no others: a file that is gone or replaced by then is an error that
names it. With ``failOnDataLoss=false`` it is a warning.

Rows have no order but that of their file. The folder is never written to.
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from spark_upsert.errors import (
    DataError,
    DataLossError,
    OptionError,
    SchemaError,
    StorageError,
    UpsertFlowError,
    masked,
    setting,
)
from spark_upsert.model.bounded import LruMap
from spark_upsert.model.schema import widens
from spark_upsert.options.declared import counted
from spark_upsert.options.files import FileFormat, FileOptions
from spark_upsert.payloads.files.formats import (
    ArrowReader,
    BadFile,
    FileRange,
    FormatReader,
    OpenFile,
    ParquetReader,
    WantedColumns,
    first_line,
)
from spark_upsert.payloads.files.texts import CsvReader, JsonReader, compression_of
from spark_upsert.store.folder import FileStatus, Folder
from spark_upsert.store.folders import open_folder
from spark_upsert.streams.inputs.files.position import (
    Delivered,
    FilePosition,
    in_time,
    named,
    record_of_head,
    replaced_error,
)
from spark_upsert.streams.inputs.input import Backlog, ReadPiece
from spark_upsert.streams.offsets.position import Json, Position
from spark_upsert.streams.reads.steps import StreamStep, refuse_gaps

FILES_MAX = 1000
"""Files of one batch without limits: their names are in its offset, some 60 kB."""

LOOKED_AT_MAX = 64
"""The most files that a read looks at to merge their columns."""

_KNOWN_MAX = 8
"""Positions kept with the names of their files: the last, and some that were given up."""

_LOGGER = logging.getLogger(__name__)

Listed = Mapping[str, FileStatus]


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A part of one file, as it was planned."""

    file: FileStatus
    part: FileRange


def file_columns(options: FileOptions, folder: Folder | None = None) -> pa.Schema:
    """Return the columns of a read of files, in storage types.

    Those of ``schema``, else those of the oldest file; with ``mergeSchema`` also of the newest.

    Raises
    ------
    SchemaError
        There is no file to look at, or two disagree.
    """
    if options.schema is not None:
        return options.schema
    source = _Files(options, folder)
    files = sorted(source.listed().values(), key=in_time)
    if not files:
        raise SchemaError(
            f"there is no file in '{source.url}', so that its columns are not known.",
            hint="give the option 'schema', for example \"id BIGINT, name STRING\", or begin once "
            "a file is there.",
        )
    found: pa.Schema | None = None
    for file in [files[0], *files[1:][-LOOKED_AT_MAX:]] if options.merge_schema else files[:1]:
        with source.translated(file):
            own = source.reader.columns(source.opener(file))
        found = own if found is None else _merged(found, own, source.url, file)
    assert found is not None
    return found


def _merged(columns: pa.Schema, own: pa.Schema, url: str, file: FileStatus) -> pa.Schema:
    fields = {field.name: field for field in columns}
    for field in own:
        known = fields.setdefault(field.name, field)
        if widens(known.type, field.type):
            fields[field.name] = field
        elif not widens(field.type, known.type):
            raise SchemaError(
                f"in '{url}', column '{field.name}' of the file '{named(file.name)}' is "
                f"{field.type}, and {known.type} in older files.",
                hint="write one type, or give the option 'schema'.",
                column=field.name,
            )
    return pa.schema(list(fields.values()))


def file_identity(options: FileOptions, url: str) -> str:
    """Return what is the same for the same files of the folder at a URL."""
    return f"{options.format.value} files in {url} that match {options.glob}"


class FileInput:
    """The rows of all files of a folder, and of those that come.

    Parameters
    ----------
    options : FileOptions
    columns : pyarrow.Schema
        The columns that were planned (`file_columns`).
    folder : Folder, optional
        By default the one of the options.
    """

    def __init__(
        self,
        options: FileOptions,
        columns: pa.Schema,
        *,
        folder: Folder | None = None,
    ) -> None:
        self._options = options
        self._columns = WantedColumns(
            columns,
            is_chosen=options.schema is not None or options.is_projected,
            is_merged=options.merge_schema,
        )
        self._files = _Files(options, folder)
        self._forget()

    def _forget(self) -> None:
        self._listed: Listed | None = None
        self._known: LruMap[str, Delivered] = LruMap(_KNOWN_MAX)
        self._warned: set[FileStatus] = set()
        self._rows: dict[FileStatus, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only read.
        return {"options": self._options, "columns": self._columns, "files": self._files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options, self._columns = state["options"], state["columns"]
        self._files = state["files"]
        self._forget()

    # -- planning --------------------------------------------------------------------

    def head(self) -> Position:
        """Return what is there (`Input.head`); as a bound it is the newest file."""
        return Position.of(record_of_head(self._look()))

    def identity(self) -> str:
        """Return which files they are (`Input.identity`)."""
        return file_identity(self._options, self._files.url)

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return which files are to be delivered behind a position (`Input.backlog`).

        With a head nothing is looked at anew: it was made of the last look, or of one before.
        """
        listed = self._listed
        if head is None or listed is None:
            listed = self._look()
        delivered = self._delivered(position, listed)
        files, replaced = delivered.pending(listed)
        self._report_replaced(replaced)
        if head is not None:
            files = _up_to(files, head)
        start = delivered.position.packed() if position is None else position

        def after(count: int) -> Position:
            return self._after(delivered, files[:count], listed) if count else start

        return Backlog(
            start=start,
            pieces=self._pieces(files[:FILES_MAX], after),
            reach=partial(after, min(FILES_MAX, len(files))),
            end=partial(after, len(files)),
        )

    def splits(self, start: Position | None, end: Position) -> list[FileSplit]:
        """Return the work of a batch (`Input.splits`): its files, the large ones in parts."""
        found: list[FileSplit] = []
        for file in _between(start, end):
            with self._files.at_hand(file, self._options.fail_on_data_loss):
                found += [FileSplit(file, part) for part in self._files.parts(file)]
        return found

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield the files between two positions (`SteppedInput.steps`)."""
        refuse_gaps(fail_on_data_loss=self._options.fail_on_data_loss)
        files = _between(start, end)
        for number, file in enumerate(files, 1):
            yield StreamStep(
                rows=partial(self._count, file),
                split=partial(FileSplit, file, FileRange(bytes=file.bytes)),
                after=partial(self._behind, start, files, number),
            )

    def decides(self) -> Mapping[str, Json]:
        """Return what decides which rows a file has (`Decided.decides`)."""
        options = self._options
        own = counted(options) if options.format is FileFormat.CSV else {}
        return {"format": options.format.value, **own}

    def commit(self, position: Position) -> None:
        """Do nothing: the files are not ours."""

    def split_bytes(self, split: FileSplit) -> int:
        """Return about how much a task reads (`Input.split_bytes`)."""
        return split.part.bytes

    def _look(self) -> Listed:
        self._listed = listed = self._files.listed()
        return listed

    def _delivered(self, position: Position | None, listed: Listed) -> Delivered:
        if position is None:
            return Delivered(FilePosition(), {})
        known = self._known.get(position.text)
        if known is None:
            known = Delivered.at(FilePosition.unpacked(position), listed)
            try:
                known.require_proven(self._files.url)
            except DataLossError as error:
                if self._options.fail_on_data_loss:
                    raise
                _LOGGER.warning("files are passed over: %s", error.message)
            self._known.put(position.text, known)
        return known

    def _behind(self, start: Position | None, files: Sequence[FileStatus], count: int) -> Position:
        """Return the position behind the first of the files that lie behind another."""
        listed = self._look() if self._listed is None else self._listed
        return self._after(self._delivered(start, listed), files[:count], listed)

    def _after(self, start: Delivered, files: Sequence[FileStatus], listed: Listed) -> Position:
        reached = start.plus(files, listed)
        position = reached.position.packed()
        self._known.put(position.text, reached)
        return position

    def _report_replaced(self, files: list[FileStatus]) -> None:
        if not files:
            return
        error = replaced_error(self._files.url, files)
        if self._options.fail_on_data_loss:
            raise error
        if not self._warned.issuperset(files):
            self._warned = set(files)
            _LOGGER.warning("files are passed over: %s", error.message)

    def _pieces(
        self, files: list[FileStatus], after: Callable[[int], Position]
    ) -> Iterator[ReadPiece]:
        for index, file in enumerate(files):
            yield ReadPiece(
                steps=1,
                rows=self._count(file) if self._options.counts_rows else 0,
                bytes=file.bytes,
                epochs=1,
                after=lambda _, count=index + 1: after(count),  # type: ignore[misc]
            )

    def _count(self, file: FileStatus) -> int:
        """Return how many rows a file has, if need be by reading it."""
        if file not in self._rows:
            with self._files.at_hand(file, self._options.fail_on_data_loss):
                count = self._files.reader.count(self._files.opener(file))
                if count is None:
                    whole = FileSplit(file, FileRange())
                    count = sum(batch.num_rows for batch in self.read(whole))
                else:
                    # A batch may end by this count, within the file that was planned.
                    self._files.require_same(file)
                while len(self._rows) >= FILES_MAX:
                    self._rows.pop(next(iter(self._rows)))
                self._rows[file] = count
        return self._rows.get(file, 0)

    # -- reading, in the tasks -------------------------------------------------------

    def read(self, split: FileSplit) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of a file (`Input.read`)."""
        file, files = split.file, self._files
        with files.at_hand(file, self._options.fail_on_data_loss):
            files.require_same(file)
            yield from files.reader.read(files.opener(file), split.part, self._columns)
            # A write into a file while it is read shows up by its size or its time.
            files.require_same(file)

    def behind(self, split: FileSplit, rows: int) -> tuple[FileSplit, int]:
        """Pass rows of a split by (`Skipping.behind`)."""
        file, files = split.file, self._files
        with files.translated(file):
            part, left = files.reader.behind(files.opener(file), split.part, rows)
        return replace(split, part=part), left


def _between(start: Position | None, end: Position) -> tuple[FileStatus, ...]:
    """Return the files between two positions of one batch, in order."""
    first = FilePosition() if start is None else FilePosition.unpacked(start)
    return FilePosition.unpacked(end).delivered_since(first)


def _up_to(files: list[FileStatus], head: Position) -> list[FileStatus]:
    """Return which files are not newer than the newest one that a head was made of."""
    upto = head.record["upto"]
    return [] if upto is None else [file for file in files if in_time(file) <= tuple(upto)]


class _Files:
    """The files of a folder that are meant, and how they are opened; travels to the tasks."""

    def __init__(self, options: FileOptions, folder: Folder | None = None) -> None:
        self._options = options
        self._folder = folder
        self._given = folder
        self.reader = _reader(options)

    def __getstate__(self) -> dict[str, Any]:
        # A client of a bucket does not travel; a folder that was given is a value.
        return {**self.__dict__, "_folder": self._given}

    @property
    def url(self) -> str:
        """The folder, fit to be shown."""
        return masked(self._opened().url)

    def _opened(self) -> Folder:
        if self._folder is None:
            self._folder = open_folder(self._options.path, self._options.storage)
        return self._folder

    def listed(self) -> dict[str, FileStatus]:
        """Return the files that are there, by name."""
        folder, glob = self._opened(), self._options.glob
        try:
            found = folder.files(is_recursive=self._options.is_recursive)
            return {
                file.name: file
                for file in found
                if glob is None or fnmatch.fnmatchcase(file.name.rpartition("/")[2], glob)
            }
        except FileNotFoundError as error:
            raise OptionError(
                f"there is no folder '{self.url}'.",
                hint="check the 'path' option, or make the folder: it may be empty.",
                option="path",
            ) from error

    def opener(self, file: FileStatus) -> OpenFile:
        """Return what opens a file; one of texts is unpacked on the way."""
        packed = compression_of(file.name) if self._options.format in _TEXTS else None

        def open_() -> pa.NativeFile:
            opened = self._opened().open(file.name)
            return opened if packed is None else pa.CompressedInputStream(opened, packed)

        return open_

    def parts(self, file: FileStatus) -> list[FileRange]:
        """Cut a file."""
        if self._options.format in _TEXTS and compression_of(file.name) is not None:
            return [FileRange(bytes=file.bytes)]
        return self.reader.parts(self.opener(file), file.bytes)

    def require_same(self, file: FileStatus) -> None:
        """Check that a file is as it was when it was planned."""
        found = self._opened().status(file.name)
        if found != file:
            raise DataLossError(
                f"'{self._shown(file)}' was planned with {file.bytes} bytes of "
                f"{file.written}, and has {found.bytes} of {found.written}: it was replaced, or is "
                "being written.",
                hint="write each file under a name that begins with '_' or '.', then rename it. "
                f"{_GO_ON} A copy under another name is read as a new file.",
                path=self.url,
            )

    @contextmanager
    def at_hand(self, file: FileStatus, fail_on_data_loss: bool) -> Iterator[None]:
        """Say what keeps a file from being read; a loss that is allowed ends the body quietly."""
        try:
            with self.translated(file):
                yield
        except DataLossError as error:
            if fail_on_data_loss:
                raise
            _LOGGER.warning("rows are left out: %s", error.message)

    @contextmanager
    def translated(self, file: FileStatus) -> Iterator[None]:
        """Turn what goes wrong with a file into an error that names it."""
        try:
            yield
        except UpsertFlowError:
            raise
        except FileNotFoundError as error:
            raise DataLossError(
                f"'{self._shown(file)}', of {file.written}, is gone before its rows were "
                "delivered.",
                hint=f"put it back. {_GO_ON}",
                path=self.url,
            ) from error
        except BadFile as error:
            said = f"'{self._shown(file)}' does not fit: {error}."
            hint = f"{error.hint} {_MEND}" if error.hint else _MEND
            if error.column is not None:
                raise SchemaError(said, hint=hint, column=error.column) from error
            raise DataError(said, hint=hint) from error
        except OSError as error:
            if error.errno is not None:
                raise StorageError(
                    f"could not read '{self._shown(file)}': {first_line(error)}.",
                    hint="try again; if it persists, look at the storage.",
                    errno=error.errno,
                ) from error
            raise self._unreadable(file, error) from error
        except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
            raise self._unreadable(file, error) from error

    def _unreadable(self, file: FileStatus, error: Exception) -> DataError:
        return DataError(
            f"'{self._shown(file)}' is no {self._options.format.value} file, or is damaged: "
            f"{first_line(error)}.",
            hint="write each file under a name that begins with '_' or '.', then rename it: it is "
            f"read as soon as it is there. {_MEND}",
        )

    def _shown(self, file: FileStatus) -> str:
        return f"{self.url}/{named(file.name)}"


_TEXTS = (FileFormat.JSON, FileFormat.CSV)

_GO_ON = f"Or go on without its rows by {setting('failOnDataLoss', 'false')}."
_MEND = (
    "Take the file away, and bring it back mended under another name: the query goes on with "
    f"{setting('failOnDataLoss', 'false')}."
)


def _reader(options: FileOptions) -> FormatReader:
    match options.format:
        case FileFormat.PARQUET:
            return ParquetReader()
        case FileFormat.ARROW:
            return ArrowReader()
        case FileFormat.JSON:
            return JsonReader()
        case FileFormat.CSV:
            return CsvReader(
                header=options.header,
                separator=options.separator,
                quote=options.quote,
                escape=options.escape,
                null_value=options.null_value,
            )
