"""Replica placement: *units* that stay together, and their partitions into elements.

A partition is allowed if no element contains units that must be apart and elements never wait for
each other. `automatic` and `manual` join elements greedily (docs/adr/0041).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from typing import TypeAlias

from spark_upsert.errors import PlacementError
from spark_upsert.flow.expand import Physical, Replica
from spark_upsert.flow.graph import ByChannel, ChannelPath, PlacedOperator, Placement, PlacementId

PAIRS_MAX = 64
"""Maximum elements for trying every pair; beyond it, only connected pairs are tried."""

TRIES_MAX = 2_000
"""Maximum joins that `manual` tries after its three passes; each scans all streams once."""

Partition: TypeAlias = tuple[int, ...]
"""Element per unit; elements are numbered by their first units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separations:
    """Separation rules for a unit or element."""

    is_alone: bool = False
    """Whether the unit shares its element with no other."""
    exclusive: frozenset[str] = frozenset()
    """Names: units with a common name never share an element."""
    same: Mapping[str, Hashable] = field(default_factory=dict)
    """Values by name: units with different values for a name never share an element."""

    def allows(self, other: Separations) -> bool:
        """Return whether two units or elements may share an element."""
        if self.is_alone or other.is_alone or self.exclusive & other.exclusive:
            return False
        return all(other.same.get(name, value) == value for name, value in self.same.items())

    def __or__(self, other: Separations) -> Separations:
        """Return the rules for an element that contains both."""
        return Separations(
            exclusive=self.exclusive | other.exclusive, same={**self.same, **other.same}
        )


@dataclass(frozen=True, kw_only=True)
class Units:
    """Units to be assigned to elements."""

    bounds: tuple[Separations, ...]
    """Separation rules per unit; never empty."""
    streams: Mapping[tuple[int, int], float]
    """Row volume by producer and consumer unit; contains no cycle."""
    is_free: tuple[bool | None, ...]
    """Whether each unit can run in any task that has its rows; None for sinks, which do not run."""

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.bounds)

    @cached_property
    def is_unbounded(self) -> bool:
        """Whether any units may share an element."""
        return all(bound == Separations() for bound in self.bounds)


