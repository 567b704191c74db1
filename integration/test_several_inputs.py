"""One query over several tables: through Spark, with restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.promises import fold, rows_of
from integration.queries import Batches, drain, end, forget_last_commit
from integration.tables import append, make_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAMES = ("east", "north", "west")


def given(tmp_path: Path, **more: str) -> dict[str, str]:
    paths = {f"input.{name}.path": str(tmp_path / name) for name in NAMES}
    return {"inputs": ",".join(NAMES), "mergeColumns": "_input", **paths, **more}


def test_three_tables_are_one_query_that_goes_on_where_it_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = {name: make_table(tmp_path / name, {1: name, 2: name}) for name in NAMES}
    batches = Batches()

    def run(**more: str) -> None:
        options = given(tmp_path, readChangeFeed="true", **more)
        changes = spark.readStream.format("upsertflow").options(**options).load()
        drain(batches.collect(changes, tmp_path / "checkpoint"))

    run()
    append(tables["east"], {1: None})
    append(tables["west"], {1: "again", 3: "new"})
    run(maxRowsPerTrigger="1")
    forget_last_commit(tmp_path / "checkpoint")
    append(tables["north"], {9: "last"})
    run()
    once = dict(batches.runs)
    assert len(batches.runs) == len(once) + 1, "the last batch is replayed, once"
    rows = [row for _, batch in sorted(once.items()) for row in batch]
    for name in NAMES:
        own = [{**row} for row in rows if row["_input"] == name]
        for row in own:
            del row["_input"]
        own.sort(key=lambda row: (row["_commit_version"], row["_diff"]))
        assert fold(own, ["k"]) == rows_of(tmp_path / name)


def test_a_table_that_is_its_own_sink_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    for key, name in enumerate(NAMES):
        make_table(tmp_path / name, {key: name})
    changes = spark.readStream.format("upsertflow").options(**given(tmp_path)).load()
    writer = changes.drop("_input").writeStream.format("upsertflow")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "east"))
    with pytest.raises(StreamingQueryException, match="the query reads what it writes"):
        end(query)


def test_three_tables_are_one_batch_read(spark: SparkSession, tmp_path: Path) -> None:
    for name in NAMES:
        make_table(tmp_path / name, {1: name})
    read: DataFrame = spark.read.format("upsertflow").options(**given(tmp_path)).load()
    assert read.columns == ["k", "v", "_input"]
    assert sorted((row.v, row._input) for row in read.collect()) == [(n, n) for n in NAMES]
