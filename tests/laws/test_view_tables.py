"""Laws of tables that keep views, rows or groups, as their users have them.

A query that keeps a view is driven as Spark drives it, with the options that `keep` gives it. Its
process dies before a batch is committed and behind it, and between any two steps all happens to
the view's tables that `test_views` does to them, and one is replaced. The table that keeps is
compacted, in part and whole, expired, set back, read at old versions, and written by somebody
else; a second query keeps the same view there, and another process refreshes groups. Streams follow
the table, with a lease or without. At each version that is promised the table and what came out of
the streams, folded, are the batch query in plain Python; and whoever cannot go on is told.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

from spark_upsert.errors import (
    ContentionError,
    DataError,
    DataLossError,
    OptionError,
    OtherTableError,
    UpsertFlowError,
)
from spark_upsert.plan.nodes import Group, Node
from spark_upsert.store import LocalStore
from spark_upsert.table.compaction import choose, compact_runs
from spark_upsert.table.log.manifest import KeptPosition
from spark_upsert.table.state import snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import NOTHING
from spark_upsert.views import view
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.view import View, bind, last_epoch
from tests.laws.test_views import (
    SLICES,
    At,
    disturb,
    limits_of,
    refreshed,
    require_failing_row,
    told,
)
from tests.support.grouped import expected
from tests.support.stores import forget_runs_and_logs
from tests.support.view_keepers import Contents, Follower, Keeper, Meanwhile, contents_of
from tests.support.view_plays import canonical, rows_of
from tests.support.view_tables import RealWorld, of_any_kind
from tests.support.view_trees import random_epoch, random_group, random_plan

LIVES = int(os.environ.get("VIEW_TABLE_LIVES", "16"))
"""Of each kind of table; ``VIEW_TABLE_LIVES=4000`` is the long form."""

ACTS = 16


class Play:
    """A table that keeps a view, those who bring it further, and those who follow it.

    Parameters
    ----------
    chance : random.Random
    world : RealWorld
        The tables of the view.
    folder : pathlib.Path
        Where the table lies, and the checkpoints.
    """

    node: Node
    paths: tuple[str, ...]
    names: list[str]
    """The columns that the table shows."""

    def __init__(self, chance: random.Random, world: RealWorld, folder: Path) -> None:
        self.chance, self.world, self.folder = chance, world, folder
        self.path = folder / "kept"
        self.fixed: dict[str, str] = {}
        self.keepers: list[Keeper] = []
        self.followers: list[Follower] = []
        self.promised: dict[int, Contents | None] = {}
        self.positions: dict[int, At] = {}
        """Where the table's versions are in the view, as far as something is promised of them."""
        self._numbers = itertools.count()

    @property
    def table(self) -> Table:
        """The table, as another process opens it."""
        return Table(LocalStore(str(self.path)))

    @property
    def is_leased(self) -> bool:
        """Whether what is still to be read is held."""
        return len(self.promised) > 1

    def position(self) -> At | None:
        """Return where the table is; None as long as a first snapshot is not whole."""
        raise NotImplementedError

    def wanted(self, at: At) -> Contents:
        """Return the batch query at a position."""
        raise NotImplementedError

    def held(self, version: int | None = None) -> Contents:
        """Return what the table shows at a version."""
        raise NotImplementedError

    def step(self) -> bool:
        """Bring the table further, in one of the ways that there are; False if it was there."""
        raise NotImplementedError

    # -- what happens ----------------------------------------------------------------

    def act(self) -> None:
        """Let one thing happen, and look at the table, at a version of before, too."""
        way, chance = self.chance.random(), self.chance
        if way < 0.32:
            self.step()
        elif way < 0.50:
            disturb(chance, self.world, self)
        elif not self.promised:
            self.begin()
        elif way < 0.60:
            self.upkeep()
        elif way < 0.68:
            self.set_back()
        elif way < 0.71:
            self.replace()
        elif way < 0.80 and len(self.followers) < 3:
            self.follow()
        elif way < 0.83:
            self.begin()
        elif self.followers:
            if chance.random() < 0.6:
                self.outrun()
            self.read(chance.choice(self.followers))
        self.note()

    def note(self) -> None:
        """Note what the table is promised to hold from now on, and look at it."""
        log = self.table.log
        if log.try_head() is None:
            return
        epoch, at = last_epoch(log, log.head().version), self.position()
        assert len([v for v in self._epochs() if v not in self.promised]) <= 1, "one epoch a step"
        wanted = None if at is None else self.wanted(at)
        if at is not None:
            self.positions.setdefault(epoch, at)
        assert self.promised.setdefault(epoch, wanted) == wanted
        readable = [v for v, known in self.promised.items() if known and v >= log.head().since]
        for version in {epoch, self.chance.choice([epoch, *readable])}:
            promised = self.promised[version]
            assert promised is None or self.held(version) == promised, f"at version {version}"

    def _epochs(self) -> Iterator[int]:
        log = self.table.log
        newest = max(self.promised, default=0)
        for version in range(max(newest, log.head().since) + 1, log.head().version + 1):
            if log.commit(version).is_epoch:
                yield version

    def upkeep(self) -> None:
        """Compact the table, expire what nobody holds, or let processes end: no answer changes."""
        way, table = self.chance.random(), self.table
        if way < 0.3:
            table.compact(full=True)
        elif way < 0.5:
            head = table.log.head()
            jobs = choose(head, fanout=2)
            table.commit_compactions(compact_runs(table.store, head, job) for job in jobs)
        elif way < 0.85:
            table.expire(retain_versions=self.chance.randint(0, 2), safety_ms=0)
            table.vacuum(grace_ms=0)
        else:
            forget_runs_and_logs()

    def meanwhile(self) -> None:
        """Do something between a batch and its repetition."""
        if self.chance.random() < 0.5:
            self.upkeep()
        else:
            disturb(self.chance, self.world, self)

    def perhaps(self) -> Meanwhile:
        """Return `meanwhile`, mostly not."""
        return self.meanwhile if self.chance.random() < 0.15 else None

    def set_back(self) -> None:
        """Let the table go back to what it was at a version."""
        raise NotImplementedError

    @contextmanager
    def replaced(self, name: str) -> Iterator[None]:
        """Put another table in the place of one of the view's, with as many versions or others."""
        assert self.world.folder is not None
        here, twins = self.world.folder / name, self.folder / "twins"
        schema, chance = self.world.tables[name].schema, self.chance
        shapes = {name: self.world.shapes[name]}
        twin = RealWorld(
            chance, has_own_indexes=True, kind=lambda _: schema, folder=twins, shapes=shapes
        )
        for _ in range(chance.choice([0, 2, self.world.tables[name].log.head().version])):
            twin.apply(random_epoch(chance, [name]))
        here.rename(twins / "original")
        (twins / name).rename(here)
        forget_runs_and_logs()
        yield
        shutil.rmtree(here)
        (twins / "original").rename(here)
        shutil.rmtree(twins)
        forget_runs_and_logs()

    def replace(self) -> None:
        """Keep the view while one of its tables is another one: that is refused."""
        if not self.is_leased:
            return
        name = self.chance.choice(self.paths)
        pins = View(self.node).pins()
        before = self.table.log.head().version
        # A fixed version may not be there in the other table, which is told first.
        refusal = pytest.raises(UpsertFlowError if name in pins else OtherTableError)
        with self.replaced(name), refusal:
            self.go_on()
        self.restart()
        assert self.table.log.head().version == before

    def go_on(self) -> None:
        """Bring the table further from where it is, by another process than before."""
        raise NotImplementedError

    def restart(self) -> None:
        """Let other processes go on."""
        for keeper in self.keepers:
            if keeper.done:
                keeper.start(self.options())

    # -- who keeps -------------------------------------------------------------------

    def begin(self) -> None:
        """Begin another query that keeps the view."""
        self.keepers.append(self.keeper())

    def keeper(self) -> Keeper:
        checkpoint = self.folder / "checkpoints" / str(next(self._numbers))
        return Keeper(self.node, self.path, checkpoint, self.options())

    def options(self) -> dict[str, str]:
        return {**self.fixed, **told(self.chance)}

    def run(self, keeper: Keeper) -> bool:
        """Run a batch of a query; perhaps it is restarted before, or dies on the way."""
        if self.chance.random() < 0.2:
            keeper.start(self.options())
        try:
            return keeper.run(before_commit=self.perhaps(), behind_commit=self.perhaps())
        except ContentionError:  # What it was planned upon was expired meanwhile.
            keeper.start(self.options())
            return self.run(keeper)
        except DataError as error:
            require_failing_row(error)
            keeper.start({**self.options(), "onError": "null"})
            return keeper.run()

    # -- who follows -----------------------------------------------------------------

    def follow(self) -> None:
        """Begin another stream over the table."""
        options = limits_of(self.chance)
        if self.chance.random() < 0.5:
            options["consumerId"] = f"follower-{next(self._numbers)}"
        if self.chance.random() < 0.3:
            options["deduplicationMode"] = "netChanges"
        if self.chance.random() < 0.3:
            options["computeUpdates"] = "false"
        self.followers.append(Follower(self.path, self.names, options))
        self.read(self.followers[-1])

    def read(self, follower: Follower) -> bool:
        """Run a batch of a stream; who is behind what can be read is told, and is gone."""
        try:
            # Without a lease rows of an expired version may come as those of a compaction of it.
            is_repeated = follower.is_leased and self.chance.random() < 0.2
            upkeep = self.upkeep if is_repeated else None
            return follower.step(self.promised, upkeep)
        except DataLossError:
            place = follower.place
            assert not follower.is_leased
            assert place is None or self.table.log.head().since > place.version
            self.followers.remove(follower)
            return False

    def outrun(self) -> None:
        """Go on, and expire what streams without a lease have yet to read."""
        for _ in range(2):
            self.world.apply(random_epoch(self.chance, list(self.paths)))
            self.step()
            self.note()
        for follower in [each for each in self.followers if each.is_leased]:
            while self.read(follower):
                pass
        self.table.expire(retain_versions=0, safety_ms=0)
        self.table.vacuum(grace_ms=0)

    def finish(self) -> None:
        """Run all that there is."""
        while self.step():
            self.note()
        self.note()
        newest = {path: self.world.known_versions(path)[-1] for path in self.paths}
        assert self.position() == newest
        for follower in list(self.followers):
            while self.read(follower):
                pass
            assert follower not in self.followers or follower.shown == self.held()
        assert self.table.check().is_sound


