"""Placement of replicas: which share an element, which are kept apart, and which are alone.

An id on a composite is an id of each operator within. A plain id is the same in all channels, so
that ``colocate="x"`` puts **all** replicas together, and ``exlocate="x"`` keeps each from every
other. `by_channel()` and `by_replica()` become ids of a region: the operator or composite that they
are written on, if it is a region, else the innermost one around it:

====================  ==============================================
``by_channel()``      ``<region>_<global channel at that level>``
``by_replica()``      ``<region>``
either, in no region  ``<operator or composite>``
====================  ==============================================

Replicas that share an id are together, and so are those that share one with any of them: each such
set is a *unit*. Then units with rows going to and fro between them become one unit, because two
processing elements cannot wait for each other. If ``A`` and ``C`` are together and rows go from
``A`` by ``B`` to ``C``, then ``B`` is with them. Colocation never keeps other replicas away.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spark_upsert.errors import PlacementError
from spark_upsert.flow.channels import ChannelPath
from spark_upsert.flow.expansion import Physical, Replica
from spark_upsert.flow.fusion.partitions import UnionFind
from spark_upsert.flow.graph import ByChannel, PlacedOperator, Placement, PlacementId


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a replica, in the order in which they were given, those of composites last."""

    colocate: tuple[str, ...]
    exlocate: tuple[str, ...]
    isolated_by: str | None
    """The operator or composite that says that it is alone."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Replicas that are in one processing element whatever the scheme."""

    replicas: tuple[Replica, ...]
    is_isolated: bool
    exlocate: frozenset[str]
    is_closed: bool = False
    """Whether others came in because rows go out and back, and not by their ids."""


def ids_of(physical: Physical) -> dict[str, Ids]:
    """Return the ids of each replica, by its name."""
    return {
        replica.name: _ids(place, replica.channel)
        for place in physical.graph.places.values()
        for replica in physical.replicas_of[place.name]
    }


def _ids(place: PlacedOperator, channel: ChannelPath) -> Ids:
    said = list(_said_of(place))

    def named(ids: Iterable[tuple[str, PlacementId]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_expanded(each, on, place, channel) for on, each in ids))

    return Ids(
        colocate=named((on, each) for on, placement in said for each in placement.colocate),
        exlocate=named((on, each) for on, placement in said for each in placement.exlocate),
        isolated_by=next((on for on, placement in said if placement.isolate), None),
    )


def _said_of(place: PlacedOperator) -> Iterator[tuple[str, Placement]]:
    """Yield what is said of an operator, and by the full name of what it is said."""
    yield place.name, place.operator.placement
    for name, composite in place.composites:
        yield name, composite.placement


def _expanded(given: PlacementId, on: str, place: PlacedOperator, channel: ChannelPath) -> str:
    """Return an id of a replica as text."""
    if isinstance(given, str):
        return given
    for level, region in enumerate(place.regions):
        if on == region.name or on.startswith(f"{region.name}."):
            if isinstance(given, ByChannel):
                return f"{region.name}_{channel.all[level]}"
            return region.name
    return on


# -- units -----------------------------------------------------------------------------------


def units_of(physical: Physical) -> tuple[Unit, ...]:
    """Return the units of a graph, in the order of their first replicas.

    Raises
    ------
    PlacementError
        Two replicas must be together and must be apart.

    Notes
    -----
    Source: the placement configs of SPL (``partitionColocation`` and its like). That units are
    without cycles is ours: its processing elements are connected by sockets, and may wait for
    each other.
    """
    ids = ids_of(physical)
    colocated = _colocated(physical, ids)
    index = {name: at for at, names in enumerate(colocated) for name in names}
    streams = {(index[each.producer], index[each.consumer]) for each in physical.connections}
    order = {replica.name: at for at, replica in enumerate(physical.replicas)}
    units = []
    for component in _components(len(colocated), streams):
        names = sorted((name for at in component for name in colocated[at]), key=order.__getitem__)
        unit = Unit(
            replicas=tuple(physical.replica[name] for name in names),
            is_isolated=any(ids[name].isolated_by for name in names),
            exlocate=frozenset(each for name in names for each in ids[name].exlocate),
            is_closed=len(component) > 1,
        )
        _require_consistent(unit, ids)
        units.append(unit)
    return tuple(sorted(units, key=lambda unit: order[unit.replicas[0].name]))


