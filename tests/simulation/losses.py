"""A world that loses an object: one of a log, of its mirror's log, or a lease.

Each use of the table that was possible before the loss either has the same result as without it, or
is refused by an error that names the object. A use is made by a process that remembers nothing, and
by one that remembers a version of the table.
"""

from __future__ import annotations

import logging
import random
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.delta.follow import default_mirror, status_of_mirror
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.errors import DataLossError, OptionError, UpsertFlowError
from spark_upsert.metadata import summary
from spark_upsert.routed.group import FOLDER as GROUP
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import table_below
from spark_upsert.table.log import storage
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.log.reader import LOGS
from spark_upsert.table.table import Table
from tests.simulation.wire import Wire, batch_of
from tests.simulation.world import CHECKPOINT_EVERY, World, simulate
from tests.support.clocked import ClockedStore
from tests.support.mirrored import canonical
from tests.support.routed_worlds import World as RoutedWorld
from tests.support.routed_worlds import content, rows_of, transaction, write
from tests.support.stores import FaultyStore, MemoryStore, Steps
from tests.support.streams import Query, stream_of

PER_WORLD = 6
"""Objects that one world loses, each apart."""

LOSABLE = re.compile(r"(?:.*/)?(?:_log|_manifest|_delta_log|_consumers)/[^/]+")
"""Objects that may be lost."""

_COMMIT = re.compile(r"_log/(\d{20})\.json")
_MIRROR = re.compile(r"_delta/_delta_log/\d{20}\.json")


class WrongResultError(AssertionError):
    """A use went on after a loss, with another result."""


def without(store: MemoryStore, lost: str | None) -> Any:
    """Return a copy of a store that lacks an object."""
    found = ClockedStore(store.now) if isinstance(store, ClockedStore) else MemoryStore()
    found.objects = {path: data for path, data in store.objects.items() if path != lost}
    if isinstance(store, ClockedStore):
        assert isinstance(found, ClockedStore)
        found.times = dict(store.times)
    return found


def is_named(error: UpsertFlowError, lost: str) -> bool:
    """Return whether an error names an object."""
    return lost in error.message