def numbered(elements: Iterable[Hashable]) -> Partition:
    """Return a partition from arbitrary element names per unit."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(element, len(numbers)) for element in elements)


def order_of(partition: Partition, units: Units) -> list[int] | None:
    """Return the elements in topological order; None if the partition is not allowed."""
    if not units.is_unbounded and not _are_apart(partition, units):
        return None
    between = {
        (partition[producer], partition[consumer])
        for producer, consumer in units.streams
        if partition[producer] != partition[consumer]
    }
    count = max(partition) + 1
    order = _sort_topologically(count, between)
    return order if len(order) == count else None


def _are_apart(partition: Partition, units: Units) -> bool:
    """Return whether every element satisfies the separation rules."""
    separations: dict[int, Separations] = {}
    for element, bounds in zip(partition, units.bounds, strict=True):
        if element not in separations:
            separations[element] = bounds
        elif separations[element].allows(bounds):
            separations[element] |= bounds
        else:
            return False
    return True


def _sort_topologically(count: int, streams: Iterable[tuple[int, int]]) -> list[int]:
    """Return the nodes outside cycles in topological order, depth first."""
    successors: list[list[int]] = [[] for _ in range(count)]
    awaited = [0] * count
    for producer, consumer in streams:
        successors[producer].append(consumer)
        awaited[consumer] += 1
    ready = [start for start in reversed(range(count)) if not awaited[start]]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for consumer in sorted(successors[node], reverse=True):
            awaited[consumer] -= 1
            if not awaited[consumer]:
                ready.append(consumer)
    return order


# -- schemes ---------------------------------------------------------------------------------


def automatic(units: Units, slots: int) -> Partition:
    """Return a greedy partition with few elements that keep all slots busy."""
    joins = _Joins(units, least=1)
    joins.join_chains()
    joins.join_levels(slots, any_kind=slots == 1)
    joins.join_single_levels(any_kind=slots == 1)
    return joins.partition


def manual(units: Units, count: int) -> Partition:
    """Return a partition with ``count`` elements, or more if no allowed join is found."""
    joins = _Joins(units, least=count)
    joins.join_chains()
    width = joins.widest
    while width > 1:
        width //= 2
        joins.join_levels(width, any_kind=True)
    joins.join_single_levels(any_kind=True)
    joins.join_any()
    return joins.partition


class _Joins:
    """Partition whose elements are joined greedily, down to a minimum element count."""

    def __init__(self, units: Units, *, least: int) -> None:
        self._units = units
        self._least = least
        self._into = UnionFind(units.count)
        self._bounds = list(units.bounds)
        self._is_free = list(units.is_free)
        self.count = units.count

    @property
    def partition(self) -> Partition:
        return numbered(map(self._into.first, range(self._units.count)))

    @property
    def widest(self) -> int:
        """Maximum number of elements that run in parallel."""
        return max(map(len, self._levels()))

    def join_chains(self) -> None:
        """Join along streams that are the only output and the only input at their ends."""
        streams = self._streams()
        after: dict[int, set[int]] = {}
        before: dict[int, set[int]] = {}
        for producer, consumer in streams:
            after.setdefault(producer, set()).add(consumer)
            before.setdefault(consumer, set()).add(producer)
        for producer, consumer in sorted(streams, key=lambda pair: (-streams[pair], pair)):
            if len(after[producer]) == len(before[consumer]) == 1:
                self._join_alike(producer, consumer)

    def join_levels(self, slots: int, *, any_kind: bool) -> None:
        """Join elements that run in parallel, until each level has at most ``slots`` elements.

        Without ``any_kind``, elements that can run in any task need no slot.
        """
        for level in self._levels():
            side = [element for element in level if any_kind or not self._is_free[element]]
            held: dict[int, list[int]] = {}
            for position, element in enumerate(side if len(side) > slots else ()):
                others = held.setdefault(position * slots // len(side), [])
                if not any(self._join(other_element, element) for other_element in others):
                    others.append(element)

    def join_single_levels(self, *, any_kind: bool) -> None:
        """Join consecutive levels that contain one element each."""
        join = self._join if any_kind else self._join_alike
        for one, other_element in pairwise(self._levels()):
            if len(one) == len(other_element) == 1:
                join(one[0], other_element[0])

    def join_any(self) -> None:
        """Join any two elements if the rules allow it and no cycle results."""
        for _ in range(TRIES_MAX):
            if self.count <= self._least or not self._join_one():
                return

    def _join_one(self) -> bool:
        for one, other_element in self._pairs():
            if not self._bounds[one].allows(self._bounds[other_element]):
                continue
            elements = map(self._into.first, range(self._units.count))
            joined = numbered(one if element == other_element else element for element in elements)
            if order_of(joined, self._units) is not None:
                return self._join(one, other_element)
        return False

    def _pairs(self) -> Iterator[tuple[int, int]]:
        yield from self._streams()
        elements = self._elements()
        if len(elements) <= PAIRS_MAX:
            yield from combinations(elements, 2)

    def _elements(self) -> list[int]:
        """Return each element as its first unit."""
        return sorted(set(map(self._into.first, range(self._units.count))))

    def _streams(self) -> dict[tuple[int, int], float]:
        """Return the row volume between elements."""
        volumes: dict[tuple[int, int], float] = {}
        for (producer, consumer), rows in self._units.streams.items():
            pair = self._into.first(producer), self._into.first(consumer)
            if pair[0] != pair[1]:
                volumes[pair] = volumes.get(pair, 0.0) + rows
        return volumes

    def _levels(self) -> list[list[int]]:
        """Return the elements by the length of the longest path to them.

        No path connects elements within a level, so joining them creates no cycle.
        """
        elements, streams = self._elements(), self._streams()
        at = {element: element_index for element_index, element in enumerate(elements)}
        after: dict[int, list[int]] = {element: [] for element in elements}
        for producer, consumer in streams:
            after[producer].append(consumer)
        level = dict.fromkeys(elements, 0)
        for position in _sort_topologically(
            len(elements), {(at[one], at[other_element]) for one, other_element in streams}
        ):
            for consumer in after[elements[position]]:
                level[consumer] = max(level[consumer], level[elements[position]] + 1)
        levels: list[list[int]] = [[] for _ in range(max(level.values()) + 1)]
        for element in elements:
            levels[level[element]].append(element)
        return levels

    def _join_alike(self, one: int, other: int) -> bool:
        """Join two elements unless exactly one can run in any task."""
        is_free = {self._is_free[self._into.first(element)] for element in (one, other)}
        return not is_free >= {True, False} and self._join(one, other)

    def _join(self, one: int, other: int) -> bool:
        """Join two elements if the rules allow it; return whether they are one."""
        one, other = sorted(map(self._into.first, (one, other)))
        if one == other or self.count <= self._least:
            return one == other
        if not self._bounds[one].allows(self._bounds[other]):
            return False
        self._into.join(one, other)
        self._bounds[one] |= self._bounds[other]
        freedoms = {self._is_free[one], self._is_free[other]} - {None}
        self._is_free[one] = None if not freedoms else freedoms == {True}
        self.count -= 1
        return True


class UnionFind:
    """Union-find over unit numbers; the representative of a set is its smallest member."""

    def __init__(self, count: int) -> None:
        self._into = list(range(count))

    def first(self, number: int) -> int:
        """Return the representative for a number's set (find)."""
        while self._into[number] != number:
            self._into[number] = self._into[self._into[number]]
            number = self._into[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Join two numbers' sets (union)."""
        one, other = sorted((self.first(one), self.first(other)))
        self._into[other] = one


@dataclass(frozen=True, slots=True)
class Ids:
    """Placement ids of a replica in declaration order; composites' ids are last."""

    colocate: tuple[str, ...]
    exlocate: tuple[str, ...]
    isolated_by: str | None
    """Operator or composite that declares isolation; None if not isolated."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Replicas that share a processing element under every scheme."""

    replicas: tuple[Replica, ...]
    is_isolated: bool
    exlocate: frozenset[str]
    is_closed: bool = False
    """Whether rows that leave and return, and not ids alone, joined its replicas."""


def ids_of(physical: Physical) -> dict[str, Ids]:
    """Return placement ids by replica name.

    A composite's ids apply to each operator in it. `by_channel` becomes
    ``<region>_<global channel>``, `by_replica` ``<region>``, for the innermost region. Outside any
    region, both become the operator or composite name.
    """
    return {
        replica.name: _ids(placed, replica.channel)
        for placed in physical.graph.places.values()
        for replica in physical.replicas_of[placed.name]
    }


def _ids(place: PlacedOperator, channel: ChannelPath) -> Ids:
    placements = list(_iter_placements(place))

    def named(ids: Iterable[tuple[str, PlacementId]]) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(_expand_id(group_id, on, place, channel) for on, group_id in ids)
        )

    return Ids(
        colocate=named(
            (on, group_id) for on, placement in placements for group_id in placement.colocate
        ),
        exlocate=named(
            (on, group_id) for on, placement in placements for group_id in placement.exlocate
        ),
        isolated_by=next((on for on, placement in placements if placement.isolate), None),
    )


