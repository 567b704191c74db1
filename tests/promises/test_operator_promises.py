"""What holds of operators that keep rows until a barrier.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, MemoryLimitError
from spark_upsert.plan.aggregates import Aggregate
from spark_upsert.plan.nodes import ArrowScan, Group, HashJoin, JoinKeys, JoinType, MergeJoin
from spark_upsert.task import aggregation as aggregations
from spark_upsert.task.aggregation import aggregation
from spark_upsert.task.hash_join import HashJoinRows
from spark_upsert.task.merge_join import MergeJoinRows
from tests.support.aggregation_worlds import World as Groups
from tests.support.aggregation_worlds import comparable, overflows, run
from tests.support.chains import Chain, Dropping, Scripted, rows_of
from tests.support.join_worlds import World, hash_joined, lookup_joined, merge_joined
from tests.support.operator_rows import alike, joined_rows

LEFT, RIGHT = pa.schema({"a": pa.int64()}), pa.schema({"b": pa.int64()})
LEFT_SCAN, RIGHT_SCAN = (
    ArrowScan(id=name, schema=schema) for name, schema in (("left", LEFT), ("right", RIGHT))
)


def of(schema: pa.Schema, *keys: int) -> list[pa.RecordBatch]:
    """Return a batch for each key."""
    return [pa.RecordBatch.from_arrays([pa.array([key])], schema=schema) for key in keys]


def worlds(seed: int) -> range:
    return range(100 * seed, 100 * seed + 12)


by_seeds = pytest.mark.parametrize("seed", range(2), ids="seed {}".format)


@by_seeds
@pytest.mark.sweep(1)
def test_p2_a_join_is_that_of_nested_loops_over_one_set_of_splits(seed: int) -> None:
    for number in worlds(seed):
        for kind in JoinType:
            expected = [*World(number).expected(kind), []]
            merged = merge_joined(World(number), kind, is_waiting=True)
            assert [alike(rows) for rows in merged] == expected
            hashed = hash_joined(World(number), kind)
            assert [alike(rows) for rows in hashed] == expected


@by_seeds
def test_p2_rows_that_are_looked_up_are_those_of_nested_loops(seed: int) -> None:
    for number in worlds(seed):
        world = World(number)
        right = world.sets[0][1]
        found = lookup_joined(world, JoinType.LEFT, right)
        for rows, (left, _) in zip(found, world.sets, strict=False):
            expected = joined_rows(JoinType.LEFT, left, right, world.keys, world.right.names)
            assert alike(rows) == alike(expected)


@by_seeds
@pytest.mark.sweep(1)
def test_p2_groups_are_those_of_a_dictionary_over_one_set_of_splits(seed: int) -> None:
    with patch.object(aggregations, "_FEW_ROWS", 3):
        for number in worlds(seed):
            for is_clustered in (False, True):
                world = Groups(number)
                sets = [world.clustered(rows) if is_clustered else rows for rows in world.sets]
                found = run(world, world.plan(is_clustered=is_clustered), sets)
                assert (found is None) is overflows(world)
                for rows, given in zip([*sets, []], found or [], strict=False):
                    assert comparable(given) == comparable(world.answers(rows))


def test_p2_many_groups_keep_their_sums_and_their_order() -> None:
    keys = (7919 * np.arange(5000)) % 10_007
    schema = pa.schema({"k": pa.int64()})
    for is_clustered in (False, True):
        plan = Group(
            id="sums",
            input=ArrowScan(id="rows", schema=schema),
            keys=("k",),
            aggregates=(Aggregate.of("s", "sum", "k"),),
            is_clustered=is_clustered,
        )
        batch = pa.RecordBatch.from_arrays([pa.array(np.repeat(keys, 2))], schema=schema)
        (given, _) = Chain([aggregation(plan, schema)]).run([[batch]])
        assert [(row["k"], row["s"]) for row in rows_of(given)] == [(k, 2 * k) for k in keys]


def merge(kind: JoinType, right: Scripted, **settings: Any) -> MergeJoinRows:
    plan = MergeJoin(
        id="join",
        left=LEFT_SCAN,
        right=RIGHT_SCAN,
        how=kind,
        on=JoinKeys.pairs(("a",), ("b",)),
        **settings,
    )
    return MergeJoinRows(plan, LEFT, right, Dropping(right=right).drop_input)


def test_p5_rows_out_of_order_are_refused() -> None:
    for left, right in (([2, 1], [1, 2]), ([1, 2], [2, 1])):
        side = Scripted(RIGHT, [of(RIGHT, *right)])
        with pytest.raises(DataError, match="must ascend"):
            Chain([merge(JoinType.FULL, side)], [side]).run([of(LEFT, *left)])


def test_p7_a_side_that_is_of_no_use_is_read_no_further() -> None:
    for kind, is_read in (
        (JoinType.INNER, False),
        (JoinType.LEFT, False),
        (JoinType.ANTI, False),
        (JoinType.FULL, True),
    ):
        side = Scripted(RIGHT, [of(RIGHT, *range(2, 50))])
        Chain([merge(kind, side)], [side]).run([of(LEFT, 1, 2)], is_ended=False)
        assert (side.taken == 48) is is_read


def test_p7_what_is_held_has_a_bound() -> None:
    def fails(chain: Chain, left: list[pa.RecordBatch]) -> None:
        with pytest.raises(MemoryLimitError, match="node"):
            chain.run([left])

    bound = 64
    side = Scripted(RIGHT, [of(RIGHT, *[1] * 50)])
    fails(Chain([merge(JoinType.INNER, side, memory_bytes_max=bound)], [side]), of(LEFT, 1))
    side = Scripted(RIGHT, [of(RIGHT, *range(50))])
    plan = HashJoin(
        id="join",
        left=LEFT_SCAN,
        right=RIGHT_SCAN,
        how=JoinType.INNER,
        on=JoinKeys.pairs(("a",), ("b",)),
        memory_bytes_max=bound,
    )
    fails(Chain([HashJoinRows(plan, LEFT, side)], [side]), of(LEFT, 1))
    groups = Group(id="groups", input=LEFT_SCAN, keys=("a",), memory_bytes_max=bound)
    fails(Chain([aggregation(groups, LEFT)]), of(LEFT, *range(50)))


def test_p7_many_rows_of_few_groups_are_few_groups() -> None:
    plan = Group(id="groups", input=LEFT_SCAN, keys=("a",), memory_bytes_max=500)
    (given, _) = Chain([aggregation(plan, LEFT)]).run([of(LEFT, *[1, 2, 3] * 50)])
    assert len(rows_of(given)) == 3
