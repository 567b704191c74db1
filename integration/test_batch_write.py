"""A batch write is one epoch, or an error that says what to do and leaves nothing behind."""

from __future__ import annotations

from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.promises import (
    assert_sound,
    counters_of,
    epochs_of,
    orphans,
    rows_of,
)
from integration.tables import Row, columns
from spark_upsert.errors import TableNotFoundError
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

ROWS = columns(k=pa.int64(), v=pa.int64(), seq=pa.int64())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def frame(spark: SparkSession, *rows: Row, schema: pa.Schema = ROWS) -> DataFrame:
    """Return rows as a DataFrame of one task."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema)).coalesce(1)


def row(key: int | None, value: int | None, seq: int | None = 0) -> Row:
    return {"k": key, "v": value, "seq": seq}


def save(rows: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    rows.write.format("upsertflow").mode(mode).options(**options).save(str(path))


def changes_of_last_epoch(path: Path) -> list[tuple[Any, ...]]:
    """Return (type, key, value) of the newest epoch's changes, sorted by key."""
    table = Table.open(str(path))
    version = epochs_of(path)[-1].version
    changes = table.changes(version, version + 1).to_pylist()
    return sorted((c["k"], c["_change_type"], c["v"]) for c in changes)


def test_append_upserts_and_overwrite_retracts_what_is_gone(
    spark: SparkSession, path: Path
) -> None:
    options = {"keys": "k", "columnList": "k,v"}
    save(frame(spark, row(1, 10), row(2, 20), row(3, 30)), path, **options)
    save(frame(spark, row(2, 21), row(4, 40)), path, **options)
    assert rows_of(path) == {(1,): (10,), (2,): (21,), (3,): (30,), (4,): (40,)}

    save(frame(spark, row(1, 10), row(2, 22), row(5, 50)), path, mode="overwrite", **options)
    assert rows_of(path) == {(1,): (10,), (2,): (22,), (5,): (50,)}
    assert changes_of_last_epoch(path) == [
        (2, "update_postimage", 22),
        (2, "update_preimage", 21),
        (3, "delete", 30),
        (4, "delete", 40),
        (5, "insert", 50),
    ]
    assert_sound(path)


def test_a_write_of_keys_deletes_their_rows(spark: SparkSession, path: Path) -> None:
    save(
        frame(spark, row(1, 10, 5), row(2, 20, 5), row(3, 30, 5)), path, keys="k", sequenceBy="seq"
    )
    keys = spark.createDataFrame([(1,), (3,), (9,), (1,)], "K INT").repartition(2)
    save(keys, path, operation="delete")
    assert rows_of(path) == {(2,): (20, 5)}
    assert changes_of_last_epoch(path) == [(1, "delete", 10), (3, "delete", 30)]
    assert epochs_of(path)[-1].counters["tied"] == 0
    save(frame(spark, row(1, 11, 6)), path)  # A later row is a row again.
    assert rows_of(path) == {(1,): (11, 6), (2,): (20, 5)}
    assert_sound(path)
    with pytest.raises(PySparkException, match="mode=overwrite"):
        save(keys, path, mode="overwrite", operation="delete")


def test_overwrite_forgets_the_order_of_the_past(spark: SparkSession, path: Path) -> None:
    options = {"keys": "k", "sequenceBy": "seq"}
    save(frame(spark, row(1, 10, seq=100)), path, **options)
    save(frame(spark, row(1, 20, seq=1)), path, mode="overwrite", **options)
    save(frame(spark, row(1, 30, seq=2)), path, **options)
    assert rows_of(path) == {(1,): (30, 2)}
    assert_sound(path)


def test_a_transaction_is_applied_once(spark: SparkSession, path: Path) -> None:
    def write(value: int, app: str, version: int) -> None:
        save(frame(spark, row(1, value)), path, keys="k", txnAppId=app, txnVersion=version)

    write(10, "loader", 7)
    write(20, "loader", 7)
    write(30, "loader", 6)
    assert rows_of(path) == {(1,): (10, 0)}
    assert orphans(path) == set(), "what was staged for a known transaction is still there"

    write(40, "loader", 8)
    write(50, "other", 7)
    assert rows_of(path) == {(1,): (50, 0)}
    assert len(epochs_of(path)) == 3
    assert_sound(path)


