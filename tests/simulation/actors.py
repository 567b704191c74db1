"""Who lives in a world. A process's life is a generator: each ``yield`` lets others act."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_upsert.core.schema import Scope, Ties
from spark_upsert.errors import DataError, DataLossError, UpsertFlowError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.changelog.read import VALID_NAMES, ValidBy
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.properties import PROPERTY, LateRows, TombstoneRetention
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.observer import Rows
from tests.simulation.wire import Wire, batch_of
from tests.simulation.writer_lives import WriterLife, dealt_anew
from tests.support.clocked import ClockedStore
from tests.support.reference import Command
from tests.support.stores import BrokenError, FaultyStore, KilledError
from tests.support.streams import Query, Row, position_in, stream_of

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

HOUR_S = 3600.0

SLOW = 15
"""Others act so often while a commit is slow: a delete may come, and be forgotten."""

_BATCHES_MAX = 200
"""A query that has not caught up by then never will."""


class Actor(ABC):
    """A process that lives again after its death."""

    is_done = True
    """Whether nothing waits for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._life: Iterator[None] | None = None

    @abstractmethod
    def live(self) -> Iterator[None]:
        """Live one life, a step at a time."""

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
            if isinstance(error, DataError):
                self.mend()

    def mend(self) -> None:
        """Do what an error of its rows asks for."""
        raise AssertionError(f"P5: {self} is refused, and has no rows to be refused for")

    def finish(self) -> None:
        """Do what is left when the world is at rest and nothing fails any more."""
        self._life = None

    def attempt(self, action: Callable[[], T]) -> Generator[None, None, T]:
        """Call something; after an error that the process survives, now and then once more."""
        while True:
            try:
                return action()
            except (BrokenError, UpsertFlowError) as error:
                self.world.trace.append(f"{self} met {type(error).__name__}")
                if isinstance(error, DataError) or self.world.random.random() < 0.3:
                    raise
            yield


class Writer(Actor):
    """A query: batch after batch, each repeated under its number until it is committed."""

    def __init__(self, world: World, name: str, *, tasks: int) -> None:
        super().__init__(world)
        self.name = name
        for number in range(world.random.randint(1, 8 if world.is_forgetful else 4)):
            transaction = self._transaction(number)
            world.scripts[transaction] = world.draw_script(world.random.randint(1, tasks))
            if world.random.random() < 0.08:
                world.overwrites.add(transaction)
            if world.random.random() < (0.3 if world.is_forgetful else 0.05):
                world.applied_late.add(transaction)
            elif world.dice.random() < 0.3:
                world.refused_late.add(transaction)
        self._next = 0
        self._has_errors = False
        """Whether some of its rows cannot be applied, since it has said that these are kept."""

    def __str__(self) -> str:
        return self.name

    def _transaction(self, number: int) -> Transaction:
        return Transaction(writer=self.name, number=number)

    @property
    def is_done(self) -> bool:  # type: ignore[override]
        return self._transaction(self._next) not in self.world.scripts

    def late_rows(self) -> LateRows:
        """Return what becomes of late rows of the next transaction."""
        transaction = self._transaction(self._next)
        if transaction in self.world.refused_late:
            return LateRows.FAIL
        is_applied = transaction in self.world.applied_late
        return LateRows.APPLY if is_applied else LateRows.REJECT

    def mend(self) -> None:
        """Reject late rows, or tell tied ones apart."""
        world, transaction = self.world, self._transaction(self._next)
        script = world.scripts[transaction]
        is_late = transaction in world.refused_late and world.observer.may_be_late(script)
        may_fail = world.schema.ties is Ties.FAIL or world.may_fail_ties
        is_tied = may_fail and world.observer.may_be_tied(script)
        assert is_late or is_tied, f"P5: {self} is refused, and no row of {script} is to blame"
        world.trace.append(f"{self} mends {'late' if is_late else 'tied'} rows")
        world.refused_late.discard(transaction)
        if is_tied:
            world.scripts[transaction] = world.mended(script)

    def _start(self, table: Table) -> Generator[None, None, WriterLife]:
        """Begin a life with other options than those of the last one."""
        world = self.world
        life = WriterLife(world)
        world.change_sizes()
        if table.log.try_head() is None:
            return life
        world.trace.append(f"{self} writes by {life}")
        if world.lives.random() < 0.12:
            yield from self.attempt(lambda: life.try_what_is_refused(table))
        yield from self.attempt(lambda: life.plan(table))
        self._change_what_is_due(life)
        return life

    def _change_what_is_due(self, life: WriterLife) -> None:
        """Let the batch that comes next, planned before or not, follow the options of this life."""
        world, transaction = self.world, self._transaction(self._next)
        script = world.scripts.get(transaction)
        if script is None:
            return
        if world.lives.random() < 0.3:
            world.applied_late.discard(transaction)
            world.refused_late.discard(transaction)
            chosen = world.lives.choice([world.applied_late, world.refused_late, set()])
            chosen.add(transaction)
        if len(script) > 1 and world.may_be_dealt_anew(script) and world.lives.random() < 0.3:
            world.scripts[transaction] = dealt_anew(script, world.lives)
        if life.given.get("onError") == "quarantine" and not self._has_errors:
            self._has_errors = True
            for number in itertools.count(self._next):
                later = self._transaction(number)
                if later not in world.scripts:
                    break
                world.scripts[later] = world.with_errors(world.scripts[later])

    def _is_stopped(self, rate: float) -> bool:
        """Draw whether its user stops it here, to start it again."""
        if self.world.lives.random() >= rate:
            return False
        self.world.trace.append(f"{self} is stopped")
        return True

    def told(self) -> None:
        """Note that the next transaction is known to be committed."""
        self.world.trace.append(f"{self} is told {self._next}")
        self.world.told.add(self._transaction(self._next))
        self._next += 1


