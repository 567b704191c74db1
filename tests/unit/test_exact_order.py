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
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.inputs import Told, at, told
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
SEED_42 = {"interleaveSeed": 42}

CASES = [
    pytest.param(CONCAT, {"a": 3, "b": 3}, "a1 a2 a3 b1 b2 b3", id="1 concat"),
    pytest.param(CONCAT, {"b": 2, "a": 2}, "b1 b2 a1 a2", id="2 concat, inputs b,a"),
    pytest.param(CONCAT, {"a": 0, "b": 2}, "b1 b2", id="3 concat, a is empty"),
    pytest.param(CONCAT, {"a": 1, "b": 1}, "a1 b1", id="4 one row each"),
    pytest.param(ROUND_ROBIN, {"a": 2, "b": 2}, "a1 b1 a2 b2", id="5 round robin"),
    pytest.param(ROUND_ROBIN, {"a": 3, "b": 1}, "a1 b1 a2 a3", id="6 round robin, b is short"),
    pytest.param(ROUND_ROBIN, {"a": 0, "b": 2}, "b1 b2", id="8 round robin, a is empty"),
    pytest.param(SEED_42, {"a": 3, "b": 3}, "b1 a1 b2 a2 b3 a3", id="9, 18 seed 42"),
    pytest.param(SEED_42, {"a": 5, "b": 5}, "b1 a1 b2 a2 b3 a3 b4 a4 b5 a5", id="10 five each"),
    pytest.param({"interleaveSeed": 7}, {"a": 3, "b": 3}, "b1 a1 b2 a2 a3 b3", id="12 seed 7"),
    pytest.param(
        {"interleaveSeed": 123},
        {"a": 5, "b": 1, "c": 3},
        "c1 b1 c2 c3 a1 a2 a3 a4 a5",
        id="14 seed 123, three inputs",
    ),
    pytest.param(SEED_42, {"a": 0, "b": 3}, "b1 b2 b3", id="17 seed 42, a is empty"),
]


CUTS: dict[str, Callable[[int], list[int]]] = {
    "one epoch": lambda count: [count],
    "epochs of one row": lambda count: [1] * count,
    "with empty epochs": lambda count: [0, *[1, 0] * count],
}


@pytest.mark.parametrize("limit", [None, 1, 2, 3], ids=lambda limit: f"limit {limit}")
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(("given", "counts", "expected"), CASES)
@pytest.mark.sweep(36)
def test_the_spec(
    given: dict[str, Any],
    counts: dict[str, int],
    expected: str,
    cut: Callable[[int], list[int]],
    limit: int | None,
) -> None:
    inputs = told({name: cut(count) for name, count in counts.items()})
    limits = {} if limit is None else {"maxRowsPerTrigger": limit}
    query = streamed(inputs, **given, **limits)
    while query.plan():
        query.restart()
        query.deliver()
        query.restart()
    assert rows_of(query) == expected
    assert all(len(batch) <= (limit or 99) for batch in query.batches)
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
        ({"interleaveSeed": -1}, "from 0 up to 18446744073709551615", ""),
        ({"interleaveSeed": 2**64}, "from 0 up to", ""),
        ({"interleaveSeed": "x"}, "from 0 up to", ""),
        ({"merge": "zip"}, "one of interleave, concat, roundrobin", ""),
        ({**ROUND_ROBIN, "interleaveSeed": 1}, "and 'merge=roundrobin' contradict", "interleave"),
        ({**CONCAT, "interleaveSeed": 1}, "and 'merge=concat' contradict", "interleave"),
        ({**CONCAT, "maxBytesPerTrigger": 1}, "cut by rows", "maxRows"),
        ({"interleaveSeed": 1, "maxEpochsPerTrigger": 1}, "cut by rows", "maxRows"),
        ({"mergeColumns": "_merge_seq"}, "numbers the rows of an exact", "concat"),
    ],
    ids=[*["22"] * 3, "21", *["contradict"] * 2, "bytes", "epochs", "live numbers"],
)
def test_what_cannot_be_an_order_is_refused(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        query_options(**given)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({"interleaveSeed": 1}, {"interleaveSeed": 2}, r"seed 1\) than .*seed 2"),
        ({"interleaveSeed": 1}, CONCAT, r"seed 1\) than .*concat"),
        (CONCAT, {}, "that of an exact order"),
        (CONCAT, {**CONCAT, "mergeColumns": "_merge_seq"}, "its rows were not counted"),
    ],
    ids=["a seed", "a mode", "none", "numbers"],
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
