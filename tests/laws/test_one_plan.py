"""One plan, two ways to run it: a task over splits gives the rows that a view has at a position.

Random plans over random real tables of any kind, at random positions of their past, each table cut
into splits. What the plan means is told a third time, by a batch query in plain Python. A group, at
the root of a plan, is what a table shows that keeps it; and a look-up join is the join on a key.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.plan.nodes import (
    IndexLookupJoin,
    Join,
    JoinKeys,
    JoinType,
    Node,
    Project,
    ProjectedColumn,
    Reverse,
    Scan,
)
from spark_upsert.task import TableLookup
from spark_upsert.views.group_rows import compute_results
from spark_upsert.views.grouping import contributions
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.view import bind
from tests.support.plan_tasks import rows_by_task
from tests.support.view_plays import SCANS, canonical, rows_of
from tests.support.view_tables import RealWorld, of_any_kind
from tests.support.view_trees import random_epoch, random_group, random_plan

RUNS = int(os.environ.get("VIEW_RUNS", "60"))
"""Random plans; ``VIEW_RUNS=20000`` is the long form."""

SLICES = 3


def counted(batches: list[pa.RecordBatch]) -> Counter[Any]:
    return Counter(canonical(tuple(r.values())) for batch in batches for r in batch.to_pylist())


def play(seed: int) -> Node:
    """Run a plan in both ways; return it."""
    chance = random.Random(seed)
    world = RealWorld(chance, kind=of_any_kind(chance))
    for _ in range(chance.randint(4, 12)):
        world.apply(random_epoch(chance, list(world.shapes)))
    tree, relation = random_plan(chance, lambda n: bind(n, world.open), world.known_versions)
    at = {path: chance.choice(world.known_versions(path)[-3:]) for path in relation.paths}
    expected = relation.scan(at)
    cuts, drivers = chance.choice([1, 3]), chance.choice([1, 1, 2])
    if any(each.failed for each in relation.formulas):
        # A view shows NULL where there is no value, and a task stops there.
        with pytest.raises(DataError):
            rows_by_task(tree.node, world, at, cuts=cuts, drivers=drivers)
        return tree.node
    found = rows_by_task(tree.node, world, at, cuts=cuts, drivers=drivers)
    for batch in found:
        assert batch.schema.names == relation.schema.names
        assert batch.schema.types == relation.schema.types
    assert counted(found) == counted([expected]), tree.node.to_json()
    rows = rows_of(tree.node, world.contents(at))
    assert counted(found) == Counter(canonical(tuple(row.values())) for row in rows)
    return tree.node


def play_groups(seed: int) -> bool:
    """Group the rows of a plan in both ways; return whether both can."""
    chance = random.Random(seed)
    world = RealWorld(chance, kind=of_any_kind(chance))
    for _ in range(chance.randint(4, 12)):
        world.apply(random_epoch(chance, list(world.shapes)))
    relation, grouping, group = random_group(chance, world.open, world.known_versions)
    at = {path: chance.choice(world.known_versions(path)[-3:]) for path in relation.paths}
    rows = relation.scan(at)
    has_failed = any(each.failed for each in relation.formulas)
    is_of_views = any(each.scale is not None for each in group.aggregates)
    # Sums that do not fit are NULL in a view and an error in a task; a group of no rows is a row
    # of a task alone.
    if has_failed or is_of_views or "huge" in rows.schema.names or not rows.num_rows:
        return False
    entries = contributions(grouping, Pairs.of_inserts(rows.select(grouping.rows.names)))
    expected = compute_results(grouping, entries, url="memory")
    found = rows_by_task(group, world, at, cuts=chance.choice([1, 3]))
    for batch in found:
        assert batch.schema.names == expected.schema.names
        assert batch.schema.types == expected.schema.types
    assert counted(found) == counted([expected]), group.to_json()
    return True


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.sweep(1)
def test_a_task_groups_rows_as_a_kept_view_does(part: int) -> None:
    seeds = range(part, 2 * RUNS, SLICES)
    assert sum(map(play_groups, seeds)) > len(seeds) // 8


def play_look_up(seed: int) -> int:
    """Join a table with another on its key, by look-ups and as a view does; return its rows."""
    chance = random.Random(seed)
    world = RealWorld(chance, kind=of_any_kind(chance))
    for _ in range(chance.randint(6, 14)):
        world.apply(random_epoch(chance, ["O", "C", "D", "E"]))
    left, right = (chance.choice(["O", "D", "E"]), chance.choice(["C", "D", "E"]))
    rows, found = SCANS[left].node, SCANS[right].node
    assert isinstance(rows, Scan)
    assert isinstance(found, Scan)
    column = chance.choice([c.name for c in rows.columns if c.type == "int64"])
    names = [name for name in found.schema.names if name not in (*found.key, *rows.schema.names)]
    how = chance.choice([JoinType.INNER, JoinType.LEFT])
    at = {path: chance.choice(world.known_versions(path)[-3:]) for path in (left, right)}
    shown = Project(
        input=found, columns=tuple(ProjectedColumn(name, name) for name in ("id", *names))
    )
    on = (JoinKeys(column, "id"),)
    joined = Join(left=rows, right=shown, how=how, on=on, reverse=Reverse.SCAN)
    looked_up = rows_by_task(
        IndexLookupJoin(input=rows, how=how, keys=(column,)),
        world,
        at,
        cuts=chance.choice([1, 3]),
        looked_up=TableLookup(world.tables[right].at(at[right]), names),
    )
    expected = bind(joined, world.open).scan(at)
    assert counted(looked_up) == counted([expected]), joined.to_json()
    return int(expected.num_rows)


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.sweep(1)
def test_a_look_up_join_gives_the_rows_of_a_join_on_the_key(part: int) -> None:
    assert sum(map(play_look_up, range(part, RUNS, SLICES))) > 0


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.sweep(1)
def test_a_task_gives_the_rows_of_a_view(part: int) -> None:
    for seed in range(part, RUNS, SLICES):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