def _iter_placements(place: PlacedOperator) -> Iterator[tuple[str, Placement]]:
    """Yield the placements for an operator, each with its declaring full name."""
    yield place.name, place.operator.placement
    for name, composite in place.composites:
        yield name, composite.placement


def _expand_id(
    placement_id: PlacementId, on: str, place: PlacedOperator, channel: ChannelPath
) -> str:
    """Return a placement id as text."""
    if isinstance(placement_id, str):
        return placement_id
    for level, region in enumerate(place.regions):
        if on == region.name or on.startswith(f"{region.name}."):
            if isinstance(placement_id, ByChannel):
                return f"{region.name}_{channel.all[level]}"
            return region.name
    return on


# -- units -----------------------------------------------------------------------------------


def units_of(physical: Physical) -> tuple[Unit, ...]:
    """Return a graph's units, ordered by their first replicas.

    Notes
    -----
    Source: the placement configs in SPL, such as ``partitionColocation``. Our addition: cycles are
    merged into one unit. SPL connects processing elements by sockets, so they may wait for each
    other.
    """
    ids = ids_of(physical)
    colocated = _group_colocated(physical, ids)
    index = {name: at for at, names in enumerate(colocated) for name in names}
    streams = {
        (index[connection.producer], index[connection.consumer])
        for connection in physical.connections
    }
    order = {replica.name: at for at, replica in enumerate(physical.replicas)}
    units = []
    for component in _components(len(colocated), streams):
        names = sorted((name for at in component for name in colocated[at]), key=order.__getitem__)
        unit = Unit(
            replicas=tuple(physical.replica[name] for name in names),
            is_isolated=any(ids[name].isolated_by for name in names),
            exlocate=frozenset(group_id for name in names for group_id in ids[name].exlocate),
            is_closed=len(component) > 1,
        )
        _require_consistent(unit, ids)
        units.append(unit)
    return tuple(sorted(units, key=lambda unit: order[unit.replicas[0].name]))


