"""Python sources as inputs next to a table, through Spark, with restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.queries import Batches, drain, forget_last_commit
from integration.tables import append, make_table
from tests.support import python_sources

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCES = python_sources.__name__


def test_python_sources_are_one_query_with_a_table(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path / "table", {1: "table"})
    options = {
        "inputs": "table,stream,simple",
        "columns": "v",
        "mergeColumns": "_input",
        "input.table.path": str(tmp_path / "table"),
        "input.stream.format": f"python:{SOURCES}:Texts",
        "input.simple.format": f"python:{SOURCES}:SimpleTexts",
        "input.stream.path": str(tmp_path / "stream"),
        "input.simple.path": str(tmp_path / "simple"),
    }
    batches = Batches()
    written: list[tuple[str, str]] = [("table", "table")]
    lines: dict[str, list[str]] = {"stream": [], "simple": []}

    def write(text: str) -> None:
        for name, own in lines.items():
            own.append(f"{len(own)},{text}\n")
            (tmp_path / name).write_text("".join(own))
            written.append((name, text))

    def run(**more: str) -> None:
        read = spark.readStream.format("upsertflow").options(**{**options, **more}).load()
        assert read.columns == ["v", "_input"]
        drain(batches.collect(read, tmp_path / "checkpoint"))

    write("first")
    run()
    write("second")
    append(table, {2: "second"})
    written.append(("table", "second"))
    run(maxEpochsPerTrigger="1")
    forget_last_commit(tmp_path / "checkpoint")
    write("third")
    run()
    once = dict(batches.runs)
    assert len(batches.runs) == len(once) + 1, "the last batch is replayed, once"
    rows = [(row["_input"], row["v"]) for _, batch in sorted(once.items()) for row in batch]
    assert sorted(rows) == sorted(written)