class StagingWriter(Writer):
    """Stages task by task on one version, and commits behind whatever has come since."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, tasks=3)

    def live(self) -> Iterator[None]:
        table = self.world.open()
        life = yield from self._start(table)
        while not self.is_done:
            transaction = self._transaction(self._next)
            overwrite = transaction in self.world.overwrites
            base = Snapshot(table.store, self._head_or_unborn(table))
            wire = Wire(base.manifest.schema, self.world.columns)
            yield
            staged = []
            for task in self.world.scripts[transaction]:
                commands = [wire.commands(batch_of(task, self.world.columns))]
                late_rows = self.late_rows()
                staged.append(stage(base, commands, overwrite=overwrite, late_rows=late_rows))
                yield
            slowness = self.world.random.choice([0, 0, 1, 4])
            for _ in range(SLOW if self.world.dice.random() < 0.1 else slowness):
                yield  # The commit is slow, and much may happen meanwhile.
            if self._is_stopped(0.04):
                return
            epoch = WriteSet(
                base=base,
                staged=tuple(staged),
                transactions=(replace(transaction, is_consecutive=True),),
                overwrite=overwrite,
                late_rows=self.late_rows(),
            )

            def commit(epoch: WriteSet = epoch) -> None:
                table.commit(
                    epoch,
                    admission=table.admission(life.full_wait_ms, heeds_pressure=not life.passes_by),
                )

            yield from self.attempt(commit)
            self.told()
            yield
            if self._is_stopped(0.15):
                return

    def _head_or_unborn(self, table: Table) -> Manifest:
        head = table.log.try_head()
        return head or Table.unborn(self.world.schema, self.world.properties)


class Appender(Writer):
    """Calls `Table.upsert` on a handle that it keeps."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, tasks=1)

    def live(self) -> Iterator[None]:
        table = yield from self.attempt(self.world.open)
        life = yield from self._start(table)
        while not self.is_done:
            transaction = self._transaction(self._next)
            [task] = self.world.scripts[transaction]
            rows = pa.Table.from_batches([batch_of(task, self.world.columns)])

            def append(rows: pa.Table = rows, transaction: Transaction = transaction) -> None:
                table.upsert(
                    rows,
                    envelope=Wire(table.log.head().schema, self.world.columns),
                    transaction=transaction,
                    overwrite=transaction in self.world.overwrites,
                    late_rows=self.late_rows(),
                    full_wait_ms=life.full_wait_ms,
                    disable_backpressure=life.passes_by,
                )

            yield from self.attempt(append)
            self.told()
            yield
            if self._is_stopped(0.15):
                return


