"""The protocols between a driver and its operators.

A driver runs a chain: a `BatchSource`, some `Operator`s, and where the rows go. Arrow record
batches travel, never an empty one. One thread at a time is in a chain, so that no operator needs a
lock.

**A step.** From the end of the chain to its begin, the driver takes what an operator has
(`Operator.output`) if the next one takes it (`Operator.needs_input`), and gives it on
(`Operator.add_input`). It asks `output` of every operator in every step in which the next one
takes input, whether it was fed or not.

**A barrier.** When the source says `Signal.DRAINED`, the operators drain one after the other, the
first one first: `start_drain` once; if it says True, `output` as always until `is_drained`. An
operator that drains is given no more input. All operators before it have drained, those behind it
have not begun. Behind the barrier no operator holds anything that came before it, but counters that
its docstring names. The same operator then takes the rows behind the barrier.

**The end.** When the source says `Signal.ENDED`, `no_more_input` comes once, to one operator after
the other in the same way: the next one is told when the one before it `is_finished`. No drain comes
behind it.

**Two sides.** A join is in the chain of its left side. Its right side is a `BatchSource` that it
polls by itself, within `output` and `start_drain` only; it is behind a batch or the right side's
own barrier whenever it likes. It has drained when both sides have and what follows from them is
given.

**Giving up early.** A merge join that needs no more rows of a side until the barrier says so
(`Pipelines.drop_input`); what is under way may still come.

Operators that hold no rows across a barrier, and not more than one batch within it.

Limits and unique numbers keep a counter over all barriers, which is the meaning of both.
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
    """The answer of a source that has no batch."""

    WAIT = "wait"
    """Nothing at the moment."""

    DRAINED = "drained"
    """All before the barrier was given; said once, and nothing comes until the barrier is over."""

    ENDED = "ended"
    """All was given. Said whenever it is asked from here on."""


class BatchSource(Protocol):
    """The source of a chain's batches, or of the right side of a join."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of its batches."""
        ...

    def poll(self) -> pa.RecordBatch | Signal:
        """Return the next batch, or why there is none; never blocks for another chain."""
        ...

    def close(self) -> None:
        """Release everything; also after an error, and twice."""
        ...


class Operator(Protocol):
    """A stage of a chain. Its methods are called by one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the batches that it gives."""
        ...

    def needs_input(self) -> bool:
        """Say whether it takes a batch: not while it has output to give, drains, or waits."""
        ...

    def add_input(self, batch: pa.RecordBatch) -> None:
        """Take a batch, of at least one row; only after `needs_input` has said True."""
        ...

    def output(self) -> pa.RecordBatch | None:
        """Return the next batch, None if there is none now; one of no rows is passed by."""
        ...

    def start_drain(self) -> bool:
        """Begin to give all that is held back; False if that is nothing."""
        ...

    def is_drained(self) -> bool:
        """Say whether all was given; asked only after `start_drain` has said True."""
        ...

    def no_more_input(self) -> None:
        """Learn that nothing comes any more: the end of all input, behind the last barrier."""
        ...

    def is_finished(self) -> bool:
        """Say whether it will never give anything again: the end has come, or it wants no more.

        When the last operator of the whole plan has finished, the task has.
        """
        ...

    def waiting_on(self) -> Future[Any] | None:
        """Return what it waits for while it gives nothing: a driver asks when its chain is stuck.

        The future is returned even if it is done by now. The driver found nothing to do a moment
        before; given None, it would wait for ever for what came in between.
        """
        ...

    def close(self) -> None:
        """Release everything; also after an error, and twice. Nothing is called behind it."""
        ...


class Streaming:
    """An operator that keeps nothing but what it made of one batch, or has not given of that yet.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the output.
    function : callable
        Makes of a batch another one; one of no rows is passed by.
    batch_rows : int, optional
        What was made is given in batches of at most so many rows.
    has_enough : callable, optional
        Says whether it wants no more for ever.
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


def limited(node: Limit, schema: pa.Schema) -> Streaming:
    """Return an operator that gives the rows behind the first few, up to a number of them.

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


def unnested(node: Unnest, schema: pa.Schema) -> Streaming:
    """Return an operator that gives a row for each element of a list."""
    input_schema = unnested_schema(node, schema)

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return unnest(node, batch, input_schema).rows

    return Streaming(input_schema, apply, batch_rows=node.batch_rows)


def numbered(node: AssignUniqueId, schema: pa.Schema) -> Streaming:
    """Return an operator that gives each row a number, no two alike over all barriers."""
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
