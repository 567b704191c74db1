"""Grouped plans as people build them: what they show, how they are kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import pyspark_upsertflow.agg
from integration.pages import code_of
from spark_upsert.errors import PlanError
from spark_upsert.plan import agg
from spark_upsert.plan.json import plan_from_json
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import Plan

ORDERS = pa.schema({"id": pa.int64(), "country": pa.string(), "amount": pa.float64()})


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "orders"), ORDERS, keys=["id"])


@pytest.fixture
def plan(orders: Table, tmp_path: Path) -> Plan:
    return Plan.of_table(str(tmp_path / "orders"))


def test_a_grouped_plan_is_kept_and_brought_up_to_date(
    orders: Table, plan: Plan, tmp_path: Path
) -> None:
    orders.upsert(pa.table({"id": [1, 2], "country": ["NO", "NO"], "amount": [0.1, 0.2]}))
    revenue = plan.group_by("country").agg(
        n=agg.count(), revenue=agg.sum("amount", scale=2), top=agg.max("amount")
    )
    assert revenue.schema == pa.schema(
        {"country": pa.string(), "n": pa.int64(), "revenue": pa.float64(), "top": pa.float64()}
    )
    assert revenue.key == ("country",)
    assert plan_from_json(revenue.to_json()) == revenue.node
    path = str(tmp_path / "revenue")
    assert revenue.refresh(path)
    assert not revenue.refresh(path)
    orders.upsert(pa.table({"id": [2], "country": ["SE"], "amount": [1.0]}))
    assert revenue.refresh(path)
    rows = MaterializedView.open(Table.open(path)).rows().to_pylist()
    assert sorted(map(tuple, (row.values() for row in rows))) == [
        ("NO", 1, 0.1, 0.1),
        ("SE", 1, 1.0, 1.0),
    ]


def test_all_rows_are_one_group_without_columns(orders: Table, plan: Plan, tmp_path: Path) -> None:
    orders.upsert(pa.table({"id": [1, 2], "country": ["NO", None], "amount": [0.1, None]}))
    total = plan.group_by().agg(n=agg.count(), known=agg.count("amount"), low=agg.min("amount"))
    path = str(tmp_path / "total")
    assert total.refresh(path)
    kept = MaterializedView.open(Table.open(path))
    assert kept.rows().to_pylist() == [{"n": 2, "known": 1, "low": 0.1}]


@pytest.mark.parametrize("name", ["collect", "first", "last"])
def test_what_cannot_be_retracted_has_no_name(name: str) -> None:
    for module in (agg, pyspark_upsertflow.agg):
        with pytest.raises(PlanError, match=f"'{name}' cannot be retracted"):
            getattr(module, name)


def test_nothing_is_built_on_a_group_before_it_is_kept(plan: Plan) -> None:
    groups = plan.group_by("country").agg(n=agg.count())
    builds: list[Callable[[], Plan]] = [
        lambda: groups.filter("n > 1"),
        lambda: groups.select("n"),
        lambda: groups.group_by("n").agg(),
        lambda: plan.join(groups, on="country"),
    ]
    for build in builds:
        with pytest.raises(PlanError, match="a group must be kept first"):
            build()


def test_rows_are_not_refreshed(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="groups are refreshed"):
        plan.refresh(str(tmp_path / "rows"))


def test_a_float_is_summed_with_a_scale(plan: Plan) -> None:
    with pytest.raises(PlanError, match="not exact under retraction") as refused:
        plan.group_by("country").agg(revenue=agg.sum("amount"))
    assert "set scale=" in str(refused.value)
    assert "group of orders" in str(refused.value)


@pytest.fixture
def kept(orders: Table, plan: Plan, tmp_path: Path) -> Plan:
    orders.upsert(pa.table({"id": [1, 2], "country": ["NO", "SE"], "amount": [0.5, 2.0]}))
    assert (
        plan.group_by("country")
        .agg(n=agg.count(), top=agg.max("amount"))
        .refresh(str(tmp_path / "kept"))
    )
    return Plan.of_table(str(tmp_path / "kept"))


def test_a_kept_table_is_read_as_its_groups(
    orders: Table, plan: Plan, kept: Plan, tmp_path: Path
) -> None:
    """What stands above a group reads the table that keeps it: how many countries have how much."""
    assert (kept.schema.names, kept.key) == (["country", "n", "top"], ("country",))
    tops = kept.filter("n > 0").group_by("top").agg(countries=agg.count())
    path = str(tmp_path / "tops")

    def shown() -> list[tuple[float, int]]:
        assert tops.refresh(path)
        rows = MaterializedView.open(Table.open(path)).rows().to_pylist()
        return sorted((row["top"], row["countries"]) for row in rows)

    assert shown() == [(0.5, 1), (2.0, 1)]
    for rows, expected in [
        ({"id": [3], "country": ["NO"], "amount": [2.0]}, [(2.0, 2)]),
        ({"id": [2, 4], "country": ["NO", "DK"], "amount": [1.0, 1.0]}, [(1.0, 1), (2.0, 1)]),
    ]:
        orders.upsert(pa.table(rows))
        below = plan.group_by("country").agg(n=agg.count(), top=agg.max("amount"))
        assert below.refresh(str(tmp_path / "kept"))
        assert shown() == expected


def test_groups_are_looked_up_by_their_columns(kept: Plan, tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.string(), "name": pa.string()})
    names = Table.create(str(tmp_path / "names"), schema, keys=["id"])
    names.upsert(pa.table({"id": ["NO", "FI"], "name": ["Norway", "Finland"]}))
    named = Plan.of_table(str(tmp_path / "names"))
    joined = kept.join(named, on={"country": "id"}, how="left", reverse="scan")
    total = joined.group_by("name").agg(n=agg.sum("n"))
    path = str(tmp_path / "total")
    for _ in range(2):
        assert total.refresh(path)
        rows = MaterializedView.open(Table.open(path)).rows().to_pylist()
        assert {row["name"]: row["n"] for row in rows} == {"Norway": 1, None: 1}
        names.upsert(pa.table({"id": ["FI"], "name": ["Suomi"]}))


def test_two_kept_tables_of_one_base_are_refused(
    orders: Table, plan: Plan, kept: Plan, tmp_path: Path
) -> None:
    other = plan.group_by("country").agg(low=agg.min("amount"))
    assert other.refresh(str(tmp_path / "other"))
    lows = Plan.of_table(str(tmp_path / "other"))
    for left, right in ((kept, lows), (plan, kept)):
        with pytest.raises(PlanError, match="orders comes in twice, maybe at two versions"):
            left.join(right, on="country", reverse="scan")
    both = kept.join(lows, on="country", mixed_bases=True)
    assert both.schema.names == ["country", "n", "top", "low"]
    again = plan.select(other="id", other_amount="amount")
    assert plan.join(again, on={"id": "other"}).key == ("id",)
    assert kept.join(kept.select(other="country", m="n"), on={"country": "other"}).key


def test_one_group_of_all_rows_has_no_key(plan: Plan, tmp_path: Path) -> None:
    plan.group_by().agg(n=agg.count()).refresh(str(tmp_path / "all"))
    with pytest.raises(PlanError, match="has no key"):
        Plan.of_table(str(tmp_path / "all"))


def test_a_plan_gives_its_rows_without_a_table_that_keeps_them(
    orders: Table, plan: Plan, tmp_path: Path
) -> None:
    orders.upsert(pa.table({"id": [1, 2], "country": ["NO", "NO"], "amount": [0.5, 2.0]}))
    groups = plan.filter("amount > 0").group_by("country").agg(top=agg.max("amount"))
    assert groups.to_arrow().to_pylist() == [{"country": "NO", "top": 2.0}]
    assert plan.select("id").to_arrow().sort_by("id").to_pydict() == {"id": [1, 2]}
    with pytest.raises(PlanError, match="drops the key"):
        plan.select("country").to_arrow()


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    [code] = code_of("docs/views.md", "python", runner="tests/unit/test_grouped_plans.py")
    exec(code.replace('"/lake/', f'"{tmp_path}/'), {})
