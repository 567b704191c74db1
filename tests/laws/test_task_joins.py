"""Joins give what nested loops give, of each set of splits apart, however batches are cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import Words
from spark_upsert.plan import join_keys
from spark_upsert.plan.nodes import HashJoin, Join, JoinType, MergeJoin
from spark_upsert.task.task import Task
from tests.support.chains import rows_of
from tests.support.join_worlds import World, hash_joined, lookup_joined, merge_joined
from tests.support.operator_rows import Row, alike, joined_rows

SEEDS = int(os.environ.get("OPERATOR_SEEDS", "25"))
"""Of each law; more of them are its long form."""


def few_hashes(original: Callable[..., Words]) -> Callable[..., Words]:
    """Give hashes of which many are equal, and whose bits lie where buckets look."""

    def hashed(columns: Sequence[pa.Array], *, seed: int) -> Words:
        return (original(columns, seed=seed) % np.uint64(3)) << np.uint64(62)

    return hashed


@pytest.mark.parametrize("is_waiting", [False, True], ids=["at once", "with waits"])
@pytest.mark.parametrize("kind", JoinType, ids=lambda kind: kind.value)
def test_a_merge_join_is_that_of_nested_loops(kind: JoinType, is_waiting: bool) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        found = merge_joined(world, kind, is_waiting=is_waiting)
        assert [alike(rows) for rows in found] == [*world.expected(kind), []], seed


@pytest.mark.parametrize("kind", JoinType, ids=lambda kind: kind.value)
def test_a_hash_join_is_that_of_nested_loops(kind: JoinType) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        found = hash_joined(world, kind)
        assert [alike(rows) for rows in found] == [*world.expected(kind), []], seed


def test_a_hash_join_is_right_where_nearly_all_hashes_are_equal() -> None:
    hashes = few_hashes(hash_keys)
    with (
        patch.object(join_keys, "hash_keys", hashes),
        patch.object(join_keys, "is_injective", lambda types: False),
    ):
        for seed in range(SEEDS):
            world = World(seed)
            found = hash_joined(world, JoinType.FULL)
            assert [alike(rows) for rows in found] == [*world.expected(JoinType.FULL), []], seed


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT], ids=lambda kind: kind.value)
def test_an_index_lookup_join_is_that_of_nested_loops(kind: JoinType) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        right = world.sets[0][1]
        found = lookup_joined(world, kind, right)
        assert found[-1] == []
        for rows, (left, _) in zip(found, world.sets, strict=False):
            expected = joined_rows(kind, left, right, world.keys, world.right.names)
            assert alike(rows) == alike(expected), seed
            assert [row["id"] for row in rows] == sorted(row["id"] for row in rows), seed


@pytest.mark.parametrize("kind", JoinType, ids=lambda kind: kind.value)
def test_the_same_sets_of_splits_give_the_same_rows_in_the_same_order(kind: JoinType) -> None:
    for seed in range(SEEDS // 4):
        once, again = (merge_joined(World(seed), kind, is_waiting=False) for _ in range(2))
        assert repr(once) == repr(again), seed


@pytest.mark.parametrize("drivers", [1, 3], ids=["one driver", "three drivers"])
@pytest.mark.parametrize("node", [MergeJoin, HashJoin], ids=lambda node: node.kind)
def test_a_task_joins_as_nested_loops_do(node: type[Join], drivers: int) -> None:
    for seed in range(max(4, SEEDS // 4)):
        world = World(seed)
        kind = list(JoinType)[seed % len(JoinType)]
        with Task(world.join(node, kind), drivers=drivers) as task:
            found = [right_columns_by_left(task, *world.ordered(rows)) for rows in world.sets]
        assert [alike(rows) for rows in found] == world.expected(kind), seed


@pytest.mark.parametrize("kind", JoinType, ids=lambda kind: kind.value)
def test_a_join_of_a_view_gives_one_column_for_the_keys_of_both_sides(kind: JoinType) -> None:
    for seed in range(SEEDS):
        world = World(seed)
        with Task(world.join(Join, kind)) as task:
            found = [right_columns_by_left(task, *world.ordered(rows)) for rows in world.sets]
        for rows, (left, right) in zip(found, world.sets, strict=True):
            pairs = joined_rows(kind, left, right, world.keys, world.right.names, world.left.names)
            assert alike(rows) == alike([with_one_key(row, world) for row in pairs]), seed


def with_one_key(row: Row, world: World) -> Row:
    """Return a row in which the keys of the right side stand in the columns of the left one's."""
    rights = dict(world.keys)
    found = {
        name: row[rights[name]] if value is None and rights.get(name) in row else value
        for name, value in row.items()
    }
    return {name: value for name, value in found.items() if name not in rights.values()}


def right_columns_by_left(
    task: Task, left: list[pa.RecordBatch], right: list[pa.RecordBatch]
) -> list[Row]:
    """Return what comes of a split of each side."""
    task.add_split("left", left)
    task.add_split("right", right)
    task.request_barrier()
    return rows_of(task.iter_batches())
