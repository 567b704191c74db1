"""Aggregates of the rows of a group: counts, sums, averages, smallest and greatest values.

Whatever cannot be taken back has no name here: a list of all values, the first, the last.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from spark_upsert.errors import PlanError, did_you_mean


class AggregateKind(Enum):
    """The kind of an aggregate over a column of a group."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


class Aggregate(NamedTuple):
    """One column of the result."""

    name: str
    kind: AggregateKind
    column: str | None = None
    """A column of the rows; None to count rows."""
    scale: int | None = None
    """Digits behind the point to which each float is rounded before it is added."""

    @classmethod
    def of(cls, name: str, function: str, column: str | None = None) -> Aggregate:
        """Return an aggregate by the name of its function.

        Raises
        ------
        PlanError
            There is no such function.
        """
        known = [each.value for each in AggregateKind]
        if function not in known:
            raise PlanError(
                f"there is no aggregate '{function}'.", hint=did_you_mean(function, known)
            )
        return cls(name, AggregateKind(function), column)

    @classmethod
    def from_json(cls, record: Any) -> Aggregate:
        """Rebuild an aggregate from the list of its fields; a ValueError says that it is none."""
        name, kind, column, scale = record
        is_sound = isinstance(name, str) and isinstance(column, str | None)
        if not is_sound or not (scale is None or type(scale) is int):
            raise ValueError("no aggregate")
        return cls(name, AggregateKind(kind), column, scale)

    def to_json(self) -> list[Any]:
        """Return the list of its fields."""
        return [self.name, self.kind.value, self.column, self.scale]
