"""What elements and hand-offs cost, for the model of `spark_upsert.flow.fusion.cost`.

On Spark: flows of operators that do nothing, which differ in a pass, or in the exchange before it, in
turn, of few rows and many, narrow and wide ones, in large and small batches.
Between threads: batches through a queue that holds few. What counts is processor time, of Java and
all workers together, so that other work on the machine matters little. The four figures of a pass
are those that explain the differences best, by least squares, none below zero.
"""

from __future__ import annotations

import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import cpu_seconds
from benchmarks.session import session
from pyspark_upsertflow.flow import frames
from spark_upsert.flow import Collected, Flow, Fused, Legacy, PythonFunction, expanded, fused
from spark_upsert.flow.fusion.cost import Costs, HandOff
from spark_upsert.flow.work import Given

TASKS = 2
"""Of each stage: the cores of a small machine."""

BATCH_ROWS = 10_000
"""Rows of the batches that Spark makes if no others are asked for."""


def flow_session(folder: Path) -> SparkSession:
    """Return the Spark of these measurements."""
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS)}
    return session(folder, settings, cores=TASKS)


def computed(frame: DataFrame) -> None:
    """Compute all rows of a frame, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


DIGEST_BYTES = 32
"""Texts are made of digests, which no codec makes smaller by much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Rows that are handed on."""

    rows: int
    text_bytes: int
    batch_rows: int = BATCH_ROWS

    @property
    def row_bytes(self) -> int:
        """Of a row in Arrow: a number, a text and its offset."""
        return 8 + 4 + self.text_bytes

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """Tasks, batches, rows and bytes."""
        batches = TASKS * -(-self.rows // TASKS // self.batch_rows)
        return TASKS, batches, self.rows, self.rows * self.row_bytes


SHAPES = (
    Shape(rows=2_000, text_bytes=0),
    Shape(rows=1_000_000, text_bytes=0),
    Shape(rows=400_000, text_bytes=0, batch_rows=500),
    Shape(rows=500_000, text_bytes=6 * DIGEST_BYTES),
)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


ROWS = pa.schema({"id": pa.int64(), "text": pa.string()})


def _plan(*regions: int) -> Fused:
    """Return a plan without fusion: regions of so many operators each, which do nothing."""
    flow = Flow()
    rows = flow.source("in", Given(ROWS))
    for number, count in enumerate(regions):
        with flow.parallel(f"region{number}", TASKS):
            for each in range(count):
                rows = flow.operator(f"same{each}", PythonFunction(_same, ROWS), rows)
    flow.sink("out", Collected(), rows)
    return fused(expanded(flow.graph()), Legacy())


def _frame(spark: SparkSession, shape: Shape, plan: Fused) -> DataFrame:
    return frames(spark, plan, {"in": _rows(spark, shape)})["out"]


def _rows(spark: SparkSession, shape: Shape) -> DataFrame:
    digests = (
        F.md5((F.col("id") + number).cast("string"))
        for number in range(shape.text_bytes // DIGEST_BYTES)
    )
    rows = spark.range(0, shape.rows, 1, TASKS).select("id", F.concat(F.lit(""), *digests))
    return rows.toDF(*ROWS.names)


def differences(spark: SparkSession, shape: Shape, *, rounds: int) -> dict[str, float]:
    """Return the processor time of a pass and of an exchange: medians over rounds in turn."""
    plans = {"base": _plan(1), "passes": _plan(3), "exchanges": _plan(1, 1, 1)}
    ways = {name: _frame(spark, shape, plan) for name, plan in plans.items()}
    taken = _taken(spark, shape, ways, rounds=rounds)
    each = list(zip(*taken.values(), strict=True))
    return {
        "pass_s": statistics.median((passes - base) / 2 for base, passes, _ in each),
        "exchange_s": statistics.median((exchanges - passes) / 2 for _, passes, exchanges in each),
    }


def _taken(
    spark: SparkSession, shape: Shape, ways: dict[str, DataFrame], *, rounds: int
) -> dict[str, list[float]]:
    """Run frames in turn; return the processor time of each, round by round."""
    conf = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(conf, str(shape.batch_rows))
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 else reversed(ways):
            before = cpu_seconds(os.getpid())
            computed(ways[name])
            # The first round warms Java up.
            if number:
                taken[name].append(cpu_seconds(os.getpid()) - before)
    spark.conf.set(conf, str(BATCH_ROWS))
    return taken


PLAIN_SHAPE = Shape(rows=1_000_000, text_bytes=0, batch_rows=1 << 16)
"""Many narrow rows in large batches: what a pass of a flow costs beside a bare one is dearest."""


def against_bare(spark: SparkSession, *, rounds: int) -> dict[str, float]:
    """Return the processor time of a pass: ``flow``, of a flow, ``bare``, a `mapInArrow` by itself."""
    shape, rows = PLAIN_SHAPE, _rows(spark, PLAIN_SHAPE)
    bare = [rows.mapInArrow(_same, rows.schema)]
    for _ in range(2):
        bare.append(bare[-1].mapInArrow(_same, rows.schema))
    ways = {
        "flow of one": _frame(spark, shape, _plan(1)),
        "flow of three": _frame(spark, shape, _plan(3)),
        "bare of one": bare[0],
        "bare of three": bare[2],
    }
    taken = _taken(spark, shape, ways, rounds=rounds)
    return {
        how: statistics.median(
            (three - one) / 2
            for one, three in zip(taken[f"{how} of one"], taken[f"{how} of three"], strict=True)
        )
        for how in ("flow", "bare")
    }


def spark_costs(spark: SparkSession, *, rounds: int) -> tuple[Costs, list[dict[str, Any]]]:
    """Return the costs on Spark, and beside each measurement what they predict of it."""
    found = [differences(spark, shape, rounds=rounds) for shape in SHAPES]
    terms = [shape.terms for shape in SHAPES]
    passes = _explained(terms, [each["pass_s"] for each in found])
    exchanges = _explained(terms, [each["exchange_s"] for each in found])
    costs = Costs(
        element_s=passes[0],
        stage_s=exchanges[0] * TASKS,
        straight=HandOff(batch_s=passes[1], row_s=passes[2], byte_s=passes[3]),
        exchange=HandOff(batch_s=exchanges[1], row_s=exchanges[2], byte_s=exchanges[3]),
        batch_rows=BATCH_ROWS,
        is_staged=True,
    )
    beside = [
        {
            **asdict(shape),
            **measured,
            "pass_predicted_s": float(np.dot(shape.terms, passes)),
            "exchange_predicted_s": float(np.dot(shape.terms, exchanges)),
        }
        for shape, measured in zip(SHAPES, found, strict=True)
    ]
    return costs, beside


def _explained(terms: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Return a cost for each term, none below zero, by the least relative squares.

    What is below zero alone is left out, and the rest solved again: there are but four.
    """
    weights = 1 / np.maximum(seconds, 1e-3)
    matrix = np.array(terms) * weights[:, None]
    used = list(range(matrix.shape[1]))
    while True:
        scale = np.abs(matrix[:, used]).max(axis=0)
        solved = np.linalg.lstsq(matrix[:, used] / scale, seconds * weights, rcond=None)[0] / scale
        if (solved >= 0).all() or len(used) == 1:
            break
        used.pop(int(np.argmin(solved * scale)))
    found = dict(zip(used, np.maximum(solved, 0).tolist(), strict=True))
    return [found.get(index, 0.0) for index in range(matrix.shape[1])]


