"""A routed stream does to each table what the same batches, appended to it alone, would do."""

from __future__ import annotations

import pytest

from tests.support.routed_worlds import World

STRETCH = 8


@pytest.mark.parametrize("first", range(0, 3 * STRETCH, STRETCH), ids="seeds from {}".format)
def test_every_table_equals_its_model_and_the_group_names_its_versions(first: int) -> None:
    worlds = [World(seed) for seed in range(first, first + STRETCH)]
    for world in worlds:
        world.play(batches=6)
    assert sum(world.crashes for world in worlds) > STRETCH, "hardly any fault struck"
    assert sum(world.replays for world in worlds) > STRETCH // 2, "hardly any batch came twice"
