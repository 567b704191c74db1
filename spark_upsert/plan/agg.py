"""Aggregates for groups: ``group_by("country").agg(n=agg.count(), top=agg.max("amount"))``."""

from __future__ import annotations

from typing import NoReturn

from spark_upsert.errors import PlanError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind

_UNNAMED = ""
"""An aggregate's name until ``agg(...)`` sets it."""


def count(column: str | None = None) -> Aggregate:
    """Count rows, or a column's values without NULL."""
    return Aggregate(_UNNAMED, AggregateKind.COUNT, column)


def sum(column: str, *, scale: int | None = None) -> Aggregate:
    """Sum a column; NULL if no row has a value.

    ``scale`` rounds each float to that many decimal places before addition.
    """
    return Aggregate(_UNNAMED, AggregateKind.SUM, column, scale)


def avg(column: str, *, scale: int | None = None) -> Aggregate:
    """Average a column; for ``scale`` see `sum`."""
    return Aggregate(_UNNAMED, AggregateKind.AVG, column, scale)


def min(column: str) -> Aggregate:
    """Compute a column's smallest value; NaN is above all other values."""
    return Aggregate(_UNNAMED, AggregateKind.MIN, column)


def max(column: str) -> Aggregate:
    """Compute a column's greatest value; NaN is above all other values."""
    return Aggregate(_UNNAMED, AggregateKind.MAX, column)


def __getattr__(name: str) -> NoReturn:
    """Raise `PlanError` for aggregates that cannot retract rows, or have another name here."""
    if name in _NOT_RETRACTABLE:
        raise PlanError(
            f"'{name}' cannot be retracted: when a row goes, nothing that was kept tells what is "
            "left.",
            hint="use count, sum, avg, min or max, or keep the rows and aggregate what you read.",
        )
    if name in _INSTEAD:
        raise PlanError(f"there is no aggregate '{name}'.", hint=_INSTEAD[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_NOT_RETRACTABLE = frozenset(
    (
        "collect",
        "collect_list",
        "collect_set",
        "first",
        "last",
        "any_value",
        "approx_count_distinct",
        "median",
        "percentile",
    )
)

_INSTEAD = {
    **dict.fromkeys(
        ("count_distinct", "countDistinct", "n_unique", "nunique"),
        "keep the groups of both first, group_by(..., column).agg(n=count()), and count the rows "
        "of that table by a second view.",
    ),
    **dict.fromkeys(
        ("top", "top_k", "max_by", "min_by", "argmax", "row_number", "rank"),
        "use max(column) or min(column).",
    ),
    "mean": "use avg(column).",
    "average": "use avg(column).",
}
