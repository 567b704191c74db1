"""What an epoch asks of the storage, request by request: the counts of docs/object-stores.md.

A run of one upload is created and closed: one request. What is asked is asked in a row.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_upsert.core.schema import TableSchema
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.plan import plan_routed
from spark_upsert.routed.stage import stage_routed
from spark_upsert.table.log.manifest import QUERY, Transaction
from spark_upsert.table.table import Table
from spark_upsert_sink import UpsertStreamWriter
from tests.support.stores import FaultyStore, MemoryStore, Steps
from tests.support.streams import Query, stream_of

PAGE = Path(__file__).parents[2] / "docs" / "object-stores.md"
COLUMNS = pa.schema({"id": pa.int64(), "n": pa.int64()})
NO_REQUEST = ("prepare ", "sync ", "write ", "close ")
"""On an object store: what has no folders, is durable at once, or belongs to one upload."""


class Counted:
    """A table of a few versions on a store that notes what it is asked."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.store = FaultyStore(MemoryStore(), self.steps)
        self.table = Table(self.store)
        self.table.ensure(TableSchema.of(COLUMNS, keys=["id"]))
        for number in range(3):
            self.append(number)

    def append(self, number: int) -> None:
        self.table.upsert(pa.table({"id": [number, 7], "n": [number, number]}))

    def asked(self) -> list[str]:
        """Return what was asked since the last time."""
        names = [name for name in self.steps.names if not name.startswith(NO_REQUEST)]
        del self.steps.names[:]
        return names

    def require(self, line: str, act: Callable[[], object], *, more: int = 0) -> None:
        """Require that an act takes the requests that a line of the page names."""
        self.asked()
        act()
        asked = self.asked()
        assert len(asked) == count_of(line) + more, (line, asked)


def count_of(line: str) -> int:
    """Return the count of the page."""
    [count] = re.findall(rf"^\| {re.escape(line)} \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    return int(count)


def test_appends_and_reads_of_an_open_table() -> None:
    counted = Counted()
    counted.require("an append to an open table", lambda: counted.append(4))
    query = Query(lambda: stream_of(Table(counted.store)))
    query.drain()
    counted.append(4)
    counted.require("a micro-batch of changes, one epoch", query.drain)
    counted.require("a poll that finds nothing", query.plan)
    table = Table(counted.store)
    assert table.get([7, 1, 2]).num_rows == 3
    near = "rows by key (`Table.get`) of an open table with local copies of its runs"
    counted.require(near, lambda: table.get(7))
    # That they are fetched side by side is shown by test_far_runs.py.
    far = "the same, in addition: remote runs of up to 8 MiB, fetched in parallel"
    assert count_of(near) + count_of(far) <= 3


def test_looks_of_a_process() -> None:
    counted = Counted()
    first = (
        "the first read of the log by a process, including a listing, "
        "plus one for each version since the last checkpoint"
    )
    versions = counted.table.log.head().version + 1  # No checkpoint yet.
    counted.require(first, Table(counted.store).log.head, more=versions)
    store = FaultyStore(counted.store, Steps(), process="the same")
    Table(store).log.head()
    later = "a later read of the log by the process, plus one for each new version"
    counted.require(later, lambda: Table(store).log.head())
    counted.append(4)
    counted.require(later, lambda: Table(store).log.head(), more=1)


def test_a_micro_batch_that_spark_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process plans the micro-batches, another one commits."""
    counted = Counted()
    schema = StructType([StructField("id", LongType()), StructField("n", LongType())])
    options = {"path": "/t", "keys": "id", "checkpointLocation": "c"}

    def writer(process: str) -> UpsertStreamWriter:
        store = FaultyStore(counted.store, Steps(), process=process)
        monkeypatch.setattr("spark_upsert_sink.writers.open_store", lambda *_: store)
        return UpsertStreamWriter(options, schema, False)

    for batch in range(4):
        counted.asked()
        sent = pickle.loads(pickle.dumps(writer("a planner")))
        planned = counted.asked()
        staged = sent.write(iter([pa.record_batch({"id": [batch, 7], "n": [batch, batch]})]))
        written = counted.asked()
        writer("a committer").commit([staged], batch)
        committed = counted.asked()
        if batch:
            assert len(planned) == count_of("the plan of a micro-batch written by Spark"), planned
            assert len(written) == count_of("its task"), written
            assert len(committed) == count_of("its commit"), committed


EACH = "for each table in a task, one less where its last batch was written on this machine"


def test_a_batch_into_many_tables() -> None:
    """One process plans the batches, one has the task, one commits."""
    store, steps = MemoryStore(), {name: Steps() for name in ("plan", "task", "commit")}
    roots = {name: FaultyStore(store, s, process=(store.url, name)) for name, s in steps.items()}
    options = RoutedOptions.parse({"path": "/lake/{topic}", "keys": "id"})

    def write(number: int) -> None:
        """Write a batch of two rows into each of two tables."""
        batch = Transaction(writer=f"{QUERY}q", number=number)
        rows = pa.record_batch({"topic": ["a", "a", "b", "b"], "id": [number + 1, 7] * 2})
        plan = plan_routed(options, rows.schema, root=roots["plan"])
        staged = stage_routed(plan, roots["task"], [rows], batch, 0)
        commit_routed(roots["commit"], options, [staged], batch)

    def asked(process: str, folder: str) -> list[str]:
        """Return what a process asked of a folder since the last time."""
        names = steps[process].names
        asked = [name for name in names if not name.startswith(NO_REQUEST) and folder in name]
        names[:] = [name for name in names if folder not in name]
        return asked

    write(0)  # It makes the tables, and the next one is the first to find them.
    write(1)
    for process in steps:
        asked(process, "")
    for number in range(2, 7):
        write(number)
        for line, process, folder in [
            ("the plan of a batch into many tables", "plan", ""),
            (EACH, "task", " a/"),
            (EACH, "task", " b/"),
            ("for each table in the commit", "commit", " a/"),
            ("for each table in the commit", "commit", " b/"),
            ("for the group of all in the commit", "commit", " _group/"),
        ]:
            names = asked(process, folder)
            assert len(names) == count_of(line), (line, names)
        assert not asked("task", "") + asked("commit", "")
