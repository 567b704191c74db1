"""Formulas of a plan over the columns of its rows: SQL (`plan.expressions`), pure, row by row."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.model.arrays import Mask
from spark_upsert.model.names import has_column
from spark_upsert.plan import expressions
from spark_upsert.plan.nodes import Formula
from spark_upsert.views.pairs import RelationRows

_NAME = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`)\s*")


def plain_column(formula: Formula, columns: pa.Schema) -> str | None:
    """Return the column that a formula is, without anything done to it; None if it is none."""
    name = _name(formula)
    return name if name is not None and has_column(columns, name) else None


def quoted(name: str) -> str:
    """Return the formula that is a column, whatever its name."""
    return f"`{name.replace('`', '``')}`"


def columns_read(formula: Formula) -> frozenset[str] | None:
    """Return the names of the columns that a formula may read; None where it does not tell."""
    if not isinstance(formula, str):
        return None
    name = _name(formula)
    return expressions.columns_of(formula) if name is None else frozenset([name])


def _name(formula: Formula) -> str | None:
    """Return the name that a formula is, which need not be one that SQL could read."""
    found = _NAME.fullmatch(formula) if isinstance(formula, str) else None
    return None if found is None else found[1] or found[2].replace("``", "`")


@dataclass(frozen=True, slots=True)
class BoundFormula:
    """A formula over some columns: one of them, or an expression."""

    type: pa.DataType
    formula: str | expressions.BoundExpression

    @classmethod
    def to(cls, formula: Formula, columns: pa.Schema) -> BoundFormula:
        """Bind a formula to columns.

        Raises
        ------
        PlanError
            It names no column, does not fit their types, or is not a function of one row.
        """
        plain = plain_column(formula, columns)
        if plain is not None:
            return cls(columns.field(plain).type, plain)
        bound = expressions.bind(formula, columns)
        return cls(bound.type, bound)

    @classmethod
    def to_condition(cls, formula: Formula, columns: pa.Schema) -> BoundFormula:
        """Bind a formula that is true, false or unknown (`to`)."""
        return cls(pa.bool_(), expressions.bind_condition(formula, columns))

    def of(self, rows: RelationRows) -> pa.Array:
        """Return the values for some rows, in their order."""
        return rows.column(self.formula) if isinstance(self.formula, str) else self.formula(rows)


def is_true(values: pa.Array) -> Mask:
    """Return where a condition is TRUE: neither FALSE nor NULL."""
    known = values.fill_null(False)
    return np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)
