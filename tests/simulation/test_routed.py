"""Two routed sinks, a compactor and a second writer on one root, with kills at any step.

Within the steps of one driver another one runs: of the same query, as after a restart while the
old one is still at work, with the same batch divided into other tasks; or of another query, which
is to be refused; or one that adds columns to a table, or drops them. Every table then equals its
model, and the group names the versions of each batch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine
from spark_upsert.errors import ContentionError, OtherTableError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.plan import table_below
from spark_upsert.table.table import Table
from tests.support.routed_worlds import (
    ADDED,
    TOPICS,
    Row,
    World,
    divided,
    routed_options,
    rows_of,
    transaction,
    write,
)
from tests.support.stores import Fault, FaultyStore, KilledError, Moment, Steps

SEEDS = int(os.environ.get("SIMULATION_ROUTED_SEEDS", "4"))

VISITS = 3
"""So often another process comes into an attempt."""

STEPS = 300
"""About as many steps has an attempt."""


@dataclass
class Duel(World):
    """A world in which others come between any two steps."""

    options: RoutedOptions = field(default_factory=lambda: routed_options(mergeSchema="true"))
    visits: dict[str, int] = field(default_factory=dict)
    _inside: bool = False

    def steps(self, rows: Sequence[Row], number: int, *, is_faulty: bool) -> Steps:
        """Return the steps of an attempt, into some of which others come."""
        due = set(self.rng.sample(range(1, STEPS), VISITS))

        def watch() -> None:
            if len(steps.names) in due and not self._inside:
                due.discard(len(steps.names))
                self._inside = True
                self.visit(rows, number)
                self._inside = False

        fault = Fault(self.rng.randrange(STEPS), self.rng.choice(list(Moment)), KilledError)
        steps = Steps(fault if is_faulty else None, watch=watch)
        return steps

    def visit(self, rows: Sequence[Row], number: int) -> None:
        """Let another process do something, whole or until it is killed."""
        who = self.rng.choice(["driver", "driver", "query", "compactor", "alterer"])
        self.visits[who] = self.visits.get(who, 0) + 1
        if who == "driver":
            self.drive(rows, number)
        elif who == "query" and number:
            with pytest.raises(OtherTableError, match="are written by"):
                write(self.store, self.options, [rows_of(self.rng)], transaction(0, "other"))
        elif who == "alterer":
            self.alter(table_below(self.store, self.rng.choice(TOPICS)))
        else:
            table = table_below(self.store, self.rng.choice((*TOPICS, "_group")))
            if table.log.try_head() is not None:
                table.compact(full=True)

    def alter(self, table: Table) -> None:
        """Let another process add a column, or drop one that it has added."""
        if table.log.try_head() is None:
            return
        own = table.schema
        added = [name for name in own.columns.names if name[0] == ADDED]
        if added and own.engine.kind is Engine.DEDUPLICATE and self.rng.random() < 0.5:
            table.drop_columns(added[0])
        else:
            name = f"{ADDED}{table.log.head().version}"
            columns = own.columns.append(pa.field(name, pa.string()))
            table.alter(own.accept(columns, merge=True), upon=own)

    def drive(self, rows: Sequence[Row], number: int) -> None:
        """Let a second driver of the query write the same batch."""
        step = self.rng.randrange(2 * STEPS)
        steps = Steps(Fault(step, self.rng.choice(list(Moment)), KilledError))
        tasks = divided(self.rng, rows)
        with suppress(KilledError, ContentionError):
            write(FaultyStore(self.store, steps), self.options, tasks, transaction(number))


@pytest.mark.parametrize("seed", range(SEEDS), ids="seed {}".format)
def test_two_sinks_do_what_one_would_have_done(seed: int) -> None:
    world = Duel(seed)
    world.play(batches=4)
    assert world.visits, "nobody came between"


def test_the_same_seed_plays_the_same_world() -> None:
    first, second = Duel(3), Duel(3)
    for world in (first, second):
        random.seed(3)
        world.play(batches=2)
    assert (first.visits, first.crashes, first.wholes) == (
        second.visits,
        second.crashes,
        second.wholes,
    )
