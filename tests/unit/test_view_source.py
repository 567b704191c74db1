"""A view as the input of a stream or a batch: offsets, limits, restarts, leases, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataLossError, OptionError, UpsertFlowError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.plan.nodes import Join, JoinKeys, JoinType, Node, Reverse, Scan
from spark_upsert.streams.planner.formats import plan_columns
from spark_upsert.streams.reads.read_split import refuse_own_epochs, splits_of
from spark_upsert.table.log.manifest import TableVersion, Transaction
from spark_upsert.table.table import Table
from spark_upsert.views.relation import At
from spark_upsert.views.view import View
from tests.support.leases import before_leases
from tests.support.view_queries import Query, batch_rows, folded
from tests.support.view_tables import let_time_pass

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string()})

Row = tuple[Any, ...]


class Shop:
    """Orders and customers, and a view of both."""

    def __init__(self, root: Path) -> None:
        self.orders = Table.create(str(root / "orders"), ORDERS, keys=["id"])
        self.customers = Table.create(str(root / "customers"), CUSTOMERS, keys=["id"])
        self.root = root

    @property
    def scans(self) -> tuple[Scan, Scan]:
        return (
            Scan.of(str(self.root / "orders"), ORDERS, ("id",)),
            Scan.of(str(self.root / "customers"), CUSTOMERS, ("id",)),
        )

    def plan(self, how: JoinType = JoinType.LEFT) -> Node:
        orders, customers = self.scans
        on = (JoinKeys("customer", "id"),)
        return Join(left=orders, right=customers, on=on, how=how, reverse=Reverse.SCAN)

    def order(self, *rows: Row) -> None:
        self._append(self.orders, ORDERS, rows)

    def customer(self, *rows: Row) -> None:
        self._append(self.customers, CUSTOMERS, rows)

    def _append(self, table: Table, schema: pa.Schema, rows: tuple[Row, ...]) -> None:
        columns = [
            pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        table.upsert(pa.Table.from_arrays(columns, schema=schema))
        let_time_pass(table)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_stream_begins_with_all_rows_and_goes_on_with_changes(shop: Shop) -> None:
    shop.customer((7, "ada"))
    shop.order((1, 7, 10), (2, 8, 20))
    query = Query(shop.plan())
    assert folded(query.all()) == {(1, 7, 10, "ada"), (2, 8, 20, None)}
    shop.customer((8, "bob"))
    shop.customer((7, "eve"))
    rows = query.all()
    shown = [(row["_change_type"], row["id"], row["name"]) for row in rows]
    assert shown == [
        ("update_preimage", 2, None),
        ("update_postimage", 2, "bob"),
        ("update_preimage", 1, "ada"),
        ("update_postimage", 1, "eve"),
    ]
    assert rows[0]["_commit_version"] < rows[2]["_commit_version"]
    assert query.batch() is None


def replace_plan(shop: Shop, query: Query) -> None:
    query.given["plan"] = shop.plan(JoinType.INNER).to_json()


def replace_table(shop: Shop, query: Query) -> None:
    shutil.rmtree(shop.root / "customers")
    shop.customers = Table.create(str(shop.root / "customers"), CUSTOMERS, keys=["id"])


def expire(shop: Shop, query: Query) -> None:
    for number in range(3):
        shop.order((1, 7, number))
    shop.orders.expire(retain_versions=1, safety_ms=0)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (replace_plan, OptionError, "another plan"),
        (replace_table, UpsertFlowError, "OTHER_TABLE"),
        (expire, DataLossError, "DATA_LOSS"),
    ],
)
def test_a_restarted_query_that_cannot_go_on_is_refused(
    shop: Shop, act: Callable[[Shop, Query], None], error: type[Exception], words: str
) -> None:
    shop.order((1, 7, 1))
    query = Query(shop.plan())
    query.all()
    act(shop, query)
    query.start()
    with pytest.raises(error, match=words):
        query.batch()


def test_a_lease_on_each_table_keeps_what_is_to_be_read(shop: Shop) -> None:
    orders, customers = shop.scans
    pinned = Scan(path=customers.path, columns=customers.columns, key=customers.key, version=0)
    shop.order((1, 7, 1))
    on = (JoinKeys("customer", "id"),)
    query = Query(Join(left=orders, right=pinned, on=on, how=JoinType.LEFT), consumerId="view")
    rows = query.all()
    for number in range(3):
        shop.order((1, 7, number))
        shop.customer((7, f"name {number}"))
    expire_all(shop)
    assert folded(rows + query.all()) == {(1, 7, 2, None)}
    assert {lease.consumer for lease in shop.customers.consumers()} == {"view"}
    assert [lease.version for lease in shop.customers.consumers()] == [0]
    assert shop.orders.consumers()[0].version >= 1


def expire_all(shop: Shop) -> None:
    """Compact both tables, and leave nothing but their newest versions."""
    for table in (shop.orders, shop.customers):
        table.compact(full=True)
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)


def test_a_stream_looks_anew_where_an_expiry_comes_before_the_newest_is_noted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(view: View, at: At) -> dict[str, TableVersion]:
        for amount in islice(left, 1):
            shop.order((1, 7, amount))
            expire_all(shop)
        return note(view, at)

    shop.customer((7, "ada"))
    shop.order((1, 7, 1))
    query = Query(shop.plan(), consumerId="view")
    note, left = View.table_versions, iter([2, 3])
    monkeypatch.setattr(View, "table_versions", places)
    rows = query.all()
    left = iter([4, 5])
    shop.order((2, 7, 8))
    assert folded([*rows, *query.all()]) == batch_rows(shop.plan())
    assert list(left) == []


@pytest.mark.parametrize("given", [{}, {"startingVersion": "latest"}])
def test_a_stream_begins_anew_where_an_expiry_comes_before_its_leases(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    def expire(_: int) -> None:
        shop.order((1, 7, 2))
        expire_all(shop)

    shop.customer((7, "ada"))
    shop.order((1, 7, 1))
    query = Query(shop.plan(), consumerId="view", **given)
    before_leases(monkeypatch, expire, times=3)
    rows = query.all()
    shop.order((2, 7, 3))
    rows += query.all()
    expected = {(2, 7, 3, "ada")} if given else {(1, 7, 2, "ada"), (2, 7, 3, "ada")}
    assert folded(rows) == expected


def test_a_batch_reads_the_rows_and_the_changes_of_a_time(shop: Shop) -> None:
    shop.customer((7, "ada"))
    shop.order((1, 7, 1))
    first = shop.orders.log.head().timestamp_ms
    while shop.orders.log.head().timestamp_ms <= first:
        shop.order((1, 7, 2))
    assert batch_rows(shop.plan(), timestampAsOf=str(first)) == {(1, 7, 1, "ada")}
    assert batch_rows(shop.plan()) == {(1, 7, 2, "ada")}
    changes = batch_rows(shop.plan(), readChangeFeed="true", startingTimestamp=str(first))
    assert (1, 7, 1, "ada", "insert") in {row[:5] for row in changes}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingVersion": "1"}, "names one table's version: use 'startingTimestamp'"),
        ({"failOnDataLoss": "false"}, "what it retracted would be wrong"),
        ({"deduplicationMode": "none"}, "does not keep changes of nothing"),
        ({"path": "/lake/orders"}, "the plan names its tables"),
        ({"plann": "{}"}, "unknown option"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_an_option_of_one_table_is_refused(shop: Shop, options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Query(shop.plan(), **options)


def test_a_stream_of_new_values_of_a_view_refuses_a_delete(shop: Shop) -> None:
    shop.customer((7, "ada"))
    shop.order((1, 7, 1))
    query = Query(shop.plan(JoinType.INNER), readChangeFeed="false")
    assert [row["name"] for row in query.all()] == ["ada"]
    shop.customers.delete([7])
    with pytest.raises(OptionError, match="deletes a row"):
        query.batch()


def test_a_view_is_read_alone() -> None:
    view = ReadPlan.parse({"inputs": "a", "input.a.format": "view", "input.a.path": "/lake"})
    with pytest.raises(OptionError, match="read alone"):
        plan_columns(view)


def test_a_query_is_not_fed_by_its_own_sink(shop: Shop) -> None:
    shop.order((1, 7, 1))
    query = Query(shop.plan())
    query.all()
    rows = pa.Table.from_pylist([{"id": 1, "customer": 7, "amount": 2}], schema=ORDERS)
    writer = Transaction.writer_of_query("the query")
    shop.orders.upsert(rows, transaction=Transaction(writer=writer, number=0))
    end = dict(query.stream.latest(query.offset))
    [work] = query.stream.splits(query.offset, end)
    with pytest.raises(OptionError, match="reads what it writes"):
        refuse_own_epochs(splits_of(work), "the query")
