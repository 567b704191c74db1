"""Plan nodes as values, for tasks, views and flows (docs/adr/0033).

A task adds splits to the scans by their ``id``, a view reads tables (`Scan`), a flow's operators
are plans. Fields such as ``batch_rows`` never change rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import type_of, type_text
from spark_upsert.core.keys import Positions
from spark_upsert.core.names import names_of
from spark_upsert.errors import PlanError
from spark_upsert.plan.aggregates import Aggregate
from spark_upsert.plan.sql import requoted

VERSION = 1
"""Version of the JSON form."""

DEPTH_MAX = 100
"""Most nodes on the way from the root to a scan; a deeper plan was not written by hand, and plans
are walked by functions that call themselves."""

NODES_MAX = 1000
"""Most nodes of a task's plan."""

BATCH_ROWS = 1 << 14
"""Rows of the batches that a node makes anew, if the plan does not say."""

Formula: TypeAlias = str | pc.Expression
"""SQL, or an expression of Arrow, which has no text: such a plan has no JSON."""


class JoinType(Enum):
    """Which rows a join gives."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    """Only in tasks: a view swaps the sides."""
    FULL = "full"
    SEMI = "semi"
    """Left rows that have a match, each once."""
    ANTI = "anti"
    """Left rows that have none."""

    @property
    def shows_right(self) -> bool:
        """Whether columns of the right side come out."""
        return self not in (JoinType.SEMI, JoinType.ANTI)


class Reverse(Enum):
    """How a view finds the rows that a change of the other side touches."""

    INDEX = "index"
    SCAN = "scan"
    """The whole side is read with each step that touches it."""


class Column(NamedTuple):
    """A column of a table, frozen."""

    name: str
    type: str
    """As `types.type_text` writes it."""


class ProjectedColumn(NamedTuple):
    """A column of a projection."""

    name: str
    formula: Formula


class JoinKeys(NamedTuple):
    """Columns that are equal in the rows that a join puts together."""

    left: str
    right: str

    @classmethod
    def pairs(cls, left: Sequence[str], right: Sequence[str]) -> tuple[JoinKeys, ...]:
        """Return the columns of two sides, pair by pair.

        Raises
        ------
        PlanError
            One side has more of them.
        """
        left, right = names_of(left, "left"), names_of(right, "right")
        if len(left) != len(right):
            raise PlanError(
                f"a join has as many columns on the left as on the right, found {len(left)} and "
                f"{len(right)}.",
                hint="give the columns of both sides in the same order.",
            )
        return tuple(map(cls, left, right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a plan.

    Its JSON text omits defaults; Arrow schemas and rows are base64. The fingerprint is a hash of
    that text, which checkpoints contain so that no other plan continues there.
    """

    kind: ClassVar[str]
    id: str = ""
    """The name of the node, unique in the plan of a task, which adds splits and tells errors by it;
    a view needs none."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes below it, in their order."""
        values = (getattr(self, node_field.name) for node_field in fields(self))
        nodes = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(node for children in nodes for node in children if isinstance(node, Node))

    @property
    def label(self) -> str:
        """The name of the node's rows in errors: that of the table that they come from."""
        return self.inputs[0].label if self.inputs else self.id

    @property
    def title(self) -> str:
        """The name of the node in errors."""
        return self.id or f"{self.kind} of {self.label}"

    def walk(self) -> Iterator[Node]:
        """Yield the nodes of the plan: this one first, then each input's."""
        yield self
        for node in self.inputs:
            yield from node.walk()

    def to_json(self) -> str:
        """Return the plan as text; equal plans have equal texts.

        Raises
        ------
        PlanError
            It holds an expression of Arrow, which has no text.
        """
        return to_text({"v": VERSION, **_record(self)})

    def fingerprint(self) -> str:
        """Return a hash of the plan, 32 hex digits."""
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    def _require_at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                raise PlanError(
                    f"node '{self.title}': '{name}' of a {self.kind} is at least {least}, found "
                    f"{value}.",
                    hint=f"give '{name}' as such a number.",
                    node=self.title,
                )

    def _set_names(self, field_name: str) -> None:
        """Let a text that is given for names be one name."""
        names = names_of(getattr(self, field_name), field_name)
        object.__setattr__(self, field_name, names)


