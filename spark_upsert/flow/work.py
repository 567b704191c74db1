"""What an operator of a graph does, as values: read, compute, write.

An operator that computes is a plan (`spark_upsert.task.plan`) or a Python function. In a plan the
rows of a port are a scan of Arrow that has the port's name:

    Filter(id="large", input=ArrowScan(id="input", schema=...), where="amount > 100")

Nothing here runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from spark_upsert.task.plan import Node

Function: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]
"""From the batches that come to those that go, one replica's each time."""


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function over the batches of one port, and the columns that it gives."""

    function: Function
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ArrowSource:
    """Rows that are given with the graph."""

    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.rows.schema


@dataclass(frozen=True, slots=True)
class TableSource:
    """Rows or changes of an upsertflow table."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSink:
    """Rows become commands of an upsertflow table."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """Rows are handed to whoever runs the graph, under the sink's name."""


Work: TypeAlias = Node | PythonFunction | ArrowSource | TableSource | TableSink | Collected
