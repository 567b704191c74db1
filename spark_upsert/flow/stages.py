"""A fused graph as a chain of stages (`cut_into_stages`), each one pass over all rows.

A stage's elements run in parallel; rows for later stages pass through, so that each row is computed
once. `fusion.PassPlan` assigns elements to stages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.flow.fusion import FusedGraph, PassPlan, RowTransfer, wiring_of
from spark_upsert.flow.graph import Graph, OperatorKind
from spark_upsert.flow.partitioner import READ, AddressBook, Port

LOGGED_REPLICAS_MAX = 100
"""Maximum replicas for naming the plan in a log line; larger plans are logged as counts."""

_LOGGER = logging.getLogger(__name__)

Replicas: TypeAlias = tuple[str, ...]
"""An element's replica names."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Elements that run in parallel."""

    transfer: RowTransfer
    elements: tuple[Replicas, ...]
    """Elements by task index; unordered in place. ``()`` is a task without element."""

    @property
    def task_count(self) -> int:
        """Number of tasks to wake; 1 for a stage in place, which gets a single wake."""
        return 1 if self.transfer is RowTransfer.IN_PLACE else len(self.elements)


@dataclass(frozen=True)
class Stages:
    """Stages for a fused graph, with addresses and schemas."""

    book: AddressBook
    stages: tuple[Stage, ...]
    entries: Mapping[str, int]
    """Entry address by source replica name."""
    given: Mapping[str, pa.Schema]
    """Output columns by full name of source or operator."""

    @property
    def graph(self) -> Graph:
        """Logical graph."""
        return self.book.physical.graph

    @property
    def is_plain(self) -> bool:
        """Whether the last stage emits rows without a routing column, because there is one sink."""
        return len(self.sinks) == 1 and bool(self.stages)

    @cached_property
    def tasks(self) -> tuple[dict[int, int], ...]:
        """Task by address in its elements, per stage."""
        of_replica = [
            {name: task for task, element in enumerate(stage.elements) for name in element}
            for stage in self.stages
        ]
        ports = list(enumerate(self.book.ports))
        return tuple(
            {
                address: channel_tasks[port.replica]
                for address, port in ports
                if port.replica in channel_tasks
            }
            for channel_tasks in of_replica
        )

    @cached_property
    def addresses_in_flight(self) -> tuple[tuple[int, ...], ...]:
        """Row addresses before each stage, and after the last one."""
        active = set(self.entries.values())
        active_sets = [active]
        for stage, tasks in zip(self.stages, self.tasks, strict=True):
            led = (self.book.leading[name] for element in stage.elements for name in element)
            consumed = {address for addresses in led for address in addresses}
            active = (active | consumed) - set(tasks)
            active_sets.append(active)
        return tuple(tuple(sorted(active_set)) for active_set in active_sets)

    @cached_property
    def sinks(self) -> dict[str, tuple[int, ...]]:
        """Addresses by full sink name."""
        physical = self.book.physical
        return {
            logical: tuple(
                self.book.address[Port(replica.name, port)]
                for port in placed.operator.inputs
                for replica in physical.replicas_of[logical]
            )
            for logical, placed in physical.graph.places.items()
            if placed.operator.kind is OperatorKind.SINK
        }

    @cached_property
    def schemas(self) -> dict[int, pa.Schema]:
        """Row columns by address."""
        physical, schema_by_address = self.book.physical, dict[int, pa.Schema]()
        for connection in physical.connections:
            address = self.book.address[Port(connection.consumer, connection.port)]
            schema_by_address[address] = self.given[physical.replica[connection.producer].logical]
        for source in self.entries:
            schema_by_address[self.book.address[Port(source, READ)]] = self.given[
                physical.replica[source].logical
            ]
        return schema_by_address


def cut_into_stages(plan: FusedGraph, schemas: Mapping[str, pa.Schema]) -> Stages:
    """Cut a fused graph into stages."""
    cut = _StageCutter(AddressBook(plan.physical), plan)
    return Stages(cut.book, tuple(cut.stages()), cut.entries, schemas)


def log_plan(plan: FusedGraph, stages: Stages) -> None:
    """Log the plan at info level."""
    routes = [stage.transfer for stage in stages.stages]
    fields = Fields(
        replicas=len(plan.physical.replicas),
        elements=len(plan.pes),
        passes=len(routes),
        exchanges=routes.count(RowTransfer.EXCHANGED),
        plan=str(plan) if len(plan.physical.replicas) <= LOGGED_REPLICAS_MAX else None,
    )
    _LOGGER.info("flow planned: %s", fields)


class _StageCutter:
    """Cuts a fused graph into stages."""

    def __init__(self, book: AddressBook, plan: FusedGraph) -> None:
        self.book = book
        self._physical = plan.physical
        element = [plan.pe_of[name].index for name in plan.physical.replica]
        # A PE feeds only PEs with a greater index.
        self._plan = PassPlan(wiring_of(plan.physical), element, range(len(plan.pes)))
        enters = dict(zip(plan.physical.replica, self._plan.enters, strict=True))
        self.entries = {name: self._entry(name, enters[name]) for name in self._sources()}
        self._parts = tuple(
            tuple(name for name in pe.names if not self._is_sink(name) and not enters[name])
            for pe in plan.pes
        )
        """Running replicas per element, without sinks and idle sources."""

    def stages(self) -> Iterator[Stage]:
        count = 0
        for level, route in enumerate(self._plan.ways):
            here = self._plan.elements_at(level)
            if route is RowTransfer.IN_PLACE:
                yield Stage(route, tuple(self._parts[element] for element in here))
                continue
            at = {task: self._parts[element] for element, task in self._plan.tasks[level].items()}
            # An aligned stage has the tasks from the exchange before it, finished ones included.
            count = len(here) if route is RowTransfer.EXCHANGED else count
            yield Stage(route, tuple(at.get(task, ()) for task in range(count)))

    def _sources(self) -> Iterator[str]:
        for name, replica in self._physical.replica.items():
            if replica.operator.kind is OperatorKind.SOURCE:
                yield name

    def _entry(self, source: str, enters: bool) -> int:
        [first, *_] = self._physical.connections_of[source]
        port = Port(first.consumer, first.port) if enters else Port(source, READ)
        return self.book.address[port]

    def _is_sink(self, name: str) -> bool:
        return self._physical.replica[name].operator.kind is OperatorKind.SINK
