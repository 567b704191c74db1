"""A mill: a flow that follows a table into three others, batch by batch, and is killed at times.

What an engine does is played by hand, in one process and from one seed: it notes how far a batch
goes before it runs, and that it has run behind it; a batch that is noted and not done comes again.
Passes and exchanges are those of `tests.support.flow_runs.by_stages`. Between any two steps of its
I/O others may act: a second writer of the source, and a compactor of any of the tables; at any step
it may be killed. It goes on at other widths, in other elements, in as many tasks as it likes.

Each reading that was written must come through once: ``all`` keeps them, ``latest`` the last of
each device, ``counts`` how many there were, which a batch that came twice would add twice.
"""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from unittest.mock import patch

import pyarrow as pa

from examples.flow.latest import LATEST, READINGS, newest, parsed
from spark_upsert.core.schema import TableSchema
from spark_upsert.flow import Flow, Graph, PythonFunction, TableSink, local, rescale
from spark_upsert.flow.graph import InputRows
from spark_upsert.flow.rescale import remember
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.table import Table
from spark_upsert.task import Aggregate, ArrowScan, Group
from tests.simulation.lake_reader import Process
from tests.support.clocked import ClockedStore, Now
from tests.support.flow_recipes import plan_of
from tests.support.flow_runs import by_stages
from tests.support.stores import Fault, FaultyStore, KilledError, Moment

DEVICES = 4
"""Few, so that a batch has several readings of one."""

ACTS = 12
"""So often somebody else does something, and then the mill."""

STEPS = 120
"""A kill, or what others do, comes within so many steps of I/O: about those of a batch."""

Row = tuple[int, int, int]


@dataclass
class Checkpoint:
    """What the engine has noted."""

    noted: list[tuple[int, int]] = field(default_factory=list)
    """Of each batch: the versions ``lower <= v < upper`` of the source."""
    done: int = 0
    """So many batches have run."""


