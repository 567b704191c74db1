"""Values of every type go through a table unchanged, or their type is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

VALUES: dict[str, list[str]] = {
    "binary": ["X''", "X'00ff00'"],
    "boolean": ["true", "false"],
    "tinyint": ["-128Y", "127Y"],
    "smallint": ["-32768S", "32767S"],
    "int": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775807L - 1L", "9223372036854775807L"],
    "float": ["float('NaN')", "float('-Infinity')", "float(0.1)", "float('-0.0')"],
    "double": ["double('NaN')", "double('Infinity')", "0.1D", "4.9E-324D", "-0.0D"],
    "decimal(38,18)": ["-99999999999999999999.999999999999999999BD", "0.000000000000000001BD"],
    "decimal(38,0)": ["99999999999999999999999999999999999999BD", "0BD"],
    "string": ["''", "'a b'", "'\\u0000\\n'", "'\\uD83D\\uDE00'", "'  '"],
    "date": ["DATE'0001-01-01'", "DATE'1582-10-15'", "DATE'9999-12-31'"],
    "timestamp": ["TIMESTAMP'0001-01-01 00:00:00.000001Z'", "TIMESTAMP'9999-12-31 23:59:59Z'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'2026-03-29 02:30:00'"],
    "time(6)": ["TIME'00:00:00'", "TIME'23:59:59.999999'"],
    "interval day to second": [
        "INTERVAL '106751991 04:00:54.775807' DAY TO SECOND",
        "INTERVAL '-1 02:03:04.000005' DAY TO SECOND",
    ],
    "array<array<int>>": ["array()", "array(null, array(), array(1, null))"],
    "map<string,map<int,string>>": ["map()", "map('', null, 'a', map(1, null, 2, 'b'))"],
    "struct<a:int,b:struct<c:string>>": [
        "struct(null AS a, null AS b)",
        "struct(1 AS a, struct('x' AS c) AS b)",
    ],
    "array<struct<t:timestamp,i:interval day to second,d:decimal(9,2)>>": [
        "array(struct(TIMESTAMP'2026-01-01 00:00:00Z' AS t, INTERVAL '1' DAY AS i, 1.50BD AS d))",
    ],
}

REFUSED = {
    "VARIANT": ("parse_json('[1]')", "to_json(v)"),
    "STRUCT<A:VARIANT>": ("struct(parse_json('[1]') AS a)", "to_json(v.a)"),
    "INTERVAL YEAR TO MONTH": ("INTERVAL '1-2' YEAR TO MONTH", "cast(v AS STRING)"),
    "INTERVAL HOUR TO MINUTE": (
        "INTERVAL '2:3' HOUR TO MINUTE",
        "cast(v AS INTERVAL DAY TO SECOND)",
    ),
    "STRING COLLATE UTF8_LCASE": ("'A' COLLATE UTF8_LCASE", "collate(v, 'UTF8_BINARY')"),
    "TIME(3)": ("CAST(TIME'12:00:00' AS TIME(3))", "cast(v AS TIME(6))"),
    "GEOMETRY": ("st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')", "st_asbinary(v)"),
    "GEOGRAPHY": (
        "st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')",
        "st_asbinary(v)",
    ),
}


def rows_of(spark: SparkSession, type_: str, values: list[str]) -> DataFrame:
    """Return a row per value, and one of null, with their number as the key."""
    selects = (
        f"SELECT {number} AS k, CAST({value} AS {type_}) AS v"
        for number, value in enumerate([*values, "NULL"])
    )
    return spark.sql(" UNION ALL ".join(selects))


def rendered(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return values as Spark writes them, with all their digits and all that is nested."""
    shown = frame.selectExpr(
        "k", "typeof(v)", "v IS NULL", "to_json(struct(v))", "CAST(v AS STRING)"
    )
    return sorted(tuple(row) for row in shown.collect())


@pytest.fixture(autouse=True)
def _time_type(spark: SparkSession) -> Iterator[None]:
    """Spark's own switch for the type TIME, off unless told."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.parametrize("type_", VALUES)
@pytest.mark.sweep(8)
def test_values_come_back_as_they_were(spark: SparkSession, tmp_path: Path, type_: str) -> None:
    rows = rows_of(spark, type_, VALUES[type_])
    path = str(tmp_path / "table")
    rows.write.format("upsertflow").option("keys", "k").mode("append").save(path)
    found = spark.read.format("upsertflow").load(path)
    assert found.schema["v"].dataType.simpleString() == type_
    assert rendered(found) == rendered(rows)


NULL_STRUCTS = [
    "array(struct(id), null)",
    "map('a', struct(id), 'b', null)",
    "array(struct(struct(id) AS s), null, struct(IF(id = 0, null, struct(id)) AS s))",
    "array(array(struct(id)), null, array(null, struct(id)))",
    "struct(map('x', array(null, struct(id, map('q', struct(id))))))",
]
"""Null structs whose fields are NOT NULL in Spark's schema."""


