"""Fusion (`fused`): replicas that share a processing element, and passes on Spark (`PassPlan`).

A *processing element* (PE) is one thread: a barrier task, on Spark one ``mapInArrow``. Colocated
units stay together; PEs never wait for each other and are numbered in run order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias, assert_never

from spark_upsert.errors import OptionError
from spark_upsert.flow.expand import Physical, Replica
from spark_upsert.flow.graph import OperatorKind, is_row_by_row
from spark_upsert.flow.placement import (
    Partition,
    Separations,
    Unit,
    Units,
    automatic,
    manual,
    order_of,
    units_of,
)


class RowTransfer(Enum):
    """Transfer strategy for rows into a pass."""

    IN_PLACE = "in place"
    """No exchange: sources, and row-by-row operators outside regions, run in any task."""
    EXCHANGED = "exchanged"
    """An exchange sends rows for element i to task i."""
    ALIGNED = "aligned"
    """No exchange: each element's rows come from one element, and are in its task already."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Parts of a physical graph that passes depend on; replicas are indexes."""

    kinds: tuple[OperatorKind, ...]
    is_free: tuple[bool, ...]
    """Whether each replica can run in any task that has its rows."""
    is_direct: tuple[bool, ...]
    """Whether each replica is a source with one connection, which is not split."""
    connections: tuple[tuple[int, int], ...]
    """Producer and consumer pairs."""


def wiring_of(physical: Physical) -> Wiring:
    """Return a graph's wiring."""
    at = {name: index for index, name in enumerate(physical.replica)}
    return Wiring(
        kinds=tuple(replica.operator.kind for replica in physical.replicas),
        is_free=tuple(is_free(replica) for replica in physical.replicas),
        is_direct=tuple(_is_direct(replica, physical) for replica in physical.replicas),
        connections=tuple(
            (at[connection.producer], at[connection.consumer])
            for connection in physical.connections
        ),
    )


def is_free(replica: Replica) -> bool:
    """Return whether a replica can run in any task that has its rows."""
    if replica.operator.kind is OperatorKind.SOURCE:
        return True
    return not replica.regions and is_row_by_row(replica.operator.work)


def _is_direct(replica: Replica, physical: Physical) -> bool:
    if replica.operator.kind is not OperatorKind.SOURCE:
        return False
    leads = physical.connections_of[replica.name]
    return len(leads) == 1 and not leads[0].is_split


class PassPlan:
    """Assigns elements to passes.

    An element runs in a later pass than its producers; rows for later passes go through unchanged.

    Parameters
    ----------
    element : sequence of int
        Element per replica.
    order : sequence of int
        Elements in topological order, producers first.
    """

    def __init__(self, wiring: Wiring, element: Sequence[int], order: Sequence[int]) -> None:
        self._wiring = wiring
        self._element = element
        self.enters = self._find_entering(len(order))
        """Per replica: True for a source alone in its element; its rows enter at the consumer."""
        self.runs = [False] * len(order)
        """Whether each element has replicas to run."""
        self._is_free = [True] * len(order)
        for replica in self._iter_running():
            self.runs[element[replica]] = True
            self._is_free[element[replica]] &= wiring.is_free[replica]
        self._before: list[set[int]] = [set() for _ in order]
        self._is_fed = [False] * len(order)
        self._note_producers()
        self.levels = self._assign_levels(order)
        """Pass per element; -1 for elements without work."""
        self.ways: list[RowTransfer] = []
        """Transfer strategy per pass."""
        self.tasks: list[Mapping[int, int]] = []
        """Task by element, per pass; empty for passes in place."""
        self._find_ways()

    def elements_at(self, level: int) -> list[int]:
        """Return the elements in a pass."""
        return [element for element, at in enumerate(self.levels) if at == level]

    def _iter_running(self) -> Iterator[int]:
        for replica, kind in enumerate(self._wiring.kinds):
            if kind is not OperatorKind.SINK and not self.enters[replica]:
                yield replica

    def _find_entering(self, count: int) -> list[bool]:
        members = [0] * count
        for element in self._element:
            members[element] += 1
        pairs = zip(self._wiring.is_direct, self._element, strict=True)
        return [is_direct and members[element] == 1 for is_direct, element in pairs]

    def _note_producers(self) -> None:
        kinds = self._wiring.kinds
        for producer, consumer in self._wiring.connections:
            one, consumer_element = self._element[producer], self._element[consumer]
            if kinds[consumer] is OperatorKind.SINK:
                continue
            if self.enters[producer]:
                self._is_fed[consumer_element] = True
            elif one != consumer_element:
                self._before[consumer_element].add(one)
        for replica in self._iter_running():
            if kinds[replica] is OperatorKind.SOURCE:
                self._is_fed[self._element[replica]] = True

    def _assign_levels(self, order: Sequence[int]) -> list[int]:
        """Return the pass per element; elements that need no exchange go first."""
        levels = [-1] * len(order)
        for element in order:
            before = self._before[element]
            self._is_free[element] &= all(self._is_free[element] for element in before)
            if self.runs[element] and self._is_free[element]:
                levels[element] = max(
                    (levels[predecessor] + 1 for predecessor in before), default=0
                )
        least = max(levels, default=-1) + 1
        for element in order:
            if self.runs[element] and not self._is_free[element]:
                after = max(
                    (levels[predecessor] + 1 for predecessor in self._before[element]), default=0
                )
                levels[element] = max(least, after)
        return levels

    def _find_ways(self) -> None:
        before: Mapping[int, int] = {}
        for level in range(max(self.levels, default=-1) + 1):
            here = self.elements_at(level)
            if all(self._is_free[element] for element in here):
                self.ways.append(RowTransfer.IN_PLACE)
                self.tasks.append({})
                continue
            aligned = self._aligned(here, before)
            if aligned is None:
                before = {element: task for task, element in enumerate(here)}
            else:
                before = aligned
            self.ways.append(RowTransfer.EXCHANGED if aligned is None else RowTransfer.ALIGNED)
            self.tasks.append(before)

    def _aligned(self, here: list[int], tasks: Mapping[int, int]) -> dict[int, int] | None:
        """Return the task per element if its rows are already there, else None."""
        aligned: dict[int, int] = {}
        for element in here:
            before = self._before[element]
            if len(before) != 1 or not before <= tasks.keys() or self._is_fed[element]:
                return None
            aligned[element] = tasks[next(iter(before))]
        return aligned if len(set(aligned.values())) == len(aligned) else None