class Mill:
    """A flow, its tables, and those who are about it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"mill {seed}")
        self._now = Now()
        self._objects = ClockedStore(self._now)
        self._process = Process(self._others_act)
        self._checkpoint = Checkpoint()
        self._written: list[tuple[int, Row]] = []
        """All readings, with the versions that brought them."""
        self.trace: list[str] = []

    # -- the life ----------------------------------------------------------------------------

    def live(self) -> None:
        """Let all act for a while; then let the mill catch up, and compare for good."""
        with self._in_its_process():
            self._table("readings").ensure(TableSchema.of(READINGS, keys=["device", "seq"]))
            for _ in range(ACTS):
                self._others_act()
                self._expect_something()
                self._grind()
            self._process.expect()
            while not self._has_caught_up():
                self._grind()

    def _expect_something(self) -> None:
        step = self._random.randrange(STEPS)
        match self._random.choice(["nothing", "others", "killed", "killed"]):
            case "nothing":
                self._process.expect()
            case "others":
                self._process.expect(others_in=step)
            case _:
                moment = self._random.choice(list(Moment))
                self._process.expect(fault=Fault(step, moment), others_in=step // 2)

    def _grind(self) -> None:
        try:
            self._batch()
        except KilledError:
            self.trace.append(f"killed at step {len(self._process.names)}")
            self._process = Process(self._others_act)
            return
        self._compare()

    def _has_caught_up(self) -> bool:
        noted, done = self._checkpoint.noted, self._checkpoint.done
        head = self._table("readings").log.head().upper
        return done == len(noted) and bool(noted) and noted[-1][1] == head

    # -- what the engine does ----------------------------------------------------------------

    def _batch(self) -> None:
        noted, number = self._checkpoint.noted, self._checkpoint.done
        source = Table(self.open_store("/readings"), clock=self._now)
        if number == len(noted):
            lower = noted[-1][1] if noted else 0
            head = source.log.head().upper
            noted.append((lower, self._random.choice([head, self._random.randint(lower, head)])))
        lower, upper = noted[number]
        graph = self._graph()
        flow_id = remember(graph, "/checkpoint", {})
        taken = self._taken(source, lower, upper)
        plan = plan_of(graph, self._random)
        found = by_stages(plan, {"rows": taken}, parts=self._random.randint(1, 3), turn=number)
        self.trace.append(f"batch {number}: {lower} to {upper}, {len(taken)} rows, {plan}")
        for name, sink in local.targets_of(graph).items():
            named = {"txnAppId": f"flow-{flow_id}", "txnVersion": str(number)}
            commit = local.write(sink, found[name], **named)
            self.trace.append(f"{name}: {commit and commit.version}")
        self._checkpoint.done += 1

    def _taken(self, source: Table, lower: int, upper: int) -> pa.Table:
        """Return the readings of some versions: of their changes those that are insertions."""
        changes = source.changes(lower, upper)
        assert set(changes["_change_type"].to_pylist()) <= {"insert"}
        return changes.select(READINGS.names).cast(READINGS)

    def _graph(self) -> Graph:
        draw = self._random
        flow = Flow()
        rows = flow.source("rows", InputRows(READINGS))
        with flow.parallel("parse", draw.randint(1, 3)):
            rows = flow.operator("parsed", PythonFunction(parsed, LATEST), rows)
        with flow.parallel("decide", draw.randint(1, 3), partition_by=["device"]):
            newer = flow.operator("newest", PythonFunction(newest, LATEST), rows)
            counts = flow.operator("counts", COUNTED, rows)
        for name, given in (("counts", counts), ("latest", newer), ("all", rows)):
            flow.sink(name, TableSink(f"/{name}", SINKS[name]), given)
        return flow.graph()

    @contextmanager
    def _in_its_process(self) -> Iterator[None]:
        names = Random(f"names {self._seed}")
        with ExitStack() as stack:
            stack.enter_context(
                patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128)))
            )
            stack.enter_context(patch.object(secrets, "randbits", names.getrandbits))
            for module in (local, rescale):
                stack.enter_context(patch.object(module, "open_store", self.open_store))
            stack.enter_context(patch.object(local, "Table", partial(Table, clock=self._now)))
            yield

    def open_store(self, path: str, storage: Mapping[str, str] | None = None) -> Store:
        """Return the store at a path, as the mill's process has it."""
        return PrefixStore(FaultyStore(self._objects, self._process), path.strip("/"))

    # -- what others do ----------------------------------------------------------------------

    def _others_act(self) -> None:
        self._now.advance(1)
        if self._random.random() < 0.6:
            self._append()
            return
        name = self._random.choice(["readings", *SINKS])
        table = self._table(name)
        if table.log.try_head() is not None:
            done = table.compact(full=self._random.random() < 0.5)
            self.trace.append(f"compacted {name}: {done}")

    def _append(self) -> None:
        first = len(self._written)
        rows = [
            (self._random.randrange(DEVICES), seq, 10 + seq % 7)
            for seq in range(first, first + self._random.randint(1, 4))
        ]
        named = [{"device": d, "seq": s, "text": f"{c} C"} for d, s, c in rows]
        commit = self._table("readings").upsert(pa.Table.from_pylist(named, schema=READINGS))
        assert commit is not None
        self._written += [(commit.version, row) for row in rows]
        self.trace.append(f"wrote {len(rows)}")

    def _table(self, name: str) -> Table:
        """Return a table as another process has it, which never fails."""
        return Table(PrefixStore(self._objects, name), clock=self._now)

    # -- what must be ------------------------------------------------------------------------

    def _compare(self) -> None:
        upper = self._checkpoint.noted[self._checkpoint.done - 1][1]
        rows = [row for version, row in self._written if version < upper]
        expected = {
            "all": sorted(rows),
            "latest": sorted({row[0]: row for row in rows}.values()),
            "counts": sorted(Counter(device for device, *_ in rows).items()),
        }
        for name, own in expected.items():
            assert self._rows_of(name) == own, f"{name}: {self.trace[-3:]}"

    def _rows_of(self, name: str) -> list[tuple[int, ...]]:
        table = self._table(name)
        assert table.check().is_sound
        return sorted(tuple(row.values()) for row in table.snapshot().to_pylist())


COUNTED = Group(
    id="counted",
    input=ArrowScan(id="input", schema=LATEST),
    keys=("device",),
    aggregates=(Aggregate.of("n", "count"),),
)

SINKS = {
    "latest": {"keys": "device", "sequenceBy": "seq"},
    "all": {"keys": "device,seq"},
    "counts": {"keys": "device", "mergeEngine": "aggregation", "aggregate.n": "sum"},
}


def live(seed: int) -> Mill:
    """Return a mill that has lived."""
    mill = Mill(seed)
    try:
        mill.live()
    except Exception as error:
        error.add_note(f"mill {seed}: {mill.trace}")
        raise
    return mill
