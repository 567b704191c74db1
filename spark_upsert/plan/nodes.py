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
from spark_upsert.plan.sql import replace_quotes

VERSION = 1
"""Version of the JSON form."""

DEPTH_MAX = 100
"""Maximum nodes between root and scan. Plans are walked recursively; a deeper plan was generated."""

NODES_MAX = 1000
"""Maximum nodes per task plan."""

BATCH_ROWS = 1 << 14
"""Default rows per batch for nodes that create batches."""

Formula: TypeAlias = str | pc.Expression
"""SQL, or an Arrow expression, which has no text: such a plan has no JSON."""


class JoinType(Enum):
    """The rows that a join returns."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    """Only in tasks: a view swaps the sides."""
    FULL = "full"
    SEMI = "semi"
    """Left rows with a match, each once."""
    ANTI = "anti"
    """Left rows without a match."""

    @property
    def shows_right(self) -> bool:
        """Whether the output has the right side's columns."""
        return self not in (JoinType.SEMI, JoinType.ANTI)


class Reverse(Enum):
    """A view's strategy to find the rows affected by a change on the other side."""

    INDEX = "index"
    SCAN = "scan"
    """Reads the complete side in each step that affects it."""


class Column(NamedTuple):
    """A table column, fixed when the plan is made."""

    name: str
    type: str
    """Type text from `arrow_types.type_text`."""


class ProjectedColumn(NamedTuple):
    """A projection's column."""

    name: str
    formula: Formula


class JoinKeys(NamedTuple):
    """A pair of join columns with equal values."""

    left: str
    right: str

    @classmethod
    def pairs(cls, left: Sequence[str], right: Sequence[str]) -> tuple[JoinKeys, ...]:
        """Pair the columns from two sides.

        Raises
        ------
        PlanError
            The sides have different column counts.
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
    """A plan node.

    Its JSON text omits defaults; Arrow schemas and rows are base64. Checkpoints store the
    fingerprint, a hash of that text, so that a different plan cannot resume.
    """

    kind: ClassVar[str]
    id: str = ""
    """Node name, unique within a task's plan: for adding splits and in errors. Optional in views."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The input nodes in order."""
        values = (getattr(self, node_field.name) for node_field in fields(self))
        nodes = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(node for children in nodes for node in children if isinstance(node, Node))

    @property
    def label(self) -> str:
        """The name for the node's rows in errors: their table's name."""
        return self.inputs[0].label if self.inputs else self.id

    @property
    def title(self) -> str:
        """The node's name in errors."""
        return self.id or f"{self.kind} of {self.label}"

    def walk(self) -> Iterator[Node]:
        """Yield the plan's nodes: this node first, then each input's."""
        yield self
        for node in self.inputs:
            yield from node.walk()

    def to_json(self) -> str:
        """Return the plan as text; equal plans have equal texts.

        Raises
        ------
        PlanError
            The plan has an Arrow expression, which has no text.
        """
        return to_text({"v": VERSION, **_record(self)})

    def fingerprint(self) -> str:
        """Return the plan's hash, 32 hex digits."""
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
        """Normalise a field with names: a single text becomes one name."""
        names = names_of(getattr(self, field_name), field_name)
        object.__setattr__(self, field_name, names)


# -- leaves ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Node):
    """A table's rows.

    Column names and types are fixed when the plan is made: later columns are not visible.
    """

    kind: ClassVar[str] = "scan"
    path: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    version: int | None = None
    """The pinned version; None follows the table."""

    @classmethod
    def of(cls, path: str, columns: pa.Schema, key: tuple[str, ...]) -> Scan:
        """Build the scan for a table with some columns."""
        frozen = tuple(Column(column.name, type_text(column.type)) for column in columns)
        return cls(path=path, columns=frozen, key=key)

    @property
    def schema(self) -> pa.Schema:
        """The columns, all nullable."""
        return pa.schema([(column.name, type_of(column.type)) for column in self.columns])

    @property
    def label(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2] or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowScan(Node):
    """Arrow splits: tables, batches, or batch iterators."""

    kind: ClassVar[str] = "arrow_scan"
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan(Node):
    """Splits with local file paths (`task.sources.of_files`), or input for another reader."""

    kind: ClassVar[str] = "file_scan"
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan(Node):
    """Splits with rows from a table version (`task.sources.rows_of_version`)."""

    kind: ClassVar[str] = "table_scan"
    schema: pa.Schema | None = None
    """None for the reader's schema; such a scan must be the complete plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScan(Node):
    """Splits with changes from a table (`task.sources.changes_of`) or a view.

    One node computes the changelog: a scan, a join and a projection would gather values before
    duplicates are removed.
    """

    kind: ClassVar[str] = "change_scan"
    schema: pa.Schema | None = None
    """None for the reader's schema; such a scan must be the complete plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values(Node):
    """Constant rows, repeated for each barrier, because no state is kept across barriers."""

    kind: ClassVar[str] = "values"
    rows: pa.Table


SplitScan: TypeAlias = Scan | ArrowScan | FileScan | TableScan | ChangeScan
"""The leaves that accept splits from a task."""


# -- row by row ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Rows with a TRUE condition; FALSE and NULL rows are dropped."""

    kind: ClassVar[str] = "filter"
    input: Node
    where: Formula

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", _in_single_quotes(self.where))


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Node):
    """New columns, computed row by row."""

    kind: ClassVar[str] = "project"
    input: Node
    columns: tuple[ProjectedColumn, ...]

    def __post_init__(self) -> None:
        columns = (
            ProjectedColumn(name, _in_single_quotes(formula)) for name, formula in self.columns
        )
        object.__setattr__(self, "columns", tuple(columns))


