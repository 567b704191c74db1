"""What a sample tells of operators."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_upsert.errors import GraphError
from spark_upsert.flow import ArrowSource, Flow, Graph, PythonFunction
from spark_upsert.flow.fusion.sampling import sampled
from spark_upsert.flow.work import Given
from tests.support.flows import SINK

ROWS = pa.table({"k": pa.array([1, 1, 1, 2], pa.int64())})

SOURCE = ArrowSource(ROWS)


def halved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, len(batch) // 2)


def flow_over(source: ArrowSource | Given) -> Graph:
    flow = Flow()
    rows = flow.source("Src", source)
    with flow.parallel("R", 2, partition_by=["k"]):
        rows = flow.operator("half", PythonFunction(halved, ROWS.schema), rows)
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def test_a_sample_tells_rows_bytes_time_and_skew() -> None:
    found = sampled(flow_over(ArrowSource(ROWS)), rows={"Src": 1_000})
    assert found["Src"].rows == 1_000
    assert found["Src"].row_bytes == 8
    assert found["R.half"].selectivity == 0.5
    assert found["R.half"].row_s > 0
    # Three of four rows have the key 1.
    assert found["R.half"].skew == 1.5


def test_what_a_function_spends_is_counted_whatever_thread_it_has() -> None:
    spent_s = 0.01

    def busy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun = time.thread_time()
            while time.thread_time() - begun < spent_s:
                pass
            yield batch

    flow = Flow()
    rows = flow.operator("busy", PythonFunction(busy, ROWS.schema), flow.source("Src", SOURCE))
    flow.sink("Snk", SINK, rows)
    found = sampled(flow.graph(), rows={"Src": 4})
    assert found["busy"].row_s * ROWS.num_rows >= spent_s


def test_a_sample_may_be_given() -> None:
    found = sampled(flow_over(Given(ROWS.schema)), {"Src": ROWS.slice(0, 1)}, rows={"Src": 7})
    assert found["R.half"].skew == 2


def test_a_source_without_a_sample_is_refused() -> None:
    with pytest.raises(GraphError, match="no sample of the source 'Src'"):
        sampled(flow_over(Given(ROWS.schema)), rows={"Src": 7})
