"""Views through Spark: a stream of exact changes, a batch of rows, restarts, a table kept by one."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration.queries import Batches, drain, forget_last_commit, upserts
from integration.tables import Row
from pyspark_upsertflow import view
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

ORDERS = pa.schema({"order_id": pa.int64(), "customer_id": pa.int64(), "amount": pa.float64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "country": pa.string()})


class Shop:
    """Orders, found by their customers, and customers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.orders = Table.create(
            str(folder / "orders"),
            ORDERS,
            keys=["order_id"],
            properties={"indexBy": "customer_id"},
        )
        self.customers = Table.create(str(folder / "customers"), CUSTOMERS, keys=["id"])

    def order(self, *rows: tuple[int, int | None, float | None]) -> None:
        _append(self.orders, ORDERS, rows)

    def customer(self, *rows: tuple[int, str | None]) -> None:
        _append(self.customers, CUSTOMERS, rows)

    def enriched(self) -> Any:
        """Orders above 1, each with its customer's country."""
        orders = view(str(self.folder / "orders")).filter("amount > 1")
        joined = orders.join(view(str(self.folder / "customers")), {"customer_id": "id"}, "left")
        return joined.select("order_id", "country", eur="amount * 2")


def _append(table: Table, schema: pa.Schema, rows: tuple[tuple[Any, ...], ...]) -> None:
    given = [dict(zip(schema.names, row, strict=True)) for row in rows]
    # A row of a key alone is a delete.
    gone = [all(value is None for value in list(row.values())[1:]) for row in given]
    columns = pa.Table.from_pylist(given, schema=schema)
    table.upsert(columns.append_column("gone", pa.array(gone)), deletes="gone")
    # Commits of two tables are put in order by their times.
    newest = table.log.head().timestamp_ms
    while time.time_ns() // 1_000_000 <= newest:
        pass


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.customer((7, "NL"), (8, "DE"))
    made.order((1, 7, 2.0), (2, 8, 3.0), (3, 9, 4.0), (4, 7, 0.5))
    return made


def shown(rows: list[Row]) -> list[tuple[Any, ...]]:
    found = sorted(rows, key=lambda row: (row["_commit_version"], row["order_id"], row["_diff"]))
    return [(row["order_id"], row["country"], row["eur"], row["_diff"]) for row in found]


def rows_of(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter((row["order_id"], row["country"], row["eur"]) for row in rows)


def test_a_view_streams_exact_changes_and_goes_on_after_a_restart(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    batches, checkpoint = Batches(), tmp_path / "checkpoint"
    plan = shop.enriched()

    def run() -> list[tuple[Any, ...]]:
        batches.runs.clear()
        drain(batches.collect(plan.stream(spark), checkpoint))
        return shown(batches.rows)

    every = run()
    assert every == [(1, "NL", 4.0, 1), (2, "DE", 6.0, 1), (3, None, 8.0, 1)]
    shop.customer((7, "BE"))
    shop.order((2, 7, 3.0))
    shop.customer((8, None))
    changes = run()
    assert changes == [
        (1, "NL", 4.0, -1),
        (1, "BE", 4.0, 1),
        (2, "DE", 6.0, -1),
        (2, "BE", 6.0, 1),
    ]
    # As if it had fallen behind its last batch: that is replayed, whatever has come since.
    forget_last_commit(checkpoint)
    shop.orders.compact(full=True)
    shop.customer((9, "FR"))
    again = run()
    assert again == [*changes, (3, None, 8.0, -1), (3, "FR", 8.0, 1)]
    folded: Counter[tuple[Any, ...]] = Counter()
    for *row, diff in [*every, *again]:
        folded[tuple(row)] += diff
    rows = plan.read(spark).toArrow().to_pylist()
    assert +folded == rows_of(rows)
    assert rows_of(rows) == Counter([(1, "BE", 4.0), (2, "BE", 6.0), (3, "FR", 8.0)])

    other = plan.filter("eur > 5")
    with pytest.raises(PySparkException, match="the checkpoint is of another plan"):
        drain(batches.collect(other.stream(spark), checkpoint))


def test_a_view_is_kept_as_a_table_by_a_query(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    kept, checkpoint = tmp_path / "kept", tmp_path / "checkpoint"

    def run() -> None:
        changes = shop.enriched().stream(spark, net=True)
        drain(upserts(changes, kept, checkpoint, keys="order_id", envelope="changelog"))

    run()
    shop.customer((7, "BE"), (9, "FR"))
    shop.order((1, 8, 2.0), (2, None, None), (4, 7, 5.0))
    run()
    rows = Table.open(str(kept)).snapshot().select(["order_id", "country", "eur"]).to_pylist()
    assert rows_of(rows) == rows_of(shop.enriched().read(spark).toArrow().to_pylist())
    assert len(rows) == 3
