"""A query that keeps a grouped view: each batch is taken once, whatever becomes of checkpoints."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import OptionError, OtherTableError, PlanError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import (
    Group,
    Join,
    JoinKeys,
    JoinType,
    Node,
    Reverse,
)
from spark_upsert.streams.planner.formats import batch_inputs, plan_columns
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import refresh
from spark_upsert.views.view import View
from tests.support.grouped import Row, expected, shown
from tests.support.leases import before_leases
from tests.support.stores import MemoryStore
from tests.support.view_queries import Query
from tests.unit.test_view_source import CUSTOMERS, Shop, expire_all

WANTED = (
    Aggregate("n", AggregateKind.COUNT),
    Aggregate("total", AggregateKind.SUM, "amount"),
    Aggregate("top", AggregateKind.MAX, "amount"),
)


class KeptShop(Shop):
    """Orders joined with customers, and what is kept of them per name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.view = Group(input=self.plan(JoinType.LEFT), keys=("name",), aggregates=WANTED)
        grouping = View(self.view).grouping
        assert grouping is not None
        self.grouping = grouping
        self.kept = MaterializedView.create(
            Table(MemoryStore()), self.grouping, self.view.to_json()
        )

    def expected(self) -> dict[Row, Row]:
        names = {row["id"]: row["name"] for row in self.customers.snapshot().to_pylist()}
        rows = [
            (o["id"], o["customer"], o["amount"], names.get(o["customer"]))
            for o in self.orders.snapshot().to_pylist()
        ]
        return expected(self.grouping, rows)

    def shown(self) -> dict[Row, Row]:
        return shown(self.grouping, self.kept.rows())

    def take(self, query: Query) -> list[bool]:
        """Run the query as far as there is something; return which batches were applied."""
        applied = []
        while (rows := query.batch()) is not None:
            applied.append(self.write(rows))
        return applied

    def write(self, rows: list[dict[str, Any]]) -> bool:
        schema = self.kept.table.schema.columns
        return self.kept.table.upsert(pa.Table.from_pylist(rows, schema=schema)) is not None

    def query(self, **options: str) -> Query:
        return Query(self.view, **options)

    def disturb(self, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 4)):
            key = chance.randrange(6)
            if chance.random() < 0.4:
                self.customer((chance.randrange(3), f"c{chance.randrange(2)}"))
            elif chance.random() < 0.3:
                gone = pa.table({"id": [key], "customer": [0], "amount": [0], "gone": [True]})
                self.orders.upsert(gone, deletes="gone")
            else:
                self.order((key, chance.randrange(3), chance.randrange(4)))


@pytest.fixture
def shop(tmp_path: Path) -> KeptShop:
    return KeptShop(tmp_path)


def test_a_new_checkpoint_begins_where_the_table_is(shop: KeptShop) -> None:
    chance = random.Random(5)
    shop.disturb(chance)
    shop.take(shop.query())
    for _ in range(4):
        shop.disturb(chance)
        query = shop.query(startingPosition=shop.kept.position())
        assert shop.take(query) == [True]
        assert shop.shown() == shop.expected()
        start, end = query.batches[0]
        query.given.pop("startingPosition")
        query.start()
        assert not shop.write(query.read(start, end)), "the end of a batch tells where it began"


@pytest.mark.parametrize("by", ["query", "process"])
def test_a_first_snapshot_is_gone_on_with(shop: KeptShop, by: str) -> None:
    shop.order(*((key, 1, key) for key in range(200)))
    shop.customer((1, "a"))
    first = shop.query(maxRowsPerTrigger="50")
    assert shop.write(first.batch() or [])
    assert 0 < json.loads(shop.kept.position())["snapshot"] < 2**64
    shop.order((3, 1, 1000))
    if by == "query":
        second = shop.query(startingPosition=shop.kept.position(), maxRowsPerTrigger="70")
        assert all(shop.take(second))
    else:
        assert refresh(View(shop.view), shop.kept.table)
    assert shop.shown() == shop.expected() == {("a",): (200, 199 * 100 - 3 + 1000, 1000)}
    assert not shop.write(first.batch() or []), "what the first query does next is there already"


def test_a_refresh_goes_on_behind_a_table_that_nobody_writes_and_that_is_expired(
    shop: KeptShop,
) -> None:
    for amount in (4, 5):  # Two runs, which a compaction merges.
        shop.customer((1, "a"))
        shop.order((1, 1, amount))
    assert refresh(View(shop.view), shop.kept.table)
    for table in (shop.orders, shop.customers) * 3:
        table.compact(full=True)
        table.expire(retain_versions=1, safety_ms=0)
        table.vacuum(grace_ms=0)
    assert not refresh(View(shop.view), shop.kept.table)
    shop.order((2, 1, 7))
    assert refresh(View(shop.view), shop.kept.table)
    assert shop.shown() == shop.expected() == {("a",): (2, 12, 7)}


