"""A small world: writers, a compactor and an expirer on one table, on a store that fails.

Every choice comes from one seeded random source: who acts next, which rows are written, which
I/O step fails, before or after its effect, with an error or with the death of the process.
Time is a number that the same source advances. A process that dies forgets everything, comes
again and repeats what the log does not show as done, as Spark would.

After every act an observer without faults looks at the table. It knows the commands of each
transaction and checks, for each new version:

- P1 every transaction that a writer was told is committed is in the log, exactly once;
- P2 the changes of the version, folded onto the table before, give the table after it;
- P3 what is visible is the whole of some transactions, and nothing else;
- P4 the table holds the greatest command of each key, whatever the order of commits;
- P5 the counters are balanced, and say what the changelog shows;
- P6 in the end every writer gets through without help.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_upsert.errors import UpsertFlowError
from spark_upsert.schema import TableSchema
from spark_upsert.state.compaction import merge
from spark_upsert.state.manifest import Commit, Kind, Transaction
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.table import Table
from spark_upsert.upsert.commands import UpsertEnvelope
from spark_upsert.upsert.counters import Counters
from spark_upsert.upsert.epoch import Epoch, stage
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
)

COLUMNS = pa.schema({"key": pa.int64(), "value": pa.int64(), "seq": pa.int64()})
KEYS = 5
BATCHES_MAX = 5
ACTS_MAX = 2000
"""A world that has not come to rest by then is stuck."""

Command = tuple[int, int | None, int]
"""Key, value (None deletes) and order, which is unique in a world."""


class Dice(Steps):
    """Strikes at random steps, as often as the world's weather says."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def step(self, name: str):  # type: ignore[no-untyped-def]
        """Run the body as one step that may fail."""
        self._fault = self._world.draw_fault(len(self.names))
        return super().step(name)


@dataclass
class World:
    """One life of a table."""

    seed: int
    trace: list[str] = field(default_factory=list)
    """What happened, in order: the same for the same seed."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now_s = 1_000_000.0
        self.fault_rate = self.random.choice([0.0, 0.002, 0.01, 0.02])
        self.store = MemoryStore()
        self.commands: dict[Transaction, list[list[Command]]] = {}
        self.told: set[Transaction] = set()
        self._orders = iter(self.random.sample(range(10_000), 10_000))
        self._observed = Observer(self)

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def draw_fault(self, step: int):  # type: ignore[no-untyped-def]
        """Return the fault of an I/O step, usually none."""
        if self.random.random() >= self.fault_rate:
            return None
        moment = self.random.choice(list(Moment))
        kind = self.random.choice([KilledError, BrokenError])
        self.trace.append(f"fault {kind.__name__} {moment.name}")
        return Fault(step, moment, kind)

    def open(self) -> Table:
        """Return the table as a fresh process sees it."""
        return Table(FaultyStore(self.store, Dice(self)), clock=self.clock)

    def run(self) -> None:
        """Live until all writers are through, then check the end."""
        self._create()
        writers = [Writer(self, f"w{i}") for i in range(self.random.randint(1, 3))]
        actors: list[Actor] = [*writers, Compactor(self), Compactor(self)]
        for _ in range(ACTS_MAX):
            if all(writer.is_done for writer in writers):
                break
            self.now_s += self.random.random()
            self.random.choice(actors).act()
            self._observed.look()
        assert all(writer.is_done for writer in writers), "P6: a writer is stuck"
        self.fault_rate = 0.0
        self.open().compact(full=True)
        self._observed.look()
        assert self.told == set(self.commands), "P1: a writer was not told"

    def _create(self) -> None:
        schema = TableSchema.of(
            COLUMNS, keys=["key"], order=[COLUMNS.field("seq")], hash_seed=self.seed
        )
        commit = Commit(version=0, kind=Kind.CREATE, timestamp_ms=0, token="", schema=schema)
        Table(self.store, clock=self.clock).log.create(commit)

    def draw_batch(self) -> list[list[Command]]:
        """Return the commands of one epoch, task by task."""
        return [
            [
                (
                    self.random.randrange(KEYS),
                    None if self.random.random() < 0.3 else self.random.randrange(4),
                    next(self._orders),
                )
                for _ in range(self.random.randrange(4))
            ]
            for _ in range(self.random.randint(1, 3))
        ]


class Actor:
    """A process whose life is a generator: each ``yield`` lets others act."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._life: Iterator[None] | None = None

    def live(self) -> Iterator[None]:
        raise NotImplementedError

    def act(self) -> None:
        """Go on until the next yield; a fault ends this life, and the next act begins a new one."""
        if self._life is None:
            self._life = self.live()
        try:
            next(self._life)
        except StopIteration:
            self._life = None
        except (KilledError, BrokenError, UpsertFlowError) as error:
            self.world.trace.append(f"{self} ended by {type(error).__name__}")
            self._life = None


