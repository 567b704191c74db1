"""A judge of plans that tries every partition, and the small graphs that it is asked about.

It knows the rules as they are written, and nothing of how the engine keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from random import Random
from typing import NamedTuple

from spark_upsert.flow import (
    Flow,
    FusedGraph,
    Graph,
    Influence,
    Parallel,
    Physical,
    Placement,
    Replica,
    by_channel,
    by_replica,
)
from spark_upsert.flow.fusion import is_free
from spark_upsert.flow.graph import (
    ByChannel,
    Composite,
    GraphMember,
    OperatorKind,
    PlacementId,
)
from tests.support.flows import SAME, SINK, SOURCE

Partition = tuple[frozenset[str], ...]


# -- small graphs ----------------------------------------------------------------------------


def drawn_graph(random: Random, *, placed: bool = True) -> Graph:
    """Return a graph of a few operators in some regions, which may lie within each other."""
    flow = Flow()
    outputs = [flow.source("Src", SOURCE, placement=_drawn(random, placed))]
    names = iter("ABCDEF")

    def add(depth: int) -> None:
        name = next(names)
        placement = _drawn(random, placed)
        if random.random() < 0.5 and depth < 2:
            with flow.parallel(f"R{name}", 2, placement=placement):
                # A region often holds nothing but another: so nested ones are small.
                if random.random() < 0.7:
                    add(depth + 1)
                if not flow._open[-1].members or random.random() < 0.3:
                    operator(name, _drawn(random, placed))
        else:
            operator(name, placement)

    def operator(name: str, placement: Placement) -> None:
        fed = random.sample(outputs, min(len(outputs), random.choice((1, 1, 2))))
        parallel = Parallel(width=2) if random.random() < 0.3 else None
        outputs.append(flow.operator(name, SAME, *fed, parallel=parallel, placement=placement))

    for _ in range(random.choice((1, 2))):
        add(0)
    taken = {stream.producer for stream in flow._streams}
    rest = [output for output in outputs if output.name not in taken]
    flow.sink("Snk", SINK, *rest, placement=_drawn(random, placed))
    return flow.graph()


def wide_graph(random: Random) -> Graph:
    """Return two to four operators one behind the other, each a region, without placement."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    for name in "ABCD"[: random.choice((2, 3, 4))]:
        parallel = Parallel(width=random.choice((4, 5)))
        rows = flow.operator(name, SAME, rows, parallel=parallel)
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def _drawn(random: Random, placed: bool) -> Placement:
    """Return a placement: often none, and of few ids, so that they meet."""
    if not placed:
        return Placement()
    ids: tuple[PlacementId, ...] = ("x", "y", by_channel(), by_replica())
    return Placement(
        colocate=tuple(random.sample(ids, random.choice((1, 2)))) if random.random() < 0.3 else (),
        exlocate=tuple(random.sample(ids, 1)) if random.random() < 0.2 else (),
        isolate=random.random() < 0.1,
    )


# -- the judge -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """Tells which partitions of the replicas of a graph are allowed."""

    physical: Physical
    influence: Influence = Influence.NONE

    @cached_property
    def allowed(self) -> list[Partition]:
        """All that placement, the way of the rows and channels allow; none where they clash."""
        units = set(self.finest)
        return [
            each
            for each in self.possible
            if not any(map(self.clash, each))
            and all(element in units or self.agrees(element) for element in each)
        ]

    @cached_property
    def finest(self) -> Partition:
        """The one of most elements, if placement allows any; what it has together always is."""
        allowed = (each for each in self.possible if not any(map(self.clash, each)))
        return max(allowed, key=lambda each: len(each), default=())

    @cached_property
    def possible(self) -> list[Partition]:
        """Those in which what must be together is, and no two elements wait for each other."""
        return [
            each
            for each in partitions(tuple(self.physical.replica))
            if self._is_together(each) and self.has_order(each)
        ]

    def clash(self, element: frozenset[str]) -> tuple[str, str] | None:
        """Return two of an element that must be apart."""
        return next((pair for pair in combinations(sorted(element), 2) if self.apart(*pair)), None)

    def apart(self, one: str, other: str) -> bool:
        """Say whether placement keeps two replicas apart."""
        ids = self._ids
        isolated = ids[one].isolate or ids[other].isolate
        return isolated or bool({*ids[one].exlocate} & {*ids[other].exlocate})

    def has_order(self, partition: Partition) -> bool:
        """Say whether elements can be taken away one by one, each without what feeds it."""
        left = list(partition)
        while left:
            fed = [
                each
                for each in left
                if any(
                    connection.consumer in each
                    and connection.producer not in each
                    and any(connection.producer in other for other in left)
                    for connection in self.physical.connections
                )
            ]
            if len(fed) == len(left):
                return False
            left = fed
        return True

    def _is_together(self, partition: Partition) -> bool:
        ids = self._ids
        return not any(
            {*ids[one].colocate} & {*ids[other].colocate}
            for left, right in combinations(partition, 2)
            for one in left
            for other in right
        )

    def agrees(self, element: frozenset[str]) -> bool:
        """Say whether channels allow an element that placement has not put together."""
        replicas = [self.physical.replica[name] for name in element]
        return all(self._agree(*pair) for pair in combinations(replicas, 2))

    def _agree(self, one: Replica, other: Replica) -> bool:
        if self.influence is Influence.NONE:
            return True
        if self.influence is Influence.CHANNEL_ISOLATION:
            return (one.regions, one.channel) == (other.regions, other.channel)
        return all(_at(one, region) == _at(other, region) for region in _common(one, other))

    @cached_property
    def _ids(self) -> dict[str, Placement]:
        """The placement of each replica, with nothing but plain ids."""
        said: dict[str, list[_Said]] = {}
        for member in self.physical.graph.members:
            _collect(member, "", None, [], said)
        return {
            replica.name: _plain(replica, said[replica.logical])
            for replica in self.physical.replicas
        }