@pytest.mark.parametrize("value", NULL_STRUCTS)
def test_a_null_struct_within_a_value_stays_null(
    spark: SparkSession, tmp_path: Path, value: str
) -> None:
    rows = spark.sql(f"SELECT id AS k, {value} AS v FROM range(2)")
    path = str(tmp_path / "table")
    for _ in range(2):
        rows.write.format("upsertflow").option("keys", "k").mode("append").save(path)
    assert rendered(spark.read.format("upsertflow").load(path)) == rendered(rows)


@pytest.mark.parametrize("type_", REFUSED)
def test_a_type_that_would_change_is_refused(
    spark: SparkSession, tmp_path: Path, type_: str
) -> None:
    value, remedy = REFUSED[type_]
    rows = spark.sql(f"SELECT 1 AS k, {value} AS v")
    with pytest.raises(PySparkException) as caught:
        rows.write.format("upsertflow").option("keys", "k").mode("append").save(
            str(tmp_path / "table")
        )
    text = str(caught.value)
    assert f"has the type {'VARIANT' if 'VARIANT' in type_ else type_}" in text
    assert f"Hint: write {remedy}" in text
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("type_", ["char(5)", "varchar(5)"])
def test_texts_of_a_length_are_strings_as_in_any_frame_of_spark(
    spark: SparkSession, tmp_path: Path, type_: str
) -> None:
    spark.sql(f"CREATE TABLE source (k INT, v {type_}) USING parquet")
    try:
        spark.sql("INSERT INTO source VALUES (1, 'ab')")
        rows = spark.table("source")
        path = str(tmp_path / "table")
        rows.write.format("upsertflow").option("keys", "k").mode("append").save(path)
        assert rendered(spark.read.format("upsertflow").load(path)) == rendered(rows)
    finally:
        spark.sql("DROP TABLE source")


@pytest.mark.parametrize("type_", ["char(5)", "varchar(5)"])
def test_texts_of_a_length_that_spark_preserves_are_refused(
    spark: SparkSession, tmp_path: Path, type_: str
) -> None:
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        rows = spark.sql(f"SELECT 1 AS k, CAST('ab' AS {type_}) AS v")
        assert rows.schema["v"].dataType.simpleString() == type_
        with pytest.raises(PySparkException, match=r"Hint: write cast\(v AS STRING\) instead"):
            rows.write.format("upsertflow").option("keys", "k").mode("append").save(
                str(tmp_path / "table")
            )
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("timestamp", "timestamp_micros(253402300800000000)"),
        ("date", "DATE'+10000-01-01'"),
        ("array<timestamp_ntz>", "array(TIMESTAMP_NTZ'+10000-01-01 00:00:00')"),
    ],
)
def test_a_time_that_python_cannot_read_is_refused_or_kept_apart(
    spark: SparkSession, tmp_path: Path, type_: str, value: str, policy: str
) -> None:
    path = str(tmp_path / "table")
    writer = rows_of(spark, type_, [value]).write.format("upsertflow").mode("append")
    writer = writer.option("keys", "k").option("onError", policy)
    if policy == "fail":
        with pytest.raises(PySparkException, match="column 'v' holds what is no"):
            writer.save(path)
        return
    writer.save(path)
    table = Table.open(path)
    assert table.snapshot().to_pylist() == [{"k": 1, "v": None}]
    [apart] = [row for batch in table.quarantine() for row in batch.to_pylist()]
    assert apart["k"] == 0


# -- types and entry points ---------------------------------------------------------------------

NESTINGS = (
    "{}",
    "array({}, null)",
    "struct({} AS f)",
    "map('k', {})",
    "array(struct(map(1, {}) AS f))",
)

Write = Callable[[DataFrame, str, Path], None]


def in_batch(rows: DataFrame, path: str, folder: Path) -> None:
    rows.write.format("upsertflow").option("mergeSchema", "true").mode("append").save(path)


def in_an_overwrite(rows: DataFrame, path: str, folder: Path) -> None:
    rows.write.format("upsertflow").option("mergeSchema", "true").mode("overwrite").save(path)


