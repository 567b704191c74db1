"""The query of a lake: its process, its checkpoint, its sink, and a user who heeds its errors."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pyarrow as pa

from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.streams.offsets.delta import FOLDER, Bases, CompactOffsets
from spark_upsert.streams.planner.formats import (
    plan_columns,
    shared_columns,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.poller import InputHeads
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.lake_gate import Gate
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_ledger import Ledger, Positions
from tests.simulation.lake_options import ROOT
from tests.support.clocked import ClockedStore, Now
from tests.support.crews import ByHand, no_time
from tests.support.stores import Fault, FaultyStore, Steps
from tests.support.streams import Query, Row


class Process(Steps):
    """The I/O of one process of the query: one step may fail, and before another one others act."""

    def __init__(self, others_act: Callable[[], None]) -> None:
        super().__init__()
        self._others_act = others_act
        self._others_at: int | None = None
        self.has_failed = False
        """Whether a step failed before those that are expected now."""

    def expect(self, *, fault: Fault | None = None, others_in: int | None = None) -> None:
        """Let something happen so many steps from now; nothing else does."""
        done = len(self.names)
        self.has_failed |= self.struck
        self._fault = None if fault is None else replace(fault, step=done + fault.step)
        self._others_at = None if others_in is None else done + others_in

    def step(self, name: str):  # type: ignore[no-untyped-def]
        """Run the body as one step."""
        if self._others_at == len(self.names):
            self._others_at = None
            self._others_act()
        return super().step(name)


class LakeQuery(Query):
    """A query whose tasks have a stream that has travelled."""

    def replayed(self, number: int) -> list[Row]:
        start, end = map(json.loads, self.noted[number : number + 2])
        stream = self.stream
        works, there = pickle.loads(pickle.dumps((stream.splits(start, end), stream)))
        return [row for work in works for each in there.read(work) for row in each.to_pylist()]


@dataclass(frozen=True)
class KeptUp:
    """Whether a query has kept up since it began, and its batches in a row that were cut."""

    has_kept_up: bool = False
    cuts: int = 0

    def behind(self, leaves: bool) -> KeptUp:
        """Return the same behind a batch that leaves something, or nothing."""
        cuts = self.cuts + 1 if leaves else 0
        return KeptUp(self.has_kept_up or not leaves, cuts)


@dataclass
class Sink:
    """A table that is fed by the changes of all inputs (``envelope=changelog``)."""

    store: Store
    clock: Now
    dice: random.Random

    def take(self, number: int, rows: list[Row], columns: pa.Schema) -> None:
        """Write a batch, dealt to some tasks."""
        table = Table(self.store, clock=self.clock)
        given = {"path": "/unused", "envelope": "changelog", "keys": "_input,k"}
        plan = plan_table_write(
            table, WriteOptions.parse({**given, "mergeSchema": "true"}), columns
        )
        base = Snapshot(self.store, plan.base)
        dealt = self.dice.sample(rows, len(rows))
        tasks = self.dice.randrange(1, 4)
        parts = [pa.RecordBatch.from_pylist(dealt[i::tasks], schema=columns) for i in range(tasks)]
        staged = tuple(stage(base, [plan.envelope.commands(each)]) for each in parts)
        epoch = Transaction(writer="query", number=number, is_consecutive=True)
        table.commit(WriteSet(base=base, staged=staged, transactions=(epoch,)))

    def rows_of(self, name: str) -> dict[int, Any]:
        """Return what it holds of an input: the value of each key."""
        table = Table(self.store, clock=self.clock)
        if table.log.try_head() is None:
            return {}
        found = [row for each in table.scan() for row in each.to_pylist()]
        return {row["k"]: row["v"] for row in found if row["_input"] == name}


class Reader:
    """Plans, delivers and replays the batches of the query, and holds them against the ledger.

    Parameters
    ----------
    ground : Ground
    gate : Gate
    others_act : callable
        Lets somebody else act, between two steps of the process.
    """

    def __init__(self, ground: Ground, gate: Gate, others_act: Callable[[], None]) -> None:
        self._ground = ground
        self._gate = gate
        self._random = ground.random
        self._others_act = others_act
        self.process = Process(self._let_others_act)
        self.is_altered = False
        """Whether a table has other columns than when the query's process began."""
        self._is_amid = False
        """Whether others acted while the query planned."""
        self._is_known_to_press = False
        """Whether this process has noted a batch, and so may have told somebody."""
        self._kept_up = KeptUp()
        self._kept_up_noted = self._kept_up
        """The same as the last batch that was noted left it: what outlives the process."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Give the query a checkpoint without anything in it."""
        ground = self._ground
        self.query = LakeQuery(self._stream)
        self._reads: dict[int, tuple[Any, ...]] = {}
        """By which options each batch was read."""
        self._kept_up = self._kept_up_noted = KeptUp()
        self.ledger = Ledger(ground)
        store = PrefixStore(ClockedStore(ground.now), "sink")
        self._sink = Sink(store, ground.now, self._random) if ground.has_sink else None

    def _let_others_act(self) -> None:
        self._is_amid = True
        self._others_act()

    # -- its process -----------------------------------------------------------------

    def _stream(self) -> Stream:
        """Return the stream as a fresh process has it."""
        ground = self._ground
        self.process = Process(self._let_others_act)
        self._gate.note_what_was_said()
        self.is_altered = False
        plan = ReadPlan.parse(ground.options.given(ground.named))
        columns = plan_columns(plan)
        self.ledger.reread(columns)
        return self._stream_of(plan, columns)

    def _stream_of(self, plan: ReadPlan, columns: pa.Schema) -> Stream:
        ground = self._ground
        inputs = stream_inputs(plan, columns)
        return Stream(
            inputs,
            plan.query,
            heads=InputHeads(
                inputs, clock=ground.now, busy_clock=no_time, crew=lambda _: ByHand(ground.now)
            ),
            offsets=stream_offsets(plan),
            columns=shared_columns(plan, columns),
            clock=ground.now,
            wall=ground.wall,
        )

    def open_store(self, path: str, storage: Mapping[str, str] | None = None) -> Store:
        """Return the store at a path of the lake, as the query's process has it."""
        root = FaultyStore(self._ground.objects, self.process)
        below = path.removeprefix(ROOT).strip("/")
        return PrefixStore(root, below) if below else root

    def open_table(self, options: ReadOptions) -> Table:
        return Table(self.open_store(options.path), clock=self._ground.now)

    def restart(self) -> None:
        """End the process; the next act begins another one, which knows of nothing it said."""
        self.query.restart()
        self._ground.change_options()
        self.ledger.forget_held()
        self._gate.rested_s = inf
        self._is_known_to_press = False
        self._kept_up = self._kept_up_noted

    def try_what_is_refused(self) -> None:
        """Give a fresh process an option that it must refuse, whether a batch is pending or not."""
        ground, query = self._ground, self.query
        drawn = ground.options.forbidden(ground.lives, ground.named)
        standing = self.standing()
        has_table = any(ground.is_there(name) for name in standing)
        if (
            drawn is None
            or self.reasons()
            or not has_table
            or standing.keys() != {*ground.present()}
        ):
            return
        change, message = drawn
        if "inputs" in change and query.is_pending:
            return  # That batch has its inputs in the order that its offset says.
        given = {**ground.options.given(ground.named), **change}
        if "merge" in change and not ground.options.is_exact:
            given = {name: text for name, text in given.items() if not _is_live_only(name)}
        plan = ReadPlan.parse({name: text for name, text in given.items() if text})
        self.process = Process(self._let_others_act)  # One without faults.
        columns = plan_columns(plan)
        stream = self._stream_of(plan, columns)
        refusal = _refusal_of(stream, query.noted, is_pending=query.is_pending)
        assert message in refusal, f"{change} is not refused, but: {refusal or 'taken'}"
        ground.tell(f"{change} is refused")

    # -- where it stands -------------------------------------------------------------

    def positions(self, text: str) -> Positions:
        """Return what an offset says."""
        offsets = CompactOffsets(Bases(PrefixStore(self._ground.objects, FOLDER)))
        return offsets.read(json.loads(text)).positions

    def standing(self) -> Positions:
        """Return where the query stands."""
        return self.positions(self.query.noted[-1]) if len(self.query.noted) > 1 else {}

    def before_the_last(self) -> Positions:
        """Return where the batch begins that is noted, or the next one."""
        return self.positions(self.query.noted[-2 if self.query.is_pending else -1])

    def reasons(self) -> list[str]:
        """Return why the query must not go on without its user."""
        ground, found = self._ground, list[str]()
        present, how = ground.present(), ground.options
        for name in self.standing():
            if name not in present and how.pattern is None:
                if not how.may_lack:
                    found.append(f"{name} is named no more")
            elif name in ground.gone:
                if not how.is_lenient or how.pattern is None:
                    found.append(f"{name} is gone")
            elif self.ledger.tapes[name].model is not ground.models[name]:
                found.append(f"{name} is another")
        return found

    # -- its batches -----------------------------------------------------------------

    def plan(self) -> None:
        """Plan a batch; what is noted then must be what the ledger says."""
        ground, query = self._ground, self.query
        reasons = self.reasons()
        query.begin()  # A fresh process says how it reads.
        standing, ledger = self.standing(), self.ledger
        tapes = ledger.tapes_of_all(standing)
        waiting = {name: ledger.waiting(name, tape, standing) for name, tape in tapes.items()}
        self._is_amid = False
        before_s = ground.now()
        try:
            is_noted = query.plan()
            # What was replaced without growing may be noticed some looks later.
            assert ground.is_polled or not reasons, f"it goes on, but {reasons}"
            if not is_noted:
                self._kept_up = KeptUp(has_kept_up=True)
            if not (is_noted or reasons):
                if self._is_known_to_press:
                    self._gate.rested_s = min(self._gate.rested_s, ground.now())
                if not (self.process.has_failed or self.process.struck):
                    self._gate.check_taken_back()
                if not self._is_amid:
                    ledger.check_held(waiting, before_s)
        finally:
            # What fails then may be that the batch before is done: this one is noted by then.
            if query.is_pending:
                ledger.check_due(standing, is_amid=self._is_amid)
                self._is_known_to_press = True
                self._gate.pressed_s, self._gate.rested_s = ground.now(), inf
                self._check_pressed(json.loads(query.noted[-1]))
                ground.tell(f"batch {len(query.noted) - 2} is noted")
                at = self.standing()
                ledger.expect(query.noted[-1], at, waiting, tapes, is_amid=self._is_amid)

    def _check_pressed(self, offset: Mapping[str, Any]) -> None:
        """Check that a query that had kept up is pressed by what its batches leave.

        Whatever process it was in when it had: a restart forgets nothing.
        """
        self._kept_up = self._kept_up_noted = self._kept_up.behind("schedule" in offset["state"])
        if self._kept_up.has_kept_up and self._kept_up.cuts:
            pressed = self.query.stream._pressure
            assert pressed.governor.sampled_ms is not None, "it falls behind, and samples nothing"
            assert pressed._cuts >= min(2, self._kept_up.cuts), "it forgets batches that were cut"

    def deliver(self) -> None:
        """Read the batch that is noted; the sink takes it, once or twice."""
        number, ledger = len(self.query.batches), self.ledger
        lowest = ledger.lowest()
        rows = self.query.deliver()
        self._ground.tell(f"batch {number} has {len(rows)} rows")
        before, after = map(self.positions, self.query.noted[-2:])
        ledger.check(number, rows, before, after, lowest)
        self._reads[number] = self._read_by()
        if self._sink is not None:
            for _ in range(self._random.choice([1, 1, 2])):
                self._sink.take(number, rows, ledger.columns)

    def _read_by(self) -> tuple[Any, ...]:
        """Return what decides the rows of a batch by the options of this process."""
        how = self._ground.options
        return how.mode, how.has_pairs, how.is_feed, how.columns

    def forget_replays(self) -> None:
        """Take note that no batch that was delivered can be read again."""
        self.ledger.first_kept = len(self.query.batches)

    def replay(self) -> None:
        """Read a batch again that may be replayed, as a fresh process."""
        query, how = self.query, self._ground.options
        count = len(query.batches)
        kept = min(count - self.ledger.first_kept, self._ground.bounds["kept"])
        if kept <= 0 or how.is_lenient:
            return
        number = count - 1 - self._random.randrange(kept)
        if not self.positions(query.noted[number + 1]).keys() <= set(self._ground.present()):
            return
        self.restart()
        if self._reads[number] != self._read_by():
            return  # Other options show it as other rows.
        again, before = query.replayed(number), query.batches[number]
        told, known = (_alike(rows, before) for rows in (again, before))
        if not how.is_exact:
            told, known = sorted(told, key=repr), sorted(known, key=repr)
        assert told == known, f"batch {number} is another one: {told}, not {known}"
        self._ground.tell(f"batch {number} is replayed")

    def check_end(self) -> None:
        """Check that nothing is left of any input, and that the sink holds what they hold."""
        for name in self._ground.present():
            self.ledger.check_end(name, self.standing())
            if self._sink is not None and self.ledger.is_all(name):
                found, rows = self._sink.rows_of(name), self._ground.model(name).rows
                expected = {key: row.get("v") for key, row in rows.items()}
                assert found == expected, f"of {name} the sink has {found}, not {expected}"


def _refusal_of(stream: Stream, noted: list[str], *, is_pending: bool) -> str:
    """Return why a stream does not go on from where a query stands; nothing if it does."""
    before, end = (json.loads(each) for each in noted[-2:])
    try:
        if is_pending:
            stream.splits(before, end)
        else:
            stream.latest(end)
    except OptionError as error:
        return error.message
    return ""


def _is_live_only(name: str) -> bool:
    live = ("maxBytesPerTrigger", "maxEpochsPerTrigger", "minRowsPerTrigger", "maxTriggerDelay")
    return name in live or name == "autoPriority" or name.endswith(".priority")


def _alike(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return rows without columns that came since."""
    names = others[0].keys() if others else ()
    return [{name: row[name] for name in names} for row in rows]
