"""Plans from text (`plan_from_json`), checked field by field; errors name the node and field."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa

from spark_upsert.errors import PlanError, about, did_you_mean
from spark_upsert.plan.aggregates import Aggregate
from spark_upsert.plan.nodes import (
    DEPTH_MAX,
    KINDS,
    VERSION,
    Column,
    Formula,
    JoinKeys,
    JoinType,
    Node,
    ProjectedColumn,
    Reverse,
    to_text,
    too_deep,
)
from spark_upsert.plan.sql import replace_quotes

_NESTING_MAX = 4 * DEPTH_MAX
"""Maximum nesting in a plan's JSON, counting nodes and the lists in their fields."""

_TEXT_MAX = 4 << 20
"""Maximum characters per plan: a hundred scans with some thousand columns each."""


def plan_from_json(text: str) -> Node:
    """Parse a plan.

    Raises
    ------
    PlanError
        The text is not a plan, or has another format version.
    """
    record = read_text(text)
    if not isinstance(record, dict) or record.get("v") != VERSION:
        format_version = record.get("v") if isinstance(record, dict) else None
        raise PlanError(
            f"the plan is of the form {format_version!r}, and this version reads the form "
            f"{VERSION}.",
            hint="make the plan anew with the version that reads it.",
        )
    return _node({name: value for name, value in record.items() if name != "v"}, 0)


def read_text(text: str) -> Any:
    """Parse a plan's JSON within size and nesting limits; raises `PlanError`."""
    parsed: Any = None
    is_read = False
    if len(text) <= _TEXT_MAX:
        with suppress(ValueError, RecursionError):
            parsed, is_read = json.loads(text), True
    if not is_read or _is_nested_beyond(parsed, _NESTING_MAX):
        raise PlanError(
            f"the plan is no JSON, or longer or deeper than a plan can be: {text:.200}",
            hint="give the text that `to_json()` returned.",
        )
    return parsed


def _is_nested_beyond(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


def _node(record: Any, depth: int) -> Node:
    if not isinstance(record, dict) or not isinstance(record.get("node"), str):
        raise PlanError(
            f"expected a node of a plan, found {to_text(record):.200}.",
            hint="a node is an object with its kind under 'node'.",
        )
    kind = KINDS.get(record["node"])
    if kind is None:
        raise PlanError(
            f"a plan has no node '{record['node']}'.", hint=did_you_mean(record["node"], KINDS)
        )
    if depth > DEPTH_MAX:
        raise too_deep()
    with about("node", record.get("id") or kind.kind):
        return _build_node(kind, record, depth)


def _build_node(kind: type[Node], record: Mapping[str, Any], depth: int) -> Node:
    readers = _readers(kind.kind)
    arguments = {}
    for name, value in record.items():
        if name == "node":
            continue
        if name not in readers:
            raise PlanError(f"it has no field '{name}'.", hint=did_you_mean(name, readers))
        try:
            arguments[name] = readers[name].read(value, depth)
        except (TypeError, ValueError, pa.ArrowException) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(
                f"its field '{name}' is {to_text(value):.200}, expected {readers[name].what}.",
                hint="give the text that `to_json()` returned.",
            ) from error
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in arguments]
    if missing:
        raise PlanError(f"its field '{missing[0]}' is missing.", hint="give all fields.")
    return kind(**arguments)


class _Reader(NamedTuple):
    """A field's expected contents in words, and its reader function."""

    what: str
    read: Callable[[Any, int], Any]
    """Converts a JSON value at a node depth; raises TypeError or ValueError if it is invalid."""


def _is(type_: type) -> Callable[[Any, int], Any]:
    def read(value: Any, _: int) -> Any:
        if type(value) is not type_:
            raise TypeError(value)
        return value

    return read


def _whole(value: Any, _: int) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(value)
    return value


def _optional(reader: _Reader) -> _Reader:
    def read(value: Any, depth: int) -> Any:
        return None if value is None else reader.read(value, depth)

    return _Reader(f"{reader.what} or null", read)


def _formula(value: Any, _: int) -> str:
    # Plans have no text between double quotes (`nodes.Filter`). One that has is of an earlier
    # version, which read a name there.
    return replace_quotes(_TEXT.read(value, 0), "`")


def _several(what: str, read: Callable[[Any, int], Any]) -> _Reader:
    def all_of(value: Any, depth: int) -> tuple[Any, ...]:
        return tuple(read(item, depth) for item in _list(value))

    return _Reader(what, all_of)


def _list(value: Any) -> list[Any]:
    return _is(list)(value, 0)


def _pairs_of(type_: Callable[[str, str], Any], what: str) -> _Reader:
    return _several(what, lambda value, _: type_(*(_TEXT.read(item, 0) for item in _list(value))))


def _bytes(value: Any) -> pa.Buffer:
    return pa.py_buffer(base64.b64decode(_TEXT.read(value, 0), validate=True))


def _read_input(value: Any, depth: int) -> Node:
    return _node(value, depth + 1)


_TEXT = _Reader("a text", _is(str))
_COUNT = _Reader("a whole number", _whole)
_SCHEMA = _Reader(
    "a schema as Arrow's bytes in base64", lambda value, _: pa.ipc.read_schema(_bytes(value))
)

_READERS: dict[Any, _Reader] = {
    str: _TEXT,
    str | None: _optional(_TEXT),
    bool: _Reader("true or false", _is(bool)),
    int: _COUNT,
    int | None: _optional(_COUNT),
    Formula: _Reader("SQL", _formula),
    JoinType: _Reader(
        f"one of {', '.join(kind.value for kind in JoinType)}", lambda value, _: JoinType(value)
    ),
    Reverse: _Reader(
        f"one of {', '.join(mode.value for mode in Reverse)}", lambda value, _: Reverse(value)
    ),
    Node: _Reader("a node", _read_input),
    tuple[Node, ...]: _several("a list of nodes", _read_input),
    tuple[str, ...]: _several("a list of names", _is(str)),
    tuple[Column, ...]: _pairs_of(Column, "a list of [name, type]"),
    tuple[ProjectedColumn, ...]: _pairs_of(
        lambda name, formula: ProjectedColumn(name, _formula(formula, 0)), "a list of [name, SQL]"
    ),
    tuple[JoinKeys, ...]: _pairs_of(JoinKeys, "a list of [left, right]"),
    tuple[Aggregate, ...]: _several(
        "a list of [name, function, column or null, scale or null]",
        lambda value, _: Aggregate.from_json(_list(value)),
    ),
    pa.Schema: _SCHEMA,
    pa.Schema | None: _optional(_SCHEMA),
    pa.Table: _Reader(
        "rows as a stream of Arrow's in base64",
        lambda value, _: pa.ipc.open_stream(_bytes(value)).read_all(),
    ),
}
"""Readers by node field type."""


@cache
def _readers(name: str) -> dict[str, _Reader]:
    kind = KINDS[name]
    hints = get_type_hints(kind)
    return {field.name: _READERS[hints[field.name]] for field in fields(kind)}
