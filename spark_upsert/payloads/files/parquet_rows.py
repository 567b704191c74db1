"""The rows of a Parquet file in batches that are bounded in rows and in bytes.

Parquet's reader is given a number of rows, whatever they hold, and cannot be given another one on
its way. So this number follows from the rows seen so far: at first from the sizes in the footer;
and where a batch shows that it is far off, the row group is opened anew behind the rows that were
read. The footer says little about a dictionary (a text of a megabyte may stand there once, and in
each row), so the reader looks at a few rows first.

The format itself reads a page of each column as a whole, and holds it beside the batches. For a
file in a bucket it holds the packed columns of a row group, which come by few requests.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.model.portions import BATCH_BYTES, HAND_OFF_ROWS, portions

_COLUMN_BYTES = 1 << 16
"""Bytes of a column's chunk that are read at once on a local disk; by default all of it."""

_LOOKED_AT = 16
"""Rows that are read first where nothing tells how large they are."""

_TOO_FEW = 8
"""How many times the rows larger batches must have for a row group to be opened anew."""

_ANEW_MAX = 8
"""Times that a row group of rows now small, now large is opened anew; then batches only shrink.
"""

_AIM_BYTES = BATCH_BYTES // 2
"""Bytes to aim at: rows differ, and a batch that exceeds the bound is held until it is cut."""

_DICTIONARIES = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})


def opened_for_rows(file: pa.NativeFile) -> pq.ParquetFile:
    """Return an open file for reading its rows."""
    if isinstance(file, pa.OSFile):
        return pq.ParquetFile(
            file, page_checksum_verification=True, pre_buffer=False, buffer_size=_COLUMN_BYTES
        )
    return pq.ParquetFile(file, page_checksum_verification=True)


def iter_rows(
    opened: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups in their order, some columns of them.

    Batches are within `HAND_OFF_ROWS` and `BATCH_BYTES`, unless one row alone is larger.
    """
    rows: int | None = None
    for group in groups:
        rows = yield from _of_group(opened, group, columns, rows)


def _of_group(
    opened: pq.ParquetFile, group: int, columns: Sequence[str], rows: int | None
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the rows of a row group; return how many of its last rows make a batch."""
    footer = opened.metadata.row_group(group)
    rows = rows or _expected(footer, columns)
    given = anew = 0
    while True:
        batches = opened.iter_batches(
            rows, row_groups=[group], columns=list(columns), use_threads=False
        )
        for batch in _behind(batches, given):
            given += batch.num_rows
            yield from portions(batch)
            better = _fitting(batch.num_rows, batch.nbytes)
            is_too_few = better >= _TOO_FEW * rows and anew < _ANEW_MAX
            is_too_large = batch.nbytes > BATCH_BYTES and better < rows
            if (is_too_few or is_too_large) and given != footer.num_rows:
                rows, anew = better, anew + 1
                break
        else:
            return rows


def _behind(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches behind a number of rows."""
    for batch in batches:
        part = batch.slice(rows)
        rows -= batch.num_rows - part.num_rows
        if part.num_rows:
            yield part


def _fitting(rows: int, size: int) -> int:
    """Return how many rows make a batch, if so many of them have a size."""
    return max(1, min(HAND_OFF_ROWS, _AIM_BYTES * rows // max(1, size)))


def _expected(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """Return how many rows make a batch, by what the footer says."""
    wanted, size = frozenset(columns), 0
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema.partition(".")[0] in wanted:
            is_text = chunk.physical_type == "BYTE_ARRAY"
            if is_text and not _DICTIONARIES.isdisjoint(chunk.encodings):
                return _LOOKED_AT
            size += chunk.total_uncompressed_size
    return _fitting(group.num_rows, size)
