"""Batch reads: a snapshot at any version or time, and the changes between versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from integration.promises import RETRACTIONS, contents, fold, rows_of
from integration.tables import ROWS, columns, make_table
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("upsertflow").options(**options).load(str(path))


def read(spark: SparkSession, path: Path, **options: Any) -> dict[Any, Any]:
    """Return a snapshot by key."""
    return contents(load(spark, path, **options).toArrow().to_pylist(), ["k"])


def read_changes(spark: SparkSession, path: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Return (version, key, type, value) of the change feed, sorted; a retraction comes first."""
    rows = load(spark, path, readChangeFeed="true", **options).toArrow().to_pylist()
    for r in rows:
        assert r["_diff"] == (-1 if r["_change_type"] in RETRACTIONS else 1)
    ordered = sorted(rows, key=lambda r: (r["_commit_version"], r["k"], r["_diff"]))
    return [(r["_commit_version"], r["k"], r["_change_type"], r["v"]) for r in ordered]


EPOCHS: tuple[dict[int, str | None], ...] = (
    {1: "a", 2: "b"},
    {2: "c", 3: "d"},
    {1: None, 3: "d"},
)
SNAPSHOTS: tuple[dict[int, str], ...] = (
    {},
    {1: "a", 2: "b"},
    {1: "a", 2: "c", 3: "d"},
    {2: "c", 3: "d"},
)
CHANGES = [
    (1, 1, "insert", "a"),
    (1, 2, "insert", "b"),
    (2, 2, "update_preimage", "b"),
    (2, 2, "update_postimage", "c"),
    (2, 3, "insert", "d"),
    (3, 1, "delete", "a"),
]

ALL_TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "tiny": (pa.int8(), -128),
    "small": (pa.int16(), 32767),
    "int": (pa.int32(), -1),
    "long": (pa.int64(), 2**62),
    "float": (pa.float32(), 0.5),
    "double": (pa.float64(), -1e300),
    "flag": (pa.bool_(), True),
    "text": (pa.string(), "Zoë \U0001f600"),
    "bytes": (pa.binary(), b"\xff\x00"),
    "day": (pa.date32(), date(1, 1, 1)),
    "instant": (pa.timestamp("us", tz="UTC"), datetime(2026, 3, 29, 1, 30, 0, 1, tzinfo=UTC)),
    "local": (pa.timestamp("us"), datetime(2026, 3, 29, 2, 30, 0, 1)),
    "price": (pa.decimal128(38, 18), Decimal("-12345678901234567890.000000000000000001")),
    "span": (pa.duration("us"), timedelta(days=-3, microseconds=1)),
    "list": (pa.list_(pa.field("element", pa.decimal128(5, 1))), [Decimal("1.5"), None]),
    "map": (pa.map_(pa.int32(), pa.string()), [(1, "one"), (2, None)]),
    "struct": (
        pa.struct(
            [pa.field("a", pa.date32()), pa.field("b", pa.struct([pa.field("c", pa.int8())]))]
        ),
        {"a": date(2026, 1, 1), "b": {"c": 1}},
    ),
}


def test_a_snapshot_has_the_types_and_values_that_the_table_has(
    spark: SparkSession, path: Path
) -> None:
    schema = columns(k=pa.int64(), **{name: type_ for name, (type_, _) in ALL_TYPES.items()})
    full = {name: value for name, (_, value) in ALL_TYPES.items()}
    rows = [{"k": 1, **full}, {"k": 2, **dict.fromkeys(full)}]
    table = Table.create(str(path), schema, keys=["k"])
    table.upsert(pa.Table.from_pylist(rows, schema=schema), deletes=None)
    marked = schema.append(pa.field("gone", pa.bool_()))
    table.upsert(pa.Table.from_pylist([{**rows[1], "gone": False}], schema=marked), deletes="gone")

    frame = load(spark, path)
    # Spark's own conversion of the Arrow types is what a reader must see.
    assert frame.schema == from_arrow_schema(schema)
    back = sorted(frame.toArrow().to_pylist(), key=lambda r: r["k"])
    assert back == rows
    # The same through rows of Python objects, which other code paths of Spark convert.
    assert frame.where("k = 1").collect()[0]["struct"]["b"]["c"] == 1


def test_every_version_can_be_read_by_number_and_by_time(spark: SparkSession, path: Path) -> None:
    table = make_table(path, *EPOCHS)
    for version, snapshot in enumerate(SNAPSHOTS):
        expected = {(k,): (v,) for k, v in snapshot.items()}
        assert read(spark, path, versionAsOf=version) == expected

        ms = table.log.commit(version).timestamp_ms
        instant = datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)
        tokyo = instant.astimezone(timezone(timedelta(hours=9)))
        for time in (ms, instant.isoformat(), tokyo.isoformat(), f"{instant:%Y-%m-%d %H:%M:%S.%f}"):
            assert read(spark, path, timestampAsOf=time) == expected, time
    now = datetime.now(UTC)
    assert read(spark, path) == read(spark, path, timestampAsOf=now.isoformat())
    for missing in ({"versionAsOf": 99}, {"timestampAsOf": "2999-01-01"}, {"timestampAsOf": 0}):
        with pytest.raises(PySparkException, match="VERSION_NOT_FOUND"):
            read(spark, path, **missing)