class Influence(Enum):
    """Channel constraint on fusion; `Legacy` ignores it."""

    NONE = "noChannelInfluence"
    """No constraint."""
    CHANNEL_ISOLATION = "channelIsolation"
    """Replicas share a PE only with replicas in the same channel."""
    CHANNEL_EXLOCATION = "channelExlocation"
    """A region's channels never share a PE; each may share one with outside replicas."""


@dataclass(frozen=True, slots=True)
class Legacy:
    """One PE per unit: only placement joins replicas."""


@dataclass(frozen=True, slots=True)
class Manual:
    """A fixed PE count, or the nearest count that greedy joins reach."""

    pe_count: int

    def __post_init__(self) -> None:
        _require_positive("pe_count", self.pe_count)


@dataclass(frozen=True, slots=True)
class Automatic:
    """Channels in parallel on all slots, with as few PEs as greedy joins reach."""

    slots: int
    """Number of PEs that can work in parallel."""

    def __post_init__(self) -> None:
        _require_positive("slots", self.slots)


Scheme: TypeAlias = Legacy | Manual | Automatic


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise OptionError(
            f"'{name}' of a fusion scheme is at least 1, found {value}.",
            hint=f"give '{name}' as such a number.",
            option=name,
        )


@dataclass(frozen=True, slots=True)
class PE:
    """Processing element: replicas that run in one thread."""

    index: int
    """PE number from 0; producers have smaller numbers."""
    replicas: tuple[Replica, ...]
    """Replicas in physical graph order."""

    @property
    def names(self) -> tuple[str, ...]:
        """Replica names."""
        return tuple(replica.name for replica in self.replicas)

    def __str__(self) -> str:
        return f"{{{', '.join(self.names)}}}"


@dataclass(frozen=True)
class FusedGraph:
    """Physical graph whose replicas are partitioned into PEs."""

    physical: Physical
    pes: tuple[PE, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def pe_of(self) -> dict[str, PE]:
        """PE by replica name."""
        return {name: pe for pe in self.pes for name in pe.names}

    @cached_property
    def streams(self) -> tuple[tuple[int, int], ...]:
        """Sorted pairs of producer and consumer PE indexes; the producer's is smaller."""
        pairs = {
            (self.pe_of[connection.producer].index, self.pe_of[connection.consumer].index)
            for connection in self.physical.connections
        }
        return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))

    def __str__(self) -> str:
        return " ".join(str(pe) for pe in self.pes)


