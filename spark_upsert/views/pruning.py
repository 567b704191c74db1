"""Plans that name only the columns that they use.

A plan does not read a column that it does not name, and the column does not change the plan. So a
column that a table gains later changes neither the plan's text nor its fingerprint, and a program
that makes its plan anew with each start goes on from its checkpoint and with the table that it
keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from spark_upsert.plan.nodes import Filter, Formula, Group, Join, Node, Project, Scan, Unnest
from spark_upsert.views.formulas import columns_read

Wanted: TypeAlias = frozenset[str] | None
"""Names of columns, folded as SQL reads them; None: all. More than there are does no harm."""


def pruned(node: Node, wanted: Wanted = None) -> Node:
    """Return a plan with the same result; its scans have only columns that something in it reads.

    Parameters
    ----------
    node : Node
        The root of a plan with its columns found (`binding`).
    wanted : frozenset of str, optional
        The columns that are read of its rows besides their key.
    """
    match node:
        case Scan():
            return _scan(node, wanted)
        case Filter():
            below = _with(wanted, _used([node.where]))
            return replace(node, input=pruned(node.input, below))
        case Project():
            below = _used(column.formula for column in node.columns)
            return _chosen(replace(node, input=pruned(node.input, below)))
        case Unnest():
            return replace(node, input=pruned(node.input, _with(wanted, _names(node.column))))
        case Join():
            left, right = (_names(*names) for names in zip(*node.on, strict=True))
            return replace(
                node,
                left=pruned(node.left, _with(wanted, left)),
                right=pruned(node.right, _with(wanted, right)),
            )
        case Group():
            columns = (each.column for each in node.aggregates if each.column is not None)
            return replace(node, input=pruned(node.input, _names(*node.keys, *columns)))
        case _:
            return node


def _scan(node: Scan, wanted: Wanted) -> Scan:
    if wanted is None:
        return node
    kept = wanted | _names(*node.key)
    return replace(node, columns=tuple(c for c in node.columns if c.name.casefold() in kept))


def _chosen(node: Project) -> Node:
    """Return a projection, or the scan itself if that has these very columns."""
    below = node.input
    if isinstance(below, Scan):
        names = [column.name for column in below.columns]
        if [tuple(column) for column in node.columns] == [(name, name) for name in names]:
            return below
    return node


def _used(formulas: Iterable[Formula]) -> Wanted:
    """Return the columns that formulas read."""
    found: Wanted = frozenset()
    for formula in formulas:
        columns = columns_read(formula)
        found = _with(found, None if columns is None else _names(*columns))
    return found


def _with(wanted: Wanted, more: Wanted) -> Wanted:
    return None if wanted is None or more is None else wanted | more


def _names(*names: str) -> frozenset[str]:
    return frozenset(name.casefold() for name in names)
