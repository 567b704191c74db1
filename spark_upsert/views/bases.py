"""How a plan reads the table at a path: its rows, or the groups that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_upsert.errors import PlanError
from spark_upsert.plan.nodes import Scan
from spark_upsert.plan.text import read_text
from spark_upsert.table.table import Table
from spark_upsert.views.groups.kept_base import KeptBase
from spark_upsert.views.groups.shown import PLAN, grouping_of
from spark_upsert.views.scan import BaseTable
from spark_upsert.views.table_base import TableBase


def open_base(scan: Scan, table: Table) -> BaseTable:
    """Return a table as a scan reads it."""
    grouping = grouping_of(table.log.head().properties)
    return TableBase(scan, table) if grouping is None else KeptBase(scan, table, grouping)


def scan_of(path: str, table: Table) -> Scan:
    """Return the scan of a table, with the columns that it shows now.

    Raises
    ------
    PlanError
        It keeps one group of all rows, which has no key.
    """
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
    """Return the tables that a table shows: itself, or those of the view that it keeps."""
    plan = table.log.head().properties.get(PLAN)
    return frozenset([path]) if plan is None else frozenset(_paths(read_text(plan)))


def _paths(record: Any) -> Iterator[str]:
    if isinstance(record, dict):
        if record.get("node") == "scan":
            yield record["path"]
        for each in record.values():
            yield from _paths(each)
    elif isinstance(record, list):
        for each in record:
            yield from _paths(each)
