"""One plan, two ways to run it: a task over splits gives the rows that a view has at a position.

Random plans over random real tables of any kind, at random positions of their past, each table cut
into splits. What the plan means is told a third time, by a batch query in plain Python. A group, at
the root of a plan, is what a table shows that keeps it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.plan.nodes import Node
from spark_upsert.views.binding import bind
from spark_upsert.views.groups.contributions import contributions
from spark_upsert.views.groups.result import result
from spark_upsert.views.pairs import Pairs
from tests.support.plan_tasks import rows_by_task
from tests.support.view_plays import canonical, rows_of
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
    expected = result(grouping, entries, url="memory")
    found = rows_by_task(group, world, at, cuts=chance.choice([1, 3]))
    for batch in found:
        assert batch.schema.names == expected.schema.names
        assert batch.schema.types == expected.schema.types
    assert counted(found) == counted([expected]), group.to_json()
    return True


@pytest.mark.parametrize("part", range(SLICES))
def test_a_task_groups_rows_as_a_kept_view_does(part: int) -> None:
    seeds = range(part, 2 * RUNS, SLICES)
    assert sum(map(play_groups, seeds)) > len(seeds) // 8


@pytest.mark.parametrize("part", range(SLICES))
def test_a_task_gives_the_rows_of_a_view(part: int) -> None:
    for seed in range(part, RUNS, SLICES):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
