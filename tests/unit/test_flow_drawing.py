"""Drawings: small graphs as they are printed, and what large ones come to."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_upsert.flow import (
    ArrowSource,
    Collected,
    Flow,
    Physical,
    PythonFunction,
    TableSource,
    Work,
    expanded,
)
from spark_upsert.flow.drawing import mermaid, text
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
    flow.sink("kept", Collected(), ports={"sums": rows, "all": orders})
    return expanded(flow.graph())


def chained() -> Physical:
    """A stream that enters two regions at once, by a column of an awkward name."""
    flow = Flow()
    rows = flow.source("in", ArrowSource(ROWS))
    with (
        flow.parallel("outer", 1, partition_by=ROWS.schema.names[1:]),
        flow.parallel("inner", 2, broadcast=["out.input"]),
    ):
        flow.sink("out", Collected(), rows)
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
kept              sink, Collected"""

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
kept              sink, Collected"""

CHAINED = r"""
2 operators, 3 replicas, 1 splitter, 2 connections

in                     source, ArrowSource
  -> outer.inner.out   by hash of a "b"\n<c> # to 1 channel, then each row to 2 channels of each
outer.inner.out[0..1]  sink, Collected"""

CHAINED_MERMAID = r"""
flowchart LR
    r0(["in"])
    s0{"by hash of a #34;b#34;\n#60;c#62; #35;"}
    s0_0{"each row"}
    subgraph g3["outer, 1 wide"]
        subgraph g3_0["outer.inner, 2 wide"]
            r1[("outer.inner.out[0]")]
            r2[("outer.inner.out[1]")]
        end
    end
    r0 --> s0
    s0 --> s0_0
    s0_0 --> r1
    s0_0 --> r2"""

PES_MERMAID = """\
flowchart LR
    subgraph g0["PE 0"]
        r0(["orders"])
        s0{"in turn"}
        r1["clean.rows[0]"]
        s1{"by hash of id"}
    end
    subgraph g1["PE 1"]
        r2["clean.rows[1]"]
        s2{"by hash of id"}
        r3["clean.rows[2]"]
        s3{"by hash of id"}
        r4["sums.sum[0]"]
    end
    subgraph g2["PE 2"]
        r5["sums.sum[1]"]
        r6[("kept")]
    end
    r4 -->|"sums"| r6
    r5 -->|"sums"| r6
    r0 -->|"all"| r6
    r0 --> s0
    s0 --> r1
    s0 --> r2
    s0 --> r3
    r1 --> s1
    s1 --> r4
    s1 --> r5
    r2 --> s2
    s2 --> r4
    s2 --> r5
    r3 --> s3
    s3 --> r4
    s3 --> r5"""

WIDE_MERMAID = """\
flowchart LR
    r0(["orders"])
    subgraph g1["clean, 100 wide"]
        r1["clean.rows[0..99]"]
    end
    subgraph g2["sums, 100 wide"]
        r2["sums.sum[0..99]"]
    end
    r3[("kept")]
    r0 -->|"in turn to 100 channels"| r1
    r1 -->|"by hash of id to 100 channels, 100 splitters, 10000 connections"| r2
    r2 -->|"100 connections"| r3
    r0 -->|"1 connection"| r3"""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(text(adjacent()), ADJACENT, id="adjacent regions, text"),
        pytest.param(text(adjacent(), PES), ADJACENT_IN_PES, id="adjacent regions in PEs, text"),
        pytest.param(text(chained()), CHAINED, id="chained splitters, text"),
        pytest.param(mermaid(chained()), CHAINED_MERMAID, id="chained splitters, Mermaid"),
        pytest.param(mermaid(adjacent(), PES), PES_MERMAID, id="adjacent regions in PEs, Mermaid"),
        pytest.param(mermaid(adjacent(100, 100)), WIDE_MERMAID, id="wide regions, Mermaid"),
    ],
)
def test_a_graph_is_drawn(found: str, expected: str) -> None:
    assert found == expected.removeprefix("\n")


@pytest.mark.parametrize("draw", [text, mermaid], ids=lambda draw: draw.__name__)
def test_equal_graphs_are_drawn_alike(draw: Callable[..., str]) -> None:
    assert draw(adjacent(), PES) == draw(adjacent(), PES)


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
        flow.sink("out", Collected(), rows, flow.source("it", work))
    else:
        flow.sink("out", Collected(), flow.operator("it", work, rows))
    [line] = [each for each in text(expanded(flow.graph())).splitlines() if each.startswith("it")]
    assert line.split(maxsplit=1)[1].removeprefix("source, ") == said


def test_a_picture_has_a_node_for_each_operator_where_lines_would_be_all() -> None:
    assert "clean.rows[1]" in mermaid(adjacent(9, 9))
    assert "clean.rows[0..99]" in mermaid(adjacent(100, 100))
