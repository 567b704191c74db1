"""Requests that a plan cannot serve: each has a sentence that says what there is instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_upsert.errors import PlanError

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


def not_of_a_plan(name: str) -> Exception:
    """Return the error of a name that a plan does not have."""
    return _unknown("a view", "Plan", name, _OF_PLANS)


def not_of_groups(name: str) -> Exception:
    """Return the error of a name that groups do not have."""
    return _unknown("a grouping", "Grouped", name, _OF_GROUPS)


def _unknown(
    what: str, kind: str, name: str, known: Mapping[str, tuple[str, str]]
) -> PlanError | AttributeError:
    if name not in known:
        return AttributeError(f"'{kind}' has no attribute '{name}'")
    why, instead = known[name]
    return PlanError(f"{what} has no '{name}': it {why}.", hint=instead)


def joined_by(on: Any) -> dict[str, str]:
    """Return the left columns of a join with their right ones.

    Raises
    ------
    PlanError
        It says neither.
    """
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
    """Raise `PlanError` unless all that is given is text."""
    for each in given:
        if not isinstance(each, str):
            raise wrong_argument(call, expected, each)


def wrong_argument(call: str, expected: str, found: Any) -> PlanError:
    """Return the error of an argument that is none."""
    several = isinstance(found, list | tuple)
    return PlanError(
        f"{call}() expects {expected}, found {type(found).__name__} {found!r:.80}.",
        hint="give them one by one, or with a star before the list."
        if several
        else f"give {expected}, as text where they are names or formulas.",
    )
