"""A routed stream does to each table what the same batches, appended to it alone, would do."""

from __future__ import annotations

from tests.support.routed_worlds import World
from tests.support.seeds import seeds


@seeds(4, quick=1)
def test_every_table_equals_its_model_and_the_group_names_its_versions(seed: int) -> None:
    world = World(seed)
    world.play(batches=6)
    assert world.crashes, "no fault struck"
    assert world.replays + world.crashes > 1, "hardly any batch came twice"