def _group_colocated(physical: Physical, ids: dict[str, Ids]) -> list[list[str]]:
    """Return the replica names grouped by common ids, directly or through other replicas."""
    names = list(physical.replica)
    merged = UnionFind(len(names))
    first: dict[str, int] = {}
    for at, name in enumerate(names):
        for group_id in ids[name].colocate:
            merged.join(first.setdefault(group_id, at), at)
    members: dict[int, list[str]] = defaultdict(list)
    for at, name in enumerate(names):
        members[merged.first(at)].append(name)
    return list(members.values())


def _components(count: int, streams: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components.

    Notes
    -----
    Source: Tarjan, "Depth-first search and linear graph algorithms" (1972), with a stack
    instead of recursion.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in sorted(streams):
        successors[producer].append(consumer)
    number, lowest = [-1] * count, [0] * count
    is_open = [False] * count
    path: list[int] = []
    reached = 0
    for root in range(count):
        stack = [(root, iter(successors[root]))] if number[root] < 0 else []
        while stack:
            node, consumers = stack[-1]
            if number[node] < 0:
                number[node] = lowest[node] = reached
                reached += 1
                path.append(node)
                is_open[node] = True
            for consumer in consumers:
                if number[consumer] < 0:
                    stack.append((consumer, iter(successors[consumer])))
                    break
                if is_open[consumer]:
                    lowest[node] = min(lowest[node], number[consumer])
            else:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == number[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(path.pop())
                        is_open[component[-1]] = False
                    yield component


# -- conflicts -------------------------------------------------------------------------------


def _require_consistent(unit: Unit, ids: dict[str, Ids]) -> None:
    """Raise PlacementError if replicas in a unit must be apart."""
    names = [replica.name for replica in unit.replicas]
    if len(names) == 1:
        return
    alone = next((name for name in names if ids[name].isolated_by), None)
    if alone is not None:
        partner = _nearest(alone, names, ids)
        raise _conflict_error(alone, partner, names, ids, f"'{ids[alone].isolated_by}' is isolated")
    having: dict[str, str] = {}
    for name in names:
        for group_id in ids[name].exlocate:
            if group_id in having:
                raise _conflict_error(
                    having[group_id], name, names, ids, f"both are exlocated by '{group_id}'"
                )
            having[group_id] = name


def _nearest(name: str, names: list[str], ids: dict[str, Ids]) -> str:
    """Return another replica, preferably one with a common id."""
    others = [candidate for candidate in names if candidate != name]
    group_ids = set(ids[name].colocate)
    return next(
        (candidate for candidate in others if group_ids & set(ids[candidate].colocate)), others[0]
    )


def _conflict_error(
    one: str, other: str, names: list[str], ids: dict[str, Ids], apart: str
) -> PlacementError:
    chain = _find_id_chain(one, other, names, ids)
    if chain:
        reason = f"they are colocated by {' and '.join(repr(group_id) for group_id in chain)}"
    else:
        reason = (
            "rows go from what is colocated by "
            f"{' and '.join(repr(group_id) for group_id in _find_shared_ids(names, ids))} to others and back"
        )
    return PlacementError.clash(one, other, together=reason, apart=apart)


def _find_id_chain(one: str, other: str, names: list[str], ids: dict[str, Ids]) -> list[str]:
    """Return the ids that connect two replicas, in path order; empty if none do."""
    having: dict[str, list[str]] = defaultdict(list)
    for name in names:
        for group_id in ids[name].colocate:
            having[group_id].append(name)
    paths: dict[str, list[str]] = {one: []}
    waiting = deque([one])
    while waiting:
        name = waiting.popleft()
        for group_id in ids[name].colocate:
            for reached in having.pop(group_id, ()):
                if reached not in paths:
                    paths[reached] = [*paths[name], group_id]
                    waiting.append(reached)
    return paths.get(other, [])


def _find_shared_ids(names: list[str], ids: dict[str, Ids]) -> list[str]:
    """Return the ids that several replicas have."""
    group_ids = [group_id for name in names for group_id in ids[name].colocate]
    return sorted({group_id for group_id in group_ids if group_ids.count(group_id) > 1})
