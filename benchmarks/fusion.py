"""What fusion is worth on Spark: a chain, widths, and the best and the worst plan of small graphs.

python -m benchmarks.fusion --rows 2000000
python -m benchmarks.fusion --fit

Plans of one graph run in turn, over the same rows. What they are predicted to cost stands beside what
they cost: the estimates of the operators are those of a sample (`spark_upsert.flow.sampled`), and the
costs of hand-offs those of ``costs.json``, which ``--fit`` measures and writes anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import figures
from benchmarks.fusion_costs import (
    SHAPES,
    TASKS,
    against_bare,
    computed,
    differences,
    flow_session,
    local_costs,
    spark_costs,
)
from benchmarks.host import ROOT
from benchmarks.measure import cpu_seconds, spread
from pyspark_upsertflow.flow import frames
from spark_upsert.flow import (
    Automatic,
    Collected,
    Costs,
    Estimate,
    Flow,
    Fused,
    Graph,
    Legacy,
    Manual,
    Output,
    PythonFunction,
    Work,
    expanded,
    fused,
    predicted,
    sampled,
)
from spark_upsert.flow.fusion.fusion import iter_drawn, iter_plans
from spark_upsert.flow.work import Given
from spark_upsert.task import ArrowScan, Filter, Named, Project

COSTS = ROOT / "spark_upsert" / "flow" / "costs.json"
ROWS = pa.schema({"id": pa.int64(), "v": pa.int64()})
SAMPLE_ROWS = 50_000
SLOTS = TASKS
REPLICAS_MAX = 8

SCAN = ArrowScan(id="input", schema=ROWS)
FEWER = Filter(id="fewer", input=SCAN, where="v % 10 <> 0")
DOUBLED = Project(id="doubled", input=SCAN, columns=(Named("id", "id"), Named("v", "v * 2")))
LARGE = Filter(id="large", input=SCAN, where="v > 100")


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _tenth(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch["v"], 7), 0))


def _heavy(batches: Iterator[pa.RecordBatch], times: int = 60) -> Iterator[pa.RecordBatch]:
    """Take some tenths of a microsecond for each row."""
    for batch in batches:
        values = batch["v"].to_numpy().astype(np.float64)
        for _ in range(times):
            values = np.sqrt(values * values + 1.0)
        yield pa.record_batch([batch["id"], pa.array(values.astype(np.int64))], schema=ROWS)


WORKS: Mapping[str, Work] = {
    "same": PythonFunction(_same, ROWS),
    "tenth": PythonFunction(_tenth, ROWS),
    "heavy": PythonFunction(_heavy, ROWS),
    "heaviest": PythonFunction(partial(_heavy, times=600), ROWS),
}

DRAWN_WORKS = ("same", "tenth", "heavy")


class Bench:
    """A Spark, and the rows of all its sources."""

    def __init__(self, spark: SparkSession, *, rows: int, rounds: int) -> None:
        self._spark = spark
        self._rows = rows
        self._rounds = rounds

    def compare(self, plans: Mapping[str, Fused]) -> dict[str, dict[str, Any]]:
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
                computed(ways[name])
                # The first round warms Java up.
                if number:
                    taken[name]["elapsed_s"].append(time.perf_counter() - begun)
                    taken[name]["cpu_s"].append(cpu_seconds(os.getpid()) - before)
        return {
            name: {what: spread(values) for what, values in each.items()}
            for name, each in taken.items()
        }

    def estimates(self, graph: Graph) -> dict[str, Estimate]:
        """Return what a sample of the rows tells."""
        ids = np.arange(SAMPLE_ROWS)
        sample = pa.table({"id": ids, "v": ids % 1_000}, schema=ROWS)
        return sampled(graph, {"in": sample}, rows={"in": self._rows})

    def rows(self) -> DataFrame:
        """Return the rows of all sources."""
        return self._spark.range(0, self._rows, 1, TASKS).selectExpr("id", "id % 1000 AS v")

    def frame(self, plan: Fused) -> DataFrame:
        """Return what a plan makes of the rows."""
        return frames(self._spark, plan, {"in": self.rows()})["out"]


def chain(*, width: int | None) -> Graph:
    """Return three operators behind each other: outside of regions, or in one."""
    flow = Flow()
    rows = flow.source("in", Given(ROWS))

    def all_three(rows: Output) -> Output:
        for name, work in (("fewer", FEWER), ("doubled", DOUBLED), ("large", LARGE)):
            rows = flow.operator(name, work, rows, schema=ROWS)
        return rows

    if width is None:
        rows = all_three(rows)
    else:
        with flow.parallel("region", width):
            rows = all_three(rows)
    flow.sink("out", Collected(), rows)
    return flow.graph()


def wide(width: int) -> Graph:
    """Return one operator that has much to do, so many times."""
    flow = Flow()
    rows = flow.source("in", Given(ROWS))
    with flow.parallel("region", width):
        rows = flow.operator("heavy", WORKS["heavy"], rows)
    flow.sink("out", Collected(), rows)
    return flow.graph()


def drawn(random: Random) -> Graph:
    """Return a graph of at most eight replicas: operators and regions behind each other."""
    while True:
        flow = Flow()
        rows = flow.source("in", Given(ROWS))
        for name in "ABC":
            work = WORKS[random.choice(DRAWN_WORKS)]
            width = random.choice((None, 2, 2))
            if width is None:
                rows = flow.operator(name, work, rows)
            else:
                with flow.parallel(name, width):
                    rows = flow.operator("one", work, rows)
                    if random.random() < 0.5:
                        rows = flow.operator("two", WORKS["same"], rows)
        flow.sink("out", Collected(), rows)
        graph = flow.graph()
        if 6 <= len(expanded(graph).replicas) <= REPLICAS_MAX:
            return graph


def eight() -> Graph:
    """Return eight operators: two regions of two each, what looks at one row, and what must not."""
    flow = Flow()
    rows = flow.source("in", Given(ROWS))
    with flow.parallel("first", 2):
        rows = flow.operator("heavy", WORKS["heaviest"], rows)
        rows = flow.operator("tenth", WORKS["tenth"], rows)
    rows = flow.operator("fewer", FEWER, rows, schema=ROWS)
    with flow.parallel("second", 2, partition_by=["id"]):
        rows = flow.operator("same", WORKS["same"], rows)
        rows = flow.operator("again", WORKS["heavy"], rows)
    rows = flow.operator("last", WORKS["same"], rows)
    flow.sink("out", Collected(), rows)
    return flow.graph()


# -- what is measured ------------------------------------------------------------------------


def chains(bench: Bench) -> dict[str, Any]:
    """Compare one PE for three operators with three, outside of regions and in one."""
    found: dict[str, Any] = {}
    for name, width in (("in place", None), (f"in a region of width {TASKS}", TASKS)):
        graph = chain(width=width)
        physical = expanded(graph)
        every = len(physical.replicas)
        plans = {"fused": _fused_by_channel(graph), "unfused": fused(physical, Manual(every))}
        found[name] = {**bench.compare(plans), **_predicted(plans, bench.estimates(graph))}
    return found


def by_hand(bench: Bench) -> dict[str, Any]:
    """Compare the fused chain in place with one `mapInArrow` that does the same."""
    plan = _fused_by_channel(chain(width=None))
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


def _fused_by_channel(graph: Graph) -> Fused:
    """Return the plan in which each channel is one PE."""
    plans = (plan for plan in iter_plans(expanded(graph)) if _is_by_channel(plan))
    return min(plans, key=lambda plan: len(plan.pes))


def _is_by_channel(plan: Fused) -> bool:
    return all(
        len({(replica.regions, replica.channel) for replica in pe.replicas}) == 1
        and (len(pe.replicas) == 1 or not {"in", "out"} & set(pe.names))
        for pe in plan.pes
    )


def widths(bench: Bench) -> dict[str, Any]:
    """Compare widths of one region."""
    plans = {str(width): fused(expanded(wide(width)), Legacy()) for width in (1, 2, 4)}
    return {**bench.compare(plans), **_predicted(plans, bench.estimates(wide(1)))}


def best_and_worst(bench: Bench, *, graphs: int) -> list[dict[str, Any]]:
    """Compare the automatic plan with the worst, one PE for each and one for all."""
    random = Random(4)
    return [_all_plans(bench, drawn(random)) for _ in range(graphs)]


def _all_plans(bench: Bench, graph: Graph) -> dict[str, Any]:
    physical, estimates = expanded(graph), bench.estimates(graph)
    every = list(iter_plans(physical))
    costs = [_cost(plan, estimates) for plan in every]
    plans = {
        "automatic": fused(physical, Automatic(SLOTS, estimates=estimates)),
        "worst": every[int(np.argmax(costs))],
        "one for each": fused(physical, Legacy()),
        "one for all": every[0],
    }
    return {
        "graph": " ".join(f"{name}x{len(them)}" for name, them in physical.replicas_of.items()),
        "plans": len(every),
        "least_cost": min(costs),
        "greatest_cost": max(costs),
        "pes": {name: str(plan) for name, plan in plans.items()},
        **bench.compare(plans),
        **_predicted(plans, estimates),
    }


DRAWN = 3_000
"""Plans of a graph that has more than anybody looks at."""


def of_eight(bench: Bench, *, drawn: int = DRAWN) -> dict[str, Any]:
    """Compare the automatic plan of eight operators with the best and the worst of many drawn ones.

    By what they are predicted to cost; measured are these, and those between.
    """
    graph = eight()
    physical, estimates = expanded(graph), bench.estimates(graph)
    every = {str(plan): plan for plan in islice(iter_drawn(physical, Random(8)), drawn)}
    ranked = sorted(every.values(), key=lambda plan: _cost(plan, estimates))
    plans = {
        "automatic": fused(physical, Automatic(SLOTS, estimates=estimates)),
        "best of the drawn": ranked[0],
        "a quarter": ranked[len(ranked) // 4],
        "half": ranked[len(ranked) // 2],
        "worst of the drawn": ranked[-1],
        "one for each": fused(physical, Legacy()),
        "one for all": fused(physical, Manual(1)),
    }
    return {
        "graph": " ".join(f"{name}x{len(them)}" for name, them in physical.replicas_of.items()),
        "drawn": len(every),
        "least_cost": _cost(ranked[0], estimates),
        "greatest_cost": _cost(ranked[-1], estimates),
        "better_than_automatic": sum(
            _cost(plan, estimates) < _cost(plans["automatic"], estimates) for plan in ranked
        ),
        "pes": {name: str(plan) for name, plan in plans.items()},
        **bench.compare(plans),
        **_predicted(plans, estimates),
    }


def _cost(plan: Fused, estimates: Mapping[str, Estimate]) -> float:
    return predicted(plan, slots=SLOTS, estimates=estimates).cost


def _predicted(
    plans: Mapping[str, Fused], estimates: Mapping[str, Estimate]
) -> dict[str, dict[str, Any]]:
    found = {
        name: predicted(plan, slots=SLOTS, estimates=estimates) for name, plan in plans.items()
    }
    return {
        "predicted": {
            name: {"elapsed_s": each.elapsed_s, "processor_s": each.processor_s, "cost": each.cost}
            for name, each in found.items()
        }
    }


def hand_offs(spark: SparkSession, *, rounds: int) -> list[dict[str, Any]]:
    """Compare what passes and exchanges cost with what the costs of the package say."""
    costs = Costs.of("spark")
    found = []
    for shape in SHAPES:
        handed = (
            each.cost(shape.rows, shape.row_bytes, batch_rows=shape.batch_rows)
            for each in (costs.straight, costs.exchange)
        )
        straight, exchange = handed
        found.append(
            {
                **asdict(shape),
                **differences(spark, shape, rounds=rounds),
                "pass_predicted_s": TASKS * costs.element_s + straight,
                "exchange_predicted_s": costs.stage_s + exchange,
            }
        )
    return found


# -- the command -----------------------------------------------------------------------------


def fit(spark: SparkSession, *, rounds: int) -> None:
    """Measure the costs, write them, and show beside each measurement what they say of it."""
    costs, beside = spark_costs(spark, rounds=rounds)
    found = {"local": asdict(local_costs(rounds=rounds)), "spark": asdict(costs)}
    COSTS.write_text(json.dumps(figures(found), indent=1) + "\n")
    print(json.dumps(figures(beside), indent=1))


def main(given: list[str]) -> int:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--graphs", type=int, default=3)
    parser.add_argument("--fit", action="store_true", help="write costs.json anew")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="upsertflow-fusion-") as folder:
        spark = flow_session(Path(folder))
        try:
            if options.fit:
                fit(spark, rounds=options.rounds)
                return 0
            bench = Bench(spark, rows=options.rows, rounds=options.rounds)
            found = {
                "rows": options.rows,
                "chain": chains(bench),
                "bare": by_hand(bench),
                "width": widths(bench),
                "graphs": best_and_worst(bench, graphs=options.graphs),
                "eight": of_eight(bench),
                "hand_offs": hand_offs(spark, rounds=options.rounds),
                "pass_s": against_bare(spark, rounds=options.rounds),
            }
            print(json.dumps(found))
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
