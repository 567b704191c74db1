"""Random streams into a few tables of all kinds, with everything that comes between their steps.

The model of each table is a table of its own, to which the batches are appended one by one, each
once. Whatever depends on which of two rows comes later is left out: equal keys and order keys have
equal values, so that a batch means the same however it is divided into tasks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import ContentionError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import GroupCommit, commit_routed
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import QUERY, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from tests.support.stores import Fault, FaultyStore, KilledError, MemoryStore, Moment, Steps

ROWS = pa.schema(
    {
        "topic": pa.string(),
        "id": pa.int64(),
        "at": pa.int64(),
        "v": pa.int64(),
        "w": pa.int64(),
        "gone": pa.bool_(),
    }
)

TOPICS = ("last", "sum", "part", "epoch")

OPTIONS: Mapping[str, str] = {
    "path": "/lake/{topic}",
    "keys": "id",
    "columnList": "id,v,w",
    "commitThreads": "1",
    "table.last.sequenceBy": "at",
    "table.last.applyAsDeletes": "gone",
    "table.last.tombstoneRetention": "1000 epochs",
    "table.sum.mergeEngine": "aggregation",
    "table.sum.aggregate.v": "sum",
    "table.sum.aggregate.w": "max",
    "table.part.mergeEngine": "partial-update",
    "table.part.sequenceBy": "at",
    "table.epoch.sequenceBy": "at",
    "table.epoch.sequenceScope": "epoch",
    "table.epoch.applyAsDeletes": "gone",
    "table.epoch.onError": "quarantine",
}

Row = Mapping[str, Any]


def routed_options(**more: str) -> RoutedOptions:
    """Return the options of a write into the tables of all kinds."""
    return RoutedOptions.parse({**OPTIONS, **more})


def transaction(number: int, query: str = "q") -> Transaction:
    """Return the transaction of a batch of a query."""
    return Transaction(writer=f"{QUERY}{query}", number=number, is_consecutive=True)


def row(rng: random.Random, topic: str) -> Row:
    """Return a row of a topic; what it says follows from its key and its order key."""
    key = rng.randrange(4)
    at = rng.randrange(6)
    same = random.Random(f"{topic} {key} {at}")
    return {
        "topic": topic,
        "id": None if topic == "epoch" and rng.random() < 0.1 else key,
        "at": at,
        "v": None if topic == "part" and same.random() < 0.5 else same.randrange(3),
        "w": same.randrange(3),
        "gone": same.random() < 0.3,
    }


def rows_of(rng: random.Random, topics: Sequence[str] = TOPICS) -> list[Row]:
    """Return the rows of a batch, none of some topics."""
    return [row(rng, rng.choice(topics)) for _ in range(rng.randrange(12))]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as one batch."""
    return pa.RecordBatch.from_pylist([dict(each) for each in rows], schema=ROWS)


def divided(rng: random.Random, rows: Sequence[Row]) -> list[list[Row]]:
    """Deal rows out to some tasks."""
    tasks: list[list[Row]] = [[] for _ in range(rng.randrange(1, 4))]
    for each in rows:
        rng.choice(tasks).append(each)
    return tasks


def write(
    root: Store,
    options: RoutedOptions,
    tasks: Sequence[Sequence[Row]],
    batch: Transaction | None,
    *,
    overwrite: bool = False,
    between: Callable[[], None] = lambda: None,
) -> GroupCommit | None:
    """Write a batch as Spark does: plan, stage in each task, commit; others come ``between``."""
    late = LateRows.REJECT
    plan = plan_routed(options, ROWS, root=root, overwrite=overwrite, late_rows=late)
    staged = []
    for index, rows in enumerate(tasks):
        staged.append(stage_routed(plan, root, [batch_of(rows)], batch, index, threads=1))
        between()
    return commit_routed(root, options, staged, batch, overwrite=overwrite, late_rows=late)


ADDED = "+"
"""With this begin the names of columns that another process adds to a table."""

Content = list[dict[str, Any]]


def content(table: Table, version: int | None = None) -> Content:
    """Return the rows of a table, in the order of their keys, and what is in its quarantine.

    Without the columns that another process adds.
    """
    shown = table.snapshot(version).sort_by("id")
    rows = shown.select([name for name in shown.column_names if name[0] != ADDED]).to_pylist()
    bad = [each for batch in table.quarantine(version) for each in batch.to_pylist()]
    return [*rows, *({name: each[name] for name in ("id", "_reason")} for each in bad)]


@dataclass
class Model:
    """What the tables are to be: each batch is appended once, as one task."""

    options: RoutedOptions
    tables: dict[str, Table] = field(default_factory=dict)

    def copy(self) -> Model:
        """Return a model of its own that holds the same."""
        stores = {topic: MemoryStore() for topic in self.tables}
        for topic, store in stores.items():
            own = self.tables[topic].store
            assert isinstance(own, MemoryStore)
            store.objects = dict(own.objects)
        return Model(self.options, {topic: Table(store) for topic, store in stores.items()})

    def apply(self, rows: Sequence[Row]) -> Model:
        """Append the rows of a batch, or of a second writer."""
        for topic in sorted({each["topic"] for each in rows}):
            own = batch_of([each for each in rows if each["topic"] == topic])
            append(self.tables.setdefault(topic, Table(MemoryStore())), self.options, topic, own)
        return self

    def content(self, topic: str) -> Content:
        """Return what a table is to hold."""
        return content(self.tables[topic])