# -- between threads -------------------------------------------------------------------------

QUEUED = 4
"""Batches that wait between two threads."""


def local_costs(*, batches: int = 5_000, rounds: int) -> Costs:
    """Return the costs of threads with queues between them."""
    rows = pa.record_batch({"id": np.arange(BATCH_ROWS)})
    handed = statistics.median(_handed_s(rows, batches) for _ in range(rounds)) / batches
    begun = statistics.median(_processor_s(_begin_threads) for _ in range(rounds)) / 100
    sliced = statistics.median(_processor_s(lambda: _share_out(rows)) for _ in range(rounds)) / 100
    return Costs(
        element_s=begun,
        stage_s=0.0,
        straight=HandOff(batch_s=handed, row_s=0.0, byte_s=0.0),
        exchange=HandOff(batch_s=handed, row_s=sliced / BATCH_ROWS, byte_s=0.0),
        batch_rows=BATCH_ROWS,
        is_staged=False,
    )


def _handed_s(rows: pa.RecordBatch, batches: int) -> float:
    waiting: queue.Queue[pa.RecordBatch | None] = queue.Queue(QUEUED)

    def give() -> None:
        for _ in range(batches):
            waiting.put(rows)
        waiting.put(None)

    def hand_over() -> None:
        giver = threading.Thread(target=give)
        giver.start()
        while waiting.get() is not None:
            pass
        giver.join()

    return _processor_s(hand_over)


def _begin_threads() -> None:
    for _ in range(100):
        thread = threading.Thread(target=len, args=("",))
        thread.start()
        thread.join()


def _share_out(rows: pa.RecordBatch) -> None:
    for _ in range(100):
        channels = rows["id"].to_numpy().astype(np.uint64) % np.uint64(TASKS)
        for channel in range(TASKS):
            rows.take(pa.array(np.flatnonzero(channels == channel)))


def _processor_s(way: Callable[[], None]) -> float:
    before = time.process_time()
    way()
    return time.process_time() - before
