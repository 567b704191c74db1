"""NULL is a group like others: views over tables that keep groups show, keep and join its row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.errors import PlanError
from spark_upsert.plan import agg
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.view_keepers import Keeper

Totals = dict[str | None, int]


class Sales:
    """Orders per country, which some do not have, in a kept table; and what is kept of that."""

    def __init__(self, root: Path) -> None:
        self.root = root
        schema = pa.schema({"id": pa.int64(), "country": pa.string(), "amount": pa.int64()})
        self.orders = Table.create(str(root / "orders"), schema, keys=["id"])
        self.groups = self._orders().group_by("country").agg(total=agg.sum("amount"))
        self.sell((1, "NL", 1), (2, None, 2), (3, None, 3))
        self.totals = Plan.of_table(str(root / "totals"))
        self.keeper = Keeper(
            self.totals.filter("total > 0").node, root / "kept", root / "checkpoint", {}
        )

    def _orders(self) -> Plan:
        return Plan.of_table(str(self.root / "orders"))

    def sell(self, *orders: tuple[int, str | None, int]) -> None:
        names = ("id", "country", "amount")
        rows = [dict(zip(names, order, strict=True)) for order in orders]
        self.orders.upsert(pa.Table.from_pylist(rows, schema=self.orders.schema.columns))
        self.groups.refresh(str(self.root / "totals"))

    @property
    def kept(self) -> Table:
        return Table(open_store(str(self.root / "kept")))

    def shown(self) -> Totals:
        """Bring the kept rows up to date, and return them."""
        while self.keeper.run():
            pass
        return {row["country"]: row["total"] for row in self.kept.snapshot().to_pylist()}


@pytest.fixture
def sales(tmp_path: Path) -> Sales:
    return Sales(tmp_path)


def test_the_rows_of_a_view_are_kept_also_of_the_group_null(sales: Sales) -> None:
    assert sales.shown() == {"NL": 1, None: 5}


def test_the_kept_row_of_the_group_null_changes_goes_and_comes_back(sales: Sales) -> None:
    sales.shown()
    sales.sell((2, None, 7))
    assert sales.shown() == {"NL": 1, None: 10}
    sales.sell((2, "NL", 7), (3, "NL", 3))
    assert sales.shown() == {"NL": 11}
    sales.sell((3, None, 4))
    assert sales.shown() == {"NL": 8, None: 4}


def test_the_kept_row_of_the_group_null_is_found_by_an_index_that_leads(sales: Sales) -> None:
    sales.shown()
    before = sales.kept.log.head().version
    kept = sales.kept
    kept.alter(kept.schema, {"indexBy": "total"})
    sales.sell((2, None, 7))
    sales.shown()
    kept.build_indexes()
    found = kept.rows_having("total", [5], version=before)
    assert found.column("country").to_pylist() == [None]


def sides(sales: Sales) -> tuple[Plan, Plan]:
    return sales.totals, sales.totals.select(place="country", other="total")


def test_a_full_join_of_tables_with_the_group_null_is_refused(sales: Sales) -> None:
    left, right = sides(sales)
    with pytest.raises(PlanError, match="may be NULL") as error:
        left.join(right, {"country": "place"}, "full")
    assert 'filter("country IS NOT NULL")' in str(error.value)


def test_joins_of_tables_with_the_group_null_go_as_the_hint_says(sales: Sales) -> None:
    left, right = sides(sales)
    named = left.filter("country IS NOT NULL")
    for joined, expected in [
        (named.join(right, {"country": "place"}, "full"), {("NL", 1, 1), (None, None, 5)}),
        (left.join(right, {"country": "place"}, "left"), {("NL", 1, 1), (None, 5, None)}),
    ]:
        assert {tuple(row.values()) for row in joined.to_arrow().to_pylist()} == expected


def test_a_filter_of_other_columns_does_not_rule_the_group_null_out(sales: Sales) -> None:
    left, right = sides(sales)
    with pytest.raises(PlanError, match="may be NULL"):
        left.filter("country IS NOT NULL OR total > 0").join(right, {"country": "place"}, "full")
