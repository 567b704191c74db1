"""Group aggregates (`Aggregate`), and errors for requests that plans do not support.

Only aggregates that can retract a row exist: no value lists, no first or last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from spark_upsert.errors import PlanError, did_you_mean


class AggregateKind(Enum):
    """An aggregate's function."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


class Aggregate(NamedTuple):
    """An aggregate column in a group's result."""

    name: str
    kind: AggregateKind
    column: str | None = None
    """Input column; None to count rows."""
    scale: int | None = None
    """Decimal places to which each float is rounded before addition."""

    @classmethod
    def of(cls, name: str, function: str, column: str | None = None) -> Aggregate:
        """Build an aggregate from its function name.

        Raises
        ------
        PlanError
            The function is unknown.
        """
        kinds = [kind.value for kind in AggregateKind]
        if function not in kinds:
            raise PlanError(
                f"there is no aggregate '{function}'.", hint=did_you_mean(function, kinds)
            )
        return cls(name, AggregateKind(function), column)

    @classmethod
    def from_json(cls, record: Any) -> Aggregate:
        """Rebuild an aggregate from its field list; raises `ValueError` if it is invalid."""
        name, kind, column, scale = record
        is_sound = isinstance(name, str) and isinstance(column, str | None)
        if not is_sound or not (scale is None or type(scale) is int):
            raise ValueError("no aggregate")
        return cls(name, AggregateKind(kind), column, scale)

    def to_json(self) -> list[Any]:
        """Return the field list."""
        return [self.name, self.kind.value, self.column, self.scale]


_TWO_TABLES = (
    "is of rows of two sources, whose keys may be the same",
    "write both into one table, with a column that says which they are of, and view that.",
)
_ORDER = (
    "is not a function of one row: which rows come first depends on all others",
    (
        "keep the view, and order or limit what you read of its table; or group_by(...) with "
        "agg.max(...), which follows the greatest value."
    ),
)
_DISTINCT = (
    "has no key, by which its rows could be taken back",
    "use group_by(...).agg(n=agg.count()): a row for each group.",
)
_GROUPED = (
    "is asked of groups",
    (
        "use group_by(...).agg(...): agg.count(), agg.sum(...), agg.avg(...), agg.min(...), "
        "agg.max(...)."
    ),
)
_COLUMNS = (
    "is a choice of columns",
    "use select(...): the columns that stay, and formulas by their names.",
)

_OF_PLANS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("union", "union_all", "unionAll", "unionByName", "intersect", "subtract", "exceptAll"),
        _TWO_TABLES,
    ),
    **dict.fromkeys(
        ("top", "order_by", "orderBy", "sort", "head", "tail", "offset", "window", "over"), _ORDER
    ),
    **dict.fromkeys(("distinct", "drop_duplicates", "dropDuplicates"), _DISTINCT),
    **dict.fromkeys(("agg", "count", "sum", "avg", "min", "max", "having"), _GROUPED),
    **dict.fromkeys(
        ("drop", "with_column", "withColumn", "withColumns", "rename", "withColumnRenamed"),
        _COLUMNS,
    ),
    "where": ("is called filter here", "use filter(...)."),
    "groupBy": ("is called group_by here", "use group_by(...)."),
    "explode": ("is called unnest here", "use unnest(...)."),
}

_OF_GROUPS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("count", "sum", "avg", "mean", "min", "max"), _GROUPED),
    **dict.fromkeys(
        ("filter", "select", "join", "having", "keep", "refresh", "stream", "read", "to_arrow"),
        ("is asked of groups of which nothing is wanted yet", "use .agg(...) first."),
    ),
}


def unknown_plan_attribute(name: str) -> Exception:
    """Return the error for an attribute that plans do not have."""
    return _unknown("a view", "Plan", name, _OF_PLANS)


def unknown_group_attribute(name: str) -> Exception:
    """Return the error for an attribute that groups do not have."""
    return _unknown("a grouping", "GroupedRows", name, _OF_GROUPS)


def _unknown(
    what: str, kind: str, name: str, known: Mapping[str, tuple[str, str]]
) -> PlanError | AttributeError:
    if name not in known:
        return AttributeError(f"'{kind}' has no attribute '{name}'")
    why, instead = known[name]
    return PlanError(f"{what} has no '{name}': it {why}.", hint=instead)


def right_columns_by_left(on: Any) -> dict[str, str]:
    """Return a join's right columns by left column; raises `PlanError`."""
    if isinstance(on, Mapping):
        require_texts("join", "names of columns", [*on, *on.values()])
        return dict(on)
    if isinstance(on, str):
        return {on: on}
    if not isinstance(on, Iterable):
        raise wrong_argument("join", "on={left: right}, or names that both sides have", on)
    names = list(on)
    require_texts("join", "names of columns", names)
    return {name: name for name in names}


def require_texts(call: str, expected: str, given: Iterable[Any]) -> None:
    """Raise `PlanError` unless all values are text."""
    for text in given:
        if not isinstance(text, str):
            raise wrong_argument(call, expected, text)


def wrong_argument(call: str, expected: str, found: Any) -> PlanError:
    """Return the error for an argument with the wrong type."""
    several = isinstance(found, list | tuple)
    return PlanError(
        f"{call}() expects {expected}, found {type(found).__name__} {found!r:.80}.",
        hint="give them one by one, or with a star before the list."
        if several
        else f"give {expected}, as text where they are names or formulas.",
    )
