"""A read of a view as text: the plan with its keys, and how rows are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import indent

from spark_upsert.plan.aggregates import Aggregate
from spark_upsert.plan.nodes import Filter, Group, Join, Node, Project, Reverse, Scan, Unnest
from spark_upsert.streams.reads.explain_words import SHOWN, counted, field, more
from spark_upsert.streams.reads.view_splits import ViewSplit, tell_steps
from spark_upsert.views.view import View


def explain_view(view: View, splits: Sequence[ViewSplit]) -> str:
    """Return what reading some splits of a view does."""
    lines = [
        f"view {view.plan.fingerprint()}",
        *field("key", ", ".join(view.relation.key or ())),
        *field("follows", *(view.paths or ("nothing: all tables are pinned",))),
        indent("\n".join(plan_lines(view.plan)), "  "),
        counted(len(splits), "task"),
        *(f"  {tell_steps(each.steps)}: {each.rows:,} rows" for each in splits[:SHOWN]),
        *more(len(splits)),
    ]
    return "\n".join(lines)


def plan_lines(node: Node) -> Iterator[str]:
    """Yield a line for each node of a plan, the inputs of one below it."""
    yield _line(node)
    for below in node.inputs:
        yield from (f"  {line}" for line in plan_lines(below))


def _line(node: Node) -> str:
    match node:
        case Scan():
            where = "live" if node.version is None else f"at version {node.version}"
            return f"scan {node.path}, {where}, key {', '.join(node.key)}"
        case Filter():
            return f"filter {node.where}"
        case Project():
            return f"select {', '.join(_named(*each) for each in node.columns)}"
        case Unnest():
            return f"unnest {node.column}"
        case Join():
            on = " and ".join(f"{left} = {right}" for left, right in node.on)
            found = "by scans" if node.reverse is Reverse.SCAN else "by indexes"
            return f"{node.how.value} join on {on}; partners of changes are found by key or {found}"
        case Group():
            wanted = ", ".join(f"{each.name} = {_wanted(each)}" for each in node.aggregates)
            return f"group by {', '.join(node.keys) or 'nothing'}: {wanted or 'nothing'}"
        case _:
            return node.kind


def _wanted(aggregate: Aggregate) -> str:
    scale = "" if aggregate.scale is None else f", scale {aggregate.scale}"
    return f"{aggregate.kind.value}({aggregate.column or '*'}{scale})"


def _named(name: str, formula: object) -> str:
    return name if name == formula else f"{formula} AS {name}"
