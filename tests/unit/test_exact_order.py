"""Exact orders through a stream: the spec's cases, cut anywhere; and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import QueryOptions
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.protocol import Input
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.formats import MergedRead
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.inputs import Told, ToldRead, at, told
from tests.support.streams import Query


def query_options(**given: Any) -> QueryOptions:
    """Return the options of a query over inputs."""
    texts = {name: str(value) for name, value in given.items()}
    return ReadPlan.parse({"inputs": "a", **texts}).query


def rows_of(query: Query) -> str:
    return " ".join(row["row"] for batch in query.batches for row in batch)


def streamed(inputs: dict[str, Told], **given: Any) -> Query:
    return Query(lambda: stream_of(inputs, **given))


def stream_of(inputs: Mapping[str, Input], **given: Any) -> Stream:
    return Stream(NamedInputs(inputs), query_options(**given), clock=Now())


ROUND_ROBIN = {"merge": "roundrobin"}
CONCAT = {"merge": "concat"}

CASES = [
    pytest.param(CONCAT, {"a": 3, "b": 3}, "a1 a2 a3 b1 b2 b3", id="1 concat"),
    pytest.param(CONCAT, {"b": 2, "a": 2}, "b1 b2 a1 a2", id="2 concat, inputs b,a"),
    pytest.param(CONCAT, {"a": 0, "b": 2}, "b1 b2", id="3 concat, a is empty"),
    pytest.param(CONCAT, {"a": 1, "b": 1}, "a1 b1", id="4 one row each"),
    pytest.param(ROUND_ROBIN, {"a": 2, "b": 2}, "a1 b1 a2 b2", id="5 round robin"),
    pytest.param(ROUND_ROBIN, {"a": 3, "b": 1}, "a1 b1 a2 a3", id="6 round robin, b is short"),
    pytest.param(ROUND_ROBIN, {"a": 0, "b": 2}, "b1 b2", id="8 round robin, a is empty"),
    pytest.param({"interleaveSeed": 42}, {"a": 3, "b": 3}, "b1 a1 b2 a2 b3 a3", id="9 seed 42"),
    pytest.param(
        {"interleaveSeed": 42},
        {"a": 5, "b": 5},
        "b1 a1 b2 a2 b3 a3 b4 a4 b5 a5",
        id="10 seed 42, five each",
    ),
    pytest.param({"interleaveSeed": 7}, {"a": 3, "b": 3}, "b1 a1 b2 a2 a3 b3", id="12 seed 7"),
    pytest.param(
        {"interleaveSeed": 123},
        {"a": 5, "b": 1, "c": 3},
        "c1 b1 c2 c3 a1 a2 a3 a4 a5",
        id="14 seed 123, three inputs",
    ),
    pytest.param({"interleaveSeed": 42}, {"a": 0, "b": 3}, "b1 b2 b3", id="17 seed 42, a is empty"),
]


@pytest.mark.parametrize("limit", [None, 1, 2, 3], ids=lambda limit: f"limit {limit}")
@pytest.mark.parametrize("cut", ["one epoch", "epochs of one row", "with empty epochs"])
@pytest.mark.parametrize(("given", "counts", "expected"), CASES)
@pytest.mark.sweep(36)
def test_the_spec(
    given: dict[str, Any], counts: dict[str, int], expected: str, cut: str, limit: int | None
) -> None:
    cuts: dict[str, Callable[[int], list[int]]] = {
        "one epoch": lambda count: [count],
        "epochs of one row": lambda count: [1] * count,
        "with empty epochs": lambda count: [0, *[1, 0] * count],
    }
    inputs = told({name: cuts[cut](count) for name, count in counts.items()})
    limits = {} if limit is None else {"maxRowsPerTrigger": limit}
    query = streamed(inputs, **given, **limits)
    while query.plan():
        query.restart()
        query.deliver()
        query.restart()
    assert rows_of(query) == expected
    assert all(len(batch) <= (limit or 99) for batch in query.batches)


@pytest.mark.parametrize(("given", "counts", "expected"), CASES)
def test_a_batch_read_has_the_same_order(
    given: dict[str, Any], counts: dict[str, int], expected: str
) -> None:
    reads = {n: ToldRead(each) for n, each in told({n: [c] for n, c in counts.items()}).items()}
    merged = MergedRead(reads, query_options(**given, mergeColumns="_input,_merge_seq"))
    rows = [row for work in merged.splits() for b in merged.read(work) for row in b.to_pylist()]
    assert " ".join(row["row"] for row in rows) == expected
    assert [row["_merge_seq"] for row in rows] == list(range(len(rows)))
    assert all(row["row"].startswith(row["_input"]) for row in rows)


def test_18_the_same_seed_gives_the_same_order_though_an_input_comes_late() -> None:
    """What was seen decides, not when it came: the late rows are drawn for when they are there."""
    prompt = streamed(told({"a": [3], "b": [3]}), interleaveSeed=42)
    prompt.drain()
    late = told({"a": [3], "b": [3]})
    query = streamed(late, interleaveSeed=42, maxRowsPerTrigger=2)
    query.plan()
    query.restart()
    query.deliver()
    query.drain()
    assert rows_of(query) == rows_of(prompt) == "b1 a1 b2 a2 b3 a3"


@pytest.mark.parametrize("seed", range(8))
def test_an_input_that_has_more_is_drawn_for_though_it_gives_nothing_more(seed: int) -> None:
    """With three inputs, who takes one for dry that only has to wait draws among fewer."""
    counts = {"a": [6], "b": [6], "c": [6]}
    whole = streamed(told(counts), interleaveSeed=seed)
    whole.drain()
    cut = streamed(told(counts), interleaveSeed=seed, maxRowsPerTrigger=5)
    cut.drain()
    assert rows_of(cut) == rows_of(whole)


def test_a_replay_has_the_order_of_its_time_though_the_inputs_have_grown() -> None:
    inputs = told({"a": [1], "b": [4]})
    query = streamed(inputs, interleaveSeed=7, maxRowsPerTrigger=4)
    query.drain()
    inputs["a"].epochs += [5]
    query.restart()
    for number, rows in enumerate(query.batches):
        assert query.replayed(number) == rows


def test_numbers_go_on_over_batches_and_restarts() -> None:
    inputs = told({"a": [2, 3], "b": [4]})
    query = streamed(inputs, merge="roundrobin", maxRowsPerTrigger=2, mergeColumns="_merge_seq")
    query.drain()
    inputs["a"].epochs += [2]
    query.restart()
    query.drain()
    assert [row["_merge_seq"] for batch in query.batches for row in batch] == list(range(11))


def test_a_stream_at_rest_stays_at_its_very_offset() -> None:
    query = streamed(told({"a": [2, 0], "b": [1]}), merge="roundrobin")
    query.drain()
    start = json.loads(query.noted[-1])
    assert query.stream.latest(start) is start


def test_concat_without_a_limit_counts_nothing() -> None:
    inputs = told({"a": [2], "b": [1]})
    counted: list[int] = []
    for each in inputs.values():
        steps = each.steps

        def watched(*ends: Any, steps: Any = steps) -> Any:
            for step in steps(*ends):
                yield replace(step, rows=lambda: counted.append(1))

        each.steps = watched  # type: ignore[method-assign,assignment]
    query = streamed(inputs, merge="concat")
    query.drain()
    assert rows_of(query) == "a1 a2 b1"
    assert counted == []


def test_an_input_takes_the_turn_that_is_next_when_one_before_it_goes() -> None:
    inputs = told({"a": [2], "b": [2], "c": [2]})
    query = streamed(inputs, merge="roundrobin", maxRowsPerTrigger=2)
    query.plan()
    query.deliver()
    more: dict[str, Input] = {"d": Told("d", [1]), **inputs}
    again = Query(lambda: stream_of(more, merge="roundrobin", maxRowsPerTrigger=99))
    again.noted, again.batches = query.noted, query.batches
    again.plan()
    assert [row["row"] for row in again.deliver()] == ["c1", "d1", "a2", "b2", "c2"]


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        pytest.param({"interleaveSeed": -1}, "from 0 up to 18446744073709551615", "", id="22 -1"),
        pytest.param({"interleaveSeed": 2**64}, "from 0 up to", "", id="22 2^64"),
        pytest.param({"interleaveSeed": "x"}, "from 0 up to", "", id="22 no number"),
        pytest.param({"merge": "zip"}, "one of interleave, concat, roundrobin", "", id="21 a mode"),
        pytest.param(
            {"merge": "roundrobin", "interleaveSeed": 1},
            "'interleaveSeed' and 'merge=roundrobin' contradict",
            "interleave",
            id="a seed with round robin",
        ),
        pytest.param(
            {"merge": "concat", "interleaveSeed": 1},
            "'interleaveSeed' and 'merge=concat' contradict",
            "interleave",
            id="a seed with concat",
        ),
        pytest.param(
            {"merge": "concat", "maxBytesPerTrigger": 1}, "cut by rows", "maxRows", id="bytes"
        ),
        pytest.param(
            {"interleaveSeed": 1, "maxEpochsPerTrigger": 1}, "cut by rows", "maxRows", id="epochs"
        ),
        pytest.param(
            {"mergeColumns": "_merge_seq"}, "numbers the rows of an exact", "concat", id="live seq"
        ),
    ],
)
def test_what_cannot_be_an_order_is_refused(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        query_options(**given)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        pytest.param(
            {"interleaveSeed": 1}, {"interleaveSeed": 2}, r"seed 1\) than .*seed 2", id="a seed"
        ),
        pytest.param(
            {"interleaveSeed": 1}, {"merge": "concat"}, r"seed 1\) than .*concat", id="a mode"
        ),
        pytest.param({"merge": "concat"}, {}, "that of an exact order", id="none"),
        pytest.param(
            {"merge": "concat"},
            {"merge": "concat", "mergeColumns": "_merge_seq"},
            "its rows were not counted",
            id="numbers",
        ),
    ],
)
def test_another_order_under_a_checkpoint_is_refused(
    first: dict[str, Any], then: dict[str, Any], message: str
) -> None:
    inputs = told({"a": [2], "b": [2]})
    query = streamed(inputs, **first)
    query.drain()
    start = json.loads(query.noted[-1])
    with pytest.raises(OptionError, match=message):
        stream_of(inputs, **then).latest(start)


def test_rows_that_were_counted_and_are_gone_are_an_error_that_names_the_input() -> None:
    inputs = told({"a": [3], "b": [3]})
    query = streamed(inputs, merge="roundrobin")
    query.plan()
    inputs["b"].read = lambda split: iter(())  # type: ignore[method-assign]
    with pytest.raises(DataLossError, match="input 'b': 3 of the 3 rows"):
        query.deliver()


def test_an_input_without_an_order_of_its_own_is_refused() -> None:
    class Live:
        def head(self) -> Position:
            return at(0)

        def identity(self) -> str:
            return "a"

    stream = stream_of({"a": Live()}, merge="concat")  # type: ignore[dict-item]
    with pytest.raises(OptionError, match="input 'a' cannot be read in an exact order"):
        stream.latest(stream.initial())