def test_merge_schema_adds_columns_widens_types_and_keeps_the_past(
    spark: SparkSession, path: Path
) -> None:
    narrow = columns(k=pa.int32(), v=pa.int16())
    wide = columns(v=pa.int64(), k=pa.int64(), note=pa.string())
    save(frame(spark, {"k": 1, "v": 10}, {"k": 2, "v": 20}, schema=narrow), path, keys="k")
    before = Table.open(str(path)).log.head().version
    rows: list[Row] = [{"k": 1, "v": 2**40, "note": "wide"}, {"k": 2**40, "v": 1, "note": None}]
    save(frame(spark, *rows, schema=wide), path, mergeSchema="true")
    # A narrower type, and a column left out: still a row of the table.
    save(frame(spark, {"k": 2, "v": 21}, schema=narrow), path, mergeSchema="true")

    assert rows_of(path) == {(1,): (2**40, "wide"), (2,): (21, None), (2**40,): (1, None)}
    past = spark.read.format("upsertflow").option("versionAsOf", before).load(str(path))
    assert past.toArrow().schema == narrow
    assert_sound(path)


def test_column_lists_say_what_is_stored(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, row(1, 10, seq=3))
    save(rows, tmp_path / "listed", keys="k", sequenceBy="SEQ", columnList="v, K")
    save(rows, tmp_path / "except", keys="k", sequenceBy="seq", exceptColumnList="seq")
    save(rows, tmp_path / "all", keys="k", sequenceBy="seq")

    stored = [Table.open(str(tmp_path / name)).log.head().schema for name in ("listed", "except")]
    assert [list(schema.columns.names) for schema in stored] == [["v", "k"], ["k", "v"]]
    assert rows_of(tmp_path / "except") == {(1,): (10,)}
    assert rows_of(tmp_path / "all") == {(1,): (10, 3)}


def test_of_equal_order_keys_the_later_row_wins_and_ties_are_counted(
    spark: SparkSession, path: Path
) -> None:
    options = {"keys": "k", "sequenceBy": "seq", "columnList": "k,v"}
    save(frame(spark, row(1, 11, 5), row(1, 10, 5), row(1, 9, 4)), path, **options)
    assert rows_of(path) == {(1,): (10,)}
    save(frame(spark, row(1, 12, 5), row(2, 20, 5)), path, **options)
    save(frame(spark, row(1, 12, 5)), path, **options)

    assert rows_of(path) == {(1,): (12,), (2,): (20,)}
    total = counters_of(path)
    assert (total.rows, total.inserts, total.updates, total.superseded) == (6, 2, 1, 2)
    assert (total.tied, total.duplicates) == (2, 1)
    assert_sound(path)


def test_between_tasks_the_greater_content_wins_a_tie(spark: SparkSession, path: Path) -> None:
    options = {"keys": "k", "sequenceBy": "seq", "columnList": "k,v"}
    rows = [row(1, value, 5) for value in (7, 9, 8)]
    save(frame(spark, *rows).repartition(3), path, **options)
    assert rows_of(path) == {(1,): (9,)}


