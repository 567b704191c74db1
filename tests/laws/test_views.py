"""Laws of views as their users have them: streams over real tables, and tables that keep groups.

Between any two steps, the planning of a batch and its repetition included, tables of every kind are
written, by this process or another, overwritten, set back, altered, compacted and expired; their
indexes lag, come and go, and are built. Streams are limited in every way, cut into splits, net what
they give, begin anew with other limits and run a batch again; kept tables are refreshed and fed by
a query in turn, compacted and expired. At each position that is promised what came out, folded, is
the batch query in plain Python; and so is what the changes of a kept table come to.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, OtherTableError, UpsertFlowError
from spark_upsert.options.read import OnError
from spark_upsert.plan.nodes import Node
from spark_upsert.table.log.manifest import KeptPosition
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import NOTHING
from spark_upsert.views import view
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import refresh
from spark_upsert.views.view import View, bind
from tests.support.grouped import expected, shown
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.view_plays import canonical, rows_of
from tests.support.view_queries import Query
from tests.support.view_tables import RealWorld, of_any_kind
from tests.support.view_trees import random_epoch, random_group, random_plan

LIVES = int(os.environ.get("VIEW_LIVES", "24"))
"""Of streams, and as many of kept tables; ``VIEW_LIVES=4000`` is the long form."""

SLICES = 4

ACTS = 12

LIMITS = {
    "maxRowsPerTrigger": (1, 3, 9),
    "maxEpochsPerTrigger": (1, 3, 9),
    "maxBytesPerTrigger": (1, 5_000, 100_000),
}

At = dict[str, int]


def limits_of(chance: random.Random) -> dict[str, str]:
    """Return how a stream is limited and cut, which each start of it says anew."""
    found = {"splits": str(chance.randint(1, 3))}
    for name, values in LIMITS.items():
        if chance.random() < 0.25:
            found[name] = str(chance.choice(values))
    return found


def told(chance: random.Random) -> dict[str, str]:
    """Return what a query of a view is told, which each start of it says anew."""
    return {**limits_of(chance), "onError": chance.choice(["null", "fail"])}


def require_failing_row(error: DataError) -> None:
    """Raise an error again that is of anything but a formula without a value."""
    if "has no value for some row" not in error.message:
        raise error


class Rows:
    """A stream of the rows of a plan, folded as far as it is."""

    def __init__(self, chance: random.Random, world: RealWorld) -> None:
        self.chance, self.world = chance, world
        plan = None
        while plan is None or not plan.paths:
            tree, plan = random_plan(chance, lambda n: bind(n, world.open), world.known_versions)
        self.node, self.paths = tree.node, plan.paths
        self.fixed = {"consumerId": "view"}
        if chance.random() < 0.3:
            self.fixed["deduplicationMode"] = "netChanges"
        if chance.random() < 0.3:
            self.fixed["computeUpdates"] = "false"
        self.query = Query(self.node, **self.fixed, **told(chance))
        self.state: Counter[Any] = Counter()
        self.latest = 0

    @property
    def is_leased(self) -> bool:
        """Whether what is still to be read is held."""
        return bool(self.query.batches)

    def step(self) -> bool:
        """Run a batch; False if there was none."""
        if self.chance.random() < 0.3:
            self.query.start(**self.fixed, **told(self.chance))
        try:
            batch = self.query.batch(meanwhile=meanwhile(self))
        except DataError as error:
            require_failing_row(error)
            self.query.start(**{**self.query.given, "onError": "null"})
            batch = self.query.batch()
        for row in batch or ():
            assert row["_commit_version"] >= self.latest, "a version that was whole goes on"
            shown_ = (value for name, value in row.items() if not name.startswith("_"))
            self.state[canonical(tuple(shown_))] += row["_diff"]
        self.latest = max([self.latest, *(row["_commit_version"] for row in batch or ())])
        if batch is not None and (at := self.query.position()) is not None:
            self.check(at)
        return batch is not None

    def check(self, at: At) -> None:
        """Compare what came out with the batch query at a position."""
        rows = rows_of(self.node, self.world.contents(at))
        wanted = Counter(canonical(tuple(row.values())) for row in rows)
        assert {row: n for row, n in self.state.items() if n} == wanted

    def finish(self) -> None:
        """Run all that there is."""
        while self.step():
            pass
        self.check({path: self.world.known_versions(path)[-1] for path in self.paths})


class Groups:
    """A table that keeps groups of the rows of a plan."""

    def __init__(self, chance: random.Random, world: RealWorld) -> None:
        self.chance, self.world = chance, world
        relation, self.grouping, self.node = random_group(chance, world.open, world.known_versions)
        self.paths = relation.paths
        self.kept = MaterializedView.create(
            Table(MemoryStore()), self.grouping, self.node.to_json()
        )
        self.query: Query | None = None

    @property
    def is_leased(self) -> bool:
        """Whether what is still to be read is held."""
        return self.position() is not None

    def position(self) -> At | None:
        """Return where the table is; None as long as a first snapshot is not whole."""
        recorded = self.kept.position()
        if recorded == NOTHING or (found := KeptPosition.read(recorded)).snapshot is not None:
            return None
        return {path: place.version for path, place in found.at.items()}

    def step(self) -> bool:
        """Bring the table further, in one of the ways that there are; False if it was there."""
        way = self.chance.random()
        if way < 0.3:
            has_moved = refreshed(self.node, self.kept.table)
        elif way < 0.5 or self.query is None:
            has_moved = self._feed(self._begun())
        else:  # Perhaps a refresh was there before it.
            has_moved = self._feed(self.query)
        if self.chance.random() < 0.2:
            self.kept.table.compact(full=True)
        if (at := self.position()) is not None:
            self.check(at)
        return has_moved

    def _begun(self) -> Query:
        """Return a query that begins where the table is."""
        recorded = self.kept.position()
        options = {"consumerId": "view", **told(self.chance)}
        if recorded != NOTHING:
            options["startingPosition"] = recorded
        self.query = Query(self.node, **options)
        return self.query

    def _feed(self, query: Query) -> bool:
        recorded = self.kept.position()
        try:
            batch = query.batch(meanwhile=meanwhile(self))
        except DataError as error:
            require_failing_row(error)
            query.start(**{**query.given, "onError": "null"})
            batch = query.batch()
        if batch is None:
            return query.position() != self.position()
        table = self.kept.table
        rows = pa.Table.from_pylist(batch, schema=table.schema.columns)
        try:
            table.upsert(rows)
            table.upsert(rows)  # It is there already.
        except OtherTableError:
            assert recorded == self.kept.position()
            self.query = None
        return True

    def check(self, at: At) -> None:
        """Compare what is kept with the batch query at a position."""
        rows = rows_of(self.node.input, self.world.contents(at))
        wanted = expected(self.grouping, [tuple(row.values()) for row in rows])
        assert shown(self.grouping, self.kept.rows()) == wanted

    def finish(self) -> None:
        """Bring the table to where its inputs are."""
        refreshed(self.node, self.kept.table)
        self.check({path: self.world.known_versions(path)[-1] for path in self.paths})


def refreshed(node: Node, table: Table) -> bool:
    """Bring a table that keeps groups further, whatever rows have no value."""
    try:
        return refresh(View(node), table)
    except DataError as error:
        require_failing_row(error)
        return refresh(View(node), table, on_error=OnError.NULL)


class Follows(Protocol):
    """What reads some tables."""

    @property
    def paths(self) -> Sequence[str]:
        """Return their names."""
        ...

    @property
    def is_leased(self) -> bool:
        """Whether what is still to be read is held."""
        ...


def disturb(chance: random.Random, world: RealWorld, reader: Follows) -> None:
    """Do something to a table that is read, or to what its processes remember."""
    way, name = chance.random(), chance.choice(sorted(set(reader.paths)))
    table = world.tables[name]
    if way < 0.6:
        world.apply(random_epoch(chance, [name]))
    elif way < 0.7:
        table.compact(full=chance.random() < 0.5)
    elif way < 0.8:
        for _ in range(2 if reader.is_leased else 0):  # The first leaves what is before it.
            table.compact(full=True)
            world.expire(name)
    elif way < 0.86:
        since = table.log.head().since
        world.restore(name, chance.choice([v for v in world.known_versions(name) if v >= since]))
    elif way < 0.91:
        world.alter(name)
    elif way < 0.96:
        world.mend_indexes(name)
    else:
        forget_runs_and_logs()


def meanwhile(reader: Rows | Groups) -> Callable[[], None] | None:
    """Return what happens between a batch and its repetition; None if it is not repeated."""
    if reader.chance.random() < 0.8:
        return None
    return partial(disturb, reader.chance, reader.world, reader)


Reader = Callable[[random.Random, RealWorld], Rows | Groups]


def live(reader_of: Reader, folder: Path, life: int) -> None:
    """Live one history of tables and of what reads them."""
    chance = random.Random(life)
    folder.mkdir()
    world = RealWorld(
        chance, has_own_indexes=True, kind=of_any_kind(chance), folder=folder.absolute()
    )
    with chdir(folder):  # Where the paths of the plans lead.
        for _ in range(chance.randint(0, 6)):
            world.apply(random_epoch(chance, list(world.shapes)))
        reader = reader_of(chance, world)
        for _ in range(ACTS):
            # Steps are looked up, in pieces if they touch much, or computed of snapshots.
            with (
                patch.object(view, "STEP_ROWS_MIN", chance.choice([0, 10_000])),
                patch.object(view, "PIECE_ROWS", chance.choice([5, 1 << 17, 1 << 17])),
            ):
                if chance.random() < 0.27:
                    reader.step()
                else:
                    disturb(chance, world, reader)
        reader.finish()


def lives(reader_of: Reader, seed: int) -> None:
    with TemporaryDirectory(prefix="upsertflow-views-") as folder:
        for life in range(seed, LIVES, SLICES):
            try:
                live(reader_of, Path(folder) / str(life), life)
            except (AssertionError, UpsertFlowError) as error:
                error.add_note(f"life {life}")
                raise


@pytest.mark.parametrize("seed", range(SLICES))
def test_p2_the_folded_stream_of_a_view_is_the_batch_query(seed: int) -> None:
    lives(Rows, seed)


@pytest.mark.parametrize("seed", range(SLICES))
def test_p2_what_a_table_keeps_of_a_view_is_the_batch_query(seed: int) -> None:
    lives(Groups, seed)
