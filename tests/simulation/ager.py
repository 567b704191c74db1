"""Expiries of rows that are too old, by the time of the commit that wrote them last (`ages`)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import Ties
from spark_upsert.table.log.properties import COMMITTED, ROW_TTL, ROW_TTL_BY
from tests.simulation.actors import Actor

if TYPE_CHECKING:
    from tests.simulation.world import World

TTLS = ("2 seconds", "10 seconds", "2 hours", "10 days")


def has_ages(world: World) -> bool:
    """Return whether the rows of a world are expired: each of them comes from one command."""
    schema = world.schema
    is_tied = world.has_ties or world.may_fail_ties or schema.ties is not Ties.LAST
    if schema.engine.kind is not Engine.DEDUPLICATE or is_tied:
        return False
    return Random(f"has ages {world.seed}").random() < 0.7


def row_ttl(draw: Random) -> dict[str, str]:
    """Return the properties of a row TTL."""
    return {ROW_TTL: draw.choice(TTLS), ROW_TTL_BY: COMMITTED}


class Ager(Actor):
    """Gives the table a row TTL, expires its rows, and ends the TTL again."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._draw = Random(f"ages of {world.seed}")

    def __str__(self) -> str:
        return "ager"

    def live(self) -> Iterator[None]:
        table = self.world.open()
        head = table.log.head()
        if (ROW_TTL in head.properties) is (self._draw.random() < 0.2):
            yield
            properties = {k: v for k, v in head.properties.items() if not k.startswith(ROW_TTL)}
            if ROW_TTL not in head.properties:
                properties |= row_ttl(self._draw)
            table.alter(head.schema, properties)
            yield
        expired = yield from self.attempt(table.expire_rows)
        if expired is not None:
            self.world.trace.append(f"{self} expired {expired.deletes} rows")
