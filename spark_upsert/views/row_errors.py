"""Rows for which a formula has no value: NULL, so that a view is defined at every position.

`OnError` decides whether such a NULL may be output (docs/adr/0035). Failing rows are found by
bisecting a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import Mask
from spark_upsert.errors import DataError, setting
from spark_upsert.plan.nodes import Node
from spark_upsert.views.intervals import RelationRows, concat
from spark_upsert.views.relation import At, Formulas, Relation, Source, distinct_rows

RECORDED_ROWS_MAX = 1 << 20
"""Maximum failing row keys held by a task until they are resolved; more are no accident."""


class ComputeColumn(Protocol):
    """Computes a column."""

    @property
    def type(self) -> pa.DataType:
        """The values' type."""
        ...

    def of(self, rows: RelationRows) -> pa.Array:
        """Return the rows' values; raise `DataError` if one has none."""
        ...


class NodeFormulas:
    """A node's formulas, and the rows read so far for which one has no value (`Formulas`).

    Parameters
    ----------
    node : Node
    bounds : sequence of Column
        The formulas, over the input rows.
    input_ : Relation
        The input; its rows are looked up again by key.
    """

    def __init__(self, node: Node, bounds: Sequence[ComputeColumn], input_: Relation) -> None:
        self._node = node
        self._bounds = bounds
        self._input = input_
        self._noted: list[RelationRows] = []
        """Keys, with the input's column names."""
        self._has_more = False
        """Whether more rows were met than are held."""
        self.failed = 0

    def of(self, rows: RelationRows) -> list[pa.Array]:
        """Return each formula's values, NULL where it has none."""
        result, failing = self._evaluate(rows)
        if failing is not None:
            bad = rows.filter(pa.array(failing))
            self.failed += bad.num_rows
            self._note(bad)
        return result

    def _evaluate(self, rows: RelationRows) -> tuple[list[pa.Array], Mask | None]:
        """Return the values, and the rows without one; None if all have theirs."""
        pieces, failing = [], None
        for bound in self._bounds:
            try:
                pieces.append(bound.of(rows))
            except DataError:
                values, has_none = _by_halves(bound, rows)
                pieces.append(values)
                failing = has_none if failing is None else failing | has_none
        return pieces, failing

    def _note(self, bad: RelationRows) -> None:
        """Record the rows' distinct keys, up to the maximum."""
        self._noted.append(bad.select(self._key))
        if sum(batch.num_rows for batch in self._noted) > RECORDED_ROWS_MAX:
            every = distinct_rows(concat(self._noted))
            self._has_more = self._has_more or every.num_rows > RECORDED_ROWS_MAX
            self._noted = [every.slice(0, RECORDED_ROWS_MAX)]

    def require_values(self, positions: Sequence[At]) -> None:
        """Raise if a recorded row lacks a value at every given position (`Formulas`)."""
        if not self._noted:
            return
        bad = distinct_rows(concat(self._noted))
        for at in positions:
            looked = self._input.look_up(bad.select(self._key), at)
            there = looked.rows.filter(pa.array(looked.present))
            failing = self._evaluate(there)[1]
            if failing is None:
                if self._has_more:
                    raise self._overflow_error()
                return
            bad = there.filter(pa.array(failing))
        raise self._error(bad, positions[-1])

    def clear(self) -> None:
        """Clear the recorded rows (`Formulas.clear`)."""
        self._noted, self._has_more, self.failed = [], False, 0

    @property
    def _key(self) -> list[str]:
        assert self._input.key is not None, "what is computed carries its key (`bind_group`)"
        return list(self._input.key)

    def _error(self, bad: RelationRows, at: At) -> DataError:
        """Return the error for rows without a value; it names the first one."""
        reason = "a formula has no value"
        for bound in self._bounds:
            try:
                bound.of(bad.slice(0, 1))
            except DataError as error:
                reason = error.message.rstrip(".")
                break
        sources = [
            source for source in self._input.sources if _is_there(bad, source)
        ] or self._input.sources[:1]
        row = " beside ".join(_describe_row(bad, source, at) for source in sources)
        beyond = set(self._key) - {name for source in sources for name in source.columns}
        if beyond:
            row += f" (of which {_values(bad, [n for n in self._key if n in beyond])})"
        more = f" and {bad.num_rows - 1} more" if bad.num_rows > 1 else ""
        return DataError(
            f"{reason}. It is about the node '{self._node.title}' of the plan and the row {row}"
            f"{more}. Nothing was committed.",
            hint=f"{_repair(sources)}let formulas be NULL where they "
            f"have no value, by {setting('onError', 'null')}; or compute none there, by CASE WHEN "
            "in the plan.",
            example=row,
        )

    def _overflow_error(self) -> DataError:
        return DataError(
            f"formulas of the node '{self._node.title}' of the plan have no value for more than "
            f"{RECORDED_ROWS_MAX} rows, which is how many are held to be looked at again. Nothing was "
            "committed.",
            hint="let formulas be NULL where they have no value, by "
            f"{setting('onError', 'null')}: rows that were repaired since come out repaired.",
        )


def _is_there(rows: RelationRows, source: Source) -> bool:
    """Return whether the first row derives from a table's row, by its key columns."""
    return any(rows.column(name)[0].is_valid for name in source.columns)


def _describe_row(rows: RelationRows, source: Source, at: At) -> str:
    """Return a description of the first row's base row in a table, and its version."""
    values = _values(rows, source.columns, source.scan.key)
    version = at.get(source.scan.path) if source.scan.version is None else source.scan.version
    return f"{values} of '{source.scan.path}' at version {version}"


def _values(rows: RelationRows, columns: Sequence[str], names: Sequence[str] | None = None) -> str:
    """Return the first row's values as text, optionally with other names."""
    return ", ".join(
        f"{name}={rows.column(column)[0].as_py()!r}"
        for column, name in zip(columns, names or columns, strict=True)
    )


def _repair(sources: Sequence[Source]) -> str:
    """Return repair instructions for a row's base tables."""
    live = [source for source in sources if source.scan.version is None]
    if any(not source.is_kept for source in live):
        return "repair the row or delete it, and start again; or "
    if live:
        return (
            f"repair the rows that '{live[0].scan.path}' is kept of, bring it up to date, and "
            "start again; or "
        )
    return ""


def _by_halves(bound: ComputeColumn, rows: RelationRows) -> tuple[pa.Array, Mask]:
    """Return values computed by bisection, NULL where there is none, and the failing rows' mask."""
    failing = np.zeros(rows.num_rows, dtype=np.bool_)
    parts: list[pa.Array] = []
    pending = [(0, rows.num_rows)]
    while pending:
        first, count = pending.pop()
        try:
            parts.append(bound.of(rows.slice(first, count)))
        except DataError:
            if count == 1:
                failing[first] = True
                parts.append(pa.nulls(1, bound.type))
            else:
                half = count // 2
                pending += [(first + half, count - half), (first, half)]
    return pa.concat_arrays(parts), failing


def clear_failures(formulas: Iterable[Formulas]) -> None:
    """Clear the recorded rows of all formulas."""
    for formula in formulas:
        formula.clear()


def require_values(formulas: Iterable[Formulas], positions: Sequence[At]) -> None:
    """Raise if a formula lacks a value for a recorded row at every given position."""
    for formula in formulas:
        formula.require_values(positions)
