"""The copy of a table (`copy_rows`), and which transactions it contains (`Visibility`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Mask
from spark_upsert.postgres.catalog import SourceTable, quoted
from spark_upsert.postgres.messages import COMMIT_LSN, OP, PUT, REASON, SEQUENCE, XID, Reasons
from spark_upsert.postgres.types import TypeNames, is_escaped, take_slices, value_type

_BLOCK_BYTES = 8 << 20
"""Rows decoded in one step."""

_EPOCH = 1 << 32
"""Transaction IDs in the log have 32 bits."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """The transactions that a snapshot contains, as ``pg_current_snapshot()`` describes it.

    A committed transaction is in a snapshot completely or not at all, whatever its log position:
    it becomes visible before its commit record is flushed if commits are asynchronous, and
    afterwards if it waits for a standby. So the log position decides nothing here.
    """

    xmin: int
    """All transactions before it are contained."""
    xmax: int
    """None from it on is contained."""
    running: tuple[int, ...]
    """Those between that are not contained."""

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Parse ``xmin:xmax:xid,xid``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, running.split(","))) if running else ())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def contains(self, xids: npt.NDArray[np.int64]) -> Mask:
        """Return which transactions a snapshot contains, by their IDs as the log has them."""
        full = self.xmax - self.xmax % _EPOCH + xids
        full = np.where(full > self.xmax + _EPOCH // 2, full - _EPOCH, full)
        full = np.where(full < self.xmax - _EPOCH // 2, full + _EPOCH, full)
        is_running = np.isin(full, np.array(self.running, np.int64))
        return np.asarray((full < self.xmin) | ((full < self.xmax) & ~is_running))


def copy_rows(
    connection: Any, table: SourceTable, names: TypeNames, place: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """Yield a table's rows in the connection's snapshot, in the form of changes; at least one batch.

    ``COPY`` in text form gives the texts that the log would give. ``place``, a position and a
    number, orders the rows.
    """
    columns = ", ".join(quoted(column.name) for column in table.columns)
    schema, name = map(quoted, table.target)
    condition = "" if table.row_filter is None else f" WHERE {table.row_filter}"
    # A partitioned table by its root; any other without tables that inherit from it.
    only = "" if table.is_partition else "ONLY "
    query = f"COPY (SELECT {columns} FROM {only}{schema}.{name}{condition}) TO STDOUT"
    lines: list[bytes] = []
    size = 0
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for line in copy:
            lines.append(bytes(line))
            size += len(line)
            if size >= _BLOCK_BYTES:
                yield _decode(table, names, lines, place)
                lines, size = [], 0
    yield _decode(table, names, lines, place)


def _decode(
    table: SourceTable, names: TypeNames, lines: Sequence[bytes], place: tuple[int, int]
) -> pa.RecordBatch:
    reasons = Reasons(len(lines))
    texts = split_copy(b"".join(lines), len(table.columns), len(lines))
    columns = {
        column.name: reasons.read(
            column.name, value_type(column.type_oid, column.modifier, names), text
        )
        for column, text in zip(table.columns, texts, strict=True)
    }
    return pa.RecordBatch.from_pydict(
        {
            **columns,
            OP: pa.repeat(PUT, len(lines)),
            COMMIT_LSN: pa.repeat(pa.scalar(place[0], pa.int64()), len(lines)),
            SEQUENCE: pa.repeat(pa.scalar(place[1], pa.int64()), len(lines)),
            XID: pa.nulls(len(lines), pa.int64()),
            REASON: reasons.texts,
        }
    )


_TAB, _NEWLINE, _BACKSLASH, _NULL = b"\t\n\\N"
_ESCAPED = np.arange(256, dtype=np.uint8)
_ESCAPED[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


def split_copy(data: bytes, width: int, count: int) -> list[pa.StringArray]:
    r"""Return the columns of ``COPY`` in text form: tabs, line feeds, ``\N`` and escapes.

    Source: PostgreSQL, ``CopyAttributeOutText`` (copyto.c).
    """
    if not width:
        return []
    chars = np.frombuffer(data, np.uint8)
    is_backslash = chars == _BACKSLASH
    escaped = is_escaped(is_backslash)
    # Within values, tabs and line feeds are always written as escapes.
    ends = np.flatnonzero((chars == _TAB) | (chars == _NEWLINE)).reshape(count, width)
    starts = np.concatenate([[0], ends.ravel()[:-1] + 1])[: ends.size].reshape(count, width)
    is_null = (ends - starts == 2) & is_backslash[starts.clip(max=len(chars) - 1)]
    is_null &= chars[(starts + 1).clip(max=len(chars) - 1)] == _NULL
    if is_backslash.any():
        kept = ~is_backslash | escaped
        before = np.concatenate([[0], np.cumsum(kept)])
        chars = np.where(escaped, _ESCAPED[chars], chars)[kept]
        starts, ends = before[starts], before[ends]
    buffer = pa.py_buffer(np.ascontiguousarray(chars))
    return [
        take_slices(
            buffer,
            starts[:, index],
            ends[:, index] - starts[:, index],
            ~is_null[:, index],
        )
        for index in range(width)
    ]
