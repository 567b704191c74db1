"""Readers of splits: Arrow rows, files, the rows of a version of a table, and its changes.

A task is given a reader for each scan that is not of Arrow or of files beside its plan, because a
store is no part of a plan:

    Task(plan, readers={"orders": rows_of_version(table.store, ["id", "amount"])})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.errors import DataError
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.store import Store
from spark_upsert.store.regular import opened_regular
from spark_upsert.table.changes.modes import ChangeOptions
from spark_upsert.table.changes.read import read_changes
from spark_upsert.table.changes.stretches import Stretch
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.task.scanning import SplitReader

FILE_BATCH_ROWS = 1 << 16
"""Rows of a batch of a Parquet file; a file of Arrow has batches of its own."""

_ARROW = (".arrow", ".feather", ".ipc")


class VersionSplit(NamedTuple):
    """The rows of a version with key hashes in a range."""

    manifest: Manifest
    hash_range: HashRange = ALL_HASHES


class StretchSplit(NamedTuple):
    """The changes of some epochs, for keys that have some hashes."""

    stretch: Stretch
    hash_range: HashRange = ALL_HASHES


def read_arrow(split: Any) -> Iterable[pa.RecordBatch]:
    """Read a split that is Arrow: a table, a batch, or batches one after the other."""
    if isinstance(split, pa.RecordBatch):
        return [split]
    if isinstance(split, pa.Table):
        return split.to_batches()
    return split


def of_files(columns: Sequence[str]) -> SplitReader:
    """Return a reader of some columns of local files; a split is the path of a file.

    Their endings tell what they are: ``.parquet``, or ``.arrow``, ``.feather`` and ``.ipc``.
    """
    return partial(_file, list(columns))


def _file(columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    if not path.endswith((".parquet", *_ARROW)):
        raise DataError(
            f"'{path}' has an ending that is not known, expected .parquet, {', '.join(_ARROW)}.",
            hint="give the task a reader for this scan.",
        )
    try:
        yield from (_of_parquet if path.endswith(".parquet") else _of_arrow)(columns, path)
    except pa.ArrowException as error:
        raise _damaged(path, error) from error


def _of_parquet(columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    # Imported here: most tasks read no file of Parquet, and it brings file systems and TLS along.
    import pyarrow.parquet as pq

    with (
        opened_regular(Path(path)) as opened,
        pa.OSFile(opened.path) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        yield from file.iter_batches(FILE_BATCH_ROWS, columns=columns, use_threads=False)


def _of_arrow(columns: list[str], path: str) -> Iterator[pa.RecordBatch]:
    with opened_regular(Path(path)) as opened, pa.ipc.open_file(opened.map()) as reader:
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(columns)
            # What a file says of itself is not trusted: an offset may point outside of it.
            batch.validate(full=True)
            yield batch


def _damaged(path: str, error: pa.ArrowException) -> DataError:
    return DataError(
        f"'{path}' is not what its ending says, or damaged: {error!s:.300}.",
        hint="write it again, or leave it out of the task's splits.",
    )


def rows_of_version(store: Store, columns: Sequence[str] | None = None) -> SplitReader:
    """Return what reads each `VersionSplit` of a table: some columns, or all."""

    def read(split: VersionSplit) -> Iterator[pa.RecordBatch]:
        return Snapshot(store, split.manifest).read(columns, hash_range=split.hash_range)

    return read


def changes_of(store: Store, options: ChangeOptions) -> SplitReader:
    """Return what reads each `StretchSplit` of a table, as its changelog."""

    def read(split: StretchSplit) -> Iterator[pa.RecordBatch]:
        return read_changes(store, split.stretch, options, hash_range=split.hash_range)

    return read