# -- leaves ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Node):
    """The rows of a table.

    Names and types are those when the plan was made: later columns are not visible.
    """

    kind: ClassVar[str] = "scan"
    path: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    version: int | None = None
    """Fixed there for ever; None: moves with the table."""

    @classmethod
    def of(cls, path: str, columns: pa.Schema, key: tuple[str, ...]) -> Scan:
        """Return the scan of a table with some columns."""
        frozen = tuple(Column(column.name, type_text(column.type)) for column in columns)
        return cls(path=path, columns=frozen, key=key)

    @property
    def schema(self) -> pa.Schema:
        """The columns; any may be NULL."""
        return pa.schema([(column.name, type_of(column.type)) for column in self.columns])

    @property
    def label(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2] or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowScan(Node):
    """Splits that are Arrow: tables, batches, or iterators of batches."""

    kind: ClassVar[str] = "arrow_scan"
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan(Node):
    """Splits that are paths of local files (`task.sources.of_files`), or what the task can read."""

    kind: ClassVar[str] = "file_scan"
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan(Node):
    """Splits that are rows of a version of a table (`task.sources.rows_of_version`)."""

    kind: ClassVar[str] = "table_scan"
    schema: pa.Schema | None = None
    """None: whatever its reader gives. Such a scan is a plan by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScan(Node):
    """Splits that are changes of a table (`task.sources.changes_of`) or of a view.

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


SplitScan: TypeAlias = Scan | ArrowScan | FileScan | TableScan | ChangeScan
"""The leaves to which a task adds splits."""


# -- row by row ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """The rows for which a condition is TRUE; neither FALSE nor NULL passes."""

    kind: ClassVar[str] = "filter"
    input: Node
    where: Formula

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", _in_single_quotes(self.where))


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Node):
    """Other columns of each row, each computed from it."""

    kind: ClassVar[str] = "project"
    input: Node
    columns: tuple[ProjectedColumn, ...]

    def __post_init__(self) -> None:
        columns = (
            ProjectedColumn(name, _in_single_quotes(formula)) for name, formula in self.columns
        )
        object.__setattr__(self, "columns", tuple(columns))


