"""Fusion: which replicas share a processing element, by schemes and by placement.

A *processing element* (PE) is one thread: a barrier task, on Spark one `mapInArrow`. Replicas
within a PE hand batches to each other by a call.

Every scheme begins with the units of `placement`, and leaves each whole. So colocation holds, and
no two PEs wait for each other: the PEs that `fused` returns can be run in an order, and are
numbered in one. The influence of channels is no constraint of the user, so that units that span
channels win over it, and get a PE of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias, assert_never

from spark_upsert.errors import OptionError
from spark_upsert.flow.expansion import Physical, Replica
from spark_upsert.flow.fusion.partitions import (
    Partition,
    Separations,
    Units,
    automatic,
    manual,
    order_of,
)
from spark_upsert.flow.fusion.pass_plan import is_free
from spark_upsert.flow.fusion.placement import Unit, units_of
from spark_upsert.flow.graph import OperatorKind


class Influence(Enum):
    """The influence of channels on fusion; `Legacy` ignores it."""

    NONE = "noChannelInfluence"
    """No influence."""
    CHANNEL_ISOLATION = "channelIsolation"
    """Replicas in a channel share a PE with replicas of the same channel only."""
    CHANNEL_EXLOCATION = "channelExlocation"
    """Channels of one region never share a PE; each may share with replicas outside of it."""


@dataclass(frozen=True, slots=True)
class Legacy:
    """A PE for each unit: what placement does not put together is apart."""


@dataclass(frozen=True, slots=True)
class Manual:
    """A plan with so many PEs, or as near to that as greedy joins come."""

    pe_count: int

    def __post_init__(self) -> None:
        _require_positive("pe_count", self.pe_count)


@dataclass(frozen=True, slots=True)
class Automatic:
    """Channels side by side in as many PEs as there are slots, and no more PEs than that needs."""

    slots: int
    """The number of PEs that can work at the same time."""

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
    """Replicas that run in one thread."""

    index: int
    """The number of the PE, from 0; PEs that feed it have smaller ones."""
    replicas: tuple[Replica, ...]
    """Its replicas, in the order of the physical graph."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its replicas."""
        return tuple(replica.name for replica in self.replicas)

    def __str__(self) -> str:
        return f"{{{', '.join(self.names)}}}"


@dataclass(frozen=True)
class Fused:
    """A physical graph, and which of its replicas share a PE: a partition of them."""

    physical: Physical
    pes: tuple[PE, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def pe_of(self) -> dict[str, PE]:
        """The PE of each replica, by its name."""
        return {name: pe for pe in self.pes for name in pe.names}

    @cached_property
    def streams(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a PE and another that it feeds, by their indexes; the first is the smaller."""
        pairs = {
            (self.pe_of[each.producer].index, self.pe_of[each.consumer].index)
            for each in self.physical.connections
        }
        return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))

    def __str__(self) -> str:
        return " ".join(str(pe) for pe in self.pes)


def fused(physical: Physical, scheme: Scheme, influence: Influence = Influence.NONE) -> Fused:
    """Return which replicas share a PE.

    Parameters
    ----------
    influence : Influence
        The meaning of channels beside placement; `Legacy` ignores it.

    Returns
    -------
    Fused
        The plan, with a warning for each wish that could not be met, and for replicas that share a
        PE only because rows go to and fro between them.

    Raises
    ------
    PlacementError
        Two replicas must be together and must be apart.

    Notes
    -----
    Source: the fusion schemes of IBM Streams. They leave open which units share a PE for
    ``manual`` and ``automatic``; the greedy joins of `partitions` are our choice.
    """
    units = units_of(physical)
    is_legacy = isinstance(scheme, Legacy)
    shared = _shared_out(physical, units, Influence.NONE if is_legacy else influence)
    partition = _partition(shared, scheme)
    order = order_of(partition, shared)
    assert order is not None, "a partition that was not allowed"
    pes = _pes(physical, units, partition, order)
    return Fused(physical, pes, (*_closed(units), *_missed(scheme, len(units), len(pes))))


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
    place = {element: index for index, element in enumerate(order)}
    of = {
        replica.name: place[element]
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
    for each in physical.connections:
        pair = at[each.producer], at[each.consumer]
        ends = physical.replica[each.producer], physical.replica[each.consumer]
        if pair[0] != pair[1]:
            # Without estimates: the channels of a region share the rows of a stream evenly.
            rows = 1 / max(1, *(replica.channel.count for replica in ends))
            streams[pair] = streams.get(pair, 0.0) + rows
    return Units(
        bounds=tuple(_bounds(unit, influence) for unit in units),
        streams=streams,
        is_free=tuple(map(_is_free, units)),
    )


def _is_free(unit: Unit) -> bool | None:
    kinds = {is_free(each) for each in unit.replicas if each.operator.kind is not OperatorKind.SINK}
    return all(kinds) if kinds else None


def _bounds(unit: Unit, influence: Influence) -> Separations:
    """Return with what a unit must not share a PE."""
    same = _channels(unit, influence)
    if unit.is_isolated or same is None:
        return Separations(is_alone=True)
    return Separations(exclusive=unit.exlocate, same=same)


def _channels(unit: Unit, influence: Influence) -> dict[str, Hashable] | None:
    """Return what units of one PE must agree in; None if the replicas of this one do not."""
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


def _closed(units: tuple[Unit, ...]) -> list[str]:
    return [
        f"{', '.join(replica.name for replica in unit.replicas)} share a PE: rows go from those of "
        "them that are colocated to the others and back."
        for unit in units
        if unit.is_closed
    ]


def _missed(scheme: Scheme, unit_count: int, pe_count: int) -> list[str]:
    if not isinstance(scheme, Manual) or scheme.pe_count == pe_count:
        return []
    if scheme.pe_count > unit_count:
        why = f"there are no more than {unit_count} units that can be apart"
    else:
        why = "placement, channels and the streams between them let no two more share one"
    return [f"{scheme.pe_count} PEs were asked for, there are {pe_count}: {why}."]
