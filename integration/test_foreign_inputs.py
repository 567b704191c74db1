"""Inputs that are no tables, through Spark: files and both kinds of Python sources, with restarts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.queries import Batches, drain, forget_last_commit
from integration.tables import append, make_table
from tests.support import python_sources

pytestmark = pytest.mark.spark

SOURCES = python_sources.__name__


def test_files_and_python_sources_are_one_query_with_a_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "table", {1: "table"})
    (tmp_path / "files").mkdir()
    options = {
        "inputs": "table,files,stream,simple",
        "columns": "v",
        "mergeColumns": "_input",
        "input.table.path": str(tmp_path / "table"),
        "input.files.path": str(tmp_path / "files"),
        "input.files.format": "json",
        "input.files.schema": "v STRING",
        "input.stream.format": f"python:{SOURCES}:Texts",
        "input.simple.format": f"python:{SOURCES}:SimpleTexts",
        "input.stream.path": str(tmp_path / "stream"),
        "input.simple.path": str(tmp_path / "simple"),
    }
    batches = Batches()
    written: list[tuple[str, str]] = [("table", "table")]
    lines: dict[str, list[str]] = {"stream": [], "simple": []}

    def write(text: str) -> None:
        (tmp_path / "files" / f"{text}.json").write_text(f'{{"v": "{text}"}}\n')
        written.append(("files", text))
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


def test_files_are_read_in_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("east", "west"):
        spark.range(3).selectExpr("id", f"'{name}' AS region").write.parquet(str(tmp_path / name))
    options = {"inputs": "east,west"}
    for name in ("east", "west"):
        options |= {f"input.{name}.path": str(tmp_path / name), f"input.{name}.format": "parquet"}
    read = spark.read.format("upsertflow").options(**options).load()
    assert sorted((row.region, row.id) for row in read.collect()) == [
        (name, id_) for name in ("east", "west") for id_ in range(3)
    ]


@pytest.mark.parametrize("order", [{"interleaveSeed": "42"}, {"merge": "roundrobin"}], ids=str)
def test_files_in_an_exact_order_are_one_sequence_however_it_is_cut(
    spark: SparkSession, tmp_path: Path, order: dict[str, str]
) -> None:
    options = {"inputs": "a,b", "mergeColumns": "_input,_merge_seq", **order}
    for name, sizes in {"a": [3, 4], "b": [1, 5]}.items():
        (tmp_path / name).mkdir()
        rows = iter(range(1, 99))
        for number, size in enumerate(sizes):
            lines = [f'{{"row": "{name}{next(rows)}"}}\n' for _ in range(size)]
            (tmp_path / name / f"{number}.json").write_text("".join(lines))
            os.utime(tmp_path / name / f"{number}.json", (number, number))
        options |= {f"input.{name}.path": str(tmp_path / name), f"input.{name}.format": "json"}
    whole = spark.read.format("upsertflow").options(**options).load().toArrow().to_pylist()
    assert [row["_merge_seq"] for row in whole] == list(range(13))

    batches = Batches()

    def run() -> None:
        read = spark.readStream.format("upsertflow").options(**options, maxRowsPerTrigger="5")
        drain(batches.collect(read.load(), tmp_path / "checkpoint"))

    run()
    assert [len(rows) for _, rows in batches.runs] == [5, 5, 3]
    assert batches.rows == whole
    forget_last_commit(tmp_path / "checkpoint")
    run()
    assert batches.runs[3] == batches.runs[2], "the last batch is replayed"