class Rows(Play):
    """A table that keeps the rows of a plan."""

    def __init__(self, chance: random.Random, world: RealWorld, folder: Path) -> None:
        super().__init__(chance, world, folder)
        plan = None
        while plan is None or not plan.paths:
            tree, plan = random_plan(chance, lambda n: bind(n, world.open), world.known_versions)
        self.node, self.paths, self.names = tree.node, plan.paths, plan.schema.names
        if chance.random() < 0.3:
            self.fixed["deduplicationMode"] = "dropCarryovers"
        if chance.random() < 0.3:
            self.fixed["computeUpdates"] = "false"

    @property
    def owner(self) -> Keeper | None:
        """The query that wrote first."""
        return next((keeper for keeper in self.keepers if keeper.done), None)

    def position(self) -> At | None:
        return None if self.owner is None else self.owner.position()

    def wanted(self, at: At) -> Contents:
        return contents_of(rows_of(self.node, self.world.contents(at)), self.names)

    def held(self, version: int | None = None) -> Contents:
        return contents_of(self.table.snapshot(version).to_pylist(), self.names)

    def begin(self) -> None:
        if self.owner is None:
            super().begin()
            return
        with pytest.raises(OptionError, match="holds rows of another query"):
            self.keeper()

    def step(self) -> bool:
        while not self.keepers or (self.owner is None and self.chance.random() < 0.4):
            self.begin()
        keeper, owner = self.chance.choice(self.keepers), self.owner
        if owner in (None, keeper):
            return self.run(keeper)
        with pytest.raises((OptionError, OtherTableError), match=r"of another query|by 'query:"):
            self.run(keeper)
        self.keepers.remove(keeper)
        return True

    def go_on(self) -> None:
        assert self.owner is not None
        self.owner.start(self.options())
        self.owner.run()

    def set_back(self) -> None:
        head = self.table.at().manifest
        old = [v for v in self.promised if v >= head.since]
        if not old:
            return
        version = self.chance.choice(old)
        if self.table.at(version).manifest.slices == head.slices:
            assert self.table.restore(version) is None
            return
        with pytest.raises(DataError, match="keeps the rows of a view"):
            self.table.restore(version)


