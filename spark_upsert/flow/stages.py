"""A fused graph as a chain of stages, each one pass over all rows that are under way.

The elements of a stage run side by side; rows for a later one pass through. So a row is computed
once, and a source read once, whatever the graph: a tree of frames would do again for each consumer
what several take.

How rows come to a stage (`Way`):

- *In place.* Elements that are in no region and whose operators look at one row at a time run where
  the rows are, in as many tasks as there are.
- *Exchanged.* Element i runs in task i, to which an exchange brings its rows.
- *Aligned.* As exchanged; but each element is fed by one element of the stage before and by nothing
  else, so that its rows are in its task already.

An element without operators whose rows take one connection needs no stage: they enter at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TypeAlias

import pyarrow as pa

from spark_upsert.flow.addresses import READ, AddressBook, Port
from spark_upsert.flow.fusion import Fused
from spark_upsert.flow.graph import Graph, OperatorKind
from spark_upsert.task.plan import ArrowScan, Filter, Node, Project, Unnest

Replicas: TypeAlias = tuple[str, ...]
"""Those of an element, by their names."""


class Way(Enum):
    """How rows come to the elements of a stage."""

    IN_PLACE = "in place"
    EXCHANGED = "exchanged"
    ALIGNED = "aligned"


@dataclass(frozen=True, slots=True)
class Stage:
    """Elements that run side by side."""

    way: Way
    elements: tuple[Replicas, ...]
    """At the index of their task; in place: in no order. A task may have none, ``()``."""


@dataclass(frozen=True)
class Stages:
    """All that runs a fused graph."""

    book: AddressBook
    stages: tuple[Stage, ...]
    entries: Mapping[str, int]
    """Where the rows of each replica of a source enter, by its name."""
    given: Mapping[str, pa.Schema]
    """The columns that each source and operator gives, by its full name."""

    @property
    def graph(self) -> Graph:
        """The logical graph."""
        return self.book.physical.graph

    @property
    def is_plain(self) -> bool:
        """Whether the last stage gives rows as they are: all are for the one sink that there is."""
        return len(self.sinks) == 1 and bool(self.stages)

    @cached_property
    def tasks(self) -> tuple[dict[int, int], ...]:
        """Of each stage: the task of each address of its elements."""
        of_replica = [
            {name: task for task, element in enumerate(stage.elements) for name in element}
            for stage in self.stages
        ]
        ports = list(enumerate(self.book.ports))
        return tuple(
            {address: found[port.replica] for address, port in ports if port.replica in found}
            for found in of_replica
        )

    @cached_property
    def under_way(self) -> tuple[tuple[int, ...], ...]:
        """The addresses that rows have before each stage, and behind the last one."""
        known = set(self.entries.values())
        found = [known]
        for stage, tasks in zip(self.stages, self.tasks, strict=True):
            led = (self.book.leading[name] for each in stage.elements for name in each)
            given = {address for addresses in led for address in addresses}
            known = (known | given) - set(tasks)
            found.append(known)
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def sinks(self) -> dict[str, tuple[int, ...]]:
        """The addresses of each sink, by its full name."""
        physical = self.book.physical
        return {
            logical: tuple(
                self.book.address[Port(replica.name, port)]
                for port in place.operator.inputs
                for replica in physical.replicas_of[logical]
            )
            for logical, place in physical.graph.places.items()
            if place.operator.kind is OperatorKind.SINK
        }

    @cached_property
    def schemas(self) -> dict[int, pa.Schema]:
        """The columns of the rows of each address."""
        physical, found = self.book.physical, dict[int, pa.Schema]()
        for each in physical.connections:
            address = self.book.address[Port(each.consumer, each.port)]
            found[address] = self.given[physical.replica[each.producer].logical]
        for source in self.entries:
            found[self.book.address[Port(source, READ)]] = self.given[
                physical.replica[source].logical
            ]
        return found


def staged(plan: Fused, schemas: Mapping[str, pa.Schema]) -> Stages:
    """Return the stages that run a fused graph.

    Parameters
    ----------
    plan : Fused
    schemas : mapping of str to pyarrow.Schema
        The columns that each source and operator gives, by its full name.
    """
    cut = _Cut(AddressBook(plan.physical), tuple(pe.names for pe in plan.pes))
    return Stages(cut.book, tuple(cut.stages()), cut.entries, schemas)


class _Cut:
    """Cuts a fused graph into stages."""

    def __init__(self, book: AddressBook, given: tuple[Replicas, ...]) -> None:
        self.book = book
        self._physical = book.physical
        self.entries = dict(self._entered(given))
        self._elements = tuple(filter(None, map(self._running_part, given)))
        self._of = {name: index for index, each in enumerate(self._elements) for name in each}
        self._before = self._producers()

    def stages(self) -> Iterator[Stage]:
        levels = self._levels()
        before: dict[int, int] = {}
        for level in range(max(levels, default=-1) + 1):
            here = [index for index, each in enumerate(levels) if each == level]
            if all(self._is_free[index] for index in here):
                yield Stage(Way.IN_PLACE, tuple(self._elements[index] for index in here))
                continue
            tasks = self._aligned(here, before)
            way = Way.EXCHANGED if tasks is None else Way.ALIGNED
            count = len(here) if tasks is None else max(before.values()) + 1
            before = {index: task for task, index in enumerate(here)} if tasks is None else tasks
            at = {task: self._elements[index] for index, task in before.items()}
            yield Stage(way, tuple(at.get(task, ()) for task in range(count)))

    # -- what enters, and what runs

    def _entered(self, given: tuple[Replicas, ...]) -> Iterator[tuple[str, int]]:
        for element in given:
            for name in element:
                if self._kind(name) is OperatorKind.SOURCE:
                    yield name, self._entry(name, is_alone=len(element) == 1)

    def _entry(self, source: str, *, is_alone: bool) -> int:
        leads = self._physical.connections_of[source]
        if is_alone and len(leads) == 1 and not leads[0].is_split:
            return self.book.address[Port(leads[0].consumer, leads[0].port)]
        return self.book.address[Port(source, READ)]

    def _running_part(self, element: Replicas) -> Replicas:
        """Return what of an element runs: no sinks, no sources whose rows enter behind them."""
        return tuple(
            name
            for name in element
            if self._kind(name) is OperatorKind.OPERATOR
            or self.entries.get(name) == self.book.address.get(Port(name, READ), -1)
        )

    def _kind(self, name: str) -> OperatorKind:
        return self._physical.replica[name].operator.kind

    # -- in which order

    def _producers(self) -> list[set[int]]:
        """Return the elements that feed each element."""
        found: list[set[int]] = [set() for _ in self._elements]
        for each in self._physical.connections:
            producer, consumer = self._of.get(each.producer), self._of.get(each.consumer)
            if producer is not None and consumer is not None and producer != consumer:
                found[consumer].add(producer)
        return found

    def _levels(self) -> list[int]:
        order = list(TopologicalSorter(dict(enumerate(self._before))).static_order())
        levels = [0] * len(self._elements)
        self._is_free = [False] * len(self._elements)
        for index in order:
            self._is_free[index] = self._looks_at_rows(index) and all(
                self._is_free[each] for each in self._before[index]
            )
        # Those in place come first, so that no exchange stands before them.
        for index in sorted(order, key=lambda each: not self._is_free[each]):
            least = 0
            if not self._is_free[index]:
                free = (levels[each] for each, is_free in enumerate(self._is_free) if is_free)
                least = max(free, default=-1) + 1
            levels[index] = max([least, *(levels[each] + 1 for each in self._before[index])])
        return levels

    def _looks_at_rows(self, index: int) -> bool:
        """Say whether an element is in no region and its operators look at one row at a time."""
        replicas = (self._physical.replica[name] for name in self._elements[index])
        return all(
            replica.operator.kind is OperatorKind.SOURCE
            or (not replica.regions and is_row_by_row(replica.operator.work))
            for replica in replicas
        )

    def _aligned(self, here: list[int], before: dict[int, int]) -> dict[int, int] | None:
        """Return the task of each element if its rows are in it already, else None."""
        found: dict[int, int] = {}
        fed = {self._physical_consumer(address) for address in self.entries.values()}
        for index in here:
            producers = self._before[index]
            if len(producers) != 1 or not producers <= before.keys():
                return None
            if fed & set(self._elements[index]):
                return None
            found[index] = before[next(iter(producers))]
        return found if len(set(found.values())) == len(found) else None

    def _physical_consumer(self, address: int) -> str:
        return self.book.ports[address].replica


def is_row_by_row(work: object) -> bool:
    """Say whether what becomes of a row depends on that row alone."""
    return isinstance(work, Node) and all(
        isinstance(node, Filter | Project | Unnest | ArrowScan) for node in work.walk()
    )
