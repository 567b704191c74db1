"""The actors of a world, drawn by its seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from spark_upsert.core.schema import Ties
from tests.simulation.actors import (
    Actor,
    Alterer,
    Appender,
    Cleaner,
    Compactor,
    Follower,
    Historian,
    Incarnation,
    Restorer,
    Source,
    StagingWriter,
    Sweeper,
    Time,
)
from tests.simulation.ager import Ager, has_ages

if TYPE_CHECKING:
    from tests.simulation.world import World


def cast_of(world: World) -> list[Actor]:
    """Draw who lives in a world."""
    random = world.random
    people: list[Actor] = []
    for number in range(random.randint(1, 3)):
        kind = random.choice([StagingWriter, StagingWriter, Appender])
        people.append(kind(world, f"w{number}"))
    # What an operator reads is given: nobody tells its tied rows apart.
    if random.random() < 0.5 and world.schema.ties is not Ties.FAIL and not world.may_fail_ties:
        source = Source(world, "source")
        people += [Incarnation(world, source, i) for i in range(random.randint(1, 3))]
    people += [Compactor(world), Compactor(world)]
    others: list[Callable[[World], Actor]] = [Sweeper, Alterer, Cleaner, Follower, Time]
    if world.is_forgetful:
        people += [Sweeper(world)]
    if random.random() < 0.2:
        people.append(Restorer(world))
    people += [kind(world) for kind in others if random.random() < 0.4]
    # Drawn apart, so that the others of a world are who they are with it or without.
    if Random(f"historian of {world.seed}").random() < 0.2:
        people.append(Historian(world))
    if has_ages(world):
        # Which rows a restore has written is not what the model of ages knows.
        people = [each for each in people if not isinstance(each, Restorer)]
        people += [Ager(world), Ager(world)]
    return people