class Groups(Play):
    """A table that keeps groups of the rows of a plan."""

    def __init__(self, chance: random.Random, world: RealWorld, folder: Path) -> None:
        super().__init__(chance, world, folder)
        relation, self.grouping, self.node = random_group(chance, world.open, world.known_versions)
        self.paths, self.names = relation.paths, self.grouping.result_schema.names
        self._latest: Keeper | None = None
        """The query that brought the table to where it is, if one did."""

    def position(self) -> At | None:
        recorded = MaterializedView.open(self.table).position()
        if recorded == NOTHING or (found := KeptPosition.read(recorded)).snapshot is not None:
            return None
        return {path: place.version for path, place in found.at.items()}

    def wanted(self, at: At) -> Contents:
        assert isinstance(self.node, Group)
        rows = rows_of(self.node.input, self.world.contents(at))
        groups = expected(self.grouping, [tuple(row.values()) for row in rows])
        return Contents(canonical((*key, *values)) for key, values in groups.items())

    def held(self, version: int | None = None) -> Contents:
        return contents_of(MaterializedView.open(self.table).rows(version).to_pylist(), self.names)

    def step(self) -> bool:
        way = self.chance.random()
        if way < 0.25:
            return self._refreshed()
        is_new = way < 0.4 or not self.keepers
        if is_new:
            self.begin()
        keeper = self.keepers[-1] if is_new else self.chance.choice(self.keepers)
        before = self.table.log.head().version
        try:
            has_moved = self.run(keeper)
        except (OtherTableError, DataLossError):
            assert not is_new, "it begins where the table is"
            assert keeper is not self._latest, "it goes on from where it has brought the table"
            self.keepers.remove(keeper)
            return True
        if any(self.table.log.commit(v).is_epoch for v in self._behind(before)):
            self._latest = keeper
        return has_moved

    def _behind(self, version: int) -> range:
        log = self.table.log
        return range(max(version + 1, log.head().since + 1), log.head().version + 1)

    def _refreshed(self) -> bool:
        has_moved = refreshed(self.node, self.table)
        if has_moved:
            self._latest = None
        return has_moved

    def go_on(self) -> None:
        if self.chance.random() < 0.5:
            refreshed(self.node, self.table)
        else:
            self.keeper().run()

    def set_back(self) -> None:
        if not self.followers:
            self.follow()
        head = self.table.log.head()
        sinces = {path: self.world.tables[path].log.head().since for path in self.paths}
        old = [
            version
            for version, at in self.positions.items()
            if version >= head.since and all(at[path] >= sinces[path] for path in at)
        ]
        old = [version for version in old if self.promised[version] != self.held()]
        if not old:
            return
        self.table.restore(self.chance.choice(old))
        self.note()
        self.keepers, self._latest = [], None
        self.begin()  # And holds what the table is behind by.
        self.step()


