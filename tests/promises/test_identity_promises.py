"""P1 where a table is not the one that a process knew, and where a put lands late.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import cast
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_upsert.core.schema import Scope
from spark_upsert.errors import OtherTableError
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.table import Table
from spark_upsert_sink import UpsertStreamWriter
from tests.promises.layouts import ON_BOTH_LAYOUTS
from tests.support.clocked import HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import (
    BrokenError,
    FaultyStore,
    KilledError,
    MemoryStore,
    SlowStore,
    Steps,
)
from tests.support.tables import append, plan_epoch, rows_at, schema_of
from tests.unit.test_identity import HOW_MANY, Unsteady, made


@ON_BOTH_LAYOUTS
@pytest.mark.parametrize("other", [False, True], ids=["nothing", "another table"])
def test_p1_what_is_put_where_the_table_was_is_not_reported(other: bool) -> None:
    """The folder is emptied, or filled with another table, right before the put."""
    store = Unsteady()
    table, another = made(store), made(MemoryStore())
    contents = dict(cast(MemoryStore, another.store).objects) if other else {}

    def replace_all() -> None:
        store.objects.clear()
        store.objects.update(contents)

    store.happens = replace_all
    with pytest.raises(OtherTableError):
        append(table, [Command(7, 7, 7)])
    assert (Table(store).log.try_head() is not None) == other
    if other:
        assert append(Table(store), [Command(8, 8, 8)]) is not None


@ON_BOTH_LAYOUTS
@pytest.mark.parametrize("other", [False, True], ids=["set back", "made anew"])
def test_p1_what_a_process_remembers_is_not_what_there_is(other: bool) -> None:
    """The table that it has read and written was replaced before it is opened again."""
    store = MemoryStore()
    process = FaultyStore(store, Steps(), process=f"one that lives on, {other}")
    made(process)
    before = rows_at(Table(process))
    if other:
        store.objects.clear()
        made(store, 1)
    else:
        del store.objects[commit_path(HOW_MANY)]
    assert rows_at(Table(process)) == rows_at(Table(store)) != before
    assert append(Table(process), [Command(7, 7, 7)]) is not None
    assert rows_at(Table(store))[7] == 7


@pytest.mark.parametrize("other", [False, True], ids=["it was written on", "it was set back"])
@ON_BOTH_LAYOUTS
def test_p1_where_a_log_is_said_to_end_is_looked_for(other: bool) -> None:
    """As the group of a routed write says it to the tasks: it was true when that was recorded."""
    store = MemoryStore()
    process = FaultyStore(store, Steps(), process=f"a task, {other}")
    table = made(process, HOW_MANY - 2)
    append(Table(store), [Command(1, 1, 50)])
    append(Table(store), [Command(2, 2, 50)])
    told = Table(store).log.head().version_ref
    log = Table(process).log
    assert log.commit(told.version).token == told.token
    if other:
        del store.objects[commit_path(told.version)]
    else:
        append(Table(store), [Command(3, 3, 50)])
    look = log.try_refresh(reported=told)
    assert look is not None
    assert look.head() == Table(store).log.head() != table.log.cached_head


@pytest.mark.parametrize("other", [False, True], ids=["it was written on", "it was set back"])
@ON_BOTH_LAYOUTS
def test_p1_a_commit_begins_behind_what_a_task_has_proven(other: bool) -> None:
    """Whatever the process that commits remembers, and whatever came since."""
    store = MemoryStore()
    committer = FaultyStore(store, Steps(), process=f"a committer, {other}")
    made(committer)
    if other:
        del store.objects[commit_path(HOW_MANY)]
    epoch = plan_epoch(Table(store), [[[Command(7, 7, 7)]]])
    if not other:
        append(Table(store), [Command(8, 8, 8)])
    table = Table(committer)
    table.log.snapshot_at(epoch.staged[0].base)
    assert table.commit(epoch) is not None
    assert (7 in rows_at(Table(store)), 8 in rows_at(Table(store))) == (True, not other)


@ON_BOTH_LAYOUTS
def test_p1_a_writer_that_dies_leaves_nothing_in_another_tables_log() -> None:
    """The table was replaced while it staged; it would die before it could take its put back."""

    class Deadly(MemoryStore):
        is_armed = False

        def put_if_absent(self, path: str, data: bytes) -> bool:
            super().put_if_absent(path, data)
            if self.is_armed:
                raise KilledError(path)
            return True

    store = Deadly()
    table, another = made(store), made(MemoryStore())
    planned = plan_epoch(table, [[[Command(7, 7, 7)]]])
    table.log.snapshot_at(planned.staged[0].base)
    store.objects.clear()
    store.objects.update(cast(MemoryStore, another.store).objects)
    store.is_armed = True
    with pytest.raises((OtherTableError, KilledError)):
        table.commit(planned)
    store.is_armed = False
    assert append(Table(store), [Command(8, 8, 8)]) is not None


def test_p1_a_put_that_lands_behind_the_abort_finds_its_files() -> None:
    """The commit of Spark's batch gets no answer, Spark aborts it, and then it takes effect."""
    store = SlowStore(MemoryStore())
    schema = StructType([StructField("k", LongType()), StructField("v", LongType())])
    options = {"path": "t", "keys": "k", "checkpointLocation": "c"}
    with ExitStack() as stack:
        for module in ("writers",):
            opened = f"spark_upsert_sink.{module}.open_store"
            stack.enter_context(patch(opened, lambda *_: store))
        sent = pickle.loads(pickle.dumps(UpsertStreamWriter(options, schema, False)))
        messages = [sent.write(iter([pa.record_batch({"k": [1, 2], "v": [3, 4]})]))]
        store.is_slow = True
        with pytest.raises(BrokenError):
            UpsertStreamWriter(options, schema, False).commit(messages, 0)
        UpsertStreamWriter(options, schema, False).abort(messages, 0)
    assert store.land() == [True]
    assert Table(store).snapshot().sort_by("k").to_pydict() == {"k": [1, 2], "v": [3, 4]}


@ON_BOTH_LAYOUTS
def test_p1_a_put_that_lands_behind_a_vacuum_creates_nothing() -> None:
    """The vacuum has taken its files for left behind."""
    now = Now()
    store = SlowStore(ClockedStore(now))
    table = Table(store, clock=now)
    table.ensure(schema_of(Scope.TABLE))
    append(table, [Command(1, 1, 1)])
    store.is_slow = True
    with pytest.raises(BrokenError):
        append(table, [Command(2, 2, 2)])
    store.is_slow = False
    for _ in range(3):
        now.advance(2 * 24 * HOUR_S)
        Table(store, clock=now).vacuum()
    assert len(list(store.list("data"))) == 1
    assert store.land() == [False]
    assert rows_at(Table(store, clock=now)) == {1: 1}