def fused(physical: Physical, scheme: Scheme, influence: Influence = Influence.NONE) -> FusedGraph:
    """Assign replicas to PEs.

    Parameters
    ----------
    influence : Influence
        Channel constraint in addition to placement; `Legacy` ignores it.

    Returns
    -------
    FusedGraph
        The plan, with warnings for a missed PE count, and for replicas that share a PE only because
        rows flow back and forth between them.

    Raises
    ------
    PlacementError
        Two replicas must share a PE, and must not share it.

    Notes
    -----
    Source: the fusion schemes in IBM Streams. They do not specify the units per PE for ``manual``
    and ``automatic``; the greedy joins in `placement` are our choice.
    """
    units = units_of(physical)
    is_legacy = isinstance(scheme, Legacy)
    shared = _shared_out(physical, units, Influence.NONE if is_legacy else influence)
    partition = _partition(shared, scheme)
    order = order_of(partition, shared)
    assert order is not None, "a partition that was not allowed"
    pes = _pes(physical, units, partition, order)
    return FusedGraph(
        physical, pes, (*_warn_closed_units(units), *_warn_pe_count(scheme, len(units), len(pes)))
    )


def _partition(units: Units, scheme: Scheme) -> Partition:
    match scheme:
        case Legacy():
            return tuple(range(units.count))
        case Manual():
            return manual(units, min(scheme.pe_count, units.count))
        case Automatic():
            return automatic(units, scheme.slots)
        case _:
            assert_never(scheme)


def _pes(
    physical: Physical, units: tuple[Unit, ...], partition: Partition, order: Sequence[int]
) -> tuple[PE, ...]:
    position = {element: index for index, element in enumerate(order)}
    of = {
        replica.name: position[element]
        for unit, element in zip(units, partition, strict=True)
        for replica in unit.replicas
    }
    replicas: list[list[Replica]] = [[] for _ in order]
    for replica in physical.replicas:
        replicas[of[replica.name]].append(replica)
    return tuple(PE(index, tuple(members)) for index, members in enumerate(replicas))


# -- units as the search sees them -----------------------------------------------------------


def _shared_out(physical: Physical, units: tuple[Unit, ...], influence: Influence) -> Units:
    at = {replica.name: index for index, unit in enumerate(units) for replica in unit.replicas}
    streams: dict[tuple[int, int], float] = {}
    for connection in physical.connections:
        pair = at[connection.producer], at[connection.consumer]
        ends = physical.replica[connection.producer], physical.replica[connection.consumer]
        if pair[0] != pair[1]:
            # Without estimates: a region's channels share a stream's rows evenly.
            rows = 1 / max(1, *(replica.channel.count for replica in ends))
            streams[pair] = streams.get(pair, 0.0) + rows
    return Units(
        bounds=tuple(_bounds(unit, influence) for unit in units),
        streams=streams,
        is_free=tuple(map(_is_free, units)),
    )


def _is_free(unit: Unit) -> bool | None:
    kinds = {
        is_free(replica)
        for replica in unit.replicas
        if replica.operator.kind is not OperatorKind.SINK
    }
    return all(kinds) if kinds else None


def _bounds(unit: Unit, influence: Influence) -> Separations:
    """Return a unit's separation rules under a channel constraint."""
    same = _channels(unit, influence)
    if unit.is_isolated or same is None:
        return Separations(is_alone=True)
    return Separations(exclusive=unit.exlocate, same=same)


def _channels(unit: Unit, influence: Influence) -> dict[str, Hashable] | None:
    """Return the values that units in one PE must share; None if its own replicas differ."""
    agreed: dict[str, Hashable] = {}
    for replica in unit.replicas:
        for name, value in _channel(replica, influence).items():
            if agreed.setdefault(name, value) != value:
                return None
    return agreed


def _channel(replica: Replica, influence: Influence) -> dict[str, Hashable]:
    match influence:
        case Influence.NONE:
            return {}
        case Influence.CHANNEL_ISOLATION:
            return {"": (replica.regions, replica.channel)}
        case Influence.CHANNEL_EXLOCATION:
            return dict(zip(replica.regions, replica.channel.all, strict=True))
        case _:
            assert_never(influence)


# -- warnings --------------------------------------------------------------------------------


def _warn_closed_units(units: tuple[Unit, ...]) -> list[str]:
    return [
        f"{', '.join(replica.name for replica in unit.replicas)} share a PE: rows go from those of "
        "them that are colocated to the others and back."
        for unit in units
        if unit.is_closed
    ]


def _warn_pe_count(scheme: Scheme, unit_count: int, pe_count: int) -> list[str]:
    if not isinstance(scheme, Manual) or scheme.pe_count == pe_count:
        return []
    if scheme.pe_count > unit_count:
        why = f"there are no more than {unit_count} units that can be apart"
    else:
        why = "placement, channels and the streams between them let no two more share one"
    return [f"{scheme.pe_count} PEs were asked for, there are {pe_count}: {why}."]