class Source:
    """What several incarnations of an operator read: commands by timestamp, batch by batch."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.length = world.random.randint(1, 5)
        self.batches = {
            ts: world.draw_script(2)
            for ts in range(self.length)
            if world.random.random() < 0.8 or ts == self.length - 1
        }
        if world.schema.scope is Scope.ARRIVAL:
            self.batches = {ts: [_joined(each)] for ts, each in self.batches.items()}
        for ts, batches in self.batches.items():
            world.scripts[self.transaction(ts)] = [_joined(batches)]

    def transaction(self, ts: int) -> Transaction:
        """Return under what a timestamp stands in the log."""
        return Transaction(writer=f"operator:{self.name}", number=ts)

    def rows(self, ts: int) -> int:
        """Return how many commands a timestamp has."""
        return sum(map(len, self.batches.get(ts, [])))


def _joined(batches: Iterable[list[Command]]) -> list[Command]:
    return [command for batch in batches for command in batch]


class Incarnation(Actor):
    """One incarnation of an operator, which reads its source from the beginning."""

    def __init__(self, world: World, source: Source, number: int) -> None:
        super().__init__(world)
        self.source = source
        self._number = number
        self.is_done = False

    def __str__(self) -> str:
        return f"{self.source.name}.{self._number}"

    def live(self) -> Iterator[None]:
        world, source = self.world, self.source
        table = world.open()
        loop = yield from self.attempt(
            lambda: FeedbackUpsert(
                table, source.name, Wire(table.log.head().schema, world.columns).commands
            )
        )
        with loop:
            yield from self._operate(loop)
        world.trace.append(f"{self} is through")
        self.is_done = True

    def _operate(self, loop: FeedbackUpsert) -> Iterator[None]:
        world, source = self.world, self.source
        ts, taken, committed = 0, 0, 0
        while True:
            frontiers = yield from self.attempt(lambda: loop.frontiers)
            buffered = sum(source.rows(each) for each in frontiers.buffered if each < ts)
            assert taken == committed + frontiers.dropped_rows + buffered, (
                f"P5: {taken} rows taken, {committed} committed, {frontiers}"
            )
            for ts_durable in source.batches:
                if ts_durable < frontiers.persist_upper:
                    world.told.add(source.transaction(ts_durable))
            if frontiers.dropped_rows:
                world.trace.append(f"{self} found durable {frontiers.dropped_rows}")
            if frontiers.persist_upper >= source.length:
                return
            if ts < source.length and (ts == 0 or world.random.random() < 0.6):
                for rows in source.batches.get(ts, []):
                    batch = batch_of(rows, world.columns)
                    yield from self.attempt(
                        lambda batch=batch, ts=ts: loop.ingest(batch, ts)  # type: ignore[misc]
                    )
                    taken += len(rows)
                ts += 1
                loop.advance(ts)
            yield
            commit = yield from self.attempt(loop.step)
            committed += 0 if commit is None else commit.counters["rows"]
            yield


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
            merged = compact_runs(table.store, head, job)
            yield
            count = yield from self.attempt(
                lambda merged=merged: table.commit_compactions([merged])  # type: ignore[misc]
            )
            self.world.trace.append(f"{self} merged {count}")


class Sweeper(Actor):
    """Compacts in one go, on a handle that it keeps for a while."""

    def __str__(self) -> str:
        return "sweeper"

    def live(self) -> Iterator[None]:
        table = self.world.open()
        for _ in range(3):
            full = self.world.random.random() < 0.5
            merges = self.world.observer.compact(table, full=full)
            self.world.trace.append(f"{self} merged {merges}")
            yield


class Alterer(Actor):
    """Widens columns, adds one, and changes for how long deletes are kept."""

    def __str__(self) -> str:
        return "alterer"

    def live(self) -> Iterator[None]:
        table = self.world.open()
        schema = table.log.head().schema
        columns = {field.name: field.type for field in schema.columns}
        properties = None
        match self.world.random.randrange(4):
            case 0:
                columns["note"] = pa.string()
            case 1:
                columns = {n: pa.int64() if t == pa.int32() else t for n, t in columns.items()}
            case 2:
                properties = {PROPERTY: self.world.retention}
            case _:
                is_for_ever = TombstoneRetention.parse(self.world.retention).is_for_ever
                others = [] if is_for_ever else ["0 epochs", "2 epochs"]
                properties = {PROPERTY: self.world.random.choice([self.world.retention, *others])}
        wanted = schema.accept(pa.schema(columns), merge=True).columns
        yield
        table.alter(replace(schema, columns=wanted), properties)


class Cleaner(Actor):
    """Gives up old versions and removes their files."""

    def __str__(self) -> str:
        return "cleaner"

    def live(self) -> Iterator[None]:
        table = self.world.open()
        random = self.world.random
        expiry = yield from self.attempt(
            lambda: table.expire(
                retain_versions=random.randrange(5),
                safety_ms=random.choice([0, 2_000]),
            )
        )
        self.world.trace.append(f"{self} expired to {expiry.since}")
        yield
        yield from self.attempt(lambda: table.vacuum(grace_ms=random.choice([0, 1_000, 60_000])))


class Restorer(Actor):
    """Turns the table back to what it was."""

    def __str__(self) -> str:
        return "restorer"

    def live(self) -> Iterator[None]:
        for _ in range(self.world.random.randrange(5)):
            yield
        table = self.world.open()
        head = table.log.head()
        version = self.world.random.randint(head.since, head.version)
        yield
        table.restore(version)
        self.world.trace.append(f"{self} restored {version}")


class Follower(Actor):
    """A streaming query under a lease, in pieces and whole epochs, that is stopped now and then.

    What its sink has is the table where the query stands, whatever was compacted, expired or
    repeated meanwhile. Where its lease has lapsed and the past is gone it begins anew.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        random = world.random
        self._is_to_catch_up = False
        self._lives = Random(f"lives of {world.seed}")
        """Draws what its user changes when it starts again; nothing else depends on that."""
        self._options: dict[str, Any] = {
            "splits": random.randint(1, 3),
            "consumerId": "follower",
            **({"maxRowsPerTrigger": random.randint(1, 4)} if random.random() < 0.5 else {}),
            **({"maxEpochsPerTrigger": random.randint(1, 3)} if random.random() < 0.5 else {}),
        }
        self._begin()

    def _change_options(self) -> None:
        """Be given other options, as each life may be (`options.declare`)."""
        draw = self._lives
        choices: dict[str, list[Any]] = {
            "splits": [1, 2, 3],
            "parallelism": [None, 1, 4],
            "maxRowsPerTrigger": [None, 1, 3, 100],
            "maxEpochsPerTrigger": [None, None, 1, 2],
            "maxBytesPerTrigger": [None, None, 1, 900],
            "deduplicationMode": [None, "none", "dropCarryovers", "netChanges"],
            "computeUpdates": [None, "true", "false"],
            "startingVersion": [None, None, None, "latest", "0"],
            "consumerTtl": [None, "7 days"],
            "consumerId": ["follower", "follower", "another"],
        }
        if not self._query.batches:
            del choices["startingVersion"]  # What it has to have is the whole table.
        for name, texts in choices.items():
            if draw.random() < 0.4:
                chosen = draw.choice(texts)
                self._options.pop(name, None)
                self._options |= {} if chosen is None else {name: chosen}
        if self._is_to_catch_up:
            for name in ("maxRowsPerTrigger", "maxBytesPerTrigger", "maxEpochsPerTrigger"):
                self._options.pop(name, None)
        self.world.trace.append(f"{self} reads by {self._options}")

    def __str__(self) -> str:
        return "follower"

    def _begin(self) -> None:
        self._query = Query(
            lambda: stream_of(self.world.open(), clock=None, wall=None, **self._options)
        )
        self._rows: Rows = {}

    def live(self) -> Iterator[None]:
        self._query.restart()
        self._change_options()
        while True:
            try:
                if self._query.is_pending or self._query.plan():
                    yield
                    self._take(self._query.deliver())
                    if self.world.random.random() < 0.3:
                        self._repeat()
            except DataLossError:
                self._require_no_lease()
                self.world.trace.append(f"{self} begins anew")
                self._options.pop("startingVersion", None)
                self._begin()
            yield

    def finish(self) -> None:
        """Catch up with the table, once there are no faults any more."""
        self._is_to_catch_up = True
        life = self.live()
        for _ in range(_BATCHES_MAX):
            next(life)
            if self._query.batches and not self._query.is_pending:
                reached = position_in(self._query.noted[-1]).upper
                if reached == self.world.observer.upper:
                    return
        raise AssertionError(f"P6: {self} does not catch up")

    def _take(self, batch: list[Row]) -> None:
        observer = self.world.observer
        self._rows = observer.fold(self._rows, batch)
        at = position_in(self._query.noted[-1])
        self.world.trace.append(f"{self} has {len(self._rows)} rows at {at.version}")
        if at.is_in_snapshot:
            whole = observer.rows[at.origin]
            assert self._rows.items() <= whole.items(), f"P2: {self._rows} is no part of {whole}"
        else:
            whole = observer.rows[at.upper - 1]
            assert self._rows == whole, f"P2: followed to {self._rows}, not {whole}"

    def _repeat(self) -> None:
        """Read the last batch again, as after a crash before it was noted as done."""
        observer, number = self.world.observer, len(self._query.batches) - 1
        self._query.restart()
        again = Counter(map(observer.told, self._query.replayed(number)))
        assert again == Counter(map(observer.told, self._query.batches[number])), "P2: no replay"

    def _require_no_lease(self) -> None:
        table = Table(self.world.store, clock=self.world.now)
        # A mirror and a history stand where they are, which says nothing of this query.
        queries = (each for each in table.consumers() if "-" not in each.consumer)
        held = [lease for lease in queries if lease.is_live(table.log.now_ms())]
        assert not held, f"P2: what a lease holds is expired: {held}"


