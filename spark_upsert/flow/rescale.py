"""Width changes for stateless regions (`changed_width`), and a flow's record at its checkpoint.

State does not move to other channels, so a flow with state must keep its widths. `remember`
compares sources and widths before the first batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from spark_upsert.errors import GraphError, OptionError, WidthError, did_you_mean
from spark_upsert.flow.expand import Physical
from spark_upsert.flow.fusion import Influence
from spark_upsert.flow.graph import Composite, Graph, GraphMember, OperatorKind, PlacedOperator
from spark_upsert.store.open import open_store
from spark_upsert.store.records import FORMAT_VERSION, checked_record, numbers, read_record, text

WIDTH_MAX = 2**31 - 1
"""Maximum signed 32-bit integer, the range of Spark partition numbers."""


def changed_width(
    graph: Graph, region: str, width: int, *, influence: Influence = Influence.NONE
) -> Graph:
    """Return the graph with another width for one or more regions.

    Parameters
    ----------
    region : str
        Full region name, or a pattern: ``*`` matches any text including dots, ``?`` one
        character, ``[ab]`` one listed character. A nested region gets the width in each outer
        channel.
    influence : Influence
        Channel constraint that fused the running graph.

    Raises
    ------
    WidthError
        The width is invalid, no region matches, a region keeps state, or ``influence`` is
        CHANNEL_EXLOCATION.
    """
    _require_width(region, width)
    if influence is Influence.CHANNEL_EXLOCATION:
        raise WidthError(
            f"the width of '{region}' cannot change while channels are kept apart "
            f"({influence.value}).",
            hint="run it under channelIsolation or noChannelInfluence.",
            region=region,
        )
    names = [name for name in graph.regions if fnmatchcase(name, region)]
    if not names:
        raise WidthError(
            f"there is no region '{region}' in the graph.",
            hint=did_you_mean(region, graph.regions)
            if graph.regions
            else "make one: give an operator or a composite a width.",
            region=region,
        )
    for name in names:
        _require_stateless(graph, name)
    members = tuple(_with_width(member, member.name, set(names), width) for member in graph.members)
    return Graph(members, graph.streams)


def _require_width(region: str, width: object) -> None:
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= WIDTH_MAX:
        raise WidthError(
            f"the width of '{region}' is a number from 1 to {WIDTH_MAX}, found {width!r}.",
            hint="give such a number.",
            region=region,
        )


def _require_stateless(graph: Graph, region: str) -> None:
    """Raise `WidthError` if an operator in a region keeps state."""
    for placed in _stateful_operators(graph):
        if any(region_of_operator.name == region for region_of_operator in placed.regions):
            raise WidthError(
                f"the width of '{region}' cannot change: its operator '{placed.name}' keeps state, "
                "which does not follow its keys to other channels.",
                hint="keep the width, or begin anew without the state (another checkpoint).",
                region=region,
                operator=placed.name,
            )


def _stateful_operators(graph: Graph) -> Iterator[PlacedOperator]:
    return (placed for placed in graph.places.values() if placed.operator.keeps_state)


def _with_width(member: GraphMember, name: str, names: set[str], width: int) -> GraphMember:
    """Return a member with a new width for each region in ``names``; ``name`` is its full name."""
    parallel = member.parallel
    if parallel is not None and name in names:
        parallel = replace(parallel, width=width)
    if not isinstance(member, Composite):
        return replace(member, parallel=parallel)
    inner = (_with_width(child, f"{name}.{child.name}", names, width) for child in member.members)
    return replace(member, parallel=parallel, members=tuple(inner))


# -- under a checkpoint ----------------------------------------------------------------------


def widths_kept(graph: Graph) -> dict[str, dict[str, int]]:
    """Return the region widths around each stateful operator, by full names."""
    return {
        placed.name: {region.name: region.parallel.width for region in placed.regions}
        for placed in _stateful_operators(graph)
    }


def require_widths_kept(graph: Graph, kept: Mapping[str, Mapping[str, int]]) -> None:
    """Raise WidthError if a stateful operator had other region widths."""
    now = widths_kept(graph)
    for operator, widths in kept.items():
        if operator in now and now[operator] != dict(widths):
            raise WidthError(
                f"the operator '{operator}' has kept state with {_describe_widths(widths)}, now it is to run "
                f"with {_describe_widths(now[operator])}; state does not follow its keys to other channels.",
                hint="give the widths of before, or begin anew (another checkpoint).",
                operator=operator,
            )


def _describe_widths(widths: Mapping[str, int]) -> str:
    return (
        " and ".join(f"width {width} of '{name}'" for name, width in widths.items()) or "no region"
    )


# -- what a change does ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WidthChange:
    """Effect of a width change on replicas, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    restarted: tuple[str, ...]
    """Replicas that stay, but whose connections change."""


