"""The physical graph (`expanded`): one replica per operator and channel, with splitters.

Pure. A stream into a region passes one *splitter* per producer replica, port and region, the outer
region first; a stream out of it ends in one port.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from spark_upsert.errors import GraphError
from spark_upsert.flow.graph import (
    ChannelPath,
    Edge,
    Graph,
    LogicalOperator,
    PlacedOperator,
    Region,
    global_channel,
    iter_channels,
)
from spark_upsert.flow.validate import check

REPLICAS_MAX = 10_000
"""Maximum replicas per graph: far beyond a cluster's slots, and too many to draw."""

CONNECTIONS_MAX = 250_000
"""Maximum connections per graph: a shuffle between 500 and 500 channels."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Physical operator: one channel's copy of a logical operator."""

    logical: str
    """Full operator name."""
    operator: LogicalOperator
    regions: tuple[str, ...]
    """Full names of its regions, innermost first."""
    channel: ChannelPath
    """Channel in each region."""

    @property
    def name(self) -> str:
        """Operator name; with the global channel inside a region, as ``totals.sum[3]``."""
        return replica_name(self.logical, self.channel.index)


def replica_name(logical: str, channel: int) -> str:
    """Return a replica's name; a negative channel means no region."""
    return logical if channel < 0 else f"{logical}[{channel}]"


class SplitterKind(Enum):
    """Routing strategy for rows."""

    HASH = "hash"
    BROADCAST = "broadcast"
    ROUND_ROBIN = "round robin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """Distributes a replica's rows among a region's channels, for one port.

    ``targets`` are in channel order: replica names or, if the stream then enters an inner region,
    splitters for that region.
    """

    owner: str
    """Replica whose output is split."""
    region: str
    """Full name of the target region."""
    consumer: str
    """Full name of the consuming operator."""
    port: str
    kind: SplitterKind
    width: int
    attributes: tuple[str, ...] = ()
    """Hash columns; empty for other kinds."""
    start: int = 0
    """First channel in a round robin."""
    passes_windows: bool = True
    """Whether window markers pass; False if the owner is in a region."""
    targets: tuple[str, ...] | tuple[Splitter, ...]

    def iter_replicas(self) -> Iterator[str]:
        """Yield the target replicas in channel order."""
        for target in self.targets:
            if isinstance(target, Splitter):
                yield from target.iter_replicas()
            else:
                yield target

    def iter_chain(self) -> Iterator[Splitter]:
        """Yield this splitter and all nested splitters."""
        yield self
        for target in self.targets:
            if isinstance(target, Splitter):
                yield from target.iter_chain()


@dataclass(frozen=True, slots=True)
class Connection:
    """Connection from a replica to another replica's port; both by name."""

    producer: str
    consumer: str
    port: str
    is_split: bool = False
    """Whether a splitter selects the rows."""


@dataclass(frozen=True)
class Physical:
    """Physical graph: replicas, connections and splitters.

    A *replica* is one channel's copy of an operator; outside all regions an operator has one.
    """

    graph: Graph
    replicas: tuple[Replica, ...]
    """Replicas in operator order, then channel order."""
    connections: tuple[Connection, ...]
    """Connections in stream order, then by producer and consumer channel."""
    splitters: tuple[Splitter, ...]
    """First splitter per chain, in connection order."""

    @cached_property
    def replica(self) -> dict[str, Replica]:
        """Replicas by name."""
        return {replica.name: replica for replica in self.replicas}

    @cached_property
    def replicas_of(self) -> dict[str, tuple[Replica, ...]]:
        """Replicas by full operator name."""
        replicas_by_name: dict[str, list[Replica]] = {name: [] for name in self.graph.places}
        for replica in self.replicas:
            replicas_by_name[replica.logical].append(replica)
        return {name: tuple(replicas) for name, replicas in replicas_by_name.items()}

    @cached_property
    def connections_of(self) -> dict[str, tuple[Connection, ...]]:
        """Outgoing connections by replica name."""
        connections_by_name: dict[str, list[Connection]] = {name: [] for name in self.replica}
        for connection in self.connections:
            connections_by_name[connection.producer].append(connection)
        return {name: tuple(connections) for name, connections in connections_by_name.items()}

    @cached_property
    def splitters_of(self) -> dict[str, tuple[Splitter, ...]]:
        """First splitters at a replica's output, by replica name."""
        splitters_by_name: dict[str, list[Splitter]] = {name: [] for name in self.replica}
        for splitter in self.splitters:
            splitters_by_name[splitter.owner].append(splitter)
        return {name: tuple(splitters) for name, splitters in splitters_by_name.items()}


