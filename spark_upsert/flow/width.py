"""Change the width of a region, where nothing is lost by it.

With another width keys go to other channels, and state does not follow them. So a region can get
another width only while no operator within keeps state. A flow under a checkpoint records the
widths around each operator that keeps state (`widths_kept`) and checks them when it goes on
(`require_widths_kept`); regions without state go on at any width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from spark_upsert.errors import WidthError, did_you_mean
from spark_upsert.flow.expansion import Physical
from spark_upsert.flow.fusion.fusion import Influence
from spark_upsert.flow.graph import Composite, Graph, GraphMember, PlacedOperator

WIDTH_MAX = 2**31 - 1
"""The range of a signed number of 32 bits, as Spark numbers its partitions."""


def changed_width(
    graph: Graph, region: str, width: int, *, influence: Influence = Influence.NONE
) -> Graph:
    """Return the graph with another width of one or more regions.

    Parameters
    ----------
    region : str
        The full name of a region, or a pattern for several: ``*`` stands for any text, dots
        included, ``?`` for one character, ``[ab]`` for one of these. A region within another
        gets the width in each channel of the outer one.
    influence : Influence
        That by which the running graph was fused.

    Raises
    ------
    WidthError
        The width is none, there is no such region, it keeps state, or its channels are kept apart.
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
    members = tuple(_with_width(each, each.name, set(names), width) for each in graph.members)
    return Graph(members, graph.streams)


def _require_width(region: str, width: object) -> None:
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= WIDTH_MAX:
        raise WidthError(
            f"the width of '{region}' is a number from 1 to {WIDTH_MAX}, found {width!r}.",
            hint="give such a number.",
            region=region,
        )


def _require_stateless(graph: Graph, region: str) -> None:
    for place in _keeping_state(graph):
        if any(each.name == region for each in place.regions):
            raise WidthError(
                f"the width of '{region}' cannot change: its operator '{place.name}' keeps state, "
                "which does not follow its keys to other channels.",
                hint="keep the width, or begin anew without the state (another checkpoint).",
                region=region,
                operator=place.name,
            )


def _keeping_state(graph: Graph) -> Iterator[PlacedOperator]:
    return (place for place in graph.places.values() if place.operator.keeps_state)


def _with_width(member: GraphMember, name: str, names: set[str], width: int) -> GraphMember:
    parallel = member.parallel
    if parallel is not None and name in names:
        parallel = replace(parallel, width=width)
    if not isinstance(member, Composite):
        return replace(member, parallel=parallel)
    inner = (_with_width(each, f"{name}.{each.name}", names, width) for each in member.members)
    return replace(member, parallel=parallel, members=tuple(inner))


# -- under a checkpoint ----------------------------------------------------------------------


def widths_kept(graph: Graph) -> dict[str, dict[str, int]]:
    """Return the width of each region around each operator that keeps state, by full names."""
    return {
        place.name: {region.name: region.parallel.width for region in place.regions}
        for place in _keeping_state(graph)
    }


def require_widths_kept(graph: Graph, kept: Mapping[str, Mapping[str, int]]) -> None:
    """Refuse to go on from state that was kept at other widths.

    Parameters
    ----------
    kept : mapping
        What `widths_kept` returned of the graph that kept the state.

    Raises
    ------
    WidthError
        A region around an operator that keeps state has another width, or is another.
    """
    now = widths_kept(graph)
    for operator, widths in kept.items():
        if operator in now and now[operator] != dict(widths):
            raise WidthError(
                f"the operator '{operator}' has kept state with {_said(widths)}, now it is to run "
                f"with {_said(now[operator])}; state does not follow its keys to other channels.",
                hint="give the widths of before, or begin anew (another checkpoint).",
                operator=operator,
            )


def _said(widths: Mapping[str, int]) -> str:
    return (
        " and ".join(f"width {width} of '{name}'" for name, width in widths.items()) or "no region"
    )


# -- what a change does ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WidthChange:
    """The replicas in place of one where a region gets another width, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    restarted: tuple[str, ...]
    """Replicas that stay, but give rows to others than before, or take them from others."""


def change_of(before: Physical, after: Physical) -> WidthChange:
    """Return what becomes of replicas between two graphs."""
    old, new = _around(before), _around(after)
    return WidthChange(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        restarted=tuple(name for name in new if name in old and old[name] != new[name]),
    )


def _around(physical: Physical) -> dict[str, set[tuple[str, str, str]]]:
    """Return what each replica is connected with."""
    found: dict[str, set[tuple[str, str, str]]] = {name: set() for name in physical.replica}
    for each in physical.connections:
        for end in (each.producer, each.consumer):
            found[end].add((each.producer, each.consumer, each.port))
    return found
