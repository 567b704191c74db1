"""Rows of which a formula has no value, as `100 DIV x` has none where `x` is 0: it is NULL there.

So a view is defined at every position, whatever stands in its tables, and what it once said of a
row can be taken back. Whether such a NULL may be *shown* is another question, which the one who
reads decides (`OnError`). By default a batch stops that leaves one behind, as long as the row is
still so in the newest version of its table: once it is repaired, a batch that ends before the
repair passes, and the next one brings the repair.

What has no value is found row by row by halves: the others are computed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.errors import DataError, setting
from spark_upsert.model.arrays import Mask
from spark_upsert.views.pairs import Rows, concat
from spark_upsert.views.plan import Node
from spark_upsert.views.relation import At, Formulas, Relation, distinct

NOTED_MAX = 1 << 20
"""Rows whose keys are held until it is known what became of them: what is more is no accident."""


class Column(Protocol):
    """Computes a column."""

    @property
    def type(self) -> pa.DataType:
        """Of its values."""
        ...

    def of(self, rows: Rows) -> pa.Array:
        """Return the values for some rows; a `DataError` says that one has none."""
        ...


class NodeFormulas:
    """The formulas of a node, and the rows that were met of which one has no value (`Formulas`).

    Parameters
    ----------
    node : Node
    bounds : sequence of Column
        Over the rows of the input.
    input_ : Relation
        Whose rows are found again by their key, if they have one.
    """

    def __init__(self, node: Node, bounds: Sequence[Column], input_: Relation) -> None:
        self._node = node
        self._bounds = bounds
        self._input = input_
        self._noted: list[Rows] = []
        self.failed = 0

    def of(self, rows: Rows) -> list[pa.Array]:
        """Return the values of each formula for some rows, NULL where it has none."""
        found, failing = self._tried(rows)
        if failing is not None:
            bad = rows.filter(pa.array(failing))
            self.failed += bad.num_rows
            self._note(bad)
        return found

    def _tried(self, rows: Rows) -> tuple[list[pa.Array], Mask | None]:
        """Return the values, and the rows without one; None if all have theirs."""
        found, failing = [], None
        for bound in self._bounds:
            try:
                found.append(bound.of(rows))
            except DataError:
                values, has_none = _by_halves(bound, rows)
                found.append(values)
                failing = has_none if failing is None else failing | has_none
        return found, failing

    def _note(self, bad: Rows) -> None:
        key = self._input.key
        if key is None:  # Nothing finds such a row again: it is told as it is.
            self._noted.append(bad)
        elif self.failed <= NOTED_MAX:
            self._noted.append(bad.select(list(key)))

    def require_values(self, positions: Iterable[At]) -> None:
        """Raise if a row that was met has no value at each of some positions (`Formulas`)."""
        if not self._noted:
            return
        bad, key = concat(self._noted), self._input.key
        if key is not None and self.failed <= NOTED_MAX:
            for at in positions:
                looked = self._input.look_up(distinct(bad.select(list(key))), at)
                there = looked.rows.filter(pa.array(looked.present))
                failing = self._tried(there)[1]
                if failing is None:
                    return
                bad = there.filter(pa.array(failing))
        raise self._error(bad.slice(0, 1), bad.num_rows)

    def forget(self) -> None:
        """Begin anew (`Formulas.forget`)."""
        self._noted, self.failed = [], 0

    def _error(self, example: Rows, count: int) -> DataError:
        row = ", ".join(f"{name}={example.column(name)[0].as_py()!r}" for name in self._shown())
        reason = "a formula has no value"
        for bound in self._bounds:
            try:
                bound.of(example)
            except DataError as error:
                reason = error.message.rstrip(".")
                break
            except KeyError:  # Only the key is known of it.
                continue
        more = f" and {count - 1} more" if count > 1 else ""
        return DataError(
            f"{reason}. It is about the node '{self._node.title}' of the plan and the row {row}"
            f"{more}. Nothing was committed.",
            hint="repair the row or delete it, and start again; or let formulas be NULL where they "
            f"have no value, by {setting('onError', 'null')}; or compute none there, by CASE WHEN "
            "in the plan.",
            example=row,
        )

    def _shown(self) -> Sequence[str]:
        return self._input.key or self._input.schema.names


def _by_halves(bound: Column, rows: Rows) -> tuple[pa.Array, Mask]:
    """Return the values of rows some of which have none, which are NULL, and which those are."""
    failing = np.zeros(rows.num_rows, dtype=np.bool_)
    parts: list[pa.Array] = []
    ahead = [(0, rows.num_rows)]
    while ahead:
        first, count = ahead.pop()
        try:
            parts.append(bound.of(rows.slice(first, count)))
        except DataError:
            if count == 1:
                failing[first] = True
                parts.append(pa.nulls(1, bound.type))
            else:
                half = count // 2
                ahead += [(first + half, count - half), (first, half)]
    return pa.concat_arrays(parts), failing


def forget(formulas: Iterable[Formulas]) -> None:
    """Begin anew to note rows of which a formula has no value."""
    for each in formulas:
        each.forget()


def require_values(formulas: Iterable[Formulas], positions: Sequence[At]) -> None:
    """Raise if a formula has no value for a row that was met, at each of some positions.

    Raises
    ------
    DataError
        It names the node, the row, and what can be done.
    """
    for each in formulas:
        each.require_values(positions)