def _in_single_quotes(formula: Formula) -> Formula:
    """Replace double quotes in a formula; older plans used them for names (`plan.json`)."""
    return replace_quotes(formula, "'") if isinstance(formula, str) else formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnest(Node):
    """One row per list element, with the row's other columns.

    NULL and empty lists produce no rows. The column keeps its name; ``position`` names an int64
    column with the element index from 0, None for no such column. In views it is ``pos``.
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
    """At most ``count`` rows after the first ``offset`` rows, counted across barriers."""

    kind: ClassVar[str] = "limit"
    input: Node
    count: int
    offset: int = 0

    def __post_init__(self) -> None:
        self._require_at_least(0, "count", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignUniqueId(Node):
    """Adds an int64 column with unique numbers across barriers, ascending from ``first``."""

    kind: ClassVar[str] = "assign_unique_id"
    input: Node
    column: str
    first: int = 0


# -- several inputs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPartition(Node):
    """Distributes the rows from all inputs among the next operators' drivers.

    With ``keys``, rows with equal keys go to the same driver; without, batches go round-robin.
    """

    kind: ClassVar[str] = "local_partition"
    parts: tuple[Node, ...]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._set_names("keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedUnion(Node):
    """Interleaves batches from all inputs: one batch per input with data, in input order."""

    kind: ClassVar[str] = "mixed_union"
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """An equality join.

    The output has the left columns, then the right columns without the join columns, as with
    `USING` in SQL. A view joins changes from both sides, and looks up the other side by its key or
    an index. A task builds a hash table from the right side. `HashJoin` and `MergeJoin` are for
    tasks only.
    """

    kind: ClassVar[str] = "join"
    shows_both_keys: ClassVar[bool] = False
    """Whether the output also has the right side's join columns."""
    how: JoinType = JoinType.INNER
    on: tuple[JoinKeys, ...]
    left: Node
    right: Node
    reverse: Reverse = Reverse.INDEX
    batch_rows: int = BATCH_ROWS
    memory_bytes_max: int | None = None
    """Maximum bytes for the right rows in a task's memory; None for the task's default."""

    def __post_init__(self) -> None:
        self._require_at_least(1, "batch_rows", "memory_bytes_max")

    @property
    def title(self) -> str:
        return self.id or f"join of {self.left.label} and {self.right.label}"

    @property
    def left_keys(self) -> tuple[str, ...]:
        """The left side's join columns."""
        return tuple(pair.left for pair in self.on)

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The right side's join columns."""
        return tuple(pair.right for pair in self.on)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJoin(Join):
    """A task's merge join: both sides are sorted by key, the output has all columns.

    One key's right rows are buffered until the left side has passed that key.
    """

    kind: ClassVar[str] = "merge_join"
    shows_both_keys: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HashJoin(Join):
    """A task's hash join: buffers the right side until the barrier, the output has all columns."""

    kind: ClassVar[str] = "hash_join"
    shows_both_keys: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLookupJoin(Node):
    """A task's join with key look-ups in a table or in Arrow rows.

    The task receives the look-up source under this node's ``id``.
    """

    kind: ClassVar[str] = "index_lookup_join"
    input: Node
    how: JoinType
    keys: tuple[str, ...]
    prefetch: int = 4
    """Maximum batches with concurrent look-ups."""
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        self._require_at_least(1, "prefetch", "batch_rows")
        self._set_names("keys")


# -- groups ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Node):
    """Aggregates per key; without aggregates, the distinct keys.

    A view allows it only at the root, because a table stores the groups (`views`). A task computes
    the groups from scratch for each barrier.
    """

    kind: ClassVar[str] = "group"
    input: Node
    # By factories, which are no defaults of a text: texts have always said both.
    keys: tuple[str, ...] = field(default_factory=tuple)
    """Empty for a single group with all rows."""
    aggregates: tuple[Aggregate, ...] = field(default_factory=tuple)
    is_clustered: bool = False
    """Whether equal keys are adjacent, so that a task buffers one group at a time."""
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
"""Node types by name in plan texts."""


# -- what a plan may be ----------------------------------------------------------------------


def scans_of(plan: Node) -> tuple[SplitScan, ...]:
    """Return the leaves that accept splits, in plan order."""
    return tuple(node for node in plan.walk() if isinstance(node, SplitScan))


def require_depth(node: Node) -> None:
    """Raise `PlanError` if a plan is deeper than `DEPTH_MAX`."""
    level: list[Node] = [node]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for node in level for inner in node.inputs]
        if not level:
            return
    raise too_deep()


def too_deep() -> PlanError:
    """Return the error for a plan deeper than `DEPTH_MAX`."""
    return PlanError(
        f"the plan is deeper than {DEPTH_MAX} nodes.",
        hint="write several filters or projections behind each other as one.",
    )


def require_names(plan: Node) -> None:
    """Raise `PlanError` if a task's plan has missing or duplicate ids, or is too large or deep."""
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
    """Return whether a field has its default; types are compared first, for Arrow values."""
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
    """Return compact JSON, as in plan texts."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class UnnestedRows(NamedTuple):
    """Rows after unnesting, one per list element."""

    rows: pa.RecordBatch
    owners: Positions
    """Each element's source row, ascending."""


def unnested_schema(node: Unnest, schema: pa.Schema) -> pa.Schema:
    """Return the output schema; the position column precedes the element column."""
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
    """Return one row per list element, in input order."""
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
    """Return each element's index in its list, from the list lengths."""
    begins = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