def test_a_refresh_begins_anew_where_an_expiry_comes_before_its_leases(
    shop: KeptShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(number: int) -> None:
        shop.order((number, 1, 7))
        expire_all(shop)

    shop.customer((1, "a"))
    shop.order((9, 1, 4))
    with monkeypatch.context() as patched:
        before_leases(patched, expire, times=3)
        assert refresh(View(shop.view), shop.kept.table)
    assert shop.shown() == shop.expected() == {("a",): (4, 25, 7)}


def test_a_query_that_begins_leaves_to_another_what_it_has_yet_to_read(shop: KeptShop) -> None:
    shop.order((1, 1, 5))
    first = shop.query(consumerId="view")
    assert first.batch()
    shop.order((2, 1, 7))
    second = shop.query(consumerId="view")
    assert second.stream.latest(second.offset) != first.offset
    assert [lease.version for lease in shop.orders.consumers()] == [1]
    assert first.batch()
    assert [lease.version for lease in shop.orders.consumers()] == [2]


def test_a_query_that_begins_anew_upon_a_table_that_is_ahead_is_refused(shop: KeptShop) -> None:
    shop.order((1, 1, 5))
    shop.take(shop.query())
    shop.order((2, 1, 5))
    with pytest.raises(OtherTableError, match="begins where the table is"):
        shop.take(shop.query())


def made_anew(shop: Shop, path: Path) -> Table:
    shutil.rmtree(path)
    return Table.create(str(path), CUSTOMERS, keys=["id"])


def set_back(shop: Shop, path: Path) -> Table:
    """Put a copy that was made at its first version in the place of a table."""
    shutil.rmtree(path)
    shutil.copytree(shop.root / "copy", path)
    return Table.open(str(path))


GoOn = Callable[[Node, MaterializedView], object]

GO_ON: dict[str, GoOn] = {
    "a query": lambda view, kept: Query(view, startingPosition=kept.position()).batch(),
    "a process": lambda view, kept: refresh(View(view), kept.table),
}


@pytest.mark.parametrize("another", [made_anew, set_back])
@pytest.mark.parametrize("behind", [0, 3], ids="{} versions more".format)
@pytest.mark.parametrize("by", GO_ON)
@pytest.mark.sweep(3)
def test_a_view_is_not_kept_on_from_a_table_that_was_replaced(
    shop: KeptShop, another: Callable[[Shop, Path], Table], behind: int, by: str
) -> None:
    path = shop.root / "customers"
    shutil.copytree(path, shop.root / "copy")
    shop.order((1, 1, 5))
    shop.customer((1, "a"))
    shop.take(shop.query())
    kept = shop.shown()
    shop.customers = another(shop, path)
    for number in range(behind):
        shop.customer((number, "b"))
    with pytest.raises(OtherTableError, match=r"keeps this view belongs to version .*customers'"):
        GO_ON[by](shop.view, shop.kept)
    assert shop.shown() == kept


@pytest.mark.parametrize("by", [*GO_ON, "its checkpoint"])
def test_a_view_is_not_kept_on_with_another_table_at_a_fixed_version(
    tmp_path: Path, by: str
) -> None:
    shop = Shop(tmp_path)
    shop.customer((1, "a"))
    orders, customers = shop.scans
    fixed = replace(customers, version=1)
    on = (JoinKeys("customer", "id"),)
    joined = Join(left=orders, right=fixed, on=on, how=JoinType.LEFT, reverse=Reverse.SCAN)
    view = Group(input=joined, keys=("name",), aggregates=(Aggregate("n", AggregateKind.COUNT),))
    grouping = View(view).grouping
    assert grouping is not None
    kept = MaterializedView.create(Table(MemoryStore()), grouping, view.to_json())
    shop.order((1, 1, 5))
    query = Query(view)
    rows = query.batch()
    kept.table.upsert(pa.Table.from_pylist(rows or [], schema=kept.table.schema.columns))
    shop.customers = made_anew(shop, tmp_path / "customers")
    shop.customer((1, "b"))
    shop.order((1, 2, 5))
    query.start()
    ways: dict[str, GoOn] = {**GO_ON, "its checkpoint": lambda *_: query.batch()}
    with pytest.raises(OtherTableError, match="customers"):
        ways[by](view, kept)


def test_a_position_of_other_tables_and_a_read_of_a_group_are_refused(shop: KeptShop) -> None:
    with pytest.raises(OptionError, match="startingPosition"):
        shop.query(startingPosition='{"at":{"elsewhere":3}}').batch()
    plan = ReadPlan.parse({"plan": shop.view.to_json()})
    with pytest.raises(PlanError, match="keep it first"):
        batch_inputs(plan, plan_columns(plan))
    plan = ReadPlan.parse({"path": str(shop.root / "orders"), "startingPosition": "{}"})
    with pytest.raises(OptionError, match="is of views"):
        batch_inputs(plan, plan_columns(plan))
