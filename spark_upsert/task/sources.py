"""Plan leaves: split queues, their feeds, literal rows, and split readers.

Readers for tables are passed to the task, because a store is no part of a plan: ``Task(plan,
readers={"orders": rows_of_version(table.store)})``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.errors import DataError, PlanError
from spark_upsert.store import Store
from spark_upsert.store.local import open_regular_file
from spark_upsert.table.changelog.changes import EpochRange
from spark_upsert.table.changelog.read import ChangeOptions, read_changes
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.task.lifecycle import Monitor, SplitCounts
from spark_upsert.task.operator import Signal

SplitReader = Callable[[Any], Iterable[pa.RecordBatch]]
"""Reads a split; an iterator with a ``close`` method is closed when it is no longer needed."""


class SplitQueue:
    """A leaf's splits, in the order in which they were added, for all its drivers."""

    def __init__(self, progress: Monitor) -> None:
        self._lock = progress.lock
        self._waiting: deque[Any] = deque()
        self._total = 0
        self._finished = 0
        self._is_ended = False
        self._barriers = 0

    def add(self, split: Any, *, with_barrier: bool = False) -> None:
        """Append a split, optionally followed by a barrier."""
        with self._lock:
            self._waiting.append(split)
            self._total += 1
            self._barriers += with_barrier

    def add_barrier(self) -> None:
        """Append a barrier after all splits."""
        with self._lock:
            self._barriers += 1

    def end(self) -> None:
        """Mark the end of the splits."""
        with self._lock:
            self._is_ended = True

    def take(self, barriers: int) -> tuple[Any] | Signal:
        """Return the next split, in a tuple, or why there is none."""
        with self._lock:
            if self._waiting:
                return (self._waiting.popleft(),)
            if barriers < self._barriers:
                return Signal.DRAINED
            return Signal.ENDED if self._is_ended else Signal.WAIT

    def finish(self) -> None:
        """Count a split as finished."""
        with self._lock:
            self._finished += 1

    def counts(self) -> SplitCounts:
        """Return how many splits there are."""
        with self._lock:
            return SplitCounts(
                total=self._total, queued=len(self._waiting), finished=self._finished
            )


class ScanFeed:
    """One leaf driver's feed: one split after the other, to its end or until a drop.

    Parameters
    ----------
    schema : pyarrow.Schema or None
        The required batch schema; None: any.
    """

    def __init__(self, queue: SplitQueue, reader: SplitReader, schema: pa.Schema | None) -> None:
        self.schema = schema
        self._queue = queue
        self._reader = reader
        self._open: Iterator[pa.RecordBatch] | None = None
        self._barriers = 0
        self._is_dropped = False

    def poll(self) -> pa.RecordBatch | Signal:
        while True:
            if self._open is None:
                taken = self._queue.take(self._barriers)
                if isinstance(taken, Signal):
                    self._barriers += taken is Signal.DRAINED
                    return taken
                if not self._is_dropped:
                    self._open = iter(self._reader(taken[0]))
            batch = None if self._is_dropped or self._open is None else next(self._open, None)
            if batch is None:
                self._close_split()
                self._queue.finish()
            elif batch.num_rows:
                return self._check_columns(batch)

    def _check_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.schema is not None and not batch.schema.equals(self.schema):
            raise PlanError(
                f"a split has the columns {_columns(batch.schema)}, its scan has "
                f"{_columns(self.schema)}.",
                hint="give the scan the schema that its splits have.",
            )
        return batch

    def _close_split(self) -> None:
        opened, self._open = self._open, None
        close = getattr(opened, "close", None)
        if close is not None:
            close()

    def drop(self) -> None:
        self._is_dropped = True

    def pass_barrier(self) -> None:
        self._is_dropped = False

    def close(self) -> None:
        self._close_split()


