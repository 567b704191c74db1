"""What follows from the graph around a merge: live or not, streaming or not, and why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.input_order import RoundRobin
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.merge.graph import (
    AnyNode,
    MergeGraph,
    MergeNode,
    Sink,
    SourceNode,
    Transform,
    TransformWork,
    UnmappedPolicy,
    explain,
    fusion,
    streaming_output,
)
from spark_upsert.merge.merged import merge_in
from spark_upsert.merge.readers import CHANNEL_EVENTS, MergeConfig, Mode
from tests.support.merging import batches_of, rows_in

S1, S2 = SourceNode(name="s1"), SourceNode(name="s2")
LIVE = MergeConfig(mode=Mode.INTERLEAVE)
SEEDED = MergeConfig(mode=Mode.INTERLEAVE, seed=1)


def merge_of(*inputs: str, config: MergeConfig = LIVE) -> MergeNode:
    return MergeNode(name="m", inputs=inputs, config=config)


def work(name: str, *inputs: str, **how: Any) -> Transform:
    return Transform(name=name, inputs=inputs, **how)


def sink(*inputs: str, name: str = "out", needs_all: tuple[str, ...] = ()) -> Sink:
    return Sink(name=name, inputs=inputs, needs_all=needs_all)


MERGES: dict[str, tuple[list[AnyNode], str]] = {
    "26: two sources, interleave": (
        [S1, S2, merge_of("s1", "s2")],
        "yes: no other operator reads its inputs (2), and all are sources",
    ),
    "27: two sources, interleave with seed 1": (
        [S1, S2, merge_of("s1", "s2", config=SEEDED)],
        "no: the seed 1 gives it an exact order",
    ),
    "28: two sources, concat": (
        [S1, S2, merge_of("s1", "s2", config=MergeConfig())],
        "no: its mode is concat, which has an exact order",
    ),
    "29: a source and a transform, interleave": (
        [S1, S2, work("t", "s2"), merge_of("s1", "t")],
        "no: 't' is no source",
    ),
    "30: two sources, one of which another sink reads, too": (
        [S1, S2, merge_of("s1", "s2"), sink("s1", name="copy")],
        "no: 's1' has 2 readers: 'copy', 'm'",
    ),
    "32: a single source, interleave": (
        [S1, merge_of("s1")],
        "yes: no other operator reads its inputs (1), and all are sources",
    ),
    "no inputs": ([merge_of()], "no: it has no inputs"),
    "two ports of one source": (
        [S1, merge_of("s1.low", "s1.high")],
        "no: 's1' has 2 readers: 'm', 'm'",
    ),
    "a merge behind a merge": (
        [S1, S2, MergeNode(name="n", inputs=("s1",), config=LIVE), merge_of("n", "s2")],
        "no: 'n' is no source",
    ),
}


@pytest.mark.parametrize(("nodes", "expected"), MERGES.values(), ids=MERGES)
def test_a_merge_is_live_and_runs_as_its_graph_decides(nodes: list[AnyNode], expected: str) -> None:
    """Only a live merge gives rows before an input has ended that never waits for its turn."""
    graph, ended = MergeGraph(nodes), []
    answer = fusion(graph, "m")
    assert str(answer) == expected
    assert bool(answer) is expected.startswith("yes")
    sizes = [CHANNEL_EVENTS] * 5

    def rows(name: str) -> Iterator[pa.RecordBatch]:
        yield from batches_of(name, sizes)
        ended.append(name)

    names = graph.merge("m").inputs
    config = graph.merge("m").config
    inputs = {name: partial(rows, name) for name in reversed(names)}
    out = merge_in(graph, "m", {**inputs, "another": partial(rows, "another")})
    first = [*rows_in(islice(out, 1))]
    if config.mode is Mode.CONCAT:
        assert {name for name, _ in first} == {names[0]}
    else:
        assert (sorted(ended) != sorted(names)) is expected.startswith("yes") or not names
    if config.order(is_live=bool(fusion(graph, "m"))) == RoundRobin():
        assert [name for name, _ in first[: len(names)]] == [*names]
    out.close()


def test_a_merge_of_a_graph_wants_all_its_inputs() -> None:
    graph = MergeGraph([S1, S2, merge_of("s1", "s2")])
    with pytest.raises(OptionError, match="those of the merge 'm': s1, s2, found"):
        merge_in(graph, "m", {"s1": lambda: iter(())})


MERGED: list[AnyNode] = [S1, S2, merge_of("s1", "s2")]


SEEDED_MERGE = merge_of("s1", "s2", config=SEEDED)
BEHIND_S1, BEHIND_BOTH = work("t", "s1"), work("t", "s1", "s2")
WINDOW = work("w", "t", work=TransformWork.WINDOW)
ROUTE = work("r", "s1", work=TransformWork.ROUTE)
TOTAL = work("a", "s1", work=TransformWork.AGGREGATE)
STREAMED_TOTAL = work("a", "s1", work=TransformWork.AGGREGATE, is_streaming=True)
COMBINED = work("c", "s1", "s2", work=TransformWork.COMBINE, is_streaming=True)
NEEDS = ("split", "sort_order", "one file per source", "correlation keys", "an envelope")

SINKS: dict[str, tuple[list[AnyNode], str]] = {
    "live merge": ([*MERGED, sink("m")], "yes: the merge 'm' gives rows as it goes"),
    "seeded merge: the two answers are independent": (
        [S1, S2, SEEDED_MERGE, sink("m")],
        "yes: the merge 'm' gives rows as it goes",
    ),
    "two inputs": ([*MERGED, sink("m", "s1")], "no: it reads 2 inputs"),
    "no input": ([sink()], "no: it reads 0 inputs"),
    "its producer has another reader": (
        [*MERGED, sink("m"), sink("m", name="copy")],
        "no: 'm' has 2 readers: 'copy', 'out'",
    ),
    "its producer is the root of a window": (
        [S1, BEHIND_S1, WINDOW, sink("t")],
        "no: the window 'w' is rooted at 't'",
    ),
    "source and transform": (
        [S1, BEHIND_S1, sink("t")],
        "yes: 't' works on the rows of 's1' at once",
    ),
    "transform behind a shared source": (
        [S1, BEHIND_S1, sink("t"), sink("s1", name="copy")],
        "no: 's1' has 2 readers: 'copy', 't'",
    ),
    "transform behind two sources": (
        [S1, S2, BEHIND_BOTH, sink("t")],
        "no: 't' does not stand behind one source",
    ),
    "route with one branch": ([S1, ROUTE, sink("r.low")], "yes: the route 'r' has one branch"),
    "route with two branches": (
        [S1, ROUTE, sink("r.low"), sink("r.high", name="high")],
        "no: 'r' has 2 readers: 'high', 'out'",
    ),
    "streaming aggregate": (
        [S1, STREAMED_TOTAL, sink("a")],
        "yes: 'a' gives rows before it has seen all",
    ),
    "aggregate that needs all rows": (
        [S1, TOTAL, sink("a")],
        "no: 'a' gives nothing before it has seen all rows",
    ),
    "combine that streams": (
        [S1, S2, COMBINED, sink("c")],
        "yes: 'c' gives rows before it has seen all",
    ),
    "a source without a transform": (
        [S1, sink("s1")],
        "no: 's1' gives nothing before it has seen all rows",
    ),
    **{
        f"sink with {need}": (
            [*MERGED, sink("m", needs_all=(need,))],
            f"no: it needs all rows first, for {need}",
        )
        for need in NEEDS
    },
}


@pytest.mark.parametrize(("nodes", "expected"), SINKS.values(), ids=SINKS)
def test_whether_a_sink_streams(nodes: list[AnyNode], expected: str) -> None:
    answer = streaming_output(MergeGraph(nodes), "out")
    assert str(answer) == expected
    assert bool(answer) is expected.startswith("yes")


def test_no_sink_streams_while_the_graph_starts() -> None:
    answer = streaming_output(MergeGraph([*MERGED, sink("m")]), "out", is_starting=True)
    assert str(answer) == "no: the graph is still starting"


def test_explain_tells_both_answers() -> None:
    assert explain(MergeGraph([*MERGED, sink("m", needs_all=("sort_order",))])).splitlines() == [
        "merge m: live yes: no other operator reads its inputs (2), and all are sources",
        "sink out: streaming no: it needs all rows first, for sort_order",
    ]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(
            {"input": "x"}, "unknown option 'input'.*'inputs'", id="20: input, not inputs"
        ),
        pytest.param({"inputs": "x"}, "a list of names, found 'x'", id="a name, not a list"),
        pytest.param({}, "a list of names, found None", id="no inputs"),
        pytest.param({"inputs": ["x", "x"]}, "not 'x' twice", id="an input twice"),
        pytest.param(
            {"inputs": [], "config": {"moed": 1}}, "unknown option 'moed'", id="21: an unknown key"
        ),
        pytest.param(
            {"inputs": [], "config": {"interleave_seed": -1}}, "found -1", id="22: seed -1"
        ),
    ],
)
def test_a_merge_that_is_refused(record: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){expected}"):
        MergeNode.parse("m", record)


def test_25_two_ports_of_one_route_are_two_inputs() -> None:
    merge = MergeNode.parse("m", {"inputs": ["route.low", "route.high"], "config": {}})
    graph = MergeGraph([S1, work("route", "s1", work=TransformWork.ROUTE), merge])
    assert [node.name for node in graph.before("m")] == ["route", "route"]
    assert merge.inputs == ("route.low", "route.high")
    assert merge.config == MergeConfig()


def source(name: str, **how: Any) -> SourceNode:
    return SourceNode(name=name, **({"columns": ("id", "name")} | how))


UNLIKE_INPUTS: dict[str, tuple[Any, ...]] = {
    "23: other columns": (
        {"columns": ("id", "nom")},
        "different columns: 'a' has id, name, 'b' id, nom",
    ),
    "23: the same columns in another order": (
        {"columns": ("name", "id")},
        "different columns: 'a' has id, name, 'b' name, id",
    ),
    "24: one widens, the other drops": (
        {"unmapped": UnmappedPolicy.AUTO_WIDEN},
        "treat unexpected columns differently: 'a' has drop, 'b' auto_widen",
    ),
    "one drops, the other rejects": (
        {"unmapped": UnmappedPolicy.REJECT},
        "treat unexpected columns differently: 'a' has drop, 'b' reject",
    ),
    "other correlation keys": (
        {"correlation": ("id",)},
        "different correlation keys: 'a' has none, 'b' id",
    ),
}


@pytest.mark.parametrize(("others", "expected"), UNLIKE_INPUTS.values(), ids=UNLIKE_INPUTS)
def test_inputs_that_do_not_fit_together(others: dict[str, Any], expected: str) -> None:
    with pytest.raises(SchemaError, match=expected):
        MergeGraph([source("a"), source("b", **others), merge_of("a", "b")])


def test_the_set_of_correlation_keys_has_no_order() -> None:
    keys = {"a": ("id", "name"), "b": ("name", "id")}
    MergeGraph([*(source(name, correlation=key) for name, key in keys.items()), merge_of("a", "b")])


@pytest.mark.parametrize(
    ("nodes", "error", "expected"),
    [
        ([S1, S1], OptionError, "two nodes are named 's1'"),
        ([merge_of("s3"), S1], OptionError, "'m' reads 's3', which is not there"),
        (
            [*MERGED, work("w", "m", work=TransformWork.WINDOW)],
            *(SchemaError, "the window 'w' is rooted at the merge 'm'"),
        ),
    ],
    ids=["one name twice", "an unknown name", "a window at a merge"],
)
def test_a_graph_that_cannot_be(
    nodes: list[AnyNode], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        MergeGraph(nodes)


def test_only_merges_and_sinks_are_asked() -> None:
    graph = MergeGraph([*MERGED, sink("m")])
    with pytest.raises(ValueError, match="'s1' is no merge"):
        fusion(graph, "s1")
    with pytest.raises(ValueError, match="'m' is no sink"):
        streaming_output(graph, "m")
