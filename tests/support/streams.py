"""Streams without Spark: a stream over a table, and a query that does with it what Spark does."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import CHANGELOG_FIELDS, Scope
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.table import TableInput, TablePosition
from spark_upsert.streams.offsets.offset import Offset
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.clocked import HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import append, make_table, rows_at, schema_of

Row = dict[str, Any]


def options_of(**given: Any) -> ReadOptions:
    """Return the options of a stream of changes."""
    texts = {name: str(value) for name, value in given.items()}
    options = ReadOptions.parse({"path": "/unused", "readChangeFeed": "true", **texts})
    options.require_stream()
    return options


def stream_of(
    table: Table, *, clock: Now | None = None, wall: Now | None = None, **given: Any
) -> Stream:
    """Return the stream that options mean, over a table that is open; by default time stands."""
    options = options_of(**given)
    columns = read_columns(table.log, options)
    return Stream(
        NamedInputs({UNNAMED: TableInput(options, columns, table=table)}),
        options.query,
        clock=clock or Now(),
        wall=wall or Now(),
    )


def read(stream: Stream, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the batch between two offsets; its splits travel as to tasks."""
    splits = pickle.loads(pickle.dumps(stream.splits(start, end)))
    return [row for pack in splits for batch in stream.read(pack) for row in batch.to_pylist()]


class Query:
    """A streaming query: its checkpoint, and what its sink has.

    As Spark does, it notes a batch before it reads it, tells the stream of a batch only when it
    plans the next one, compares offsets as texts, and after a restart repeats what it had noted.

    Parameters
    ----------
    start : callable
        Returns the stream as a process finds it that has seen nothing.
    """

    def __init__(self, start: Callable[[], Stream]) -> None:
        self._start = start
        self._stream: Stream | None = None
        self.noted: list[str] = []
        """The texts of the offsets: the first, then the end of each batch."""
        self.batches: list[list[Row]] = []
        """The rows of each batch that the sink has."""

    @property
    def rows(self) -> list[Row]:
        """All rows that the sink has, in the order of their versions, retractions first."""
        return ordered(row for batch in self.batches for row in batch)

    @property
    def is_pending(self) -> bool:
        """Whether a batch is noted that the sink does not have."""
        return len(self.noted) > len(self.batches) + 1

    @property
    def stream(self) -> Stream:
        """The stream of the process that runs."""
        self.begin()
        assert self._stream is not None
        return self._stream

    def begin(self) -> None:
        """Start the process, unless it runs."""
        if self._stream is None:
            self._stream = self._start()

    def restart(self) -> None:
        """Forget all but the checkpoint and the sink."""
        self._stream = None

    def plan(self, *, everything: bool = False) -> bool:
        """Note the next batch; returns whether there is one.

        As Spark does: it says that the batch before is done between the question for the end of
        this one and the planning of it.
        """
        assert not self.is_pending
        stream = self.stream
        if not self.noted:
            self.noted.append(json.dumps(stream.initial()))
        end = stream.latest(json.loads(self.noted[-1]), everything=everything)
        text = json.dumps(end)
        if text == self.noted[-1]:
            return False
        self.noted.append(text)
        if self.batches:
            stream.commit(json.loads(self.noted[-2]))
        return True

    def deliver(self) -> list[Row]:
        """Read the batch that is noted; the sink takes it."""
        found = self.replayed(len(self.batches))
        self.batches.append(found)
        return found

    def replayed(self, number: int) -> list[Row]:
        """Return the rows of a batch, read by its offsets."""
        start, end = self.noted[number : number + 2]
        return read(self.stream, json.loads(start), json.loads(end))

    def drain(self, *, batches_max: int = 1000) -> None:
        """Read until there is nothing more."""
        if self.is_pending:
            self.deliver()
        for _ in range(batches_max):
            if not self.plan():
                return
            self.deliver()
        raise AssertionError(f"{batches_max} batches, and no end")


