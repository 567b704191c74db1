"""Partitions of units into processing elements: all that are allowed, and the cheapest.

A *unit* is a set of replicas that placement keeps together, here a number; a partition gives each
unit the number of its element. A partition is allowed if no element holds units that must be apart,
and if rows never go from an element to another and back: an element begins when it has its input,
so that two that wait for each other would never begin.

Up to `EXACT_UNITS_MAX` units the search looks at every allowed partition. Above, it is a local
search: it starts at several partitions, among them one element for each unit and, where that is
allowed, one for all, and goes on to better neighbours. So its result is never worse than those two.

**Every number of elements between the least and the number of units can be had**: the units of an
element, in an order in which rows flow, can be cut anywhere. Rows would flow back from the
second part to the first only through another element, which would have been a cycle before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

EXACT_UNITS_MAX = 8
"""There are 4140 partitions of eight units, and 21147 of nine."""

VISITS_MAX = 1_000_000
"""Units and streams that are looked at in the search for a better partition: about a second."""

Partition: TypeAlias = tuple[int, ...]
"""The element of each unit; elements are numbered by their first units."""

Cost: TypeAlias = tuple[float, ...]
"""A cost: less is better, and the first different number decides."""

CostOf: TypeAlias = Callable[[Partition, Sequence[int]], Cost]
"""The cost of an allowed partition, from its elements in an order in which rows flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separations:
    """The rules by which a unit must not share an element with others."""

    is_alone: bool = False
    """Whether the unit shares its element with no other."""
    exclusive: frozenset[str] = frozenset()
    """Names: the unit shares its element with no unit that has one of these, too."""
    same: Mapping[str, Hashable] = field(default_factory=dict)
    """Values by name: the unit shares its element with no unit that has another value of one."""

    def allows(self, other: Separations) -> bool:
        """Say whether two units may share an element."""
        if self.is_alone or other.is_alone or self.exclusive & other.exclusive:
            return False
        return all(other.same.get(name, value) == value for name, value in self.same.items())


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units that are to be shared out among elements."""

    bounds: tuple[Separations, ...]
    """The separations of each unit; there is at least one unit."""
    streams: tuple[tuple[int, int], ...]
    """Pairs of a unit and another that its rows go to, without cycles; no pair twice."""
    kinds: tuple[Hashable, ...]
    """The kind of each unit: units of one kind do the same in different channels."""

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.bounds)

    @cached_property
    def flow(self) -> tuple[int, ...]:
        """The units, each behind those from which its rows come; the rest of a channel first."""
        return tuple(_flow(self.count, self.streams))

    @cached_property
    def is_free(self) -> bool:
        """Whether any units may share an element."""
        return all(each == Separations() for each in self.bounds)


def elements_of(partition: Partition) -> list[list[int]]:
    """Return the units of each element."""
    found: list[list[int]] = [[] for _ in range(max(partition) + 1)]
    for unit, element in enumerate(partition):
        found[element].append(unit)
    return found


def numbered(elements: Iterable[Hashable]) -> Partition:
    """Return a partition from any names of the elements of the units."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(each, len(numbers)) for each in elements)


def order_of(partition: Partition, units: Units) -> list[int] | None:
    """Return the elements of an allowed partition as rows flow; None if it is not allowed."""
    if not units.is_free and not _are_apart(partition, units):
        return None
    between = {
        (partition[producer], partition[consumer])
        for producer, consumer in units.streams
        if partition[producer] != partition[consumer]
    }
    count = max(partition) + 1
    order = _flow(count, between)
    return order if len(order) == count else None


def _are_apart(partition: Partition, units: Units) -> bool:
    """Say whether all units that must be apart are; in one pass over the units."""
    alone: set[int] = set()
    used: set[int] = set()
    exclusive: set[tuple[int, str]] = set()
    same: dict[tuple[int, str], Hashable] = {}
    for element, bounds in zip(partition, units.bounds, strict=True):
        if element in alone or (bounds.is_alone and element in used):
            return False
        used.add(element)
        if bounds.is_alone:
            alone.add(element)
        for name in bounds.exclusive:
            if (element, name) in exclusive:
                return False
            exclusive.add((element, name))
        for name, value in bounds.same.items():
            if same.setdefault((element, name), value) != value:
                return False
    return True


