"""A table that keeps a view, in words: the plan, and how far it has come in each table of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_upsert.errors import UpsertFlowError
from spark_upsert.plan.nodes import Node, Scan
from spark_upsert.plan.text import plan_from_json
from spark_upsert.store.resolve import open_store
from spark_upsert.streams.reads.explain import plan_lines
from spark_upsert.table.log.kept_position import VIEW_PLAN, VIEW_RESULT, KeptPosition
from spark_upsert.table.log.log import Log
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import NOTHING, recorded_position


def kept_facts(table: Table, storage: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what a table keeps: the nodes of the view, and its tables; None if it keeps none.

    Of a table that keeps groups also the version that it has reached in each of them.
    """
    properties = table.log.head().properties
    if VIEW_PLAN not in properties:
        return None
    plan = plan_from_json(properties[VIEW_PLAN])
    reached = _reached(table) if VIEW_RESULT in properties else {}
    return {
        "view": list(plan_lines(plan)),
        "tables": {
            scan.path: {
                "at": scan.version if scan.version is not None else reached.get(scan.path),
                "newest": _newest(scan.path, storage),
            }
            for scan in _scans(plan)
        },
    }


def told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for people."""
    tables = {path: _told(**versions) for path, versions in facts["tables"].items()}
    return {"keeps": facts["view"], "of": tables}


def _told(at: int | None, newest: int | None) -> str:
    there = "not found from here" if newest is None else f"newest version {newest}"
    if at is None:
        return there
    behind = f", {newest - at} behind" if newest is not None and newest > at else ""
    return f"at version {at}, {there}{behind}"


def _reached(table: Table) -> dict[str, int]:
    recorded = recorded_position(table.at())
    if recorded == NOTHING:
        return {}
    return {path: place.version for path, place in KeptPosition.read(recorded).at.items()}


def _newest(path: str, storage: Mapping[str, str]) -> int | None:
    try:
        return Log(open_store(path, storage)).head().version
    except UpsertFlowError:
        return None


def _scans(node: Node) -> list[Scan]:
    below = [scan for each in node.inputs for scan in _scans(each)]
    return [node, *below] if isinstance(node, Scan) else below