def in_a_stream(rows: DataFrame, path: str, folder: Path) -> None:
    query = (
        rows.writeStream.format("upsertflow")
        .option("mergeSchema", "true")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(path)
    )
    query.awaitTermination()


WRITES: dict[str, Write] = {
    "mergeSchema": in_batch,
    "an overwrite": in_an_overwrite,
    "a stream": in_a_stream,
}


def table_with_a_row(spark: SparkSession, path: str) -> None:
    first = spark.sql("SELECT 99 AS k")
    first.write.format("upsertflow").option("keys", "k").mode("append").save(path)


def rows_of_all_types(spark: SparkSession, turn: int) -> DataFrame:
    """Return a column of each type, in nestings that follow from a number."""
    count = max(map(len, VALUES.values()))
    selects = []
    for row in range(count):
        columns = [f"{row} AS k"]
        for place, (type_, values) in enumerate(VALUES.items()):
            value = f"CAST({values[row] if row < len(values) else 'NULL'} AS {type_})"
            nested = NESTINGS[(place + turn) % len(NESTINGS)].format(value)
            columns.append(f"{nested} AS v{place}")
        selects.append(f"SELECT {', '.join(columns)}")
    return spark.sql(" UNION ALL ".join(selects))


def rendered_all(frame: DataFrame) -> list[tuple[object, ...]]:
    names = [f"v{place}" for place in range(len(VALUES))]
    shown = [f"typeof({name})" for name in names] + [f"CAST({name} AS STRING)" for name in names]
    return sorted(tuple(row) for row in frame.filter("k < 99").selectExpr("k", *shown).collect())


@pytest.mark.parametrize("turn", range(len(NESTINGS)))
@pytest.mark.parametrize("entry", WRITES)
@pytest.mark.sweep(4)
def test_columns_of_all_types_come_back_as_they_were(
    spark: SparkSession, tmp_path: Path, entry: str, turn: int
) -> None:
    rows, path, source = (
        rows_of_all_types(spark, turn),
        str(tmp_path / "table"),
        str(tmp_path / "s"),
    )
    table_with_a_row(spark, path)
    given = rows
    if entry == "a stream":
        rows.write.format("upsertflow").option("keys", "k").mode("append").save(source)
        given = spark.readStream.format("upsertflow").load(source)
    WRITES[entry](given, path, tmp_path)
    reader = spark.read.format("upsertflow")
    assert rendered_all(reader.load(path)) == rendered_all(rows)
    Table.open(path).compact(full=True)
    assert rendered_all(reader.load(path)) == rendered_all(rows)
    changes = reader.option("readChangeFeed", "true").load(path)
    assert rendered_all(changes.filter("_change_type = 'insert'")) == rendered_all(rows)


@pytest.mark.parametrize("entry", WRITES)
def test_a_type_that_would_change_leaves_the_table_as_it_was(
    spark: SparkSession, tmp_path: Path, entry: str
) -> None:
    path = str(tmp_path / "table")
    table_with_a_row(spark, path)
    for place, (type_, (value, _)) in enumerate([*REFUSED.items(), ("VOID", ("NULL", ""))]):
        rows = spark.sql("SELECT 1 AS k")
        if entry == "a stream":
            rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS INT) AS k")
        with pytest.raises(PySparkException, match=r"(?s)'v'|`v`") as caught:
            WRITES[entry](rows.selectExpr("k", f"{value} AS v"), path, tmp_path / str(place))
        text = str(caught.value)
        assert any(part in text for part in (*type_.split("<A:"), "VARIANT", "no type")), text
        assert Table.open(path).snapshot().to_pylist() == [{"k": 99}]


@pytest.mark.parametrize("entry", WRITES)
def test_a_text_of_other_bytes_than_utf_8_leaves_the_table_as_it_was(
    spark: SparkSession, tmp_path: Path, entry: str
) -> None:
    path, source = str(tmp_path / "table"), str(tmp_path / "source")
    table_with_a_row(spark, path)
    rows = spark.sql("SELECT 1 AS k, X'FF' AS bytes")
    if entry == "a stream":
        rows.write.format("upsertflow").option("keys", "k").mode("append").save(source)
        rows = spark.readStream.format("upsertflow").load(source)
    with pytest.raises(PySparkException, match=r"column 'v' holds what is no string \(in UTF-8\)"):
        WRITES[entry](rows.selectExpr("k", "CAST(bytes AS STRING) AS v"), path, tmp_path)
    assert Table.open(path).snapshot().select(["k"]).to_pylist() == [{"k": 99}]
