"""Batches that wait for rows: until there are enough, or the oldest has waited for long enough."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.inputs import Told
from tests.support.streams import Lived, Query, stream_of, versions

MINUTE_S = 60.0


class World:
    """Two inputs whose first rows are delivered, and a stream over them with clocks by hand."""

    def __init__(self, **given: Any) -> None:
        self.now, self.wall = Now(0.0), Now()
        self.of = {"a": Told("a", [1]), "b": Told("b", [1])}
        texts = {name: str(value) for name, value in given.items()}
        query = ReadPlan.parse({"path": "/unused", **texts}).query
        self.stream = Stream(NamedInputs(self.of), query, clock=self.now, wall=self.wall)
        self.offset = self.stream.initial()
        while self.plan():
            pass

    def pass_(self, seconds: float) -> None:
        self.now.advance(seconds)
        self.wall.advance(seconds)

    def plan(self, *, everything: bool = False) -> bool:
        """Plan a batch; return whether there is one."""
        end = self.stream.latest(self.offset, everything=everything)
        is_new = end is not self.offset
        self.offset = json.loads(json.dumps(end)) if is_new else self.offset
        return is_new

    @property
    def places(self) -> list[int]:
        return [each["at"] for each in self.offset["positions"].values()]


def test_a_batch_waits_for_rows_of_all_inputs_together() -> None:
    world = World(minRowsPerTrigger=10)
    assert world.places == [1, 1], "the first batch does not wait"
    world.of["a"].epochs += [4, 2]
    assert not world.plan()
    world.of["b"].epochs += [3]
    assert not world.plan()
    world.of["b"].epochs += [1]
    assert world.plan()
    assert world.places == [3, 3]


@pytest.mark.parametrize(
    ("given", "delay_s"),
    [
        pytest.param({}, 15 * MINUTE_S, id="a quarter of an hour by default"),
        pytest.param({"maxTriggerDelay": "90 seconds"}, 90.0, id="as it is said"),
    ],
)
def test_the_oldest_waits_for_so_long_at_most(given: dict[str, str], delay_s: float) -> None:
    world = World(minRowsPerTrigger=10, **given)
    world.of["a"].epochs += [1]
    assert not world.plan()
    world.pass_(delay_s / 2)
    world.of["b"].epochs += [1]
    assert not world.plan()
    world.pass_(delay_s / 2 - 0.01)
    assert not world.plan()
    world.pass_(0.02)
    assert world.plan()
    assert world.places == [2, 2]


def test_each_batch_waits_anew() -> None:
    world = World(minRowsPerTrigger=10, maxTriggerDelay="60 seconds")
    for _ in range(3):
        world.of["a"].epochs += [1]
        assert not world.plan()
        world.pass_(59.0)
        assert not world.plan()
        world.pass_(2.0)
        assert world.plan()
        world.pass_(1000.0)
        assert not world.plan()


def test_nothing_waits_while_nothing_comes() -> None:
    world = World(minRowsPerTrigger=10, maxTriggerDelay="60 seconds")
    world.pass_(1000.0)
    assert not world.plan()
    world.of["a"].epochs += [1]
    assert not world.plan(), "the time before it came does not count"
    world.pass_(59.0)
    assert not world.plan()


def test_who_takes_all_there_is_waits_for_nothing() -> None:
    world = World(minRowsPerTrigger=10)
    world.of["a"].epochs += [1]
    assert not world.plan()
    assert world.plan(everything=True)


def test_a_stream_that_ends_where_it_is_waits_for_nothing() -> None:
    world = World(minRowsPerTrigger=10)
    world.of["a"].epochs += [1]
    world.stream.freeze()
    assert world.plan()


def test_limits_hold_for_a_batch_that_has_waited() -> None:
    world = World(minRowsPerTrigger=4, maxRowsPerTrigger=4)
    world.of["a"].epochs += [2, 2, 2, 2]
    assert world.plan()
    assert world.places == [3, 1]


@pytest.mark.parametrize("jump_s", [-1e9, -1.0, 1.0, 1e9], ids=["far back", "back", "on", "far on"])
def test_a_clock_that_jumps_loses_nothing_and_lets_nobody_wait_for_longer(jump_s: float) -> None:
    lived = Lived()
    lived.write({1: 1})
    clock, given = Now(0.0), {"startingVersion": "earliest", "minRowsPerTrigger": 10}
    query = Query(lambda: stream_of(lived.open(), clock=clock, wall=lived.now, **given))
    query.plan()
    query.deliver()
    lived.write({1: 2})
    lived.now.advance(jump_s)
    while not query.plan():
        assert clock() <= 15 * MINUTE_S
        for each in (clock, lived.now):
            each.advance(MINUTE_S)
    query.deliver()
    assert versions(query.batches) == [[1], [2]]


def test_a_restart_does_not_let_the_oldest_wait_anew() -> None:
    lived = Lived()
    lived.write({1: 1})
    query = lived.query(startingVersion="earliest", minRowsPerTrigger=10)
    query.plan()
    query.deliver()
    lived.write({1: 2})
    for _ in range(14):
        assert not query.plan()
        query.restart()
        lived.now.advance(MINUTE_S)
    lived.now.advance(MINUTE_S + 5.0)
    assert query.plan()


def test_where_a_stream_begins_is_noted_before_anything_waits() -> None:
    """The newest version is another one when rows have come."""
    lived = Lived()
    lived.write({1: 1})
    query = lived.query(startingVersion="latest", minRowsPerTrigger=3)
    assert query.plan()
    query.deliver()
    lived.write({1: 2})
    assert not query.plan()
    query.restart()
    lived.write({1: 3})
    assert query.plan()
    query.deliver()
    assert versions(query.batches) == [[], [2, 3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4"},
            "no batch of 4 rows at most has 5",
            id="more than the most",
        ),
        pytest.param({"maxTriggerDelay": "1 minute"}, "minRowsPerTrigger", id="a delay of nothing"),
        pytest.param({"minRowsPerTrigger": "0"}, "minRowsPerTrigger", id="no rows"),
        pytest.param(
            {"minRowsPerTrigger": "5", "maxTriggerDelay": "soon"}, "maxTriggerDelay", id="no time"
        ),
        pytest.param(
            {"inputs": "a", "input.a.path": "/a", "merge": "concat", "minRowsPerTrigger": "5"},
            "exact order",
            id="an exact order",
        ),
        pytest.param(
            {"inputs": "a", "input.a.path": "/a", "input.a.minRowsPerTrigger": "5"},
            "is of the query",
            id="of one input",
        ),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], message: str) -> None:
    base = {} if "inputs" in given else {"path": "/unused"}
    with pytest.raises(OptionError, match=message):
        [each.of_table() for each in ReadPlan.parse({**base, **given}).inputs]


def test_a_batch_read_knows_no_triggers() -> None:
    plan = ReadPlan.parse({"path": "/unused", "minRowsPerTrigger": "5"})
    with pytest.raises(OptionError, match="has no meaning in a batch read"):
        plan.query.require_batch()
