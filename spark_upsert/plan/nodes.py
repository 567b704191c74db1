"""The plan of a view, as values: a tree of nodes over scans of tables.

A plan says *what*; which tables stand at its paths is found when it is bound (`binding`). It has a
text, a JSON object, which leaves out the defaults of a node:

    {"v":1,"node":"join","how":"left","on":[["customer_id","id"]],
     "left":{"node":"scan","path":"…","columns":[["id","int64"]],"key":["id"]},"right":{…}}

A scan freezes the names and the types of the columns that the table had when the plan was made:
columns that the table gains later are not seen. The *fingerprint* of a plan is a hash of that text
with the keys of all objects in order: a checkpoint names it, so that no other plan goes on there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import PlanError, about, did_you_mean
from spark_upsert.model.types import type_of, type_text
from spark_upsert.plan.aggregates import Aggregate

VERSION = 1
"""Version of the JSON form."""

DEPTH_MAX = 100
"""Most nodes on the way from the root to a scan; a deeper plan was not written by hand."""

_NESTING_MAX = 4 * DEPTH_MAX
"""Objects and lists within each other in the text of a plan: a node is one, and what it lists."""

_TEXT_MAX = 4 << 20
"""Characters of a plan: a hundred scans of some thousand columns each."""

Formula: TypeAlias = str | pc.Expression
"""SQL, or an expression of Arrow, which has no text: such a plan has no JSON."""


class How(Enum):
    """Which rows a join gives."""

    INNER = "inner"
    LEFT = "left"
    FULL = "full"
    SEMI = "semi"
    """Left rows that have a match."""
    ANTI = "anti"
    """Left rows that have none."""

    @property
    def shows_right(self) -> bool:
        """Whether columns of the right side come out."""
        return self not in (How.SEMI, How.ANTI)


class Reverse(Enum):
    """How the rows are found that a change of the other side touches."""

    INDEX = "index"
    SCAN = "scan"
    """The whole side is read with each step that touches it."""


class Column(NamedTuple):
    """A column of a table, frozen."""

    name: str
    type: str
    """As `types.type_text` writes it."""


class Named(NamedTuple):
    """A column of a projection."""

    name: str
    formula: Formula


class On(NamedTuple):
    """Columns that are equal in the rows that a join puts together."""

    left: str
    right: str


# -- how fields are read from text -----------------------------------------------------------


FieldReader: TypeAlias = Callable[[Any, int], Any]
"""Makes the value of a field of what JSON holds, and of the node's depth; a TypeError or a
ValueError says that it cannot."""


def _str(value: Any, _: int = 0) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _whole(value: Any, _: int = 0) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("no version")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _strs(value: Any, _: int = 0) -> tuple[str, ...]:
    return tuple(map(_str, _list(value)))


def _pairs_of(type_: Any) -> FieldReader:
    def read(value: Any, _: int) -> tuple[Any, ...]:
        return tuple(type_(*map(_str, _list(each))) for each in _list(value))

    return read


def read_node(value: Any, depth: int) -> Node:
    """Return a node that stands below another."""
    return _node(value, depth + 1)


# -- nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a plan."""

    kind: ClassVar[str]
    readers: ClassVar[Mapping[str, FieldReader]]
    """By the fields; those that have no reader cannot be in a text."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes below it, in their order."""
        found = (getattr(self, each.name) for each in fields(self))
        return tuple(each for each in found if isinstance(each, Node))

    @property
    def label(self) -> str:
        """The name of the node's rows in errors: that of the table that they come from."""
        return self.inputs[0].label

    @property
    def title(self) -> str:
        """The name of the node in errors."""
        return f"{self.kind} of {self.label}"

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
        return _text({"v": VERSION, **_record(self)})

    def fingerprint(self) -> str:
        """Return a hash of the plan, 32 hex digits."""
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Node):
    """The rows of a table."""

    kind: ClassVar[str] = "scan"
    readers: ClassVar[Mapping[str, FieldReader]] = {
        "path": _str,
        "columns": _pairs_of(Column),
        "key": _strs,
        "version": _whole,
    }
    path: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    version: int | None = None
    """Fixed there for ever; None: moves with the table."""

    @classmethod
    def of(cls, path: str, columns: pa.Schema, key: tuple[str, ...]) -> Scan:
        """Return the scan of a table with some columns."""
        frozen = tuple(Column(each.name, type_text(each.type)) for each in columns)
        return cls(path=path, columns=frozen, key=key)

    @property
    def schema(self) -> pa.Schema:
        """The columns; any may be NULL."""
        return pa.schema([(column.name, type_of(column.type)) for column in self.columns])

    @property
    def label(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2] or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Rows for which a condition is TRUE."""

    kind: ClassVar[str] = "filter"
    readers: ClassVar[Mapping[str, FieldReader]] = {"input": read_node, "where": _str}
    input: Node
    where: Formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Node):
    """Other columns of each row."""

    kind: ClassVar[str] = "project"
    readers: ClassVar[Mapping[str, FieldReader]] = {"input": read_node, "columns": _pairs_of(Named)}
    input: Node
    columns: tuple[Named, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnest(Node):
    """A row per element of a list, with the element's place, from 0, in the column ``pos``."""

    kind: ClassVar[str] = "unnest"
    readers: ClassVar[Mapping[str, FieldReader]] = {"input": read_node, "column": _str}
    input: Node
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Rows of two inputs that are equal in some columns."""

    kind: ClassVar[str] = "join"
    readers: ClassVar[Mapping[str, FieldReader]] = {
        "how": lambda value, _: How(value),
        "on": _pairs_of(On),
        "left": read_node,
        "right": read_node,
        "reverse": lambda value, _: Reverse(value),
    }
    how: How = How.INNER
    on: tuple[On, ...]
    left: Node
    right: Node
    reverse: Reverse = Reverse.INDEX

    @property
    def title(self) -> str:
        return f"join of {self.left.label} and {self.right.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Node):
    """Aggregates over groups of rows. Only at the root: a table keeps them (`views.groups`)."""

    kind: ClassVar[str] = "group"
    readers: ClassVar[Mapping[str, FieldReader]] = {
        "input": read_node,
        "keys": _strs,
        "aggregates": lambda value, _: tuple(map(Aggregate.from_json, _list(value))),
    }
    input: Node
    keys: tuple[str, ...]
    """None for one group of all rows."""
    aggregates: tuple[Aggregate, ...]


KINDS: dict[str, type[Node]] = {
    kind.kind: kind for kind in (Scan, Filter, Project, Unnest, Join, Group)
}
"""The nodes that a plan may have, by their names in its text."""


def plan_from_json(text: str) -> Node:
    """Return the plan that a text holds.

    Raises
    ------
    PlanError
        It holds none, or one of a later form.
    """
    record = read_text(text)
    if not isinstance(record, dict) or record.get("v") != VERSION:
        found = record.get("v") if isinstance(record, dict) else None
        raise PlanError(
            f"the plan is of the form {found!r}, and this version reads the form {VERSION}.",
            hint="make the plan anew with the version that reads it.",
        )
    return _node({name: value for name, value in record.items() if name != "v"}, 0)


def read_text(text: str) -> Any:
    """Return the JSON of a plan's text, which is small and shallow enough for what walks it.

    Raises
    ------
    PlanError
        It is no JSON, too long or too deep.
    """
    found: Any = None
    is_read = False
    if len(text) <= _TEXT_MAX:
        with suppress(ValueError, RecursionError):
            found, is_read = json.loads(text), True
    if not is_read or _is_nested_beyond(found, _NESTING_MAX):
        raise PlanError(
            f"the plan is no JSON, or longer or deeper than a plan can be: {text:.200}",
            hint="give the text that `to_json()` returned.",
        )
    return found


def _is_nested_beyond(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def require_depth(node: Node) -> None:
    """Raise `PlanError` if a plan is deeper than its text may be."""
    level: list[Node] = [node]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for each in level for inner in each.inputs]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> PlanError:
    return PlanError(
        f"the plan is deeper than {DEPTH_MAX} nodes.",
        hint="write several filters or projections behind each other as one.",
    )


# -- to text ---------------------------------------------------------------------------------


def _record(node: Node) -> dict[str, Any]:
    values = ((each, getattr(node, each.name)) for each in fields(node))
    kept = {own.name: _plain(node, value) for own, value in values if value is not own.default}
    return {"node": node.kind, **kept}


def _plain(node: Node, value: Any) -> Any:
    match value:
        case Node():
            return _record(value)
        case Enum():
            return value.value
        case tuple():
            return [_plain(node, each) for each in value]
        case pc.Expression():
            raise PlanError(
                f"node '{node.title}' holds an expression of Arrow, which has no text: {value}.",
                hint="write it as SQL.",
            )
        case _:
            return value


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


# -- from text -------------------------------------------------------------------------------


def _node(record: Any, depth: int) -> Node:
    if not isinstance(record, dict) or not isinstance(record.get("node"), str):
        raise PlanError(
            f"expected a node of a plan, found {_text(record):.200}.",
            hint="a node is an object with its kind under 'node'.",
        )
    kind = KINDS.get(record["node"])
    if kind is None:
        raise PlanError(
            f"a plan has no node '{record['node']}'.", hint=did_you_mean(record["node"], KINDS)
        )
    if depth > DEPTH_MAX:
        raise _too_deep()
    with about("node", kind.kind):
        return _built(kind, record, depth)


def _built(kind: type[Node], record: dict[str, Any], depth: int) -> Node:
    known = {each.name: each for each in fields(kind)}
    given = {}
    for name, value in record.items():
        if name == "node":
            continue
        if name not in known:
            raise PlanError(f"it has no field '{name}'.", hint=did_you_mean(name, known))
        try:
            given[name] = kind.readers[name](value, depth)
        except (TypeError, ValueError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(
                f"its field '{name}' is {_text(value):.200}, which it cannot be.",
                hint="give the text that `to_json()` returned.",
            ) from error
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in given]
    if missing:
        raise PlanError(f"its field '{missing[0]}' is missing.", hint="give all fields.")
    return kind(**given)
