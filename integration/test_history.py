"""Histories on Spark: the rows of several tasks, and what Spark's own AUTO CDC makes of a feed.

No target that comes with Spark supports the `MERGE` of AUTO CDC (docs/compare.md). But the class
that reconciles a micro-batch of it needs no `MERGE`, only what the target holds: it is the judge
here, with an empty target and a whole feed as its first batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64(), "w": pa.string(), "seq": pa.int64()})
FEED = "k BIGINT, v BIGINT, w STRING, seq BIGINT, gone BOOLEAN"
SHOWN = ("k", "v", "w")
ROUTED = "__spark_autocdc_should_route_to_aux_table"


class Event(NamedTuple):
    k: int
    v: int | None
    w: str | None
    seq: int
    gone: bool


Feed = Sequence[Sequence[Event]]
BatchDelay = tuple[Any, ...]


def feed_of(seed: int) -> Feed:
    """Return batches, each with one event at most of a key, and orders that grow."""
    dice = random.Random(seed)
    return [
        [
            Event(
                k=key,
                v=dice.choice([None, 0, 1]),
                w=dice.choice([None, "a"]),
                seq=10 * batch + key,
                gone=dice.random() < 0.25,
            )
            for key in dice.sample(range(4), dice.randrange(1, 4))
        ]
        for batch in range(25)
    ]


def put(path: Path, feed: Feed, *, compact_at: int = -1) -> Table:
    """Write each batch of a feed as an epoch."""
    table = Table.create(str(path), COLUMNS, keys=["k"], sequence_by=["seq"])
    schema = COLUMNS.append(pa.field("gone", pa.bool_()))
    for index, batch in enumerate(feed):
        rows = [event._asdict() for event in batch]
        table.upsert(pa.Table.from_pylist(rows, schema=schema), deletes="gone")
        if index == compact_at:
            table.compact(full=True)
    return table


def ours(spark: SparkSession, path: Path, **given: str) -> list[BatchDelay]:
    """Return key, values, start and end of each row of the history."""
    read = spark.read.format("upsertflow").option("readHistory", "true")
    options = {"validBy": "order", "columns": ",".join(SHOWN), "splits": "3", **given}
    rows = read.options(**options).load(str(path)).collect()
    assert all(row.is_current == (row.valid_to is None) for row in rows)
    return sorted((tuple(row)[:-1] for row in rows), key=repr)


class AutoCdc:
    """The reconciliation of SCD type 2 as Spark does it, upon a target that is empty."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        assert spark.sparkContext._jvm is not None
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._own = self._jvm.org.apache.spark.sql.pipelines.autocdc
        self._folder = folder
        self._names = [f"{name}_{folder.name}" for name in ("held_aside", "target")]

    def history(
        self, feed: Feed, *, tracked: Sequence[str] = (), untracked: Sequence[str] = ()
    ) -> list[BatchDelay]:
        events = [tuple(event) for batch in feed for event in batch]
        given = self._spark.createDataFrame(events, FEED)
        processor = self._own.Scd2BatchProcessor(
            self._arguments(self._tracked(tracked, untracked)),
            self._spark._jsparkSession.parseDataType('"long"'),
        )
        self._make_tables(DataFrame(processor.preprocessMicrobatch(given._jdf), self._spark).schema)
        handler = self._own.Scd2ForeachBatchHandler(processor, *map(self._table, self._names))
        try:
            found = handler.reconcileMicrobatch(given._jdf, 0).reconciledAndRoutedDf()
            target = DataFrame(found, self._spark).where(~col(ROUTED))
            rows = target.select(*SHOWN, "__START_AT", "__END_AT").collect()
        finally:
            for name in self._names:
                self._spark.sql(f"DROP TABLE {name}")
        return sorted((tuple(row) for row in rows), key=repr)

    def _make_tables(self, schema: StructType) -> None:
        aside = StructType([*schema.fields]).add(
            self._singleton("Scd2BatchProcessor").deletedByBatchIdColName(), "long"
        )
        for name, fields in zip(self._names, (aside, schema), strict=True):
            empty = self._spark.createDataFrame([], fields).write.mode("overwrite")
            empty.option("path", str(self._folder / name)).saveAsTable(name)

    def _tracked(self, tracked: Sequence[str], untracked: Sequence[str]) -> Any:
        if untracked:
            exclude = getattr(self._own, "ColumnSelection$ExcludeColumns")
            return self._some(exclude(self._columns(untracked)))
        return self._some(self._included(tracked)) if tracked else self._none

    def _arguments(self, tracked: Any) -> Any:
        return self._own.ChangeArgs(
            self._columns(["k"]),
            col("seq")._jc,
            self._singleton("ScdType$Type2"),
            self._some(col("gone")._jc),
            self._some(self._included(SHOWN)),
            tracked,
        )

    def _table(self, name: str) -> Any:
        place = map(self._some, ("default", "spark_catalog"))
        return self._jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, *place)

    def _included(self, names: Sequence[str]) -> Any:
        return getattr(self._own, "ColumnSelection$IncludeColumns")(self._columns(names))

    def _columns(self, names: Sequence[str]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for name in names:
            found.add(self._own.UnqualifiedColumnName(name))
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()

    def _singleton(self, name: str) -> Any:
        return getattr(getattr(self._own, f"{name}$"), "MODULE$")

    def _some(self, value: Any) -> Any:
        return self._jvm.scala.Some(value)

    @property
    def _none(self) -> Any:
        return getattr(getattr(self._jvm.scala, "None$"), "MODULE$")


@pytest.fixture
def auto_cdc(spark: SparkSession, tmp_path: Path) -> AutoCdc:
    return AutoCdc(spark, tmp_path)


@pytest.mark.parametrize("tracked", [(), ("v",)], ids=["all tracked", "one tracked"])
@pytest.mark.parametrize("seed", range(3))
def test_a_history_is_that_of_auto_cdc(
    spark: SparkSession, tmp_path: Path, auto_cdc: AutoCdc, seed: int, tracked: tuple[str, ...]
) -> None:
    feed = feed_of(seed)
    put(tmp_path / "t", feed, compact_at=12)
    found = ours(spark, tmp_path / "t", trackHistoryColumnList=",".join(tracked) or "k,v,w")
    assert found == auto_cdc.history(feed, tracked=tracked)
    assert len(found) > (10 if tracked else 20)


@pytest.mark.parametrize("untracked", ["v", "w", "v,w"])
def test_a_history_of_all_columns_but_some_is_that_of_auto_cdc(
    spark: SparkSession, tmp_path: Path, auto_cdc: AutoCdc, untracked: str
) -> None:
    feed = feed_of(7)
    put(tmp_path / "t", feed, compact_at=12)
    found = ours(spark, tmp_path / "t", trackHistoryExceptColumnList=untracked)
    assert found == auto_cdc.history(feed, untracked=untracked.split(","))
    assert found != ours(spark, tmp_path / "t")


def test_a_late_event_splits_a_row_of_auto_cdc_alone(
    spark: SparkSession, tmp_path: Path, auto_cdc: AutoCdc
) -> None:
    feed = [
        [Event(1, 0, "a", 10, False)],
        [Event(1, 1, "a", 30, False)],
        [Event(1, 2, "a", 20, False)],
    ]
    put(tmp_path / "t", feed)
    assert ours(spark, tmp_path / "t") == [(1, 0, "a", 10, 30), (1, 1, "a", 30, None)]
    assert auto_cdc.history(feed) == [
        (1, 0, "a", 10, 20),
        (1, 1, "a", 30, None),
        (1, 2, "a", 20, 30),
    ]


def test_a_history_in_sql_answers_as_of_a_time(spark: SparkSession, tmp_path: Path) -> None:
    table = put(tmp_path / "t", feed_of(7))
    read = spark.read.format("upsertflow").option("readHistory", "true")
    read.load(str(tmp_path / "t")).createOrReplaceTempView("held")
    for version in range(0, table.log.head().upper, 6):
        time_ms = table.log.commit(version).timestamp_ms
        at = f"timestamp_millis({time_ms})"
        rows = spark.sql(
            f"SELECT k, v, w FROM held WHERE valid_from <= {at} "
            f"AND (valid_to > {at} OR valid_to IS NULL)"
        )
        seen = table.snapshot(version, columns=SHOWN).to_pylist()
        assert sorted(map(repr, rows.collect())) == sorted(
            f"Row({', '.join(f'{k}={v!r}' for k, v in row.items())})" for row in seen
        )


def test_a_stream_of_a_history_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "t", feed_of(7)[:1])
    stream = spark.readStream.format("upsertflow").option("readHistory", "true")
    with pytest.raises(Exception, match="no stream of rows can take back"):
        stream.load(str(tmp_path / "t")).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().awaitTermination()