def append(table: Table, options: RoutedOptions, topic: str, rows: pa.RecordBatch) -> None:
    """Append rows to one table by its own options, as another writer."""
    write = plan_table_write(table, options.of(topic, topic), rows.schema)
    if write.base.is_unborn:
        table.ensure(write.base.schema, write.base.properties)
        write = plan_table_write(table, options.of(topic, topic), rows.schema)
    table.upsert(pa.Table.from_batches([rows]), envelope=write.envelope, late_rows=LateRows.REJECT)


@dataclass
class World:
    """A root, its model, and dice."""

    seed: int
    options: RoutedOptions = field(default_factory=routed_options)
    store: MemoryStore = field(default_factory=MemoryStore)
    crashes: int = 0
    replays: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.model = Model(self.options)
        self.wholes: list[dict[str, Content]] = []
        """What each whole batch left in each table that had its rows."""
        self._had: dict[str, Content] = {}
        """What the batch under way left in tables that have it since a crash."""

    def play(self, batches: int) -> None:
        """Write some batches, with faults and company, and check what is promised."""
        for number in range(batches):
            self.batch(number)
            self.check(number)
        self.check_past()

    def meddle(self) -> None:
        """Let a second writer or a compactor come between."""
        if self.rng.random() < 0.4:
            topic = self.rng.choice(("last", "sum", "part"))
            for _ in range(self.rng.choice((1, 1, 7))):  # Many small epochs are to be compacted.
                rows = [row(self.rng, topic) for _ in range(self.rng.randrange(1, 4))]
                append(table_below(self.store, topic), self.options, topic, batch_of(rows))
                self.model.apply(rows)
        if self.rng.random() < 0.4:
            table = table_below(self.store, self.rng.choice((*TOPICS, "_group")))
            if table.log.try_head() is not None:
                table.compact(full=self.rng.random() < 0.5)

    def batch(self, number: int) -> None:
        """Write a batch until it is whole, and perhaps once more."""
        rows = rows_of(self.rng)
        faults = self.rng.randrange(3)
        while not self.attempt(rows, number, is_faulty=faults > 0):
            self.crashes += 1
            faults -= 1
        self.model.apply(rows)
        topics = sorted({each["topic"] for each in rows})
        contents = {topic: self.model.content(topic) for topic in topics}
        self.wholes.append({**contents, **self._had})
        self._had = {}
        if self.rng.random() < 0.3:
            self.replays += 1
            tasks = divided(self.rng, rows)
            assert write(self.store, self.options, tasks, transaction(number)) is None

    def meddle_behind(self, rows: Sequence[Row], number: int) -> None:
        """Let others come between: tables may have the batch already, behind a crash.

        What is written there now is no part of the batch.
        """
        for topic in sorted({each["topic"] for each in rows} - self._had.keys()):
            head = table_below(self.store, topic).log.try_head()
            if head is not None and head.has(transaction(number)):
                own = [each for each in rows if each["topic"] == topic]
                self._had[topic] = self.model.copy().apply(own).content(topic)
        self.meddle()

    def steps(self, rows: Sequence[Row], number: int, *, is_faulty: bool) -> Steps:
        """Return the steps of an attempt, with its fault."""
        fault = Fault(self.rng.randrange(250), self.rng.choice(list(Moment)), KilledError)
        return Steps(fault if is_faulty else None)

    def attempt(self, rows: Sequence[Row], number: int, *, is_faulty: bool) -> bool:
        """Try to write a batch; return whether it is whole now."""
        tasks = divided(self.rng, rows)
        steps = self.steps(rows, number, is_faulty=is_faulty)
        lives_on = (self.seed, self.crashes) if self.seed % 2 else None
        root = FaultyStore(self.store, steps, process=lives_on)
        between = partial(self.meddle_behind, rows, number)
        with suppress(KilledError, ContentionError):
            write(root, self.options, tasks, transaction(number), between=between)
            return True
        return GroupTable(self.store).has(transaction(number))

    def check(self, number: int) -> None:
        """Compare all tables with the model, and the group with the tables."""
        group = GroupTable(self.store).at()
        assert group.batch is not None
        assert group.batch.number == number
        for topic in self.model.tables:
            table = table_below(self.store, topic)
            assert content(table) == self.model.content(topic), (self.seed, number, topic)
            assert not table.check().findings
        for topic, member in group.members.items():
            table = table_below(self.store, topic)
            assert table.log.version_ref(member.place.version) == member.place

    def check_past(self) -> None:
        """Look at every whole batch once more: the versions that the group names have it."""
        group_table = GroupTable(self.store)
        expected: dict[str, Content] = {}
        for number, contents in enumerate(self.wholes):
            expected |= contents
            members = group_table.of_batch(number).members
            assert members.keys() == expected.keys()
            for topic, member in members.items():
                assert (member.batch == number) == (topic in contents)
                table = table_below(self.store, topic)
                found = content(table, member.place.version)
                assert found == expected[topic], (self.seed, number, topic)
