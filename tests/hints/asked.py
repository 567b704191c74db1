"""Hints of what a plan is asked and cannot do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_upsert.plan import agg
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows

SCHEMA = pa.schema({"id": pa.int64(), "team": pa.string(), "x": pa.int64()})


def scores(told: Told) -> Any:
    table = Table.create(str(told.folder / "scores"), SCHEMA, keys=["id"])
    rows = pa.table({"id": [1, 2, 3], "team": ["a", "a", "b"], "x": [5, 7, 5]}, schema=SCHEMA)
    table.upsert(rows)
    return Plan.of_table(str(told.folder / "scores"))


@follows("plan.aggregates:_unknown")
def _(told: Told) -> None:
    plan = scores(told)
    with told:
        plan.distinct()
    told("use group_by(...).agg(n=agg.count())")
    assert plan.group_by("x").agg(n=agg.count()).to_arrow().num_rows == 2


@follows("plan.aggregates:wrong_argument")
def _(told: Told) -> None:
    plan = scores(told)
    with told:
        plan.select(["id", "x"])
    told("with a star before the list")
    assert plan.select(*["id", "x"]).schema.names == ["id", "x"]
    told("give them one by one")
    assert plan.select("id", "x").schema.names == ["id", "x"]


@follows("plan.aggregates:wrong_argument")
def _(told: Told) -> None:
    plan = scores(told)
    with told:
        plan.filter(5)
    told("give a condition, as text")
    assert plan.filter("x = 5").to_arrow().num_rows == 2


def kept(told: Told, plan: Any, name: str) -> Any:
    path = str(told.folder / name)
    plan.refresh(path)
    return Plan.of_table(path)


@follows("plan.agg:__getattr__:2")
def _(told: Told) -> None:
    plan = scores(told)
    with told:
        agg.count_distinct("x")
    told("keep the groups of both first, group_by(..., column).agg(n=count())")
    both = kept(told, plan.group_by("team", "x").agg(n=agg.count()), "both")
    told("count the rows of that table by a second view")
    found = kept(told, both.group_by("team").agg(n=agg.count()), "distinct")
    assert {tuple(row.values()) for row in found.to_arrow().to_pylist()} == {("a", 2), ("b", 1)}


@follows("plan.agg:__getattr__:2")
def _(told: Told) -> None:
    plan = scores(told)
    with told:
        agg.max_by("id", "x")
    told("use max(column) or min(column)")
    best = kept(told, plan.group_by("team").agg(best=agg.max("x")), "best")
    assert {tuple(row.values()) for row in best.to_arrow().to_pylist()} == {("a", 7), ("b", 5)}
