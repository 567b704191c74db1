"""A small world: writers, sources, compactors and cleaners on one table, on a store that fails.

Every choice comes from one seeded random source: what kind of table it is, who acts next,
which rows are written, which I/O step fails, before or after its effect, with an error or with
the death of the process. Time is a number that the same source advances, by seconds or by
days. A process that dies forgets everything, comes again and repeats what the log does not
show as done; after an error it may also try again with what it holds. A put without an answer may
take effect later.

After every act an observer without faults looks at the table (`observer`).
"""

from __future__ import annotations

import itertools
import logging
import random
import secrets
import traceback
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema, Ties
from spark_upsert.table.compaction import CompactionResult, choose
from spark_upsert.table.log import slices, storage
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Transaction
from spark_upsert.table.log.properties import INDEX_BY, PROPERTY, PUBLISH, PUBLISH_FEED
from spark_upsert.table.state.fold import as_collected
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import Admission
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.observer import Observer
from tests.simulation.wire import PREFIX
from tests.simulation.writer_lives import ORDER, Proposal
from tests.support.clocked import ClockedStore, Now
from tests.support.histories import Conditions, tiny_pieces, under
from tests.support.reference import NO_ORDER, Command, Reference
from tests.support.stores import BrokenError, Fault, FaultyStore, KilledError, Moment, Steps

KEYS = 5
ORDERS = 10_000
"""More order keys than a world comes to use."""

ACTS_MAX = 5000
"""A world that has not come to rest by then is stuck."""

CHECKPOINT_EVERY = 4
LEAF_SLICES = slices.LEAF_SLICES
FOREVER = "forever"
RETENTIONS = ("0 epochs", "0 epochs", "1 epoch", "2 epochs", "3 seconds", "7 days", FOREVER)

COLUMNS: dict[Engine, tuple[str, ...]] = {
    Engine.DEDUPLICATE: ("value", "seq"),
    Engine.FIRST_ROW: ("value", "seq"),
    Engine.PARTIAL_UPDATE: ("one", "two"),
    Engine.AGGREGATION: ("total", "top", "low", "last", "every"),
}
"""The value columns. With ``seq`` a row shows which command it comes from."""

RULES = {"total": Rule.SUM, "top": Rule.MAX, "low": Rule.MIN, "every": Rule.COLLECT}

Script = list[list[Command]]
"""The commands of one epoch, task by task."""


class Dice(Steps):
    """Strikes at random steps, as often as the world's weather says."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def step(self, name: str):  # type: ignore[no-untyped-def]
        """Run the body as one step that may fail."""
        self._fault = self._world.draw_fault(len(self.names))
        return super().step(name)


class Network(FaultyStore):
    """The way to the store: a put that was given up may be under way, and take effect later."""

    def __init__(self, world: World, process: Hashable | None) -> None:
        super().__init__(world.store, Dice(world), process=process)
        self._world = world
        self.proposal: Proposal | None = None
        """By what the epoch was planned that is committed just now."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.proposal is not None:
            self._world.proposals[path, data] = self.proposal
        try:
            return super().put_if_absent(path, data)
        except (BrokenError, KilledError):
            self._world.lose_sight_of(path, data)
            raise


class WatchedTable(Table):
    """A table of which the world knows on what its epochs were planned, and how long it merges."""

    def __init__(self, network: Network, world: World) -> None:
        super().__init__(network, clock=world.now, sleep=world.now.advance)
        self._world = world
        self._network = network
        self.merges_left: int | None = None
        """How many more merges there may be; None: any number."""

    def commit(self, epoch: WriteSet, *, admission: Admission | None = None) -> Commit | None:
        (transaction,) = epoch.transactions
        script = self._world.scripts.get(replace(transaction, is_consecutive=False), [])
        proposal = Proposal(epoch.base.manifest.version, epoch.late_rows, script)
        self._network.proposal = proposal
        try:
            return super().commit(epoch, admission=admission)
        finally:
            self._network.proposal = None

    def commit_compactions(self, merges: Iterable[CompactionResult]) -> int:
        planned = list(merges)
        if self.merges_left is not None:
            self.merges_left -= len(planned)
            assert self.merges_left >= 0, "P7: a compaction does not end"
        return super().commit_compactions(planned)


