"""A logical graph as values (`Graph`): operators, their work, composites and parallel regions.

A *region* is an operator or composite with a `Parallel`. A full name has dots, as in
``totals.sum``. `validate.check` refuses graphs that cannot run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys, mix
from spark_upsert.core.keys import Words, fixed_words, is_text, text_of, validity
from spark_upsert.errors import require_plain
from spark_upsert.plan.nodes import ArrowScan, Filter, Node, Project, Unnest

OUTSIDE = -1
"""Channel index outside any region."""


@dataclass(frozen=True, slots=True)
class ChannelPath:
    """Replica position in nested regions, innermost region first.

    ``indexes`` and ``widths`` have equal length. The global channel is
    ``l0 + w0*l1 + w0*w1*l2 + ...``, with local indexes ``l`` and widths ``w``.
    """

    indexes: tuple[int, ...] = ()
    """Index in each region."""
    widths: tuple[int, ...] = ()
    """Width per region."""

    @property
    def index(self) -> int:
        """Global channel; -1 outside any region."""
        return self.all[0] if self.indexes else OUTSIDE

    @property
    def count(self) -> int:
        """Global channel count; 0 outside any region."""
        return math.prod(self.widths) if self.widths else 0

    @property
    def local_index(self) -> int:
        """Channel in the innermost region; -1 outside any region."""
        return self.indexes[0] if self.indexes else OUTSIDE

    @property
    def local_count(self) -> int:
        """Innermost region width; 0 outside any region."""
        return self.widths[0] if self.widths else 0

    @property
    def all(self) -> tuple[int, ...]:
        """Global channel at each level, innermost first.

        >>> ChannelPath((1, 2, 1), (2, 3, 2)).all
        (11, 5, 1)
        """
        return tuple(
            global_channel(self.indexes[level:], self.widths[level:])
            for level in range(len(self.indexes))
        )


def global_channel(indexes: Sequence[int], widths: Sequence[int]) -> int:
    """Return the global channel ``l0 + w0*l1 + w0*w1*l2 + ...``."""
    channel, factor = 0, 1
    for local, width in zip(indexes, widths, strict=True):
        channel += factor * local
        factor *= width
    return channel


def iter_channels(widths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield local indexes, innermost first, for each channel by ascending global channel."""
    if not widths:
        yield ()
        return
    for outer in iter_channels(widths[1:]):
        for local in range(widths[0]):
            yield (local, *outer)


Function: TypeAlias = Callable[..., Iterable[pa.RecordBatch]]
"""Function from a replica's input batches to its output batches; called again after each barrier.
It takes an iterator over batches and, with `PythonFunction.takes_channel`, a `ChannelPath`."""


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """Function over the batches from one port, with its output schema."""

    function: Function
    schema: pa.Schema
    takes_channel: bool = False
    """Whether its second argument is the replica's `ChannelPath`."""

    def call(
        self, batches: Iterator[pa.RecordBatch], channel: ChannelPath
    ) -> Iterable[pa.RecordBatch]:
        """Call the function for a replica's channel."""
        return self.function(batches, channel) if self.takes_channel else self.function(batches)


@dataclass(frozen=True, slots=True)
class ArrowSource:
    """Source with rows stored in the graph."""

    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """Output columns."""
        return self.rows.schema


@dataclass(frozen=True, slots=True)
class InputRows:
    """Source for rows that the caller passes by the source's name when the graph runs."""

    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class TableSource:
    """Source for rows or changes from an upsertflow table."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_plain(self.path)


@dataclass(frozen=True, slots=True)
class TableSink:
    """Sink that writes rows as commands to an upsertflow table."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_plain(self.path)


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Sink whose rows are returned to the caller under the sink's name."""


Work: TypeAlias = (
    Node | PythonFunction | ArrowSource | InputRows | TableSource | TableSink | CollectSink
)


def is_row_by_row(work: object) -> bool:
    """Return whether each output row depends on a single input row."""
    return isinstance(work, Node) and all(
        isinstance(node, Filter | Project | Unnest | ArrowScan) for node in work.walk()
    )


INPUT = "input"
"""Port name for operators with one port."""


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """Hash partitioning for a port's rows, by columns in this order."""

    port: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Parallel region settings: width, and row distribution among channels.

    Ports in neither ``partition_by`` nor ``broadcast`` distribute rows round robin.
    """

    width: int
    partition_by: tuple[PartitionBy, ...] = ()
    broadcast: tuple[str, ...] = ()
    """Ports that copy every row to each channel."""


# -- placement -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByChannel:
    """Placement id that differs between channels in an operator's region."""


