"""A physical graph as text, one line per operator at any width."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from spark_upsert.flow.expand import Physical, Splitter, SplitterKind
from spark_upsert.flow.graph import INPUT, Edge, OperatorKind, PythonFunction, Work
from spark_upsert.plan.nodes import Node

Elements: TypeAlias = Iterable[Sequence[str]]
"""Replica names per processing element."""


def render_graph(physical: Physical, elements: Elements = ()) -> str:
    r"""Return a description with one line per operator and stream.

    >>> from spark_upsert.flow import ArrowSource, CollectSink, Flow, Parallel, expanded
    >>> import pyarrow as pa
    >>> flow = Flow()
    >>> rows = flow.source("orders", ArrowSource(pa.table({"id": [1]})))
    >>> flow.sink("kept", CollectSink(), rows, parallel=Parallel(width=3))
    >>> print(render_graph(expanded(flow.graph()), [["orders", "kept[0]"], ["kept[1]", "kept[2]"]]))
    2 operators, 4 replicas, 1 splitter, 3 connections, 2 PEs
    <BLANKLINE>
    PE 0  orders kept[0]
    PE 1  kept[1..2]
    <BLANKLINE>
    orders      source, ArrowSource
      -> kept   in turn to 3 channels, 2 between PEs
    kept[0..2]  sink, CollectSink
    """
    element_names = [list(element) for element in elements]
    counts = [
        _format_count(len(physical.graph.places), "operator"),
        _format_count(len(physical.replicas), "replica"),
        _format_count(len(physical.splitters), "splitter"),
        _format_count(len(physical.connections), "connection"),
        *([_format_count(len(element_names), "PE")] if element_names else []),
    ]
    parts = [[", ".join(counts)]]
    if element_names:
        parts.append(
            _align_columns((f"PE {i}", _fold_names(names)) for i, names in enumerate(element_names))
        )
    parts.append(_align_columns(_describe_operators(physical, element_names)))
    return "\n\n".join("\n".join(lines) for lines in parts)


def _describe_operators(
    physical: Physical, elements: Sequence[Sequence[str]]
) -> Iterator[tuple[str, str]]:
    tally = _tally(physical, elements)
    for name, placed in physical.graph.places.items():
        kind = placed.operator.kind
        role = "" if kind is OperatorKind.OPERATOR else f"{kind.value}, "
        replicas_text = _fold_names([replica.name for replica in physical.replicas_of[name]])
        yield replicas_text, f"{role}{_describe_work(placed.operator.work)}"
        for stream in physical.graph.streams_of[name]:
            ports = physical.graph.places[stream.consumer].operator.inputs
            port = "" if ports == (INPUT,) else f".{stream.port}"
            lines = _describe_stream(physical, stream, tally[stream])
            yield f"  -> {stream.consumer}{port}", lines


class _Count(NamedTuple):
    """Connection counts for a stream."""

    all: int
    between: int | None
    """Connections between processing elements; None without elements."""


def _tally(physical: Physical, elements: Sequence[Sequence[str]]) -> dict[Edge, _Count]:
    element_of = {name: index for index, names in enumerate(elements) for name in names}
    counts: Counter[Edge] = Counter()
    between: Counter[Edge] = Counter()
    for connection in physical.connections:
        producer, consumer = (
            physical.replica[connection.producer],
            physical.replica[connection.consumer],
        )
        stream = Edge(producer.logical, consumer.logical, connection.port)
        counts[stream] += 1
        between[stream] += element_of.get(connection.producer) != element_of.get(
            connection.consumer
        )
    return {
        stream: _Count(count, between[stream] if element_of else None)
        for stream, count in counts.items()
    }


def _describe_stream(physical: Physical, stream: Edge, count: _Count) -> str:
    owners = physical.replicas_of[stream.producer]
    splitter = next(
        (
            splitter_item
            for splitter_item in physical.splitters_of[owners[0].name]
            if (splitter_item.consumer, splitter_item.port) == (stream.consumer, stream.port)
        ),
        None,
    )
    parts = [] if splitter is None else [_describe_routing(splitter)]
    if splitter is not None and len(owners) > 1:
        parts.append(_format_count(len(owners), "splitter"))
    if splitter is None or len(owners) > 1:
        parts.append(_format_count(count.all, "connection"))
    if count.between is not None:
        some = {0: "none", count.all: "all"}.get(count.between, str(count.between))
        parts.append(f"{some} between PEs")
    return ", ".join(parts)


def _describe_routing(splitter: Splitter) -> str:
    """Describe a splitter chain's routing."""
    [first, *_] = splitter.targets
    described = f"{_describe_strategy(splitter)} to {_format_count(splitter.width, 'channel')}"
    return (
        f"{described}, then {_describe_routing(first)} of each"
        if isinstance(first, Splitter)
        else described
    )


def _describe_strategy(splitter: Splitter) -> str:
    match splitter.kind:
        case SplitterKind.HASH:
            return f"by hash of {', '.join(map(_escape_name, splitter.attributes))}"
        case SplitterKind.BROADCAST:
            return "each row"
        case SplitterKind.ROUND_ROBIN:
            return "in turn"


def _escape_name(name: str) -> str:
    """Return a column name with unprintable characters escaped."""
    shown = (character if character.isprintable() else ascii(character)[1:-1] for character in name)
    return "".join(shown)


def _describe_work(work: Work) -> str:
    """Describe an operator's work in a few words."""
    if isinstance(work, Node):
        return work.kind
    if isinstance(work, PythonFunction):
        return getattr(work.function, "__name__", type(work.function).__name__)
    path = getattr(work, "path", None)
    return type(work).__name__ if path is None else f"{type(work).__name__} {path}"


def _fold_names(names: Sequence[str]) -> str:
    """Join names and merge consecutive channels: ``A[0] A[1] A[2]`` is ``A[0..2]``."""
    pairs = [_split_name(name) for name in names]
    # Names are consecutive if channel minus index is constant.
    runs = groupby(enumerate(pairs), key=lambda at: (at[1][0], at[1][1] - at[0]))
    return " ".join(_format_range([pair for _, pair in run]) for _, run in runs)


def _format_range(pairs: list[tuple[str, int]]) -> str:
    (name, first), (_, last) = pairs[0], pairs[-1]
    if first < 0:
        return name
    return f"{name}[{first}]" if first == last else f"{name}[{first}..{last}]"


_REPLICA = re.compile(r"(.*)\[(\d+)\]")


def _split_name(name: str) -> tuple[str, int]:
    """Split a replica name into operator and channel; -1 without a channel."""
    match = _REPLICA.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, -1)


def _align_columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    row_list = list(rows)
    width = max(len(left) for left, _ in row_list)
    return [f"{left:{width}}  {right}".rstrip() for left, right in row_list]


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
