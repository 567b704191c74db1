"""Fusion: which replicas share a processing element, by schemes and by placement.

A *processing element* (PE) is one thread: a barrier task, on Spark one `mapInArrow`. Replicas
within a PE hand batches to each other by a call.

Every scheme begins with the units of `placement`, and leaves each whole. So colocation holds, and
no two PEs wait for each other: the PEs that `fused` returns can be run in an order, and are
numbered in one. The influence of channels is no constraint of the user, so that units that span
channels win over it, and get a PE of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import combinations
from random import Random
from typing import TypeAlias, assert_never

from spark_upsert.errors import OptionError
from spark_upsert.flow.estimates import Estimate
from spark_upsert.flow.expansion import Physical, Replica
from spark_upsert.flow.fusion.cost import Costs
from spark_upsert.flow.fusion.models import Model, Prediction, model_of
from spark_upsert.flow.fusion.partitions import (
    CostOf,
    Partition,
    Separations,
    Units,
    best,
    iter_allowed,
    numbered,
    order_of,
)
from spark_upsert.flow.fusion.placement import Unit, units_of


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
    """The cheapest plan with so many PEs, or as near to that as placement allows."""

    pe_count: int
    slots: int = 1
    costs: Costs = field(default_factory=lambda: Costs.of("spark"))
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_positive("pe_count", self.pe_count)
        _require_positive("slots", self.slots)


@dataclass(frozen=True, slots=True)
class Automatic:
    """The PEs that cost least, by the model of `cost`."""

    slots: int
    """How many PEs can work at the same time."""
    costs: Costs = field(default_factory=lambda: Costs.of("spark"))
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Estimates by the full names of operators; they override the operators' own."""

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
    ``manual`` and ``automatic``; the least cost is our choice.
    """
    units = units_of(physical)
    shared = _shared_out(physical, units, Influence.NONE if _is_legacy(scheme) else influence)
    partition = _partition(physical, units, shared, scheme)
    order = order_of(partition, shared)
    assert order is not None, "a partition that was not allowed"
    pes = _pes(physical, units, partition, order)
    return Fused(physical, pes, (*_closed(units), *_missed(scheme, len(units), len(pes))))


def iter_plans(physical: Physical, influence: Influence = Influence.NONE) -> Iterator[Fused]:
    """Yield every plan that placement, channels and the streams allow.

    The first plan has one PE for all, if that is allowed. Eight units have up to 4140 plans; a few
    more units soon have too many.

    Raises
    ------
    PlacementError
        Two replicas must be together and must be apart.
    """
    units = units_of(physical)
    for partition, order in iter_allowed(_shared_out(physical, units, influence)):
        yield Fused(physical, _pes(physical, units, partition, order), tuple(_closed(units)))


def iter_drawn(
    physical: Physical, random: Random, influence: Influence = Influence.NONE
) -> Iterator[Fused]:
    """Yield allowed plans at random, without end: of any number of PEs, and some again and again.

    It is for graphs with too many plans to look at all. It draws a number of PEs, and joins two
    PEs at random that may be joined, until that number is reached or no two may be joined.

    Raises
    ------
    PlacementError
        Two replicas must be together and must be apart.
    """
    units = units_of(physical)
    shared = _shared_out(physical, units, influence)
    pairs = list(combinations(range(shared.count), 2))
    while True:
        partition, count = tuple(range(shared.count)), random.randint(1, shared.count)
        for one, other in random.sample(pairs, len(pairs)):
            if max(partition) < count:
                break
            into, element = partition[one], partition[other]
            joined = numbered(into if each == element else each for each in partition)
            if order_of(joined, shared) is not None:
                partition = joined
        order = order_of(partition, shared)
        assert order is not None, "each step was allowed"
        yield Fused(physical, _pes(physical, units, partition, order), tuple(_closed(units)))


def _is_legacy(scheme: Scheme) -> bool:
    return isinstance(scheme, Legacy)


def _partition(
    physical: Physical, units: tuple[Unit, ...], shared: Units, scheme: Scheme
) -> Partition:
    match scheme:
        case Legacy():
            return tuple(range(len(units)))
        case Manual():
            target = min(scheme.pe_count, len(units))
            cost_of = _at(target, _model(physical, units, scheme))
            return best(shared, cost_of, counts=(target,))
        case Automatic():
            model = _model(physical, units, scheme)
            counts = (scheme.slots, 2 * scheme.slots)
            return best(shared, lambda *found: (model.predict(*found).cost,), counts=counts)
        case _:
            assert_never(scheme)


def _model(physical: Physical, units: tuple[Unit, ...], scheme: Manual | Automatic) -> Model:
    return model_of(
        physical,
        [[replica.name for replica in unit.replicas] for unit in units],
        costs=scheme.costs,
        slots=scheme.slots,
        estimates=scheme.estimates,
    )


def _at(count: int, model: Model) -> CostOf:
    """Return what costs, with the distance from a number of elements before all else."""
    return lambda partition, order: (
        abs(len(order) - count),
        model.predict(partition, order).cost,
    )


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
    streams = {(at[each.producer], at[each.consumer]) for each in physical.connections}
    return Units(
        bounds=tuple(_bounds(unit, influence) for unit in units),
        streams=tuple(sorted(pair for pair in streams if pair[0] != pair[1])),
        kinds=tuple(frozenset(each.logical for each in unit.replicas) for unit in units),
    )


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
        why = "placement, channels and the way of the rows allow no fewer"
    return [f"{scheme.pe_count} PEs were asked for, there are {pe_count}: {why}."]


# -- what a plan costs -----------------------------------------------------------------------


def predicted(
    plan: Fused,
    *,
    slots: int,
    costs: Costs | None = None,
    estimates: Mapping[str, Estimate] | None = None,
) -> Prediction:
    """Return what a plan is taken to cost, whatever scheme it is from."""
    model = model_of(
        plan.physical,
        [pe.names for pe in plan.pes],
        costs=costs or Costs.of("spark"),
        slots=slots,
        estimates=estimates,
    )
    # A PE feeds only those of greater index.
    numbers = tuple(range(len(plan.pes)))
    return model.predict(numbers, numbers)
