"""Hints of views with rows that cannot be computed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.plan import agg
from spark_upsert.table.table import Table
from spark_upsert.views import row_errors
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows
from tests.support.view_keepers import Keeper

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "x": pa.int64()})


def made(told: Told, name: str, schema: pa.Schema, *rows: tuple[Any, ...], **how: Any) -> Plan:
    """Return all rows of a new table, of which the first column is the key."""
    table = Table.create(str(told.folder / name), schema, keys=[schema.names[0]], **how)
    write(table, *rows)
    return Plan.of_table(str(told.folder / name))


def write(table: Table, *rows: tuple[Any, ...]) -> None:
    given = [dict(zip(table.schema.columns.names, row, strict=True)) for row in rows]
    table.upsert(pa.Table.from_pylist(given, schema=table.schema.columns))


def table_of(told: Told, name: str) -> Table:
    return Table.open(str(told.folder / name))


@follows("options.inputs:_refuse_on_error")
def _(told: Told) -> None:
    with told:
        ReadPlan.parse({"path": "/table", "onError": "null"})
    told("drop it")
    ReadPlan.parse({"path": "/table"})


@follows("views.row_errors:NodeFormulas._error")
def _(told: Told) -> None:
    rows = made(told, "orders", ORDERS, (1, 7, 5), (2, 7, 0))
    kept = str(told.folder / "kept")
    view = rows.select("id", "customer", each="100 DIV x").group_by("customer")
    sums = view.agg(s=agg.sum("each"))
    with told:
        sums.refresh(kept)
    told("let formulas be NULL where they have no value, by on_error=null")
    sums.refresh(kept, on_error="null")
    told("compute none there, by CASE WHEN in the plan")
    rows.select("id", each="CASE WHEN x <> 0 THEN 100 DIV x END").to_arrow()
    told("repair the row")
    write(table_of(told, "orders"), (2, 7, 50))
    sums.refresh(kept)
    assert Plan.of_table(kept).to_arrow().column("s").to_pylist() == [22]


@follows("views.row_errors:NodeFormulas._error")
def _(told: Told) -> None:
    """A row behind a projection that drops its key."""
    rows = made(told, "orders", ORDERS, (1, 7, 5), (2, 7, 0))
    kept = str(told.folder / "kept")
    sums = rows.select("customer", y="x").select("customer", each="100 DIV y")
    groups = sums.group_by("customer").agg(s=agg.sum("each"))
    with told:
        groups.refresh(kept)
    told("repair the row or delete it, and start again")
    assert told.error is not None
    assert f"row id=2 of '{told.folder}/orders' at version 1" in told.error.message
    write(table_of(told, "orders"), (2, 7, 50))
    assert groups.refresh(kept)


@follows("views.row_errors:NodeFormulas._error")
def _(told: Told) -> None:
    """A row of a table that keeps a view."""
    rows = made(told, "orders", ORDERS, (1, 7, 0))
    sums = rows.group_by("customer").agg(s=agg.sum("x"))
    sums.refresh(str(told.folder / "sums"))
    each = Plan.of_table(str(told.folder / "sums")).select("customer", each="100 DIV s")
    with told:
        each.to_arrow()
    told(f"repair the rows that '{told.folder}/sums' is kept of, bring it up to date, and start")
    write(table_of(told, "orders"), (1, 7, 50))
    assert sums.refresh(str(told.folder / "sums"))
    assert each.to_arrow().column("each").to_pylist() == [2]


@follows("views.row_errors:NodeFormulas._error")
def _(told: Told) -> None:
    """A row at a fixed version."""
    rows = made(told, "orders", ORDERS, (1, 7, 0)).at_version(1).select("id", each="100 DIV x")
    with told:
        rows.to_arrow()
    assert told.hint.startswith("let formulas be NULL where they have no value, by on_error=null")
    told("let formulas be NULL where they have no value, by on_error=null")
    assert rows.to_arrow(on_error="null").column("each").to_pylist() == [None]


@follows("views.row_errors:NodeFormulas._error_of_more")
def _(told: Told) -> None:
    orders = made(told, "orders", ORDERS, (1, 7, 1))
    view = orders.select("customer", each="100 DIV x").group_by("customer").agg(s=agg.sum("each"))
    kept = Keeper(view.node, told.folder / "kept", told.folder / "checkpoint", {})
    while kept.run():
        pass
    write(table_of(told, "orders"), (1, 7, 0), (2, 7, 0))
    with patch.object(row_errors, "NOTED_MAX", 1):
        with pytest.raises(DataError, match="row id="):
            kept.run()
        write(table_of(told, "orders"), (1, 7, 1), (2, 7, 1))
        with told:
            kept.run()
        told("let formulas be NULL where they have no value")
        kept.start(told.options)
        while kept.run():
            pass
    told("rows that were repaired since come out repaired")
    shown = Plan.of_table(str(told.folder / "kept")).to_arrow()
    assert shown.column("s").to_pylist() == [200]
