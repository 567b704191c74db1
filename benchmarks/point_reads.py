"""What rows by key take: of a table, of Parquet by Arrow, and of both through Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.measure import spread
from benchmarks.session import session
from pyspark_upsertflow import register
from spark_upsert.table.table import Table

RUNS = 30
"""Epochs of the table, none of which is compacted; and files of Parquet."""

WANTED = 1_000
"""Keys of a read of many."""

SCHEMA = pa.schema({"id": pa.int64(), "a": pa.float64(), "b": pa.string(), "c": pa.int32()})


def measure(folder: Path, rows: int, *, rounds: int) -> dict[str, Any]:
    """Time reads of one key and of many, each from files that are in the cache of the system.

    Returns
    -------
    dict
        ``rows``, ``runs`` and ``wanted``; below ``one`` the seconds of reads of one key:
        ``p50_s``, ``p99_s``; below ``many`` the spread of seconds for each way.
    """
    table = _made(folder, rows)
    dice = np.random.default_rng(1)
    single = [_seconds(partial(table.get, int(key))) for key in dice.integers(0, rows, 1_000)]
    asked = sorted({int(key) for key in dice.integers(0, rows, WANTED)})
    files = ds.dataset(folder / "parquet")
    wanted = pc.is_in(ds.field("id"), pa.array(asked))
    ways: dict[str, Callable[[], int]] = {
        "`Table.get`": lambda: table.get(asked).num_rows,
        "Parquet by Arrow, filtered": lambda: files.to_table(filter=wanted).num_rows,
    }
    spark = session(folder, {"spark.sql.python.filterPushdown.enabled": "true"})
    register(spark)
    try:
        ways |= _through(spark, folder, asked)
        found = {name: way() for name, way in ways.items()}  # The first of each starts workers.
        assert set(found.values()) == {len(asked)}, found
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3 * rounds):
            for name, way in ways.items():
                took[name].append(_seconds(way))
    finally:
        spark.stop()
    return {
        "rows": rows,
        "runs": RUNS,
        "wanted": len(asked),
        "one": {
            "p50_s": float(np.quantile(single, 0.5)),
            "p99_s": float(np.quantile(single, 0.99)),
        },
        "many": {name: spread(seconds) for name, seconds in took.items()},
    }


def _made(folder: Path, rows: int) -> Table:
    """Make a table of unsorted keys, and the same rows as Parquet."""
    table = Table.create(str(folder / "table"), SCHEMA, keys=["id"])
    (folder / "parquet").mkdir(parents=True)
    keys = np.random.default_rng(0).permutation(rows)
    for number, some in enumerate(np.array_split(keys, RUNS)):
        texts = pc.cast(pa.array(some % 1_000), pa.string())
        columns = [some, some * 0.5, texts, (some % 77).astype(np.int32)]
        batch = pa.table(columns, schema=SCHEMA)
        table.upsert(batch)
        pq.write_table(batch, folder / "parquet" / f"{number:02}.parquet")
    return table


def _through(spark: SparkSession, folder: Path, asked: list[int]) -> dict[str, Callable[[], int]]:
    keys = ", ".join(map(str, asked))
    ours = spark.read.format("upsertflow")

    def pushed() -> int:
        return len(ours.load(str(folder / "table")).where(f"id IN ({keys})").collect())

    def parquet() -> int:
        files = spark.read.parquet(str(folder / "parquet"))
        return len(files.where(f"id IN ({keys})").collect())

    return {"Spark, of the table": pushed, "Spark, of Parquet": parquet}


def _seconds(action: Callable[[], object]) -> float:
    before = time.perf_counter()
    action()
    return time.perf_counter() - before
