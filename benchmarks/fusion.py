"""The effect of fusion on Spark: a chain of three operators, and one operator at several widths.

python -m benchmarks.fusion --rows 2000000

Plans of one graph run in turn, over the same rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import cpu_seconds, spread
from benchmarks.session import session
from pyspark_upsertflow.flow import frames
from spark_upsert.flow import (
    Automatic,
    CollectSink,
    Flow,
    FusedGraph,
    Graph,
    Legacy,
    Output,
    PythonFunction,
    Scheme,
    expanded,
    fused,
)
from spark_upsert.flow.graph import InputRows
from spark_upsert.task import ArrowScan, Filter, Project, ProjectedColumn

TASKS = 2
"""Of each stage: the cores of a small machine."""

BATCH_ROWS = 10_000
"""Rows of the batches that Spark makes if no others are asked for."""

ROWS = pa.schema({"id": pa.int64(), "v": pa.int64()})

SCAN = ArrowScan(id="input", schema=ROWS)
FEWER = Filter(id="fewer", input=SCAN, where="v % 10 <> 0")
DOUBLED = Project(
    id="doubled", input=SCAN, columns=(ProjectedColumn("id", "id"), ProjectedColumn("v", "v * 2"))
)
LARGE = Filter(id="large", input=SCAN, where="v > 100")


def _heavy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take some tenths of a microsecond for each row."""
    for batch in batches:
        values = batch["v"].to_numpy().astype(np.float64)
        for _ in range(60):
            values = np.sqrt(values * values + 1.0)
        yield pa.record_batch([batch["id"], pa.array(values.astype(np.int64))], schema=ROWS)


class Bench:
    """A Spark, and the rows of all its sources."""

    def __init__(self, spark: SparkSession, *, rows: int, rounds: int) -> None:
        self._spark = spark
        self._rows = rows
        self._rounds = rounds

    def compare(self, plans: Mapping[str, FusedGraph]) -> dict[str, dict[str, Any]]:
        """Run plans in turn; return of each the spreads of the time and of the processors'."""
        return self.taken({name: self.frame(plan) for name, plan in plans.items()})

    def taken(self, ways: Mapping[str, DataFrame]) -> dict[str, dict[str, Any]]:
        """Compute frames in turn; as `compare`."""
        taken: dict[str, dict[str, list[float]]] = {
            name: {"elapsed_s": [], "cpu_s": []} for name in ways
        }
        for number in range(self._rounds + 1):
            for name in ways if number % 2 else reversed(list(ways)):
                begun, before = time.perf_counter(), cpu_seconds(os.getpid())
                ways[name].write.format("noop").mode("overwrite").save()
                # The first round warms Java up.
                if number:
                    taken[name]["elapsed_s"].append(time.perf_counter() - begun)
                    taken[name]["cpu_s"].append(cpu_seconds(os.getpid()) - before)
        return {
            name: {what: spread(values) for what, values in each.items()}
            for name, each in taken.items()
        }

    def rows(self) -> DataFrame:
        """Return the rows of all sources."""
        return self._spark.range(0, self._rows, 1, TASKS).selectExpr("id", "id % 1000 AS v")

    def frame(self, plan: FusedGraph) -> DataFrame:
        """Return what a plan makes of the rows."""
        return frames(self._spark, plan, {"in": self.rows()})["out"]


def chain(*, width: int | None) -> Graph:
    """Return three operators behind each other: outside of regions, or in one."""
    flow = Flow()
    rows = flow.source("in", InputRows(ROWS))

    def all_three(rows: Output) -> Output:
        for name, work in (("fewer", FEWER), ("doubled", DOUBLED), ("large", LARGE)):
            rows = flow.operator(name, work, rows, schema=ROWS)
        return rows

    if width is None:
        rows = all_three(rows)
    else:
        with flow.parallel("region", width):
            rows = all_three(rows)
    flow.sink("out", CollectSink(), rows)
    return flow.graph()


def wide(width: int) -> Graph:
    """Return one operator that has much to do, so many times."""
    flow = Flow()
    rows = flow.source("in", InputRows(ROWS))
    with flow.parallel("region", width):
        rows = flow.operator("heavy", PythonFunction(_heavy, ROWS), rows)
    flow.sink("out", CollectSink(), rows)
    return flow.graph()


# -- what is measured ------------------------------------------------------------------------


def chains(bench: Bench) -> dict[str, Any]:
    """Compare one PE for three operators with three, outside of regions and in one."""
    found: dict[str, Any] = {}
    for name, width in (("in place", None), (f"in a region of width {TASKS}", TASKS)):
        physical = expanded(chain(width=width))
        schemes: dict[str, Scheme] = {"fused": Automatic(TASKS), "unfused": Legacy()}
        found[name] = bench.compare(
            {plan: fused(physical, scheme) for plan, scheme in schemes.items()}
        )
    return found


def by_hand(bench: Bench) -> dict[str, Any]:
    """Compare the fused chain in place with one `mapInArrow` that does the same."""
    plan = fused(expanded(chain(width=None)), Automatic(TASKS))
    rows = bench.rows()
    ways = {
        "fused": bench.frame(plan),
        "by hand": rows.mapInArrow(_all_three, "id bigint, v bigint"),
    }
    sums = [way.selectExpr("count(*)", "sum(hash(id, v))").collect() for way in ways.values()]
    assert sums[0] == sums[1], "both ways are to do the same"
    return bench.taken(ways)


def _all_three(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do what the operators of `chain` do, as a person would write it."""
    for batch in batches:
        v = batch["v"]
        tenths = pc.divide(v, 10)
        kept = batch.filter(pc.not_equal(v, pc.multiply(tenths, 10)))
        doubled = pa.record_batch([kept["id"], pc.multiply_checked(kept["v"], 2)], schema=ROWS)
        yield doubled.filter(pc.greater(doubled["v"], 100))


def widths(bench: Bench) -> dict[str, Any]:
    """Compare widths of one region."""
    return bench.compare(
        {str(width): fused(expanded(wide(width)), Legacy()) for width in (1, 2, 4)}
    )


def main(given: list[str]) -> int:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="upsertflow-fusion-") as folder:
        settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS)}
        spark = session(Path(folder), settings, cores=TASKS)
        try:
            bench = Bench(spark, rows=options.rows, rounds=options.rounds)
            found = {
                "rows": options.rows,
                "chain": chains(bench),
                "bare": by_hand(bench),
                "width": widths(bench),
            }
            print(json.dumps(found))
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
