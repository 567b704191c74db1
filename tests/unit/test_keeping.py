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

from spark_upsert.envelopes.write_plan import plan_upon
from spark_upsert.errors import OptionError, OtherTableError, PlanError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import (
    Group,
    Join,
    JoinKeys,
    JoinType,
    Node,
    Project,
    ProjectedColumn,
    Reverse,
    Scan,
)
from spark_upsert.streams.planner.formats import batch_inputs, plan_columns
from spark_upsert.streams.reads.explain import explain_view
from spark_upsert.streams.reads.work import splits_of
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.refresh import refresh
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
        self.grouping = View(self.view).grouping
        assert self.grouping is not None
        self.kept = MaterializedView.made(Table(MemoryStore()), self.grouping, self.view.to_json())

    def expected(self) -> dict[Row, Row]:
        names = {row["id"]: row["name"] for row in self.customers.snapshot().to_pylist()}
        rows = [
            (o["id"], o["customer"], o["amount"], names.get(o["customer"]))
            for o in self.orders.snapshot().to_pylist()
        ]
        assert self.grouping is not None
        return expected(self.grouping, rows)

    def shown(self) -> dict[Row, Row]:
        assert self.grouping is not None
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


@pytest.mark.parametrize("options", [{}, {"splits": "3", "maxEpochsPerTrigger": "1"}], ids=str)
@pytest.mark.sweep(1)
def test_a_kept_view_follows_its_tables(shop: KeptShop, options: dict[str, str]) -> None:
    chance = random.Random(3)
    shop.disturb(chance)
    query = shop.query(**options)
    for _ in range(5):
        shop.disturb(chance)
        assert all(shop.take(query))
        assert shop.shown() == shop.expected()
        shop.kept.table.compact(full=True)
        assert shop.shown() == shop.expected()


def test_a_batch_that_was_written_and_not_noted_is_written_once(shop: KeptShop) -> None:
    shop.customer((1, "a"))
    shop.order((1, 1, 5))
    query = shop.query()
    assert shop.take(query) == [True]
    shop.order((2, 1, 7))
    assert shop.take(query) == [True]
    for start, end in query.batches:
        query.start()
        assert not shop.write(query.read(start, end))
    assert shop.shown() == shop.expected() == {("a",): (2, 12, 7)}


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


def test_a_first_snapshot_is_gone_on_with(shop: KeptShop) -> None:
    shop.order(*((key, 1, key) for key in range(200)))
    shop.customer((1, "a"))
    first = shop.query(maxRowsPerTrigger="50")
    assert shop.write(first.batch() or [])
    recorded = json.loads(shop.kept.position())
    assert 0 < recorded["snapshot"] < 2**64
    shop.order((3, 1, 1000))
    second = shop.query(startingPosition=shop.kept.position(), maxRowsPerTrigger="70")
    assert all(shop.take(second))
    assert shop.shown() == shop.expected() == {("a",): (200, 199 * 100 - 3 + 1000, 1000)}
    assert not shop.write(first.batch() or []), "what the first query does next is there already"


def test_a_process_without_spark_brings_a_kept_view_up_to_date(shop: KeptShop) -> None:
    chance = random.Random(11)
    table = shop.kept.table
    assert refresh(View(shop.view), table)
    for _ in range(4):
        shop.disturb(chance)
        assert refresh(View(shop.view), table)
        assert shop.shown() == shop.expected()
        assert not refresh(View(shop.view), table)
        shop.disturb(chance)
        assert shop.take(shop.query(startingPosition=shop.kept.position())) == [True]
        assert shop.shown() == shop.expected()


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


def test_a_first_snapshot_of_a_query_is_gone_on_with_without_spark(shop: KeptShop) -> None:
    shop.order(*((key, 1, key) for key in range(200)))
    assert shop.write(shop.query(maxRowsPerTrigger="50").batch() or [])
    shop.order((3, 1, 1000))
    assert refresh(View(shop.view), shop.kept.table)
    assert shop.shown() == shop.expected()


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


def made_anew(shop: KeptShop, path: Path) -> Table:
    """Put another table in the place of one."""
    shutil.rmtree(path)
    return Table.create(str(path), CUSTOMERS, keys=["id"])


def set_back(shop: KeptShop, path: Path) -> Table:
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
    shop: KeptShop, another: Callable[[KeptShop, Path], Table], behind: int, by: str
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
    kept = MaterializedView.made(Table(MemoryStore()), grouping, view.to_json())
    shop.order((1, 1, 5))
    query = Query(view)
    rows = query.batch()
    kept.table.upsert(pa.Table.from_pylist(rows or [], schema=kept.table.schema.columns))
    shutil.rmtree(tmp_path / "customers")
    shop.customers = Table.create(str(tmp_path / "customers"), CUSTOMERS, keys=["id"])
    shop.customer((1, "b"))
    shop.order((1, 2, 5))
    query.start()
    ways: dict[str, GoOn] = {**GO_ON, "its checkpoint": lambda *_: query.batch()}
    with pytest.raises(OtherTableError, match="customers"):
        ways[by](view, kept)