def _flow(count: int, streams: Iterable[tuple[int, int]]) -> list[int]:
    """Return what lies on no cycle in the order of the streams; the last one found goes on."""
    behind: list[list[int]] = [[] for _ in range(count)]
    awaited = [0] * count
    for producer, consumer in streams:
        behind[producer].append(consumer)
        awaited[consumer] += 1
    ready = [each for each in reversed(range(count)) if not awaited[each]]
    order: list[int] = []
    while ready:
        each = ready.pop()
        order.append(each)
        for consumer in sorted(behind[each], reverse=True):
            awaited[consumer] -= 1
            if not awaited[consumer]:
                ready.append(consumer)
    return order


# -- all of them -----------------------------------------------------------------------------


def iter_allowed(units: Units) -> Iterator[tuple[Partition, list[int]]]:
    """Yield each allowed partition with its elements as rows flow; all in one is the first."""
    for partition in _iter_apart(units, (), []):
        order = order_of(partition, units)
        if order is not None:
            yield partition, order


def _iter_apart(units: Units, begun: Partition, elements: list[list[int]]) -> Iterator[Partition]:
    """Yield the partitions that begin so and keep apart what must be."""
    unit = len(begun)
    if unit == units.count:
        yield begun
        return
    for number in range(len(elements)):
        if all(units.bounds[unit].allows(units.bounds[other]) for other in elements[number]):
            elements[number].append(unit)
            yield from _iter_apart(units, (*begun, number), elements)
            elements[number].pop()
    elements.append([unit])
    yield from _iter_apart(units, (*begun, len(elements) - 1), elements)
    elements.pop()


# -- the best one ----------------------------------------------------------------------------


def best(units: Units, cost_of: CostOf, *, counts: Iterable[int]) -> Partition:
    """Return the allowed partition that costs least; of equal ones the first that is found.

    Parameters
    ----------
    counts : iterable of int
        Numbers of elements at which the search starts, besides one and as many as units. What
        is exact needs none.
    """
    if units.count <= EXACT_UNITS_MAX:
        return min(iter_allowed(units), key=lambda found: cost_of(*found))[0]
    return _Search(units, cost_of).run(counts)


@dataclass(frozen=True, slots=True)
class _Found:
    """A partition that is allowed, and what it costs."""

    partition: Partition
    cost: Cost


class _Search:
    """A local search from partitions to better neighbours, until none is better or time is up."""

    def __init__(self, units: Units, cost_of: CostOf) -> None:
        self._units = units
        self._cost_of = cost_of
        self._visit = units.count + len(units.streams)
        self._left = 0

    def run(self, counts: Iterable[int]) -> Partition:
        """Return the best partition that is found."""
        starts = list(dict.fromkeys(self._starts(counts)))
        found = []
        for start in starts:
            self._left += VISITS_MAX // len(starts)
            judged = self._judge(start)
            if judged is not None:
                found.append(self._climb(judged))
        return min(found, key=lambda each: each.cost).partition

    def _starts(self, counts: Iterable[int]) -> Iterator[Partition]:
        """Yield partitions of which the first is always allowed."""
        yield tuple(range(self._units.count))
        yield (0,) * self._units.count
        levels = _by_level(self._units)
        for count in sorted({each for each in counts if 1 <= each <= self._units.count}):
            yield _cut(self._units, self._units.flow, count)
            yield _cut(self._units, levels, count)

    def _climb(self, found: _Found) -> _Found:
        while self._left > 0:
            better = self._better(found)
            if better is None:
                break
            found = better
        return found

    def _better(self, found: _Found) -> _Found | None:
        """Return the best neighbour by the first kind of move that has one; None if none has."""
        for moves in _MOVES:
            best_one = found
            for partition in moves(found.partition, self._units):
                if self._left <= 0:
                    break
                judged = self._judge(partition)
                if judged is not None and judged.cost < best_one.cost:
                    best_one = judged
            if best_one is not found:
                return best_one
        return None

    def _judge(self, partition: Partition) -> _Found | None:
        self._left -= self._visit
        order = order_of(partition, self._units)
        return None if order is None else _Found(partition, self._cost_of(partition, order))


def _by_level(units: Units) -> list[int]:
    """Return the units as rows flow, by the length of the longest way to them."""
    level = [0] * units.count
    behind: dict[int, list[int]] = defaultdict(list)
    for producer, consumer in units.streams:
        behind[producer].append(consumer)
    for unit in units.flow:
        for consumer in behind[unit]:
            level[consumer] = max(level[consumer], level[unit] + 1)
    return sorted(range(units.count), key=lambda unit: level[unit])


