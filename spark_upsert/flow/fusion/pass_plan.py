"""Passes on Spark: which elements of a partition run together, and which rows go through a pass.

An element runs in a later pass than the elements that feed it. Elements of one pass run side by
side, and rows for later passes go through. Everything here is numbers; `stages` makes of a pass
plan what runs.

Rows come to a pass in one of three ways (`RowTransfer`):

- *In place.* Elements that are in no region, and have operators that look at one row at a time, run
  where the rows are, in as many tasks as there are.
- *Exchanged.* Element i runs in task i, to which an exchange brings its rows.
- *Aligned.* As exchanged; but each element is fed by one element of the pass before and by nothing
  else, so that its rows are in its task already.

An element without operators needs no pass if its rows take one connection: they enter at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_upsert.flow.expansion import Physical, Replica
from spark_upsert.flow.graph import OperatorKind
from spark_upsert.flow.work import is_row_by_row


class RowTransfer(Enum):
    """The way in which rows come to the elements of a pass."""

    IN_PLACE = "in place"
    EXCHANGED = "exchanged"
    ALIGNED = "aligned"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The part of a physical graph that matters for passes, with replicas by their indexes."""

    kinds: tuple[OperatorKind, ...]
    is_free: tuple[bool, ...]
    """Whether a replica can run wherever its rows are."""
    is_direct: tuple[bool, ...]
    """Whether a replica is a source that gives all rows to one port."""
    connections: tuple[tuple[int, int], ...]
    """Pairs of a producer and a consumer."""


def wiring_of(physical: Physical) -> Wiring:
    """Return the wiring of a graph."""
    at = {name: index for index, name in enumerate(physical.replica)}
    return Wiring(
        kinds=tuple(replica.operator.kind for replica in physical.replicas),
        is_free=tuple(is_free(replica) for replica in physical.replicas),
        is_direct=tuple(_is_direct(replica, physical) for replica in physical.replicas),
        connections=tuple((at[each.producer], at[each.consumer]) for each in physical.connections),
    )


def is_free(replica: Replica) -> bool:
    """Return whether a replica can run wherever its rows are."""
    if replica.operator.kind is OperatorKind.SOURCE:
        return True
    return not replica.regions and is_row_by_row(replica.operator.work)


def _is_direct(replica: Replica, physical: Physical) -> bool:
    if replica.operator.kind is not OperatorKind.SOURCE:
        return False
    leads = physical.connections_of[replica.name]
    return len(leads) == 1 and not leads[0].is_split


class PassPlan:
    """The passes of a partition.

    Parameters
    ----------
    element : sequence of int
        The element of each replica.
    order : sequence of int
        The elements, each behind those that feed it.
    """

    def __init__(self, wiring: Wiring, element: Sequence[int], order: Sequence[int]) -> None:
        self._wiring = wiring
        self._element = element
        self.enters = self._entering(len(order))
        """Whether each replica is a source that does nothing, as its rows enter behind it."""
        self.runs = [False] * len(order)
        """Whether there is anything to do in each element."""
        self._is_free = [True] * len(order)
        for replica in self._iter_running():
            self.runs[element[replica]] = True
            self._is_free[element[replica]] &= wiring.is_free[replica]
        self._before: list[set[int]] = [set() for _ in order]
        self._is_fed = [False] * len(order)
        self._note_producers()
        self.levels = self._levelled(order)
        """The pass of each element, -1 for what does nothing."""
        self.ways: list[RowTransfer] = []
        """The way in which rows come to each pass."""
        self.tasks: list[Mapping[int, int]] = []
        """The task of each element, for each pass; none in place."""
        self._find_ways()

    def elements_at(self, level: int) -> list[int]:
        """Return the elements of a pass."""
        return [element for element, at in enumerate(self.levels) if at == level]

    def _iter_running(self) -> Iterator[int]:
        for replica, kind in enumerate(self._wiring.kinds):
            if kind is not OperatorKind.SINK and not self.enters[replica]:
                yield replica

    def _entering(self, count: int) -> list[bool]:
        members = [0] * count
        for element in self._element:
            members[element] += 1
        pairs = zip(self._wiring.is_direct, self._element, strict=True)
        return [is_direct and members[element] == 1 for is_direct, element in pairs]

    def _note_producers(self) -> None:
        kinds = self._wiring.kinds
        for producer, consumer in self._wiring.connections:
            one, other = self._element[producer], self._element[consumer]
            if kinds[consumer] is OperatorKind.SINK:
                continue
            if self.enters[producer]:
                self._is_fed[other] = True
            elif one != other:
                self._before[other].add(one)
        for replica in self._iter_running():
            if kinds[replica] is OperatorKind.SOURCE:
                self._is_fed[self._element[replica]] = True

    def _levelled(self, order: Sequence[int]) -> list[int]:
        """Elements that can run anywhere go first, so that no exchange stands before them."""
        levels = [-1] * len(order)
        for element in order:
            before = self._before[element]
            self._is_free[element] &= all(self._is_free[each] for each in before)
            if self.runs[element] and self._is_free[element]:
                levels[element] = max((levels[each] + 1 for each in before), default=0)
        least = max(levels, default=-1) + 1
        for element in order:
            if self.runs[element] and not self._is_free[element]:
                after = max((levels[each] + 1 for each in self._before[element]), default=0)
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
        """Return the task of each element if its rows are in it already, else None."""
        found: dict[int, int] = {}
        for element in here:
            before = self._before[element]
            if len(before) != 1 or not before <= tasks.keys() or self._is_fed[element]:
                return None
            found[element] = tasks[next(iter(before))]
        return found if len(set(found.values())) == len(found) else None
