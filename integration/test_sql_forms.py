"""The ways into Spark other than `load` and `save`: names of queries, catalog tables, views.

Spark hands other options down in each of them; of a catalog table it hands down none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.promises import rows_of
from integration.queries import Batches, Feed, drain, upserts
from integration.tables import ROWS, make_table

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of two rows."""
    make_table(tmp_path / "table", {1: "a", 2: "b"})
    return tmp_path / "table"


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """A name that the catalog forgets after the test."""
    yield "orders"
    spark.catalog.dropTempView("orders")
    spark.sql("DROP TABLE IF EXISTS orders")


def values(frame: DataFrame) -> list[tuple[int, str]]:
    return sorted((row["k"], row["v"]) for row in frame.collect())


def test_a_query_may_have_a_name(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", ROWS)
    feed.add([{"k": 3, "v": "c"}])
    query = drain(
        upserts(feed.stream(spark), path, tmp_path / "checkpoint").queryName("upserted orders")
    )
    assert query.name == "upserted orders"
    assert rows_of(path).keys() == {(1,), (2,), (3,)}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE orders USING upsertflow LOCATION '{path}'",
        "CREATE TABLE orders USING upsertflow OPTIONS (path '{path}', columns 'k,v')",
        "CREATE TABLE orders USING upsertflow LOCATION '{path}' COMMENT 'of the shop'",
        "CREATE TABLE orders (k BIGINT, v STRING) USING upsertflow TBLPROPERTIES ('team' = 'a')",
    ],
    ids=["by location", "by options", "with a comment", "with columns"],
)
def test_a_catalog_table_works_with_the_options_given_where_it_is_used(
    spark: SparkSession, path: Path, name: str, statement: str
) -> None:
    spark.sql(statement.format(path=path))
    assert spark.table(name).schema.names == ["k", "v"]
    assert values(spark.sql(f"SELECT * FROM {name} WITH (path='{path}')")) == [(1, "a"), (2, "b")]
    spark.sql(f"INSERT INTO {name} WITH (path='{path}') VALUES (2, 'c')")
    assert values(spark.read.option("path", str(path)).table(name)) == [(1, "a"), (2, "c")]


def test_a_table_made_by_the_catalogs_method_works(
    spark: SparkSession, path: Path, name: str
) -> None:
    spark.catalog.createTable(name, str(path), "upsertflow", description="of the shop", columns="k")
    assert spark.table(name).schema.names == ["k"]
    assert spark.sql(f"SELECT * FROM {name} WITH (path='{path}', columns='k')").count() == 2


def test_a_catalog_table_is_read_as_a_stream_with_the_path_given_there(
    spark: SparkSession, path: Path, name: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE {name} USING upsertflow LOCATION '{path}'")
    batches = Batches()
    stream = spark.readStream.option("path", str(path)).table(name)
    drain(batches.collect(stream, tmp_path / "checkpoint"))
    assert sorted((row["k"], row["v"]) for row in batches.rows) == [(1, "a"), (2, "b")]


USES: dict[str, Callable[[SparkSession, str, Path], object]] = {
    "SELECT": lambda spark, name, _: spark.table(name).collect(),
    "INSERT": lambda spark, name, _: spark.sql(f"INSERT INTO {name} VALUES (3, 'c')"),
    "saveAsTable": lambda spark, name, _: (
        rows(spark).write.format("upsertflow").mode("append").saveAsTable(name)
    ),
    "toTable": lambda spark, name, folder: to_table(spark, name, folder),
}


def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(3, "c")], "k BIGINT, v STRING")


def to_table(spark: SparkSession, name: str, folder: Path) -> None:
    feed = Feed(folder / "feed", ROWS)
    feed.add([{"k": 3, "v": "c"}])
    writer = feed.stream(spark).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).toTable(name).awaitTermination()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_catalog_table_without_a_path_says_what_works(
    spark: SparkSession,
    path: Path,
    name: str,
    tmp_path: Path,
    use: Callable[[SparkSession, str, Path], object],
) -> None:
    spark.sql(f"CREATE TABLE {name} (k BIGINT, v STRING) USING upsertflow LOCATION '{path}'")
    with pytest.raises(PySparkException) as caught:
        use(spark, name, tmp_path)
    text = str(caught.value)
    assert "hands none of a catalog table's options over" in text
    for remedy in ("CREATE TEMPORARY VIEW", "WITH (path='...')", ".table("):
        assert remedy in text


def test_a_temporary_view_is_read_and_written(spark: SparkSession, path: Path, name: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING upsertflow OPTIONS (path '{path}')")
    spark.sql(f"INSERT INTO {name} VALUES (2, 'c'), (3, 'd')")
    assert values(spark.table(name)) == [(1, "a"), (2, "c"), (3, "d")]


def test_several_paths_are_refused(spark: SparkSession, path: Path) -> None:
    with pytest.raises(PySparkException, match=r"one table, and found 2 paths"):
        spark.read.format("upsertflow").load([str(path), str(path)])
