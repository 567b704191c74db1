"""The ways into Spark other than `load` and `save`: names of queries, catalog tables, views.

Spark hands other options down in each of them; of a catalog table it hands down none, and reads
find them with its columns. Each row of the table in docs/sql.md is a case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.pages import ROOT, code_of
from integration.promises import rows_of
from integration.queries import Batches, Feed, drain, upserts
from integration.tables import ROWS, append, make_table
from spark_upsert.table.table import Table

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
    for remedy in ("CREATE TEMPORARY VIEW", "WITH (path='...')", "LOCATION '...', without columns"):
        assert remedy in text


def test_a_temporary_view_is_read_and_written(spark: SparkSession, path: Path, name: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING upsertflow OPTIONS (path '{path}')")
    spark.sql(f"INSERT INTO {name} VALUES (2, 'c'), (3, 'd')")
    assert values(spark.table(name)) == [(1, "a"), (2, "c"), (3, "d")]


def test_several_paths_are_refused(spark: SparkSession, path: Path) -> None:
    with pytest.raises(PySparkException, match=r"one table, and found 2 paths"):
        spark.read.format("upsertflow").load([str(path), str(path)])


# -- the page ------------------------------------------------------------------------

PAGE = "docs/sql.md"
_ROW = re.compile(r"\| (`+)(?P<form>.+?) ?\1 \| (?P<works>yes|no|name) \| (?P<said>.*?) ?\|")
FORMS = [
    (found["form"], found["works"], found["said"])
    for line in (ROOT / PAGE).read_text().splitlines()
    if (found := _ROW.fullmatch(line)) is not None
]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the page calls `/lake`, and the names that it takes for granted."""
    lake = tmp_path_factory.mktemp("lake")
    spark.sql("CREATE DATABASE shop")
    spark.sql("USE shop")
    make_table(lake / "orders", {1: "a", 2: "b"})
    spark.sql(f"CREATE TABLE orders USING upsertflow LOCATION '{lake}/orders'")
    spark.sql("CREATE TABLE bare (k BIGINT, v STRING) USING upsertflow")
    view = f"OPTIONS (path '{lake}/orders')"
    spark.sql(f"CREATE TEMPORARY VIEW view_of_orders USING upsertflow {view}")
    spark.sql("USE default")
    yield lake
    spark.catalog.dropTempView("view_of_orders")
    spark.sql("DROP DATABASE shop CASCADE")


@pytest.fixture
def shop(spark: SparkSession, lake: Path) -> Iterator[None]:
    """The names that the page takes for granted, and none that a row made."""
    spark.sql("USE shop")
    yield
    made = {table.name: table for table in spark.catalog.listTables()}.get("made")
    if made is not None and made.isTemporary:
        spark.catalog.dropTempView("made")
    elif made is not None:
        spark.sql(f"DROP {'VIEW' if made.tableType == 'VIEW' else 'TABLE'} made")
    spark.sql("USE default")


def localized(code: str, lake: Path) -> str:
    return re.sub(r"""(['"`])/(lake|checkpoints)""", rf"\1{lake}", code)


def run(spark: SparkSession, code: str, lake: Path) -> None:
    """Do what a form of the page says, to its end."""
    if code[0].isupper():
        shown: Any = spark.sql(code)
    else:
        names: dict[str, Any] = {"spark": spark, "df": rows(spark)}
        if "stream." in code:
            feed = Feed(lake / "feed", ROWS)
            feed.add([{"k": 3, "v": "c"}])
            names["stream"] = feed.stream(spark)
        shown = eval(code, names)
    if isinstance(shown, StreamingQuery):
        try:
            shown.processAllAvailable()
        finally:
            shown.stop()
    elif isinstance(shown, DataFrame) and not shown.isStreaming:
        shown.collect()


@pytest.mark.parametrize(("form", "works", "said"), FORMS, ids=[form for form, *_ in FORMS])
@pytest.mark.usefixtures("shop")
def test_a_form_does_what_its_row_of_the_page_says(
    spark: SparkSession, lake: Path, form: str, works: str, said: str
) -> None:
    code = localized(form, lake)
    before = {table.name for table in spark.catalog.listTables()}
    if works == "no":
        version = Table.open(f"{lake}/orders").log.head().version
        with pytest.raises(Exception, match=re.escape(said)):
            run(spark, code, lake)
        assert {table.name for table in spark.catalog.listTables()} == before
        assert Table.open(f"{lake}/orders").log.head().version == version
        return
    run(spark, code, lake)
    made = {table.name for table in spark.catalog.listTables()} - before
    if works == "name":
        name = made.pop() if made else "orders"
        with pytest.raises(PySparkException, match=r"without columns, is read|not among the col"):
            spark.table(name).collect()
        if name == "orders":
            spark.sql(f"CREATE OR REPLACE TABLE orders USING upsertflow LOCATION '{lake}/orders'")
        return
    for name in made:
        assert spark.table(name).collect()