def expanded(graph: Graph) -> Physical:
    """Expand a logical graph into its physical graph.

    Raises
    ------
    GraphError
        The graph cannot run (`validate.check`), or needs too many replicas or connections.
    """
    check(graph)
    _require_within_limits(graph)
    replicas = tuple(
        replica_of_operator
        for placed in graph.places.values()
        for replica_of_operator in _iter_replicas(placed)
    )
    of: dict[str, list[Replica]] = {name: [] for name in graph.places}
    for replica in replicas:
        of[replica.logical].append(replica)
    connections: list[Connection] = []
    splitters: list[Splitter] = []
    for stream in graph.streams:
        consumer = graph.places[stream.consumer]
        common = _count_shared_regions(graph.places[stream.producer], consumer)
        entered = consumer.regions[: len(consumer.regions) - common]
        for producer in of[stream.producer]:
            # Shared regions are the outermost ones, so their indexes are last.
            shared = producer.channel.indexes[len(producer.channel.indexes) - common :]
            if entered:
                splitter = _splitter(stream, producer, consumer, entered, shared)
                splitters.append(splitter)
                targets = tuple(splitter.iter_replicas())
            else:
                targets = (_name_at(consumer, shared),)
            connections.extend(
                Connection(producer.name, target, stream.port, bool(entered)) for target in targets
            )
    return Physical(graph, replicas, tuple(connections), tuple(splitters))


def _iter_replicas(place: PlacedOperator) -> Iterator[Replica]:
    regions = tuple(region.name for region in place.regions)
    widths = _widths(place.regions)
    for indexes in iter_channels(widths):
        yield Replica(place.name, place.operator, regions, ChannelPath(indexes, widths))


def _widths(regions: tuple[Region, ...]) -> tuple[int, ...]:
    return tuple(region.parallel.width for region in regions)


def _count_shared_regions(producer: PlacedOperator, consumer: PlacedOperator) -> int:
    """Return the number of shared regions; these are the outermost ones on both sides."""
    return len(set(producer.regions) & set(consumer.regions))


def _name_at(place: PlacedOperator, indexes: tuple[int, ...]) -> str:
    """Return a replica's name from its index in each region."""
    if not indexes:
        return place.name
    return replica_name(place.name, global_channel(indexes, _widths(place.regions)))


def _splitter(
    stream: Edge,
    producer: Replica,
    consumer: PlacedOperator,
    entered: tuple[Region, ...],
    outer: tuple[int, ...],
) -> Splitter:
    """Return the splitter into the outermost region not yet entered."""
    *inner, region = entered
    kind, attributes = _kind(region, region.port(stream.consumer, stream.port))
    width = region.parallel.width
    channels = [(local, *outer) for local in range(width)]
    chained = (_splitter(stream, producer, consumer, tuple(inner), channel) for channel in channels)
    is_outside = producer.channel.index < 0
    return Splitter(
        owner=producer.name,
        region=region.name,
        consumer=stream.consumer,
        port=stream.port,
        kind=kind,
        width=width,
        attributes=attributes,
        start=0 if is_outside else producer.channel.index % width,
        passes_windows=is_outside,
        targets=tuple(chained) if inner else tuple(_name_at(consumer, c) for c in channels),
    )


def _kind(region: Region, port: str) -> tuple[SplitterKind, tuple[str, ...]]:
    for partition in region.parallel.partition_by:
        if partition.port == port:
            return SplitterKind.HASH, partition.attributes
    if port in region.parallel.broadcast:
        return SplitterKind.BROADCAST, ()
    return SplitterKind.ROUND_ROBIN, ()


def _require_within_limits(graph: Graph) -> None:
    """Raise GraphError if expansion would exceed the limits, before building any replica."""
    widths = {name: math.prod(_widths(placed.regions)) for name, placed in graph.places.items()}
    replicas = sum(widths.values())
    if replicas > REPLICAS_MAX:
        widest = max(widths, key=lambda name: widths[name])
        raise GraphError(
            f"the graph would have {replicas} replicas, at most {REPLICAS_MAX} are made; operator "
            f"'{widest}' alone has {widths[widest]}.",
            hint=f"give {_regions_of(graph, widest)} a smaller width.",
            operators=(widest,),
        )
    connections = {stream: _connection_count(graph, stream) for stream in graph.streams}
    if sum(connections.values()) > CONNECTIONS_MAX:
        most = max(connections, key=lambda stream: connections[stream])
        raise GraphError(
            f"the graph would have {sum(connections.values())} connections, at most "
            f"{CONNECTIONS_MAX} are made; those from '{most.producer}' to '{most.consumer}' alone "
            f"are {connections[most]}.",
            hint=f"give {_regions_of(graph, most.consumer)} a smaller width, or put both operators "
            "into one region.",
            operators=(most.producer, most.consumer),
        )


def _connection_count(graph: Graph, stream: Edge) -> int:
    producer, consumer = graph.places[stream.producer], graph.places[stream.consumer]
    entered = consumer.regions[: len(consumer.regions) - _count_shared_regions(producer, consumer)]
    return math.prod(_widths(producer.regions)) * math.prod(_widths(entered))


def _regions_of(graph: Graph, name: str) -> str:
    return " or ".join(f"'{region.name}'" for region in graph.places[name].regions)