class _Said(NamedTuple):
    """A placement, of whom, and the region that is or is around that."""

    placement: Placement
    name: str
    region: str | None


def _collect(
    member: GraphMember,
    around: str,
    region: str | None,
    inherited: list[_Said],
    said: dict[str, list[_Said]],
) -> None:
    name = f"{around}.{member.name}" if around else member.name
    region = region if member.parallel is None else name
    own = [*inherited, _Said(member.placement, name, region)]
    if isinstance(member, Composite):
        for each in member.members:
            _collect(each, name, region, own, said)
    else:
        said[name] = own


def _plain(replica: Replica, said: list[_Said]) -> Placement:
    def text(given: PlacementId, each: _Said) -> str:
        if isinstance(given, str) or each.region is None:
            return given if isinstance(given, str) else each.name
        if isinstance(given, ByChannel):
            return f"{each.region}_{_at(replica, each.region)}"
        return each.region

    return Placement(
        colocate=tuple(text(given, each) for each in said for given in each.placement.colocate),
        exlocate=tuple(text(given, each) for each in said for given in each.placement.exlocate),
        isolate=any(each.placement.isolate for each in said),
    )


def _common(one: Replica, other: Replica) -> set[str]:
    return {*one.regions} & {*other.regions}


def _at(replica: Replica, region: str) -> int:
    """Return the global channel of a replica in a region around it."""
    channel = 0
    for name, index, width in reversed(
        list(zip(replica.regions, replica.channel.indexes, replica.channel.widths, strict=True))
    ):
        channel = channel * width + index
        if name == region:
            return channel
    raise AssertionError(f"{replica.name} is not in {region}")


def partitions(names: tuple[str, ...]) -> Iterator[Partition]:
    """Yield all partitions of some names."""
    if not names:
        yield ()
        return
    first, *rest = names
    for partition in partitions(tuple(rest)):
        yield (frozenset({first}), *partition)
        for at, element in enumerate(partition):
            yield (*partition[:at], element | {first}, *partition[at + 1 :])


# -- plans -----------------------------------------------------------------------------------


def partition_of(plan: FusedGraph) -> frozenset[frozenset[str]]:
    """Return the names in each PE of a plan."""
    return frozenset(frozenset(pe.names) for pe in plan.pes)


def side_by_side(physical: Physical, partition: Iterable[frozenset[str]]) -> int:
    """Return the most elements none of which needs rows of another.

    Elements that can run wherever their rows are do not count.
    """
    elements = list(partition)
    element = {name: at for at, names in enumerate(elements) for name in names}
    feeds: dict[int, set[int]] = {at: set() for at in range(len(elements))}
    for each in physical.connections:
        feeds[element[each.producer]].add(element[each.consumer])
    reached: dict[int, set[int]] = {}
    for at in range(len(elements)):
        waiting, reached[at] = [at], {at}
        while waiting:
            new = feeds[waiting.pop()] - reached[at]
            reached[at] |= new
            waiting += new
    busy = [at for at, names in enumerate(elements) if any(map(_needs_task, _of(physical, names)))]
    return max(
        (
            count
            for count in range(1, len(busy) + 1)
            for some in combinations(busy, count)
            if not any(
                two in reached[one] or one in reached[two] for one, two in combinations(some, 2)
            )
        ),
        default=0,
    )


def _of(physical: Physical, names: Iterable[str]) -> list[Replica]:
    return [physical.replica[name] for name in names]


def _needs_task(replica: Replica) -> bool:
    return replica.operator.kind is OperatorKind.OPERATOR and not is_free(replica)