def test_the_change_feed_is_bounded_by_versions_and_times(spark: SparkSession, path: Path) -> None:
    table = make_table(path, *EPOCHS)
    times = [table.log.commit(version).timestamp_ms for version in range(4)]
    for options, versions in (
        ({}, {1, 2, 3}),
        ({"startingVersion": "earliest"}, {1, 2, 3}),
        ({"startingVersion": 2}, {2, 3}),
        ({"startingVersion": 4}, set()),
        ({"startingVersion": "latest"}, set()),
        ({"endingVersion": 2}, {1, 2}),
        ({"startingVersion": 2, "endingVersion": 2}, {2}),
        ({"startingTimestamp": times[2], "endingTimestamp": times[3] - 1}, {2}),
        ({"startingTimestamp": times[2] + 1}, {3}),
    ):
        expected = [change for change in CHANGES if change[0] in versions]
        found = read_changes(spark, path, **options)
        assert found == expected, options
    for reversed_bounds in (
        {"startingVersion": 3, "endingVersion": 1},
        {"startingVersion": 3, "endingTimestamp": times[1]},
    ):
        with pytest.raises(PySparkException, match=r"OPTION.*(contradict|end before)"):
            read_changes(spark, path, **reversed_bounds)


def test_the_change_feed_says_when_and_folds_to_the_snapshot(
    spark: SparkSession, path: Path
) -> None:
    table = make_table(path, *EPOCHS)
    rows = load(spark, path, readChangeFeed="true").toArrow().to_pylist()
    rows.sort(key=lambda r: (r["_commit_version"], r["_diff"]))
    assert fold(rows, ["k"]) == rows_of(path)
    for r in rows:
        ms = table.log.commit(r["_commit_version"]).timestamp_ms
        assert r["_commit_timestamp"] == datetime.fromtimestamp(ms / 1000, UTC)


def test_columns_chooses_and_orders_and_the_change_columns_come_along(
    spark: SparkSession, path: Path
) -> None:
    make_table(path, *EPOCHS)
    assert load(spark, path, columns="V, k").columns == ["v", "k"]
    assert load(spark, path, columns="v").toArrow().column("v").to_pylist().count("c") == 1
    feed = load(spark, path, columns="v", readChangeFeed="true", endingVersion=1)
    assert feed.columns == ["v", "_change_type", "_commit_version", "_commit_timestamp", "_diff"]
    assert set(feed.toArrow().column("v").to_pylist()) == {"a", "b"}
    only = load(spark, path, columns="_change_type", readChangeFeed="true")
    assert only.count() == len(CHANGES)


@pytest.mark.parametrize("splits", [1, 3, 16])
def test_any_number_of_splits_reads_the_same_rows(
    spark: SparkSession, path: Path, splits: int
) -> None:
    make_table(path, dict.fromkeys(range(50), "old"), dict.fromkeys(range(0, 50, 2), "new"))
    expected = {(k,): ("old" if k % 2 else "new",) for k in range(50)}
    frame = load(spark, path, splits=splits)
    assert frame.rdd.getNumPartitions() == splits
    assert contents(frame.toArrow().to_pylist(), ["k"]) == expected

    feed = load(spark, path, splits=splits, readChangeFeed="true")
    assert feed.rdd.getNumPartitions() == splits
    rows = sorted(feed.toArrow().to_pylist(), key=lambda r: (r["_commit_version"], r["_diff"]))
    assert fold(rows, ["k"]) == expected


def test_an_empty_table_is_a_table(spark: SparkSession, path: Path) -> None:
    make_table(path)
    frame = load(spark, path, splits=4)
    assert frame.schema == from_arrow_schema(ROWS)
    assert frame.count() == 0
    assert read_changes(spark, path) == []


def test_sql_reads_a_table_through_a_temporary_view(spark: SparkSession, path: Path) -> None:
    make_table(path, *EPOCHS)
    # A table of Spark's own catalog would not do: it hands a Python source no options.
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING upsertflow "
        f"OPTIONS (path '{path}', readChangeFeed 'true', `starting-version` '2')"
    )
    try:
        found = spark.sql("SELECT v, sum(_diff) FROM orders GROUP BY v ORDER BY v").collect()
        assert found == [("a", -1), ("b", -1), ("c", 1), ("d", 1)]
    finally:
        spark.catalog.dropTempView("orders")