@dataclass(frozen=True, slots=True)
class ByReplica:
    """Placement id that all replicas in an operator's region share."""


PlacementId: TypeAlias = str | ByChannel | ByReplica


def by_channel() -> ByChannel:
    """Return a placement id per channel."""
    return ByChannel()


def by_replica() -> ByReplica:
    """Return a placement id for all replicas in a region."""
    return ByReplica()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Rules for sharing a processing element (`fusion`).

    A composite's rules apply to each operator in it.
    """

    colocate: tuple[PlacementId, ...] = ()
    """Ids: operators with a common id share an element."""
    exlocate: tuple[PlacementId, ...] = ()
    """Ids: operators with a common id never share an element."""
    isolate: bool = False
    """Whether the operator shares its element with no other."""


# -- operators, composites, streams ----------------------------------------------------------


class OperatorKind(Enum):
    """Operator type."""

    SOURCE = "source"
    """Operator without inputs."""
    OPERATOR = "operator"
    SINK = "sink"
    """Operator without output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalOperator:
    """Operator in a logical graph."""

    name: str
    kind: OperatorKind
    work: Work
    inputs: tuple[str, ...] = ()
    """Port names."""
    schema: pa.Schema | None = None
    """Output columns; None for sinks, and before they are known."""
    parallel: Parallel | None = None
    placement: Placement = Placement()
    keeps_state: bool = False
    """Whether it keeps state across barriers, so that its width cannot change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """Operators and nested composites under one name."""

    name: str
    members: tuple[GraphMember, ...]
    parallel: Parallel | None = None
    placement: Placement = Placement()


GraphMember: TypeAlias = LogicalOperator | Composite


@dataclass(frozen=True, slots=True)
class Edge:
    """Edge from an operator's output to another operator's port, by full names."""

    producer: str
    consumer: str
    port: str

    def __str__(self) -> str:
        return f"{self.producer} -> {self.consumer}.{self.port}"


# -- where they stand ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Region:
    """Graph part that runs in parallel channels."""

    name: str
    """Full name of the composite or operator."""
    parallel: Parallel

    def port(self, consumer: str, port: str) -> str:
        """Return an inner operator's port name, relative to this region.

        >>> Region("totals", Parallel(width=2)).port("totals.sum", "input")
        'sum.input'
        >>> Region("totals.sum", Parallel(width=2)).port("totals.sum", "input")
        'input'
        """
        return f"{consumer}.{port}".removeprefix(f"{self.name}.")


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """Operator with its enclosing composites and regions."""

    name: str
    """Full operator name."""
    operator: LogicalOperator
    composites: tuple[tuple[str, Composite], ...]
    """Enclosing composites with their full names, innermost first."""
    regions: tuple[Region, ...]
    """Enclosing regions, innermost first; the operator itself may be the first."""


@dataclass(frozen=True)
class Graph:
    """Logical graph: operators and the streams between them."""

    members: tuple[GraphMember, ...]
    streams: tuple[Edge, ...]

    @cached_property
    def places(self) -> dict[str, PlacedOperator]:
        """Operators by full name, in declaration order."""
        return {placed.name: placed for placed in _iter_placed(self.members, ())}

    @cached_property
    def streams_of(self) -> dict[str, tuple[Edge, ...]]:
        """Outgoing edges by full operator name."""
        edges: dict[str, list[Edge]] = {name: [] for name in self.places}
        for stream in self.streams:
            edges[stream.producer].append(stream)
        return {name: tuple(streams) for name, streams in edges.items()}

    @cached_property
    def regions(self) -> dict[str, Region]:
        """Regions by full name, outer regions first."""
        regions_inward = (
            region for placed in self.places.values() for region in reversed(placed.regions)
        )
        return {region.name: region for region in regions_inward}

    def entering(self, region: Region) -> tuple[Edge, ...]:
        """Return the streams into a region from outside."""
        return tuple(
            stream
            for stream in self.streams
            if region in self.places[stream.consumer].regions
            and region not in self.places[stream.producer].regions
        )


def _iter_placed(
    members: tuple[GraphMember, ...], around: tuple[tuple[str, Composite], ...]
) -> Iterator[PlacedOperator]:
    for member in members:
        name = f"{around[0][0]}.{member.name}" if around else member.name
        if isinstance(member, Composite):
            yield from _iter_placed(member.members, ((name, member), *around))
        else:
            named: tuple[tuple[str, GraphMember], ...] = ((name, member), *around)
            regions = (
                Region(region_name, it.parallel)
                for region_name, it in named
                if it.parallel is not None
            )
            yield PlacedOperator(name, member, around, tuple(regions))


SPELLED_BYTES = 256
"""Maximum text length for byte-wise hashing, which takes a pass over all rows per byte."""

_SEED = np.uint64(17)
_FACTOR = np.uint64(37)
_NULL = np.uint64(0)

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_BLOCK_ROWS = 1 << 14
"""Texts per hashing pass, few enough for the CPU cache."""


def coded_as(type_: pa.DataType) -> str:
    """Return a type's code class; equal values in types with one class have equal hash codes.

    >>> coded_as(pa.int8()) == coded_as(pa.uint64()) != coded_as(pa.float64())
    True
    """
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "a whole number"
    if is_text(type_):
        return "a text"
    if pa.types.is_date(type_):
        return "a date"
    if pa.types.is_floating(type_):
        return "a float"
    if pa.types.is_decimal(type_):
        return f"a decimal of {type_.scale} digits behind the point"
    return "a moment" if pa.types.is_temporal(type_) else str(type_)


def hash_codes(columns: Sequence[pa.Array]) -> Words:
    """Return a hash code per row.

    A single column's code is its value's code. Several columns combine: ``h = 17``, then
    ``h = 37 * h + code``, modulo ``2**64``.

    - integers: the value, sign-extended to 64 bits; booleans: 0 or 1; NULL: 0;
    - string, binary: ``v = byte + rotate_left(v, 7)`` over signed bytes, from 0; longer than
      `SPELLED_BYTES`: `core.key_hash` with seed 0;
    - date: ``mix`` over days since 1970; time, timestamp, duration: ``mix`` over nanoseconds;
    - floats: ``mix`` over the float64 bits, with a single zero and NaN;
    - decimal: ``mix(mix(high half) XOR low half)``.

    Source: IBM Streams, ``Splitter.cpp``; texts by the 64-bit collate hash in libstdc++.
    """
    if len(columns) == 1:
        return _codes(columns[0])
    total = np.full(len(columns[0]), _SEED, dtype=np.uint64)
    for column in columns:
        total = total * _FACTOR + _codes(column)
    return total


def _codes(column: pa.Array) -> Words:
    if not len(column):
        return np.zeros(0, dtype=np.uint64)
    codes = _text_codes(column) if is_text(column.type) else _fixed_codes(column)
    valid = validity(column)
    return codes if valid is None else np.where(valid, codes, _NULL)


def _fixed_codes(column: pa.Array) -> Words:
    type_ = column.type
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return fixed_words(column)[0]
    if pa.types.is_date(type_):
        return mix(fixed_words(column.cast(pa.date32()))[0])
    words = fixed_words(column)
    if pa.types.is_temporal(type_):
        words = [words[0] * np.uint64(_NANOSECONDS[type_.unit])]
    codes = mix(words[0])
    for word in words[1:]:
        codes = mix(codes ^ word)
    return codes


# -- texts -----------------------------------------------------------------------------------


def _text_codes(column: pa.Array) -> Words:
    codes = np.empty(len(column), dtype=np.uint64)
    for begin in range(0, len(column), _BLOCK_ROWS):
        block = column.slice(begin, _BLOCK_ROWS)
        codes[begin : begin + len(block)] = _block_codes(block)
    return codes


def _block_codes(column: pa.Array) -> Words:
    """Return text codes; sorts texts longest first, so that unfinished texts are a prefix."""
    text = text_of(column)
    is_long = text.lengths > SPELLED_BYTES
    lengths = np.where(is_long, 0, text.lengths).astype(np.uint16)
    order = np.argsort(lengths, kind="stable")[::-1]
    starts = text.starts[order]
    # longer[i]: how many texts have a byte at position i.
    longer = np.cumsum(np.bincount(lengths)[::-1])[::-1][1:]
    spelled = np.zeros(len(column), dtype=np.uint64)
    for begin in range(0, len(longer), 8):
        rows = int(longer[begin])
        loads = text.loads[starts[:rows] + begin].astype("<u8", copy=False)
        signed: npt.NDArray[np.int8] = loads.view(np.int8).reshape(rows, 8)
        for index, count in enumerate(longer[begin : begin + 8].tolist()):
            held = spelled[:count]
            turned = (held << np.uint64(7)) | (held >> np.uint64(57))
            turned += signed[:count, index].astype(np.int64).view(np.uint64)
            spelled[:count] = turned
    codes = np.empty_like(spelled)
    codes[order] = spelled
    if is_long.any():
        rows_of_long = np.flatnonzero(is_long)
        codes[rows_of_long] = hash_keys([column.take(pa.array(rows_of_long))], seed=0)
    return codes
