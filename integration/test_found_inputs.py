"""All tables below a folder as one query: they join it, go, and become one table, through Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.promises import assert_sound, rows_of
from integration.queries import END_SECONDS, Batches, drain, forget_last_commit, upserts, wait_until
from integration.tables import append, make_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REGIONS = 40


def changes(spark: SparkSession, root: Path, **options: Any) -> DataFrame:
    """Return the changes of all tables directly below a folder, with their names."""
    reader = spark.readStream.format("upsertflow").option("inputsPattern", "*")
    reader = reader.option("mergeColumns", "_input").option("readChangeFeed", "true")
    return reader.options(**options).load(str(root))


def test_a_table_joins_a_running_query_and_one_that_vanishes_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, batches = tmp_path / "lake", Batches()
    for name in ("east", "west"):
        make_table(root / name, {1: name})

    def has_read(*names: str) -> bool:
        return bool(query.exception()) or {row["_input"] for row in batches.rows} == {*names}

    query = batches.collect(changes(spark, root), tmp_path / "checkpoint").start()
    try:
        wait_until(lambda: has_read("east", "west"), "the tables are read")
        make_table(root / "north", {1: "north"})
        wait_until(lambda: has_read("east", "north", "west"), "the new one is read")
        assert query.exception() is None
        (root / "west").rename(tmp_path / "west")
        with pytest.raises(
            StreamingQueryException, match=r"has read the input 'west', but no such"
        ):
            query.awaitTermination(END_SECONDS)
    finally:
        query.stop()
    assert sorted((row["_input"], row["v"]) for row in batches.rows) == [
        (name, name) for name in ("east", "north", "west")
    ]


def test_forty_tables_become_one_by_one_query(spark: SparkSession, tmp_path: Path) -> None:
    root, target, checkpoint = (tmp_path / name for name in ("lake", "all", "checkpoint"))
    tables = {
        f"region-{number:02}": make_table(
            root / f"region-{number:02}", {1: "first", 2: f"of {number}"}
        )
        for number in range(REGIONS)
    }

    def run(**limits: Any) -> None:
        rows = changes(spark, root, **limits).withColumnRenamed("_input", "region")
        drain(upserts(rows, target, checkpoint, envelope="changelog", keys="region,k"))

    run()
    for number, table in enumerate(tables.values()):
        append(table, {1: None, 3: "new"} if number % 2 else {2: "changed"})
    run(maxRowsPerTrigger=REGIONS)
    forget_last_commit(checkpoint)  # Its batch comes again, and is known.
    append(tables["region-07"], {1: "again", 2: None})
    run()
    assert rows_of(target) == {
        (region, key): value
        for region in tables
        for (key,), value in rows_of(root / region).items()
    }
    assert_sound(target)
