"""Group aggregation (`aggregation`): one row per group of the rows since the last barrier.

Rows, held groups and results share one state format. In a key null equals null, NaN equals NaN, and
-0.0 equals 0.0. Groups come in first-occurrence order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, equal_rows, is_hashable
from spark_upsert.core.names import find_repeated, has_column
from spark_upsert.errors import DataError, MemoryLimitError, PlanError, about
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.join_keys import canonical
from spark_upsert.plan.nodes import Group
from spark_upsert.task.accumulators import Accumulator, accumulator_of

_OPTIONS = {"sum": pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)}


_AT = "at"
"""The state column with the group's first occurrence."""


class GroupComputation:
    """A node's computation: the groups by key, and one result per aggregate.

    Parameters
    ----------
    schema : pyarrow.Schema
        The rows' schema.
    keys : sequence of str
        Key columns; without any, all rows are one group.
    aggregates : sequence of Aggregate
        Without any, the distinct keys are the result.
    """

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], aggregates: Sequence[Aggregate]
    ) -> None:
        self._keys = tuple(keys)
        self._aggregates = tuple(aggregates)
        if not keys and not aggregates:
            raise PlanError(
                "it has neither keys nor aggregates, so that it would have no columns.",
                hint="give it one or the other.",
            )
        key_fields = [self._key_field(schema, name) for name in keys]
        self._accumulators = [self._accumulator(schema, aggregate) for aggregate in aggregates]
        self.schema = pa.schema(
            [
                *key_fields,
                *(
                    pa.field(
                        aggregate.name,
                        accumulator.type,
                        nullable=aggregate.kind is not AggregateKind.COUNT,
                    )
                    for aggregate, accumulator in zip(aggregates, self._accumulators, strict=True)
                ),
            ]
        )
        self._require_distinct_names()
        # Rows without a key are grouped by a constant column.
        self._key_names = [f"k{index}" for index in range(max(1, len(keys)))]
        counts = [len(accumulator.folds) for accumulator in self._accumulators]
        self._ends = [int(end) for end in np.cumsum(counts)]
        self._folds = [
            "min",
            *(how for accumulator in self._accumulators for how in accumulator.folds),
        ]
        self._state_names = [_AT, *(f"s{index}" for index in range(len(self._folds) - 1))]

    def select_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the needed columns, to hold no others."""
        names = {*self._keys, *(aggregate.column for aggregate in self._aggregates)} - {None}
        columns = [name for name in rows.schema.names if name in names]
        # Rows without any column would not be counted.
        return rows.select(columns or rows.schema.names[:1])

    def states(self, batch: pa.RecordBatch, first: int) -> pa.Table:
        """Return one state per row; row numbers start at ``first``."""
        keys = [canonical(batch.column(name)) for name in self._keys]
        if not keys:
            keys = [pa.array(np.zeros(batch.num_rows, dtype=np.int8))]
        columns = [pa.array(np.arange(first, first + batch.num_rows))]
        for aggregate, accumulator in zip(self._aggregates, self._accumulators, strict=True):
            is_of_rows = aggregate.column is None
            values = pa.nulls(batch.num_rows) if is_of_rows else batch.column(aggregate.column)
            columns += accumulator.lift(values)
        return pa.table([*keys, *columns], names=[*self._key_names, *self._state_names])

    def empty_state(self) -> pa.Table:
        """Return the only group's state for zero rows, if there are no keys."""
        states = [
            state for accumulator in self._accumulators for state in accumulator.empty_state()
        ]
        return pa.table(
            [pa.array([0], pa.int8()), pa.array([0]), *states],
            names=[*self._key_names, *self._state_names],
        )

    def fold(self, states: pa.Table) -> pa.Table:
        """Fold each group's states into one, in order of first occurrence."""
        return self._fold_by(states, self._key_names)

    def fold_neighbours(self, states: pa.Table) -> pa.Table:
        """Fold the states of adjacent rows with equal keys."""
        states = states.combine_chunks()
        begins = self._group_starts(states)
        numbers = pa.array(np.cumsum(begins))
        folded = self._fold_by(states.append_column("number", numbers), ["number"])
        firsts = pa.array(np.flatnonzero(begins))
        keys = [states.column(name).take(firsts) for name in self._key_names]
        columns = [folded.column(name) for name in self._state_names]
        return pa.table([*keys, *columns], names=[*self._key_names, *self._state_names])

    def results(self, groups: pa.Table) -> pa.RecordBatch:
        """Return a row for each group, from its state."""
        columns = [_whole(groups.column(name)) for name in self._key_names[: len(self._keys)]]
        for aggregate, accumulator, states in zip(
            self._aggregates, self._accumulators, self._states_by_accumulator(groups), strict=True
        ):
            try:
                columns.append(accumulator.lower(states))
            except OverflowError as error:
                raise DataError(
                    f"the {aggregate.kind.value} '{aggregate.name}' of a group does not fit into "
                    f"{accumulator.type}.",
                    hint=f"cast '{aggregate.column}' to a wider type in a projection below it.",
                    column=aggregate.column,
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _fold_by(self, states: pa.Table, by: list[str]) -> pa.Table:
        """Fold the states with equal values in the ``by`` columns, in first-occurrence order."""
        how = [
            (name, fold, _OPTIONS.get(fold))
            for name, fold in zip(self._state_names, self._folds, strict=True)
        ]
        grouped = states.group_by(by, use_threads=False).aggregate(how)
        folded = [grouped.column(f"{name}_{fold}") for name, fold, _ in how]
        table = pa.table(
            [*(grouped.column(name) for name in by), *folded], names=[*by, *self._state_names]
        )
        normalized = [
            state
            for accumulator, states in zip(
                self._accumulators, self._states_by_accumulator(table), strict=True
            )
            for state in accumulator.normalize(states)
        ]
        columns = [*(table.column(name) for name in by), table.column(_AT), *normalized]
        return _sort_by_first_row(pa.table(columns, names=[*by, *self._state_names]))

    def _states_by_accumulator(self, groups: pa.Table) -> list[list[pa.Array]]:
        """Return each accumulator's state columns.

        The first state column has a group's first row number (`_AT`) and belongs to none.
        """
        accumulator_columns = self._state_names[1:]
        columns = [_whole(groups.column(name)) for name in accumulator_columns]
        return [columns[begin:end] for begin, end in pairwise([0, *self._ends])]

    def _group_starts(self, states: pa.Table) -> Mask:
        """Return which rows have another key than the one before them."""
        columns = [_whole(states.column(name)) for name in self._key_names]
        same = equal_rows(
            [column.slice(1) for column in columns],
            [column.slice(0, len(column) - 1) for column in columns],
        )
        return np.append(True, ~same)

    def _key_field(self, schema: pa.Schema, name: str) -> pa.Field:
        """Return a key column's field; raises `PlanError` if its type cannot be grouped."""
        field = _field(schema, name)
        if not is_hashable(field.type):
            raise PlanError(
                f"'{name}' cannot be grouped by, because it is {field.type}.",
                hint="cast it in a projection below, to a text for instance.",
                column=name,
            )
        return field

    def _accumulator(self, schema: pa.Schema, aggregate: Aggregate) -> Accumulator:
        """Return an aggregate's accumulator; raises `PlanError` if its column's type has none."""
        if aggregate.scale is not None:
            raise PlanError(
                f"'{aggregate.name}' has a scale, by which a view keeps sums of floats exactly.",
                hint="leave it out, or cast the column to a decimal in a projection below.",
                column=aggregate.column,
            )
        of = None if aggregate.column is None else _field(schema, aggregate.column).type
        accumulator = accumulator_of(aggregate.kind, of)
        if accumulator is None:
            subject = "rows" if of is None else f"'{aggregate.column}', which is {of}"
            raise PlanError(
                f"there is no {aggregate.kind.value} of {subject}.",
                hint="name a column." if of is None else "cast it in a projection below.",
                column=aggregate.column,
            )
        return accumulator

    def _require_distinct_names(self) -> None:
        """Raise `PlanError` if two result columns have the same name."""
        repeated = find_repeated(self.schema.names, is_exact=True)
        if repeated is not None:
            name, _ = repeated
            raise PlanError(
                f"there would be two columns '{name}'.",
                hint="give the aggregate another name.",
                column=name,
            )


def _sort_by_first_row(groups: pa.Table) -> pa.Table:
    """Put groups in the order in which they first appeared."""
    at = np.asarray(groups.column(_AT))
    if bool((np.diff(at) > 0).all()):
        return groups
    return groups.take(pa.array(np.argsort(at)))


def _field(schema: pa.Schema, name: str) -> pa.Field:
    if not has_column(schema, name):
        raise PlanError.missing_column(name, schema.names)
    return schema.field(name)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


MEMORY_BYTES_MAX = 256 << 20
"""Default memory limit in bytes for one barrier's groups."""

_FEW_ROWS = 1 << 18
"""Rows to buffer before they are folded into the groups: a fold costs some fixed time."""

_FEW_BYTES = 64 << 20
"""Buffered bytes to fold at once, however few the rows."""

_OPEN_ROWS = 1 << 10
"""Rows from small batches to buffer before groups are formed in clustered rows."""


def aggregation(node: Group, schema: pa.Schema) -> HashAggregation | StreamingAggregation:
    """Return a node's operator."""
    with about("node", node.id):
        grouping = GroupComputation(schema, node.keys, node.aggregates)
    # Of rows without a key there is one group, and nothing could be given before the barrier.
    if node.is_clustered and node.keys:
        return StreamingAggregation(node, grouping)
    return HashAggregation(node, grouping)


class _Waiting:
    """Rows buffered for grouping, and the number of rows before them."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._before = 0
        self.rows = 0
        self.nbytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes

    def take(self) -> tuple[pa.RecordBatch, int]:
        """Return the rows in one batch, and how many came before them; they wait no more."""
        taken = pa.concat_batches(self._batches), self._before
        self._before += self.rows
        self._batches, self.rows, self.nbytes = [], 0, 0
        return taken


class HashAggregation:
    """Groups for rows in any order, all held until the barrier.

    Groups are returned in order of first occurrence. Without keys there is one row per
    barrier, with or without rows before it, and one more at the end of all input: for the
    rows after the last barrier, usually none.

    Rows are buffered until they outnumber the existing groups, which bounds the fold cost per group
    by the row count. The held groups have a limit in bytes; exceeding it is an error, without a
    spill.
    """

    def __init__(self, node: Group, grouping: GroupComputation) -> None:
        self._node = node
        self._grouping = grouping
        self.schema = grouping.schema
        self._memory_bytes_max = (
            MEMORY_BYTES_MAX if node.memory_bytes_max is None else node.memory_bytes_max
        )
        self._groups: pa.Table | None = None
        self._waiting = _Waiting()
        self._given: deque[pa.RecordBatch] | None = None
        self._is_ended = False
        self._reset()

    def needs_input(self) -> bool:
        return self._given is None and not self._is_ended

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._waiting.add(self._grouping.select_columns(batch))
        if self._is_fold_due():
            self._fold()
            with about("node", self._node.id):
                self._fail_if_over_memory_limit()

    def output(self) -> pa.RecordBatch | None:
        return self._given.popleft() if self._given else None

    def start_drain(self) -> bool:
        self._emit()
        return bool(self._given)

    def is_drained(self) -> bool:
        if self._given:
            return False
        self._given = None
        return True

    def no_more_input(self) -> None:
        self._is_ended = True
        self._emit()

    def is_finished(self) -> bool:
        return self._is_ended and not self._given

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._groups, self._waiting, self._given = None, _Waiting(), None

    def _reset(self) -> None:
        self._groups = None if self._node.keys else self._grouping.empty_state()
        self._group_bytes = 0

    def _is_fold_due(self) -> bool:
        rows, size = self._waiting.rows, self._waiting.nbytes
        group_count = 0 if self._groups is None else self._groups.num_rows
        return (
            rows >= max(group_count, _FEW_ROWS)
            or size >= _FEW_BYTES
            or size + self._group_bytes > self._memory_bytes_max
        )

    def _fold(self) -> None:
        """Fold the buffered rows into the groups."""
        if self._waiting.rows:
            held = [] if self._groups is None else [self._groups]
            states = self._grouping.states(*self._waiting.take())
            groups = self._grouping.fold(pa.concat_tables([*held, states]))
            self._groups, self._group_bytes = groups, groups.nbytes

    def _emit(self) -> None:
        """Emit the groups' results, and drop the groups."""
        self._fold()
        groups, self._given = self._groups, None
        self._reset()
        if groups is not None:
            with about("node", self._node.id):
                answers = self._grouping.results(groups)
            rows = self._node.batch_rows
            self._given = deque(
                answers.slice(begin, rows) for begin in range(0, answers.num_rows, rows)
            )

    def _fail_if_over_memory_limit(self) -> None:
        """Raise `MemoryLimitError` if the held groups exceed the node's limit: they never spill."""
        needed = self._group_bytes
        if needed > self._memory_bytes_max:
            assert self._groups is not None
            raise MemoryLimitError(
                f"{self._groups.num_rows} groups have {needed} bytes, but only "
                f"{self._memory_bytes_max} are allowed, and groups are not spilled.",
                hint="raise the node's 'memory_bytes_max', ask for barriers more often, or "
                "partition its input by its keys among more drivers.",
                needed=needed,
                limit=self._memory_bytes_max,
            )


class StreamingAggregation:
    """Groups for clustered rows: rows with equal keys are adjacent.

    It holds the open group, and complete ones up to a batch. Clustering
    is not checked: a repeated key yields another row, as it does after a barrier.
    """

    def __init__(self, node: Group, grouping: GroupComputation) -> None:
        self._node = node
        self._grouping = grouping
        self.schema = grouping.schema
        self._open: pa.Table | None = None
        self._closed: list[pa.Table] = []
        self._closed_rows = 0
        self._waiting = _Waiting()
        self._is_draining = False
        self._is_ended = False

    def needs_input(self) -> bool:
        return (
            self._closed_rows < self._node.batch_rows
            and not self._is_draining
            and not self._is_ended
        )

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._waiting.add(self._grouping.select_columns(batch))
        if self._waiting.rows >= min(_OPEN_ROWS, self._node.batch_rows):
            self._fold()

    def output(self) -> pa.RecordBatch | None:
        least_rows = 1 if self._is_draining or self._is_ended else self._node.batch_rows
        if self._closed_rows < least_rows:
            return None
        groups = pa.concat_tables(self._closed)
        self._closed, self._closed_rows = [], 0
        self._close(groups.slice(self._node.batch_rows))
        with about("node", self._node.id):
            return self._grouping.results(groups.slice(0, self._node.batch_rows))

    def start_drain(self) -> bool:
        self._close_last()
        self._is_draining = self._closed_rows > 0
        return self._is_draining

    def is_drained(self) -> bool:
        self._is_draining = self._closed_rows > 0
        return not self._is_draining

    def no_more_input(self) -> None:
        self._is_ended = True
        self._close_last()

    def is_finished(self) -> bool:
        return self._is_ended and not self._closed_rows

    def waiting_on(self) -> Future[Any] | None:
        return None

    def close(self) -> None:
        self._open, self._closed, self._closed_rows = None, [], 0
        self._waiting = _Waiting()

    def _fold(self) -> None:
        """Fold the waiting rows into groups; the last group stays open."""
        if self._waiting.rows:
            held = [] if self._open is None else [self._open]
            states = self._grouping.states(*self._waiting.take())
            groups = self._grouping.fold_neighbours(pa.concat_tables([*held, states]))
            self._open = groups.slice(groups.num_rows - 1)
            self._close(groups.slice(0, groups.num_rows - 1))

    def _close(self, groups: pa.Table) -> None:
        if groups.num_rows:
            self._closed.append(groups)
            self._closed_rows += groups.num_rows

    def _close_last(self) -> None:
        self._fold()
        if self._open is not None:
            self._close(self._open)
            self._open = None