class Writer(Actor):
    """A query: batch after batch, each repeated under its number until it is committed."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self.name = name
        for number in range(world.random.randint(1, BATCHES_MAX)):
            transaction = Transaction(writer=name, number=number)
            world.commands[transaction] = world.draw_batch()
        self._next = 0

    def __str__(self) -> str:
        return self.name

    @property
    def is_done(self) -> bool:
        return Transaction(writer=self.name, number=self._next) not in self.world.commands

    def live(self) -> Iterator[None]:
        while not self.is_done:
            transaction = Transaction(writer=self.name, number=self._next)
            table = self.world.open()
            base = Snapshot(table.store, table.log.head())
            yield
            staged = []
            for task in self.world.commands[transaction]:
                staged.append(stage(base, [_batch(base, task)]))
                yield
            table.commit(Epoch(base=base, staged=tuple(staged), transaction=transaction))
            self.world.trace.append(f"{self} is told {self._next}")
            self.world.told.add(transaction)
            self._next += 1
            yield


def _batch(base: Snapshot, task: list[Command]) -> pa.RecordBatch:
    envelope = UpsertEnvelope(
        schema=base.manifest.schema,
        sources={name: name for name in COLUMNS.names},
        order=("seq",),
        deletes="deleted",
    )
    columns = [
        pa.array([key for key, _, _ in task], pa.int64()),
        pa.array([value for _, value, _ in task], pa.int64()),
        pa.array([order for _, _, order in task], pa.int64()),
        pa.array([value is None for _, value, _ in task], pa.bool_()),
    ]
    names = [*COLUMNS.names, "deleted"]
    return envelope.commands(pa.RecordBatch.from_arrays(columns, names=names))


class Compactor(Actor):
    """Merges what is due, or everything; what it plans may be overtaken before it commits."""

    def __str__(self) -> str:
        return "compactor"

    def live(self) -> Iterator[None]:
        table = self.world.open()
        head = table.log.head()
        jobs = table.compaction_jobs(full=self.world.random.random() < 0.5)
        yield
        for job in jobs:
            merged = merge(table.store, head, job)
            yield
            count = table.commit_merges([merged])
            self.world.trace.append(f"{self} merged {count}")


class Observer:
    """Looks without faults, and knows what every version must hold."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._version = 0
        self._rows: dict[int, int] = {}
        self._committed: dict[Transaction, int] = {}

    def look(self) -> None:
        """Check all versions since the last look."""
        table = Table(self._world.store, clock=self._world.clock)
        head = table.log.head()
        for version in range(self._version + 1, head.version + 1):
            commit = table.log.commit(version)
            if commit.transaction is not None:
                assert commit.transaction not in self._committed, "P1: a transaction came twice"
                self._committed[commit.transaction] = version
            self._check(table, version, commit)
            self._world.trace.append(f"version {version} {commit.kind.value} {self._rows}")
        self._version = head.version
        missing = self._world.told - self._committed.keys()
        assert not missing, f"P1: told, but not in the log: {missing}"

    def _check(self, table: Table, version: int, commit: Commit) -> None:
        shown = _rows(table.snapshot(version))
        assert shown == self._expected(), f"P3, P4: version {version} shows {shown}"
        changes = table.changes(version, version + 1, emit_unchanged=True).to_pylist()
        counters = Counters.from_json(commit.counters)
        assert counters.is_balanced, f"P5: {counters}"
        assert counters.output_count == len(changes), f"P5: {counters}, {len(changes)} changes"
        assert commit.live_rows == len(shown), f"P5: live rows {commit.live_rows}"
        for row in changes:
            if row["_diff"] < 0:
                assert self._rows.pop(row["key"], None) == row["value"], "P2: retracts no row"
            else:
                assert row["key"] not in self._rows, "P2: inserts a second row"
                self._rows[row["key"]] = row["value"]
        assert self._rows == shown, f"P2: folded {self._rows}, shown {shown}"

    def _expected(self) -> dict[int, int]:
        best: dict[int, Command] = {}
        for transaction in self._committed:
            for task in self._world.commands[transaction]:
                for command in task:
                    if command[2] > best.get(command[0], (0, 0, -1))[2]:
                        best[command[0]] = command
        return {key: value for key, value, _ in best.values() if value is not None}


def _rows(table: pa.Table) -> dict[int, int]:
    rows = table.to_pylist()
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is shown twice"
    return found


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
