"""A world for each kind of table: its scope, its engine, and what it does with errors."""

from __future__ import annotations

from functools import cache

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties
from tests.simulation.world import World

Kind = tuple[Scope, Engine, ErrorPolicy]

SEEDS = (3, 4, 5, 8, 9, 21, 30, 34, 63, 104, 140, 156, 316, 440, 618, 692)
"""The first of each kind that forgets its deletes at once and does not refuse tied rows: a life has
no other rows to give instead. They are written down, since every lane of the tests would look
through hundreds for them. Where worlds draw otherwise, the seeds are looked for once more."""


@cache
def worlds_of_kinds() -> dict[Kind, World]:
    """Return a world of each kind, in the order of their seeds."""
    return {kind_of(world): world for world in map(World, SEEDS)}


def kind_of(world: World) -> Kind:
    schema = world.schema
    return schema.scope, schema.engine.kind, schema.on_error


def is_fit(world: World) -> bool:
    """Return whether a world may stand for its kind."""
    return world.retention == "0 epochs" and world.schema.ties is not Ties.FAIL
