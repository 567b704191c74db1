"""Reads of some rows: by the option `filter`, and by the filters that Spark hands over."""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.pages import code_of
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

PAGE = "docs/rows-by-key.md"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ROWS: list[dict[str, Any]] = [
    {
        "region": region,
        "id": number,
        "day": datetime.date(2026, 1, 1 + number % 28),
        "price": Decimal(number).scaleb(-2),
        "note": None if number % 3 == 0 else f"n{number % 5}",
    }
    for region in ("eu", "us", "O'Neill")
    for number in range(60)
]
COLUMNS = pa.schema(
    {
        "region": pa.string(),
        "id": pa.int64(),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "note": pa.string(),
    }
)


@pytest.fixture(params=["plain", "prefixed", "indexed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A table of three epochs, some of its rows twice written and some gone."""
    where = str(tmp_path / "rows")
    properties = {"indexBy": "note,day"} if request.param == "indexed" else None
    prefix = 1 if request.param == "prefixed" else 0
    table = Table.create(
        where, COLUMNS, keys=["region", "id"], properties=properties, hash_prefix=prefix
    )
    rows = pa.Table.from_pylist(ROWS, schema=COLUMNS)
    gone = pa.Table.from_pylist(
        [{**row, "id": row["id"] + 1000} for row in ROWS[:30]], schema=COLUMNS
    )
    for given, is_gone in ((gone, False), (rows, False), (gone, True)):
        flags = pa.array([is_gone] * given.num_rows)
        table.upsert(given.append_column("gone", flags), deletes="gone")
    return where


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that hands filters to Python sources."""
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.set(PUSHDOWN, str(before))


def _read(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("upsertflow").options(**options).load(path)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


CONDITIONS = [
    "region = 'eu' AND id = 7",
    "region = 'eu' AND id IN (1, 2, 3, 99, NULL)",
    "region IN ('eu', 'us') AND id IN (5, 6) AND note IS NOT NULL",
    "region = 'O''Neill'",
    "region = 'us' AND price >= 0.30",
    "region = 'mars'",
    "note = 'n1'",
    "note IN ('n1', 'n4') AND day = DATE '2026-01-05'",
    "note IS NULL AND region = 'eu'",
    "NOT (note = 'n1')",
    "id = 3 OR id = 4",
    "region = 'eu' AND id = 1005",
    "price = 0.07",
]


@pytest.mark.sweep(1)
def test_the_rows_of_a_filter_are_those_of_spark(spark: SparkSession, path: str) -> None:
    everything = _read(spark, path).cache()
    for condition in CONDITIONS:
        found = _rows(_read(spark, path, filter=condition))
        # Spark reads a quote that is doubled as two texts: it wants a backslash.
        expected = _rows(everything.where(condition.replace("''", r"\'")))
        assert found == expected, condition
    columns = _read(spark, path, filter="region = 'eu' AND id = 7", columns="note,price")
    assert _rows(columns) == [("n2", Decimal("0.07"))]


@pytest.mark.sweep(1)
def test_filters_that_spark_hands_over(pushing: SparkSession, path: str) -> None:
    everything = [tuple(row.values()) for row in ROWS]
    dice = random.Random(1)
    for condition in [*CONDITIONS, *dice.sample(CONDITIONS, 3)]:
        asked = condition.replace("''", r"\'")
        found = _rows(_read(pushing, path).where(asked))
        # Spark's own answer over rows that no source has chosen.
        judge = pushing.createDataFrame(everything, schema=_read(pushing, path).schema)
        assert found == _rows(judge.where(asked)), condition


@pytest.mark.sweep(1)
def test_a_filter_of_the_whole_key_is_one_task(pushing: SparkSession, path: str) -> None:
    def tasks(frame: DataFrame) -> int:
        return frame.rdd.getNumPartitions()

    assert tasks(_read(pushing, path, splits="6")) == 6
    by_option = _read(pushing, path, splits="6", filter="region = 'eu' AND id = 7")
    pushed = _read(pushing, path, splits="6").where("region = 'eu' AND id IN (7, 8)")
    assert (tasks(by_option), tasks(pushed)) == (1, 1)
    assert tasks(_read(pushing, path, splits="6").where("price > 0.10")) == 6


@pytest.mark.sweep(1)
def test_each_use_with_filters_of_its_own_is_planned_anew(pushing: SparkSession, path: str) -> None:
    """The page says so: two uses may read two versions, unless one is asked for."""
    frame, table = _read(pushing, path), Table.open(path)
    version = table.log.head().version
    pinned = _read(pushing, path, versionAsOf=version)
    assert (frame.count(), pinned.count()) == (len(ROWS), len(ROWS))
    table.delete(("eu", 7))
    asked = "region = 'eu' AND id = 7"
    assert (frame.count(), frame.where(asked).count()) == (len(ROWS), 0)
    assert (pinned.count(), pinned.where(asked).count()) == (len(ROWS), 1)


@pytest.mark.sweep(1)
def test_what_a_filter_is_refused_for(spark: SparkSession, path: str) -> None:
    for options, told in (
        ({"filter": "idd = 1"}, "no column 'idd'"),
        ({"filter": "id ="}, "expected"),
        ({"filter": "id"}, "a condition is true or false"),
        ({"filter": "id = 1", "readChangeFeed": "true"}, "view(path).filter"),
    ):
        with pytest.raises(PySparkException, match="(?s)" + re.escape(told)):
            _read(spark, path, **options).collect()
    stream = spark.readStream.format("upsertflow").option("filter", "id = 1").load(path)
    query = stream.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"(?s)has no meaning in a stream.*view"):
        query.processAllAvailable()


def test_the_code_of_the_page_runs(pushing: SparkSession, tmp_path: Path) -> None:
    columns = pa.schema({"region": pa.string(), "id": pa.int64()})
    table = Table.create(str(tmp_path / "orders"), columns, keys=["region", "id"])
    table.upsert(pa.table({"region": ["eu", "eu", "us"], "id": [7, 9, 7]}))
    runner = "integration/test_filters.py"
    deletes, *reads = code_of(PAGE, "python", runner=runner)
    for name, code in zip(("some", "same"), reads, strict=True):
        names: dict[str, Any] = {"spark": pushing}
        exec(code.replace('"/lake/', f'"{tmp_path}/'), names)
        assert _rows(names[name]) == [("eu", 7)]
    exec(deletes.replace('"/lake/', f'"{tmp_path}/'), {"spark": pushing})
    assert sorted(table.snapshot().column("region").to_pylist()) == ["eu", "eu"]
