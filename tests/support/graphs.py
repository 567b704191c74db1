"""Random logical graphs, drawn beside a plain description of what should become of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import pyarrow as pa
from hypothesis import strategies as st

from spark_upsert.flow.graph import (
    CollectSink,
    Composite,
    Edge,
    Graph,
    GraphMember,
    LogicalOperator,
    OperatorKind,
    Parallel,
    PartitionBy,
    PythonFunction,
)
from spark_upsert.task import ArrowScan

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string())])

Choice = str | tuple[str, ...]
"""How a region shares out what enters by a port: ``turn``, ``all``, or the columns of a hash."""

CHOICES: tuple[Choice, ...] = ("turn", ("k", "t"), "turn", "all", ("k",), ("t",))


@dataclass
class Leaf:
    """An operator, as one would note it by hand."""

    name: str
    """Its full name."""
    path: tuple[str, ...]
    """The full names of the composites around it, the outermost first."""
    regions: list[tuple[str, int]]
    """Names and widths, the outermost first."""
    ports: dict[str, list[str]] = field(default_factory=dict)
    """The producers of each."""

    @property
    def width(self) -> int:
        """How many replicas there should be."""
        return math.prod(width for _, width in self.regions)

    def indexes(self) -> Iterator[tuple[int, ...]]:
        """Yield the index in each region of each replica."""
        return product(*(range(width) for _, width in self.regions))

    def replica(self, indexes: tuple[int, ...]) -> str:
        """Return the name of a replica."""
        return f"{self.name}[{self.channel(indexes)}]" if self.regions else self.name

    def channel(self, indexes: tuple[int, ...]) -> int:
        """Return the number of a replica: its indexes as digits, the outermost first."""
        number = 0
        for index, (_, width) in zip(indexes, self.regions, strict=True):
            number = number * width + index
        return number


@dataclass
class Drawn:
    """A graph, and what it was drawn from."""

    leaves: dict[str, Leaf]
    choices: dict[tuple[str, str, str], Choice]
    """Of a region, a consumer within and its port, by which something enters."""
    graph: Graph

    def streams(self) -> Iterator[tuple[Leaf, Leaf, str]]:
        """Yield producer, consumer and port of each stream."""
        for leaf in self.leaves.values():
            for port, producers in leaf.ports.items():
                for producer in producers:
                    yield self.leaves[producer], leaf, port


def entered(producer: Leaf, consumer: Leaf) -> list[tuple[str, int]]:
    """Return the regions that a stream enters, the outermost first."""
    return [each for each in consumer.regions if each not in producer.regions]


@st.composite
def graphs(draw: st.DrawFn, *, leaves_max: int = 6) -> Drawn:
    """Draw a graph: regions within and behind each other, several ports, streams that merge."""
    widths = st.sampled_from([2, None, 3, 1])
    composites: dict[tuple[str, ...], int | None] = {(): None}
    for index in range(draw(st.sampled_from([2, 1, 3, 0]))):
        around = draw(st.sampled_from([path for path in composites if len(path) < 2]))
        composites[(*around, ".".join([*around[-1:], f"C{index}"]))] = draw(widths)
    leaves: dict[str, Leaf] = {}
    for index in range(draw(st.integers(1, leaves_max))):
        # The first one mostly stands outside, so that something enters the regions.
        paths = list(composites) if index else [(), (), (), *composites]
        path = draw(st.sampled_from(paths))
        _add(draw, leaves, f"A{index}", path, composites, draw(widths))
    taken = {name for leaf in leaves.values() for each in leaf.ports.values() for name in each}
    lost = [name for name, leaf in leaves.items() if not leaf.ports and name not in taken]
    if lost:
        leaves["Z"] = Leaf("Z", (), [], {"input": lost})
    choices = {
        (region, consumer.name, port): draw(st.sampled_from(CHOICES))
        for producer, consumer, port in Drawn(leaves, {}, Graph((), ())).streams()
        for region, _ in entered(producer, consumer)
    }
    # Ports of one operator are matched by the same columns.
    by: dict[tuple[str, str], Choice] = {}
    for key, choice in choices.items():
        if isinstance(choice, tuple):
            choices[key] = by.setdefault(key[:2], choice)
    return Drawn(leaves, choices, _graph(leaves, choices, composites))


def _add(
    draw: st.DrawFn,
    leaves: dict[str, Leaf],
    short: str,
    path: tuple[str, ...],
    composites: dict[tuple[str, ...], int | None],
    width: int | None,
) -> None:
    name = ".".join([*path[-1:], short])
    around = [(path[:end][-1], composites[path[:end]]) for end in range(1, len(path) + 1)]
    regions = [(each, wide) for each, wide in [*around, (name, width)] if wide is not None]
    ports = {}
    if leaves:
        for port in ["left", "right"][: draw(st.integers(0, 2))]:
            known = st.lists(st.sampled_from(list(leaves)), min_size=1, max_size=2, unique=True)
            ports[port] = draw(known)
    leaves[name] = Leaf(name, path, regions, ports)


def _graph(
    leaves: dict[str, Leaf],
    choices: dict[tuple[str, str, str], Choice],
    composites: dict[tuple[str, ...], int | None],
) -> Graph:
    streams = [
        Edge(producer, leaf.name, port)
        for leaf in leaves.values()
        for port, producers in leaf.ports.items()
        for producer in producers
    ]
    taken = {stream.producer for stream in streams}

    def parallel(region: str, width: int | None) -> Parallel | None:
        if width is None:
            return None
        found = {
            f"{consumer}.{port}"[len(region) + 1 :]: choice
            for (name, consumer, port), choice in choices.items()
            if name == region
        }
        by = tuple(PartitionBy(p, c) for p, c in found.items() if isinstance(c, tuple))
        all_of = tuple(port for port, choice in found.items() if choice == "all")
        return Parallel(width=width, partition_by=by, broadcast=all_of)

    def operator(leaf: Leaf) -> LogicalOperator:
        own = dict(leaf.regions).get(leaf.name)
        is_sink = bool(leaf.ports) and leaf.name not in taken
        work = ArrowScan(id="left", schema=SCHEMA) if leaf.ports else PythonFunction(iter, SCHEMA)
        kinds = {(True, True): OperatorKind.SINK, (True, False): OperatorKind.OPERATOR}
        return LogicalOperator(
            name=leaf.name.rpartition(".")[2],
            kind=kinds.get((bool(leaf.ports), is_sink), OperatorKind.SOURCE),
            work=CollectSink() if is_sink else work,
            inputs=tuple(leaf.ports),
            schema=None if is_sink else SCHEMA,
            parallel=parallel(leaf.name, own),
        )

    def members(path: tuple[str, ...]) -> tuple[GraphMember, ...]:
        own: list[GraphMember] = [operator(leaf) for leaf in leaves.values() if leaf.path == path]
        for inner, width in composites.items():
            if inner and inner[:-1] == path and (within := members(inner)):
                name = inner[-1].rpartition(".")[2]
                own.append(
                    Composite(name=name, members=within, parallel=parallel(inner[-1], width))
                )
        return tuple(own)

    return Graph(members(()), tuple(streams))


# -- rows, one after the other ---------------------------------------------------------------

Row = tuple[int | None, str | None]


def code(row: Row, attributes: tuple[str, ...]) -> int:
    """The code of some columns, value by value."""
    codes = [value_code(dict(zip("kt", row, strict=True))[name]) for name in attributes]
    if len(codes) == 1:
        return codes[0]
    total = 17
    for each in codes:
        total = (37 * total + each) % 2**64
    return total


def value_code(value: int | str | None) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value % 2**64
    total = 0
    for byte in value.encode():
        turned = (total << 7 | total >> 57) % 2**64
        total = (turned + (byte - 256 if byte > 127 else byte)) % 2**64
    return total


class Slow:
    """Where the rows of one replica go on one stream, row by row."""

    def __init__(
        self, drawn: Drawn, producer: Leaf, consumer: Leaf, port: str, indexes: tuple[int, ...]
    ) -> None:
        self._choices = drawn.choices
        self._consumer = consumer
        self._port = port
        self._entered = entered(producer, consumer)
        # What both are in lies outside of all else.
        self._begin = indexes[: len(consumer.regions) - len(self._entered)]
        self._first = producer.channel(indexes)
        self._turns: dict[tuple[str, tuple[int, ...]], int] = {}

    def targets(self, row: Row) -> list[str]:
        """Return the replicas that a row goes to."""
        reached = [self._begin]
        for region, width in self._entered:
            reached = [
                (*channels, chosen)
                for channels in reached
                for chosen in self._chosen(region, width, channels, row)
            ]
        return [self._consumer.replica(channels) for channels in reached]

    def _chosen(
        self, region: str, width: int, channels: tuple[int, ...], row: Row
    ) -> Iterator[int]:
        choice = self._choices[region, self._consumer.name, self._port]
        if choice == "all":
            yield from range(width)
        elif isinstance(choice, tuple):
            yield code(row, choice) % width
        else:
            turn = self._turns.get((region, channels), self._first)
            self._turns[region, channels] = turn + 1
            yield turn % width
