"""Groups of rows with equal keys, and what is computed of each.

Rows become *states*: the columns of the key and those of the accumulators (`accumulators`), named
by their places. States of many rows fold into those of their groups, and those of groups again, so
that a batch, what is held and an answer have one form. A state also says where its group first
appeared, by which groups are put in order: Arrow's own grouping promises none.

In a key null equals null, NaN equals NaN, and -0.0 equals 0.0, which is what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import DataError, PlanError
from spark_upsert.model.arrays import Mask
from spark_upsert.model.names import find_repeated, has_column
from spark_upsert.model.words import equal_rows, is_hashable
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.kernels.equal_keys import canonical
from spark_upsert.task.operators.accumulators import Accumulator, accumulator_of

_OPTIONS = {"sum": pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)}


_AT = "at"
"""The column of a state that says where its group first appeared."""


class GroupComputation:
    """The computation of a node: the groups of its keys, and an answer for each aggregate.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the rows.
    keys : sequence of str
        Columns of the key; without any, all rows are one group.
    aggregates : sequence of Aggregate
        Without any, the distinct keys are the answer.

    Raises
    ------
    PlanError
        A column is missing, or is of a type that cannot be grouped by or aggregated so.
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
        self._accumulators = [self._accumulator(schema, each) for each in aggregates]
        self.schema = pa.schema(
            [
                *key_fields,
                *(
                    pa.field(
                        each.name, accumulator.type, nullable=each.kind is not AggregateKind.COUNT
                    )
                    for each, accumulator in zip(aggregates, self._accumulators, strict=True)
                ),
            ]
        )
        self._require_names()
        # Rows without a key are grouped by a column that is the same in all.
        self._key_names = [f"k{index}" for index in range(max(1, len(keys)))]
        counts = [len(each.folds) for each in self._accumulators]
        self._ends = [int(end) for end in np.cumsum(counts)]
        self._folds = ["min", *(how for each in self._accumulators for how in each.folds)]
        self._state_names = [_AT, *(f"s{index}" for index in range(len(self._folds) - 1))]

    def needed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are looked at, so that no others are held."""
        names = {*self._keys, *(each.column for each in self._aggregates)} - {None}
        columns = [name for name in rows.schema.names if name in names]
        # Rows without any column would not be counted.
        return rows.select(columns or rows.schema.names[:1])

    def states(self, batch: pa.RecordBatch, first: int) -> pa.Table:
        """Return the states of rows, one each; they are counted from ``first``."""
        keys = [canonical(batch.column(name)) for name in self._keys]
        if not keys:
            keys = [pa.array(np.zeros(batch.num_rows, dtype=np.int8))]
        columns = [pa.array(np.arange(first, first + batch.num_rows))]
        for each, accumulator in zip(self._aggregates, self._accumulators, strict=True):
            is_of_rows = each.column is None
            values = pa.nulls(batch.num_rows) if is_of_rows else batch.column(each.column)
            columns += accumulator.lift(values)
        return pa.table([*keys, *columns], names=[*self._key_names, *self._state_names])

    def nothing(self) -> pa.Table:
        """Return the state of no rows as that of the only group there is without keys."""
        states = [state for each in self._accumulators for state in each.nothing()]
        return pa.table(
            [pa.array([0], pa.int8()), pa.array([0]), *states],
            names=[*self._key_names, *self._state_names],
        )

    def fold(self, states: pa.Table) -> pa.Table:
        """Fold the states of each group into one, in the order in which groups first appear."""
        return self._folded(states, self._key_names)

    def fold_neighbours(self, states: pa.Table) -> pa.Table:
        """Fold the states of rows that stand side by side and have equal keys."""
        states = states.combine_chunks()
        begins = self._begins(states)
        numbers = pa.array(np.cumsum(begins))
        folded = self._folded(states.append_column("number", numbers), ["number"])
        firsts = pa.array(np.flatnonzero(begins))
        keys = [states.column(name).take(firsts) for name in self._key_names]
        columns = [folded.column(name) for name in self._state_names]
        return pa.table([*keys, *columns], names=[*self._key_names, *self._state_names])

    def answers(self, groups: pa.Table) -> pa.RecordBatch:
        """Return a row for each group, from its state.

        Raises
        ------
        DataError
            An exact sum does not fit into its type.
        """
        columns = [_whole(groups.column(name)) for name in self._key_names[: len(self._keys)]]
        for each, accumulator, states in zip(
            self._aggregates, self._accumulators, self._states_of(groups), strict=True
        ):
            try:
                columns.append(accumulator.lower(states))
            except OverflowError as error:
                raise DataError(
                    f"the {each.kind.value} '{each.name}' of a group does not fit into "
                    f"{accumulator.type}.",
                    hint=f"cast '{each.column}' to a wider type in a projection below it.",
                    column=each.column,
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _folded(self, states: pa.Table, by: list[str]) -> pa.Table:
        how = [
            (name, fold, _OPTIONS.get(fold))
            for name, fold in zip(self._state_names, self._folds, strict=True)
        ]
        grouped = states.group_by(by, use_threads=False).aggregate(how)
        folded = [grouped.column(f"{name}_{fold}") for name, fold, _ in how]
        table = pa.table(
            [*(grouped.column(name) for name in by), *folded], names=[*by, *self._state_names]
        )
        settled = [
            state
            for accumulator, states in zip(self._accumulators, self._states_of(table), strict=True)
            for state in accumulator.settle(states)
        ]
        columns = [*(table.column(name) for name in by), table.column(_AT), *settled]
        return _in_order(pa.table(columns, names=[*by, *self._state_names]))

    def _states_of(self, groups: pa.Table) -> list[list[pa.Array]]:
        """Return the columns of the states, apart by accumulator."""
        columns = [_whole(groups.column(name)) for name in self._state_names[1:]]
        return [columns[begin:end] for begin, end in pairwise([0, *self._ends])]

    def _begins(self, states: pa.Table) -> Mask:
        """Return which rows have another key than the one before them."""
        columns = [_whole(states.column(name)) for name in self._key_names]
        same = equal_rows(
            [column.slice(1) for column in columns],
            [column.slice(0, len(column) - 1) for column in columns],
        )
        return np.append(True, ~same)

    def _key_field(self, schema: pa.Schema, name: str) -> pa.Field:
        field = _field(schema, name)
        if not is_hashable(field.type):
            raise PlanError(
                f"'{name}' cannot be grouped by, because it is {field.type}.",
                hint="cast it in a projection below, to a text for instance.",
                column=name,
            )
        return field

    def _accumulator(self, schema: pa.Schema, aggregate: Aggregate) -> Accumulator:
        if aggregate.scale is not None:
            raise PlanError(
                f"'{aggregate.name}' has a scale, by which a view keeps sums of floats exactly.",
                hint="leave it out, or cast the column to a decimal in a projection below.",
                column=aggregate.column,
            )
        of = None if aggregate.column is None else _field(schema, aggregate.column).type
        found = accumulator_of(aggregate.kind, of)
        if found is None:
            what = "rows" if of is None else f"'{aggregate.column}', which is {of}"
            raise PlanError(
                f"there is no {aggregate.kind.value} of {what}.",
                hint="name a column." if of is None else "cast it in a projection below.",
                column=aggregate.column,
            )
        return found

    def _require_names(self) -> None:
        repeated = find_repeated(self.schema.names, is_exact=True)
        if repeated is not None:
            name, _ = repeated
            raise PlanError(
                f"there would be two columns '{name}'.",
                hint="give the aggregate another name.",
                column=name,
            )


def _in_order(groups: pa.Table) -> pa.Table:
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
