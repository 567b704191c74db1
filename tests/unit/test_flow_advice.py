"""What a flow is warned of: groups of which each channel, or each micro-batch, sees a part."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from spark_upsert.flow import ArrowSource, Collected, Flow, Graph
from spark_upsert.flow.advice import advice
from spark_upsert.flow.local import collect
from spark_upsert.task import Aggregate, Aggregation, ArrowScan

ROWS = pa.table({"k": [1, 1, 2], "t": ["a", "b", "a"]})


def counted(by: list[str], keys: tuple[str, ...], *, width: int = 2) -> Graph:
    flow = Flow()
    rows = flow.source("rows", ArrowSource(ROWS))
    plan = Aggregation(
        id="n",
        input=ArrowScan(id="input", schema=ROWS.schema),
        keys=keys,
        aggregates=(Aggregate("n", "count"),),
    )
    with flow.parallel("R", width, partition_by=by):
        rows = flow.operator("sum", plan, rows)
    flow.sink("kept", Collected(), rows)
    return flow.graph()


@pytest.mark.parametrize(
    ("by", "keys", "width", "is_whole"),
    [
        (["k"], ("k",), 2, True),
        (["k"], ("k", "t"), 2, True),
        ([], ("k",), 1, True),
        ([], ("k",), 2, False),
        (["t"], ("k",), 2, False),
        (["k", "t"], ("k",), 2, False),
        (["k"], (), 2, False),
    ],
)
def test_groups_of_channels_are_told_where_they_may_be_parts(
    by: list[str], keys: tuple[str, ...], width: int, is_whole: bool
) -> None:
    graph = counted(by, keys, width=width)
    told = list(advice(graph))
    assert bool(told) is not is_whole
    assert all("'R.sum' groups by" in each for each in told)
    if is_whole:
        rows = collect(graph)["kept"].to_pylist()
        groups = [tuple(row[key] for key in keys) for row in rows]
        assert len(groups) == len(set(groups)), "what is not told of is whole"


def test_groups_of_a_stream_are_those_of_a_batch() -> None:
    [told] = advice(counted(["k"], ("k",)), is_stream=True)
    assert told.startswith("'R.sum' groups the rows of each micro-batch")


def test_the_log_is_warned_when_a_flow_runs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spark_upsert"):
        collect(counted(["k"], ("k",)))
        assert not caplog.messages
        collect(counted([], ("k",)))
    [message] = caplog.messages
    assert message.startswith("flow: 'R.sum' groups by k in each channel of 'R'")