def _in_single_quotes(formula: Formula) -> Formula:
    """Return a formula without double quotes, in which plans of before had names (`plan.json`)."""
    return requoted(formula, "'") if isinstance(formula, str) else formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnest(Node):
    """A row for each element of a list, beside the other columns of its row.

    A NULL and an empty list give no row. The column keeps its name; ``position`` names one that
    counts the elements of a list from 0 (int64), None for none. That of a view is ``pos``.
    """

    kind: ClassVar[str] = "unnest"
    input: Node
    column: str
    position: str | None = "pos"
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        self._require_at_least(1, "batch_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Node):
    """The rows behind the first ``offset``, no more than ``count``, over all barriers together."""

    kind: ClassVar[str] = "limit"
    input: Node
    count: int
    offset: int = 0

    def __post_init__(self) -> None:
        self._require_at_least(0, "count", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignUniqueId(Node):
    """A column of numbers (int64), no two alike over all barriers, ascending from ``first``."""

    kind: ClassVar[str] = "assign_unique_id"
    input: Node
    column: str
    first: int = 0


# -- several inputs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPartition(Node):
    """The rows of all its inputs, shared out among the drivers of what stands above it.

    With ``keys``, rows of equal keys come to the same driver; without, batches go in turn.
    """

    kind: ClassVar[str] = "local_partition"
    parts: tuple[Node, ...]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._set_names("keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedUnion(Node):
    """The batches of all its inputs in turn: one of each that has one, in their order."""

    kind: ClassVar[str] = "mixed_union"
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Rows of two inputs that are equal in some columns.

    It gives the columns of the left side, then those of the right one that are not joined on, as
    `USING` does in SQL: a key that both sides have is one column. A view joins by the changes of
    both sides, and looks the other one up by its key or by an index; a task by a hash table of the
    right side. `HashJoin` and `MergeJoin` are nodes of tasks alone.
    """

    kind: ClassVar[str] = "join"
    shows_both_keys: ClassVar[bool] = False
    """Whether the columns of the right side that are joined on come out, too."""
    how: JoinType = JoinType.INNER
    on: tuple[JoinKeys, ...]
    left: Node
    right: Node
    reverse: Reverse = Reverse.INDEX
    batch_rows: int = BATCH_ROWS
    memory_bytes_max: int | None = None
    """The bound of the right rows that a task holds at once."""

    def __post_init__(self) -> None:
        self._require_at_least(1, "batch_rows", "memory_bytes_max")

    @property
    def title(self) -> str:
        return self.id or f"join of {self.left.label} and {self.right.label}"

    @property
    def left_keys(self) -> tuple[str, ...]:
        """The columns of the left side that are joined."""
        return tuple(pair.left for pair in self.on)

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The columns of the right side that are joined."""
        return tuple(pair.right for pair in self.on)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJoin(Join):
    """A join in a task of two sides that are sorted by their keys, with all columns of both.

    The right rows of one key are held until the left side has passed it.
    """

    kind: ClassVar[str] = "merge_join"
    shows_both_keys: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HashJoin(Join):
    """A join in a task that holds its right side until the barrier, with all columns of both."""

    kind: ClassVar[str] = "hash_join"
    shows_both_keys: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLookupJoin(Node):
    """Rows joined in a task with what is found under their keys, in a table or in Arrow rows.

    Where is looked up is given to the task, under this node's name.
    """

    kind: ClassVar[str] = "index_lookup_join"
    input: Node
    how: JoinType
    keys: tuple[str, ...]
    prefetch: int = 4
    """How many batches may have look-ups under way at once."""
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        self._require_at_least(1, "prefetch", "batch_rows")
        self._set_names("keys")


# -- groups ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Node):
    """Aggregates over groups of rows with equal keys; without aggregates, the distinct keys.

    In a view only at the root: a table keeps the groups (`views`). A task makes those of
    each barrier anew.
    """

    kind: ClassVar[str] = "group"
    input: Node
    # By factories, which are no defaults of a text: texts have always said both.
    keys: tuple[str, ...] = field(default_factory=tuple)
    """None for one group of all rows."""
    aggregates: tuple[Aggregate, ...] = field(default_factory=tuple)
    is_clustered: bool = False
    """Whether equal keys come one after the other, so that a task holds one group at a time."""
    batch_rows: int = BATCH_ROWS
    memory_bytes_max: int | None = None

    def __post_init__(self) -> None:
        self._require_at_least(1, "batch_rows", "memory_bytes_max")
        self._set_names("keys")


KINDS: dict[str, type[Node]] = {
    node_type.kind: node_type
    for node_type in (
        *(Scan, ArrowScan, FileScan, TableScan, ChangeScan, Values),
        *(Filter, Project, Unnest, Limit, AssignUniqueId),
        *(LocalPartition, MixedUnion, Join, MergeJoin, HashJoin, IndexLookupJoin, Group),
    )
}
"""The nodes that a plan may have, by their names in its text."""


# -- what a plan may be ----------------------------------------------------------------------


def scans_of(plan: Node) -> tuple[SplitScan, ...]:
    """Return the leaves that take splits, in the order of the plan."""
    return tuple(node for node in plan.walk() if isinstance(node, SplitScan))


def require_depth(node: Node) -> None:
    """Raise `PlanError` if a plan is deeper than its text may be."""
    level: list[Node] = [node]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for node in level for inner in node.inputs]
        if not level:
            return
    raise too_deep()


def too_deep() -> PlanError:
    """Return the error of a plan that is deeper than one may be."""
    return PlanError(
        f"the plan is deeper than {DEPTH_MAX} nodes.",
        hint="write several filters or projections behind each other as one.",
    )


def require_names(plan: Node) -> None:
    """Refuse a task's plan in which two nodes have one name, or that is absurdly large or deep."""
    first_spellings: dict[str, str] = {}
    waiting = [(plan, 0)]
    while waiting:
        node, depth = waiting.pop()
        waiting.extend((child, depth + 1) for child in reversed(node.inputs))
        if depth > DEPTH_MAX:
            raise too_deep()
        if len(first_spellings) == NODES_MAX:
            raise PlanError(
                f"the plan of a task has at most {NODES_MAX} nodes; this one has more.",
                hint="cut it into several.",
            )
        if not node.id:
            raise PlanError(f"a {node.kind} has no name.", hint="give each node an 'id'.")
        if node.id in first_spellings:
            raise PlanError(
                f"node '{node.id}': a {first_spellings[node.id]} and a {node.kind} have this name.",
                hint="give each node an 'id' of its own.",
                node=node.id,
            )
        first_spellings[node.id] = node.kind


# -- what a plan is as text ------------------------------------------------------------------


def _record(node: Node) -> dict[str, Any]:
    values = ((node_field, getattr(node, node_field.name)) for node_field in fields(node))
    shown_fields = {
        f.name: _plain(node, value) for f, value in values if not _is_same(value, f.default)
    }
    return {"node": node.kind, **shown_fields}


def _is_same(value: Any, default: Any) -> bool:
    """Return whether a field has its default; those of Arrow have none, and may not compare."""
    return type(value) is type(default) and value == default


def _plain(node: Node, value: Any) -> Any:
    match value:
        case Node():
            return _record(value)
        case Aggregate():
            return value.to_json()
        case Enum():
            return value.value
        case tuple():
            return [_plain(node, item) for item in value]
        case pa.Schema():
            return base64.b64encode(value.serialize().to_pybytes()).decode()
        case pa.Table():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write_table(value)
            return base64.b64encode(sink.getvalue().to_pybytes()).decode()
        case pc.Expression():
            raise PlanError(
                f"node '{node.title}' holds an expression of Arrow, which has no text: {value}.",
                hint="write it as SQL.",
            )
        case _:
            return value


def to_text(value: Any) -> str:
    """Return JSON in the form that plans have."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class UnnestedRows(NamedTuple):
    """The elements of the lists of some rows."""

    rows: pa.RecordBatch
    owners: Positions
    """The row that each element is of, ascending."""


def unnested_schema(node: Unnest, schema: pa.Schema) -> pa.Schema:
    """Return the columns that a node gives: the place of an element stands before the element."""
    if node.column not in schema.names:
        raise PlanError.missing_column(node.column, schema.names)
    list_type = schema.field(node.column).type
    if not (pa.types.is_list(list_type) or pa.types.is_large_list(list_type)):
        raise PlanError(
            f"'{node.column}' is {list_type}, and a list is unnested.",
            hint="name a column of lists.",
            column=node.column,
        )
    if node.position in schema.names:
        raise PlanError(
            f"the input has a column '{node.position}' already: rename one.",
            hint=f"select it under another name before: '{node.position}' is the place in the "
            "list.",
            column=node.position,
        )
    at = schema.get_field_index(node.column)
    unnested = schema.set(at, pa.field(node.column, list_type.value_type))
    return (
        unnested
        if node.position is None
        else unnested.insert(at, pa.field(node.position, pa.int64()))
    )


def unnest(node: Unnest, rows: pa.RecordBatch, schema: pa.Schema) -> UnnestedRows:
    """Return a row for each element of the lists of some rows, in their order."""
    lists = rows.column(node.column)
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    columns = {node.column: lists.flatten()}
    if node.position is not None:
        columns[node.position] = pa.array(_places(lengths))
    row_indices = pa.array(owners)
    arrays = [
        columns[name] if name in columns else rows.column(name).take(row_indices)
        for name in schema.names
    ]
    return UnnestedRows(pa.RecordBatch.from_arrays(arrays, schema=schema), owners)


def _places(lengths: Positions) -> Positions:
    """Return the place of each element in its own list, given the lengths of the lists."""
    begins = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