class Historian(Actor):
    """Keeps the history of the table in another one, step by step, and may die between any two.

    What it keeps says of each version that can still be read which rows it had. Where its lease has
    lapsed and the past is gone it keeps another history, in a new place.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._draw = Random(f"history of {world.seed}")
        self._begin()

    def __str__(self) -> str:
        return "historian"

    def _begin(self) -> None:
        self._store = ClockedStore(self.world.now)
        self._first: int | None = None
        """A version that the history has, and none before it need be there."""

    def _step(self, kept: Table) -> None:
        table = self.world.open()
        keep_history(table, kept, by=ValidBy.VERSION)
        if self._first is None:
            self._first = table.log.head().version
        self.world.trace.append(f"{self} has step {kept.log.head().version}")

    def live(self) -> Iterator[None]:
        process = self._draw.choice([None, "historian"])
        kept = Table(
            FaultyStore(self._store, self.world.dice_of_faults(), process=process),
            clock=self.world.now,
        )
        for _ in range(self._draw.randint(1, 4)):
            try:
                yield from self.attempt(lambda: self._step(kept))
            except DataLossError:
                self._require_no_lease()
                self.world.trace.append(f"{self} begins anew")
                self._begin()
                return
            if self._draw.random() < 0.3:
                kept.compact(full=self._draw.random() < 0.5)
            yield

    def finish(self) -> None:
        """Keep what is left, and compare all versions that can be read."""
        kept = Table(self._store, clock=self.world.now)
        try:
            self._step(kept)
        except DataLossError:
            self._require_no_lease()
            self._begin()
            kept = Table(self._store, clock=self.world.now)
            self._step(kept)
        rows = kept.snapshot().to_pylist()
        table = Table(self.world.store, clock=self.world.now)
        head = table.log.head()
        assert self._first is not None
        for version in range(max(self._first, head.since), head.version + 1):
            shown = table.snapshot(version)
            expected = Counter(map(str, shown.to_pylist()))
            valid = (row for row in rows if is_valid(row, version))
            found = Counter(str({name: row[name] for name in shown.column_names}) for row in valid)
            assert found == expected, f"P2: a history of {found} at {version}, not {expected}"
        assert kept.check().is_sound, "P5: a sound history is reported"

    def _require_no_lease(self) -> None:
        table = Table(self.world.store, clock=self.world.now)
        name = f"history-{Table(self._store).log.head().table_id}"
        leases = (each for each in table.consumers() if each.consumer == name)
        held = [each for each in leases if each.is_live(table.log.now_ms())]
        assert not held, f"P2: what a history has to read is expired: {held}"


def is_valid(row: dict[str, Any], version: int) -> bool:
    """Return whether a row of a history, whose times are versions, was there at one."""
    begin, end, _ = VALID_NAMES
    return row[begin] <= version and (row[end] is None or version < row[end])


class Time(Actor):
    """Lets an hour or a week pass at once: everybody sleeps."""

    _left = 8
    """After 90 days of silence a writer would be forgotten."""

    def live(self) -> Iterator[None]:
        yield
        if self._left and self.world.random.random() < 0.3:
            self._left -= 1
            self.world.now.advance(self.world.random.choice([HOUR_S, 25 * HOUR_S, 8 * 24 * HOUR_S]))
            self.world.trace.append("time passes")