def _colocated(physical: Physical, ids: dict[str, Ids]) -> list[list[str]]:
    """Return the names of what shares ids, directly or by others between."""
    names = list(physical.replica)
    merged = UnionFind(len(names))
    first: dict[str, int] = {}
    for at, name in enumerate(names):
        for each in ids[name].colocate:
            merged.join(first.setdefault(each, at), at)
    found: dict[int, list[str]] = defaultdict(list)
    for at, name in enumerate(names):
        found[merged.first(at)].append(name)
    return list(found.values())


def _components(count: int, streams: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components: what can be reached from each other.

    Notes
    -----
    Source: Tarjan, "Depth-first search and linear graph algorithms" (1972), with a stack in
    place of calls.
    """
    behind: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in sorted(streams):
        behind[producer].append(consumer)
    number, lowest = [-1] * count, [0] * count
    is_open = [False] * count
    path: list[int] = []
    reached = 0
    for root in range(count):
        stack = [(root, iter(behind[root]))] if number[root] < 0 else []
        while stack:
            each, consumers = stack[-1]
            if number[each] < 0:
                number[each] = lowest[each] = reached
                reached += 1
                path.append(each)
                is_open[each] = True
            for consumer in consumers:
                if number[consumer] < 0:
                    stack.append((consumer, iter(behind[consumer])))
                    break
                if is_open[consumer]:
                    lowest[each] = min(lowest[each], number[consumer])
            else:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    lowest[above] = min(lowest[above], lowest[each])
                if lowest[each] == number[each]:
                    component: list[int] = []
                    while not component or component[-1] != each:
                        component.append(path.pop())
                        is_open[component[-1]] = False
                    yield component


# -- conflicts -------------------------------------------------------------------------------


def _require_consistent(unit: Unit, ids: dict[str, Ids]) -> None:
    """Refuse a unit of which some must be apart."""
    names = [replica.name for replica in unit.replicas]
    if len(names) == 1:
        return
    alone = next((name for name in names if ids[name].isolated_by), None)
    if alone is not None:
        other = _nearest(alone, names, ids)
        raise _clash(alone, other, names, ids, f"'{ids[alone].isolated_by}' is isolated")
    having: dict[str, str] = {}
    for name in names:
        for each in ids[name].exlocate:
            if each in having:
                raise _clash(having[each], name, names, ids, f"both are exlocated by '{each}'")
            having[each] = name


def _nearest(name: str, names: list[str], ids: dict[str, Ids]) -> str:
    """Return another replica, one that shares an id if there is any."""
    others = [other for other in names if other != name]
    own = set(ids[name].colocate)
    return next((other for other in others if own & set(ids[other].colocate)), others[0])


def _clash(
    one: str, other: str, names: list[str], ids: dict[str, Ids], apart: str
) -> PlacementError:
    chain = _chain(one, other, names, ids)
    if chain:
        together = f"they are colocated by {' and '.join(repr(each) for each in chain)}"
    else:
        together = (
            "rows go from what is colocated by "
            f"{' and '.join(repr(each) for each in _shared(names, ids))} to others and back"
        )
    return PlacementError.clash(one, other, together=together, apart=apart)


def _chain(one: str, other: str, names: list[str], ids: dict[str, Ids]) -> list[str]:
    """Return the ids by which two replicas are together, one after the other; none if by none."""
    having: dict[str, list[str]] = defaultdict(list)
    for name in names:
        for each in ids[name].colocate:
            having[each].append(name)
    ways: dict[str, list[str]] = {one: []}
    waiting = deque([one])
    while waiting:
        name = waiting.popleft()
        for each in ids[name].colocate:
            for reached in having.pop(each, ()):
                if reached not in ways:
                    ways[reached] = [*ways[name], each]
                    waiting.append(reached)
    return ways.get(other, [])


def _shared(names: list[str], ids: dict[str, Ids]) -> list[str]:
    """Return the ids that more than one replica has."""
    given = [each for name in names for each in ids[name].colocate]
    return sorted({each for each in given if given.count(each) > 1})
