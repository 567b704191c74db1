"""Payloads that name their own schema, through Spark: into many tables, and into one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from integration.promises import rows_of
from tests.support.envelopes import KAFKA, Record, records
from tests.support.own_schemas import INLINE, avro, inline, member, record, struct
from tests.support.registry import running_registry

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEY = struct(member("id", "int64"))


def frame(spark: SparkSession, **topics: list[Record]) -> DataFrame:
    """Return records of some topics."""
    rows = [
        {**row, "topic": topic}
        for topic, pairs in topics.items()
        for row in records(pairs).to_pylist()
    ]
    return spark.createDataFrame(rows, from_arrow_schema(KAFKA)).coalesce(1)


def test_each_topic_makes_a_table_of_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    users = inline(struct(member("name", "string")), {"name": "Zoë"})
    orders = inline(struct(member("amount", "int32"), member("paid", "boolean")), {"amount": 5})
    rows = frame(
        spark,
        users=[(inline(KEY, {"id": 1}), users)],
        orders=[(inline(KEY, {"id": 7}), orders), (inline(KEY, {"id": 8}), None)],
    )
    writer = rows.write.format("upsertflow").mode("append").options(**INLINE)
    with pytest.raises(PySparkException, match=r"(?s)planned before it has any.*/lake/\{topic\}"):
        writer.save(str(tmp_path / "one"))
    writer.save(str(tmp_path / "lake" / "{topic}"))
    assert rows_of(tmp_path / "lake" / "users") == {(1,): ("Zoë",)}
    assert rows_of(tmp_path / "lake" / "orders") == {(7,): (5, None)}


def test_a_registry_says_the_columns_of_one_table(spark: SparkSession, tmp_path: Path) -> None:
    key, row = record("K", id="long"), record("R", n="long")
    with running_registry() as registry:
        registry.user = ("me", "hunter2")
        ids = registry.register("t-key", key), registry.register("t-value", row)
        pair = avro(ids[0], key, {"id": 1}), avro(ids[1], row, {"n": 5})
        (
            frame(spark, t=[pair])
            .write.format("upsertflow")
            .mode("append")
            .option("envelope", "kafka")
            .option("keyFormat", "avro-confluent")
            .option("valueFormat", "avro-confluent")
            .option("keySubject", "t-key")
            .option("valueSubject", "t-value")
            .option("schemaRegistry.url", registry.url)
            .option("schemaRegistry.user", "me")
            .option("schemaRegistry.password", "hunter2")
            .save(str(tmp_path / "t"))
        )
        assert "/subjects/t-value/versions/latest" in registry.asked
        assert f"/schemas/ids/{ids[1]}" in registry.asked
    assert rows_of(tmp_path / "t") == {(1,): (5,)}
