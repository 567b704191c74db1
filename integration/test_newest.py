"""Which version a batch read shows: that of its first use, or the newest wherever Spark plans anew.

Spark asks a Python source once for what a relation reads, and keeps the answer as long as the
relation lives: a frame, and a temporary view `USING upsertflow`, are one. A table of the catalog is
a new relation in each statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.tables import append, make_table
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of one row."""
    make_table(tmp_path / "table", {1: "a"})
    return tmp_path / "table"


@pytest.fixture
def orders(spark: SparkSession, path: Path) -> Iterator[str]:
    """A table of the catalog over it."""
    spark.sql(f"CREATE TABLE orders USING upsertflow LOCATION '{path}'")
    yield "orders"
    for view in ("orders_now", "orders_then"):
        spark.catalog.dropTempView(view)
    spark.sql("DROP TABLE orders")


def keys(frame: DataFrame) -> list[int]:
    return sorted(row["k"] for row in frame.collect())


def scans(frame: DataFrame) -> int:
    """Return how many reads of sources a frame is planned with."""
    leaves = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    tables = [leaves.apply(at).relation().table() for at in range(leaves.size())]
    assert len(tables) == 2
    return 1 if tables[0].equals(tables[1]) else 2


def test_a_frame_shows_the_version_of_its_first_use(spark: SparkSession, path: Path) -> None:
    frame = spark.read.format("upsertflow").load(str(path))
    append(Table.open(str(path)), {2: "b"})
    assert keys(frame) == [1, 2], "nothing is read before it is used"
    append(Table.open(str(path)), {3: "c"})
    assert keys(frame) == keys(frame.where("k > 0")) == [1, 2]
    both = frame.alias("l").crossJoin(frame.select("k").alias("r"))
    assert scans(both) == 1
    assert both.count() == 4
    assert keys(spark.read.format("upsertflow").load(str(path))) == [1, 2, 3]


def test_a_view_using_the_source_shows_the_version_of_its_first_use(
    spark: SparkSession, path: Path, orders: str
) -> None:
    view = f"TEMPORARY VIEW orders_then USING upsertflow OPTIONS (path '{path}')"
    spark.sql(f"CREATE {view}")
    assert keys(spark.table("orders_then")) == [1]
    spark.sql("INSERT INTO orders_then VALUES (2, 'b')")
    spark.sql("REFRESH TABLE orders_then")
    assert keys(spark.table("orders_then")) == [1]
    spark.sql(f"CREATE OR REPLACE {view}")
    assert keys(spark.table("orders_then")) == [1, 2]


def test_each_statement_over_a_catalog_table_shows_the_newest_version(
    spark: SparkSession, path: Path, orders: str
) -> None:
    rows = f"SELECT * FROM {orders} WITH (path='{path}')"
    assert keys(spark.sql(rows)) == [1]
    spark.sql(f"INSERT INTO {orders} WITH (path='{path}') VALUES (2, 'b')")
    assert keys(spark.sql(rows)) == [1, 2]


def test_a_view_by_its_text_shows_the_newest_version_at_each_use(
    spark: SparkSession, path: Path, orders: str
) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW orders_now AS SELECT * FROM {orders} WITH (path='{path}')")
    assert keys(spark.table("orders_now")) == [1]
    append(Table.open(str(path)), {2: "b"})
    assert keys(spark.table("orders_now")) == keys(spark.sql("SELECT * FROM orders_now")) == [1, 2]
    both = spark.sql("SELECT l.k FROM orders_now l CROSS JOIN orders_now r")
    assert scans(both) == 1, "two sides of one statement may show two versions"
    assert both.count() == 4


def test_a_view_of_a_catalog_tables_frame_takes_rows_and_shows_them(
    spark: SparkSession, path: Path, orders: str
) -> None:
    frame = spark.read.option("path", str(path)).table(orders)
    frame.createOrReplaceTempView("orders_now")
    assert keys(spark.table("orders_now")) == [1]
    spark.sql("INSERT INTO orders_now VALUES (2, 'b')")
    assert keys(spark.table("orders_now")) == [1, 2]
    spark.sql("INSERT INTO orders_now SELECT k + 2, v FROM orders_now")
    assert keys(spark.sql("SELECT * FROM orders_now")) == [1, 2, 3, 4]
    both = spark.sql("SELECT l.k FROM orders_now l CROSS JOIN orders_now r")
    assert scans(both) == 1, "two sides of one statement may show two versions"
