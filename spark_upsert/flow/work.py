"""The work of an operator of a graph, as values: read, compute, write.

An operator that computes is a plan (`spark_upsert.plan.nodes`) or a Python function. In a plan the
rows of a port are a scan of Arrow that has the port's name:

    Filter(id="large", input=ArrowScan(id="input", schema=...), where="amount > 100")

Nothing here runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from spark_upsert.errors import require_plain
from spark_upsert.flow.channels import ChannelPath
from spark_upsert.plan.nodes import ArrowScan, Filter, Node, Project, Unnest

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
        """The columns of its rows."""
        return self.rows.schema


@dataclass(frozen=True, slots=True)
class Given:
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
class Collected:
    """Rows that the caller gets when the graph is run, under the sink's name."""


Work: TypeAlias = Node | PythonFunction | ArrowSource | Given | TableSource | TableSink | Collected


def is_row_by_row(work: object) -> bool:
    """Say whether what becomes of a row depends on that row alone."""
    return isinstance(work, Node) and all(
        isinstance(node, Filter | Project | Unnest | ArrowScan) for node in work.walk()
    )
