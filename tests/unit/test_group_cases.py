"""The cases of groups: what they contribute, and what a kept table shows, commit by commit."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import FROM, PART, TO, value_column
from spark_upsert.errors import PlanError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import Filter, Group, Join, JoinKeys, Project, ProjectedColumn
from spark_upsert.views.grouping import Grouping, contributions
from spark_upsert.views.relation import Step, changes_of
from spark_upsert.views.view import bind_below_group, bind_group
from tests.support.grouped import kept_in_memory, position
from tests.support.view_cases import Case, Changed, Contribution, between, same
from tests.support.view_plays import World, changes, plan_of


def group_of(plan: str) -> Group:
    base, words = re.fullmatch(r"(.+)\.group\((.+)\)", plan).groups()  # type: ignore[union-attr]
    key, *wanted = re.findall(r'"([^"]+)"', words)
    aggregates = tuple(aggregate_of(index, text) for index, text in enumerate(wanted))
    return Group(input=plan_of(base), keys=(key,), aggregates=aggregates)


def aggregate_of(index: int, text: str) -> Aggregate:
    kind, *rest = text.split()
    name = f"a{index}"
    if kind == "n":
        return Aggregate(name, AggregateKind.COUNT)
    if kind == "fsum":
        return Aggregate(name, AggregateKind.SUM, rest[0], scale=int(rest[1]))
    return Aggregate(name, AggregateKind(kind), rest[0])


@pytest.mark.parametrize("case", between(29, 41), ids=lambda case: case.id)
@pytest.mark.sweep(6)
def test_a_case_of_groups(case: Case) -> None:
    world = World()
    relation, grouping = bind_group(group_of(case.plan), world.open)
    kept, taken = kept_in_memory(grouping), -1
    at = {path: world.known_versions(path)[-1] for path in relation.paths}
    for epochs, given in zip(case.batches, case.given, strict=True):
        added = []
        for epoch in epochs:
            after = {**at, epoch.table: world.apply(epoch)}
            added.append(contributions(grouping, changes_of(relation, Step(at, after))))
            at = after
        if len(given) < len(added):  # The table is kept per micro-batch.
            added = [pa.concat_batches(added)]
        assert len(added) == len(given)
        for entries, wanted in zip(added, given, strict=True):
            if case.mode == "raw":
                require_same(raw(grouping, entries), [told(each) for each in wanted])
            version = kept.table.log.head().version
            assert kept.apply(entries, lower=position(taken), upper=position(taken + 1))
            taken += 1
            if case.mode != "raw":
                [(_, pairs)] = kept.changes(version + 1, version + 2)
                require_same(changes(pairs), [told(each) for each in wanted])


def raw(grouping: Grouping, entries: pa.RecordBatch) -> list[Any]:
    """Return contributions as the cases write them, without sums that get nothing."""
    found = []
    for row in entries.to_pylist():
        part = row[PART]
        group = tuple(row[key] for key in grouping.keys)
        value = row[value_column(part)] if part else None
        rest = {n: v for n, v in row.items() if n in grouping.stored_schema.engine.rules and v}
        found.append((group, part, value, tuple((n, int(v)) for n, v in rest.items())))
        assert row[FROM] is row[TO] is None
    return found


def told(each: object) -> Any:
    if isinstance(each, Changed):
        return each.old, each.new
    assert isinstance(each, Contribution)
    return each.group, each.part, each.value, each.sums


def require_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted), found
    assert all(any(same(one, other) for one in found) for other in wanted), found


def test_a_group_is_the_same_behind_its_text() -> None:
    for case in between(29, 41):
        plan = group_of(case.plan)
        assert plan_from_json(plan.to_json()) == plan


def test_nothing_stands_above_a_group() -> None:
    group = group_of('O.group("c","n")')
    for node in (
        Filter(input=group, where="a0 > 1"),
        Project(input=group, columns=(ProjectedColumn("c", "c"),)),
        Join(left=group, right=plan_of("C"), on=(JoinKeys("c", "id"),)),
        Group(input=group, keys=("c",), aggregates=()),
    ):
        with pytest.raises(PlanError, match="a group must be kept first"):
            bind_below_group(node, World().open)


REFUSED = [
    ("F", "sum", "f", None, "not exact under retraction"),
    ("O", "sum", "x", 2, "drop it: the sum is exact"),
    ("C", "sum", "n", None, "which has no sum"),
    ("F", "min", "f", 2, "a scale is for sums alone"),
    ("F", "avg", "f", 16, "use a number from 0 to 15"),
    ("T", "max", "a", None, "which has no order"),
    ("O", "sum", "y", None, "the rows do not have it"),
    ("O", "sum", None, None, "is a sum of nothing"),
]


@pytest.mark.parametrize(("base", "kind", "column", "scale", "words"), REFUSED)
def test_an_aggregate_that_cannot_be_kept_exactly_is_refused(
    base: str, kind: str, column: str | None, scale: int | None, words: str
) -> None:
    aggregate = Aggregate("a", AggregateKind(kind), column, scale)
    plan = Group(input=plan_of(base), keys=(), aggregates=(aggregate,))
    with pytest.raises(PlanError, match=words) as raised:
        bind_group(plan, World().open)
    assert f"group of {base}" in str(raised.value)


@pytest.mark.parametrize(
    ("base", "keys", "names", "words"),
    [
        ("O", ("c",), ("c",), "stands twice in the result"),
        ("O", ("nope",), (), "named by the group"),
        ("T", ("a",), (), "by which nothing can be grouped"),
    ],
)
def test_keys_of_a_group_are_there_and_hashable_and_apart_from_its_results(
    base: str, keys: tuple[str, ...], names: tuple[str, ...], words: str
) -> None:
    aggregates = tuple(Aggregate(name, AggregateKind.COUNT) for name in names)
    with pytest.raises(PlanError, match=words):
        bind_group(Group(input=plan_of(base), keys=keys, aggregates=aggregates), World().open)


@pytest.mark.parametrize("name", ["_part", "_V1", "_from"])
def test_a_group_by_a_name_that_a_kept_table_needs_is_refused(name: str) -> None:
    rows = pa.schema({name: pa.int64(), "x": pa.int64()})
    with pytest.raises(PlanError, match="has a name that a kept table needs"):
        Grouping(rows, (name,), (Aggregate("least", AggregateKind.MIN, "x"),))
