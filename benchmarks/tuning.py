"""What a setting is worth: one is turned at a time, the others stay as they are.

python -m benchmarks.tuning --rows 1000000

Writes of a batch by more and more tasks, in larger and larger batches, with more and more rows in what Spark
hands to Python at once; and reads of the table by more and more splits, and of one column in place of all.
All of one kind in turn, behind rounds that do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import cpu_seconds, spread
from benchmarks.session import session

TASKS = (1, 2, 8, 32, 200)
SHARES = (1_000, 100, 10, 1)
"""Batches of so small a share of all rows."""
ARROW_ROWS = (1_000, 10_000, 65_536)
SPLITS = (1, 2, 8, 32)
WARM_UP = 2
ARROW = "spark.sql.execution.arrow.maxRecordsPerBatch"
KEYS = 4_000_037
"""A prime, so that rows with numbers below it have keys of their own."""

COLUMNS = 8
"""Numbers in a row beside its key."""

Turn = Callable[[], object]


def measure(folder: Path, *, rows: int, rounds: int) -> dict[str, Any]:
    """Turn one setting after the other.

    Returns
    -------
    dict
        ``rows``, and by setting, then by its value: spreads of ``seconds`` and ``cpu_s``.
    """
    spark = session(folder, {"spark.driver.memory": "4g"})
    path = str(folder / "table")
    batch = rows // 10
    _write(_rows(spark, rows, spark.sparkContext.defaultParallelism), path)
    writes = {
        "tasks of a batch": {
            str(count): _writes(_rows(spark, batch, count), path) for count in TASKS
        },
        "rows of a batch": {
            str(rows // share): _writes(_rows(spark, rows // share, 2), path) for share in SHARES
        },
    }
    found: dict[str, Any] = {"rows": rows, "batch_rows": batch}
    for name, turns in writes.items():
        found[name] = _in_turn(turns, rounds)
    found["rows of an Arrow batch"] = _in_turn(
        {str(count): _with_arrow(spark, count, rows, path) for count in ARROW_ROWS}, rounds
    )
    found["splits of a read"] = _in_turn(
        {str(count): _reads(spark, path, {"splits": str(count)}) for count in SPLITS}, rounds
    )
    found["columns of a read"] = _in_turn(
        {"all": _reads(spark, path, {}), "one": _reads(spark, path, {"columns": "n1"})}, rounds
    )
    spark.stop()
    return found


def _in_turn(turns: Mapping[str, Turn], rounds: int) -> dict[str, Any]:
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for number in range(WARM_UP + rounds):
        for name, turn in turns.items():
            before, busy = time.perf_counter(), cpu_seconds(os.getpid())
            turn()
            spent = time.perf_counter() - before, cpu_seconds(os.getpid()) - busy
            if number >= WARM_UP:
                took[name].append(spent)
    return {
        name: {
            "seconds": spread([seconds for seconds, _ in each]),
            "cpu_s": spread([cpu_s for _, cpu_s in each]),
        }
        for name, each in took.items()
    }


def _rows(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    """Return rows with keys that lie scattered, in so many partitions."""
    numbers = [f"id * {place} AS n{place}" for place in range(1, COLUMNS + 1)]
    scattered = f"(id * 2654435761) % {KEYS} AS k"
    return spark.range(0, count, 1, tasks).selectExpr(scattered, *numbers)


def _write(rows: DataFrame, path: str) -> None:
    ordered = rows.selectExpr("*", f"{time.time_ns()} + n1 AS seq")
    told = {"keys": "k", "sequenceBy": "seq"}
    ordered.write.format("upsertflow").options(**told).mode("append").save(path)


def _writes(rows: DataFrame, path: str) -> Turn:
    return lambda: _write(rows, path)


def _with_arrow(spark: SparkSession, count: int, rows: int, path: str) -> Turn:
    def turn() -> None:
        before = spark.conf.get(ARROW)
        spark.conf.set(ARROW, count)
        try:
            _write(_rows(spark, rows, 2), path)
        finally:
            spark.conf.set(ARROW, str(before))

    return turn


def _reads(spark: SparkSession, path: str, options: Mapping[str, str]) -> Turn:
    def turn() -> None:
        reader = spark.read.format("upsertflow").options(**options)
        reader.load(path).write.format("noop").mode("overwrite").save()

    return turn


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), rows=options.rows, rounds=options.rounds)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