@contextmanager
def drawn_names(life: int) -> Iterator[None]:
    """Draw identities, names of files and seeds of hashes by a seed, too."""
    dice = random.Random(f"names of {life}")
    with (
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128))),
        patch.object(secrets, "randbits", dice.getrandbits),
    ):
        yield


def live(play_of: Callable[..., Play], folder: Path, life: int) -> None:
    """Live one history of tables, of what keeps a view of them, and of what follows that."""
    chance = random.Random(life)
    world = RealWorld(
        chance, has_own_indexes=True, kind=of_any_kind(chance), folder=folder.absolute() / "lake"
    )
    (folder / "lake").mkdir(exist_ok=True, parents=True)
    with chdir(folder / "lake"):  # Where the paths of the plans lead.
        for _ in range(chance.randint(0, 6)):
            world.apply(random_epoch(chance, list(world.shapes)))
        play = play_of(chance, world, folder.absolute())
        for _ in range(ACTS):
            # Steps are looked up, in pieces if they change or reach much, or computed of snapshots.
            with (
                patch.object(view, "STEP_ROWS_MIN", chance.choice([0, 10_000])),
                patch.object(view, "PIECE_ROWS", chance.choice([5, 1 << 17, 1 << 17])),
                patch.object(snapshot, "CHUNK_ROWS", chance.choice([2, 1 << 17])),
            ):
                play.act()
        play.finish()


def lives(play_of: Callable[..., Play], seed: int) -> None:
    with TemporaryDirectory(prefix="upsertflow-views-") as folder:
        for life in range(seed, LIVES, SLICES):
            try:
                with drawn_names(life):
                    live(play_of, Path(folder) / str(life), life)
            except (AssertionError, UpsertFlowError) as error:
                error.add_note(f"life {life}")
                raise


@pytest.mark.parametrize("seed", range(SLICES))
@pytest.mark.sweep(1)
def test_p2_a_table_that_keeps_rows_is_the_batch_query(seed: int) -> None:
    lives(Rows, seed)


@pytest.mark.parametrize("seed", range(SLICES))
@pytest.mark.sweep(1)
def test_p2_a_table_that_keeps_groups_is_the_batch_query(seed: int) -> None:
    lives(Groups, seed)
