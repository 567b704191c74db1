"""The plan of a task, as values: a tree of nodes; its leaves are scans or given rows.

Every node has a name (``id``), unique in the plan: splits are added to a leaf by this name, and
errors give it. A node says *what* to do; the readers of splits and the look-ups of keys are given
to the task beside the plan. So a plan is a value with a text (`plan_json`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import ClassVar, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import PlanError

NODES_MAX = 1000
"""Most nodes of a plan: a larger one was not written by hand."""

DEPTH_MAX = 100
"""Nodes one below the other: plans are walked by functions that call themselves."""

Condition: TypeAlias = str | pc.Expression
"""SQL (`expressions`), or an expression of Arrow, which has no text: such a plan has no JSON."""


class JoinKind(Enum):
    """The kind of a join: which rows it gives."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    """Left rows that have a match, each once."""
    ANTI = "anti"
    """Left rows that have none."""


class Aggregate(NamedTuple):
    """A column of an aggregation: ``name = function(column)``."""

    name: str
    function: str
    column: str | None = None
    """None: of the rows themselves, which only ``count`` takes."""


def _at_least(node: Node, least: int, *names: str) -> None:
    for name in names:
        value = getattr(node, name)
        if value is not None and value < least:
            raise PlanError(
                f"node '{node.id}': '{name}' of a {node.kind} is at least {least}, found {value}.",
                hint=f"give '{name}' as such a number.",
                node=node.id,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a plan."""

    kind: ClassVar[str]
    id: str

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes below it, in their order."""
        found = (getattr(self, field.name) for field in fields(self))
        nodes = (each if isinstance(each, tuple) else (each,) for each in found)
        return tuple(node for each in nodes for node in each if isinstance(node, Node))

    def walk(self) -> Iterator[Node]:
        """Yield the nodes of the plan: this one first, then each input's."""
        yield self
        for node in self.inputs:
            yield from node.walk()


# -- leaves ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowScan(Node):
    """Splits that are Arrow: tables, batches, or iterators of batches."""

    kind: ClassVar[str] = "arrow_scan"
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan(Node):
    """Splits that are paths of local files (`readers.of_files`), or what the task can read."""

    kind: ClassVar[str] = "file_scan"
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan(Node):
    """Splits that are rows of a version of a table (`readers.rows_of_version`)."""

    kind: ClassVar[str] = "table_scan"
    schema: pa.Schema | None = None
    """None: whatever its reader gives. Such a scan is a plan by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScan(Node):
    """Splits that are changes of a table (`readers.changes_of`).

    The changelog is computed whole: if it were cut into a scan, a join and a projection, values
    would be gathered before duplicates fall.
    """

    kind: ClassVar[str] = "change_scan"
    schema: pa.Schema | None = None
    """None: whatever its reader gives. Such a scan is a plan by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values(Node):
    """Rows that are given once for each barrier, because nothing is kept across one."""

    kind: ClassVar[str] = "values"
    rows: pa.Table