def test_ties_fail_the_write_or_leave_the_first_if_the_table_says_so(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    options = {"keys": "k", "sequenceBy": "seq", "columnList": "k,v"}
    tied = frame(spark, row(1, 10, 5), row(1, 11, 5))
    with pytest.raises(PySparkException, match=r"\[DATA\] 1 rows have the order key of another"):
        save(tied, path, ties="fail", **options)
    with pytest.raises(TableNotFoundError):
        Table.open(str(path))
    save(tied, tmp_path / "first", ties="first", **options)
    assert rows_of(tmp_path / "first") == {(1,): (10,)}
    with pytest.raises(PySparkException, match="but the table has 'first'"):
        save(tied, tmp_path / "first", ties="last", **options)


def test_rows_older_than_the_forgotten_deletes_fail_a_batch_unless_it_says_otherwise(
    spark: SparkSession, path: Path
) -> None:
    options = {
        "keys": "k",
        "sequenceBy": "seq",
        "columnList": "k,v",
        "applyAsDeletes": "gone",
        "tombstoneRetention": "0 epochs",
    }

    def rows(*found: Row) -> DataFrame:
        marked = [{**each, "gone": each["v"] is None} for each in found]
        return frame(spark, *marked, schema=ROWS.append(pa.field("gone", pa.bool_())))

    save(rows(row(1, 10, 1), row(2, 20, 1)), path, **options)
    save(rows(row(1, None, 9)), path, **options)
    Table.open(str(path)).compact(full=True)
    before = rows_of(path)
    late = rows(row(1, 11, 5), row(3, 30, 4), row(4, 40, 10))
    with pytest.raises(PySparkException, match=r"2 rows are late .*sequenceBy=seq"):
        save(late, path, **options)
    assert rows_of(path) == before
    save(late, path, lateRows="reject", **options)
    assert rows_of(path) == {**before, (4,): (40,)}
    save(late, path, lateRows="apply", **options)
    assert rows_of(path) == {**before, (1,): (11,), (3,): (30,), (4,): (40,)}
    total = counters_of(path)
    assert (total.rejected, total.late) == (2, 2)
    assert_sound(path)


def test_the_later_epoch_wins_if_the_scope_says_so(spark: SparkSession, path: Path) -> None:
    options = {"keys": "k", "sequenceBy": "seq", "sequenceScope": "epoch", "columnList": "k,v"}
    save(frame(spark, row(1, 10, 5)), path, **options)
    save(frame(spark, row(1, 11, 2), row(1, 12, 1)), path, **options)
    assert rows_of(path) == {(1,): (11,)}
    assert_sound(path)


def test_two_tasks_with_different_values_of_a_key_need_an_order_or_a_word(
    spark: SparkSession, path: Path
) -> None:
    rows = frame(spark, row(1, 10), row(1, 11), row(2, 20)).repartitionById(
        3, (F.col("v") % 3).cast("int")
    )
    with pytest.raises(PySparkException, match=r"(?s)for example k=1.*sequenceBy"):
        save(rows, path, keys="k")
    with pytest.raises(TableNotFoundError):  # The first epoch would have made the table.
        rows_of(path)
    # What was staged is left to a vacuum, as behind any commit that failed.
    save(rows, path, keys="k", allowUnordered="true")
    assert rows_of(path).keys() == {(1,), (2,)}
    same = frame(spark, row(3, 30), row(3, 30)).repartition(2)
    save(same, path, keys="k")
    total = counters_of(path)
    assert (total.rows, total.inserts, total.superseded) == (5, 3, 2)
    assert_sound(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(None, 1), "the key 'k' is null in 1 of"),
        (row(2, 1, seq=None), "the sequenceBy column 'seq' is null in 1 of"),
    ],
    ids=["a null key", "a null order key"],
)
def test_a_row_that_is_no_command_stops_the_write(
    spark: SparkSession, path: Path, bad: Row, message: str
) -> None:
    options = {"keys": "k", "sequenceBy": "seq"}
    save(frame(spark, row(1, 10)), path, **options)
    version = Table.open(str(path)).log.head().version
    with pytest.raises(PySparkException, match=message):
        save(frame(spark, row(1, 20, seq=9), bad), path, **options)
    assert Table.open(str(path)).log.head().version == version
    assert orphans(path) == set()


# All refusals are in `tests/unit/test_write_plan.py`; here are some on their way through Spark.
REFUSED_FIRST_WRITES = {
    "no keys": ({}, "k bigint", "option 'keys' is required"),
    "a key that is not there": ({"keys": "oder_id"}, "order_id int", "Did you mean 'order_id'"),
    "a key without a hash": ({"keys": "k"}, "k array<int>", "has no hash and order"),
    "a column of no type": ({"keys": "k"}, "k int, v void", "column 'v' has no type"),
    "an unknown option": ({"key": "k"}, "k int", "(?s)unknown option 'key'.*Did you mean 'keys'"),
    "columns that only case tells apart": (
        {"keys": "k"},
        "k int, K int",
        "column names must differ",
    ),
}


