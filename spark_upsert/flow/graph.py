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
"""The channel of what is in no region."""


@dataclass(frozen=True, slots=True)
class ChannelPath:
    """Where in nested regions a replica is; both the innermost first, and of equal length.

    The global channel is ``l0 + w0*l1 + w0*w1*l2 + ...``, with local indexes ``l`` and widths
    ``w``.
    """

    indexes: tuple[int, ...] = ()
    """Its index in each region."""
    widths: tuple[int, ...] = ()
    """The width of each region."""

    @property
    def index(self) -> int:
        """The global channel; -1 outside of any region."""
        return self.all[0] if self.indexes else OUTSIDE

    @property
    def count(self) -> int:
        """How many global channels there are; 0 outside of any region."""
        return math.prod(self.widths) if self.widths else 0

    @property
    def local_index(self) -> int:
        """The channel within the innermost region; -1 outside of any."""
        return self.indexes[0] if self.indexes else OUTSIDE

    @property
    def local_count(self) -> int:
        """The width of the innermost region; 0 outside of any."""
        return self.widths[0] if self.widths else 0

    @property
    def all(self) -> tuple[int, ...]:
        """The global channel at each level, the innermost first.

        >>> ChannelPath((1, 2, 1), (2, 3, 2)).all
        (11, 5, 1)
        """
        return tuple(
            global_channel(self.indexes[level:], self.widths[level:])
            for level in range(len(self.indexes))
        )


def global_channel(indexes: Sequence[int], widths: Sequence[int]) -> int:
    """Return ``l0 + w0*l1 + w0*w1*l2 + ...``."""
    channel, factor = 0, 1
    for local, width in zip(indexes, widths, strict=True):
        channel += factor * local
        factor *= width
    return channel


