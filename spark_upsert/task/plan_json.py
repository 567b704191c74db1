"""The text of a plan: a JSON object with the version of its form.

    {"version": 1, "plan": {"node": "filter", "id": "big", "where": "x > 5",
                            "input": {"node": "arrow_scan", "id": "rows", "schema": "..."}}}

The names and members of a node follow from the classes of `plan`, field by field. Schemas and rows
are Arrow's own bytes in base64: no text of ours could hold every type of Arrow.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa

from spark_upsert.errors import PlanError, about, did_you_mean
from spark_upsert.task.plan import NODES, Aggregate, Condition, JoinKind, Node, check

VERSION = 1
"""Version of the JSON form."""


def plan_to_json(plan: Node) -> str:
    """Return a plan as a text; equal plans have equal texts.

    Raises
    ------
    PlanError
        It holds an expression of Arrow, which has no text; or its nodes have no names of their own.
    """
    check(plan)
    return json.dumps({"version": VERSION, "plan": _to_record(plan)}, separators=(",", ":"))


def plan_from_json(text: str) -> Node:
    """Return the plan of a text.

    Raises
    ------
    PlanError
        It is no such text: the node and its field are named, and what was expected.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"a plan is a JSON object, but its text cannot be read: {error}.",
            hint="write plans by `plan_to_json`.",
        ) from error
    if not isinstance(record, dict) or set(record) != {"version", "plan"}:
        raise PlanError(
            "a plan is an object with 'version' and 'plan', found "
            f"{sorted(record) if isinstance(record, dict) else record!r}.",
            hint="write plans by `plan_to_json`.",
        )
    if record["version"] != VERSION:
        raise PlanError(
            f"the form of the plan has version {record['version']!r}, known is {VERSION}.",
            hint="upgrade this package, or write the plan anew.",
        )
    try:
        plan = _node(record["plan"])
    except RecursionError as error:
        raise PlanError("the plan is too deep.", hint="cut it into several.") from error
    check(plan)
    return plan


def _to_record(node: Node) -> dict[str, Any]:
    codecs = _codecs(node.kind)
    with about("node", node.id):
        return {"node": node.kind} | {
            name: codec.encode(getattr(node, name)) for name, codec in codecs.items()
        }


def _node(record: Any) -> Node:
    if not isinstance(record, dict):
        raise PlanError(
            f"a node is an object, found {record!r}.", hint="write plans by `plan_to_json`."
        )
    name = record.get("id")
    if not isinstance(name, str):
        raise PlanError(
            f"a node has an 'id', a text, found {name!r}.", hint="give each node an 'id'."
        )
    with about("node", name):
        kind = record.get("node")
        if not isinstance(kind, str) or kind not in NODES:
            raise PlanError(
                f"there is no node of the kind {kind!r}.", hint=did_you_mean(str(kind), NODES)
            )
        codecs = _codecs(kind)
        for key in record.keys() - {"node", *codecs}:
            raise PlanError(f"a {kind} has no '{key}'.", hint=did_you_mean(key, codecs))
        cls = NODES[kind]
        return cls(**{name: _field(name, kind, record) for name in _given(cls, record)})


def _given(cls: type[Node], record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that a node has, or must have."""
    for each in fields(cls):
        if each.name in record or each.default is MISSING:
            yield each.name


def _field(name: str, kind: str, record: Mapping[str, Any]) -> Any:
    codec = _codecs(kind)[name]
    if name not in record:
        raise PlanError(f"a {kind} has '{name}', {codec.what}.", hint=f"give '{name}'.")
    try:
        return codec.decode(record[name])
    except PlanError:
        raise
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise PlanError(
            f"'{name}' of a {kind} is {codec.what}, found {record[name]!r}.",
            hint=f"give '{name}' as {codec.what}.",
        ) from error


class _Codec(NamedTuple):
    """How a field is written and read, and what it is called when it is wrong."""

    what: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _is(cls: type) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if type(value) is not cls:
            raise ValueError(value)
        return value

    return checked


def _optional(codec: _Codec) -> _Codec:
    return _Codec(
        f"{codec.what} or null",
        lambda value: None if value is None else codec.encode(value),
        lambda value: None if value is None else codec.decode(value),
    )


def _several(what: str, codec: _Codec) -> _Codec:
    return _Codec(
        what,
        lambda values: [codec.encode(each) for each in values],
        lambda values: tuple(codec.decode(each) for each in _is(list)(values)),
    )


def _condition_text(value: Condition) -> str:
    if isinstance(value, str):
        return value
    raise PlanError(
        "an expression of Arrow has no text, so that its plan has no JSON.",
        hint="write it as SQL.",
    )


def _named(pair: tuple[str, Condition]) -> list[str]:
    return [pair[0], _condition_text(pair[1])]


def _pair(value: Any) -> tuple[str, str]:
    name, text = _is(list)(value)
    return _is(str)(name), _is(str)(text)


def _aggregate(value: Any) -> Aggregate:
    name, function, column = _is(list)(value)
    _TEXT.decode(name)
    return Aggregate(name, _TEXT.decode(function), _optional(_TEXT).decode(column))


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: Any) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(_is(str)(text), validate=True)))


def _rows_text(rows: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _rows(text: Any) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(_is(str)(text), validate=True)).read_all()


_TEXT = _Codec("a text", lambda value: value, _is(str))
_COUNT = _Codec("a whole number", lambda value: value, _is(int))

_SCHEMA = _Codec("a schema as Arrow's bytes in base64", _schema_text, _schema)

_CODECS: dict[Any, _Codec] = {
    str: _TEXT,
    str | None: _optional(_TEXT),
    bool: _Codec("true or false", lambda value: value, _is(bool)),
    int: _COUNT,
    int | None: _optional(_COUNT),
    tuple[str, ...]: _several("a list of names", _TEXT),
    Condition: _Codec("SQL", _condition_text, _is(str)),
    tuple[tuple[str, Condition], ...]: _several(
        "a list of [name, SQL]", _Codec("[name, SQL]", _named, _pair)
    ),
    tuple[Aggregate, ...]: _several(
        "a list of [name, function, column or null]",
        _Codec("[name, function, column or null]", list, _aggregate),
    ),
    JoinKind: _Codec(
        f"one of {', '.join(each.value for each in JoinKind)}", lambda kind: kind.value, JoinKind
    ),
    pa.Schema: _SCHEMA,
    pa.Schema | None: _optional(_SCHEMA),
    pa.Table: _Codec("rows as a stream of Arrow's in base64", _rows_text, _rows),
    Node: _Codec("a node", _to_record, _node),
    tuple[Node, ...]: _several("a list of nodes", _Codec("a node", _to_record, _node)),
}
"""By the types that the fields of nodes have."""


@cache
def _codecs(kind: str) -> dict[str, _Codec]:
    cls = NODES[kind]
    hints = get_type_hints(cls)
    return {field.name: _CODECS[hints[field.name]] for field in fields(cls)}