def test_rows_without_an_identity_are_summed_over_many_tasks(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    orders, customers = shop.scans
    back = (JoinKeys("id", "customer"),)
    owned = Project(
        input=orders, columns=(ProjectedColumn("o", "id"), ProjectedColumn("customer", "customer"))
    )
    joined = Join(left=customers, right=owned, on=back, how=JoinType.LEFT, reverse=Reverse.SCAN)
    names = Project(input=joined, columns=(ProjectedColumn("name", "name"),))
    view = Group(input=names, keys=("name",), aggregates=(Aggregate("n", AggregateKind.COUNT),))
    grouping = View(view).grouping
    assert grouping is not None
    kept = MaterializedView.made(Table(MemoryStore()), grouping, view.to_json())
    query = Query(view, splits="4")
    for _ in range(2):
        shop.customer(*((key, f"c{key % 2}") for key in range(6)))
        shop.order(*((key, key % 4, 1) for key in range(12)))
        while (rows := query.batch()) is not None:
            kept.table.upsert(pa.Table.from_pylist(rows, schema=kept.table.schema.columns))
        shown_ = sorted(map(tuple, (row.values() for row in kept.rows().to_pylist())))
        assert shown_ == [("c0", 7), ("c1", 7)]
        shop.order((1, 3, 1))


def test_a_position_of_other_tables_is_refused(shop: KeptShop) -> None:
    with pytest.raises(OptionError, match="startingPosition"):
        shop.query(startingPosition='{"at":{"elsewhere":3}}').batch()


def test_a_group_is_no_batch_read(shop: KeptShop) -> None:
    plan = ReadPlan.parse({"plan": shop.view.to_json()})
    with pytest.raises(PlanError, match="keep it first"):
        batch_inputs(plan, plan_columns(plan))


def test_a_table_has_no_position(shop: KeptShop) -> None:
    path = str(shop.root / "orders")
    plan = ReadPlan.parse({"path": path, "startingPosition": "{}"})
    with pytest.raises(OptionError, match="is of views"):
        batch_inputs(plan, plan_columns(plan))


def test_a_grouped_view_is_explained(shop: KeptShop) -> None:
    shop.order((1, 1, 5))
    query = shop.query()
    end = dict(query.stream.latest(query.offset))
    [work] = query.stream.splits(query.offset, end)
    text = explain_view(View(shop.view), list(splits_of(work)))
    assert "group by name: n = count(*), total = sum(amount), top = max(amount)" in text


def test_rows_are_one_table_in_any_order_and_repetition_of_batches(shop: KeptShop) -> None:
    """Rule of kept rows: the later step wins, whenever it comes."""
    chance = random.Random(9)
    plan = shop.plan(JoinType.LEFT)
    query, batches = Query(plan, maxEpochsPerTrigger="2"), []
    for _ in range(6):
        shop.disturb(chance)
        while (rows := query.batch()) is not None:
            batches.append(rows)
    schema = plan_columns(ReadPlan.parse({"plan": plan.to_json(), "readChangeFeed": "true"}))
    given = {"envelope": "changelog", "keys": "id", "sequenceBy": "_commit_version"}
    options = WriteOptions.parse({"path": "/unused", "sequenceScope": "table", **given})
    sent = [*batches, *chance.sample(batches, 3)]
    contents = []
    for number in range(3):
        table = Table(MemoryStore())
        order = sent if not number else chance.sample(sent, len(sent))
        for rows in order:
            table.ensure(plan_upon(table, options, schema).envelope.schema)
            batch = pa.Table.from_pylist(rows, schema=schema)
            table.upsert(batch, envelope=plan_upon(table, options, schema).envelope)
        contents.append(sorted(map(str, table.snapshot().to_pylist())))
    names = {row["id"]: row["name"] for row in shop.customers.snapshot().to_pylist()}
    expected_ = [
        str({**order, "name": names.get(order["customer"])})
        for order in shop.orders.snapshot().to_pylist()
    ]
    assert contents == [sorted(expected_)] * 3


def test_a_plan_is_told_apart_from_another(shop: KeptShop) -> None:
    assert isinstance(shop.view, Node)
    assert isinstance(shop.scans[0], Scan)
    assert json.loads(shop.kept.table.log.head().properties["viewPlan"])["node"] == "group"