def change_of(before: Physical, after: Physical) -> WidthChange:
    """Return the replica changes between two physical graphs."""
    old, new = _connections_by_replica(before), _connections_by_replica(after)
    return WidthChange(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        restarted=tuple(name for name in new if name in old and old[name] != new[name]),
    )


def _connections_by_replica(physical: Physical) -> dict[str, set[tuple[str, str, str]]]:
    """Return the incoming and outgoing connections by replica name: (producer, consumer, port).

    A *replica* is one channel's copy of an operator; the physical graph has all replicas.
    """
    connections: dict[str, set[tuple[str, str, str]]] = {name: set() for name in physical.replica}
    for connection in physical.connections:
        for end in (connection.producer, connection.consumer):
            connections[end].add((connection.producer, connection.consumer, connection.port))
    return connections


NAME = "upsertflow-flow.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """File content; ``id`` is drawn once, and identifies the flow in batch transactions."""

    id: str
    sources: tuple[str, ...]
    widths: Mapping[str, Mapping[str, int]]
    """Region widths around each stateful operator (`widths_kept`)."""


def remember(graph: Graph, checkpoint: str, storage: Mapping[str, str]) -> str | None:
    """Compare a graph with its checkpoint's record, then record the graph; return the flow id.

    Returns None if the checkpoint cannot be opened as a store and no operator keeps state.

    Raises
    ------
    GraphError
        Sources differ, or an operator keeps state and the checkpoint cannot be opened.
    WidthError
        A stateful operator had other region widths.
    """
    sources = tuple(
        name for name, placed in graph.places.items() if placed.operator.kind is OperatorKind.SOURCE
    )
    widths = widths_kept(graph)
    try:
        store = open_store(checkpoint, storage)
    except OptionError as error:
        _require_no_state(checkpoint, widths, error)
        return None
    recorded = read_record(store, NAME, _parse_state)
    if recorded is None:
        store.prepare("")
    else:
        _require_sources(sources, recorded.sources)
        require_widths_kept(graph, recorded.widths)
    flow_id = uuid.uuid4().hex if recorded is None else recorded.id
    now = FlowState(id=flow_id, sources=sources, widths=widths)
    checked_record(NAME, now, {"format": FORMAT_VERSION, **asdict(now)}, _parse_state).put(store)
    return flow_id


def _parse_state(record: Mapping[str, Any]) -> FlowState:
    return FlowState(
        id=text(record["id"]),
        sources=tuple(map(text, record["sources"])),
        widths={text(name): numbers(widths) for name, widths in record["widths"].items()},
    )


def _require_no_state(checkpoint: str, widths: Mapping[str, object], error: OptionError) -> None:
    for operator in widths:
        raise GraphError(
            f"'{operator}' keeps state, and the checkpoint at '{checkpoint}' cannot be read to "
            "hold the widths of its regions against those of before.",
            hint="put the checkpoint where tables can lie.",
            operators=(operator,),
        ) from error


def _require_sources(now: tuple[str, ...], before: tuple[str, ...]) -> None:
    if now != before:
        raise GraphError(
            f"the flow of this checkpoint had the sources {', '.join(before)}, in this order; now "
            f"it has {', '.join(now)}.",
            hint="give them in the order of before, whose numbers the checkpoint keeps, or begin "
            "anew (another checkpoint).",
            operators=now,
        )
