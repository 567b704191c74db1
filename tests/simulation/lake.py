"""A small lake: several inputs, one query over all of them, on a store that fails.

Every choice comes from one seeded random source: which options the query has (`lake_options`),
which inputs there are, who acts next, which I/O step fails, and between which two others act.
Writers, compactors and expiries change the tables at any time; inputs come, go, and are made anew;
the query's process dies and begins anew from its offsets, and its user does what an error asks for.

What each input holds is known from dictionaries (`lake_inputs`). The promises:

- a batch says what its offsets say: each change of each input exactly once, in its order;
- an exact order is the one that is told row by row, and its numbers have no gap;
- a batch keeps its limits, unless one step alone is larger;
- an input that has something is served within as many batches as there are inputs;
- a batch that may be replayed has the same rows again, in an exact order in the same sequence;
- what is lost is an error, and an error has its reason;
- a table that is fed by the changes holds the rows of all inputs.
"""

from __future__ import annotations

import json
import pickle
import random
import secrets
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.errors import (
    DataLossError,
    OptionError,
    OtherTableError,
    SchemaError,
    TableNotFoundError,
    UpsertFlowError,
)
from spark_upsert.merge import order_from_json
from spark_upsert.merge.orders import Order, RoundRobin
from spark_upsert.model.schema import TableSchema
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.source import at_once, batch, file_input, file_kind, kinds, lookout, table_input
from spark_upsert.source.bases import FOLDER, Bases
from spark_upsert.source.compact_offsets import CompactOffsets
from spark_upsert.source.file_position import FilePosition
from spark_upsert.source.kinds import (
    plan_columns,
    shared_columns,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.source.lookout import Lookout
from spark_upsert.source.position import Position
from spark_upsert.source.stream import Stream
from spark_upsert.source.table_position import TablePosition
from spark_upsert.state.compaction import Compacted, compact_runs
from spark_upsert.state.log.manifest import Transaction
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.store import Store
from spark_upsert.table import Table
from spark_upsert.upsert.plan import plan_rows
from spark_upsert.upsert.stage import stage
from spark_upsert.upsert.write_set import WriteSet
from tests.simulation.lake_inputs import (
    Epoch,
    FilesModel,
    FilesTape,
    Reading,
    TableModel,
    TableTape,
)
from tests.simulation.lake_options import CHANGE_COLUMNS, PRIORITIES, ROOT, Drawn
from tests.support.clocked import ClockedStore, Now
from tests.support.crews import ByHand, no_time
from tests.support.folders import MemoryFolder
from tests.support.merging import picks_of
from tests.support.notebooks import few_are_many
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    Moment,
    Steps,
    StoreBelow,
)
from tests.support.streams import Query, Row

KEYS = 4
ACTS = 40

VALUES: dict[str, list[Any]] = {
    "v": [None, 1, 2, 3],
    "w": [None, 7, 7, 8],
    "note": [None, "a", "b"],
}

SCHEMAS: tuple[dict[str, pa.DataType], ...] = (
    {"k": pa.int64(), "v": pa.int32(), "w": pa.int64()},
    {"k": pa.int64(), "v": pa.int64(), "w": pa.int64()},
    {"k": pa.int64(), "v": pa.int32()},
)
"""What tables begin with; where schemas are not merged all begin with the first."""


class Process(Steps):
    """The I/O of one process of the query: one step may fail, and before another one others act."""

    def __init__(self, lake: Lake) -> None:
        super().__init__()
        self._lake = lake
        self._others_at: int | None = None

    def expect(self, *, fault: Fault | None = None, others_in: int | None = None) -> None:
        """Let something happen so many steps from now; nothing else does."""
        done = len(self.names)
        self._fault = None if fault is None else replace(fault, step=done + fault.step)
        self._others_at = None if others_in is None else done + others_in

    def step(self, name: str):  # type: ignore[no-untyped-def]
        """Run the body as one step."""
        if self._others_at == len(self.names):
            self._others_at = None
            self._lake.let_others_act()
        return super().step(name)


class LakeQuery(Query):
    """A query whose tasks have a stream that has travelled."""

    def replayed(self, number: int) -> list[Row]:
        start, end = map(json.loads, self.noted[number : number + 2])
        stream = self.stream
        works, there = pickle.loads(pickle.dumps((stream.splits(start, end), stream)))
        return [row for work in works for each in there.read(work) for row in each.to_pylist()]


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
        plan = table.plan(WriteOptions.parse({**given, "mergeSchema": "true"}), columns)
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