def test_the_page_has_all_forms() -> None:
    table = (ROOT / PAGE).read_text().split("| form | works |")[1].split("\n\n")[0]
    assert len(FORMS) == table.count("\n| ") > 30, "a row that is not understood is not tried"
    assert {works for _, works, _ in FORMS} == {"yes", "no", "name"}


def test_the_code_of_the_page_runs(spark: SparkSession, name: str, tmp_path: Path) -> None:
    make_table(tmp_path / "orders", {1: "a", 2: "b"})
    (sql,) = code_of(PAGE, "sql", runner="integration/test_sql_forms.py")
    made, before, inserted, after = localized(sql, tmp_path).strip().strip(";").split(";")
    spark.sql(made)
    assert values(spark.sql(before)) == [(1, "a"), (2, "b")]
    spark.sql(inserted)
    assert values(spark.sql(after)) == [(1, "a"), (2, "new"), (3, "c")]
    (python,) = code_of(PAGE, "python", runner="integration/test_sql_forms.py")
    names: dict[str, Any] = {"spark": spark}
    exec(localized(python, tmp_path), names)
    columns = "k", "v", "_change_type"
    found = sorted(tuple(row[each] for each in columns) for row in names["changes"].collect())
    table = (ROOT / PAGE).read_text().split("| k | v | `_change_type` |\n|---|---|---|\n")[1]
    cells = re.findall(r"\| (\d) \| (\w+) \| `(\w+)` \|", table)
    assert found == sorted((int(k), v, type_) for k, v, type_ in cells)


# -- what a name keeps ---------------------------------------------------------------


def test_a_table_made_of_a_frame_does_not_show_the_rows_of_the_frames_table(
    spark: SparkSession, path: Path, name: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE {name} USING upsertflow LOCATION '{path}'")
    writer = spark.table(name).where("k = 1").write.format("upsertflow")
    writer.option("path", str(tmp_path / "other")).option("keys", "k").saveAsTable("made")
    with pytest.raises(PySparkException, match="without columns, is read by its name"):
        spark.table("made").collect()
    other = values(spark.read.option("path", str(tmp_path / "other")).table("made"))
    spark.sql("DROP TABLE made")
    assert other == [(1, "a")]


def test_a_frame_of_a_catalog_table_is_not_written_back_where_a_path_is_forgotten(
    spark: SparkSession, path: Path, name: str
) -> None:
    spark.sql(f"CREATE TABLE {name} USING upsertflow LOCATION '{path}'")
    with pytest.raises(PySparkException, match="option 'path' is required"):
        spark.table(name).write.format("upsertflow").mode("append").save()


def test_a_read_by_name_keeps_its_options_and_takes_further_ones(
    spark: SparkSession, path: Path, name: str, tmp_path: Path
) -> None:
    append(Table.open(str(path)), {1: "new"})
    spark.sql(
        f"CREATE TABLE {name} USING upsertflow OPTIONS (path '{path}', versionAsOf '1', "
        "filter 'k = 1')"
    )
    assert values(spark.table(name)) == [(1, "a")]
    assert values(spark.sql(f"SELECT * FROM {name} WITH (filter='k = 2')")) == [(2, "b")]
    elsewhere = make_table(tmp_path / "elsewhere", {7: "g"}).store.url
    assert values(spark.read.option("path", elsewhere).table(name)) == [(7, "g")]


def test_a_stream_reads_by_name(spark: SparkSession, path: Path, name: str, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE {name} USING upsertflow LOCATION '{path}'")
    batches = Batches()
    drain(batches.collect(spark.readStream.table(name), tmp_path / "checkpoint"))
    assert sorted((row["k"], row["v"]) for row in batches.rows) == [(1, "a"), (2, "b")]


def test_columns_that_a_table_gains_come_when_the_name_is_made_anew(
    spark: SparkSession, path: Path, name: str
) -> None:
    spark.sql(f"CREATE TABLE {name} USING upsertflow LOCATION '{path}'")
    wider = spark.createDataFrame([(3, "c", 1)], "k BIGINT, v STRING, n INT")
    writer = wider.write.format("upsertflow").mode("append").option("mergeSchema", "true")
    writer.save(str(path))
    assert values(spark.table(name)) == [(1, "a"), (2, "b"), (3, "c")]
    spark.sql(f"CREATE OR REPLACE TABLE {name} USING upsertflow LOCATION '{path}'")
    assert spark.table(name).schema.names == ["k", "v", "n"]