def position_in(text: str) -> TablePosition:
    """Return where an offset stands in the sole input of a stream."""
    return TablePosition.from_position(Offset.from_json(json.loads(text)).positions[UNNAMED])


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Return changes in an order: by version, then retractions first."""
    return sorted(rows, key=lambda r: (r["_commit_version"], r["_diff"], str(r["k"])))


def folded(rows: Iterable[Row], before: Mapping[Any, Any] | None = None) -> dict[Any, Any]:
    """Return what changes amount to, key to value; each must be right where it stands."""
    found = dict(before or {})
    for row in ordered(rows):
        if row["_diff"] < 0:
            assert found.pop(row["k"], None) == row["v"], f"{row} retracts no row"
        else:
            assert row["k"] not in found, f"{row} inserts a second row"
            found[row["k"]] = row["v"]
    return found


def versions(batches: Iterable[list[Row]]) -> list[list[int]]:
    """Return which versions each batch shows."""
    return [sorted({row["_commit_version"] for row in batch}) for batch in batches]


def version_1(text: str) -> str:
    """Return an offset as version 1 had it."""
    positions = json.loads(text)["positions"]
    if not positions:
        none = {"hash": f"{0:016x}", "origin": None, "place": None, "upper": 0}
        return json.dumps({"format": 2, "snapshot": False, **none})
    record = positions[UNNAMED]
    return json.dumps({"format": 2, "snapshot": len(record["hash"]) == 16, **record})


@dataclass
class Lived:
    """A table with a clock, and streams over it."""

    now: Now = field(default_factory=Now)

    def __post_init__(self) -> None:
        self.store = ClockedStore(self.now)
        make_table(self.store, schema_of(Scope.ARRIVAL))
        self.table = self.open()

    def open(self) -> Table:
        return Table(self.store, clock=self.now)

    def write(self, *epochs: dict[int, int | None]) -> None:
        for epoch in epochs:
            append(self.table, [Command(key, value) for key, value in epoch.items()])

    def query(self, **given: Any) -> Query:
        """Return a query each of whose processes opens the table anew."""
        return Query(lambda: stream_of(self.open(), wall=self.now, **given))

    def expire(self, *, after_s: float = 2 * HOUR_S) -> int:
        """Expire and remove all that no lease holds, some time later; returns the oldest left."""
        self.now.advance(after_s)
        self.table.expire(retain_versions=0, safety_ms=0)
        self.table.vacuum(grace_ms=0)
        return self.table.log.head().since

    @property
    def rows(self) -> dict[int, int]:
        return rows_at(self.table)


@dataclass
class Chained:
    """A table that a query fills with the changes of another, whose tasks take them in any order.

    Parameters
    ----------
    dice : random.Random
        Decides how rows are dealt to tasks and batches.
    has_diff : bool
        Whether the rows have the column that Delta's feed lacks.
    """

    dice: random.Random
    has_diff: bool = True
    store: MemoryStore = field(default_factory=MemoryStore)

    def take(self, number: int, rows: list[Row]) -> Commit | None:
        """Write a micro-batch; None if the table has it already."""
        table, kind = Table(self.store), schema_of(Scope.ARRIVAL)
        feed = pa.schema([*kind.columns, *CHANGELOG_FIELDS])
        if not self.has_diff:
            feed = feed.remove(feed.get_field_index("_diff"))
        keys = {"keys": ",".join(kind.keys), "hashPrefix": str(kind.hash_prefix)}
        options = WriteOptions.parse({"path": "/unused", "envelope": "changelog", **keys})
        plan = plan_table_write(table, options, feed)
        base = Snapshot(self.store, plan.base)
        dealt = self.dice.sample(rows, len(rows))
        tasks = [self._batches(part, feed) for part in self._cut(dealt)]
        staged = (stage(base, map(plan.envelope.commands, batches)) for batches in tasks)
        epoch = Transaction(writer="query", number=number, is_consecutive=True)
        return table.commit(WriteSet(base=base, staged=tuple(staged), transactions=(epoch,)))

    def _cut(self, rows: list[Row]) -> list[list[Row]]:
        count = self.dice.randrange(1, 4)
        return [rows[first::count] for first in range(count)]

    def _batches(self, rows: list[Row], feed: pa.Schema) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist(part, schema=feed) for part in self._cut(rows)]

    @property
    def rows(self) -> dict[int, int]:
        return rows_at(Table(self.store))