# -- row by row ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """The rows for which a condition is true; neither false nor NULL passes."""

    kind: ClassVar[str] = "filter"
    input: Node
    where: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Node):
    """Columns, each computed from the row: names and expressions."""

    kind: ClassVar[str] = "project"
    input: Node
    columns: tuple[tuple[str, Condition], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnest(Node):
    """A row for each element of a list, beside the other columns of its row.

    A NULL and an empty list give no row. The column keeps its name; ``position`` names one that
    counts the elements of a list from 0 (int64).
    """

    kind: ClassVar[str] = "unnest"
    input: Node
    column: str
    position: str | None = None
    batch_rows: int = 1 << 14

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Node):
    """The rows behind the first ``offset``, no more than ``count``, over all barriers together."""

    kind: ClassVar[str] = "limit"
    input: Node
    count: int
    offset: int = 0

    def __post_init__(self) -> None:
        _at_least(self, 0, "count", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignUniqueId(Node):
    """A column of numbers (int64), no two alike over all barriers, ascending from ``first``."""

    kind: ClassVar[str] = "assign_unique_id"
    input: Node
    column: str
    first: int = 0


# -- across pipelines ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPartition(Node):
    """The rows of all its inputs, shared out among the drivers of what stands above it.

    With ``keys``, rows of equal keys come to the same driver; without, batches go in turn.
    """

    kind: ClassVar[str] = "local_partition"
    parts: tuple[Node, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedUnion(Node):
    """The batches of all its inputs in turn: one of each that has one, in their order."""

    kind: ClassVar[str] = "mixed_union"
    parts: tuple[Node, ...]


# -- what holds rows until the barrier -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation(Node):
    """A row for each group of equal keys, in each barrier anew; without aggregates, distinct keys.

    ``is_clustered``: equal keys come one after the other, so that only one group is held.
    """

    kind: ClassVar[str] = "aggregation"
    input: Node
    keys: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    is_clustered: bool = False
    batch_rows: int = 1 << 14
    memory_bytes_max: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_rows", "memory_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """A join; its right side is a chain of its own."""

    left: Node
    right: Node
    join: JoinKind
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    batch_rows: int = 1 << 14
    memory_bytes_max: int | None = None
    """Bound of the right rows that the join holds at once."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_rows", "memory_bytes_max")
        if not self.left_keys or len(self.left_keys) != len(self.right_keys):
            raise PlanError(
                f"node '{self.id}': a {self.kind} has as many keys on the left as on the right, "
                f"and at least one, found {len(self.left_keys)} and {len(self.right_keys)}.",
                hint="give the keys of both sides in the same order.",
                node=self.id,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJoin(Join):
    """A join of two sides that are sorted by their keys.

    The right rows of one key are held until the left side has passed it.
    """

    kind: ClassVar[str] = "merge_join"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashJoin(Join):
    """A join that holds its right side whole until the barrier."""

    kind: ClassVar[str] = "hash_join"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLookupJoin(Node):
    """Rows joined with what is found under their keys, in a table or in Arrow rows.

    Where is looked up is given to the task, under this node's name.
    """

    kind: ClassVar[str] = "index_lookup_join"
    input: Node
    join: JoinKind
    keys: tuple[str, ...]
    prefetch: int = 4
    """How many batches may have look-ups under way at once."""
    batch_rows: int = 1 << 14

    def __post_init__(self) -> None:
        _at_least(self, 1, "prefetch", "batch_rows")


NODES: dict[str, type[Node]] = {
    each.kind: each
    for each in (
        ArrowScan,
        FileScan,
        TableScan,
        ChangeScan,
        Values,
        Filter,
        Project,
        Unnest,
        Limit,
        AssignUniqueId,
        LocalPartition,
        MixedUnion,
        Aggregation,
        MergeJoin,
        HashJoin,
        IndexLookupJoin,
    )
}
"""The nodes by the names that they have in JSON."""

Scan = ArrowScan | FileScan | TableScan | ChangeScan
"""The leaves that take splits."""


def scans_of(plan: Node) -> tuple[Scan, ...]:
    """Return the leaves that take splits, in the order of the plan."""
    return tuple(node for node in plan.walk() if isinstance(node, Scan))


def check(plan: Node) -> None:
    """Refuse a plan in which two nodes have one name, or that is absurdly large or deep.

    Raises
    ------
    PlanError
    """
    seen: dict[str, str] = {}
    waiting = [(plan, 1)]
    while waiting:
        node, depth = waiting.pop()
        waiting.extend((each, depth + 1) for each in reversed(node.inputs))
        if len(seen) == NODES_MAX or depth > DEPTH_MAX:
            raise PlanError(
                f"a plan has at most {NODES_MAX} nodes, and {DEPTH_MAX} one below the other; "
                f"this one has more.",
                hint="cut it into several.",
            )
        if not node.id:
            raise PlanError(f"a {node.kind} has no name.", hint="give each node an 'id'.")
        if node.id in seen:
            raise PlanError(
                f"node '{node.id}': a {seen[node.id]} and a {node.kind} have this name.",
                hint="give each node an 'id' of its own.",
                node=node.id,
            )
        seen[node.id] = node.kind
