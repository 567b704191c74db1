"""What an epoch asks of the storage, request by request: the counts of docs/object-stores.md.

A run of one upload is created and closed: one request. What is asked is asked in a row.
"""

from __future__ import annotations

import pickle
import re
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


@pytest.fixture
def counted() -> Counted:
    found = Counted()
    found.asked()
    return found


def told(what: str) -> int:
    """Return the count of the page."""
    [count] = re.findall(rf"^\| {re.escape(what)} \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    return int(count)


def test_an_append_to_an_open_table(counted: Counted) -> None:
    counted.append(4)
    asked = counted.asked()
    assert len(asked) == told("an append to an open table"), asked


def test_a_micro_batch_of_a_running_stream(counted: Counted) -> None:
    table = Table(counted.store)
    query = Query(lambda: stream_of(table))
    query.drain()
    counted.append(4)
    counted.asked()
    query.drain()
    asked = counted.asked()
    assert len(asked) == told("a micro-batch of changes, one epoch"), asked


def test_an_idle_poll(counted: Counted) -> None:
    table = Table(counted.store)
    query = Query(lambda: stream_of(table))
    query.drain()
    counted.asked()
    assert not query.plan()
    asked = counted.asked()
    assert len(asked) == told("a poll that finds nothing"), asked


def test_rows_by_key(counted: Counted) -> None:
    here = Table(counted.store)
    assert here.get([7, 1, 2]).num_rows == 3
    counted.asked()
    here.get(7)
    asked = counted.asked()
    in_a_row = told("rows by key (`Table.get`) of an open table, whose runs lie on this machine")
    assert len(asked) == in_a_row, asked
    # That they are fetched side by side is shown by test_far_runs.py.
    fetched = "the same, once more where some do not: those of up to 8 MiB are fetched side by side"
    assert in_a_row + told(fetched) <= 3


class Sink:
    """Spark's writer of micro-batches: one process plans them, another one commits."""

    def __init__(self, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counted = counted
        self._patch = monkeypatch
        self._batch = 0

    def _writer(self, process: str) -> UpsertStreamWriter:
        store = FaultyStore(self._counted.store, Steps(), process=process)
        for module in ("writers",):
            self._patch.setattr(f"spark_upsert_sink.{module}.open_store", lambda *_: store)
        schema = StructType([StructField("id", LongType()), StructField("n", LongType())])
        return UpsertStreamWriter(
            {"path": "/t", "keys": "id", "checkpointLocation": "c"}, schema, False
        )

    def write(self) -> tuple[list[str], list[str], list[str]]:
        """Return what is asked by the plan, the one task and the commit of a micro-batch."""
        batch, self._batch = self._batch, self._batch + 1
        self._counted.asked()
        sent = pickle.loads(pickle.dumps(self._writer("a planner")))
        planned = self._counted.asked()
        staged = sent.write(iter([pa.record_batch({"id": [batch, 7], "n": [batch, batch]})]))
        written = self._counted.asked()
        self._writer("a committer").commit([staged], batch)
        return planned, written, self._counted.asked()


def test_a_micro_batch_that_spark_writes(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(counted, monkeypatch)
    sink.write()
    for _ in range(3):
        planned, written, committed = sink.write()
        assert len(planned) == told("the plan of a micro-batch that Spark writes"), planned
        assert len(written) == told("its task"), written
        assert len(committed) == told("its commit"), committed


def test_a_process_that_sees_the_table_for_the_first_time(counted: Counted) -> None:
    Table(counted.store).log.head()
    asked = counted.asked()
    behind = counted.table.log.head().version + 1  # No checkpoint yet.
    assert (
        len(asked)
        == told(
            "the first look of a process, one of them a listing, "
            "and a version since the last checkpoint each"
        )
        + behind
    ), asked


def test_a_process_that_opens_the_table_again(counted: Counted) -> None:
    store = FaultyStore(counted.store, Steps(), process="the same")
    Table(store).log.head()
    counted.asked()
    Table(store).log.head()
    asked = counted.asked()
    assert len(asked) == told("a later look of the process, and a version since each"), asked
    counted.append(4)
    counted.asked()
    Table(store).log.head()
    assert len(counted.asked()) == len(asked) + 1


EACH = "for each table in a task, one less where its last batch was written on this machine"


class RoutedBatch:
    """A write into many tables: one process plans the batches, one has its task, one commits."""

    def __init__(self) -> None:
        self._steps = {name: Steps() for name in ("plan", "task", "commit")}
        store = MemoryStore()
        self._roots = {
            name: FaultyStore(store, steps, process=(store.url, name))
            for name, steps in self._steps.items()
        }
        self._options = RoutedOptions.parse({"path": "/lake/{topic}", "keys": "id"})
        self._batch = 0

    def write(self) -> None:
        """Write a batch of two rows into each of two tables."""
        batch, self._batch = Transaction(writer=f"{QUERY}q", number=self._batch), self._batch + 1
        ids = [self._batch, 7]
        rows = pa.record_batch({"topic": ["a", "a", "b", "b"], "id": ids * 2})
        plan = plan_routed(self._options, rows.schema, root=self._roots["plan"])
        staged = stage_routed(plan, self._roots["task"], [rows], batch, 0)
        commit_routed(self._roots["commit"], self._options, [staged], batch)

    def asked(self, process: str, folder: str) -> list[str]:
        """Return what a process asked of a folder since the last time."""
        names = self._steps[process].names
        found = [name for name in names if not name.startswith(NO_REQUEST) and folder in name]
        names[:] = [name for name in names if folder not in name]
        return found


def test_a_batch_into_many_tables() -> None:
    routed = RoutedBatch()
    routed.write()  # It makes the tables, and the next one is the first to find them.
    routed.write()
    for process in ("plan", "task", "commit"):
        routed.asked(process, "")
    for _ in range(5):
        routed.write()
        for what, process, folder in [
            ("the plan of a batch into many tables", "plan", ""),
            (EACH, "task", " a/"),
            (EACH, "task", " b/"),
            ("for each table in the commit", "commit", " a/"),
            ("for each table in the commit", "commit", " b/"),
            ("for the group of all in the commit", "commit", " _group/"),
        ]:
            asked = routed.asked(process, folder)
            assert len(asked) == told(what), (what, asked)
        assert not routed.asked("task", "") + routed.asked("commit", "")
