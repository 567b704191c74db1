"""What a flow is warned of: groups and matches of which a channel, or a batch, sees a part."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from spark_upsert.flow import ArrowSource, Collected, Flow, Graph, PythonFunction
from spark_upsert.flow.advice import advice
from spark_upsert.flow.run.local import collect
from spark_upsert.task import Aggregate, ArrowScan, Group, HashJoin, How, On

ROWS = pa.table({"k": [1, 1, 2], "t": ["a", "b", "a"]})


def counted(by: list[str], keys: tuple[str, ...], *, width: int = 2) -> Graph:
    flow = Flow()
    rows = flow.source("rows", ArrowSource(ROWS))
    plan = Group(
        id="n",
        input=ArrowScan(id="input", schema=ROWS.schema),
        keys=keys,
        aggregates=(Aggregate.of("n", "count"),),
    )
    with flow.parallel("R", width, partition_by=by or None):
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


JOINED_ROWS = pa.table({"k": [1, 1, 2, 3, 4, 5], "t": [0, 1, 3, 4, 2, 2], "v": list(range(6))})
OTHER_ROWS = pa.table({"of": [1, 2, 3, 3, 6, 7], "u": [0, 1, 1, 0, 4, 4], "w": list(range(6))})

WAYS = ("by the key", "by another column", "to all", "in turn")


def joined(kind: How, left: str, right: str, *, width: int) -> Graph:
    flow = Flow()
    inputs = {
        "left": flow.source("one", ArrowSource(JOINED_ROWS)),
        "right": flow.source("other", ArrowSource(OTHER_ROWS)),
    }
    join = HashJoin(
        id="join",
        left=ArrowScan(id="left", schema=JOINED_ROWS.schema),
        right=ArrowScan(id="right", schema=OTHER_ROWS.schema),
        how=kind,
        on=On.pairs(("k",), ("of",)),
    )
    ways = {"both.left": (left, "k", "t"), "both.right": (right, "of", "u")}
    by = {
        port: [key if way == WAYS[0] else other]
        for port, (way, key, other) in ways.items()
        if way in WAYS[:2]
    }
    broadcast = [port for port, (way, *_) in ways.items() if way == "to all"]
    with flow.parallel("R", width, partition_by=by or None, broadcast=broadcast):
        rows = flow.operator("both", join, ports=inputs)
    flow.sink("kept", Collected(), rows)
    return flow.graph()


@pytest.mark.parametrize("right", WAYS, ids="right {}".format)
@pytest.mark.parametrize("left", WAYS, ids="left {}".format)
@pytest.mark.parametrize("kind", How, ids=lambda kind: kind.value)
@pytest.mark.sweep(16)
def test_matches_of_channels_are_told_exactly_where_they_are_parts(
    kind: How, left: str, right: str
) -> None:
    wide, narrow = (joined(kind, left, right, width=width) for width in (2, 1))
    rows, whole = (sorted(map(str, collect(each)["kept"].to_pylist())) for each in (wide, narrow))
    told = list(advice(wide))
    assert bool(told) is (rows != whole)
    assert all("'R.both' joins in each channel of 'R'" in each for each in told)
    assert not list(advice(narrow))


def test_a_join_behind_other_operators_is_judged_by_what_enters_their_region() -> None:
    schema = JOINED_ROWS.schema
    for by, is_told in ((["k"], False), ([], True)):
        flow = Flow()
        source = flow.source("rows", ArrowSource(JOINED_ROWS))
        join = HashJoin(
            id="join",
            left=ArrowScan(id="left", schema=schema),
            right=ArrowScan(id="right", schema=schema),
            how=How.SEMI,
            on=On.pairs(("k",), ("k",)),
        )
        with flow.parallel("R", 2, partition_by=by or None):
            cut = [flow.operator(name, PythonFunction(iter, schema), source) for name in "ab"]
            rows = flow.operator("both", join, ports=dict(zip(("left", "right"), cut, strict=True)))
        flow.sink("kept", Collected(), rows)
        assert bool(list(advice(flow.graph()))) is is_told


def test_a_source_in_a_region_shares_its_rows_out_in_turn() -> None:
    flow = Flow()
    plan = Group(
        id="n",
        input=ArrowScan(id="input", schema=ROWS.schema),
        keys=("k",),
        aggregates=(Aggregate.of("n", "count"),),
    )
    with flow.parallel("R", 2):
        rows = flow.operator("sum", plan, flow.source("rows", ArrowSource(ROWS)))
    flow.sink("kept", Collected(), rows)
    assert len(list(advice(flow.graph()))) == 1


def test_matches_of_a_stream_are_those_of_a_batch() -> None:
    graph = joined(How.INNER, "by the key", "by the key", width=2)
    [told] = advice(graph, is_stream=True)
    assert told.startswith("'R.both' joins the rows of each micro-batch")


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