@dataclass
class World:
    """One life of a table."""

    seed: int
    trace: list[str] = field(default_factory=list)
    """What happened, in order: the same for the same seed."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.dice = random.Random(f"refusals of {self.seed}")
        """Draws who refuses what, and how slow commits are: the rest of a world does not depend on
        what it draws."""
        self.lives = random.Random(f"lives of writers of {self.seed}")
        """Draws what writers change when they start again."""
        self._life_count = 0
        self.unordered = random.Random(f"rows without an order of {self.seed}")
        """Draws which rows have neither a key that can be read nor an order."""
        self._processes = random.Random(f"processes of {self.seed}")
        self._weather = random.Random(f"weather of {self.seed}")
        self._under_way: list[tuple[str, bytes]] = []
        self.now = Now(1_000_000_000.0)
        self.fault_rate = self.random.choice([0.0, 0.002, 0.01, 0.02])
        self.store = ClockedStore(self.now)
        self.scripts: dict[Transaction, Script] = {}
        self.overwrites: set[Transaction] = set()
        self.applied_late: set[Transaction] = set()
        """Those whose late rows are applied, not rejected."""
        self.refused_late: set[Transaction] = set()
        """Those that fail if a row is late."""
        self._fresh_orders = itertools.count(2 * ORDERS)
        self.proposals: dict[tuple[str, bytes], Proposal] = {}
        """By what each object was planned that was put while an epoch was committed."""
        self.told: set[Transaction] = set()
        self.is_forgetful = self.random.random() < 0.4
        """Whether deletes are many, soon forgotten, and late rows come behind them."""
        self.schema = self._draw_schema()
        self.retention = self.random.choice(RETENTIONS[:4] if self.is_forgetful else RETENTIONS)
        spread = self.random.choice([6, 30] if self.is_forgetful else [0, 6, 30, 10_000])
        self.has_ties = self.schema.scope is not Scope.ARRIVAL and self.random.random() < 0.25
        """Whether commands of a key may have equal order keys."""
        chooses = self.schema.engine.kind in (Engine.DEDUPLICATE, Engine.FIRST_ROW)
        self.ties_stay_in_tasks = not (chooses and self.schema.on_error is ErrorPolicy.FAIL)
        """Whether they are never in two tasks: what decides between those is not written down."""
        is_plain = chooses and self.schema.engine.kind is Engine.DEDUPLICATE
        if self.has_ties and is_plain and self.dice.random() < 0.4:
            self.schema = replace(self.schema, ties=Ties.FAIL)
        self.may_fail_ties = (
            self.has_ties
            and is_plain
            and self.schema.ties is not Ties.FIRST
            and self.lives.random() < 0.5
        )
        """Whether a writer may say that ties are errors, or are none."""
        self.may_gain_quarantine = (
            is_plain
            and self.schema.on_error is ErrorPolicy.FAIL
            and self.schema.scope is not Scope.ARRIVAL
            and not self.has_ties
            and self.lives.random() < 0.5
        )
        """Whether a writer may say that the table keeps errors from here on."""
        drawn = self.random.random
        places = np.arange(ORDERS) + np.array([drawn() for _ in range(ORDERS)]) * spread
        late = np.argsort(places, kind="stable")
        of_one = (3 if self.ties_stay_in_tasks else 8) if self.has_ties else 1
        self._orders = iter((late // of_one).tolist())
        self._delete_rate = 0.6 if self.is_forgetful else self.random.choice([0.2, 0.4])
        self.observer = Observer(self)
        self.trace.append(f"{self} keeps deletes for {self.retention}")

    def __str__(self) -> str:
        schema = self.schema
        return f"{schema.scope.value}, {schema.engine.kind.value}, {schema.on_error.value}"

    def _draw_schema(self) -> TableSchema:
        engines = [Engine.DEDUPLICATE, *Engine]
        if self.is_forgetful:
            engines = [Engine.DEDUPLICATE, Engine.DEDUPLICATE, Engine.PARTIAL_UPDATE]
        # Drawn apart, so that a world is what it is with a prefix or without.
        apart = random.Random(f"prefix of {self.seed}")
        self.has_prefix = apart.random() < 0.3
        self.is_indexed = apart.random() < 0.15
        engine = MergeEngine(self.random.choice(engines))
        if engine.kind is Engine.AGGREGATION:
            engine = MergeEngine(engine.kind, RULES)
        scopes = [Scope.TABLE, Scope.TABLE, Scope.EPOCH, Scope.ARRIVAL]
        policies = [ErrorPolicy.FAIL]
        if engine.folds:
            scopes.remove(Scope.EPOCH)
        if engine.kind is Engine.DEDUPLICATE:
            policies += [ErrorPolicy.INLINE, ErrorPolicy.QUARANTINE, ErrorPolicy.QUARANTINE]
        keys = [PREFIX, "key"] if self.has_prefix else ["key"]
        fields = [
            *((name, pa.int32()) for name in keys),
            *((name, pa.int32()) for name in COLUMNS[engine.kind]),
        ]
        scope = Scope.TABLE if self.is_forgetful else self.random.choice(scopes)
        return TableSchema.of(
            as_collected(pa.schema(fields), engine),
            keys=keys,
            hash_prefix=len(keys) - 1,
            order=[] if scope is Scope.ARRIVAL else [pa.field(ORDER, pa.int64())],
            scope=scope,
            engine=engine,
            on_error=self.random.choice(policies),
            hash_seed=self.seed,
            ties=Ties.FIRST if self.random.random() < 0.3 else None,
        )

    def may_be_dealt_anew(self, script: Script) -> bool:
        """Return whether it means nothing to which task of an epoch a row comes."""
        is_ordered = all(each.order != NO_ORDER for task in script for each in task)
        return is_ordered and self.schema.scope is not Scope.ARRIVAL and not self.has_ties

    @property
    def columns(self) -> tuple[str, ...]:
        """The value columns that the commands fill."""
        return COLUMNS[self.schema.engine.kind]

    def reference(self) -> Reference:
        """Return what an empty table of this kind must hold."""
        schema = self.schema
        return Reference(schema.scope, schema.engine, schema.on_error, schema.ties, self.columns)

    def draw_fault(self, step: int):  # type: ignore[no-untyped-def]
        """Return the fault of an I/O step, usually none."""
        if self.random.random() >= self.fault_rate:
            return None
        moment = self.random.choice(list(Moment))
        kind = self.random.choice([KilledError, BrokenError])
        self.trace.append(f"fault {kind.__name__} {moment.name}")
        return Fault(step, moment, kind)

    def dice_of_faults(self) -> Dice:
        """Return what makes the I/O steps of another store fail."""
        return Dice(self)

    def open(self) -> WatchedTable:
        """Return the table as it is opened by a fresh process, or by one that has seen it."""
        process = self._processes.choice([None, None, "one", "another"])
        return WatchedTable(Network(self, process), self)

    def lose_sight_of(self, path: str, data: bytes) -> None:
        """Note a put without an answer, which may be under way."""
        if self._weather.random() < 0.5:
            self._under_way.append((path, data))

    def land_puts(self) -> None:
        """Let some of the puts that are under way take effect."""
        for put in list(self._under_way):
            if self._weather.random() < 0.2:
                self._under_way.remove(put)
                if self.store.put_if_absent(*put):
                    self.trace.append(f"late {put[0]}")

    # -- what is written -------------------------------------------------------------

    def draw_script(self, tasks: int) -> Script:
        """Return the commands of one epoch."""
        script: Script = [[] for _ in range(tasks)]
        for _ in range(self.random.choice([1, 2, 3, 5, 8])):
            command = self._draw_command()
            # Without order keys, two tasks must not have different values of a key.
            place = command.key if isinstance(command.key, int) else 0
            is_tied = self.has_ties and self.ties_stay_in_tasks
            is_apart = self.schema.scope is Scope.ARRIVAL or is_tied or command.order == NO_ORDER
            script[place % tasks if is_apart else self.random.randrange(tasks)].append(command)
        return script

    def mended(self, script: Script) -> Script:
        """Return a script with the same rows, each of an order key of its own, the latest."""
        return [[self._reordered(each) for each in task] for task in script]

    def _reordered(self, command: Command) -> Command:
        order = next(self._fresh_orders)
        values = command.values
        if values is not None and "seq" in self.columns:
            values = (values[0], order)
        return command._replace(order=order, values=values)

    def with_errors(self, script: Script) -> Script:
        """Return a script of which some rows cannot be applied."""
        return [[self._spoilt(each) for each in task] for task in script]

    def _spoilt(self, command: Command) -> Command:
        draw = self.lives
        if command.values is not None and draw.random() < 0.25:
            return command._replace(error=f"the value {command.order} is undecodable")
        if draw.random() < 0.2:
            return command._replace(key=draw.choice([None, b"?", b"!"]))
        return command

    def _draw_command(self) -> Command:
        order = next(self._orders)
        engine = self.schema.engine
        key: int | bytes | None = self.random.randrange(KEYS)
        error = None
        if self.schema.on_error is not ErrorPolicy.FAIL and self.random.random() < 0.25:
            error = f"the value {order} is undecodable"
        if self.schema.has_quarantine and self.random.random() < 0.2:
            key = self.random.choice([None, b"?", b"!"])
            if self.schema.order and self.unordered.random() < 0.3:
                order = NO_ORDER
        # None with a key and without an order: that they stand where they arrived is told by
        # another model (`tests/laws/test_newest_words.py`).
        if engine.takes_deletes and self.random.random() < self._delete_rate:
            return Command(key, None, order)
        if "seq" in self.columns:
            return Command(key, (self.random.randrange(4), order), order, error)
        drawn = (self.random.choice([None, 0, 1, 2, 3]) for _ in self.columns)
        return Command(key, tuple(drawn), order)

    # -- living ----------------------------------------------------------------------

    @contextmanager
    def conditions(self) -> Iterator[None]:
        """Let time, names, hashes and sizes be what the world says."""
        names = random.Random(self.seed)
        conditions = Conditions(
            hash_values=self.random.choice([None, None, None, 1, 2, 3]),
            are_pieces_tiny=self.random.random() < 0.15,
        )
        self._fanout = {
            "forget_before": 0,
            "fanout": self.random.choice([2, 3, 8]),
            "bytes_max": None,
        }
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))))
            enter(patch.object(secrets, "randbits", names.getrandbits))
            enter(patch.object(storage, "CHECKPOINT_EVERY", CHECKPOINT_EVERY))
            enter(patch.object(slices, "LEAF_SLICES", self._leaf_slices))
            enter(patch.object(choose, "__kwdefaults__", self._fanout))
            enter(under(conditions))
            self._sizes = enter(ExitStack())
            yield

    @property
    def _leaf_slices(self) -> int:
        """The size of leaves for this process: another release may have another one."""
        return (LEAF_SLICES, 2, 5)[(self.seed + self._life_count // 2) % 3]

    def change_sizes(self) -> None:
        """Let a life begin with other sizes of runs and stashes, which must not matter."""
        self._fanout["fanout"] = self.lives.choice([2, 3, 8])
        self._life_count += 1
        slices.LEAF_SLICES = self._leaf_slices
        self._sizes.pop_all().close()
        if self.lives.random() < 0.15:
            self._sizes.enter_context(tiny_pieces())

    def run(self) -> None:
        """Live until all writers are through, then check the end."""
        with self.conditions():
            people = cast_of(self)
            if not any(isinstance(actor, StagingWriter) for actor in people):
                self.create()
            elif self.random.random() < 0.8:
                self.create()  # Else the first epoch makes the table.
            for _ in range(ACTS_MAX):
                waiting = [actor for actor in people if not actor.is_done]
                if not waiting:
                    break
                self.now.advance(self.random.random())
                self.random.choice(waiting if self.random.random() < 0.5 else people).act()
                self.land_puts()
                self.observer.look()
            assert all(actor.is_done for actor in people), "P6: a writer is stuck"
            self.fault_rate = 0.0
            self.observer.look_at_the_end(self.open())
            for actor in people:
                actor.finish()
            due = {t for t, script in self.scripts.items() if any(script)}
            assert due <= self.told, "P1: a writer was not told"

    @property
    def properties(self) -> dict[str, str]:
        """The properties with which the table is made."""
        index_by = {INDEX_BY: self.columns[0]} if self.is_indexed else {}
        publish = {PUBLISH: "delta", PUBLISH_FEED: "true"} if self.is_published else {}
        ages = row_ttl(random.Random(f"ages of {self.seed}")) if has_ages(self) else {}
        return {PROPERTY: self.retention, **index_by, **publish, **ages}

    @property
    def is_published(self) -> bool:
        """Whether each commit of the table is published as a Delta table."""
        return self.seed % 4 == 1

    def create(self) -> None:
        draft = Draft(kind=Kind.CREATE, schema=self.schema, properties=self.properties)
        Table(self.store, clock=self.now).log.create(draft)


def simulate(seed: int, *, change: Callable[[World], None] | None = None) -> World:
    """Live one world; an error names its seed.

    Parameters
    ----------
    seed : int
    change : callable, optional
        Something done to the world before it begins, for example a planted bug.
    """
    world = World(seed)
    if change is not None:
        change(world)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"replay with: python -m tests.simulation --seed {seed}")
        raise
    return world


def finding(seed: int) -> str | None:
    """Live one world in a process of its own; returns what went wrong, if anything did."""
    logging.disable(logging.WARNING)  # Ties and late rows are what these worlds are made of.
    try:
        simulate(seed)
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return traceback.format_exc()
    return None


from tests.simulation.actors import StagingWriter  # noqa: E402 - actors live in a world
from tests.simulation.ager import has_ages, row_ttl  # noqa: E402
from tests.simulation.cast import cast_of  # noqa: E402
