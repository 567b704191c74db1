"""Random plans and random histories for views: few keys, few values, so that they meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from spark_upsert.core.keys import is_hashable
from spark_upsert.errors import PlanError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.join_keys import common_type
from spark_upsert.plan.nodes import Group, JoinType, Node, Scan
from spark_upsert.views.grouping import Grouping
from spark_upsert.views.relation import Relation
from spark_upsert.views.scan import OpenBase
from spark_upsert.views.view import bind, bind_below_group, bind_group
from tests.support.view_cases import TABLES, Epoch, Row
from tests.support.view_plays import SCANS, P

_TRIES = 40

VALUES: dict[str, Sequence[Any]] = {
    "id": (1, 2, 3),
    "c": (1, 2, 3, None),
    "x": (1, 2, 6, 7, None),
    "n": ("a", "b", None),
    "m": (1, 2, None),
    "a": ([1, 2], [2, 2, None], [], None),
    "g": (1, 2, None),
    "f": (0.0, -0.0, float("nan"), 2.5, None),
    "boss": (1, 2, 3, None),
    "nm": ("a", "b"),
    "v": (1, 2),
    "w": (1, 2),
}
"""By the columns; ``a`` and ``b`` of two tables are a key (`_PAIR`)."""

_PAIR: dict[str, Sequence[Any]] = {"a": (1.0, float("nan"), 0.0, None), "b": (1, 2)}


def random_epoch(chance: random.Random, tables: Sequence[str]) -> Epoch:
    """Return puts and deletes of a few keys of one table; now and then an overwrite."""
    table = chance.choice(list(tables))
    shape = TABLES[table]
    values = {**VALUES, **_PAIR} if len(shape.key) == 2 else VALUES

    def drawn(names: Sequence[str]) -> Row:
        # The sign of a zero key is that of one writer: it is the same key.
        return tuple(chance.choice(values[name]) for name in names)

    keys = {repr(key): key for key in (drawn(shape.key) for _ in range(chance.randint(1, 3)))}
    others = shape.columns.names[len(shape.key) :]
    overwrite = chance.random() < 0.08
    puts, deletes = [], []
    for key in keys.values():
        if overwrite or chance.random() < 0.7:
            puts.append((*key, *drawn(others)))
        else:
            deletes.append(key)
    return Epoch(table, tuple(puts), tuple(deletes), overwrite)


def random_plan(
    chance: random.Random, bind: Callable[[Node], Relation], versions: Callable[[str], list[int]]
) -> tuple[P, Relation]:
    """Return a plan that can be bound, and its relation."""
    plan, size = _scan(chance, versions), chance.randint(1, 4)
    relation = bind(plan.node)
    for _ in range(_TRIES):
        if size == 0:
            break
        try:
            grown = _grown(chance, plan, relation, bind, versions)
            relation = bind(grown.node)
        except PlanError:
            continue
        plan, size = grown, size - 1
    return plan, relation


def random_group(
    chance: random.Random, open_base: OpenBase, versions: Callable[[str], list[int]]
) -> tuple[Relation, Grouping, Group]:
    """Return a plan that groups the rows of a random one, the relation of these, and the rest."""
    while True:
        plan, relation = random_plan(chance, lambda node: bind(node, open_base), versions)
        if "x" in relation.schema.names and chance.random() < 0.5:
            # The key goes with it, perhaps; what is summed comes to more than fits.
            kept = [name for name in relation.schema.names if chance.random() < 0.6]
            plan = plan.project(*kept, huge=chance.choice(["huge(x)", "huge(x)", "60/(x-2)"]))
            relation = bind_below_group(plan.node, open_base)
        keys, aggregates = _wanted(chance, relation)
        group = Group(input=plan.node, keys=keys, aggregates=tuple(aggregates))
        try:
            relation, grouping = bind_group(group, open_base)
        except PlanError:
            continue  # A sum of texts, or a name that a kept table needs.
        if relation.paths:
            return relation, grouping, group


def _wanted(chance: random.Random, relation: Relation) -> tuple[tuple[str, ...], list[Aggregate]]:
    """Return columns that group, and what is wanted of the groups; some of it may be refused."""
    names = [each.name for each in relation.schema if is_hashable(each.type)]
    keys = tuple(chance.sample(names, chance.randint(0, min(2, len(names)))))
    found = [Aggregate("rows", AggregateKind.COUNT)]
    for column in chance.sample(names, min(2, len(names))):
        for kind in chance.sample(list(AggregateKind), 2):
            scale = 1 if relation.schema.field(column).type == "double" else None
            is_sum = kind in (AggregateKind.SUM, AggregateKind.AVG)
            found.append(Aggregate(f"a{len(found)}", kind, column, scale if is_sum else None))
    if "huge" in names:
        found += [
            Aggregate("total", AggregateKind.SUM, "huge"),
            Aggregate("mean", AggregateKind.AVG, "huge"),
        ]
    return keys, found


def _scan(chance: random.Random, versions: Callable[[str], list[int]]) -> P:
    name = chance.choice(list(SCANS))
    if chance.random() < 0.1:
        return SCANS[name].at_version(chance.choice(versions(name)))
    return SCANS[name]


def _grown(
    chance: random.Random,
    plan: P,
    relation: Relation,
    bind: Callable[[Node], Relation],
    versions: Callable[[str], list[int]],
) -> P:
    names = relation.schema.names
    kind = chance.choice(["filter", "project", "unnest", "join", "join", "join", "join"])
    if kind == "filter":
        return plan.filter(chance.choice(["x>5", "x<2", "60/(x-2)>20"]))
    if kind == "project":
        kept = [name for name in names if name in (relation.key or ()) or chance.random() < 0.7]
        of_x = chance.choice(["x*2", "60/(x-2)"])
        computed = {"x": {"y": of_x}, "f": {"z": "sign(f)"}}
        name = chance.choice(list(computed))
        return plan.project(*kept, **(computed[name] if name in names else {}))
    if kind == "unnest":
        return plan.unnest("a")
    # A table joined with itself moves at both places.
    own = [node for node in plan.node.walk() if isinstance(node, Scan)]
    other = P(chance.choice(own)) if chance.random() < 0.2 else _scan(chance, versions)
    if chance.random() < 0.3:
        other = other.filter(chance.choice(["x>5", "x<2"]))
    below = bind(other.node)
    fresh = {name: f"{name}{len(names)}" for name in below.schema.names}
    other = other.project(**{new: old for old, new in fresh.items()})
    on = _on(chance, relation, below)
    how = chance.choice([how.value for how in JoinType])
    reverse = "scan" if chance.random() < 0.2 else "index"
    return plan.join(other, ",".join(f"{a}={fresh[b]}" for a, b in on), how, reverse)


def _on(chance: random.Random, left: Relation, right: Relation) -> list[tuple[str, str]]:
    """Return columns to join on, of equal types where there are some; mostly the key of a side."""
    assert left.key is not None
    assert right.key is not None
    way = chance.random()
    if way < 0.35:
        return [(name, _like(chance, left.schema, name, right.schema)) for name in left.key]
    wanted = right.key if way < 0.85 else [chance.choice(right.schema.names)]
    return [(_like(chance, right.schema, name, left.schema), name) for name in wanted]


def _like(chance: random.Random, own: pa.Schema, name: str, other: pa.Schema) -> str:
    """Return a column of the other side, of the type of one of a side where there is one."""
    same = [each.name for each in other if common_type(each.type, own.field(name).type)]
    return chance.choice(same or other.names)
