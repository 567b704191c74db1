"""Random graphs: what becomes of them, counted, and what is refused; rows are a promise's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.errors import GraphError
from spark_upsert.flow import (
    Edge,
    Flow,
    Graph,
    LogicalOperator,
    OperatorKind,
    Output,
    Parallel,
    PartitionBy,
    expanded,
)
from spark_upsert.flow.graph import Composite, GraphMember
from spark_upsert.flow.text import render_graph
from tests.support.graphs import Drawn, entered, graphs

# -- counts ----------------------------------------------------------------------------------


@given(drawn=graphs())
def test_connections_are_as_many_as_widths_say(drawn: Drawn) -> None:
    physical = expanded(drawn.graph)
    connections = splitters = 0
    for producer, consumer, _ in drawn.streams():
        ways = [width for _, width in entered(producer, consumer)]
        connections += producer.width * math.prod(ways)
        splitters += producer.width if ways else 0
    assert len(physical.connections) == connections
    assert len(physical.splitters) == splitters
    assert len(physical.replicas) == sum(leaf.width for leaf in drawn.leaves.values())


@given(drawn=graphs())
def test_every_channel_has_its_replica(drawn: Drawn) -> None:
    expected = {
        leaf.replica(indexes): (leaf.name, leaf.channel(indexes) if leaf.regions else -1, indexes)
        for leaf in drawn.leaves.values()
        for indexes in leaf.indexes()
    }
    found = {
        each.name: (each.logical, each.channel.index, each.channel.indexes[::-1])
        for each in expanded(drawn.graph).replicas
    }
    assert found == expected


@given(drawn=graphs())
def test_every_port_of_every_replica_is_fed_and_all_rows_are_taken(drawn: Drawn) -> None:
    physical = expanded(drawn.graph)
    fed = {(each.consumer, each.port) for each in physical.connections}
    takes = {each.producer for each in physical.connections}
    for replica in physical.replicas:
        assert all((replica.name, port) in fed for port in replica.operator.inputs)
        assert (replica.name in takes) == (replica.operator.kind is not OperatorKind.SINK)


@given(drawn=graphs())
def test_a_graph_is_expanded_and_printed_alike_each_time(drawn: Drawn) -> None:
    one, other = expanded(drawn.graph), expanded(drawn.graph)
    assert one == other
    assert render_graph(one) == render_graph(other)


# -- building --------------------------------------------------------------------------------


def rebuilt(graph: Graph) -> Graph | None:
    """Build a graph by a flow; None if a composite would have to be opened twice for it."""
    flow, outputs = Flow(), dict[str, Output]()
    try:
        for member in graph.members:
            add(flow, outputs, graph, member, member.name)
    except KeyError:
        return None
    return flow.graph()


def add(flow: Flow, outputs: dict[str, Output], graph: Graph, it: GraphMember, name: str) -> None:
    """Add a member, which has a full name; what it is fed by must be there."""
    if isinstance(it, LogicalOperator):
        ports: dict[str, list[Output]] = {port: [] for port in it.inputs}
        for stream in graph.streams:
            if stream.consumer == name:
                ports[stream.port].append(outputs[stream.producer])
        if it.kind is OperatorKind.SOURCE:
            outputs[name] = flow.source(it.name, it.work, parallel=it.parallel)
        elif it.kind is OperatorKind.SINK:
            flow.sink(it.name, it.work, ports=ports, parallel=it.parallel)
        else:
            outputs[name] = flow.operator(it.name, it.work, ports=ports, parallel=it.parallel)
        return
    with opened(flow, it):
        for member in it.members:
            add(flow, outputs, graph, member, f"{name}.{member.name}")


def opened(flow: Flow, it: Composite) -> AbstractContextManager[None]:
    if it.parallel is None:
        return flow.composite(it.name)
    by = {each.port: each.attributes for each in it.parallel.partition_by}
    broadcast = it.parallel.broadcast
    return flow.parallel(it.name, it.parallel.width, partition_by=by, broadcast=broadcast)


def test_a_flow_builds_the_graph_that_it_was_told() -> None:
    built = 0

    @given(drawn=graphs())
    def look(drawn: Drawn) -> None:
        nonlocal built
        found = rebuilt(drawn.graph)
        if found is not None:
            built += 1
            assert found.members == drawn.graph.members
            assert set(found.streams) == set(drawn.graph.streams)

    look()
    assert built


# -- what is refused -------------------------------------------------------------------------

Change = Callable[[LogicalOperator], LogicalOperator]


def changed(graph: Graph, name: str, change: Change) -> Graph:
    """Return a graph in which one operator is another."""

    def within(members: tuple[GraphMember, ...], around: str) -> Iterator[GraphMember]:
        for member in members:
            full = f"{around}{member.name}"
            if isinstance(member, Composite):
                yield replace(member, members=tuple(within(member.members, f"{full}.")))
            else:
                yield change(member) if full == name else member

    return Graph(tuple(within(graph.members, "")), graph.streams)


def with_parallel(**how: Any) -> Change:
    def change(operator: LogicalOperator) -> LogicalOperator:
        width = operator.parallel.width if operator.parallel else 2
        return replace(operator, parallel=Parallel(**{"width": width, **how}))

    return change


def broken(drawn: Drawn, how: str, name: str) -> Graph | None:
    """Return the graph with a fault about one operator; None if it cannot have this one."""
    graph, leaf = drawn.graph, drawn.leaves[name]
    port = next(iter(leaf.ports), "input")
    both = (PartitionBy(port, ("k",)),)
    match how:
        case "a width of 0":
            return changed(graph, name, with_parallel(width=0))
        case "a width of 2^31":
            return changed(graph, name, with_parallel(width=2**31))
        case "a port in both lists":
            return changed(graph, name, with_parallel(partition_by=both, broadcast=(port,)))
        case "a port twice":
            return changed(graph, name, with_parallel(partition_by=both * 2))
        case "a port that is none":
            return changed(graph, name, with_parallel(broadcast=("nowhere",)))
        case "a column that is none":
            by = (PartitionBy(port, ("nowhere",)),)
            return changed(graph, name, with_parallel(partition_by=by)) if leaf.ports else None
        case "a name with a dot":
            return changed(graph, name, lambda each: replace(each, name=f"{each.name}.x"))
        case "a port that nothing feeds":
            left = (each for each in graph.streams if (each.consumer, each.port) != (name, port))
            return Graph(graph.members, tuple(left)) if leaf.ports else None
        case "rows that nothing takes":
            left = (each for each in graph.streams if each.producer != name)
            is_sink = graph.places[name].operator.kind is OperatorKind.SINK
            return None if is_sink else Graph(graph.members, tuple(left))
        case "a stream twice":
            own = [each for each in graph.streams if each.consumer == name]
            return Graph(graph.members, (*graph.streams, own[0])) if own else None
        case "a cycle":
            return _with_cycle(graph, name, port) if leaf.ports else None
        case _:
            raise AssertionError(how)


def _with_cycle(graph: Graph, name: str, port: str) -> Graph | None:
    """Lead what comes out of an operator, at once or later, back into it."""
    reached, waiting = {name}, [name]
    while waiting:
        for stream in graph.streams_of[waiting.pop()]:
            if stream.consumer not in reached:
                reached.add(stream.consumer)
                waiting.append(stream.consumer)
    ends = [each for each in reached if graph.places[each].operator.kind is not OperatorKind.SINK]
    if not ends:
        return None
    back = Edge(max(ends), name, port)
    return None if back in graph.streams else Graph(graph.members, (*graph.streams, back))


FAULTS = (
    "a width of 0",
    "a width of 2^31",
    "a port in both lists",
    "a port twice",
    "a port that is none",
    "a column that is none",
    "a name with a dot",
    "a port that nothing feeds",
    "rows that nothing takes",
    "a stream twice",
    "a cycle",
)


@pytest.mark.parametrize("how", FAULTS)
def test_a_graph_with_a_fault_is_refused_by_the_name_of_the_operator(how: str) -> None:
    refused = 0

    @given(drawn=graphs(leaves_max=5), data=st.data())
    def look(drawn: Drawn, data: st.DataObject) -> None:
        nonlocal refused
        made = ((name, broken(drawn, how, name)) for name in drawn.leaves)
        faulty = {name: graph for name, graph in made if graph is not None}
        if faulty:
            name = data.draw(st.sampled_from(list(faulty)))
            _require_refused(drawn, faulty[name], _blamed(drawn, how, name))
            refused += 1

    look()
    assert refused


def _blamed(drawn: Drawn, how: str, name: str) -> set[str]:
    """Return who may be named: a stream that is missing is missed at both ends."""
    if "nothing" not in how:
        return {name}
    ends = ((stream.producer, stream.consumer) for stream in drawn.graph.streams)
    return {each for pair in ends if name in pair for each in pair}


def _require_refused(drawn: Drawn, graph: Graph, blamed: set[str]) -> None:
    with pytest.raises(GraphError) as error:
        expanded(graph)
    names = {each.rpartition(".")[2] for each in blamed}
    assert any(name in str(each) for each in error.value.fields["operators"] for name in names)
    assert any(name in error.value.message for name in names)
    assert error.value.hint


def test_random_graphs_have_what_they_are_drawn_for() -> None:
    seen: Counter[str] = Counter()

    @given(drawn=graphs())
    def look(drawn: Drawn) -> None:
        seen["nested"] += any(len(leaf.regions) > 1 for leaf in drawn.leaves.values())
        seen["two ports"] += any(len(leaf.ports) > 1 for leaf in drawn.leaves.values())
        seen["adjacent"] += any(
            producer.regions and entered(producer, consumer)
            for producer, consumer, _ in drawn.streams()
        )
        seen["two at once"] += any(
            len(entered(producer, consumer)) > 1 for producer, consumer, _ in drawn.streams()
        )
        seen["a source in a region"] += any(
            leaf.regions and not leaf.ports for leaf in drawn.leaves.values()
        )
        seen["all"] += "all" in drawn.choices.values()

    look()
    assert len(seen) == 6
    assert all(seen.values())