@pytest.mark.parametrize(
    ("options", "schema", "message"), REFUSED_FIRST_WRITES.values(), ids=REFUSED_FIRST_WRITES
)
def test_a_first_write_that_cannot_be_right_makes_no_table(
    spark: SparkSession, path: Path, options: dict[str, str], schema: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(spark.createDataFrame([], schema), path, **options)
    assert not path.exists()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_that_does_not_fit_its_table_changes_nothing(
    spark: SparkSession, path: Path, mode: str
) -> None:
    save(frame(spark, row(1, 10)), path, keys="k", sequenceBy="seq")
    for options, schema, message in (
        ({}, "k bigint, v string, seq bigint", "cast the column to int64"),
        ({"mergeSchema": "true"}, "k bigint, v double, seq bigint", "cast the column to int64"),
        ({}, "k bigint, v bigint, seq bigint, w int", "mergeSchema"),
        ({"keys": "v"}, "k bigint, v bigint, seq bigint", "but the table has 'k'"),
    ):
        with pytest.raises(PySparkException, match=message):
            save(spark.createDataFrame([], schema), path, mode=mode, **options)
    assert Table.open(str(path)).log.head().version == 0
    assert rows_of(path) == {(1,): (10, 0)}


def test_names_of_options_are_compared_without_case_and_punctuation(
    spark: SparkSession, path: Path
) -> None:
    options = {"KEYS": "k", "sequence_by": "seq", "Column-List": "k,v", "MERGESCHEMA": "false"}
    save(frame(spark, row(1, 10, 1), row(1, 20, 0)), path, **options)
    assert rows_of(path) == {(1,): (10,)}


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_spark_refuses_the_other_save_modes_and_says_which_to_use(
    spark: SparkSession, path: Path, mode: str
) -> None:
    # `error` is the default of DataFrameWriter: Spark asks only sources with a catalog.
    with pytest.raises(PySparkException, match='"Append" or "Overwrite" mode'):
        save(frame(spark, row(1, 10)), path, mode=mode, keys="k")
    assert not path.exists()


def test_settings_of_the_session_do_not_change_what_is_stored(
    spark: SparkSession, path: Path
) -> None:
    instant = "SELECT timestamp_micros(1) AS k, array(timestamp_micros(2)) AS v, 'text' AS t"
    settings = {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    }
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            save(spark.sql(instant), path, keys="k,t")
            spark.conf.set(name, value)
        save(spark.sql(instant), path, keys="k,t")
        feed = spark.read.format("upsertflow").option("readChangeFeed", "true").load(str(path))
        assert feed.selectExpr("unix_micros(k)", "t").collect() == [(1, "text")]
    finally:
        for name, text in before.items():
            spark.conf.set(name, str(text))
    counts = [Counters.from_json(epoch.counters) for epoch in epochs_of(path)]
    assert [(c.inserts, c.updates) for c in counts] == [(1, 0), (0, 1), (0, 1), (0, 1)]
    assert Table.open(str(path)).changes().num_rows == 1


def test_any_name_of_a_column_will_do(spark: SparkSession, path: Path) -> None:
    rows = spark.sql("SELECT 1 AS `a b`, 2 AS `a.b`, 3 AS `ключ`, 4 AS `a,b`, 5 AS `select`")
    save(rows, path, keys="`a,b`, a.b ,a b,ключ")
    read = spark.read.format("upsertflow").option("columns", "`a,b`,ключ,select")
    assert read.load(str(path)).collect() == [(4, 3, 5)]


def test_a_table_can_be_overwritten_with_what_is_read_from_it(
    spark: SparkSession, path: Path
) -> None:
    save(frame(spark, row(1, 10), row(2, 20)), path, keys="k")
    own = spark.read.format("upsertflow").load(str(path))
    save(own.where("k = 1").withColumn("v", F.col("v") + 1), path, mode="overwrite")
    assert rows_of(path) == {(1,): (11, 0)}
    assert_sound(path)


def test_times_and_intervals_can_be_keys(spark: SparkSession, path: Path) -> None:
    # Streams refuse times (Spark) and files hold no intervals (Parquet): only here.
    rows = spark.sql(
        "SELECT TIME'23:59:59.000001' AS t, INTERVAL '-1 02:00:00' DAY TO SECOND AS i, 1 AS v"
    )
    save(rows, path, keys="t,i")
    save(rows.withColumn("v", F.lit(2)), path, keys="t,i")

    read = spark.read.format("upsertflow").load(str(path)).toArrow()
    assert read.to_pylist() == [
        {"t": time(23, 59, 59, 1), "i": timedelta(days=-1, hours=-2), "v": 2}
    ]
    assert Counters.from_json(epochs_of(path)[-1].counters).updates == 1


SOME = columns(
    id=pa.int64(), n=pa.int64(), x=pa.string(), seq=pa.int64(), names=pa.list_(pa.string())
)


def test_rows_set_some_columns(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """In a batch of several tasks, and in one batch each; a null is set where it is listed."""
    values: list[tuple[Any, ...]] = [
        (1, 0, "a", 1, None),
        (2, 0, "b", 1, None),
        (1, 1, None, 2, ["n"]),
        (2, 5, None, 2, ["x"]),
        (1, 7, "z", 3, []),
    ]
    rows = [dict(zip(SOME.names, each, strict=True)) for each in values]
    options = {"keys": "id", "sequenceBy": "seq", "exceptColumnList": "seq"}
    options["columnsToUpdate"] = "names"
    expected = {(1,): (1, "a"), (2,): (0, None)}
    save(frame(spark, *rows, schema=SOME).repartition(4, F.rand(1)), path, **options)
    assert rows_of(path) == expected
    assert_sound(path)
    for number in rows:
        save(frame(spark, number, schema=SOME), tmp_path / "each", **options)
    assert rows_of(tmp_path / "each") == expected
    read = spark.read.format("upsertflow").load(str(tmp_path / "each")).orderBy("id")
    assert [tuple(found) for found in read.collect()] == [(1, 1, "a"), (2, 0, None)]
    table = Table.open(str(tmp_path / "each"))
    newest = epochs_of(tmp_path / "each")[-1].version
    assert table.changes(newest, newest + 1).to_pylist() == [], "an empty list sets nothing"


def test_a_value_that_no_row_sets_is_decided_by_the_table(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    whole = {"id": 1, "n": 0, "x": "a", "seq": 1, "names": None}
    part = {"id": 2, "n": 3, "x": None, "seq": 2, "names": ["n"]}
    options = {"keys": "id", "sequenceBy": "seq", "columnsToUpdate": "names"}
    save(frame(spark, whole, schema=SOME), path, **options)
    with pytest.raises(PySparkException, match=r"(?s)'x' of 1 rows was never sent") as caught:
        save(frame(spark, part, schema=SOME), path, **options)
    assert '.option("onUnknown", "null")' in str(caught.value)
    assert rows_of(path) == {(1,): (0, "a", 1)}
    save(frame(spark, part, schema=SOME), path, **options, onUnknown="quarantine")
    assert rows_of(path) == {(1,): (0, "a", 1)}
    listed = spark.read.format("upsertflow").option("metadata", "quarantine").load(str(path))
    assert [(row["id"], "'x'" in row["_reason"]) for row in listed.collect()] == [(2, True)]
    fill = {"id": 2, "n": None, "x": "late", "seq": 1, "names": ["x"]}
    save(frame(spark, fill, schema=SOME), path, **options)
    assert rows_of(path) == {(1,): (0, "a", 1), (2,): (3, "late", 2)}
    assert_sound(path)


def test_a_null_that_is_ignored_keeps_the_value(spark: SparkSession, path: Path) -> None:
    options = {"keys": "k", "ignoreNullUpdates": "true"}
    save(frame(spark, row(1, 10, 5), row(2, None, 5)), path, **options)
    save(frame(spark, row(1, None, 6), row(2, 20, None)), path, **options)
    assert rows_of(path) == {(1,): (10, 6), (2,): (20, 5)}
