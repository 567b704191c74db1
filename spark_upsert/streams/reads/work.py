"""One read task's work, however its inputs are merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.options.read import QueryOptions
from spark_upsert.streams.reads.ordered import Passage, read_passage
from spark_upsert.streams.reads.packing import InputReaders, Pack, read_pack
from spark_upsert.streams.reads.splits import ChangesSplit, RowsSplit
from spark_upsert.streams.reads.views import ViewSplit
from spark_upsert.table.log.manifest import Transaction

TaskRead = Pack | Passage
"""Splits of some inputs, or a piece of an exact order; pickled into the task."""


def read_work(
    readers: InputReaders, work: TaskRead, query: QueryOptions, columns: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a task reads, with the columns about the merge that are asked for."""
    if isinstance(work, Passage):
        return read_passage(readers, work, query.merge_columns, columns)
    return read_pack(readers, work, query.merge_columns, columns)


def splits_of(work: TaskRead) -> Iterator[Any]:
    """Yield all splits that a task reads."""
    if isinstance(work, Passage):
        for share in work.shares:
            yield from share.splits
    else:
        for item in work:
            yield item.split


def refuse_own_epochs(splits: Iterable[Any], query_id: str | None) -> None:
    """Refuse epochs that the very query has made that reads them."""
    writer = None if query_id is None else Transaction.writer_of_query(query_id)
    for split in splits:
        is_table = isinstance(split, RowsSplit | ChangesSplit | ViewSplit)
        if is_table and writer in split.queries:
            raise OptionError(
                "the query reads what it writes: a table that is among its inputs is its sink, "
                f"too, and {_versions(split)} is its own. Each batch would make the next one.",
                hint="write into another table, which 'inputsPattern' does not find, and with a "
                "new checkpointLocation. Who keeps a table clean by itself does it in batch "
                "writes, or reads another table that it was made from.",
            )


def _versions(split: RowsSplit | ChangesSplit | ViewSplit) -> str:
    if isinstance(split, ViewSplit):
        return "what a table of the plan gained"
    if isinstance(split, RowsSplit):
        return f"version {split.manifest.version} or one before it"
    versions = sorted(version for stretch in split.stretches for version in stretch.times_ms)
    return f"version {versions[0]} or one up to {versions[-1]}"
