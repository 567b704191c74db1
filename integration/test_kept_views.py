"""A view that one query keeps: a load of the table shows it, whatever happens to the query."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.queries import drain, end, forget_last_commit
from pyspark_upsertflow import agg, view, views
from pyspark_upsertflow.views import SparkView
from spark_upsert.errors import OptionError, PlanError
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.table import Table
from spark_upsert.table.write.write_set import overlaps

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "country": pa.string()})

Row = tuple[Any, ...]


class Shop:
    """Orders of customers, and their revenue per country."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.orders = Table.create(str(root / "orders"), ORDERS, keys=["id"])
        self.customers = Table.create(str(root / "customers"), CUSTOMERS, keys=["id"])
        orders, customers = view(str(root / "orders")), view(str(root / "customers"))
        self.joined = orders.join(customers, on={"customer": "id"}, how="left", reverse="scan")
        self.revenue = self.joined.group_by("country").agg(
            n=agg.count(), revenue=agg.sum("amount"), top=agg.max("amount")
        )

    def order(self, *rows: Row) -> None:
        self.orders.upsert(table_of(rows, ORDERS))

    def cancel(self, *keys: int) -> None:
        rows = table_of([(key, None, None) for key in keys], ORDERS)
        self.orders.upsert(rows.append_column("gone", pa.array([True] * len(keys))), deletes="gone")

    def customer(self, *rows: Row) -> None:
        self.customers.upsert(table_of(rows, CUSTOMERS))

    def expected(self) -> dict[Any, Row]:
        country = {row["id"]: row["country"] for row in self.customers.snapshot().to_pylist()}
        groups: dict[Any, list[int]] = {}
        for row in self.orders.snapshot().to_pylist():
            groups.setdefault(country.get(row["customer"]), []).append(row["amount"])
        return {key: (len(a), sum(a), max(a)) for key, a in groups.items()}


def table_of(rows: Any, schema: pa.Schema) -> pa.Table:
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(named, schema=schema)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.customer((1, "NO"), (2, "SE"), (3, None))
    shop.order((1, 1, 10), (2, 1, 5), (3, 2, 7), (4, 9, 1))
    return shop


def run(spark: SparkSession, shop: Shop, kept: SparkView, checkpoint: str, **options: str) -> None:
    """Run the query until it has caught up."""
    paths = str(shop.root / "kept"), str(shop.root / checkpoint)
    end(kept.keep(spark, *paths, available_now=True, **options))


def as_before_reads_were_put_off() -> AbstractContextManager[Any]:
    """Let `keep` run its queries as it did when their rows went through Spark."""
    return patch.object(views, "_deferred_options", lambda reads, text: (reads, {}))


def groups(spark: SparkSession, shop: Shop, **options: str) -> dict[Any, Row]:
    rows = spark.read.format("upsertflow").options(**options).load(str(shop.root / "kept"))
    found = {row.country: (row.n, row.revenue, row.top) for row in rows.collect()}
    assert rows.columns == ["country", "n", "revenue", "top"]
    return found


def test_a_kept_view_is_loaded_as_its_groups(spark: SparkSession, shop: Shop) -> None:
    with as_before_reads_were_put_off():
        run(spark, shop, shop.revenue, "checkpoint", splits="2")
    assert (
        groups(spark, shop)
        == shop.expected()
        == {
            "NO": (2, 15, 10),
            "SE": (1, 7, 7),
            None: (1, 1, 1),
        }
    )
    # Spark fell right behind the commit of the table: the batch comes again, with others, and so
    # does one of an earlier release.
    forget_last_commit(shop.root / "checkpoint")
    shop.order((1, 2, 4))
    shop.customer((2, "NO"))
    shop.cancel(4)
    run(spark, shop, shop.revenue, "checkpoint", splits="2")
    assert groups(spark, shop) == shop.expected() == {"NO": (3, 16, 7)}
    # The query lost its checkpoint, before and behind batches that it had not seen.
    shutil.rmtree(shop.root / "checkpoint")
    shop.order((5, 3, 100))
    run(spark, shop, shop.revenue, "one more")
    assert groups(spark, shop) == shop.expected() == {"NO": (3, 16, 7), None: (1, 100, 100)}
    raw = spark.read.format("upsertflow").option("raw", "true").load(str(shop.root / "kept"))
    assert {(row.country, row._part, row._v1) for row in raw.collect()} == {
        ("NO", 0, None),
        (None, 0, None),
        (None, -1, None),
        *(("NO", 1, value) for value in (4, 5, 7)),
        (None, 1, 100),
    }
    assert folded(changes_of(spark, shop)) == shop.expected()


def changes_of(spark: SparkSession, shop: Shop) -> list[Any]:
    """Return the changes of the groups, as a stream delivers them."""
    feed = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", "earliest").load(str(shop.root / "kept"))
    out = str(shop.root / "changes")
    writer = changes.writeStream.format("parquet").option("path", out)
    drain(writer.option("checkpointLocation", str(shop.root / "feed")))
    return spark.read.parquet(out).collect()


def folded(changes: list[Any]) -> dict[Any, Row]:
    found: dict[Any, Row] = {}
    for row in sorted(changes, key=lambda row: (row["_commit_version"], row["_diff"])):
        key, value = row["country"], (row["n"], row["revenue"], row["top"])
        if row["_diff"] < 0:
            assert found.pop(key) == value
        else:
            assert found.setdefault(key, value) == value
    return found


def test_a_view_of_rows_is_kept_in_any_order_of_its_batches(
    spark: SparkSession, shop: Shop
) -> None:
    big = shop.joined.filter("amount > 4")
    with as_before_reads_were_put_off():
        run(spark, shop, big, "checkpoint")
    shop.order((1, 2, 4), (3, 2, 70))
    shop.customer((2, "NO"))
    with pytest.raises(OptionError, match="rows that are gone since would stay"):
        run(spark, shop, big, "another")
    # An earlier release fell between its note of a batch and the commit of the table.
    assert forget_last_commit(shop.root / "checkpoint") == 0
    (shop.root / "kept" / commit_path(1)).unlink()
    run(spark, shop, big, "checkpoint")
    kept = Table.open(str(shop.root / "kept"))
    rows = sorted(tuple(row.values()) for row in kept.snapshot().to_pylist())
    assert rows == [(2, 1, 5, "NO"), (3, 2, 70, "NO")]
    version = kept.log.head().version
    # A checkpoint that the engine cannot read: Spark starts the query, and the table refuses it.
    with (
        patch.object(views, "_require_own_checkpoint", lambda *_: None),
        pytest.raises(StreamingQueryException, match="keeps the rows of a view by 'query:"),
    ):
        run(spark, shop, big, "another")
    with pytest.raises(PlanError, match="keeps another view"):
        run(spark, shop, shop.joined.filter("amount > 5"), "checkpoint")
    assert kept.log.head().version == version
    assert [lease.consumer for lease in shop.orders.consumers()] == [
        f"view-{kept.log.head().table_id}"
    ]


def test_the_tasks_of_a_first_load_write_disjoint_hash_ranges(
    spark: SparkSession, shop: Shop
) -> None:
    shop.order(*((number, 1, number) for number in range(2000)))
    big = view(str(shop.root / "orders")).filter("amount >= 100").select("id", "amount")
    run(spark, shop, big, "big", splits="4")
    kept = Table.open(str(shop.root / "kept"))
    slices = kept.log.head().slices
    assert len(slices) == 4
    assert not list(overlaps([slice_.occupied for slice_ in slices], ()))
    assert kept.snapshot().num_rows == 1900
