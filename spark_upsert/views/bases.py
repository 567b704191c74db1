"""Plan binding to tables (`bind`), and the tables or materialized groups that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_upsert.errors import PlanError, about
from spark_upsert.plan.json import read_text
from spark_upsert.plan.nodes import (
    Filter,
    Group,
    Join,
    Node,
    Project,
    ProjectedColumn,
    Scan,
    Unnest,
)
from spark_upsert.table.table import Table
from spark_upsert.views.group_rows import PLAN, grouping_of
from spark_upsert.views.grouping import DIGITS, Grouping, Summand
from spark_upsert.views.join import joined
from spark_upsert.views.materialized import KeptBase
from spark_upsert.views.relation import Relation
from spark_upsert.views.rowwise import FilterRelation, ProjectRelation, UnnestRelation, quoted
from spark_upsert.views.scan import BaseTable, OpenBase, ScanRelation, TableBase


def open_base(scan: Scan, table: Table) -> BaseTable:
    """Return a table as a scan reads it."""
    grouping = grouping_of(table.log.head().properties)
    return TableBase(scan, table) if grouping is None else KeptBase(scan, table, grouping)


def scan_of(path: str, table: Table) -> Scan:
    """Return a table's scan, with its current columns."""
    head = table.log.head()
    grouping = grouping_of(head.properties)
    if grouping is None:
        return Scan.of(path, head.schema.columns, head.schema.keys)
    if not grouping.keys:
        raise PlanError(
            f"the table at '{path}' keeps one group of all rows, which has no key.",
            hint="read it as a table, or group by a column that is always the same.",
        )
    return Scan.of(path, grouping.result, grouping.keys)


def made_from(path: str, table: Table) -> frozenset[str]:
    """Return the base tables that a table shows: itself, or those of its materialized view."""
    plan = table.log.head().properties.get(PLAN)
    return frozenset([path]) if plan is None else frozenset(_paths(read_text(plan)))


def _paths(record: Any) -> Iterator[str]:
    if isinstance(record, dict):
        if record.get("node") == "scan":
            yield record["path"]
        for item in record.values():
            yield from _paths(item)
    elif isinstance(record, list):
        for item in record:
            yield from _paths(item)


def bind(plan: Node, open_base: OpenBase) -> Relation:
    """Return a plan's relation, for a view: its rows must have a key.

    Raises
    ------
    PlanError
        The plan cannot be run unchanged; the message names the node and the column.
    """
    relation = bind_below_group(plan, open_base)
    _require_key(relation)
    return relation


def bind_group(plan: Group, open_base: OpenBase) -> tuple[Relation, Grouping]:
    """Return the relation of a plan's input rows, and its grouping."""
    relation = bind_below_group(plan.input, open_base, carries=True)
    shown = pa.schema([relation.schema.field(name) for name in _shown(plan.input, relation)])
    with about("node", plan.title):
        grouping = Grouping(shown, plan.keys, plan.aggregates)
    return _summable(plan, relation, grouping), grouping


def _shown(plan: Node, relation: Relation) -> list[str]:
    """Return a plan's columns, without additionally carried ones."""
    chosen = next((node for node in _chain(plan) if isinstance(node, Project)), None)
    return (
        list(relation.schema.names)
        if chosen is None
        else [column.name for column in chosen.columns]
    )


def _chain(plan: Node) -> Iterator[Node]:
    """Yield the filters and projections that a plan ends with, the last first."""
    while isinstance(plan, Filter | Project):
        yield plan
        plan = plan.input


def _summable(plan: Group, relation: Relation, grouping: Grouping) -> Relation:
    """Return the rows in which floats that have too many digits for their sum are no values."""
    like = {
        summed.column: Summand(
            relation.schema.field(summed.column).type, summed.column, summed.scale, DIGITS
        )
        for summed in sorted(grouping.sums, key=lambda each: each.scale or 0)
        if summed.scale is not None
    }
    if not like:
        return relation
    columns = tuple(ProjectedColumn(name, quoted(name)) for name in relation.schema.names)
    return ProjectRelation(Project(input=plan.input, columns=columns), relation, like)


def bind_below_group(plan: Node, open_base: OpenBase, *, carries: bool = False) -> Relation:
    """Return a plan's relation for sums: its rows need no key."""
    scans: dict[Scan, ScanRelation] = {}
    chain = set(map(id, _chain(plan))) if carries else set()

    def relation_of(node: Node) -> Relation:
        inputs = [relation_of(child) for child in node.inputs]
        with about("node", node.title):
            if not isinstance(node, Project | Filter | Group):
                for child in inputs:
                    _require_key(child)
            match node:
                case Scan():
                    if node not in scans:
                        scans[node] = ScanRelation(node, open_base(node))
                    return scans[node]
                case Filter():
                    return FilterRelation(node, *inputs)
                case Project():
                    return ProjectRelation(node, inputs[0], carries=id(node) in chain)
                case Unnest():
                    return UnnestRelation(node, *inputs)
                case Join() if not node.shows_both_keys:
                    return joined(node, *inputs)
                case Group():
                    raise PlanError(
                        "'group' gives no rows with changes.",
                        hint="a group must be kept first: .keep(path).",
                    )
                case _:
                    raise PlanError(
                        f"'{node.kind}' is a node for tasks: it gives no rows with changes.",
                        hint="build the plan of a view by its methods, and give that text.",
                    )

    return relation_of(plan)


def _require_key(relation: Relation) -> None:
    """Raise unless rows have an identity."""
    if relation.key is not None:
        return
    raise PlanError(
        f"the projection drops the key '{relation.dropped}'.",
        hint="keep it, or group.",
        column=relation.dropped,
    )
