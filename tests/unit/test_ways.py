"""Which way a step of a view is computed, who says so, and that nothing else depends on it."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.options.views import ViewOptions
from spark_upsert.plan import agg
from spark_upsert.streams.reads.explain import explain_view
from spark_upsert.streams.reads.views import open_view, step_splits
from spark_upsert.table.table import Table
from spark_upsert.views import view as ways
from spark_upsert.views.plan_builder import Plan
from spark_upsert.views.relation import LookedUpRows, Step, changes_of
from spark_upsert.views.scan import TableBase
from spark_upsert.views.view import RefreshStrategy, choose_strategy
from tests.unit.test_view_source import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.customer(*((n, "a") for n in range(10)))
    shop.order(*((n, n % 10, n) for n in range(20)))
    return shop


def plans(shop: Shop) -> dict[str, Plan]:
    orders, customers = (Plan.of_table(str(shop.root / name)) for name in ("orders", "customers"))
    return {
        "one table": orders.filter("amount > 3"),
        "enriched": orders.join(
            customers.select("name", c="id"), {"customer": "c"}, "left", reverse="scan"
        ),
        "fans out": customers.join(
            orders.select("customer", o="id"), {"id": "customer"}, "left", reverse="scan"
        ),
    }


WHOLE, FANS_OUT = 0.9, 0.5


@pytest.mark.parametrize(
    ("name", "worth"), [("one table", math.inf), ("enriched", WHOLE), ("fans out", FANS_OUT)]
)
def test_each_plan_says_from_where_on_scans_are_worth_it(
    shop: Shop, name: str, worth: float
) -> None:
    plan = plans(shop)[name]
    view = open_view(ViewOptions.parse({"plan": plan.to_json()}))
    assert view.relation.worth_scanning == worth
    grouped = plan.group_by().agg(n=agg.count())
    assert (
        open_view(ViewOptions.parse({"plan": grouped.to_json()})).relation.worth_scanning == worth
    )


@pytest.mark.parametrize(
    ("changed", "share", "way"),
    [
        ({}, 0.0, RefreshStrategy.LOOK_UPS),
        ({"customers": 49}, 0.49, RefreshStrategy.LOOK_UPS),
        ({"customers": 50}, 0.5, RefreshStrategy.SNAPSHOTS),
        ({"customers": 30, "orders": 300}, 0.51, RefreshStrategy.SNAPSHOTS),
        ({"customers": 20, "orders": 300}, 0.44, RefreshStrategy.LOOK_UPS),
        ({"customers": 9000}, 1.0, RefreshStrategy.SNAPSHOTS),
    ],
    ids=["nothing", "less than half", "half", "together", "not together", "more than there are"],
)
def test_the_share_of_the_rows_that_may_have_changed_decides(
    shop: Shop, changed: dict[str, int], share: float, way: RefreshStrategy
) -> None:
    plan = plans(shop)["fans out"]
    relation = open_view(ViewOptions.parse({"plan": plan.to_json()})).relation
    choice = choose_strategy(relation, changed, {"customers": 100, "orders": 1000})
    assert choice.share == pytest.approx(share)
    assert choice.strategy is way
    empty = choose_strategy(relation, dict.fromkeys(changed, 1), dict.fromkeys(changed, 0))
    assert empty.strategy is (RefreshStrategy.SNAPSHOTS if changed else RefreshStrategy.LOOK_UPS), (
        "all of nothing"
    )


@pytest.mark.parametrize("net", [False, True], ids=["step by step", "net"])
def test_explain_says_which_way_is_gone_and_why(shop: Shop, net: bool) -> None:
    plan = plans(shop)["fans out"]
    mode = {"deduplicationMode": "netChanges"} if net else {}
    options = ViewOptions.parse({"plan": plan.to_json(), "readChangeFeed": "true", **mode})
    view = open_view(options)
    before = view.newest()
    shop.customer((1, "b"))
    shop.customer(*((n, "c") for n in range(10)))

    def told() -> str:
        view = open_view(options)
        return explain_view(view, step_splits(view, options, before, view.newest()))

    assert "by look-ups" in told(), "few rows are looked up, whatever their share"
    with patch.object(ways, "STEP_ROWS_MIN", 0):
        said = told()
    few = "" if net else " for 1 of them"
    assert f"by comparing both snapshots{few} (100% of the rows may have changed, and both " in said
    assert "snapshots are compared from 50% on)" in said


@pytest.mark.parametrize("name", ["enriched", "fans out"])
@pytest.mark.parametrize("least", [0, ways.STEP_ROWS_MIN], ids=["snapshots", "look-ups"])
def test_sums_of_rows_without_a_key_are_the_same_either_way(
    shop: Shop, name: str, least: int
) -> None:
    """Nothing tells such rows apart: all old ones are taken back, and all new ones added."""
    rows = plans(shop)[name].select("name")
    kept = str(shop.root / "kept")
    grouped = rows.group_by("name").agg(n=agg.count())
    assert grouped.refresh(kept)
    shop.customer(*((n, "b") for n in range(9)))
    shop.customers.upsert(pa.table({"id": [9], "name": ["x"], "gone": [True]}), deletes="gone")
    with patch.object(ways, "STEP_ROWS_MIN", least):
        assert grouped.refresh(kept)
    expected = sorted(map(str, grouped.to_arrow().to_pylist()))
    assert sorted(map(str, Plan.of_table(kept).to_arrow().to_pylist())) == expected
    assert Table.open(kept).check().is_sound


def test_of_a_value_that_very_many_rows_have_a_task_holds_its_own(tmp_path: Path) -> None:
    """Of a thousand orders of one customer who moves, each of eight tasks looks up an eighth."""
    shop = Shop(tmp_path)
    shop.orders.alter(shop.orders.schema, {"indexBy": "customer"})
    shop.customer((7, "a"))
    shop.order(*((n, 7, n) for n in range(1000)))
    orders, customers = (Plan.of_table(str(tmp_path / name)) for name in ("orders", "customers"))
    shop.orders.build_indexes()
    plan = orders.join(customers.select("name", c="id"), {"customer": "c"}, "left")
    view = open_view(ViewOptions.parse({"plan": plan.to_json()}))
    before = view.newest()
    shop.customer((7, "b"))
    step = Step(before, view.newest())
    held = []

    def counted(self: TableBase, keys: pa.RecordBatch, version: int | None) -> LookedUpRows:
        held.append(keys.num_rows)
        return look_up(self, keys, version)

    look_up = TableBase.look_up
    with patch.object(TableBase, "look_up", counted):
        cut = [Step(before, step.after, within=piece) for piece in ALL_HASHES.cut(8)]
        sizes = [len(changes_of(view.relation, each)) for each in cut]
    assert sum(sizes) == 1000
    assert max(held) == max(sizes) < 200