def _cut(units: Units, flow: Sequence[int], count: int) -> Partition:
    """Return stretches of the units as rows flow: about ``count``, more where they must be apart.

    Rows only go to later stretches, so that there is no cycle.
    """
    elements = [0] * units.count
    within: list[Separations] = []
    element, quota = -1, -1
    for place, unit in enumerate(flow):
        bounds = units.bounds[unit]
        if place * count // units.count > quota or not all(map(bounds.allows, within)):
            element, quota, within = element + 1, place * count // units.count, []
        elements[unit] = element
        within.append(bounds)
    return numbered(elements)


# -- neighbours ------------------------------------------------------------------------------

Moves: TypeAlias = Callable[[Partition, Units], Iterator[Partition]]


def _joined_in_all_channels(partition: Partition, units: Units) -> Iterator[Partition]:
    """Join elements along a stream, in each channel alike: the move that large regions need."""
    kinds = _kinds_of(partition, units)
    alike: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for producer, consumer in units.streams:
        pair = partition[producer], partition[consumer]
        if pair[0] != pair[1]:
            alike[kinds[pair[0]], kinds[pair[1]]].append(pair)
    for pairs in alike.values():
        yield _joined(partition, pairs)


def _packed(partition: Partition, units: Units) -> Iterator[Partition]:
    """Put elements that do the same in different channels together: half of them, all of them."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for element, kind in enumerate(_kinds_of(partition, units)):
        alike[kind].append(element)
    for elements in alike.values():
        for count in {1, (len(elements) + 1) // 2} - {len(elements)}:
            stretches = [elements[place::count] for place in range(count)]
            yield _joined(partition, ((s[0], each) for s in stretches for each in s[1:]))


def _joined_in_one(partition: Partition, units: Units) -> Iterator[Partition]:
    """Join two elements: those between which rows flow, then any other two."""
    pairs = dict.fromkeys((partition[p], partition[c]) for p, c in units.streams)
    count = max(partition) + 1
    others = ((one, other) for one in range(count) for other in range(one + 1, count))
    for one, other in (*pairs, *others) if count <= _ALL_PAIRS_MAX else pairs:
        if one != other:
            yield _joined(partition, [(one, other)])


_ALL_PAIRS_MAX = 64
"""Elements of which any two are tried; of more only those between which rows flow."""


def _moved(partition: Partition, units: Units) -> Iterator[Partition]:
    """Take a unit out of its element: into one of its neighbours', or alone."""
    alone = max(partition) + 1
    for one, other in (*units.streams, *((c, p) for p, c in units.streams)):
        if partition[one] != partition[other]:
            yield _with(partition, one, partition[other])
    for unit in range(units.count):
        yield _with(partition, unit, alone)


def _cut_in_two(partition: Partition, units: Units) -> Iterator[Partition]:
    """Cut an element anywhere as rows flow, which is always allowed."""
    elements: list[list[int]] = [[] for _ in range(max(partition) + 1)]
    for unit in units.flow:
        elements[partition[unit]].append(unit)
    for element in elements:
        for place in range(1, len(element)):
            second = set(element[place:])
            yield numbered(-1 if u in second else e for u, e in enumerate(partition))


_MOVES: tuple[Moves, ...] = (
    _joined_in_all_channels,
    _packed,
    _joined_in_one,
    _moved,
    _cut_in_two,
)
"""The kinds of neighbours, those with the largest changes first: the later ones are many."""


def _kinds_of(partition: Partition, units: Units) -> list[Hashable]:
    """Return what each element does, whatever the channel."""
    return [frozenset(units.kinds[unit] for unit in each) for each in elements_of(partition)]


def _joined(partition: Partition, pairs: Iterable[tuple[int, int]]) -> Partition:
    """Return the partition with elements joined, and those to which they are joined."""
    into = UnionFind(max(partition) + 1)
    for one, other in pairs:
        into.join(one, other)
    return numbered(into.first(element) for element in partition)


def _with(partition: Partition, unit: int, element: int) -> Partition:
    return numbered((*partition[:unit], element, *partition[unit + 1 :]))


class UnionFind:
    """Union-find over unit numbers; the representative of a set is its smallest member."""

    def __init__(self, count: int) -> None:
        self._into = list(range(count))

    def first(self, number: int) -> int:
        """Return the representative of a number's set (find)."""
        while self._into[number] != number:
            self._into[number] = self._into[self._into[number]]
            number = self._into[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Join the sets of two numbers (union)."""
        one, other = sorted((self.first(one), self.first(other)))
        self._into[other] = one
