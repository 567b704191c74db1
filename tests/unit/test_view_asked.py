"""What a plan is asked: keys of other widths join, and what there is not is told in a sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import CorruptionError, PlanError
from spark_upsert.plan import agg
from spark_upsert.plan.nodes import HashJoin, JoinKeys, Limit, MergeJoin, Node
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from spark_upsert.views.scan import ScanRelation
from spark_upsert.views.view import View
from tests.support.stores import forget_runs_and_logs
from tests.support.view_queries import Query, folded


def made(root: Path, name: str, rows: dict[str, list[Any]], **types: pa.DataType) -> Plan:
    """Return all rows of a new table, of which the first column is the key and others indexed."""
    names = list(rows)
    schema = pa.schema([(each, types.get(each, pa.int64())) for each in names])
    own = {"indexBy": ",".join(names[1:])}
    table = Table.create(str(root / name), schema, keys=names[:1], properties=own)
    table.upsert(pa.table(rows, schema=schema))
    return Plan.of_table(str(root / name))


MOST = (1 << 31) - 1


@pytest.mark.parametrize(
    ("narrow", "wide"), [(pa.int32(), pa.int64()), (pa.int8(), pa.uint32())], ids=str
)
def test_whole_numbers_of_other_widths_join_and_find_their_index(
    tmp_path: Path, narrow: pa.DataType, wide: pa.DataType
) -> None:
    """No side is read whole, in either direction."""
    orders = made(tmp_path, "orders", {"id": [1, 2, 3], "customer": [7, 8, None]}, customer=narrow)
    customers = made(tmp_path, "customers", {"number": [7, 9], "name": [70, 90]}, number=wide)
    query = Query(orders.join(customers, {"customer": "number"}, "left").node)
    rows = query.all()
    table = Table.open(str(tmp_path / "customers"))
    with patch.object(ScanRelation, "scan", side_effect=AssertionError("all rows are read")):
        table.upsert(pa.table({"number": [7, 8], "name": [71, 80]}, schema=table.schema.columns))
        rows += query.all()
    assert folded(rows) == {(1, 7, 71), (2, 8, 80), (3, None, None)}


def test_a_number_that_does_not_fit_the_other_side_joins_nothing(tmp_path: Path) -> None:
    orders = made(tmp_path, "orders", {"id": [1, 2], "customer": [MOST, -5]}, customer=pa.int32())
    numbers = [MOST, MOST + 1, -5 + (1 << 32), -5 - (1 << 32)]
    customers = made(tmp_path, "customers", {"number": numbers, "name": [1, 2, 3, 4]})
    one = orders.join(customers, {"customer": "number"}).to_arrow().to_pylist()
    assert one == [{"id": 1, "customer": MOST, "name": 1}]
    other = customers.join(orders, {"number": "customer"}, "left").to_arrow().to_pylist()
    assert {(row["number"], row["id"]) for row in other} == {
        (MOST, 1),
        *((n, None) for n in numbers[1:]),
    }


def test_a_join_takes_names_that_both_sides_have_and_a_full_join_wants_one_type(
    tmp_path: Path,
) -> None:
    one = made(tmp_path, "one", {"a": [1, 2], "x": [3, 4]})
    other = made(tmp_path, "other", {"a": [2], "y": [5]})
    for on in (["a"], ("a",), "a", {"a": "a"}):
        assert one.join(other, on).to_arrow().to_pylist() == [{"a": 2, "x": 4, "y": 5}]
    narrow = made(tmp_path, "narrow", {"b": [1]}, b=pa.int32())
    with pytest.raises(PlanError, match="int64 against int32"):
        one.join(narrow, {"a": "b"}, "full")


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda p: p.union(p), "write both into one table"),
    (lambda p: p.orderBy("x"), "keep the view"),
    (lambda p: p.distinct(), "use group_by"),
    (lambda p: p.count(), "agg.count()"),
    (lambda p: p.where("x > 1"), "use filter"),
    (lambda p: p.group_by("x").count(), "use group_by(...).agg"),
    (lambda p: p.group_by("x").filter("x > 1"), "use .agg(...) first"),
    (lambda p: p.join("/lake/other", "a"), "give another plan"),
    (lambda p: p.join(p, 5), "names that both sides have"),
    (lambda p: p.select(["a", "x"]), "with a star before the list"),
    (lambda p: p.group_by("x").agg(n="count"), "agg.count()"),
    (lambda p: agg.count_distinct, "keep"),
    (lambda p: agg.mean, "use"),
]


def test_what_a_plan_cannot_do_is_told_with_what_there_is(tmp_path: Path) -> None:
    plan = made(tmp_path, "table", {"a": [1], "x": [1]})
    for call, instead in WRONG:
        with pytest.raises(PlanError) as error:
            call(plan)
        assert instead in error.value.hint
    for has in (plan, plan.group_by("x"), agg):
        assert not hasattr(has, "something")


@pytest.mark.parametrize("node", [HashJoin, MergeJoin, Limit], ids=lambda node: node.kind)
def test_nodes_of_tasks_are_refused_in_a_view(tmp_path: Path, node: type[Node]) -> None:
    """A hash join shows the keys of both sides, which a view does not."""
    plan = made(tmp_path, "table", {"a": [1], "x": [1]}).node
    sides: dict[str, Any] = {"left": plan, "right": plan, "on": JoinKeys.pairs(("a",), ("a",))}
    own = {"input": plan, "count": 1} if node is Limit else sides
    with pytest.raises(PlanError, match=f"'{node.kind}' is a node for tasks"):
        View(node(**own))


def damaged(folder: Path) -> None:
    for file in folder.rglob("*.arrow"):
        data = bytearray(file.read_bytes())
        third = len(data) // 3
        data[third : 2 * third] = b"\xff" * third
        file.write_bytes(data)
    forget_runs_and_logs()


class Damage:
    """A stream of orders with their customers, and a change to come."""

    def __init__(self, root: Path) -> None:
        self.root = root
        orders = made(root, "orders", {"id": [1, 2], "customer": [7, 7]})
        customers = made(root, "customers", {"number": [7], "name": [70]})
        self.query = Query(orders.join(customers, {"customer": "number"}, "left").node)
        self.rows = self.query.all()
        table = Table.open(str(root / "customers"))
        table.upsert(pa.table({"number": [7], "name": [71]}, schema=table.schema.columns))


@pytest.mark.parametrize("name", ["orders", "customers"])
def test_damage_names_the_table(tmp_path: Path, name: str) -> None:
    damage = Damage(tmp_path)
    damaged(tmp_path / name / "data")
    damage.query.start()
    with pytest.raises(CorruptionError) as error:
        damage.query.all()
    assert f"table '{tmp_path / name}': damaged file 'data/" in error.value.message


def test_a_damaged_index_is_told_of_and_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage = Damage(tmp_path)
    damaged(tmp_path / "orders" / "_index")
    damage.query.start()
    with caplog.at_level(logging.WARNING):
        damage.rows += damage.query.all()
    assert folded(damage.rows) == {(1, 7, 71), (2, 7, 71)}
    assert f"path={tmp_path / 'orders'} column=customer" in caplog.text
