"""Aggregations give what a dictionary of groups gives, of each set of splits apart."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

from spark_upsert.task import aggregation as operators
from tests.support.aggregation_worlds import World, comparable, overflows, run

SEEDS = int(os.environ.get("OPERATOR_SEEDS", "25"))
"""Of each law; more of them are its long form."""


@pytest.mark.parametrize("few_rows", [1, 5, operators._FEW_ROWS], ids="fold at {}".format)
def test_a_hash_aggregation_is_a_dictionary_of_groups(few_rows: int) -> None:
    with patch.object(operators, "_FEW_ROWS", few_rows):
        for seed in range(SEEDS):
            world = World(seed)
            found = run(world, world.plan(), world.sets)
            assert (found is None) is overflows(world), seed
            for rows, given in zip([*world.sets, []], found or [], strict=False):
                assert comparable(given) == comparable(world.answers(rows)), seed


def test_a_streaming_aggregation_of_clustered_rows_is_the_same() -> None:
    for seed in range(SEEDS):
        world = World(seed)
        if not world.keys:
            continue
        sets = [world.clustered(rows) for rows in world.sets]
        found = run(world, world.plan(is_clustered=True), sets)
        assert (found is None) is overflows(world), seed
        for rows, given in zip([*sets, []], found or [], strict=False):
            assert comparable(given) == comparable(world.answers(rows)), seed
