"""Tables that break while a stream writes them: in the end each has every row once, in order."""

from __future__ import annotations

from tests.support.parked_rows import ParkedRows
from tests.support.parked_worlds import ParkedWorld
from tests.support.seeds import seeds


@seeds(6, quick=1)
def test_every_table_equals_its_model_when_it_is_mended_and_unparked(seed: int) -> None:
    world = ParkedWorld(seed)
    world.play(batches=6)
    assert world.crashes + world.in_doubt, "no fault struck"


@seeds(16, quick=1)
def test_no_parked_row_is_lost_whatever_options_are_tried(seed: int) -> None:
    world = ParkedRows(seed)
    world.play(steps=14)
    assert world.kills, "no fault was planned"
