"""Hints of views with rows that cannot be computed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.table import Table
from spark_upsert.views import agg
from spark_upsert.views.builder import Plan
from tests.hints.hint import Told, follows

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "x": pa.int64()})


def made(told: Told, name: str, schema: pa.Schema, *rows: tuple[Any, ...], **how: Any) -> Plan:
    """Return all rows of a new table, of which the first column is the key."""
    table = Table.create(str(told.folder / name), schema, keys=[schema.names[0]], **how)
    write(table, *rows)
    return Plan.of_table(str(told.folder / name))


def write(table: Table, *rows: tuple[Any, ...]) -> None:
    given = [dict(zip(table.schema.columns.names, row, strict=True)) for row in rows]
    table.append(pa.Table.from_pylist(given, schema=table.schema.columns))


def table_of(told: Told, name: str) -> Table:
    return Table.open(str(told.folder / name))


@follows("options.inputs:_refuse_on_error")
def _(told: Told) -> None:
    with told:
        ReadPlan.parse({"path": "/table", "onError": "null"})
    told("drop it")
    ReadPlan.parse({"path": "/table"})


@follows("views.failing:NodeFormulas._error")
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


@follows("views.groups.contributions:folded")
def _(told: Told) -> None:
    schema = pa.schema({"id": pa.int64(), "team": pa.string(), "x": pa.decimal128(38, 0)})
    most = 9 * Decimal(10) ** 37
    rows = made(told, "amounts", schema, (1, "a", most), (2, "a", most), (3, "a", Decimal(5)))
    with told:
        rows.group_by("team").agg(s=agg.sum("x")).refresh(str(told.folder / "kept"))
    told("leave such values out by a filter of 'x' below the groups")
    told("keep the view in a new path")
    new = str(told.folder / "new")
    assert rows.filter("x < 1000").group_by("team").agg(s=agg.sum("x")).refresh(new)
