"""What one task of a read does, however its inputs are merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_upsert.options.query import QueryOptions
from spark_upsert.source.exact import Passage, read_passage
from spark_upsert.source.packs import Pack, Readers, read_pack

Work = Pack | Passage
"""Splits of some inputs, or a piece of an exact order; pickled into the task."""


def read_work(
    readers: Readers, work: Work, query: QueryOptions, columns: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a task reads, with the columns about the merge that are asked for.

    Parameters
    ----------
    columns : pyarrow.Schema or None
        What the batches of each input are brought to (`conform`).
    """
    if isinstance(work, Passage):
        return read_passage(readers, work, query.merge_columns, columns)
    return read_pack(readers, work, query.merge_columns, columns)


def splits_of(work: Work) -> Iterator[Any]:
    """Yield all splits that a task reads."""
    if isinstance(work, Passage):
        for share in work.shares:
            yield from share.splits
    else:
        for each in work:
            yield each.split