def test_a_frame_keeps_to_its_columns_when_the_table_gains_some(
    spark: SparkSession, path: Path
) -> None:
    table = make_table(path, {1: "a"})
    frame = load(spark, path)
    wider = ROWS.append(pa.field("w", pa.int64()))
    table.alter(table.log.head().schema.accept(wider, merge=True))
    table.upsert(pa.Table.from_pylist([{"k": 2, "v": "b", "w": 3}], schema=wider))
    assert sorted(frame.toArrow().to_pylist(), key=lambda r: r["k"]) == [
        {"k": 1, "v": "a"},
        {"k": 2, "v": "b"},
    ]


@pytest.mark.parametrize(
    "damage", ["a flipped bit", "a missing end", "a missing file"], ids=lambda text: text
)
def test_a_damaged_file_is_an_error_that_names_it(
    spark: SparkSession, path: Path, damage: str
) -> None:
    table = make_table(path, dict.fromkeys(range(100), "some text"))
    file = path / table.log.commit(1).added[0].path
    data = bytearray(file.read_bytes())
    if damage == "a flipped bit":
        data[data.index(b"some text")] ^= 1
        file.write_bytes(data)
    elif damage == "a missing end":
        os.truncate(file, len(data) - 100)
    else:
        file.unlink()
    with pytest.raises(PySparkException, match=rf"(?s)CORRUPTION.*{file.name}.*Hint: restore"):
        read(spark, path)
    with pytest.raises(PySparkException, match=rf"(?s)CORRUPTION.*{file.name}.*Hint: restore"):
        read_changes(spark, path)


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "an unknown option": ({"versionAsOff": 1}, "Did you mean 'versionAsOf'"),
    "an option of writes": ({"keys": "k"}, "option 'keys' belongs to writes only"),
    "a version to come": (
        {"versionAsOf": 9},
        "VERSION_NOT_FOUND.*9 does not exist: the newest version is 3",
    ),
    "a version that is no number": ({"versionAsOf": "newest"}, "expects a version"),
    "a time before the table": (
        {"timestampAsOf": "1999-01-01"},
        "(?s)the table has no version at 1999.*Hint",
    ),
    "a time that is no time": ({"timestampAsOf": "yesterday"}, "expects a time such as"),
    "a version and a time": ({"versionAsOf": 1, "timestampAsOf": 1}, "contradict each other"),
    "a column that is not there": ({"columns": "k,w"}, "the column 'w' is not among"),
    "a change column without changes": ({"columns": "_change_type"}, "'_change_type' is not among"),
    "no splits": ({"splits": 0}, "a whole number of at least 1"),
    "a start without changes": ({"startingVersion": 1}, "'startingVersion' needs the change feed"),
    "an end without changes": ({"endingVersion": 1}, "'endingVersion' needs the change feed"),
    "a limit of streams": ({"maxRowsPerTrigger": 1}, "has no meaning in a batch read"),
    "deletes that no read would see": ({"ignoreDeletes": "true"}, "no meaning in a batch read"),
    "a snapshot of changes": (
        {"readChangeFeed": "true", "versionAsOf": 1},
        "'readChangeFeed' and .* contradict each other",
    ),
    "a start to come": (
        {"readChangeFeed": "true", "startingVersion": 9},
        "startingVersion 9 does not exist: the newest version is 3",
    ),
    "an end to come": (
        {"readChangeFeed": "true", "endingVersion": 9},
        "endingVersion 9 does not exist: the newest version is 3",
    ),
}


@pytest.fixture(scope="module")
def table_of_three_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read") / "table"
    make_table(path, *EPOCHS)
    return path


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_a_read_that_cannot_be_meant_is_refused_by_the_driver(
    spark: SparkSession, table_of_three_epochs: Path, options: dict[str, Any], message: str
) -> None:
    # Asking for the partitions plans the read; no task runs.
    with pytest.raises(PySparkException, match=message):
        load(spark, table_of_three_epochs, **options).rdd.getNumPartitions()


def test_a_missing_table_and_a_missing_path_are_told_apart(spark: SparkSession, path: Path) -> None:
    with pytest.raises(PySparkException, match=r"(?s)no upsertflow table.*Hint: check the 'path'"):
        load(spark, path)
    with pytest.raises(PySparkException, match="the option 'path' is required"):
        spark.read.format("upsertflow").load()


def test_a_schema_given_by_hand_must_be_the_tables(spark: SparkSession, path: Path) -> None:
    make_table(path, {1: "a"})
    reader = spark.read.format("upsertflow")
    assert reader.schema("v string").load(str(path)).toArrow().to_pylist() == [{"v": "a"}]
    with pytest.raises(PySparkException, match="the column 'w' is not among"):
        reader.schema("k bigint, w string").load(str(path)).toArrow()
    with pytest.raises(PySparkException, match="'k' is string in the read, and int64 in the table"):
        reader.schema("k string, v string").load(str(path)).toArrow()
    with pytest.raises(PySparkException, match=r"expected \['_change_type', .*, found"):
        reader.option("readChangeFeed", "true").schema("v string").load(str(path)).toArrow()
