"""Addresses: numbers of the ports of a physical graph, which travel with rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from spark_upsert.flow.expansion import Physical

READ = ""
"""The port of a source: where the rows come to that it reads."""


class Port(NamedTuple):
    """Where rows come to a replica."""

    replica: str
    name: str


@dataclass(frozen=True)
class AddressBook:
    """The addresses of a physical graph; those of a port of all replicas follow on each other."""

    physical: Physical

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """Each port, at the index that is its address."""
        return tuple(
            Port(replica.name, port)
            for logical, place in self.physical.graph.places.items()
            for port in (place.operator.inputs or (READ,))
            for replica in self.physical.replicas_of[logical]
        )

    @cached_property
    def address(self) -> dict[Port, int]:
        """The address of each port."""
        return {port: address for address, port in enumerate(self.ports)}

    @cached_property
    def leading(self) -> dict[str, tuple[int, ...]]:
        """The addresses that each replica gives rows to, by its name."""
        found: dict[str, list[int]] = {name: [] for name in self.physical.replica}
        for each in self.physical.connections:
            found[each.producer].append(self.address[Port(each.consumer, each.port)])
        return {name: tuple(addresses) for name, addresses in found.items()}