class ValuesFeed:
    """Literal rows in the plan: emitted once before each barrier.

    At the end of all input they are emitted again only if another input may join them: if there
    was no barrier at all, or splits came after the last one.

    Parameters
    ----------
    has_tail : callable
        Returns whether that holds, when the end has come.
    phase : callable
        Returns the next event: a barrier, the end, or neither (`Signal`).
    """

    def __init__(
        self, rows: pa.Table, phase: Callable[[], Signal], has_tail: Callable[[], bool]
    ) -> None:
        self.schema = rows.schema
        self._rows = rows.to_batches()
        self._phase = phase
        self._has_tail = has_tail
        self._left: deque[pa.RecordBatch] | None = None

    def poll(self) -> pa.RecordBatch | Signal:
        phase = self._phase()
        if phase is Signal.WAIT:
            return phase
        if self._left is None:
            is_given = phase is Signal.DRAINED or self._has_tail()
            self._left = deque(self._rows if is_given else ())
        while self._left:
            batch = self._left.popleft()
            if batch.num_rows:
                return batch
        return phase

    def drop(self) -> None:
        self._left = deque()

    def pass_barrier(self) -> None:
        self._left = None

    def close(self) -> None:
        self._left = deque()


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"


FILE_BATCH_ROWS = 1 << 16
"""Rows per batch from a Parquet file; an Arrow file has its own batches."""

_ARROW = (".arrow", ".feather", ".ipc")


class VersionSplit(NamedTuple):
    """A version's rows with key hashes in a range."""

    manifest: Manifest
    hash_range: HashRange = ALL_HASHES


class StretchSplit(NamedTuple):
    """Several epochs' changes, for keys with given hashes."""

    stretch: EpochRange
    hash_range: HashRange = ALL_HASHES


def read_arrow(split: Any) -> Iterable[pa.RecordBatch]:
    """Read an Arrow split: a table, a batch, or batches one after the other."""
    if isinstance(split, pa.RecordBatch):
        return [split]
    if isinstance(split, pa.Table):
        return split.to_batches()
    return split


def files_reader(columns: Sequence[str]) -> SplitReader:
    """Return a reader for some columns in local files; a split is a file path.

    The suffix determines the format: ``.parquet``, or ``.arrow``, ``.feather`` and ``.ipc``.
    """
    return partial(_file, list(columns))


def _file(columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    if not path.endswith((".parquet", *_ARROW)):
        raise DataError(
            f"'{path}' has an ending that is not known, expected .parquet, {', '.join(_ARROW)}.",
            hint="give the task a reader for this scan.",
        )
    try:
        yield from (_read_parquet if path.endswith(".parquet") else _read_arrow_file)(columns, path)
    except pa.ArrowException as error:
        raise _corrupt_file_error(path, error) from error


def _read_parquet(columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    # Imported here: most tasks read no file of Parquet, and it brings file systems and TLS along.
    import pyarrow.parquet as pq

    with (
        open_regular_file(Path(path)) as opened,
        pa.OSFile(opened.path) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        yield from file.iter_batches(FILE_BATCH_ROWS, columns=columns, use_threads=False)


def _read_arrow_file(columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    with open_regular_file(Path(path)) as opened, pa.ipc.open_file(opened.map()) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(columns)
            # A file's contents are untrusted: an offset may point outside the file.
            batch.validate(full=True)
            yield batch


def _corrupt_file_error(path: str, error: pa.ArrowException) -> DataError:
    return DataError(
        f"'{path}' is not what its ending says, or damaged: {error!s:.300}.",
        hint="write it again, or leave it out of the task's splits.",
    )


def version_reader(store: Store, columns: Sequence[str] | None = None) -> SplitReader:
    """Return the reader for a table's `VersionSplit`s: given columns, or all."""

    def read(split: VersionSplit) -> Iterator[pa.RecordBatch]:
        return Snapshot(store, split.manifest).read(columns, hash_range=split.hash_range)

    return read


def changes_reader(store: Store, options: ChangeOptions) -> SplitReader:
    """Return the reader for a table's `StretchSplit`s, in changelog form."""

    def read(split: StretchSplit) -> Iterator[pa.RecordBatch]:
        return read_changes(store, split.stretch, options, hash_range=split.hash_range)

    return read