@dataclass
class Losses:
    """The uses of the table of a world, and their results without a loss."""

    world: World
    dice: random.Random
    results: dict[tuple[str, int | None], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = self.opened(without(self.world.store, None), None)
        self.head = table.log.head()
        self.manifests = {v: table.log.at(v) for v in range(self.head.since, self.head.upper)}
        self.version = self.dice.choice(list(self.manifests))
        """A version that some uses read."""
        self.time_ms = self.head.time_ms(self.version, self.manifests[self.version].timestamp_ms)
        self.lost = ""
        """The object that is lost at present."""
        self.batch = batch_of(self.world.draw_script(1)[0], self.world.columns)

    @cached_property
    def losable(self) -> list[str]:
        """The objects that may be lost; the newest version is looked at apart."""
        newest = _path(self.head.version)
        paths = sorted(self.world.store.objects)
        return [path for path in paths if LOSABLE.fullmatch(path) and path != newest]

    @cached_property
    def newest_of_mirror(self) -> str:
        """The newest commit of the mirror: without it the mirror is older than its table."""
        return max(filter(_MIRROR.fullmatch, self.world.store.objects), default="")

    def opened(self, store: ClockedStore, remembered: int | None) -> Table:
        """Return the table for a process that remembers a version, or none."""
        if remembered is None:
            return Table(store, clock=self.world.now)
        process = FaultyStore(store, Steps(), process=object())
        LOGS.keep(process, self.manifests[remembered])
        return Table(process, clock=self.world.now)

    # -- uses ----------------------------------------------------------------------------

    @property
    def uses(self) -> dict[str, Callable[[Table], Any]]:
        """What may be done with the table; each returns what is to be the same."""
        uses: dict[str, Callable[[Table], Any]] = {
            "rows": lambda table: canonical(table.snapshot()),
            "past": lambda table: canonical(table.snapshot(self.version)),
            "changes": lambda table: canonical(table.changes(self.version, self.head.version)),
            "time": lambda table: table.log.version_at(self.time_ms),
            "stream": self._stream,
            "append": self._append,
            "alter": lambda table: self._rows_after(
                table, table.alter(table.schema, {"maxBacklogEpochs": "1000"})
            ),
            "compact": lambda table: self._rows_after(table, table.compact(full=True)),
            "expire": self._expire,
            "hold": lambda table: table.hold("reader", self.version),
            "check": self._check,
            "info": self._info,
        }
        if self.world.is_published:
            uses["publish"] = self._publish
        if self.world.is_indexed:
            column = self.world.columns[0]
            uses["index"] = lambda table: canonical(table.rows_having(column, [0, 1, 2, 3]))
        return uses

    def _remember_commit(self, mirror: Mirror) -> None:
        """Let a publisher remember a commit of the mirror, mostly the one before the lost one."""
        place, before = mirror.target, without(self.world.store, None)
        upper = self.lost if _MIRROR.fullmatch(self.lost) else self.newest_of_mirror
        for path in list(before.objects):
            if path.startswith("_delta/_delta_log/0") and path >= upper[:-4]:
                del before.objects[path]
        mirror.use_store(mirror.log, mirror.table, open_mirror_store(before, None))
        mirror.state()
        mirror.use_store(mirror.log, mirror.table, place)

    def _rows_after(self, table: Table, _: object) -> list[str]:
        return canonical(self.opened(_store_of(table), None).snapshot())

    def _stream(self, table: Table) -> list[str]:
        query = Query(lambda: stream_of(table, startingVersion=self.version))
        query.drain()
        return sorted(repr(row) for batch in query.batches for row in batch)

    def _append(self, table: Table) -> list[str]:
        envelope = Wire(table.log.head().schema, self.world.columns)
        rows = pa.Table.from_batches([self.batch])
        table.upsert(rows, envelope=envelope, late_rows=LateRows.REJECT)
        return self._rows_after(table, None)

    def _expire(self, table: Table) -> list[str]:
        for _ in range(2):
            table.expire(retain_versions=1, safety_ms=0)
            table.vacuum(grace_ms=0)
        return self._rows_after(table, None)

    def _check(self, table: Table) -> list[str]:
        findings = [*table.check().findings]
        if self.world.is_published:
            findings += check_mirror(default_mirror(table))
        return [f"{each.place} {each.expected} {each.found}" for each in findings]

    def _info(self, table: Table) -> Any:
        found, mirror = summary(table), status_of_mirror(table)
        return found.version, found.live_rows, found.epochs, mirror and (mirror.shown, mirror.rows)

    def _publish(self, table: Table) -> tuple[int, list[str], list[str]]:
        mirror = default_mirror(table)
        if isinstance(table.store, FaultyStore):
            self._remember_commit(mirror)
        shown = mirror.publish().shown
        findings = check_mirror(default_mirror(self.opened(_store_of(table), None)))
        return shown, list(map(str, findings)), self._rows_after(table, None)

    # -- results -------------------------------------------------------------------------

    def expected(self, use: str, remembered: int | None) -> Any:
        """Return the result of a use without a loss; an error is a result."""
        key = use, remembered
        if key not in self.results:
            table = self.opened(without(self.world.store, None), remembered)
            try:
                self.results[key] = self.uses[use](table)
            except UpsertFlowError as error:
                self.results[key] = error.code
        return self.results[key]

    def lose(self, lost: str) -> Iterator[tuple[str, str]]:
        """Try all uses after a loss; yield each with its outcome.

        Raises
        ------
        WrongResultError
            A use went on with another result, or is refused without the name of the object.
        """
        self.lost = lost
        remembered = self.dice.choice([None, *self.manifests])
        for use in self.uses:
            for memory in {None, remembered}:
                yield use, self._outcome(use, lost, memory)

    def _outcome(self, use: str, lost: str, memory: int | None) -> str:
        store = without(self.world.store, lost)
        expected = self.expected(use, memory)
        try:
            found = self.uses[use](self.opened(store, memory))
        except UpsertFlowError as error:
            if error.code == expected:
                return "refused as before"
            if is_named(error, lost) or self._is_lease_gone(error, lost):
                return "named"
            is_newer = isinstance(error, (DataLossError, OptionError))
            if memory is not None and is_newer and self._is_near(memory, lost):
                return "not seen yet"
            raise WrongResultError(f"{use} after {lost}: {error}") from error
        if found == expected:
            assert use != "check" or not self._must_be_found(lost), f"{lost} is no finding"
            return "the same"
        findings = found if use == "check" else found[1] if use == "publish" else ()
        if any(lost in each for each in findings):
            return "named"  # A publisher that has nothing to publish does not read on.
        if (
            memory is not None
            and self._is_near(memory, lost)
            and self._is_stale(use, found, memory)
        ):
            return "not seen yet"
        if use == "info" and lost == self.newest_of_mirror:
            return "behind"
        raise WrongResultError(f"{use} after {lost} by one that remembers {memory}: {found}")

    def _is_near(self, memory: int, lost: str) -> bool:
        """Return whether a version is so near to a remembered one that looks at rest find it."""
        return lost in (_path(memory + 1), _path(memory + 2))

    def _is_stale(self, use: str, found: Any, memory: int) -> bool:
        """Return whether a reader has the rows of a version right before the lost one."""
        if use not in ("rows", "info"):
            return use in ("past", "changes", "time", "stream", "hold", "index")
        if use == "info":
            return found[0] in (memory, memory + 1)
        table = self.opened(without(self.world.store, None), None)
        return found in [canonical(table.snapshot(each)) for each in (memory, memory + 1)]

    def _is_lease_gone(self, error: UpsertFlowError, lost: str) -> bool:
        return "_consumers/" in lost and isinstance(error, DataLossError)

    def _must_be_found(self, lost: str) -> bool:
        """Return whether a check must name an object: a commit of a readable version."""
        version = _COMMIT.fullmatch(lost)
        return version is not None and self.head.since <= int(version[1]) < self.head.version


def _path(version: int) -> str:
    return f"_log/{version:020d}.json"


def _store_of(table: Table) -> ClockedStore:
    store = table.store
    found = store._store if isinstance(store, FaultyStore) else store
    assert isinstance(found, ClockedStore)
    return found


Outcome = tuple[str, str, str]
"""The lost object, a use, and the result of it."""


def lose_objects(seed: int, count: int = PER_WORLD) -> list[Outcome]:
    """Live a world; at its end lose some objects, each apart, and return the outcomes."""
    outcomes: list[Outcome] = []

    def lose_at_the_end(world: World) -> None:
        look, dice = world.observer.look_at_the_end, random.Random(f"losses of {seed}")

        def look_and_lose(table: Any) -> None:
            look(table)
            losses = Losses(world, dice)
            for lost in dice.sample(losses.losable, min(count, len(losses.losable))):
                outcomes.extend((lost, *each) for each in losses.lose(lost))

        world.observer.look_at_the_end = look_and_lose  # type: ignore[method-assign]

    try:
        simulate(seed, change=lose_at_the_end)
    except Exception as error:
        error.add_note(
            f"replay with: python -m tests.simulation --losses {PER_WORLD} --first {seed}"
        )
        raise
    return outcomes


# -- many tables -----------------------------------------------------------------------------

BATCHES = 3


class RoutedLosses:
    """The uses of the tables of a routed write, and their results without a loss."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)
        self.world = RoutedWorld(seed)
        self.world.play(batches=BATCHES)
        self.rows = rows_of(self.world.rng)
        self.tables = sorted(self.world.model.tables)
        self.uses: dict[str, Callable[[MemoryStore], Any]] = {
            "rows": lambda root: [content(table_below(root, each)) for each in self.tables],
            "next batch": self._write,
            "group": self._group,
            "past": lambda root: [self._members(root, number) for number in range(BATCHES)],
            "check": self._check,
        }
        self.expected = {use: call(self.whole()) for use, call in self.uses.items()}

    def whole(self, lost: str | None = None) -> MemoryStore:
        """Return a copy of the root that lacks an object."""
        found: MemoryStore = without(self.world.store, lost)
        return found

    @property
    def losable(self) -> list[str]:
        """The objects that may be lost, but for the newest version of each table."""
        paths = sorted(path for path in self.world.store.objects if LOSABLE.fullmatch(path))
        newest = {path.rpartition("/")[0]: path for path in paths if _COMMIT.search(path)}
        return [path for path in paths if path not in newest.values()]

    def _write(self, root: MemoryStore) -> list[Any]:
        write(root, self.world.options, [self.rows], transaction(BATCHES))
        return [content(table_below(root, each)) for each in self.tables]

    def _group(self, root: MemoryStore) -> Any:
        group = GroupTable(root).at()
        return group.batch, {name: each.place for name, each in group.members.items()}

    def _members(self, root: MemoryStore, number: int) -> list[str]:
        return sorted(GroupTable(root).of_batch(number).members)

    def _check(self, root: MemoryStore) -> list[str]:
        tables = [table_below(root, each) for each in (*self.tables, GROUP)]
        return [f"{each.place} {each.found}" for table in tables for each in table.check().findings]

    def lose(self, lost: str) -> Iterator[Outcome]:
        """Try all uses after a loss; yield each with its outcome."""
        for use, call in self.uses.items():
            try:
                found = call(self.whole(lost))
            except UpsertFlowError as error:
                if not is_named(error, lost):
                    raise WrongResultError(f"{use} after {lost}: {error}") from error
                yield lost, use, "named"
                continue
            if found != self.expected[use]:
                raise WrongResultError(f"{use} after {lost}: {found}")
            yield lost, use, "the same"


def lose_objects_of_many(seed: int, count: int = PER_WORLD) -> list[Outcome]:
    """Lose some objects below the root of a routed write, each apart."""
    with patch.object(storage, "CHECKPOINT_EVERY", CHECKPOINT_EVERY):
        losses = RoutedLosses(seed)
        chosen = random.Random(seed).sample(losses.losable, min(count, len(losses.losable)))
        return [outcome for lost in chosen for outcome in losses.lose(lost)]


def finding_after_losses(seed: int) -> tuple[int, str | None]:
    """Lose objects of one world of each type.

    Returns
    -------
    tuple of int and str or None
        The number of lost objects, and the error if there was one.
    """
    logging.disable(logging.WARNING)
    try:
        outcomes = [*lose_objects(seed), *lose_objects_of_many(seed, 2)]
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return 0, traceback.format_exc()
    return len({lost for lost, _, _ in outcomes}), None
