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
    world = World(minRowsPerTrigger=4, maxRowsPerTrigger=4)
    assert world.places == [1, 1], "the first batch does not wait"
    world.of["a"].epochs += [2]
    assert not world.plan()
    world.of["b"].epochs += [1]
    assert not world.plan()
    world.of["a"].epochs += [2, 2]
    assert world.plan()
    assert world.places == [2, 2], "limits hold for a batch that has waited"


def test_a_batch_of_all_there_is_and_a_frozen_stream_wait_for_nothing() -> None:
    world = World(minRowsPerTrigger=10)
    world.of["a"].epochs += [1]
    assert not world.plan()
    assert world.plan(everything=True)
    world.of["a"].epochs += [1]
    world.stream.freeze()
    assert world.plan()


@pytest.mark.parametrize(
    ("options", "delay_s"),
    [
        pytest.param({}, 15 * MINUTE_S, id="a quarter of an hour by default"),
        pytest.param({"maxTriggerDelay": "90 seconds"}, 90.0, id="as it is said"),
    ],
)
def test_the_oldest_waits_for_so_long_at_most_in_each_batch(
    options: dict[str, str], delay_s: float
) -> None:
    world = World(minRowsPerTrigger=10, **options)
    for place in range(2, 4):
        world.pass_(1000.0)
        assert not world.plan(), "the time before rows come does not count"
        world.of["a"].epochs += [1]
        assert not world.plan()
        world.pass_(delay_s / 2)
        world.of["b"].epochs += [1]
        assert not world.plan()
        world.pass_(delay_s / 2 - 0.01)
        assert not world.plan()
        world.pass_(0.02)
        assert world.plan()
        assert world.places == [place, place]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("jump_s", [-1e9, 0.0, 1e9])
def test_rows_wait_no_longer_whatever_the_clock_jumps_by_and_the_process_restarts(
    jump_s: float, restarts: bool
) -> None:
    lived = Lived()
    lived.write({1: 1})
    clock, options = Now(0.0), {"startingVersion": "earliest", "minRowsPerTrigger": 10}
    query = Query(lambda: stream_of(lived.open(), clock=clock, wall=lived.now, **options))
    query.plan()
    query.deliver()
    lived.write({1: 2})
    lived.now.advance(jump_s)
    while not query.plan():
        assert clock() <= 15 * MINUTE_S
        for each in (clock, lived.now):
            each.advance(MINUTE_S)
        if restarts and not jump_s:
            query.restart()
    query.deliver()
    assert versions(query.batches) == [[1], [2]]
    assert jump_s or clock() >= 15 * MINUTE_S


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
    ("options", "message"),
    [
        ({"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4"}, "no batch of 4 rows at most has 5"),
        ({"maxTriggerDelay": "1 minute"}, "minRowsPerTrigger"),
        ({"minRowsPerTrigger": "0"}, "minRowsPerTrigger"),
        ({"minRowsPerTrigger": "5", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"inputs": "a", "merge": "concat", "minRowsPerTrigger": "5"}, "exact order"),
        ({"inputs": "a", "input.a.minRowsPerTrigger": "5"}, "is of the query"),
    ],
    ids=str,
)
def test_wrong_options_of_waiting_are_refused(options: dict[str, str], message: str) -> None:
    base = {"input.a.path": "/a"} if "inputs" in options else {"path": "/unused"}
    with pytest.raises(OptionError, match=message):
        [each.of_table() for each in ReadPlan.parse({**base, **options}).inputs]


def test_a_batch_read_has_no_triggers() -> None:
    plan = ReadPlan.parse({"path": "/unused", "minRowsPerTrigger": "5"})
    with pytest.raises(OptionError, match="has no meaning in a batch read"):
        plan.query.require_batch()
