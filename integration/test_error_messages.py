"""What a person reads when Spark hands an error of ours on: the message first, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def append(rows: DataFrame, path: Path, **options: str) -> None:
    rows.write.format("upsertflow").options(path=str(path), **options).mode("append").save()


def stream(spark: SparkSession, path: Path, **options: str) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("value AS id")
    writer = rows.writeStream.format("upsertflow").options(path=str(path), **options)
    query = writer.option("checkpointLocation", f"{path}-checkpoint").start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


Case = Callable[[SparkSession, Path], None]

CASES: dict[str, tuple[Case, str]] = {
    "an option": (lambda s, p: append(s.range(1), p, keyz="id"), "[OPTION] unknown option 'keyz'"),
    "a plan": (lambda s, p: append(s.range(1), p, keys="k"), "[SCHEMA] the key column 'k'"),
    "a path of many": (
        lambda s, p: append(s.range(1), p / "{topic}", keys="id"),
        "[SCHEMA] the column of the path 'topic'",
    ),
    "a row": (
        lambda s, p: append(s.sql("SELECT CAST(NULL AS BIGINT) AS id"), p, keys="id"),
        "[DATA] the key 'id' is null",
    ),
    "a stream's plan": (lambda s, p: stream(s, p, keys="k"), "[SCHEMA] the key column 'k'"),
    "a read": (
        lambda s, p: s.read.format("upsertflow").load(str(p)).show(),
        "[TABLE_NOT_FOUND] there is no upsertflow table",
    ),
}


@pytest.mark.parametrize(("case", "message"), CASES.values(), ids=CASES)
def test_the_message_comes_first(
    spark: SparkSession, tmp_path: Path, case: Case, message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        case(spark, tmp_path / "table")
    said = str(caught.value)
    before, found, behind = said.partition(message)
    assert found, said
    assert before.count("\n") <= 1, said
    assert "Traceback" not in said
    assert "pickle" not in said.lower()
    assert "Hint: " in behind
