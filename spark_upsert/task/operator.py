"""The operator protocol: `BatchSource`, `Operator` and their signals; and simple operators.

One thread at a time is in a chain. After a barrier an operator holds no earlier rows, except for
counters (docs/adr/0033).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.errors import DataError, PlanError
from spark_upsert.plan.nodes import AssignUniqueId, Limit, Unnest, unnest, unnested_schema


class Signal(Enum):
    """A source's result if it has no batch."""

    WAIT = "wait"
    """Nothing at the moment."""

    DRAINED = "drained"
    """All rows before the barrier were emitted; signalled once per barrier."""

    ENDED = "ended"
    """All rows were emitted. Signalled on every later poll."""


class BatchSource(Protocol):
    """The source for a chain's batches, or for a join's right side."""

    @property
    def schema(self) -> pa.Schema:
        """Return the batch columns."""
        ...

    def poll(self) -> pa.RecordBatch | Signal:
        """Return the next batch, or why there is none; never blocks for another chain."""
        ...

    def close(self) -> None:
        """Release everything; also after an error, and twice."""
        ...


class Operator(Protocol):
    """A chain's stage. Its methods are called by one thread at a time.

    In each step the driver calls `output` on every stage whose successor accepts input. At a
    barrier stages drain in order: `start_drain` once, then `output` until `is_drained`; no input
    meanwhile. At the end `no_more_input` is called once per stage, after the previous one
    `is_finished`. A join polls its right side within `output` and `start_drain`, and has drained
    when both sides have.
    """

    @property
    def schema(self) -> pa.Schema:
        """Return the output columns."""
        ...

    def needs_input(self) -> bool:
        """Return whether it accepts a batch: not while it has output, drains, or waits."""
        ...

    def add_input(self, batch: pa.RecordBatch) -> None:
        """Accept a batch with at least one row; only after `needs_input` has returned True."""
        ...

    def output(self) -> pa.RecordBatch | None:
        """Return the next batch, None if there is none now; an empty batch is skipped."""
        ...

    def start_drain(self) -> bool:
        """Begin to emit all rows held back; False if there are none."""
        ...

    def is_drained(self) -> bool:
        """Return whether all rows were emitted.

        Called only after `start_drain` has returned True.
        """
        ...

    def no_more_input(self) -> None:
        """Signal the end of all input, after the last barrier."""
        ...

    def is_finished(self) -> bool:
        """Return whether it will never emit again: the input has ended, or it needs no more.

        When the plan's last operator has finished, the task has.
        """
        ...

    def waiting_on(self) -> Future[Any] | None:
        """Return the future it waits for while it emits nothing: called when its chain is stuck.

        The future is returned even if it is done by now. The driver found nothing to do a moment
        before; if it got None, it would wait forever for an event in between.
        """
        ...

    def close(self) -> None:
        """Release everything; also after an error, and idempotent. No call follows it."""
        ...


class Streaming:
    """An operator whose only state is one batch's remaining output.

    Parameters
    ----------
    schema : pyarrow.Schema
        The output schema.
    function : callable
        Converts a batch to another one; an empty result is skipped.
    batch_rows : int, optional
        Maximum rows per output batch.
    has_enough : callable, optional
        Returns whether it permanently needs no more input.
    """

    def __init__(
        self,
        schema: pa.Schema,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        batch_rows: int | None = None,
        has_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.schema = schema
        self._function = function
        self._batch_rows = batch_rows
        self._has_enough = has_enough
        self._made: pa.RecordBatch | None = None
        self._is_ended = False

    def needs_input(self) -> bool:
        return self._made is None and not self.is_finished()

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._made = self._function(batch)

    def output(self) -> pa.RecordBatch | None:
        output, self._made = self._made, None
        if output is None or self._batch_rows is None or output.num_rows <= self._batch_rows:
            return output
        self._made = output.slice(self._batch_rows)
        return output.slice(0, self._batch_rows)

    def start_drain(self) -> bool:
        return self._made is not None

    def is_drained(self) -> bool:
        return self._made is None

    def no_more_input(self) -> None:
        self._is_ended = True

    def is_finished(self) -> bool:
        return self._made is None and (self._is_ended or self._has_enough())

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._made = None


_INT64_END = 1 << 63


def limit_rows(node: Limit, schema: pa.Schema) -> Streaming:
    """Return an operator skipping the node's offset and passing rows up to its count.

    A barrier changes neither count.
    """
    skip, left = node.offset, node.count

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal skip, left
        part = batch.slice(skip, left)
        skip -= min(skip, batch.num_rows)
        left -= part.num_rows
        return part

    return Streaming(schema, apply, has_enough=lambda: not left)


def unnest_lists(node: Unnest, schema: pa.Schema) -> Streaming:
    """Return an operator emitting one row per list element."""
    input_schema = unnested_schema(node, schema)

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return unnest(node, batch, input_schema).rows

    return Streaming(input_schema, apply, batch_rows=node.batch_rows)


def number_rows(node: AssignUniqueId, schema: pa.Schema) -> Streaming:
    """Return an operator giving each row a number, no two alike over all barriers."""
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
