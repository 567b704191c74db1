"""Graphs as text, as they are printed."""

from __future__ import annotations

import functools

import pyarrow as pa
import pytest

from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Physical,
    PythonFunction,
    TableSource,
    Work,
    expanded,
)
from spark_upsert.flow.text import render_graph
from spark_upsert.task import ArrowScan, Filter

ROWS = pa.table({"id": [1], 'a "b"\n<c> #': [2]})


def clean(batches: object) -> object:
    return batches


CLEAN = PythonFunction(clean, ROWS.schema)  # type: ignore[arg-type]


def adjacent(first: int = 3, second: int = 2) -> Physical:
    """Two regions, one behind the other, and a stream that passes both by."""
    flow = Flow()
    orders = flow.source("orders", ArrowSource(ROWS))
    with flow.parallel("clean", first):
        rows = flow.operator("rows", CLEAN, orders)
    with flow.parallel("sums", second, partition_by=["id"]):
        rows = flow.operator("sum", CLEAN, rows)
    flow.sink("kept", CollectSink(), ports={"sums": rows, "all": orders})
    return expanded(flow.graph())


def chained() -> Physical:
    """A stream that enters two regions at once, by a column of an awkward name."""
    flow = Flow()
    rows = flow.source("in", ArrowSource(ROWS))
    with (
        flow.parallel("outer", 1, partition_by=ROWS.schema.names[1:]),
        flow.parallel("inner", 2, broadcast=["out.input"]),
    ):
        flow.sink("out", CollectSink(), rows)
    return expanded(flow.graph())


PES = [["orders", "clean.rows[0]"], ["clean.rows[1]", "clean.rows[2]", "sums.sum[0]"]]
PES += [["sums.sum[1]", "kept"]]

ADJACENT = """\
4 operators, 7 replicas, 4 splitters, 12 connections

orders            source, ArrowSource
  -> clean.rows   in turn to 3 channels
  -> kept.all     1 connection
clean.rows[0..2]  clean
  -> sums.sum     by hash of id to 2 channels, 3 splitters, 6 connections
sums.sum[0..1]    clean
  -> kept.sums    2 connections
kept              sink, CollectSink"""

ADJACENT_IN_PES = """\
4 operators, 7 replicas, 4 splitters, 12 connections, 3 PEs

PE 0  orders clean.rows[0]
PE 1  clean.rows[1..2] sums.sum[0]
PE 2  sums.sum[1] kept

orders            source, ArrowSource
  -> clean.rows   in turn to 3 channels, 2 between PEs
  -> kept.all     1 connection, all between PEs
clean.rows[0..2]  clean
  -> sums.sum     by hash of id to 2 channels, 3 splitters, 6 connections, 4 between PEs
sums.sum[0..1]    clean
  -> kept.sums    2 connections, 1 between PEs
kept              sink, CollectSink"""

CHAINED = r"""
2 operators, 3 replicas, 1 splitter, 2 connections

in                     source, ArrowSource
  -> outer.inner.out   by hash of a "b"\n<c> # to 1 channel, then each row to 2 channels of each
outer.inner.out[0..1]  sink, CollectSink"""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(render_graph(adjacent()), ADJACENT, id="adjacent regions"),
        pytest.param(render_graph(adjacent(), PES), ADJACENT_IN_PES, id="adjacent regions in PEs"),
        pytest.param(render_graph(chained()), CHAINED, id="chained splitters"),
    ],
)
def test_a_graph_is_printed(found: str, expected: str) -> None:
    assert found == expected.removeprefix("\n")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        pytest.param(CLEAN, "clean", id="a function by its name"),
        pytest.param(
            PythonFunction(functools.partial(clean), ROWS.schema),  # type: ignore[arg-type]
            "partial",
            id="a function without a name",
        ),
        pytest.param(
            Filter(id="f", input=ArrowScan(id="input", schema=ROWS.schema), where="id > 1"),
            "filter",
            id="a plan by its node",
        ),
        pytest.param(
            TableSource("s3://bucket/orders"),
            "TableSource s3://bucket/orders",
            id="a table by its path",
        ),
    ],
)
def test_work_is_said_in_a_word(work: Work, said: str) -> None:
    flow = Flow()
    rows = flow.source("in", ArrowSource(ROWS))
    if isinstance(work, TableSource):
        flow.sink("out", CollectSink(), rows, flow.source("it", work))
    else:
        flow.sink("out", CollectSink(), flow.operator("it", work, rows))
    [line] = [
        each for each in render_graph(expanded(flow.graph())).splitlines() if each.startswith("it")
    ]
    assert line.split(maxsplit=1)[1].removeprefix("source, ") == said
