"""What becomes of a graph sends each row where a note by hand of it says, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Physical,
    Splitter,
    SplitterKind,
    expanded,
)
from spark_upsert.flow.partitioner import Marker, first_turn, iter_parts, passes, route
from tests.support.graphs import SCHEMA, Drawn, Row, Slow, graphs

ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.sampled_from(["é", "a", "", "b", "alice"]),
    ),
    min_size=3,
    max_size=9,
)
BATCHES = st.lists(ROWS, min_size=2, max_size=3)

one_failure = settings(report_multiple_bugs=False, phases=[Phase.generate])
"""Told as it is found, not as one of a group. What is drawn is small: to make it smaller yet would
take most of the time of a planted bug."""

NUMBERED = SCHEMA.append(pa.field("row", pa.int64()))


def iter_deliveries(splitter: Splitter, batches: list[list[Row]]) -> Iterator[list[str]]:
    """Yield the replicas that each row goes to, batch after batch."""
    turn = first_turn(splitter)
    targets = list(splitter.iter_replicas())
    for rows in batches:
        columns = [*([row[i] for row in rows] for i in (0, 1)), list(range(len(rows)))]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(each, type_) for each, type_ in zip(columns, NUMBERED.types, strict=True)],
            schema=NUMBERED,
        )
        routed = route(splitter, batch, turn)
        turn = routed.turn
        found: list[list[str]] = [[] for _ in rows]
        for target, part in iter_parts(batch, routed):
            numbers = part["row"].to_pylist()
            assert numbers == sorted(numbers)
            for number in numbers:
                found[number].append(targets[target])
        yield from found


def splitter_of(physical: Physical, owner: str, consumer: str, port: str) -> Splitter | None:
    found = [
        each
        for each in physical.splitters_of[owner]
        if (each.consumer, each.port) == (consumer, port)
    ]
    assert len(found) <= 1
    return found[0] if found else None


@one_failure
@given(drawn=graphs(), batches=BATCHES)
def test_p5_every_row_reaches_the_replicas_that_it_should(
    drawn: Drawn, batches: list[list[Row]]
) -> None:
    physical = expanded(drawn.graph)
    for producer, consumer, port in drawn.streams():
        for indexes in producer.indexes():
            slow = Slow(drawn, producer, consumer, port, indexes)
            owner = producer.replica(indexes)
            expected = [slow.targets(row) for rows in batches for row in rows]
            splitter = splitter_of(physical, owner, consumer.name, port)
            if splitter is None:
                assert all(
                    each == straight(physical, owner, consumer.name, port) for each in expected
                )
            else:
                found = [sorted(each) for each in iter_deliveries(splitter, batches)]
                assert found == [sorted(each) for each in expected]


def straight(physical: Physical, owner: str, consumer: str, port: str) -> list[str]:
    """Return where all rows of a replica go that no splitter shares out."""
    return [
        each.consumer
        for each in physical.connections
        if (each.producer, each.port, each.is_split) == (owner, port, False)
        and each.consumer.partition("[")[0] == consumer
    ]


@one_failure
@given(drawn=graphs(), rows=ROWS)
def test_p4_equal_keys_meet_whichever_replica_sends_them(drawn: Drawn, rows: list[Row]) -> None:
    physical = expanded(drawn.graph)
    met: dict[tuple[Any, ...], set[int]] = {}
    for splitter in physical.splitters:
        if splitter.kind is not SplitterKind.HASH:
            continue
        [first, *_] = splitter.iter_replicas()
        level = physical.replica[first].regions.index(splitter.region)
        places = ["kt".index(name) for name in splitter.attributes]
        for row, names in zip(rows, iter_deliveries(splitter, [rows]), strict=True):
            key = (splitter.region, splitter.attributes, *(row[place] for place in places))
            found = {physical.replica[name].channel.indexes[level] for name in names}
            met.setdefault(key, set()).update(found)
    assert all(len(channels) == 1 for channels in met.values())


@one_failure
@given(drawn=graphs(), batches=BATCHES)
def test_p4_where_a_row_goes_does_not_depend_on_batches(
    drawn: Drawn, batches: list[list[Row]]
) -> None:
    for splitter in expanded(drawn.graph).splitters:
        whole = [row for rows in batches for row in rows]
        assert list(iter_deliveries(splitter, batches)) == list(iter_deliveries(splitter, [whole]))


@one_failure
@given(drawn=graphs())
def test_p3_barriers_reach_every_channel_and_windows_those_of_whoever_is_in_none(
    drawn: Drawn,
) -> None:
    physical = expanded(drawn.graph)
    for splitter in physical.splitters:
        is_outside = not physical.replica[splitter.owner].regions
        assert passes(splitter, Marker.BARRIER)
        assert passes(splitter, Marker.FINAL)
        assert passes(splitter, Marker.WINDOW) == is_outside


@one_failure
@given(drawn=graphs())
def test_p5_no_connection_leaves_a_channel_for_another_of_the_same_region(drawn: Drawn) -> None:
    physical = expanded(drawn.graph)
    for each in physical.connections:
        assert {each.producer, each.consumer} <= physical.replica.keys()
        ends = [physical.replica[name] for name in (each.producer, each.consumer)]
        one, other = (dict(zip(e.regions, e.channel.indexes, strict=True)) for e in ends)
        assert all(one[region] == other[region] for region in one.keys() & other.keys())


def test_p4_each_channel_of_an_outer_region_takes_turns_of_its_own() -> None:
    flow = Flow()
    rows = flow.source("Src", ArrowSource(SCHEMA.empty_table()))
    with flow.parallel("R", 2, partition_by=["k"]), flow.parallel("S", 3):
        flow.sink("A", CollectSink(), rows)
    [splitter] = expanded(flow.graph()).splitters
    found = list(iter_deliveries(splitter, [[(0, ""), (0, "")], [(1, "")], [(0, ""), (1, "")]]))
    assert [name for [name] in found] == [f"R.S.A[{channel}]" for channel in (0, 1, 3, 2, 4)]