@dataclass
class Lake:
    """One life of some inputs and of a query over them."""

    seed: int
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = self.random = random.Random(self.seed)
        self.now = Now(1_000_000_000.0)
        self.wall = Now(1_000_000_000.0)
        """By which is told since when an input waits: it stands still, or it jumps as well."""
        self.objects = ClockedStore(self.now)
        self.options = Drawn(draw)
        self.models: dict[str, TableModel | FilesModel] = {}
        self.gone: dict[str, dict[str, bytes]] = {}
        """The objects of tables that were dropped."""
        self.named: list[str] = []
        """The inputs that the options name, in their order."""
        self.handles: dict[str, Table] = {}
        """The table as a second writer keeps it."""
        self.staged: list[tuple[str, Epoch, WriteSet]] = []
        self.merged: list[tuple[str, Compacted]] = []
        self.bounds = {
            "inputs": draw.choice([0, 1, 1, 2, 300]),
            "delta": draw.choice([0, 1, 3]),
            "kept": draw.choice([2, 3, 5]),
        }
        is_named = self.options.pattern is None
        self.is_polled = is_named and random.Random(-1 - self.seed).random() < 0.5
        """Whether heads are learnt beside planning (new tables would be found later then)."""
        self.process = Process(self)
        self.is_amid = False
        """Whether others act while the query plans."""
        self.is_altered = False
        """Whether a table has other columns than when the query's process began."""
        can_chain = self.options.is_feed and not self.options.has_files
        self.has_sink = can_chain and draw.random() < 0.5
        self._values = iter(range(100, 100_000))
        self._begin_anew()

    def __str__(self) -> str:
        return f"{self.options} over {self.named or self.options.pattern}"

    def _begin_anew(self) -> None:
        """Give the query a checkpoint without anything in it."""
        self.query = LakeQuery(self._stream)
        self.tapes: dict[str, TableTape | FilesTape] = {}
        self.order: tuple[Order, list[str]] | None = None
        self.expected: list[str] | None = None
        """The inputs of the rows of the batch that is noted, where that is known."""
        self.ahead: set[str] = set()
        """The inputs that had something when it was noted."""
        self.waits: Counter[str] = Counter()
        self.count = 0
        self.first_kept = 0
        """The first batch that can be replayed."""
        self.is_whole = not self.options.is_lenient
        """Whether the sink has all that there ever was."""
        store = StoreBelow(ClockedStore(self.now), "sink")
        self.sink = Sink(store, self.now, self.random) if self.has_sink else None

    # -- the query -------------------------------------------------------------------

    def _stream(self) -> Stream:
        """Return the stream as a fresh process has it."""
        self.process = Process(self)
        self.is_altered = False
        plan = ReadPlan.parse(self.options.given(self.named))
        columns = plan_columns(plan)
        self.columns = columns
        self._reread()
        inputs = stream_inputs(plan, columns)
        return Stream(
            inputs,
            plan.query,
            lookout=Lookout(
                inputs, clock=self.now, busy_clock=no_time, crew=lambda _: ByHand(self.now)
            ),
            offsets=stream_offsets(plan),
            columns=shared_columns(plan, columns),
            clock=self.now,
            wall=self.wall,
        )

    def _reread(self) -> None:
        own = [name for name in self.columns.names if name not in CHANGE_COLUMNS]
        how = self.options
        chosen = tuple(name for name in own if not name.startswith("_"))
        self.reading = Reading(chosen, how.is_feed, how.mode, how.has_pairs)
        for tape in self.tapes.values():
            if isinstance(tape, TableTape):
                tape.reread(self.reading)

    def open_store(self, path: str, storage: Mapping[str, str] | None = None) -> Store:
        """Return the store at a path of the lake, as the query's process has it."""
        root = FaultyStore(self.objects, self.process)
        below = path.removeprefix(ROOT).strip("/")
        return StoreBelow(root, below) if below else root

    def open_folder(self, path: str, storage: Mapping[str, str] | None = None) -> MemoryFolder:
        model = self.models[path.removeprefix(ROOT).strip("/")]
        assert isinstance(model, FilesModel)
        return model.folder

    def open_table(self, options: ReadOptions) -> Table:
        return Table(self.open_store(options.path), clock=self.now)

    def _positions(self, text: str) -> Mapping[str, Position]:
        offsets = CompactOffsets(Bases(StoreBelow(self.objects, FOLDER)))
        return offsets.read(json.loads(text)).positions

    def standing(self) -> Mapping[str, Position]:
        """Return where the query stands."""
        return self._positions(self.query.noted[-1]) if len(self.query.noted) > 1 else {}

    def present(self) -> list[str]:
        """Return the inputs that the query should have, in their order."""
        if self.options.pattern is None:
            return self.named
        return sorted(name for name in self.models if name not in self.gone)

    def reasons(self) -> list[str]:
        """Return why the query must not go on without its user."""
        found: list[str] = []
        present = self.present()
        for name in self.standing():
            if name not in present and self.options.pattern is None:
                if not self.options.may_lack:
                    found.append(f"{name} is named no more")
            elif name in self.gone:
                if not self.options.is_lenient or self.options.pattern is None:
                    found.append(f"{name} is gone")
            elif self.tapes[name].model is not self.models[name]:
                found.append(f"{name} is another")
        return found

    def fresh_tape(self, name: str) -> TableTape | FilesTape:
        """Return what a stream says that begins with an input now."""
        model = self.models[name]
        if isinstance(model, FilesModel):
            return FilesTape(model)
        start = self.options.start_of(name)
        joins = self.options.pattern is not None and bool(self.standing())
        version = start.get("startingVersion")
        is_inclusive = start.get("startingBoundInclusive") != "false"
        has_snapshot = False
        if version is None and "startingTimestamp" not in start:
            origin, has_snapshot = model.upper - 1, True
        elif version == "latest" and not joins:
            origin = model.upper
        elif version in ("latest", "earliest"):
            origin = self.table(name).log.head().first_changes
        elif version is None:
            since_ms = int(start["startingTimestamp"]) + int(not is_inclusive)
            origin = sum(each < since_ms for each in model.times_ms)
        else:
            origin = int(version) + int(not is_inclusive)
        tape = TableTape(model, origin, has_snapshot, self.options.is_lenient)
        tape.begin(self.reading)
        return tape

    # -- planning --------------------------------------------------------------------

    def plan(self) -> None:
        reasons = self.reasons()
        self.query.stream  # noqa: B018 - a fresh process says how it reads
        present = self.present()
        tapes = {name: self.tapes.get(name) or self.fresh_tape(name) for name in present}
        waiting = {name: self._waiting(name, tape) for name, tape in tapes.items()}
        self.is_amid = False
        try:
            is_noted = self.query.plan()
            # What was replaced without growing may be noticed some looks later.
            assert self.is_polled or not reasons, f"it goes on, but {reasons}"
            if not (is_noted or reasons):
                assert self.is_amid or not any(waiting.values()), f"nobody takes {waiting}"
        finally:
            # What fails then may be that the batch before is done: this one is noted by then.
            if self.query.is_pending:
                self._expect(tapes, waiting)

    def _expect(self, tapes: dict[str, TableTape | FilesTape], waiting: dict[str, int]) -> None:
        """Remember what was there when a batch was planned."""
        self.trace.append(f"batch {len(self.query.noted) - 2} is noted")
        is_first = not self.tapes
        self._note(tapes)
        if is_first and not self.is_amid:
            self._check_priorities()
        self.ahead = {name for name, rows in waiting.items() if rows}
        # Who is polled may have something that nobody knows of yet.
        is_known = self.options.is_exact and not self.is_polled
        self.expected = self._sequence(waiting) if is_known else None

    def _check_priorities(self) -> None:
        """Check that of inputs none of which has waited yet one of the most urgent comes first."""
        if self.options.is_exact or not any(self.options.limits.values()):
            return
        bands: dict[str, int] = {}
        served: set[str] = set()
        for name, position in self.standing().items():
            tape = self.tapes[name]
            if isinstance(tape, FilesTape) or tape.has_snapshot or tape.is_lenient:
                return
            amounts = tape.model.amounts
            if any(map(any, amounts[tape.origin :])):
                priority = self.options.priority_of(name, tape.model.priority)
                bands[name] = max(-1, min(3, priority // 250))
            if any(map(any, amounts[tape.origin : TablePosition.unpacked(position).upper])):
                served.add(name)
        if bands:
            urgent = {name for name in bands if bands[name] == max(bands.values())}
            self.trace.append(f"of {bands} {sorted(served)} are served first")
            assert urgent & served, f"of {bands} {served} are served first"

    def _waiting(self, name: str, tape: TableTape | FilesTape) -> int:
        """Return how many rows, or steps, a batch may take of an input."""
        if isinstance(tape, FilesTape):
            return tape.waiting()
        if self.options.is_exact:
            return tape.waiting(self.reading)
        position = self.standing().get(name)
        if position is None:
            return 1
        known = TablePosition.unpacked(position)
        return tape.model.upper - known.upper + int(known.is_in_snapshot)

    def _note(self, tapes: Mapping[str, TableTape | FilesTape]) -> None:
        """Take in which inputs the offset has, and where new ones begin."""
        positions = self.standing()
        assert positions.keys() == tapes.keys(), f"{[*positions]} are noted, not {[*tapes]}"
        for name in self.tapes.keys() - positions.keys():
            del self.tapes[name]
            self.is_whole = False
        for name, position in positions.items():
            if name not in self.tapes:
                self.tapes[name] = tape = tapes[name]
                self._check_origin(name, tape, position)

    def _check_origin(self, name: str, tape: TableTape | FilesTape, position: Position) -> None:
        if isinstance(tape, FilesTape):
            return
        found = TablePosition.unpacked(position).origin
        if self.is_amid or tape.is_lenient:
            assert found >= tape.origin, f"{name} begins at {found}, not {tape.origin}"
            tape.origin = found
            tape.begin(self.reading)
        assert found == tape.origin, f"{name} begins at {found}, not {tape.origin}"

    def _sequence(self, waiting: Mapping[str, int]) -> list[str] | None:
        """Return the inputs of the rows of the next batch, told row by row."""
        names = list(waiting)
        order, before = self.order or (self._first_order(), names)
        if isinstance(order, RoundRobin) and before != names:
            turns = [*before[order.cursor :], *before[: order.cursor]]
            order = RoundRobin(cursor=next((names.index(n) for n in turns if n in names), 0))
        if self.is_amid:
            state = json.loads(self.query.noted[-1])["state"]["order"]["order"]
            self.order = order_from_json(state), names
            return None
        picks, order = picks_of(order, list(waiting.values()), self.options.rows_max)
        self.order = order, names
        return [names[pick] for pick in picks]

    def _first_order(self) -> Order:
        order = ReadPlan.parse(self.options.given(self.named)).query.order
        assert order is not None
        return order

    # -- delivering ------------------------------------------------------------------

    def deliver(self) -> None:
        number = len(self.query.batches)
        lowest = {name: self._first_changes(name) for name in self.present()}
        rows = self.query.deliver()
        self.trace.append(f"batch {number} has {len(rows)} rows")
        for row in rows[:1]:
            assert [*row] == self.columns.names, f"{row} has not {self.columns.names}"
        before, after = map(self._positions, self.query.noted[-2:])
        if self.options.is_exact:
            self._check_order(rows)
        else:
            self._check_batch(rows, before, after, lowest)
            self._check_limits(before, after, lowest)
        self._check_turns(before, after)
        if self.sink is not None:
            for _ in range(self.random.choice([1, 1, 2])):
                self.sink.take(number, rows, self.columns)

    def _first_changes(self, name: str) -> int:
        if isinstance(self.models[name], FilesModel) or name in self.gone:
            return 0
        return self.table(name).log.head().first_changes

    def _check_order(self, rows: list[Row]) -> None:
        if self.options.is_numbered:
            numbers = [row["_merge_seq"] for row in rows]
            expected = list(range(self.count, self.count + len(rows)))
            assert numbers == expected, f"an exact order has a gap: {numbers}, not {expected}"
        self.count += len(rows)
        most = self.options.rows_max
        assert most is None or len(rows) <= most, "the limit is exceeded"
        if self.expected is not None:
            sequence = [row["_input"] for row in rows]
            assert sequence == self.expected, f"order {sequence}, not {self.expected}"
        for row in rows:
            tape = self.tapes[row["_input"]]
            if isinstance(tape, FilesTape):
                tape.follow(row)
            else:
                tape.follow(self.reading.told(row), self.reading)

    def _check_batch(
        self,
        rows: list[Row],
        before: Mapping[str, Position],
        after: Mapping[str, Position],
        lowest: Mapping[str, int],
    ) -> None:
        strangers = {row["_input"] for row in rows} - after.keys()
        assert not strangers, f"rows of {strangers}, which are in no offset"
        for name, position in after.items():
            own = [row for row in rows if row["_input"] == name]
            tape = self.tapes[name]
            if before.get(name) == position:
                assert not own, f"{name} stands still, and gives {own}"
            elif name not in self.present():
                assert not own, f"{name} is gone, and gives {own}"
                self.is_whole = False
                self.first_kept = len(self.query.batches)  # Named again, it would give its rows.
            elif isinstance(tape, FilesTape):
                tape.check(own, before.get(name), position)
            else:
                said = Counter(map(self.reading.told, own))
                tape.check(said, before.get(name), position, lowest[name], self.reading)

    def _check_limits(
        self,
        before: Mapping[str, Position],
        after: Mapping[str, Position],
        lowest: Mapping[str, int],
    ) -> None:
        steps: list[tuple[int, int, int]] = []
        for name, position in after.items():
            found = self._amounts(name, before.get(name), position, lowest.get(name, 0))
            if found is None:
                return
            steps += found
        counting = [step for step in steps if any(step)]
        for index, (name, most) in enumerate(self.options.limits.items()):
            total = sum(step[index] for step in counting)
            is_kept = most is None or total <= most or len(counting) == 1
            assert is_kept, f"{name}: {total} in {counting}"

    def _amounts(
        self, name: str, before: Position | None, after: Position, lowest: int
    ) -> list[tuple[int, int, int]] | None:
        """Return the rows, bytes and epochs of what was taken; None of a snapshot."""
        model = self.tapes[name].model
        if before == after or name not in self.models:
            return []
        if isinstance(model, FilesModel):
            start = FilePosition() if before is None else FilePosition.unpacked(before)
            files = FilePosition.unpacked(after).delivered_since(start)
            return [(len(model.files[each.name]), each.bytes, 1) for each in files]
        end = TablePosition.unpacked(after)
        start_at = TablePosition.unpacked(before) if before else None
        if end.is_in_snapshot or (start_at is not None and start_at.is_in_snapshot):
            return None
        if start_at is None:
            tape = self.tapes[name]
            assert isinstance(tape, TableTape)
            if tape.has_snapshot:
                return None
            return model.amounts[max(end.origin, lowest) : end.upper]
        return model.amounts[max(start_at.upper, lowest) : end.upper]

    def _check_turns(self, before: Mapping[str, Position], after: Mapping[str, Position]) -> None:
        if self.options.is_exact or self.options.has_priorities or self.is_polled:
            return  # Nobody starves with priorities either, but in more batches than there are.
        served = {name for name in after if after[name] != before.get(name)}
        for name in self.ahead & after.keys():
            self.waits[name] = 0 if name in served else self.waits[name] + 1
            assert self.waits[name] <= len(self.models), f"{name} starves"

    def replay(self) -> None:
        """Read a batch again that may be replayed, as a fresh process."""
        count = len(self.query.batches)
        kept = min(count - self.first_kept, self.bounds["kept"])
        if kept <= 0 or self.options.is_lenient:
            return
        number = count - 1 - self.random.randrange(kept)
        if not self._positions(self.query.noted[number + 1]).keys() <= set(self.present()):
            return
        self.query.restart()
        again, before = self.query.replayed(number), self.query.batches[number]
        told, known = (self._alike(rows, before) for rows in (again, before))
        if not self.options.is_exact:
            told, known = sorted(told, key=repr), sorted(known, key=repr)
        assert told == known, f"batch {number} is another one: {told}, not {known}"
        self.trace.append(f"batch {number} is replayed")

    def _alike(self, rows: list[Row], others: list[Row]) -> list[Row]:
        """Return rows without columns that came since."""
        names = others[0].keys() if others else ()
        return [{name: row[name] for name in names} for row in rows]

    # -- the inputs ------------------------------------------------------------------

    def table(self, name: str) -> Table:
        return Table(StoreBelow(self.objects, name), clock=self.now)

    def create(self) -> None:
        """Add an input; one that is named is one more in the options."""
        number = len(self.models)
        name = f"{'ab'[number % 2]}/t{number}" if self.options.pattern == "*/t?" else f"t{number}"
        format_ = "upsertflow"
        if self.options.has_files and number and self.random.random() < 0.5:
            format_ = self.random.choice(["parquet", "arrow", "json", "csv"])
        if format_ == "upsertflow":
            self._make(name, self._columns_of_a_new_table())
        else:
            columns = SCHEMAS[0 if format_ in ("parquet", "arrow") else 1]
            self.models[name] = FilesModel(format_, columns, MemoryFolder(url=f"{ROOT}/{name}"))
        self.trace.append(f"{name} is made, of {format_}")
        if self.options.pattern is None:
            self.options.say(name, format_)
            self.named.append(name)
            self.query.restart()
        self.write(name)

    def _columns_of_a_new_table(self) -> Mapping[str, pa.DataType]:
        if self.options.merge_schema:
            return self.random.choice(SCHEMAS)
        tables = [model for model in self.models.values() if isinstance(model, TableModel)]
        return tables[0].columns if tables else SCHEMAS[0]

    def _make(self, name: str, columns: Mapping[str, pa.DataType]) -> None:
        table = self.table(name)
        model = self.models[name] = TableModel(columns)
        if self.options.has_priorities and self.random.random() < 0.5:
            model.priority = self.random.choice(PRIORITIES)
        said = {} if model.priority is None else {"priority": str(model.priority)}
        table.ensure(TableSchema.of(pa.schema(columns), keys=["k"]), said)
        model.note(table.log.commit(0), None)

    def write(self, name: str | None = None) -> None:
        """Write to an input: an epoch, or a file."""
        name = name or self._any()
        model = self.models[name]
        if isinstance(model, FilesModel):
            is_json = model.format == "json"  # Of an empty one no columns are known.
            rows = [
                {"k": self.random.randrange(KEYS), "v": next(self._values), "w": 1}
                for _ in range(self.random.choice([1, 1, 2, 3] if is_json else [0, 1, 2, 3]))
            ]
            self.now.advance(1.0)
            late_us = self.random.choice([0, 0, 5_000_000])
            file = model.put(rows, int(self.now() * 1e6) - late_us, self.random)
            self.trace.append(f"{name} gets {file} with {len(rows)} rows")
            return
        table = self.handles.setdefault(name, self.table(name))
        table = self.random.choice([table, self.table(name)])
        epoch = self._epoch(model)
        is_whole = self.random.random() < 0.06
        table.append(self._rows(model, epoch), deletes="gone", overwrite=is_whole)
        self._note_versions(name, epoch, is_whole=is_whole)
        self.trace.append(f"{name} gets {epoch}")

    def _epoch(self, model: TableModel) -> Epoch:
        epoch: dict[int, dict[str, Any] | None] = {}
        for _ in range(self.random.randrange(1, 4)):
            names = [name for name in model.columns if name != "k"]
            row = {name: self.random.choice(VALUES[name]) for name in names}
            epoch[self.random.randrange(KEYS)] = row if self.random.random() < 0.75 else None
        return epoch

    def _rows(self, model: TableModel, epoch: Epoch) -> pa.Table:
        schema = pa.schema([*model.columns.items(), ("gone", pa.bool_())])
        rows = [{"k": key, "gone": row is None, **(row or {})} for key, row in epoch.items()]
        return pa.Table.from_pylist(rows, schema)

    def _note_versions(self, name: str, epoch: Epoch | None, *, is_whole: bool = False) -> None:
        """Take in the versions that an act has made; the epoch is that of the last one."""
        model, log = self.models[name], self.table(name).log
        assert isinstance(model, TableModel)
        for version in range(model.upper, log.head().upper):
            model.note(log.commit(version), epoch, is_whole=is_whole)

    def stage(self) -> None:
        """Let a second writer stage an epoch, or commit what it has staged."""
        if self.staged and self.random.random() < 0.7:
            name, epoch, staged = self.staged.pop()
            self.table(name).commit(staged)
            self._note_versions(name, epoch)
            self.trace.append(f"{name} gets {epoch}, late")
            return
        name = self._any_table()
        model, table = self.models[name], self.table(name)
        assert isinstance(model, TableModel)
        epoch = self._epoch(model)
        base = Snapshot(table.store, table.log.head())
        rows = self._rows(model, epoch)
        envelope = plan_rows(base.manifest, rows.schema, deletes="gone").envelope
        commands = [envelope.commands(each) for each in rows.to_batches()]
        staged = WriteSet(base=base, staged=(stage(base, commands),), transactions=())
        self.staged.append((name, epoch, staged))

    def compact(self) -> None:
        """Compact a table, or begin to, or bring in what was begun."""
        if self.merged and self.random.random() < 0.7:
            name, merged = self.merged.pop()
            count = self.table(name).commit_compactions([merged])
            self._note_versions(name, None)
            self.trace.append(f"{name} is compacted {count} times, late")
            return
        name = self._any_table()
        table, is_full = self.table(name), self.random.random() < 0.5
        if self.random.random() < 0.4:
            head = table.log.head()
            jobs = table.compaction_jobs(full=is_full)
            self.merged += [(name, compact_runs(table.store, head, job)) for job in jobs[:1]]
            return
        count = table.compact(full=is_full)
        self._note_versions(name, None)
        self.trace.append(f"{name} is compacted {count} times")

    def restore(self) -> None:
        """Turn a table into what it was."""
        name = self._any_table()
        table = self.table(name)
        head = table.log.head()
        table.restore(self.random.randrange(head.since, head.upper))
        self._note_versions(name, None)
        self.trace.append(f"{name} is restored")

    def expire(self) -> None:
        """Expire all of a table that no lease holds, if the query has begun there."""
        name = self._any_table()
        if name not in self.standing():
            return
        self._forget_what_is_under_way(name)
        table = self.table(name)
        self.now.advance(2 * 3600.0)
        retained = self.random.choice([0, 0, 1, 3])
        table.expire(retain_versions=retained, safety_ms=0)
        table.vacuum(grace_ms=0)
        self._note_versions(name, None)
        since = table.log.head().since
        self.first_kept = len(self.query.batches)
        self.trace.append(f"{name} is expired to {since}")

    def alter(self) -> None:
        """Add a column or widen one: of one table if inputs may differ, else of all."""
        if any(isinstance(model, FilesModel) for model in self.models.values()):
            is_alone = self.options.merge_schema
            if not is_alone:
                return
        is_alone = self.options.merge_schema
        is_added = self.random.random() < 0.5
        there = [name for name in self._tables() if name not in self.gone]
        if not is_alone and self.gone:
            return
        for name in [self.random.choice(there)] if is_alone else there:
            self._alter(name, is_added=is_added)

    def _alter(self, name: str, *, is_added: bool) -> None:
        model, table = self.models[name], self.table(name)
        assert isinstance(model, TableModel)
        types = dict(model.columns)
        types |= {"note": pa.string()} if is_added else {"v": pa.int64()}
        if types == model.columns:
            return
        schema = table.log.head().schema
        columns = schema.accept(pa.schema(types), merge=True).columns
        table.alter(replace(schema, columns=columns))
        model.columns = types
        self.is_altered = True
        self._note_versions(name, None)
        self.trace.append(f"{name} has {list(types)}")

    def drop(self) -> None:
        """Remove a table, but for the last one; later it comes back, or another takes its place."""
        there = self._tables()
        if len(there) < 2 or len(self.gone) > 0:
            return
        name = self.random.choice(there)
        paths = [path for path in self.objects.objects if path.startswith(f"{name}/")]
        self.gone[name] = {path: self.objects.objects[path] for path in paths}
        self._remove(name)
        self.trace.append(f"{name} is gone")

    def _remove(self, name: str) -> None:
        for path in [path for path in self.objects.objects if path.startswith(f"{name}/")]:
            self.objects.delete(path)
        self._forget_what_is_under_way(name)

    def bring_back(self) -> None:
        """Put back what was dropped."""
        if self.gone:
            name, objects = self.gone.popitem()
            for path, data in objects.items():
                self.objects.put(path, data)
            self.trace.append(f"{name} is back")

    def make_anew(self) -> None:
        """Drop a table, and make another one in its place."""
        name = self._any_table()
        columns = self.models[name].columns
        self._remove(name)
        self._make(name, columns)
        self.trace.append(f"{name} is made anew")
        self.write(name)

    def remove_input(self) -> None:
        """Name an input no more; whether that is allowed is drawn."""
        if self.options.pattern is not None or len(self.named) < 2:
            return
        name = self.random.choice(self.named)
        self.named.remove(name)
        self.options.may_lack = self.random.random() < 0.7
        self.query.restart()
        self.trace.append(f"{name} is named no more")

    def name_again(self) -> None:
        """Name an input that was named before."""
        unnamed = [name for name in self.options.starts if name not in self.named]
        if unnamed:
            self.named.append(self.random.choice(unnamed))
            self.named.sort()
            self.query.restart()
            self.trace.append(f"{self.named[-1]} is named again")

    def _forget_what_is_under_way(self, name: str) -> None:
        self.handles.pop(name, None)
        self.staged = [each for each in self.staged if each[0] != name]
        self.merged = [each for each in self.merged if each[0] != name]

    def _tables(self) -> list[str]:
        return [
            name
            for name, model in self.models.items()
            if isinstance(model, TableModel) and name not in self.gone
        ]

    def _any_table(self) -> str:
        return self.random.choice(self._tables())

    def _any(self) -> str:
        return self.random.choice([name for name in self.models if name not in self.gone])

    # -- living ----------------------------------------------------------------------

    def act(self) -> None:
        """Do one thing; a fault ends the process of the query."""
        draw = self.random
        self.now.advance(draw.choice([0.0, 0.0, 0.5]))
        if self.options.has_priorities:
            self.wall.advance(draw.choice([0.0, 0.0, 0.2, 3.0, 20.0, 86_400.0, -0.3, -3600.0]))
        if draw.random() < 0.45:
            acts = [self.write] * 6 + [self.stage, self.stage, self.compact, self.compact]
            acts += [self.expire, self.alter, self.bring_back, self.bring_back, self.name_again]
            rare = [self.drop, self.make_anew, self.remove_input, self.restore]
            draw.choice(rare if draw.random() < 0.1 else acts)()
            return
        if draw.random() < 0.08 and len(self.models) < 5:
            self.create()
            return
        self._prepare(draw)
        try:
            self._go_on()
        except (KilledError, BrokenError) as error:
            self.trace.append(f"the query dies by {type(error).__name__}")
            self.query.restart()
        except UpsertFlowError as error:
            has_struck = self.process.struck
            self.process.expect()
            self._mend(error, has_struck=has_struck)
        finally:
            self.process.expect()

    def _prepare(self, draw: random.Random) -> None:
        """Draw what befalls the query in its next act."""
        if draw.random() < 0.2:
            self.query.restart()
        fault = None
        if draw.random() < 0.15:
            kind = draw.choice([KilledError, BrokenError])
            fault = Fault(draw.randrange(20), draw.choice(list(Moment)), kind)
        others_in = draw.randrange(12) if draw.random() < 0.15 else None
        self._weather = fault, others_in

    def _go_on(self) -> None:
        if self.query._stream is None:
            self.query.stream  # noqa: B018 - a new process
        fault, others_in = self._weather
        if self.query.is_pending:
            self.process.expect(fault=fault)
            self.deliver()
        elif self.random.random() < 0.15:
            self.replay()
        else:
            self.process.expect(fault=fault, others_in=others_in)
            self.plan()

    def let_others_act(self) -> None:
        """Let somebody act between two steps of the query."""
        self.is_amid = True
        self.random.choice([self.write, self.write, self.compact, self.restore])()

    def _mend(self, error: UpsertFlowError, *, has_struck: bool = False) -> None:
        """Do what an error asks for, if it has its reason."""
        self.trace.append(f"the query ends by {type(error).__name__}")
        if has_struck:
            self.query.restart()
            return
        reasons = self.reasons()
        match error:
            case OptionError() if any("named no more" in each for each in reasons):
                if self.random.random() < 0.5:
                    self.options.may_lack = True
                else:
                    self._name_all()
            case DataLossError() if self._has_counted_what_is_removed():
                self._name_all()
            case OtherTableError() if any("another" in each for each in reasons):
                self._begin_anew()
            case DataLossError() | TableNotFoundError() | OtherTableError() if self.gone:
                self.bring_back()
            case SchemaError() if self.is_altered:
                pass
            case DataLossError() if self._begins_expired():
                self.options.start_where_it_is_left()
            case DataLossError() if not self.options.has_lease and self._is_expired():
                if self.options.is_exact or self.random.random() < 0.3:
                    self._begin_anew()
                else:
                    self.options.is_lenient = True
                    self.is_whole = False
                    for tape in self.tapes.values():
                        if isinstance(tape, TableTape):
                            tape.is_lenient = True
            case _:
                raise error
        self.query.restart()

    def _name_all(self) -> None:
        self.named = sorted(self.options.starts)

    def _has_counted_what_is_removed(self) -> bool:
        return (
            self.options.is_exact
            and self.query.is_pending
            and bool(self.standing().keys() - set(self.present()))
        )

    def _begins_expired(self) -> bool:
        """Return whether an input is to begin where its changes are expired."""
        fresh = [name for name in self._tables() if name not in self.standing()]
        return any(
            tape.origin < self._first_changes(name)
            for name, tape in zip(fresh, map(self.fresh_tape, fresh), strict=True)
            if isinstance(tape, TableTape) and not tape.has_snapshot
        )

    def _is_expired(self) -> bool:
        """Return whether changes are expired that the query has still to read."""
        before = self._positions(self.query.noted[-2 if self.query.is_pending else -1])
        for name, position in self.standing().items():
            tape = self.tapes[name]
            if isinstance(tape, FilesTape) or name in self.gone:
                continue
            known = TablePosition.unpacked(before.get(name, position))
            if name not in before:
                known = tape.beginning()
            head = self.table(name).log.head()
            if known.upper < head.first_changes or known.version < head.since:
                return True
        return False

    def run(self) -> None:
        """Live, then catch up and compare what was delivered with what there is."""
        with self.conditions():
            for _ in range(self.random.randint(1, 3)):
                self.create()
            for _ in range(ACTS):
                self.act()
            self.bring_back()
            self._weather = None, None
            self.query.restart()
            for _ in range(400):
                try:
                    if self.query.is_pending:
                        self.deliver()
                    self.plan()
                except UpsertFlowError as error:
                    self._mend(error)
                    continue
                if not self.query.is_pending:
                    break
            else:
                raise AssertionError("the query does not catch up")
            for name in self.present():
                self._check_end(name, self.tapes[name])

    def _check_end(self, name: str, tape: TableTape | FilesTape) -> None:
        if isinstance(tape, FilesTape):
            missing = list(tape.missing())
            assert not missing, f"{name} did not give {missing}"
            return
        position = TablePosition.unpacked(self.standing()[name])
        assert position.upper == tape.model.upper, f"{name} is read up to {position.upper}"
        if self.options.is_exact:
            assert tape.waiting(self.reading) == 0, f"{name} has more"
        is_all = tape.has_snapshot or tape.origin == 0
        if self.sink is not None and self.is_whole and is_all:
            found, rows = self.sink.rows_of(name), tape.model.rows
            expected = {key: row.get("v") for key, row in rows.items()}
            assert found == expected, f"of {name} the sink has {found}, not {expected}"

    @contextmanager
    def conditions(self) -> Iterator[None]:
        """Let names be drawn from the seed, the lake be the storage, and few inputs be many."""
        names = random.Random(self.seed)
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))))
            enter(patch.object(secrets, "randbits", names.getrandbits))
            for module in (kinds, at_once):
                enter(patch.object(module, "ASKED_AT_ONCE", 1))
            for module in (kinds, table_input, batch):
                enter(patch.object(module, "open_store", self.open_store))
            for module in (kinds, table_input, batch):
                enter(patch.object(module, "open_table", self.open_table))
            for module in (file_kind, file_input):
                enter(patch.object(module, "open_folder", self.open_folder))
            enter(patch.object(lookout, "LOOKED_AT_MAX", 0 if self.is_polled else 300))
            enter(few_are_many(**self.bounds))
            yield


def live(seed: int, *, change: Callable[[Lake], None] | None = None) -> Lake:
    """Live one lake; an error names its seed."""
    lake = Lake(seed)
    if change is not None:
        change(lake)
    try:
        lake.run()
    except (Exception, KilledError) as error:
        error.add_note(f"lake {seed}: {lake}")
        raise
    return lake
