"""One plan, two ways to run it: a task over splits gives the rows that a view has at a position.

Random plans over random real tables of any kind, at random positions of their past, each table cut
into splits. What the plan means is told a third time, by a batch query in plain Python.
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
from tests.support.plan_tasks import rows_by_task
from tests.support.view_plays import canonical, rows_of
from tests.support.view_tables import RealWorld, of_any_kind
from tests.support.view_trees import random_epoch, random_plan

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


@pytest.mark.parametrize("part", range(SLICES))
def test_a_task_gives_the_rows_of_a_view(part: int) -> None:
    for seed in range(part, RUNS, SLICES):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
