"""Operators that hold no rows across a barrier, and not more than one batch within it.

Limits and unique numbers keep a counter over all barriers, which is the meaning of both.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import DataError, PlanError
from spark_upsert.task.operators.operator import Streaming
from spark_upsert.task.plan import AssignUniqueId, Limit, Unnest

_INT64_END = 1 << 63


class LimitRows:
    """The rows behind the first few, up to a number of them; a barrier changes neither count."""

    def __init__(self, node: Limit, schema: pa.Schema) -> None:
        self.schema = schema
        self._skip = node.offset
        self._left = node.count
        self._made: pa.RecordBatch | None = None
        self._is_ended = False

    def needs_input(self) -> bool:
        return self._made is None and not self.is_finished()

    def add_input(self, batch: pa.RecordBatch) -> None:
        part = batch.slice(self._skip, self._left)
        self._skip -= min(self._skip, batch.num_rows)
        self._left -= part.num_rows
        self._made = part if part.num_rows else None

    def output(self) -> pa.RecordBatch | None:
        made, self._made = self._made, None
        return made

    def start_drain(self) -> bool:
        return self._made is not None

    def is_drained(self) -> bool:
        return self._made is None

    def no_more_input(self) -> None:
        self._is_ended = True

    def is_finished(self) -> bool:
        return self._made is None and (self._is_ended or not self._left)

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._made = None


class UnnestRows:
    """A row for each element of a list; one batch comes in, batches of a size go out."""

    def __init__(self, node: Unnest, schema: pa.Schema) -> None:
        if node.column not in schema.names:
            raise PlanError.missing_column(node.column, schema.names)
        place = schema.get_field_index(node.column)
        kind = schema.field(place).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise PlanError(
                f"an unnest takes a column of lists, '{node.column}' is {kind}.",
                hint="name a column of lists.",
                column=node.column,
            )
        schema = schema.set(place, pa.field(node.column, kind.value_type))
        if node.position is not None:
            if node.position in schema.names:
                raise PlanError(
                    f"there is a column '{node.position}' already.",
                    hint="give 'position' another name.",
                    column=node.position,
                )
            schema = schema.append(pa.field(node.position, pa.int64(), nullable=False))
        self.schema = schema
        self._node = node
        self._rows: pa.RecordBatch | None = None
        self._is_ended = False

    def needs_input(self) -> bool:
        return self._rows is None and not self._is_ended

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._rows = self._unnested(batch)

    def output(self) -> pa.RecordBatch | None:
        if self._rows is None:
            return None
        given = self._rows.slice(0, self._node.batch_rows)
        rest = self._rows.slice(self._node.batch_rows)
        self._rows = rest if rest.num_rows else None
        return given

    def start_drain(self) -> bool:
        return self._rows is not None

    def is_drained(self) -> bool:
        return self._rows is None

    def no_more_input(self) -> None:
        self._is_ended = True

    def is_finished(self) -> bool:
        return self._is_ended and self._rows is None

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._rows = None

    def _unnested(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lists = batch[self._node.column]
        rows = pc.list_parent_indices(lists)
        elements = pc.list_flatten(lists)
        columns = [
            elements if name == self._node.column else batch[name].take(rows)
            for name in batch.schema.names
        ]
        if self._node.position is not None:
            columns.append(pa.array(_places(rows.to_numpy())))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _places(rows: Any) -> Any:
    """Return the place of each element in its own list; elements of a list are neighbours."""
    count = len(rows)
    begins = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]]) if count else np.zeros(0, np.int64)
    lengths = np.diff(np.append(begins, count))
    return np.arange(count) - np.repeat(begins, lengths)


def numbered(node: AssignUniqueId, schema: pa.Schema) -> Streaming:
    """Return an operator that gives each row a number, no two alike over all barriers.

    Raises
    ------
    PlanError
        There is a column of that name.
    """
    if node.column in schema.names:
        raise PlanError(
            f"there is a column '{node.column}' already.",
            hint="give 'column' another name.",
            column=node.column,
        )
    field = pa.field(node.column, pa.int64(), nullable=False)
    counter = node.first

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal counter
        end = counter + batch.num_rows
        if end > _INT64_END:
            raise DataError(
                f"the numbers in '{node.column}' have come to their end, 2**63.",
                hint="begin at a lower 'first'.",
            )
        numbers = pa.array(np.arange(counter, end, dtype=np.int64))
        counter = end
        return batch.append_column(field, numbers)

    return Streaming(schema.append(field), apply)