def iter_channels(widths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the local indexes of all channels, the innermost first, by ascending global channel."""
    if not widths:
        yield ()
        return
    for outer in iter_channels(widths[1:]):
        for local in range(widths[0]):
            yield (local, *outer)


Function: TypeAlias = Callable[..., Iterable[pa.RecordBatch]]
"""A function from the batches that one replica takes to those that it gives; it is called anew
after each barrier. It takes an iterator of batches and, if it asks for one, a `ChannelPath`."""


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function over the batches of one port, and the columns that it gives."""

    function: Function
    schema: pa.Schema
    takes_channel: bool = False
    """Whether its second argument is the `ChannelPath` of the replica."""

    def call(
        self, batches: Iterator[pa.RecordBatch], channel: ChannelPath
    ) -> Iterable[pa.RecordBatch]:
        """Call the function, for a replica of some channel."""
        return self.function(batches, channel) if self.takes_channel else self.function(batches)


@dataclass(frozen=True, slots=True)
class ArrowSource:
    """Rows that are given with the graph."""

    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """The output columns."""
        return self.rows.schema


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows that the caller gives when the graph is run, under the source's name."""

    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class TableSource:
    """Rows or changes of an upsertflow table."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_plain(self.path)


@dataclass(frozen=True, slots=True)
class TableSink:
    """Rows become commands of an upsertflow table."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_plain(self.path)


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Rows that the caller gets when the graph is run, under the sink's name."""


Work: TypeAlias = (
    Node | PythonFunction | ArrowSource | InputRows | TableSource | TableSink | CollectSink
)


def is_row_by_row(work: object) -> bool:
    """Say whether what becomes of a row depends on that row alone."""
    return isinstance(work, Node) and all(
        isinstance(node, Filter | Project | Unnest | ArrowScan) for node in work.walk()
    )


INPUT = "input"
"""The port of an operator that has one."""


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """Rows that enter by a port are shared out by the hash of some columns, in this order."""

    port: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The attributes of a region: how many times it runs, and which channel gets which rows.

    Rows that enter by a port that is neither in ``partition_by`` nor in ``broadcast`` go to the
    channels in turn.
    """

    width: int
    partition_by: tuple[PartitionBy, ...] = ()
    broadcast: tuple[str, ...] = ()
    """Ports by which each channel gets all rows."""


# -- placement -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByChannel:
    """An id that differs from channel to channel of the region that an operator is in."""


@dataclass(frozen=True, slots=True)
class ByReplica:
    """An id that all replicas of an operator's region share."""


PlacementId: TypeAlias = str | ByChannel | ByReplica


def by_channel() -> ByChannel:
    """Return the id of one channel of a region."""
    return ByChannel()


def by_replica() -> ByReplica:
    """Return the id of all replicas of a region."""
    return ByReplica()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The rules by which an operator, or each operator of a composite, shares an element.

    An element is a processing element (`fusion`).
    """

    colocate: tuple[PlacementId, ...] = ()
    """Ids: all operators with a common one are together."""
    exlocate: tuple[PlacementId, ...] = ()
    """Ids: no two operators with a common one are together."""
    isolate: bool = False
    """Whether the operator shares its element with no other."""


# -- operators, composites, streams ----------------------------------------------------------


class OperatorKind(Enum):
    """The kind of an operator, by the ends that it has."""

    SOURCE = "source"
    """An operator that takes no rows."""
    OPERATOR = "operator"
    SINK = "sink"
    """An operator that gives no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalOperator:
    """Something that is done to rows."""

    name: str
    kind: OperatorKind
    work: Work
    inputs: tuple[str, ...] = ()
    """Its ports."""
    schema: pa.Schema | None = None
    """The columns that it gives; None: not known, or it is a sink."""
    parallel: Parallel | None = None
    placement: Placement = Placement()
    keeps_state: bool = False
    """Whether it holds anything across barriers, so that its width cannot change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """Operators, and composites of them, under one name."""

    name: str
    members: tuple[GraphMember, ...]
    parallel: Parallel | None = None
    placement: Placement = Placement()


GraphMember: TypeAlias = LogicalOperator | Composite


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge: the output of an operator goes to a port of another; both by their full names."""

    producer: str
    consumer: str
    port: str

    def __str__(self) -> str:
        return f"{self.producer} -> {self.consumer}.{self.port}"


# -- where they stand ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a graph that runs several times side by side."""

    name: str
    """The full name of the composite or operator."""
    parallel: Parallel

    def port(self, consumer: str, port: str) -> str:
        """Return the name that a port of an operator within has, seen from this region.

        >>> Region("totals", Parallel(width=2)).port("totals.sum", "input")
        'sum.input'
        >>> Region("totals.sum", Parallel(width=2)).port("totals.sum", "input")
        'input'
        """
        return f"{consumer}.{port}".removeprefix(f"{self.name}.")


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """An operator, and all that is around it."""

    name: str
    """Its full name."""
    operator: LogicalOperator
    composites: tuple[tuple[str, Composite], ...]
    """The composites that it is in, with their full names; the innermost first."""
    regions: tuple[Region, ...]
    """The regions that it is in, or is itself; the innermost first."""


@dataclass(frozen=True)
class Graph:
    """Operators and the streams between them."""

    members: tuple[GraphMember, ...]
    streams: tuple[Edge, ...]

    @cached_property
    def places(self) -> dict[str, PlacedOperator]:
        """Each operator by its full name, in the order in which they were given."""
        return {placed.name: placed for placed in _places(self.members, ())}

    @cached_property
    def streams_of(self) -> dict[str, tuple[Edge, ...]]:
        """The outgoing edges of each operator, by its full name."""
        edges: dict[str, list[Edge]] = {name: [] for name in self.places}
        for stream in self.streams:
            edges[stream.producer].append(stream)
        return {name: tuple(streams) for name, streams in edges.items()}

    @cached_property
    def regions(self) -> dict[str, Region]:
        """Each region by its full name, one that is around another before it."""
        regions_inward = (
            region for placed in self.places.values() for region in reversed(placed.regions)
        )
        return {region.name: region for region in regions_inward}

    def entering(self, region: Region) -> tuple[Edge, ...]:
        """Return the streams that lead from outside into a region."""
        return tuple(
            stream
            for stream in self.streams
            if region in self.places[stream.consumer].regions
            and region not in self.places[stream.producer].regions
        )


def _places(
    members: tuple[GraphMember, ...], around: tuple[tuple[str, Composite], ...]
) -> Iterator[PlacedOperator]:
    for member in members:
        name = f"{around[0][0]}.{member.name}" if around else member.name
        if isinstance(member, Composite):
            yield from _places(member.members, ((name, member), *around))
        else:
            named: tuple[tuple[str, GraphMember], ...] = ((name, member), *around)
            regions = (
                Region(region_name, it.parallel)
                for region_name, it in named
                if it.parallel is not None
            )
            yield PlacedOperator(name, member, around, tuple(regions))


SPELLED_BYTES = 256
"""The longest text that is hashed byte by byte, with a pass over all rows for each byte."""

_SEED = np.uint64(17)
_FACTOR = np.uint64(37)
_NULL = np.uint64(0)

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_BLOCK_ROWS = 1 << 14
"""Texts that are hashed at once, so that the passes over them stay in the cache."""


def coded_as(type_: pa.DataType) -> str:
    """Return what equal values of a type have the same codes as: types that agree can be matched.

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
    """Return the code of each row.

    One column has its value's code; several: ``h = 17``, then ``h = 37 * h + code``, modulo
    ``2**64``.

    - integers: the value, sign-extended to 64 bits; booleans: 0 or 1; NULL: 0;
    - string, binary: ``v = byte + rotate_left(v, 7)`` over signed bytes, from 0; longer than
      `SPELLED_BYTES`: `core.key_hash` with seed 0;
    - date: ``mix`` of the days since 1970; time, timestamp, duration: ``mix`` of the nanoseconds;
    - floats: ``mix`` of the bits of the float64, one zero and one NaN;
    - decimal: ``mix(mix(high half) XOR low half)``.

    Source: IBM Streams, ``Splitter.cpp``; texts by the collate hash of libstdc++ on 64 bits.
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
    """Return the codes of texts, the longest first, so that those not yet spelled are in front."""
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
