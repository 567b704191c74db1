"""Flows on Spark: what only its tasks, its exchange and its micro-batches can break."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_upsertflow import flow as flows
from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    Channel,
    Collected,
    Flow,
    Graph,
    Legacy,
    Manual,
    PythonFunction,
    Scheme,
    expanded,
    fused,
)
from spark_upsert.flow.local import collect
from spark_upsert.flow.work import Work
from spark_upsert.task import Aggregate, Aggregation, ArrowScan, Filter

pytestmark = pytest.mark.spark

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})
TAGGED = ROWS.append(pa.field("channel", pa.int64()))
SUMS = pa.schema({"k": pa.int64(), "channel": pa.int64(), "n": pa.int64(), "v": pa.int64()})


def rows_of(count: int) -> pa.Table:
    return pa.table({"k": [n % 5 for n in range(count)], "v": list(range(count))}, schema=ROWS)


def with_channel(batches: Iterator[pa.RecordBatch], channel: Channel) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column("channel", pa.array([channel.index] * len(batch), pa.int64()))


def pipeline(source: Work, sink: Work, *, clean: int = 3, totals: int = 2) -> Graph:
    """Return two adjacent regions: rows in turn, then by key; each notes its channel."""
    flow = Flow()
    rows = flow.source("orders", source, schema=ROWS)
    with flow.parallel("clean", clean):
        some = Filter(id="some", input=ArrowScan(id="input", schema=ROWS), where="v % 7 <> 0")
        rows = flow.operator("some", some, rows, schema=ROWS)
    with flow.parallel("totals", totals, partition_by=["k"]):
        rows = flow.operator("where", PythonFunction(with_channel, TAGGED, True), rows)
        sums = Aggregation(
            id="sums",
            input=ArrowScan(id="input", schema=TAGGED),
            keys=("k", "channel"),
            aggregates=(Aggregate("n", "count"), Aggregate("v", "sum", "v")),
        )
        rows = flow.operator("sum", sums, rows, schema=SUMS)
    flow.sink("kept", sink, rows)
    return flow.graph()


def rows_in(frame: DataFrame) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in frame.collect())


SCHEMES: dict[str, Scheme] = {
    "apart": Legacy(),
    "automatic": Automatic(slots=2),
    "in three": Manual(3),
}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_each_key_comes_to_the_task_of_its_channel(spark: SparkSession, scheme: Scheme) -> None:
    plan = fused(expanded(pipeline(ArrowSource(rows_of(60)), Collected())), scheme)
    [found] = flows.frames(spark, plan).values()
    expected = collect(plan)["kept"].to_pylist()
    assert rows_in(found) == sorted(tuple(row.values()) for row in expected)
    assert {(row.k, row.channel) for row in found.collect()} == {(k, k % 2) for k in range(5)}
